"""What the embedded log makes of files that a crash or a bad disk left behind."""

from __future__ import annotations

import errno
import logging
import os
import re
import shlex
import shutil
import stat
from pathlib import Path

import pytest
import uvloop

from penstock.__main__ import main
from penstock._ext.record.segment import encode_tail, scan_batches
from penstock.storage.log.base import LogDamaged, LogError, TopicNotFound, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog, files, repair_topic
from penstock.storage.log.embedded.recovery import recover_topic
from penstock.storage.log.embedded.segments import Segment, SegmentStart
from penstock.storage.log.embedded.topic_writer import Append, Outcome, TopicWriter
from tests.support.worlds.embedded import number_of, numbered, opened, read_all, segments_of, topic_directory


def write(directory: Path, *packs: tuple[int, int], partitions: int = 1, **properties: str) -> None:
    """Commits packs of (partition, records) one after the other."""

    async def run() -> None:
        async with opened(directory) as log:
            await log.admin.create("t", partitions, {name.replace("_", "."): v for name, v in properties.items()})
            ends = [0] * partitions
            for partition, count in packs:
                await log.producer.send("t", partition, numbered(ends[partition], count))
                ends[partition] += count

    uvloop.run(run())


def read(directory: Path, partitions: int = 1) -> list[list[int]]:
    async def run() -> list[list[int]]:
        async with opened(directory, cache_bytes=0) as log:
            return [[number_of(record) for record in await read_all(log, "t", p)] for p in range(partitions)]

    return uvloop.run(run())


def batches_of(path: Path) -> list[tuple[int, int]]:
    """Position and size of each batch of records."""
    return [(batch.position, batch.size) for batch in scan_batches(path.read_bytes(), 0, True)[0] if batch.count]


def set_durable(path: Path, position: int) -> None:
    """As if the process had ended before it knew that more of the segment is on the disk."""
    files.write_durably(path.parent / files.TAIL_FILE, encode_tail(int(path.stem), position))


def test_a_torn_tail_is_cut_at_every_byte_of_the_last_batch(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, size = batches_of(path)[-1]
    assert position + size == len(whole)
    set_durable(path, position)
    for cut in range(position, len(whole)):
        path.write_bytes(whole[:cut])
        recovered = recover_topic(path.parent)
        assert recovered.ends == [3]
        assert path.stat().st_size == position
    path.write_bytes(whole)
    assert recover_topic(path.parent).ends == [5]


def test_a_corrupted_byte_in_the_last_batch_cuts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a test before this one may have configured the logs of the program, which then stay with it
    monkeypatch.setattr(logging.getLogger("penstock"), "propagate", True)
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, _ = batches_of(path)[-1]
    set_durable(path, position)
    for at in range(position, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with caplog.at_level(logging.WARNING, logger="penstock"):
            assert recover_topic(path.parent).ends == [3]
        assert path.stat().st_size == position
    assert "tail of the log cut off" in caplog.text
    assert read(tmp_path) == [[0, 1, 2]]


def test_appending_goes_on_after_a_cut_tail(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    set_durable(path, batches_of(path)[-1][0])
    path.write_bytes(path.read_bytes()[:-1])

    async def run() -> None:
        async with opened(tmp_path) as log:
            assert (await log.producer.send("t", 0, numbered(3, 4))).base_offset == 3

    uvloop.run(run())
    assert read(tmp_path) == [list(range(7))]


def refused(directory: Path, path: Path, position: int) -> None:
    """The start is refused, nothing is changed, and the command that is printed repairs the topic."""
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(LogDamaged) as caught:
        read(directory)
    assert f"{path} is damaged at byte {position}:" in str(caught.value)
    assert (path.read_bytes() if path.exists() else None) == before
    command = re.search("`(.*)`", str(caught.value))
    assert command is not None
    assert shlex.split(command[1]) == ["penstock", "log", "repair", "t", "--data-dir", str(directory)]


def test_stored_records_at_the_end_are_never_cut(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, _ = batches_of(path)[-1]
    for cut in range(position, len(whole)):
        path.write_bytes(whole[:cut])
        with pytest.raises(LogDamaged, match=f"byte {position}:"):
            recover_topic(path.parent)
        assert path.stat().st_size == cut
    for at in range(position, len(whole), 3):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        with pytest.raises(LogDamaged, match=f"byte {position}:"):
            recover_topic(path.parent)
        assert path.stat().st_size == len(whole)
    path.write_bytes(whole)
    assert recover_topic(path.parent).ends == [5]


def test_a_stored_batch_that_was_cut_through_is_repaired(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, _ = batches_of(path)[-1]
    path.write_bytes(whole[:-1])
    refused(tmp_path, path, position)
    report = repair_topic(tmp_path, "t")
    assert [(lost.partition, lost.first, lost.end) for lost in report.lost] == [(0, 3, 5)]
    assert (report.damaged_bytes, report.missing_bytes) == (len(whole) - 1 - position, 1)
    assert report.set_aside[0].read_bytes() == whole[position:-1]
    assert read(tmp_path) == [[0, 1, 2]]
    assert repair_topic(tmp_path, "t").is_sound


def test_a_stored_batch_with_a_bad_byte_is_repaired(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, size = batches_of(path)[-1]
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refused(tmp_path, path, position)
    report = repair_topic(tmp_path, "t")
    assert [(lost.partition, lost.first, lost.end) for lost in report.lost] == [(0, 3, 5)]
    assert (report.damaged_bytes, report.missing_bytes) == (size, 0)
    assert read(tmp_path) == [[0, 1, 2]]


def test_a_missing_stored_batch_is_refused_and_the_printed_command_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    position, size = batches_of(path)[-1]
    os.truncate(path, position)
    refused(tmp_path, path, position)
    assert main(["log", "repair", "t", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{size} bytes that were stored are missing" in printed
    assert "lost: partition 0, offsets 3 and later" in printed
    assert read(tmp_path) == [[0, 1, 2]]
    # what is left is guarded again
    os.truncate(path, position - 1)
    with pytest.raises(LogDamaged):
        read(tmp_path)


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "missing"])
@pytest.mark.parametrize("packs", [1, 30], ids=["only", "last"])
def test_a_stored_segment_that_is_gone(tmp_path: Path, packs: int, is_empty: bool) -> None:
    write(tmp_path, *[(0, 20)] * packs, segment_bytes="2048")
    path = segments_of(tmp_path, "t")[-1]
    size = path.stat().st_size
    first = recover_topic(path.parent).segments[-1].start.ends[0]
    if is_empty:
        os.truncate(path, 0)
    else:
        path.unlink()
    refused(tmp_path, path, 0)
    report = repair_topic(tmp_path, "t")
    assert report.missing_bytes == size
    assert [(lost.partition, lost.first, lost.end) for lost in report.lost] == [(0, first, None)]
    assert read(tmp_path) == [list(range(first))]
    assert repair_topic(tmp_path, "t").is_sound


def test_the_tail_is_behind_until_the_disk_has_it(tmp_path: Path) -> None:
    """With fsync = interval what is acknowledged is not on the disk yet; at the end it is."""

    async def run() -> None:
        async with opened(tmp_path, fsync="interval", fsync_interval_ms=60_000) as log:
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 3))
            (path,) = segments_of(tmp_path, "t")
            assert files.read_tail(path.parent) == (1, batches_of(path)[0][0])

    uvloop.run(run())
    (path,) = segments_of(tmp_path, "t")
    assert files.read_tail(path.parent) == (1, path.stat().st_size)


def test_after_a_failed_sync_nothing_more_of_the_segment_counts_as_stored(tmp_path: Path) -> None:
    """The kernel reports a failed write once; the next fdatasync succeeds although the bytes are gone."""
    write(tmp_path, (0, 3))
    (path,) = segments_of(tmp_path, "t")
    before = files.read_tail(path.parent)

    async def run() -> None:
        async with opened(tmp_path, fsync="interval", fsync_interval_ms=60_000) as log:
            await log.producer.send("t", 0, numbered(3, 2))
            writer = log.writers["t"]
            writer.doubt()
            writer.settle(Outcome(None), is_synced=True)
            assert files.read_tail(path.parent) == before
            await log.producer.send("t", 0, numbered(5, 2))

    uvloop.run(run())
    last = segments_of(tmp_path, "t")[-1]
    assert last != path
    assert files.read_tail(path.parent) == (2, last.stat().st_size)
    assert read(tmp_path) == [list(range(7))]


def test_the_tail_stays_right_when_the_disk_refuses(tmp_path: Path) -> None:
    write(tmp_path, (0, 3))
    (path,) = segments_of(tmp_path, "t")
    writer = TopicWriter(None, recover_topic(path.parent))  # type: ignore[arg-type] # nobody is told anything
    outcome = Outcome(None)
    writer.stage([Append.of(None, [(0, numbered(3, 2))])], outcome, sync=False)  # type: ignore[arg-type] # as above
    size = path.stat().st_size
    writer.view = type("View", (), {"name": "t"})()
    writer.roll_back(outcome, errno.ENOSPC)
    writer.close()
    durable = files.read_tail(path.parent)
    assert durable == (1, path.stat().st_size)
    assert durable[1] < size
    assert read(tmp_path) == [[0, 1, 2]]


def test_the_directories_are_the_owners_alone(tmp_path: Path) -> None:
    write(tmp_path, (0, 1))
    for directory in (tmp_path / "log", tmp_path / "log" / "t", tmp_path / "state"):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_damage_in_the_middle_is_refused_and_repaired(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (1, 1), (0, 2), (1, 4), (0, 5), partitions=2)
    (path,) = segments_of(tmp_path, "t")
    whole = path.read_bytes()
    position, size = batches_of(path)[2]
    damaged = whole[: position + 70] + b"?" + whole[position + 71 :]
    path.write_bytes(damaged)
    with pytest.raises(LogDamaged) as caught:
        read(tmp_path, 2)
    assert str(path) in str(caught.value)
    assert f"byte {position}" in str(caught.value)
    assert "penstock log repair t" in str(caught.value)
    assert path.read_bytes() == damaged
    report = repair_topic(tmp_path, "t")
    assert [(lost.partition, lost.first, lost.end) for lost in report.lost] == [(0, 3, 5)]
    assert report.damaged_bytes == size
    assert report.set_aside[0].read_bytes() == damaged[position : position + size]
    assert read(tmp_path, 2) == [[0, 1, 2, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4]]
    assert repair_topic(tmp_path, "t").is_sound


@pytest.mark.parametrize("has_index", [True, False], ids=["indexed", "walked"])
def test_damage_in_a_closed_segment(tmp_path: Path, has_index: bool) -> None:
    """With an index it is noticed when it is read, without at the start; never is anything cut or skipped."""
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    paths = segments_of(tmp_path, "t")
    assert len(paths) > 3
    position, _ = batches_of(paths[1])[1]
    data = paths[1].read_bytes()
    paths[1].write_bytes(data[: position + 30] + b"?" + data[position + 31 :])
    index = paths[1].with_suffix(".idx")
    assert index.exists()
    if not has_index:
        index.unlink()
    with pytest.raises(LogDamaged, match=f"byte {position}"):
        read(tmp_path)
    report = repair_topic(tmp_path, "t")
    assert sum(lost.end - lost.first for lost in report.lost) == 20
    lost = set(range(report.lost[0].first, report.lost[0].end))
    assert read(tmp_path) == [[number for number in range(600) if number not in lost]]


def test_what_lies_before_the_damage_is_read(tmp_path: Path) -> None:
    """Whoever waits for the repair has everything before it; the damage is told by the next poll, and by each after."""
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    path = segments_of(tmp_path, "t")[1]
    position, _ = batches_of(path)[3]
    data = path.read_bytes()
    first = next(b.base_offset for b in scan_batches(data, 0, True)[0] if b.position == position)
    path.write_bytes(data[: position + 30] + b"?" + data[position + 31 :])

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            consumer = log.consumer("")
            partition = TopicPartition("t", 0)
            consumer.assign([partition])
            found: list[int] = []
            while len(found) < first:
                for fetched in await consumer.poll(10_000, 5.0):
                    found += [number_of(record) for record in fetched.pack]
            assert found == list(range(first))
            for _ in range(2):
                with pytest.raises(LogDamaged, match=f"byte {position}"):
                    await consumer.poll(10_000, 5.0)
            assert consumer.position(partition) == first

    uvloop.run(run())


def test_a_closed_segment_that_was_cut_short(tmp_path: Path) -> None:
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    path = segments_of(tmp_path, "t")[1]
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LogDamaged, match="not whole"):
        read(tmp_path)


def test_indexes_are_made_anew(tmp_path: Path) -> None:
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    indexes = sorted(topic_directory(tmp_path, "t").glob("*.idx"))
    before = [index.read_bytes() for index in indexes]
    indexes[0].unlink()
    indexes[1].write_bytes(b"nonsense")
    indexes[2].write_bytes(before[2][:-1])
    assert read(tmp_path) == [list(range(600))]
    assert [index.read_bytes() for index in indexes] == before


def stage(directory: Path, *counts: int) -> Path:
    """Writes packs as one commit that the process does not live to see the end of."""
    recovered = recover_topic(topic_directory(directory, "t"))
    writer = TopicWriter(None, recovered)  # type: ignore[arg-type] # nobody is told anything
    appends = [Append.of(None, [(0, numbered(0, count))]) for count in counts]  # type: ignore[arg-type] # as above
    writer.stage(appends, Outcome(None), sync=False)
    writer.close()
    return segments_of(directory, "t")[-1]


def test_a_power_cut_may_write_the_pages_of_a_commit_in_any_order(tmp_path: Path) -> None:
    """Of a commit that was not finished a later batch may be on the disk and an earlier one not: that is no damage."""
    write(tmp_path, (0, 3))
    path = stage(tmp_path, 2, 2, 2)
    whole = path.read_bytes()
    position, size = batches_of(path)[1]
    path.write_bytes(whole[:position] + b"\0" * size + whole[position + size :])
    assert recover_topic(path.parent).ends == [3]
    assert path.stat().st_size == position
    # but a batch that was finished before the commit began is not part of it
    path.write_bytes(whole)
    first, size = batches_of(path)[0]
    path.write_bytes(whole[:first] + b"\0" * size + whole[first + size :])
    with pytest.raises(LogDamaged):
        recover_topic(path.parent)


def test_very_many_pages_of_a_commit_may_be_missing(tmp_path: Path) -> None:
    """With `log.fsync = interval` a commit is all that came in that time. Before, its start was a RecursionError."""
    write(tmp_path, (0, 3))
    path = stage(tmp_path, *[1] * 4_000)
    data = bytearray(path.read_bytes())
    for position, size in batches_of(path)[2::2]:
        data[position + size - 1] ^= 1
    path.write_bytes(data)
    assert recover_topic(path.parent).ends == [4]


def test_a_segment_that_was_being_created(tmp_path: Path) -> None:
    write(tmp_path, (0, 3))
    (path,) = segments_of(tmp_path, "t")
    start = SegmentStart(2, 0, 1, [3], [0]).build()
    for left in (b"", start[:10], start[:-1]):
        path.with_name(f"{2:020}.seg").write_bytes(left)
        assert recover_topic(path.parent).ends == [3]
        assert len(segments_of(tmp_path, "t")) == 1


def test_the_end_survives_when_all_records_are_gone(tmp_path: Path) -> None:
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    paths = segments_of(tmp_path, "t")
    last = recover_topic(paths[-1].parent)
    start = SegmentStart(last.segments[-1].sequence + 1, 0, 1, last.ends, last.firsts)
    paths[-1].with_name(f"{start.sequence:020}.seg").write_bytes(start.build())
    for path in paths:
        path.unlink()
    recovered = recover_topic(paths[0].parent)
    assert (recovered.firsts, recovered.ends) == ([600], [600])


def test_a_damaged_start_is_refused_and_repaired(tmp_path: Path) -> None:
    write(tmp_path, (0, 3), (0, 2))
    (path,) = segments_of(tmp_path, "t")
    data = path.read_bytes()
    path.write_bytes(data[:70] + b"?" + data[71:])
    with pytest.raises(LogDamaged, match="does not start"):
        read(tmp_path)
    repair_topic(tmp_path, "t")
    assert read(tmp_path) == [[0, 1, 2, 3, 4]]


class NoOffsets:
    """LMDB itself refuses to be opened twice in a process."""

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        return []

    def write(self, changes: object) -> None:
        raise AssertionError("nothing is to be written")


def test_two_brokers_cannot_use_one_directory(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1)
            with pytest.raises(LogError, match="in use by another process"):
                await EmbeddedLog(tmp_path, NoOffsets()).start()
            with pytest.raises(LogError, match="in use"):
                repair_topic(tmp_path, "t")

    uvloop.run(run())


def test_repair_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(TopicNotFound):
        repair_topic(tmp_path, "t")


def test_what_was_being_deleted_is_gone(tmp_path: Path) -> None:
    write(tmp_path, (0, 3))
    home = topic_directory(tmp_path, "t")
    shutil.copytree(home, home.with_name(".deleted-1-u"))
    home.with_name("half").mkdir()

    async def run() -> None:
        async with opened(tmp_path) as log:
            assert await log.admin.list() == ["t"]
            await log.admin.create("half", 1)
            assert await log.admin.list() == ["half", "t"]

    uvloop.run(run())
    assert not home.with_name(".deleted-1-u").exists()


@pytest.mark.parametrize("name", ["tbmq.msg.all", ".hidden", "a/b", "ü" * 300, "x" * 900, "a%2Fb", "..", "A b\n"])
def test_any_name_is_a_topic(tmp_path: Path, name: str) -> None:
    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create(name, 1)
            await log.producer.send(name, 0, numbered(0, 1))
        async with opened(tmp_path) as log:
            assert await log.admin.list() == [name]
            assert log.watermarks(TopicPartition(name, 0)).end == 1

    uvloop.run(run())


def test_an_index_belongs_to_its_file(tmp_path: Path) -> None:
    write(tmp_path, *[(0, 20)] * 30, segment_bytes="2048")
    path = segments_of(tmp_path, "t")[0]
    encoded = path.with_suffix(".idx").read_bytes()
    size = path.stat().st_size
    assert Segment.from_index(path, encoded, size) is not None
    assert Segment.from_index(path, encoded, size + 1) is None
    for at in range(0, len(encoded), 7):
        changed = encoded[:at] + bytes([encoded[at] ^ 1]) + encoded[at + 1 :]
        assert Segment.from_index(path, changed, size) is None
