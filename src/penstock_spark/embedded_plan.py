"""Plans the reading of an embedded log: which bytes of which files hold the offsets that are asked for.

A segment holds the batches of all partitions in the order they were committed, so a task reads a stretch of a file once
for all partitions, and skips by the headers what it does not want.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock_spark import segments
from penstock_spark.errors import DataLost, LogDamaged, TopicMissing
from penstock_spark.options import EARLIEST, LATEST, Bound
from penstock_spark.segments import PartitionIndex, SegmentStart
from penstock_spark.values import timestamps_of

MARK_EVERY = 32_768
# A task costs Spark 0.2 s of Python for its start: less than this is read by one as fast as by several.
WORTH_SHARING = 16_777_216
NO_END = 2**63 - 1


@dataclass(frozen=True)
class Piece:
    """A stretch of a segment file."""

    path: str
    start: int
    stop: int
    # offsets that the whole segment holds, per partition: what is missing when the file is gone
    spans: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        return self.stop - self.start


@dataclass
class _Segment:
    path: Path
    start: SegmentStart
    size: int  # as far as it may be read
    is_last: bool
    index: dict[int, PartitionIndex] | None = None
    # where batches begin, and each partition's end there; of the segment that is being written
    marks: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)


class EmbeddedTopic:
    """One topic of a data directory; what it knows is as old as the last `refresh`."""

    def __init__(self, data_dir: str, topic: str) -> None:
        self.topic = topic
        self.partitions = segments.read_partitions(data_dir, topic)
        self._directory = segments.directory_of(data_dir, topic)
        self._segments: list[_Segment] = []
        self._firsts = [0] * self.partitions
        self.refresh()

    def refresh(self) -> None:
        for _ in range(10):
            try:
                self._look()
                return
            except FileNotFoundError:
                if not self._directory.exists():
                    raise TopicMissing(f"topic {self.topic!r} was deleted") from None
        raise LogDamaged(f"{self._directory} changes faster than it can be read")

    def _look(self) -> None:
        tail = segments.read_tail(self._directory)
        known = {segment.start.sequence: segment for segment in self._segments if segment.is_last}
        found: list[_Segment] = []
        sequences = segments.list_segments(self._directory)
        covered = -1
        for sequence in sequences:
            path = segments.segment_path(self._directory, sequence)
            size = path.stat().st_size
            is_last = sequence == sequences[-1]
            if is_last and tail is not None:
                if tail[0] < sequence:
                    continue  # being made: nothing is in it yet
                size = min(size, tail[1]) if tail[0] == sequence else size
            segment = self._open(path, size, is_last, known.get(sequence))
            if segment is None or sequence <= covered:
                continue
            covered = max(covered, segment.start.covers_to)
            found.append(segment)
        if found:
            found[-1].is_last = True
            self._scan(found[-1])
            starts = (found[0].start.ends, found[-1].start.firsts)
            self._firsts = [max(numbers) for numbers in zip(self._firsts, *starts, strict=True)]
        self._segments = found

    def _open(self, path: Path, size: int, is_last: bool, known: _Segment | None) -> _Segment | None:
        if known is not None and is_last:
            known.size = size
            return known
        fd = os.open(path, os.O_RDONLY)
        try:
            start = segments.read_start(fd)
        finally:
            os.close(fd)
        return None if start is None else _Segment(path, start, size, is_last, ends=list(start.ends))

    def _scan(self, segment: _Segment) -> None:
        """Learns the ends of the partitions from the segment that is being written; goes on where it was."""
        if not segment.marks:
            segment.marks.append((segment.start.size, tuple(segment.ends)))
        fd = os.open(segment.path, os.O_RDONLY)
        try:
            position = segment.marks[-1][0]
            noted = position
            for header in segments.iterate_headers(fd, position, segment.size):
                if header.position - noted >= MARK_EVERY:
                    noted = header.position
                    segment.marks.append((noted, tuple(segment.ends)))
                if header.kind == 0:
                    segment.ends[header.partition] = header.end
                elif header.kind == segments.TRUNCATE:
                    number = header.partition
                    self._firsts[number] = max(self._firsts[number], header.first)
                position = header.position + header.size
        finally:
            os.close(fd)
        segment.size = position
        if position != segment.marks[-1][0]:
            segment.marks.append((position, tuple(segment.ends)))

    @property
    def ends(self) -> list[int]:
        return list(self._segments[-1].ends) if self._segments else [0] * self.partitions

    @property
    def firsts(self) -> list[int]:
        return [min(first, end) for first, end in zip(self._firsts, self.ends, strict=True)]

    def resolve(self, bound: Bound) -> list[int]:
        """The bound as an offset of each partition. A time is the first record at or after it, as with Kafka."""
        firsts, ends = self.firsts, self.ends
        if bound.time_ms is not None:
            return self._find_time(bound.time_ms)
        places = [bound.of(self.topic, number) for number in range(self.partitions)]
        return [
            first if place == EARLIEST else end if place == LATEST else place
            for place, first, end in zip(places, firsts, ends, strict=True)
        ]

    def _find_time(self, time_ms: int) -> list[int]:
        found: dict[int, int] = {}
        for segment in self._segments:
            index = self._index_of(segment)
            position, waiting = segment.start.size, set(range(self.partitions)) - found.keys()
            if index is not None:
                waiting = {number for number in waiting if number in index and index[number].newest >= time_ms}
                position = min((index[number].find_time(time_ms) for number in waiting), default=segment.size)
            self._search(segment, position, waiting, time_ms, found)
        ends = self.ends
        return [found.get(number, end) for number, end in enumerate(ends)]

    def _search(self, segment: _Segment, position: int, waiting: set[int], time_ms: int, found: dict[int, int]) -> None:
        if not waiting:
            return
        try:
            fd = os.open(segment.path, os.O_RDONLY)
        except FileNotFoundError:
            return  # retention was faster: the first at or after the time is in what is left
        try:
            for header in segments.iterate_headers(fd, position, segment.size):
                if header.kind or header.partition not in waiting or header.newest < time_ms:
                    continue
                batch = os.pread(fd, header.size, header.position)
                first = self._firsts[header.partition]
                for offset, timestamp in timestamps_of(batch):
                    if timestamp >= time_ms and offset >= first:
                        found[header.partition] = offset
                        waiting.discard(header.partition)
                        break
                if not waiting:
                    return
        finally:
            os.close(fd)

    def _index_of(self, segment: _Segment) -> dict[int, PartitionIndex] | None:
        if segment.index is None and not segment.is_last:
            segment.index = segments.read_index(segment.path, segment.size)
        return segment.index

    def check_range(self, starts: Sequence[int], ends: Sequence[int], fail_on_data_loss: bool) -> list[tuple[int, int]]:
        """(start, end) of each partition within what is there; DataLost when something is missing and must not be."""
        ranges = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            first, last = self.firsts[number], self.ends[number]
            if fail_on_data_loss and (start < min(first, end) or start > last):
                raise DataLost(
                    f"offset {start} of {self.topic}[{number}] is not in the log, which has {first} to {last}",
                    "Retention has removed it, or the log was recreated. Start with a new checkpoint, or go on with "
                    "what is there by failOnDataLoss=false (the gap is counted)",
                )
            ranges.append((min(max(start, first), last), min(end, last)))
        return ranges

    def plan(self, ranges: Sequence[tuple[int, int]], bytes_per_task: int, may_split: bool) -> list[list[Piece]]:
        """The stretches of files, at most about `bytes_per_task` each task, all tasks of about the same size."""
        total = sum(piece.size for piece in self._pieces(ranges, 0))
        count = -(-total // bytes_per_task)
        if total >= WORTH_SHARING:
            cores = os.cpu_count() or 1
            count = -(-count // cores) * cores
        target = -(-total // max(1, count))
        tasks: list[list[Piece]] = []
        size = 0
        for piece in self._pieces(ranges, target if may_split else 0):
            if not tasks or size + piece.size > target * 1.25:
                tasks.append([])
                size = 0
            tasks[-1].append(piece)
            size += piece.size
        return tasks

    def _pieces(self, ranges: Sequence[tuple[int, int]], split: int) -> list[Piece]:
        pieces: list[Piece] = []
        for number, segment in enumerate(self._segments):
            ends = segment.ends if segment.is_last else self._segments[number + 1].start.ends
            spans = tuple(
                (max(begin, start), min(end, stop))
                for begin, end, (start, stop) in zip(segment.start.ends, ends, ranges, strict=True)
            )
            wanted = {partition: span[0] for partition, span in enumerate(spans) if span[0] < span[1]}
            if wanted:
                pieces += self._cut(segment, wanted, [stop for _, stop in ranges], spans, split)
        return pieces

    def _cut(
        self,
        segment: _Segment,
        wanted: Mapping[int, int],
        stops: Sequence[int],
        spans: tuple[tuple[int, int], ...],
        split: int,
    ) -> list[Piece]:
        index = self._index_of(segment)
        start, stop = segment.start.size, segment.size
        cuts: list[int] = []
        if index is not None:
            known = [index[number].find_offset(offset) for number, offset in wanted.items() if number in index]
            start = min(known, default=start)
            cuts = sorted({position for one in index.values() for position in one.positions})
        elif segment.marks:
            for position, ends in segment.marks:
                if all(ends[number] <= offset for number, offset in wanted.items()):
                    start = position
                if all(ends[number] >= min(stops[number], segment.ends[number]) for number in wanted):
                    stop = position
                    break
            cuts = [position for position, _ in segment.marks]
        pieces = []
        while split and stop - start > split * 1.25:
            cut = next((position for position in cuts if position >= start + split), stop)
            if cut >= stop:
                break
            pieces.append(Piece(str(segment.path), start, cut, spans))
            start = cut
        return [*pieces, Piece(str(segment.path), start, stop, spans)]
