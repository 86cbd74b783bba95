"""Compaction: of the closed segments only the newest record of each key is kept. Offsets do not change.

The last record of each partition always stays, so that a reader that goes to the end of the offsets gets there. Work
is done pack by pack with pauses, because the loop wants the interpreter's lock in between.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.segment import HEADER_SIZE, RecordPack, read_batches, scan_batches
from penstock.logs.embedded import files
from penstock.logs.embedded.recovery import WHY, damaged, map_file
from penstock.logs.embedded.segments import Segment, SegmentStart, control_kind
from penstock.logs.embedded.topic import TopicView
from penstock.logs.topics import TopicConfig, now_ms

PAUSE = 0.0002
RECORDS_AT_ONCE = 256
EVERYTHING = 0x7FFFFFFF


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
        encoded = start.build()
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        os.pwrite(self._fd, encoded, 0)
        self.segment = Segment(path, start, len(encoded))
        self.segment.is_clean = True

    def add(self, partition: int, pack: RecordPack) -> None:
        encoded = memoryview(pack.encode(partition))
        self.segment.note(self.segment.size, partition, pack)
        while encoded:
            written = os.pwrite(self._fd, encoded, self.segment.size)
            self.segment.size += written
            encoded = encoded[written:]

    def finish(self, covers_to: int) -> Segment:
        """On the disk; its start says which segments it replaces."""
        old = self.segment.start
        self.segment.start = SegmentStart(old.sequence, covers_to, old.created_ms, old.ends, old.firsts)
        os.pwrite(self._fd, self.segment.start.build(), 0)
        os.fsync(self._fd)
        os.close(self._fd)
        self.segment.open()  # the name changes, what is open stays
        return self.segment


def compact(plan: CompactionPlan) -> list[Segment]:
    """Builds the segments that replace the plan's. Blocks, in a thread."""
    newest: dict[int, dict[bytes, int]] = {}
    last: dict[int, int] = {}
    for segment in plan.segments:
        for partition, pack in packs_of(plan.topic, segment):
            pack.note_newest(newest.setdefault(partition, {}))
            last[partition] = pack.next_offset - 1
    horizon = now_ms() - plan.config.delete_retention_ms
    built: list[Segment] = []
    current: CleanSegment | None = None
    previous = plan.segments[0].sequence
    for segment in plan.segments:
        kept = _keep(plan, segment, newest, last, horizon)
        size = sum(pack.size + HEADER_SIZE for _, pack in kept)
        if current is not None and current.segment.size + size > plan.config.segment_bytes:
            built.append(current.finish(previous))
            current = None
        if current is None:
            current = CleanSegment(plan, segment.start)
        for partition, pack in kept:
            current.add(partition, pack)
        previous = segment.sequence
    if current is not None:
        built.append(current.finish(previous))
    return built


def _keep(
    plan: CompactionPlan, segment: Segment, newest: dict[int, dict[bytes, int]], last: dict[int, int], horizon: int
) -> list[tuple[int, RecordPack]]:
    kept = []
    for partition, pack in packs_of(plan.topic, segment):
        part = pack.keep_newest(newest[partition], horizon, last[partition])
        if part.count and part.next_offset > plan.firsts[partition]:
            kept.append((partition, part))
    return kept


def swap_in(old: list[Segment], new: list[Segment]) -> None:
    """Gives the new files their names and removes the old ones. Blocks, in a thread. A crash in between is mended at
    the next start: a segment says which ones it covers."""
    for segment in new:
        target = segment.path.with_suffix(files.SEGMENT)
        target.with_suffix(files.INDEX).unlink(missing_ok=True)
        segment.path.rename(target)
        segment.path = target
        files.sync_directory(target.parent)
        segment.index_path.write_bytes(segment.encode_index())
    names = {segment.sequence for segment in new}
    for segment in old:
        segment.close()
        if segment.sequence not in names:
            segment.path.unlink(missing_ok=True)
            segment.index_path.unlink(missing_ok=True)
