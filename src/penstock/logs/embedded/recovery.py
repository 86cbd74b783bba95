"""What a topic's directory holds when the broker starts, and what a crash left unfinished.

The last segment is compared with its checksums; a tail that was never acknowledged is cut off. Damage to what was
stored is never cut: it is refused with the command that repairs it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.segment import BatchInfo, find_batch, scan_batches
from penstock.core.logging import get_logger
from penstock.logs.base import LogDamaged, LogError
from penstock.logs.embedded import files
from penstock.logs.embedded.segments import NO_PARTITION, START, TRUNCATE, Segment, SegmentStart, control_kind
from penstock.logs.topics import TopicConfig

log = get_logger("penstock.logs")

WHY = {
    "torn": "the batch is not whole",
    "header": "no sound batch starts here",
    "checksum": "the checksum does not match",
    "version": "no sound batch starts here",  # a segment has one version: that of its start
}


@dataclass(slots=True)
class RecoveredTopic:
    name: str
    directory: Path
    config: TopicConfig
    segments: list[Segment]
    firsts: list[int]
    ends: list[int]


def damaged(topic: str, path: Path, position: int, why: str) -> LogDamaged:
    return LogDamaged(
        f"{path} is damaged at byte {position}: {why}",
        f"`penstock log repair {topic}` sets the damaged bytes aside and says which records are lost.",
    )


@contextlib.contextmanager
def map_file(path: Path) -> Iterator[memoryview]:
    """The file's bytes, for a scan by the process that owns it."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            yield memoryview(b"")
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view


def parse_start(data: memoryview) -> tuple[SegmentStart, int] | None:
    """What a segment starts with and the size of that, or None when it does not start as it must."""
    if len(data) < 8:
        return None
    size = int.from_bytes(data[4:8], "little")
    found, _, problem = scan_batches(data[:size], 0, True)
    if problem or len(found) != 1 or control_kind(found[0]) != START:
        return None
    try:
        return SegmentStart.parse(bytes(data[:size])), size
    except (ValueError, struct.error):
        return None


def _require_start(topic: str, path: Path, data: memoryview) -> SegmentStart:
    parsed = parse_start(data)
    if parsed is not None:
        return parsed[0]
    if scan_batches(data, 0, False)[1:] == (0, "version"):
        raise LogError(f"{path} was written by a newer version of Penstock, or its first bytes are damaged")
    raise damaged(topic, path, 0, "the segment does not start as it must")


def is_torn_tail(data: memoryview, position: int) -> bool:
    """Whether the bad bytes at the position were never known to be on the disk: nothing valid follows, or only what
    was written before they were."""
    following = find_batch(data, position + 1)
    if following < 0:
        return True
    batches, stop, _ = scan_batches(data, following, True)
    if any(batch.synced > position for batch in batches):
        return False
    return stop >= len(data) or is_torn_tail(data, stop)


def index_batches(segment: Segment, batches: list[BatchInfo], firsts: list[int]) -> int | None:
    """Notes the batches in the segment; the position of one that cannot be there, or None."""
    partitions = len(segment.start.ends)
    for batch in batches:
        kind = control_kind(batch)
        if kind == START:
            continue
        if kind == TRUNCATE and batch.partition < partitions:
            firsts[batch.partition] = max(firsts[batch.partition], batch.base_offset)
        elif not kind:
            if batch.partition >= partitions or batch.base_offset < segment.end_of(batch.partition):
                return batch.position
            segment.note(batch.position, batch.partition, batch)
        elif batch.partition not in {NO_PARTITION, *range(partitions)}:
            return batch.position
    return None


def _load_closed(topic: str, path: Path) -> Segment:
    size = path.stat().st_size
    with contextlib.suppress(FileNotFoundError):
        segment = Segment.from_index(path, path.with_suffix(files.INDEX).read_bytes(), size)
        if segment is not None:
            return segment
    with map_file(path) as data:
        start = _require_start(topic, path, data)
        segment = Segment(path, start, size)
        batches, stop, problem = scan_batches(data, 0, False)
        if problem:
            raise damaged(topic, path, stop, WHY[problem])
        nonsense = index_batches(segment, batches, list(start.firsts))
    if nonsense is not None:
        raise damaged(topic, path, nonsense, "its offsets do not follow those before")
    with contextlib.suppress(OSError):  # without it the next start walks the headers again
        segment.index_path.write_bytes(segment.encode_index())
    return segment


def _load_last(topic: str, path: Path, firsts: list[int]) -> Segment:
    """`firsts` moves with the truncations that the segment tells of."""
    with map_file(path) as data:
        start = _require_start(topic, path, data)
        segment = Segment(path, start, len(data))
        firsts[:] = [max(pair) for pair in zip(firsts, start.firsts, strict=True)]
        batches, stop, problem = scan_batches(data, 0, True)
        if problem and not is_torn_tail(data, stop):
            raise damaged(topic, path, stop, WHY[problem])
        nonsense = index_batches(segment, batches, firsts)
        if nonsense is not None:
            raise damaged(topic, path, nonsense, "its offsets do not follow those before")
        surplus = len(data) - stop
    if surplus:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, stop)
            os.fsync(fd)
        finally:
            os.close(fd)
        segment.size = stop
        log.warning(
            "tail of the log cut off", topic=topic, file=str(path), at=stop, bytes=surplus, why=WHY[problem or "torn"]
        )
    return segment


def _drop_unborn(directory: Path, sequences: list[int]) -> None:
    """A last segment without a valid start and without any valid batch was being created when the process ended."""
    path = files.segment_path(directory, sequences[-1])
    with map_file(path) as data:
        is_unborn = parse_start(data) is None and find_batch(data, 0) < 0
    # an only segment whose start is bad has lost the offsets: that is damage, unless it never had anything
    if is_unborn and (len(sequences) > 1 or path.stat().st_size == 0):
        path.unlink()
        sequences.pop()


def recover_topic(directory: Path) -> RecoveredTopic:
    """Raises LogDamaged, and FileNotFoundError when the directory is not a topic's."""
    name, config = files.read_topic(directory)
    for left in directory.iterdir():
        if left.suffix in {".tmp", files.CLEAN}:
            left.unlink()
    sequences = files.list_segments(directory)
    if sequences:
        _drop_unborn(directory, sequences)
    segments: list[Segment] = []
    firsts, ends = [0] * config.partitions, [0] * config.partitions
    covered = -1
    for sequence in sequences:
        path = files.segment_path(directory, sequence)
        if sequence <= covered:
            # its records are in an earlier, compacted segment
            path.unlink()
            path.with_suffix(files.INDEX).unlink(missing_ok=True)
            continue
        is_last = sequence == sequences[-1]
        segment = _load_last(name, path, firsts) if is_last else _load_closed(name, path)
        if len(segment.start.ends) != config.partitions:
            raise LogError(f"{path} has {len(segment.start.ends)} partitions, {files.TOPIC_FILE} {config.partitions}")
        if any(start < end for start, end in zip(segment.start.ends, ends, strict=True)):
            raise damaged(name, path, 0, "it starts before the end of the segment before it")
        ends = [segment.end_of(partition) for partition in range(config.partitions)]
        covered = max(covered, segment.start.covers_to)
        segments.append(segment)
    if segments:
        firsts = [max(pair) for pair in zip(firsts, segments[0].start.ends, strict=True)]
    return RecoveredTopic(name, directory, config, segments, firsts, ends)


def recover_all(root: Path) -> list[RecoveredTopic]:
    """Every topic of the log; what was being deleted or created when the process ended is gone."""
    topics = []
    for directory in sorted(root.iterdir()):
        if not directory.is_dir():
            continue
        if directory.name.startswith("."):
            remove_directory(directory)
            continue
        with contextlib.suppress(FileNotFoundError):
            topics.append(recover_topic(directory))
    return topics


def remove_directory(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()
    directory.rmdir()
