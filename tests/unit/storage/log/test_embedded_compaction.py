"""Compaction in memory of a fixed size gives what a dictionary of all keys would."""

from __future__ import annotations

import shutil
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext.record.segment import OffsetTable, RecordPack
from penstock.core.clock import now_ms
from penstock.storage.log.embedded.compaction import CleanSegment, CompactionPlan, compact, packs_of, swap_in
from penstock.storage.log.embedded.segments import Segment, SegmentStart
from penstock.storage.log.topics import TopicConfig

PARTITIONS = 2
OLD, YOUNG = 1, 2**50
# 16 slots, of which 12 are used
SMALLEST = 1
CONFIG = TopicConfig.of("t", PARTITIONS, {"cleanup.policy": "compact", "segment.bytes": "4096"})


class Stored(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@contextmanager
def new_directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp())
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def build(directory: Path, batches: Iterable[Iterable[Stored]], sequence: int, ends: list[int]) -> Segment:
    """A segment with these batches; `ends` moves on."""
    plan = CompactionPlan("t", directory, CONFIG, [], [0] * PARTITIONS)
    made = CleanSegment(plan, SegmentStart(sequence, 0, now_ms(), list(ends), [0] * PARTITIONS))
    for batch in batches:
        pack = RecordPack()
        for record in batch:
            pack.append(record.value, record.key, timestamp=record.timestamp, offset=record.offset)
            ends[record.partition] = record.offset + 1
        made.add(record.partition, pack)
    segment = made.finish(0)
    segment.is_clean = False
    swap_in([], [segment])
    return segment


def read(segments: Iterable[Segment]) -> list[Stored]:
    return [
        Stored(partition, record.offset, record.key, record.value, record.timestamp)
        for segment in segments
        for partition, pack in packs_of("t", segment)
        for record in pack
    ]


def naive(records: list[Stored]) -> list[Stored]:
    newest = {(record.partition, record.key): record.offset for record in records}
    last = {record.partition: record.offset for record in records}
    kept = []
    for record in records:
        is_newest = record.key is None or newest[record.partition, record.key] == record.offset
        is_dead = record.key is not None and record.value is None and record.timestamp == OLD
        if record.offset == last[record.partition] or (is_newest and not is_dead):
            kept.append(record)
    return kept


KEYS = st.one_of(st.none(), st.integers(0, 60).map(lambda number: b"key-%d" % number), st.just(b""))
RECORDS = st.tuples(KEYS, st.one_of(st.none(), st.binary(max_size=20)), st.sampled_from((OLD, YOUNG)))
BATCHES = st.tuples(st.integers(0, PARTITIONS - 1), st.lists(RECORDS, min_size=1, max_size=40))
# generations of segments of batches: after each generation everything is compacted
TOPICS = st.lists(st.lists(st.lists(BATCHES, min_size=1, max_size=4), min_size=1, max_size=3), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(TOPICS, st.sampled_from((SMALLEST, 4_096, 1_048_576)))
def test_it_equals_the_naive_model(
    topic: list[list[list[tuple[int, list[tuple[bytes | None, bytes | None, int]]]]]], table_bytes: int
) -> None:
    with new_directory() as directory:
        segments: list[Segment] = []
        expected: list[Stored] = []
        ends = [0] * PARTITIONS
        sequence = 0
        for generation in topic:
            for batches in generation:
                sequence += 1
                made = [
                    [Stored(partition, ends[partition] + number, *record) for number, record in enumerate(records)]
                    for partition, records in batches
                ]
                # two batches of one partition follow each other
                for batch in made:
                    shift = ends[batch[0].partition] - batch[0].offset
                    batch[:] = [record._replace(offset=record.offset + shift) for record in batch]
                    ends[batch[0].partition] = batch[-1].offset + 1
                    expected += batch
                segments.append(build(directory, made, sequence, list(ends)))
            plan = CompactionPlan("t", directory, CONFIG, segments, [0] * PARTITIONS)
            built = compact(plan, table_bytes)
            swap_in(segments, built)
            segments = built
            expected = naive(expected)
            assert read(segments) == expected


def test_memory_has_a_bound(tmp_path: Path) -> None:
    count, rounds, ends = 20_000, 3, [0] * PARTITIONS
    segments = []
    for number in range(rounds):
        first = number * count
        records = [Stored(0, first + i, b"%d-a key of some length" % i, b"v", YOUNG) for i in range(count)]
        batches = [records[start : start + 500] for start in range(0, count, 500)]
        segments.append(build(tmp_path, batches, number + 1, ends))
    plan = CompactionPlan("t", tmp_path, CONFIG, segments, [0] * PARTITIONS)
    table_bytes = 65_536
    assert OffsetTable(table_bytes).capacity < count / 8
    tracemalloc.start()
    built = compact(plan, table_bytes)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000  # the keys alone are more
    assert [record.offset for record in read(built)] == list(range((rounds - 1) * count, rounds * count))
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("max_bytes", [1, 10_000, 1_000_000])
def test_a_table_is_no_larger_than_allowed(max_bytes: int) -> None:
    table = OffsetTable(max_bytes)
    assert table.capacity * 24 <= max(384, max_bytes)
    pack = RecordPack()
    for number in range(table.capacity + 1):
        pack.append(b"", b"%d" % number, offset=number)
    assert not table.note(pack, 0)
    table.begin(2, 1)
    assert table.note(pack, 0)


def test_partitions_have_keys_of_their_own() -> None:
    table = OffsetTable(10_000)
    older, newer = RecordPack(), RecordPack()
    older.append(b"1", b"key", offset=1)
    newer.append(b"2", b"key", offset=2)
    table.note(newer, 7)
    assert table.keep(older, 3, None, 0, 0, -1).count == 1
    assert table.keep(older, 7, None, 0, 0, -1).count == 0
