"""Reads every byte of a topic's segments and compares the checksums, without changing anything; beside a broker too."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from penstock._ext.record.segment import scan_batches
from penstock.storage.log.base import LogDamaged
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.recovery import (
    WHY,
    damaged,
    find_gap,
    index_batches,
    is_torn_tail,
    map_file,
    missing,
    parse_start,
)
from penstock.storage.log.embedded.segments import Segment, SegmentStart

ATTEMPTS = 10


@dataclass(slots=True)
class Verified:
    """What was read and is sound."""

    topic: str
    segments: int = 0
    size: int = 0
    records: int = 0


def verify_segment(topic: str, path: Path, size: int | None = None, durable: int | None = None) -> Segment:
    """The segment with its index; `size` bytes of it, else all. Raises LogDamaged. With `durable`, what lies behind so
    many bytes may be torn: a crash leaves that, and the next start cuts it off."""
    with map_file(path) as mapped, mapped[:size] as data:
        if size is not None and len(data) < size:
            raise damaged(topic, path, len(data), f"the file ends here, but {size} bytes of it were stored")
        parsed = parse_start(data)
        if parsed is None:
            raise damaged(topic, path, 0, "the segment does not start as it must")
        segment = Segment(path, parsed[0], len(data))
        batches, stop, problem = scan_batches(data, 0, True)
        if problem and (durable is None or stop < durable or not is_torn_tail(data, stop)):
            raise damaged(topic, path, stop, WHY[problem])
        nonsense = index_batches(segment, batches, list(parsed[0].firsts))
    if nonsense is not None:
        raise damaged(topic, path, nonsense, "its offsets do not follow those before")
    segment.size = stop
    return segment


class OrderCheck:
    """That segments, given by their rising numbers, follow each other."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._ends: list[int] = []
        self._covered = -1
        self._previous: SegmentStart | None = None

    def add(self, segment: Segment) -> bool:
        """False: what it holds is in an earlier, compacted one. Raises LogDamaged."""
        if segment.sequence <= self._covered:
            return False
        gap = find_gap(self._previous, segment.sequence) if self._previous is not None else None
        if gap is not None:
            raise missing(self._topic, files.segment_path(segment.path.parent, gap))
        self._previous = segment.start
        starts = segment.start.ends
        if any(start < end for start, end in zip(starts, self._ends, strict=False)):
            raise damaged(self._topic, segment.path, 0, "it starts before the end of the segment before it")
        self._ends = [segment.end_of(partition) for partition in range(len(starts))]
        self._covered = max(self._covered, segment.start.covers_to)
        return True


def verify_topic(directory: Path) -> Verified:
    """Raises LogDamaged, and FileNotFoundError when the directory is not a topic's."""
    for _ in range(ATTEMPTS):
        try:
            return _verify_once(directory)
        except FileNotFoundError:
            # retention or compaction was here while we read
            files.read_topic(directory)
    raise LogDamaged(f"{directory} changes faster than it can be read")


def _verify_once(directory: Path) -> Verified:
    topic, _ = files.read_topic(directory)
    report = Verified(topic)
    order = OrderCheck(topic)
    tail = files.read_tail(directory) or (0, 0)
    sequences = files.list_segments(directory)
    if tail[0] > max(sequences, default=0):
        path = files.segment_path(directory, tail[0])
        if files.list_segments(directory)[-1:] != sequences[-1:]:
            raise FileNotFoundError(path)
        raise damaged(topic, path, 0, f"the file is missing, but {tail[1]} bytes of it were stored")
    for sequence in sequences:
        path = files.segment_path(directory, sequence)
        # What lies behind the tail is being written, or was when the broker ended: the next start looks at it.
        if sequence > tail[0] > 0:
            continue
        segment = verify_segment(topic, path, tail[1] if sequence == tail[0] else None)
        if order.add(segment):
            report.segments += 1
            report.size += segment.size
            report.records += segment.records
    return report
