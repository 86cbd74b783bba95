"""Record packs and batches: what goes in comes out, and what was damaged is noticed."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.record.segment import (
    HEADER_SIZE,
    DamagedBatch,
    Record,
    RecordPack,
    build_control,
    crc32c,
    find_batch,
    read_batches,
    scan_batches,
    write_packs,
)

ALL = 1 << 30
RECORD = st.tuples(
    st.none() | st.binary(max_size=300),
    st.none() | st.binary(max_size=200),
    st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=150)), max_size=3),
    st.integers(min_value=-(2**60), max_value=2**60),
)


def build(records: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]], base: int) -> RecordPack:
    pack = RecordPack()
    for value, key, headers, timestamp in records:
        pack.append(value, key, headers, timestamp)
    pack.place(base)
    return pack


def read(data: bytes, partition: int = 0, offset: int = 0, max_records: int = ALL) -> RecordPack:
    pack = RecordPack()
    read_batches(pack, data, 0, partition, offset, max_records, ALL)
    return pack


@given(st.lists(RECORD, min_size=1, max_size=30), st.integers(min_value=0, max_value=2**50))
def test_records_come_back(records, base: int) -> None:
    pack = build(records, base)
    expected = [Record(base + i, at, key, value, headers) for i, (value, key, headers, at) in enumerate(records)]
    assert list(pack) == expected
    assert list(read(pack.encode(7), 7)) == expected
    assert pack.offsets().tolist() == [record.offset for record in expected]
    assert pack.timestamps().tolist() == [record.timestamp for record in expected]
    assert pack.values() == [record.value for record in expected]
    assert pack.keys() == [record.key for record in expected]
    assert pack.max_timestamp == max(record.timestamp for record in expected)
    assert pack.next_offset == base + len(records)


@given(st.lists(st.lists(RECORD, min_size=1, max_size=5), min_size=1, max_size=6), st.data())
def test_batches_are_merged_and_cut(packs, data) -> None:
    """Several batches of two partitions in a file, read from any offset up to any number of records."""
    encoded, expected, ends = b"", {0: [], 1: []}, [0, 0]
    for i, records in enumerate(packs):
        pack = build(records, ends[i % 2])
        ends[i % 2] = pack.next_offset
        expected[i % 2] += list(pack)
        encoded += pack.encode(i % 2)
    offset = data.draw(st.integers(0, ends[0]))
    limit = data.draw(st.integers(1, 20))
    assert list(read(encoded, 0, offset, limit)) == expected[0][offset : offset + limit]
    assert [info.partition for info in scan_batches(encoded, 0, True)[0]] == [i % 2 for i in range(len(packs))]


@given(st.lists(RECORD, min_size=1, max_size=20), st.data())
def test_slice(records, data) -> None:
    pack = build(records, 100)
    offset = data.draw(st.integers(90, 100 + len(records)))
    count = data.draw(st.integers(0, 25))
    part = pack.slice(offset, count)
    first = max(0, offset - 100)
    assert list(part) == list(pack)[first : first + count]
    if part.count:
        assert part.base_offset == 100 + first
        assert part.next_offset == 100 + first + part.count


def test_no_damaged_byte_goes_unnoticed() -> None:
    """Every byte of a batch, with a sound one behind it that a reader must not reach over the bad one."""
    good = build([(b"value", b"key", [("name", b"x")], 7)] * 3, 5).encode(0)
    for at in range(len(good)):
        for change in (1, 0x80, 0xFF):
            bad = bytearray(good)
            bad[at] ^= change
            pack, noticed_at = RecordPack(), None
            try:
                noticed_at, needed = read_batches(pack, bytes(bad) + good, 0, 0, 0, ALL, ALL)
                # a size that is larger than the data: the batch counts as not whole
                assert needed > 2 * len(good)
                assert at in range(4, 8)
            except DamagedBatch as error:
                noticed_at = error.position
            assert (noticed_at, pack.count) == (0, 0)


def test_a_header_that_is_no_text_keeps_nothing_from_the_other_records() -> None:
    """Kafka's producers in other languages may write any bytes as its name."""
    encoded = bytearray(build([(b"v", None, [("é", b"x")], 7), (b"w", None, [("name", b"y")], 8)], 5).encode(0))
    at = encoded.index("é".encode())
    encoded[at + 1] = ord("(")
    encoded[8:12] = crc32c(bytes(encoded[12:])).to_bytes(4, "little")
    assert [record.headers for record in read(bytes(encoded))] == [[("\ufffd(", b"x")], [("name", b"y")]]


def test_gaps_are_kept() -> None:
    pack = RecordPack()
    for offset in (3, 7, 8, 4_000_000):
        pack.append(b"v", b"k", timestamp=offset, offset=offset)
    assert not pack.is_dense
    assert (pack.base_offset, pack.next_offset) == (3, 4_000_001)
    again = read(pack.encode(0))
    assert again.offsets().tolist() == [3, 7, 8, 4_000_000]
    assert again.slice(8).offsets().tolist() == [8, 4_000_000]
    with pytest.raises(ValueError, match="rise"):
        pack.append(b"v", offset=8)


def test_a_sealed_pack_takes_nothing_more() -> None:
    pack = RecordPack()
    pack.append(b"v")
    pack.place(0)
    with pytest.raises(ValueError, match="appended already"):
        pack.append(b"w")
    with pytest.raises(ValueError, match="appended already"):
        read_batches(pack, pack.encode(0), 0, 0, 0, 1, 1)


def test_crc32c() -> None:
    """The check value of the standard (RFC 3720, B.4), and continued over any split."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(b"\0" * 32) == 0x8A9136AA
    data = random.Random(1).randbytes(1_000)
    for split in range(0, 1_000, 37):
        assert crc32c(data[split:], crc32c(data[:split])) == crc32c(data)


def test_scan_says_where_and_why_it_stops() -> None:
    one, two = build([(b"a", None, [], 1)], 0).encode(0), build([(b"b", None, [], 2)], 1).encode(0)
    assert scan_batches(one + two, 0, True)[1:] == (len(one + two), "")
    assert scan_batches(one + two[:-1], 0, True)[1:] == (len(one), "torn")
    assert scan_batches(one + two[:5], 0, True)[1:] == (len(one), "torn")
    assert scan_batches(one + b"garbage!" * 10, 0, True)[1:] == (len(one), "header")
    newer = one[:3] + bytes([9]) + one[4:]
    assert scan_batches(newer, 0, True)[1:] == (0, "version")
    assert scan_batches(one[:20] + b"?" + one[21:], 0, False)[1:] == (0, "header")
    changed = one[:-1] + bytes([one[-1] ^ 1])
    assert scan_batches(changed, 0, True)[1:] == (0, "checksum")
    assert scan_batches(changed, 0, False)[1:] == (len(one), "")
    assert find_batch(changed + b"xx" + two, 1) == len(one) + 2
    assert find_batch(changed, 0) == -1


def test_control_batches_are_not_records() -> None:
    control = build_control(0, 2, 50, 1_000, b"body")
    pack = build([(b"a", None, [], 1)], 0)
    data = control + pack.encode(0)
    assert len(read(data)) == 1
    first, second = scan_batches(data, 0, True)[0]
    assert (first.flags, first.base_offset, first.count, first.size) == (0x201, 50, 0, HEADER_SIZE + 4)
    assert second.flags == 0


def test_write_packs(tmp_path: Path) -> None:
    """More pieces than one writev takes, and what was not known to be on the disk before each."""
    packs = [build([(b"%d" % number, None, [], 1)], number) for number in range(1_500)]
    fd = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
    try:
        written, failure = write_packs(fd, 10, 4, [0] * len(packs), packs, True)
        data = os.pread(fd, 10_000_000, 10)
    finally:
        os.close(fd)
    assert (written, failure) == (len(data), 0)
    infos, _, problem = scan_batches(data, 0, True)
    assert (len(infos), problem) == (1_500, "")
    assert {info.synced + 10 for info in infos} == {4}
    assert read(data).values() == [b"%d" % number for number in range(1_500)]


def test_write_packs_reports_the_error() -> None:
    fd = os.open("/dev/full", os.O_RDWR)
    try:
        written, failure = write_packs(fd, 0, 0, [0], [build([(b"x", None, [], 1)], 0)], True)
    finally:
        os.close(fd)
    assert written == 0
    assert os.strerror(failure) == "No space left on device"


def test_compaction_keeps_the_newest() -> None:
    pack = RecordPack()
    for key, value, at in [(b"a", b"1", 1), (b"b", b"1", 2), (b"a", b"2", 3), (None, b"x", 4), (b"b", None, 5)]:
        pack.append(value, key, timestamp=at)
    pack.place(10)
    newest: dict[bytes, int] = {}
    pack.note_newest(newest)
    assert newest == {b"a": 12, b"b": 14}
    assert pack.keep_newest(newest, 5, -1).offsets().tolist() == [12, 13, 14]
    assert pack.keep_newest(newest, 6, -1).offsets().tolist() == [12, 13]
    assert pack.keep_newest(newest, 6, 14).offsets().tolist() == [12, 13, 14]


def test_find_time() -> None:
    pack = build([(b"x", None, [], at) for at in (10, 30, 20, 40)], 5)
    assert [pack.find_time(at) for at in (0, 10, 11, 31, 41)] == [5, 5, 6, 8, -1]
    assert pack.find_time(10, 7) == 7
