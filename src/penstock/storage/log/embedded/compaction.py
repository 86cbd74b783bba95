"""Compaction: of the closed segments only the newest record of each key is kept. Offsets do not change.

The last record of each partition always stays, so that a reader that goes to the end of the offsets gets there. Work
is done pack by pack with pauses, because the loop wants the interpreter's lock in between.

The memory for it has a bound, however many keys there are. Keys are noted by a hash, in a table of fixed size; when
they do not fit, they are divided by their hashes into classes, and the segments are walked once for each class. What
is found out before the last of them is remembered in a file, one bit for each record.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.record.segment import HEADER_SIZE, OffsetTable, RecordPack, read_batches, scan_batches
from penstock.core.clock import now_ms
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.recovery import WHY, damaged, map_file
from penstock.storage.log.embedded.segments import Segment, SegmentStart, control_kind
from penstock.storage.log.embedded.topic import TopicView
from penstock.storage.log.topics import TopicConfig

PAUSE = 0.0002
RECORDS_AT_ONCE = 256
EVERYTHING = 0x7FFFFFFF
TABLE_BYTES = 16 * 1_048_576


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    topic: str
    directory: Path
    config: TopicConfig
    segments: list[Segment]
    firsts: list[int]

    @classmethod
    def of(cls, view: TopicView) -> CompactionPlan | None:
        """None while too little came since the last time."""
        closed = view.segments[:-1]
        size = sum(segment.size for segment in closed)
        dirty = sum(segment.size for segment in closed if not segment.is_clean)
        if not dirty or dirty < view.config.dirty_ratio * size:
            return None
        return cls(view.name, view.directory, view.config, closed, [state.first for state in view.partitions])

    def last_offsets(self) -> dict[int, int]:
        """Of each partition that has records."""
        ends = ((number, index.end) for segment in self.segments for number, index in segment.partitions.items())
        return {number: end - 1 for number, end in ends}


def packs_of(topic: str, segment: Segment) -> Iterator[tuple[int, RecordPack]]:
    """Every batch of records with its partition."""
    with map_file(segment.path) as data:
        batches, stop, problem = scan_batches(data[: segment.size], 0, False)
        if problem:
            raise damaged(topic, segment.path, stop, WHY[problem])
        records = 0
        for batch in batches:
            if control_kind(batch):
                continue
            pack = RecordPack()
            piece = bytes(data[batch.position : batch.position + batch.size])
            try:
                read_batches(pack, piece, 0, batch.partition, 0, EVERYTHING, EVERYTHING)
            except ValueError as error:
                raise damaged(topic, segment.path, batch.position, str(error)) from None
            yield batch.partition, pack
            records += batch.count
            if records >= RECORDS_AT_ONCE:
                records = 0
                time.sleep(PAUSE)


class CleanSegment:
    """A segment being built beside the ones it replaces."""

    def __init__(self, plan: CompactionPlan, start: SegmentStart) -> None:
        path = files.segment_path(plan.directory, start.sequence).with_suffix(files.CLEAN)
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        self.segment = Segment(path, start, len(start.build()))
        self.segment.is_clean = True

    def begin(self) -> None:
        self._write(self.segment.start.build(), 0)

    def add(self, partition: int, pack: RecordPack) -> None:
        encoded = pack.encode(partition)
        self.segment.note(self.segment.size, partition, pack)
        self._write(encoded, self.segment.size)
        self.segment.size += len(encoded)

    def _write(self, encoded: bytes, position: int) -> None:
        rest = memoryview(encoded)
        while rest:
            written = os.pwrite(self._fd, rest, position)
            position += written
            rest = rest[written:]

    def finish(self, covers_to: int) -> Segment:
        """On the disk; its start says which segments it replaces."""
        old = self.segment.start
        self.segment.start = SegmentStart(old.sequence, covers_to, old.created_ms, old.ends, old.firsts)
        self._write(self.segment.start.build(), 0)
        os.fsync(self._fd)
        self.close()
        self.segment.open()  # the name changes, what is open stays
        return self.segment

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Verdict:
    """Knows which records are not the newest of their keys."""

    def __init__(self, plan: CompactionPlan, table: OffsetTable, bits: mmap.mmap | None) -> None:
        self._plan = plan
        self._table = table
        self._bits = bits
        self._first = 0
        self._horizon = now_ms() - plan.config.delete_retention_ms
        self._last = plan.last_offsets()

    def keep(self, segment: Segment) -> list[tuple[int, RecordPack]]:
        """What stays of a segment. They are asked for in their order."""
        kept = []
        for partition, pack in packs_of(self._plan.topic, segment):
            last = self._last[partition]
            part = self._table.keep(pack, partition, self._bits, self._first, self._horizon, last)
            self._first += pack.count
            if part.count and part.next_offset > self._plan.firsts[partition]:
                kept.append((partition, part))
        return kept


def _fill(plan: CompactionPlan, table: OffsetTable) -> bool:
    """Whether the keys of this class fit. A key that is only in clean segments is there once."""
    dirty = [segment for segment in plan.segments if not segment.is_clean]
    return all(table.note(pack, partition) for segment in dirty for partition, pack in packs_of(plan.topic, segment))


@contextlib.contextmanager
def judge(plan: CompactionPlan, table: OffsetTable) -> Iterator[Verdict]:
    """Walks the segments as often as the size of the table demands."""
    classes, done = 1, 0
    with contextlib.ExitStack() as stack:
        bits: mmap.mmap | None = None
        while True:
            table.begin(classes, done)
            if not _fill(plan, table):
                classes, done = 2 * classes, 0  # what is marked stays true
                continue
            if done == classes - 1:
                break
            if bits is None:
                bits = stack.enter_context(_bits_of(plan))
            _mark(plan, table, bits)
            done += 1
        yield Verdict(plan, table, bits)


@contextlib.contextmanager
def _bits_of(plan: CompactionPlan) -> Iterator[mmap.mmap]:
    """In a file, because the kernel can put that aside: one bit for each record. Its room is taken beforehand: where a
    disk is full, a page of a mapped file that has none ends the process."""
    records = sum(segment.records for segment in plan.segments)
    with tempfile.TemporaryFile(dir=plan.directory, suffix=".tmp") as file:
        os.posix_fallocate(file.fileno(), 0, records // 8 + 1)
        with mmap.mmap(file.fileno(), 0) as bits:
            yield bits


def _mark(plan: CompactionPlan, table: OffsetTable, bits: mmap.mmap) -> None:
    first = 0
    for segment in plan.segments:
        for partition, pack in packs_of(plan.topic, segment):
            table.mark(pack, partition, bits, first)
            first += pack.count


def compact(plan: CompactionPlan, table_bytes: int = TABLE_BYTES) -> list[Segment]:
    """Builds the segments that replace the plan's. Blocks, in a thread. When it fails it leaves nothing: a disk that is
    full must not be fuller by every attempt."""
    building: list[CleanSegment] = []
    try:
        with judge(plan, OffsetTable(table_bytes)) as verdict:
            return _rewrite(plan, verdict, building)
    except BaseException:
        for clean in building:
            clean.segment.close()
            clean.segment.path.unlink(missing_ok=True)
        raise
    finally:
        for clean in building:
            clean.close()


def _rewrite(plan: CompactionPlan, verdict: Verdict, building: list[CleanSegment]) -> list[Segment]:
    """`building` gets what is begun."""
    built: list[Segment] = []
    current: CleanSegment | None = None
    previous = 0
    for segment in plan.segments:
        kept = verdict.keep(segment)
        size = sum(pack.size + HEADER_SIZE for _, pack in kept)
        if current is not None and current.segment.size + size > plan.config.segment_bytes:
            built.append(current.finish(previous))
            current = None
        if current is None:
            current = CleanSegment(plan, segment.start)
            building.append(current)
            current.begin()
        for partition, pack in kept:
            current.add(partition, pack)
        # it may itself have taken the place of others
        previous = max(segment.sequence, segment.start.covers_to)
    if current is not None:
        built.append(current.finish(previous))
    return built


def swap_in(old: list[Segment], new: list[Segment]) -> None:
    """Gives the new files their names and removes the old ones. Blocks, in a thread. A crash in between is repaired at
    the next start: a segment says which ones it covers."""
    for segment in new:
        target = segment.path.with_suffix(files.SEGMENT)
        target.with_suffix(files.INDEX).unlink(missing_ok=True)
        segment.path.rename(target)
        segment.path = target
        files.sync_directory(target.parent)
        with contextlib.suppress(OSError):  # it can always be rebuilt
            segment.index_path.write_bytes(segment.encode_index())
    names = {segment.sequence for segment in new}
    for segment in old:
        segment.close()
        if segment.sequence not in names:
            segment.path.unlink(missing_ok=True)
            segment.index_path.unlink(missing_ok=True)
