"""What a topic's directory holds when the broker starts, and what a crash left unfinished.

The last segment is compared with its checksums; a tail that was never acknowledged is cut off. Damage to what was
stored is never cut: it is refused with the command that repairs it. The file `tail` says how far the last segment is
stored; it is written after the segment is on the disk, so it may be behind but never ahead.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock._ext.record.segment import BatchInfo, find_batch, scan_batches
from penstock.core.logging import get_logger
from penstock.storage.log.base import LogDamaged, LogError
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.segments import (
    NO_PARTITION,
    START,
    TRUNCATE,
    Segment,
    SegmentStart,
    control_kind,
)
from penstock.storage.log.topics import TopicConfig

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
    ends: list[int]  # behind the last record
    next_offsets: list[int]  # that new records get: a repair leaves out those of records that are lost


def damaged(topic: str, path: Path, position: int, why: str) -> LogDamaged:
    command = files.repair_command(topic, path.parent)
    return LogDamaged(
        f"{path} is damaged at byte {position}: {why}",
        f"`{command}` sets the damaged bytes aside and says which records are lost.",
    )


def missing(topic: str, path: Path) -> LogDamaged:
    command = files.repair_command(topic, path.parent)
    return LogDamaged(
        f"{path} is missing: something else than the log has removed it",
        f"Put it back, if somebody has it; else `{command}` says which records are lost and goes on without them.",
    )


def find_gap(previous: SegmentStart, sequence: int) -> int | None:
    """The first segment that is missing before the next one there is. Those that compaction put into others are not,
    which the one that has them says; of older versions, not always of all of them."""
    return previous.sequence + 1 if not previous.covers_to and sequence > previous.sequence + 1 else None


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
    while position < len(data):
        following = find_batch(data, position + 1)
        if following < 0:
            break
        batches, stop, _ = scan_batches(data, following, True)
        if any(batch.synced > position for batch in batches):
            return False
        position = stop
    return True


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


def _load_last(topic: str, path: Path, firsts: list[int], durable: int) -> Segment:
    """`firsts` moves with the truncations that the segment tells of. The bytes before `durable` were on the disk."""
    with map_file(path) as data:
        start = _require_start(topic, path, data)
        segment = Segment(path, start, len(data))
        firsts[:] = [max(pair) for pair in zip(firsts, start.firsts, strict=True)]
        batches, stop, problem = scan_batches(data, 0, True)
        if problem and (stop < durable or not is_torn_tail(data, stop)):
            raise damaged(topic, path, stop, WHY[problem])
        if stop < durable:
            raise damaged(topic, path, stop, f"the file ends here, but {durable} bytes of it were stored")
        nonsense = index_batches(segment, batches, firsts)
        if nonsense is not None:
            raise damaged(topic, path, nonsense, "its offsets do not follow those before")
        surplus = len(data) - stop
    if surplus or stop > durable:
        # what is kept counts as stored from now on, so it must be on the disk
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, stop)
            os.fsync(fd)
        finally:
            os.close(fd)
        segment.size = stop
    if surplus:
        log.warning(
            "tail of the log cut off", topic=topic, file=str(path), at=stop, bytes=surplus, why=WHY[problem or "torn"]
        )
    return segment


def _require_newest(topic: str, directory: Path, sequences: list[int], tail: tuple[int, int]) -> None:
    """The segment that the tail names was on the disk; only a later one takes its place."""
    if tail[0] > 0 and (not sequences or sequences[-1] < tail[0]):
        path = files.segment_path(directory, tail[0])
        raise damaged(topic, path, 0, f"the file is missing, but {tail[1]} bytes of it were stored")


def _drop_unborn(directory: Path, sequences: list[int], tail: tuple[int, int]) -> None:
    """A last segment without a valid start and without any valid batch was being created when the process ended,
    unless it is known to have been finished."""
    if tail[0] == sequences[-1]:
        return
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
    tail = files.read_tail(directory) or (0, 0)
    _require_newest(name, directory, sequences, tail)
    if sequences:
        _drop_unborn(directory, sequences, tail)
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
        if sequence == sequences[-1]:
            segment = _load_last(name, path, firsts, tail[1] if tail[0] == sequence else 0)
        else:
            segment = _load_closed(name, path)
        if segments and (gap := find_gap(segments[-1].start, sequence)) is not None:
            raise missing(name, files.segment_path(directory, gap))
        if len(segment.start.ends) != config.partitions:
            raise LogError(f"{path} has {len(segment.start.ends)} partitions, {files.TOPIC_FILE} {config.partitions}")
        if any(start < end for start, end in zip(segment.start.ends, ends, strict=True)):
            raise damaged(name, path, 0, "it starts before the end of the segment before it")
        ends = [segment.end_of(partition) for partition in range(config.partitions)]
        covered = max(covered, segment.start.covers_to)
        segments.append(segment)
    if segments:
        firsts = [max(pair) for pair in zip(firsts, segments[0].start.ends, strict=True)]
    visible = [find_end(segments, partition) for partition in range(config.partitions)]
    return RecoveredTopic(name, directory, config, segments, firsts, visible, ends)


def find_end(segments: Sequence[Segment], partition: int) -> int:
    """Behind the partition's last record: who reads up to the end must get there."""
    for segment in reversed(segments):
        index = segment.partitions.get(partition)
        if index is not None:
            return index.end
    return segments[0].start.ends[partition] if segments else 0


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
