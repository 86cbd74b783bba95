"""Reads a topic's files from another process, while the broker writes, rolls, compacts and removes them.

No lock is taken. Only what the broker knows to be on the disk is read (the file `tail` says how far that is).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import TypeVar

from penstock._ext.segment import RecordPack, scan_batches
from penstock.logs.base import LogDamaged, OffsetOutOfRange, TopicNotFound, Watermarks
from penstock.logs.embedded import files
from penstock.logs.embedded.reading import Load, Request, SegmentReader, Windows
from penstock.logs.embedded.recovery import index_batches, parse_start
from penstock.logs.embedded.segments import Segment

R = TypeVar("R")
CHUNK = 4_194_304


class LogReader:
    """Blocks on the disk: not for the loop. What it knows is as old as the last `refresh`."""

    def __init__(self, data_dir: Path | str, topic: str) -> None:
        self._directory = files.log_directory(data_dir) / files.escape_topic(topic)
        try:
            self.topic, self._config = files.read_topic(self._directory)
        except FileNotFoundError:
            raise TopicNotFound(f"there is no topic {topic!r} in {data_dir}") from None
        self._segments: list[Segment] = []
        self._inodes: dict[int, int] = {}
        self._scanned: dict[int, int] = {}
        self._firsts = [0] * self._config.partitions
        self._windows = Windows()
        self._reader = SegmentReader(self.topic, self._segments, self._windows)
        self.refresh()

    @property
    def partitions(self) -> int:
        return self._config.partitions

    @property
    def properties(self) -> Mapping[str, str]:
        return self._config.properties

    def refresh(self) -> None:
        """Learns what was written, removed and compacted since the last time."""
        for _ in range(10):
            tail = self._read_tail()
            try:
                sequences = files.list_segments(self._directory)
                found = [self._load(sequence, sequence == sequences[-1], tail) for sequence in sequences]
            except FileNotFoundError:
                if not self._directory.exists():
                    raise TopicNotFound(f"topic {self.topic!r} was deleted") from None
                continue  # a segment went while we looked
            self._adopt([segment for segment in found if segment is not None])
            return
        raise LogDamaged(f"{self._directory} changes faster than it can be read")

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

    def _adopt(self, found: list[Segment]) -> None:
        covered = -1
        kept: list[Segment] = []
        for segment in found:
            if segment.sequence > covered:
                kept.append(segment)
            covered = max(covered, segment.start.covers_to)
        if kept[: len(self._segments)] != self._segments:
            self._reader.forget_positions()
        self._segments[:] = kept
        names = {segment.sequence for segment in kept}
        self._inodes = {sequence: inode for sequence, inode in self._inodes.items() if sequence in names}
        self._scanned = {sequence: size for sequence, size in self._scanned.items() if sequence in names}
        if kept:
            starts = (kept[0].start.ends, kept[-1].start.firsts)
            self._firsts = [max(numbers) for numbers in zip(self._firsts, *starts, strict=True)]

    def _load(self, sequence: int, is_last: bool, tail: tuple[int, int] | None) -> Segment | None:
        path = files.segment_path(self._directory, sequence)
        status = path.stat()
        limit = status.st_size
        if is_last and tail is not None:
            if tail[0] < sequence:
                return None  # being created: nothing is in it yet
            if tail[0] == sequence:
                limit = min(limit, tail[1])
        known = next((segment for segment in self._segments if segment.sequence == sequence), None)
        if known is None or self._inodes.get(sequence) != status.st_ino:
            known = self._open(path, limit if is_last else None)
            if known is None:
                return None
            self._inodes[sequence] = status.st_ino
        self._extend(known, limit)
        return known

    def _open(self, path: Path, limit: int | None) -> Segment | None:
        if limit is None:
            try:
                segment = Segment.from_index(path, path.with_suffix(files.INDEX).read_bytes(), path.stat().st_size)
            except FileNotFoundError:
                segment = None
            if segment is not None:
                self._scanned[segment.sequence] = segment.size
                return segment
        with path.open("rb") as file:
            parsed = parse_start(memoryview(file.read(8 + 8 * 1024 * 1024)))
        if parsed is None:
            return None
        segment = Segment(path, parsed[0], parsed[1])
        self._scanned[segment.sequence] = parsed[1]
        return segment

    def _extend(self, segment: Segment, limit: int) -> None:
        """Indexes what was added to the file, as far as it is whole."""
        position = self._scanned[segment.sequence]
        size = CHUNK
        while position < limit:
            fd = self._windows.open(segment).fd
            data = os.pread(fd, min(size, limit - position), position)
            batches, stop, problem = scan_batches(data, 0, False)
            moved = [batch._replace(position=batch.position + position) for batch in batches]
            if index_batches(segment, moved, self._firsts) is not None:
                return
            position += stop
            segment.size = max(segment.size, position)
            self._scanned[segment.sequence] = position
            if stop == 0 and (problem != "torn" or size >= limit - position):
                return
            size = CHUNK if stop else size * 4

    def watermarks(self, partition: int) -> Watermarks:
        self._check(partition)
        end = self._segments[-1].end_of(partition) if self._segments else 0
        return Watermarks(min(self._firsts[partition], end), end)

    def read(self, partition: int, offset: int, max_records: int = 10_000, max_bytes: int = 1_048_576) -> RecordPack:
        """Records at and after the offset; an empty pack at the end. Raises OffsetOutOfRange."""
        self._check(partition)
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
                self.refresh()  # retention was here
        raise OffsetOutOfRange(f"offset {offset} of {self.topic}[{partition}] was removed", marks.first, marks.end)

    def find_time(self, partition: int, timestamp_ms: int) -> int:
        """The offset of the first record at or after the time, or the end."""
        marks = self.watermarks(partition)
        found = self._run(self._reader.find_time(partition, timestamp_ms, marks.first))
        return marks.end if found is None else found

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
