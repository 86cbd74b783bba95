"""Chunks of messages and rows of marks, as LMDB has them."""

from __future__ import annotations

import pytest

from penstock._ext.device.rows import (
    BadSource,
    NoPacketId,
    QueueCounters,
    RowWriter,
    chunk_count,
    chunk_scores,
    copy_chunk,
    edit_chunk,
    find_mark,
    mark_prefix,
    packet_id_of,
    read_chunk,
)
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.device.store.base import SOURCE, build_source

NEVER = 1 << 60
HALF_A_PAGE = 2_000


class Tables:
    """Knows nothing but what it was told."""

    def __init__(self) -> None:
        self.known: dict[tuple[int, int, int, int], int] = {}
        self.stored: list[int] = []
        self.asked: list[str] = []

    def find_known(self, counters: QueueCounters, partition: int, offset: int, via: int) -> int | None:
        self.asked.append("known")
        return self.known.get((counters.number, partition, offset, via))

    def find_first(self, counters: QueueCounters) -> None:
        self.asked.append("first")
        counters.first_score = min(self.stored, default=counters.last_score + 1)

    def load_taken(self, counters: QueueCounters) -> None:
        self.asked.append("taken")
        counters.take(self.stored)


def pack_of(*values: bytes | None, first: int = 0, **source: int) -> RecordPack:
    pack = RecordPack()
    for offset, value in enumerate(values, first):
        pack.append(value, build_source(source.get("partition", 0), offset, source.get("expires_at", 0)))
    return pack


def add(rows: RowWriter, counters: QueueCounters, pack: RecordPack, passed_over: int = 0) -> list[int]:
    return rows.add(counters, pack, b"", 1_000, 5_000, NEVER, passed_over)[0]


def test_a_chunk_is_half_a_page_and_keeps_the_order() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(7, 0, 0)
    values = [b"%03d" % i * 33 for i in range(40)] + [b"large" * 1000, b"last"]
    assert add(rows, counters, pack_of(*values)) == list(range(1, 43))
    assert all(len(chunk) <= HALF_A_PAGE or chunk_count(chunk) == 1 for _, chunk in rows.chunks)
    assert len(rows.chunks) < 8
    found: list[bytes] = []
    scores: list[int] = []
    for key, chunk in rows.chunks:
        assert key[:8] == (7).to_bytes(8, "big")
        base = int.from_bytes(key[8:], "big")
        assert chunk_scores(chunk, base)[0] == base
        assert read_chunk(chunk, base, -1, 100, 0, [], scores, found, [])[1] is False
    assert (found, scores) == (values, list(range(1, 43)))
    assert (counters.last_score, counters.most, counters.first_score) == (42, 42, 1)


def test_reading_goes_on_after_a_score_and_up_to_a_limit() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    add(rows, counters, pack_of(b"a", b"b", None, b"d"))
    add(rows, counters, pack_of(b"short", first=4, expires_at=1_500))
    (_, first), (_, second) = rows.chunks
    ids: list[int] = []
    values: list[bytes] = []
    assert read_chunk(first, 1, 1, 2, 2_000, ids, [], values, []) == (3, True)
    assert (ids, values) == ([2, 3], [b"b", b""])
    expired: list[int] = []
    assert read_chunk(second, 5, 4, 10, 2_000, [], [], [], expired) == (5, False)
    assert expired == [5]


def test_messages_are_taken_out_and_emptied() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    add(rows, counters, pack_of(*(b"%d" % i for i in range(1, 7))))
    chunk = rows.chunks[0][1]
    left, found, at = edit_chunk(chunk, 1, [1, 3, 6, 9], 0, False)
    assert (chunk_scores(left, 1), found, at) == ([2, 4, 5], [1, 3, 6], 3)
    emptied, found, _ = edit_chunk(left, 1, [1, 4], 0, True)
    values: list[bytes] = []
    read_chunk(emptied, 1, -1, 10, 0, [], [], values, [])
    assert (values, found) == ([b"2", b"", b"5"], [4])
    assert edit_chunk(emptied, 1, [2, 4, 5], 0, False)[0] == b""
    with pytest.raises(ValueError, match="damaged"):
        chunk_scores(chunk[:-1], 1)


def test_messages_move_under_another_source() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    add(rows, counters, pack_of(b"a", b"b", first=10, partition=-3))
    moved, ids = RecordPack(), list[int]()
    copy_chunk(rows.chunks[0][1], 1, moved, 99, b"+", 5, 2_000, ids)
    assert (moved.values(), ids) == ([b"a+", b"b+"], [1, 2])
    assert SOURCE.unpack(moved.keys()[1] or b"") == (-3, 99, 11, 5_000, 0)


def test_marks_find_what_was_added_in_any_partition() -> None:
    rows = RowWriter(Tables())
    queues = [QueueCounters(number, 0, 0) for number in range(1, 300)]
    for counters in queues:
        add(rows, counters, pack_of(b"x", b"y", first=62))
        add(rows, counters, pack_of(b"z", first=7, partition=-1))
    assert rows.mark_count == 3 * len(queues)
    marks = rows.take_marks(1000)
    assert rows.mark_count == 0
    assert [key for key, _ in marks] == sorted({key for key, _ in marks})
    for counters in queues:
        for partition, offset, score in ((0, 62, 1), (0, 63, 2), (-1, 7, 3), (0, 64, 0), (1, 62, 0)):
            found = [
                find_mark(row, offset, 0, counters.number)
                for key, row in marks
                if key.startswith(mark_prefix(partition, offset))
            ]
            assert max(found, default=0) == score


def test_tables_are_asked_only_about_what_may_be_known() -> None:
    tables = Tables()
    rows, counters = RowWriter(tables), QueueCounters(1, 0, 0)
    assert add(rows, counters, pack_of(b"a", b"b")) == [1, 2]
    assert add(rows, counters, pack_of(b"a", b"b", b"c")) == [1, 2, 3]
    assert tables.asked == []
    rows.take_marks(0)
    tables.known = {(1, 0, 0, 0): 1, (1, 0, 1, 0): 0}
    assert add(rows, counters, pack_of(b"a", b"b", b"?", b"d")) == [1, 0, 4, 5]
    assert tables.asked == ["known"] * 3
    # Another partition has nothing to do with it.
    assert add(rows, counters, pack_of(b"e", partition=5)) == [6]
    assert len(tables.asked) == 3


def test_ids_that_come_round_are_looked_for_when_they_may_be_stored() -> None:
    tables = Tables()
    rows, counters = RowWriter(tables), QueueCounters(1, 65_534, 65_534)
    counters.most, counters.is_exact, counters.first_score = 3, False, 1
    tables.stored = [2, 3, 65_534]
    assert add(rows, counters, pack_of(b"a", b"b")) == [65_535, 1]
    assert (tables.asked, counters.knows_taken) == (["first"], False)
    assert add(rows, counters, pack_of(b"c", b"d", first=2)) == [4, 5]
    assert (tables.asked[1:], counters.knows_taken) == (["first", "taken"], True)
    assert counters.scores_of([2, 4, 6, 0, 70_000]) == [2, 4, 65_537, 65_539]
    counters.removed([2])
    assert counters.scores_of([2, 3]) == [3, 65_538]
    assert packet_id_of(65_538) == 3


def test_no_id_is_left() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    everything = b"".join(number.to_bytes(2, "little") for number in range(1, 65_536))
    with pytest.raises(NoPacketId):
        rows.add(counters, pack_of(b"x"), everything, 0, 1, NEVER, 0)
    with pytest.raises(NoPacketId):
        rows.reserve(counters, 65_536, b"")
    assert counters.last_id == 0
    assert rows.reserve(counters, 65_535, b"")[-1] == 65_535


def test_a_wrong_source_is_refused_and_what_came_before_it_is_kept() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    pack = pack_of(b"good")
    pack.append(b"bad", b"short")
    with pytest.raises(BadSource):
        add(rows, counters, pack)
    assert (rows.mark_count, [chunk_count(chunk) for _, chunk in rows.chunks]) == (1, [1])


def test_the_oldest_of_a_pack_are_passed_over() -> None:
    rows, counters = RowWriter(Tables()), QueueCounters(1, 0, 0)
    assert add(rows, counters, pack_of(b"a", b"b", b"c"), passed_over=2) == [0, 0, 1]
    assert add(rows, counters, pack_of(b"old", first=3, expires_at=999)) == [0]
