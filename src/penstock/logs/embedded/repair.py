"""Mends a damaged topic: what cannot be read is set aside in a file beside its segment, what can be read stays."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from penstock._ext.segment import BatchInfo, find_batch, scan_batches
from penstock.logs.base import TopicNotFound
from penstock.logs.embedded import files
from penstock.logs.embedded.recovery import map_file, parse_start
from penstock.logs.embedded.segments import SegmentStart, control_kind
from penstock.logs.topics import TopicConfig, now_ms


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Records first … end - 1 of a partition are not in the log any more."""

    partition: int
    first: int
    end: int


@dataclass(slots=True)
class RepairReport:
    topic: str
    damaged_bytes: int = 0
    set_aside: list[Path] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    # batches whose offsets went backwards: they were written twice, the first ones stay
    dropped_batches: int = 0

    @property
    def is_sound(self) -> bool:
        """Nothing had to be done."""
        return not self.damaged_bytes and not self.dropped_batches


def repair_topic(data_dir: Path | str, topic: str) -> RepairReport:
    """The broker must not run. Raises LogError if it does, TopicNotFound if there is no such topic."""
    root = files.log_directory(data_dir)
    directory = root / files.escape_topic(topic)
    lock = files.DirectoryLock(root)
    try:
        name, config = files.read_topic(directory)
        report = RepairReport(name)
        ends: list[int] | None = None
        for sequence in files.list_segments(directory):
            ends = _repair_segment(files.segment_path(directory, sequence), config, ends, report)
        return report
    except FileNotFoundError:
        raise TopicNotFound(f"there is no topic {topic!r} in {data_dir}") from None
    finally:
        lock.release()


def _repair_segment(path: Path, config: TopicConfig, ends: list[int] | None, report: RepairReport) -> list[int]:
    """The offsets after the segment."""
    with map_file(path) as data:
        batches, bad = _find_sound(data)
        parsed = parse_start(data)
        start = parsed[0] if parsed is not None else _guess_start(path, batches, config, ends)
        is_damaged = bool(bad) or parsed is None
        kept, expected = _check_order(batches, start, ends, report, is_damaged)
        if not is_damaged and len(kept) == len(batches) - 1:  # all but the start
            return expected
        aside = path.with_suffix(f"{files.SEGMENT}{files.BAD}")
        number = 1
        while aside.exists():
            number += 1
            aside = path.with_suffix(f"{files.SEGMENT}{files.BAD}{number}")
        damaged = b"".join(bytes(data[low:high]) for low, high in bad)
        files.write_durably(aside, damaged)
        sound = b"".join(bytes(data[batch.position : batch.position + batch.size]) for batch in kept)
    path.with_suffix(files.INDEX).unlink(missing_ok=True)
    files.write_durably(path, start.build() + sound)
    report.damaged_bytes += len(damaged)
    report.set_aside.append(aside)
    return expected


def _find_sound(data: memoryview) -> tuple[list[BatchInfo], list[tuple[int, int]]]:
    """The batches whose checksums match, and the places between them."""
    batches: list[BatchInfo] = []
    bad: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        found, stop, problem = scan_batches(data, position, True)
        batches += found
        if not problem:
            break
        following = find_batch(data, stop + 1)
        position = following if following >= 0 else len(data)
        bad.append((stop, position))
    return batches, bad


def _guess_start(path: Path, batches: list[BatchInfo], config: TopicConfig, ends: list[int] | None) -> SegmentStart:
    """A start from what is around it, when the segment's own is lost."""
    known = list(ends) if ends is not None else [0] * config.partitions
    if ends is None:
        for batch in reversed(batches):
            if not control_kind(batch) and batch.partition < config.partitions:
                known[batch.partition] = batch.base_offset
    return SegmentStart(int(path.stem), 0, now_ms(), known, list(known))


def _check_order(
    batches: list[BatchInfo], start: SegmentStart, ends: list[int] | None, report: RepairReport, is_damaged: bool
) -> tuple[list[BatchInfo], list[int]]:
    """The batches that stay (without the start, which is written anew), and the offsets after them. What is missing
    between them is lost, unless nothing is damaged there: then compaction took it."""
    expected = list(ends) if ends is not None else list(start.ends)
    for partition, offset in enumerate(start.ends):
        if report.damaged_bytes:
            _note_gap(report, partition, expected[partition], offset)
        expected[partition] = max(expected[partition], offset)
    kept: list[BatchInfo] = []
    for batch in batches:
        if control_kind(batch):
            if batch.position:
                kept.append(batch)
        elif batch.partition >= len(expected) or batch.base_offset < expected[batch.partition]:
            report.dropped_batches += 1
        else:
            if is_damaged:
                _note_gap(report, batch.partition, expected[batch.partition], batch.base_offset)
            expected[batch.partition] = batch.next_offset
            kept.append(batch)
    return kept, expected


def _note_gap(report: RepairReport, partition: int, expected: int, offset: int) -> None:
    if offset > expected:
        report.lost.append(LostOffsets(partition, expected, offset))
