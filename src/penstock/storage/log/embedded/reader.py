"""Reads a topic's files from another process, while the broker writes, rolls, compacts and removes them.

No lock is taken. Only what the broker knows to be on the disk is read (the file `tail` says how far that is). It is
never changed after that, and neither is a segment that has a successor: a wrong checksum there is damage. Bytes after
the tail are being written, and are not read. Files that are removed or replaced while they are read can look like
damage for a moment: it is only reported when a second look at everything finds it again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TypeVar

from penstock._ext.record.segment import RecordPack, scan_batches
from penstock.storage.log.base import LogDamaged, OffsetOutOfRange, TopicNotFound, Watermarks
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.journal import has_bytes
from penstock.storage.log.embedded.reading import Load, Request, SegmentReader, Windows
from penstock.storage.log.embedded.recovery import (
    WHY,
    damaged,
    find_end,
    find_gap,
    index_batches,
    missing,
    parse_start,
)
from penstock.storage.log.embedded.segments import OpenFile, Segment

R = TypeVar("R")
CHUNK = 4_194_304
ATTEMPTS = 10
# So often, and with such pauses, damage must be found again.
DAMAGE_ATTEMPTS = 4
DAMAGE_PAUSE = 0.01


class _SameFiles(Windows):
    """Opens a segment's file only if it is still the one that the segment was made from."""

    def __init__(self) -> None:
        super().__init__()
        self.inodes: dict[Segment, int] = {}

    def open(self, segment: Segment) -> OpenFile:
        """Raises FileNotFoundError when it is not: compaction has put another one in its place."""
        was_open = segment.is_open
        file = super().open(segment)
        if not was_open and os.fstat(file.fd).st_ino != self.inodes.get(segment):
            segment.close()
            raise FileNotFoundError(segment.path)
        return file


class LogReader:
    """Blocks on the disk: not for the loop. What it knows is as old as the last `refresh`."""

    def __init__(self, data_dir: Path | str, topic: str) -> None:
        self._directory = files.log_directory(data_dir) / files.escape_topic(topic)
        try:
            # held open, so that no other directory gets its number
            self._held = OpenFile(self._directory)
            self.topic, self._config = files.read_topic(self._directory)
        except FileNotFoundError:
            raise TopicNotFound(f"there is no topic {topic!r} in {data_dir}") from None
        self._segments: list[Segment] = []
        self._is_doubted = False  # nothing of what is known is trusted until all files were looked at again
        self._scanned: dict[Segment, int] = {}
        self._firsts = [0] * self._config.partitions
        self._windows = _SameFiles()
        self._reader = SegmentReader(self.topic, self._segments, self._windows)
        self.refresh()

    @property
    def partitions(self) -> int:
        return self._config.partitions

    @property
    def properties(self) -> Mapping[str, str]:
        return self._config.properties

    def refresh(self) -> None:
        """Learns what was written, removed and compacted since the last time. Raises LogDamaged, TopicNotFound."""
        doubts = 0
        for _ in range(ATTEMPTS):
            self._require_same()
            try:
                kept = self._load_all()
            except FileNotFoundError:
                continue  # a segment went while we looked
            except LogDamaged:
                self._is_doubted = True
                doubts += 1
                if doubts == DAMAGE_ATTEMPTS:
                    raise
                time.sleep(DAMAGE_PAUSE)
                continue
            self._require_same()
            self._adopt(kept)
            return
        self._require_same()
        raise LogDamaged(f"{self._directory} changes faster than it can be read")

    def _require_same(self) -> None:
        """A new topic of the same name is another one: its offsets, and its partitions, are not those of this one."""
        try:
            is_same = os.path.samestat(self._directory.stat(), os.fstat(self._held.fd))
        except FileNotFoundError:
            raise TopicNotFound(f"topic {self.topic!r} was deleted") from None
        if not is_same:
            raise TopicNotFound(f"topic {self.topic!r} was deleted, and there is a new one of that name")

    def _load_all(self) -> list[Segment]:
        """Without those that are in others."""
        tail = self._read_tail()
        sequences = files.list_segments(self._directory)
        if tail is not None and tail[0] > max(sequences, default=0):
            path = files.segment_path(self._directory, tail[0])
            raise damaged(self.topic, path, 0, f"the file is missing, but {tail[1]} bytes of it were stored")
        loaded = [self._load(sequence, sequence == sequences[-1], tail) for sequence in sequences]
        covered = -1
        kept: list[Segment] = []
        for segment in loaded:
            if segment is None or segment.sequence <= covered:
                continue
            if kept and (gap := find_gap(kept[-1].start, segment.sequence)) is not None:
                raise missing(self.topic, files.segment_path(self._directory, gap))
            kept.append(segment)
            covered = max(covered, segment.start.covers_to)
        return kept

    def _read_tail(self) -> tuple[int, int] | None:
        for _ in range(100):
            try:
                data = (self._directory / files.TAIL_FILE).read_bytes()
            except FileNotFoundError:
                return None
            tail = files.decode_tail(data)
            if tail is not None:
                return tail
            time.sleep(0.0005)  # caught while it was written
        return None

    def _adopt(self, kept: list[Segment]) -> None:
        if kept[: len(self._segments)] != self._segments:
            self._reader.forget_positions()
        self._segments[:] = kept
        self._is_doubted = False
        self._windows.inodes = {segment: self._windows.inodes[segment] for segment in kept}
        self._scanned = {segment: self._scanned[segment] for segment in kept}
        if kept:
            starts = (kept[0].start.ends, kept[-1].start.firsts)
            self._firsts = [max(numbers) for numbers in zip(self._firsts, *starts, strict=True)]

    def _load(self, sequence: int, is_last: bool, tail: tuple[int, int] | None) -> Segment | None:
        path = files.segment_path(self._directory, sequence)
        status = path.stat()
        size = status.st_size
        if is_last and tail is not None and tail[0] < sequence:
            return None  # being created: nothing is in it yet
        if tail is not None and tail[0] == sequence:
            durable = tail[1]
            limit = durable if is_last else max(size, durable)
        else:
            limit = size
            durable = 0 if is_last else size  # without a tail nothing tells what of the last one is on the disk
        known = next((segment for segment in self._segments if segment.sequence == sequence), None)
        inodes = self._windows.inodes
        if known is None or self._is_doubted or inodes[known] != status.st_ino:
            known = self._open(path, status, is_last)
            if known is None and durable:
                raise damaged(self.topic, path, 0, "the segment does not start as it must")
            if known is None:
                return None
            inodes[known] = status.st_ino
            self._scanned[known] = known.size
        self._extend(known, limit, durable)
        return known

    def _open(self, path: Path, status: os.stat_result, is_last: bool) -> Segment | None:
        if not is_last:
            with contextlib.suppress(FileNotFoundError):
                segment = Segment.from_index(path, path.with_suffix(files.INDEX).read_bytes(), status.st_size)
                if segment is not None and path.stat().st_ino == status.st_ino:
                    return segment
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_ino != status.st_ino:
                raise FileNotFoundError(path)
            parsed = parse_start(memoryview(file.read(8 + 8 * 1024 * 1024)))
        return None if parsed is None else Segment(path, *parsed)

    def _extend(self, segment: Segment, limit: int, durable: int) -> None:
        """Indexes what was added to the file, as far as it is whole: up to `durable` it has to be."""
        position = self._scanned[segment]
        size = CHUNK
        why = ""
        while position < limit and not why:
            fd = self._windows.open(segment).fd
            data = os.pread(fd, min(size, limit - position), position)
            batches, stop, problem = scan_batches(data, 0, False)
            moved = [batch._replace(position=batch.position + position) for batch in batches]
            nonsense = index_batches(segment, moved, self._firsts)
            if nonsense is not None:
                position, why = nonsense, "its offsets do not follow those before"
                break
            position += stop
            segment.size = max(segment.size, position)
            self._scanned[segment] = position
            if not data:
                why = f"the file ends here, but {durable} bytes of it were stored"
            elif stop == 0 and (problem != "torn" or size >= limit - position):
                why = WHY[problem]
            size = CHUNK if stop else size * 4
        if position < durable:
            error = damaged(self.topic, segment.path, position, why)
            if has_bytes(self._directory.parent, self._directory.name, segment.sequence, position):
                # what a power cut leaves behind, which is nothing to be afraid of
                error.hint = "The journal has what is missing: the next start of the broker puts it back."
            raise error

    def watermarks(self, partition: int) -> Watermarks:
        self._check(partition)
        end = find_end(self._segments, partition)
        return Watermarks(min(self._firsts[partition], end), end)

    def count(self, partition: int) -> int:
        """How many records are kept, which compaction makes fewer than there are offsets. Raises LogDamaged."""
        marks = self.watermarks(partition)
        found = 0
        for segment in list(self._segments):
            index = segment.partitions.get(partition)
            if index is None or index.end <= marks.first:
                continue
            if index.first >= marks.first:
                found += index.records
            elif index.records == index.end - index.first:
                found += index.end - marks.first
            else:
                found += self._count_from(partition, marks.first, index.end)
        return found

    def _count_from(self, partition: int, offset: int, end: int) -> int:
        """Reads the records, where a truncation went through a compacted segment."""
        found = 0
        while offset < end:
            offsets = self.read(partition, offset).offsets()
            found += int((offsets < end).sum())
            offset = int(offsets[-1]) + 1 if len(offsets) else end
        return found

    def read(self, partition: int, offset: int, max_records: int = 10_000, max_bytes: int = 1_048_576) -> RecordPack:
        """Records at and after the offset; an empty pack at the end. Raises OffsetOutOfRange, LogDamaged."""
        self._check(partition)
        is_fresh = False
        for _ in range(3):
            marks = self.watermarks(partition)
            if not marks.first <= offset <= marks.end:
                raise OffsetOutOfRange(
                    f"offset {offset} of {self.topic}[{partition}] is not within {marks.first} to {marks.end}",
                    marks.first,
                    marks.end,
                )
            try:
                return self._run(self._reader.read(Request(partition, offset, max_records, max_bytes)))
            except FileNotFoundError:
                self.refresh()  # retention or compaction was here
            except LogDamaged:
                if is_fresh:
                    raise
                is_fresh = self._is_doubted = True
                self.refresh()
        raise OffsetOutOfRange(f"offset {offset} of {self.topic}[{partition}] was removed", marks.first, marks.end)

    def find_time(self, partition: int, timestamp_ms: int) -> int:
        """The offset of the first record at or after the time, or the end."""
        for _ in range(ATTEMPTS):
            marks = self.watermarks(partition)
            try:
                found = self._run(self._reader.find_time(partition, timestamp_ms, marks.first))
            except FileNotFoundError:
                self.refresh()
                continue
            return marks.end if found is None else found
        raise LogDamaged(f"{self._directory} changes faster than it can be read")

    @staticmethod
    def _run(steps: Generator[Load, bytes, R]) -> R:
        try:
            load = next(steps)
            while True:
                load = steps.send(load.wait())
        except StopIteration as stop:
            result: R = stop.value
            return result

    def close(self) -> None:
        for segment in self._segments:
            segment.close()
        self._segments.clear()

    def _check(self, partition: int) -> None:
        if not 0 <= partition < self._config.partitions:
            raise TopicNotFound(f"topic {self.topic!r} has no partition {partition}")


def open_reader(data_dir: Path | str, topic: str) -> LogReader:
    """For a process that reads what the broker has written (or is writing) to its data directory."""
    return LogReader(data_dir, topic)
