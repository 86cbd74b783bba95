"""Mends a damaged topic: what cannot be read is set aside in a file beside its segment, what can be read stays."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path

from penstock._ext.record.segment import BatchInfo, encode_tail, find_batch, scan_batches
from penstock.core.clock import now_ms
from penstock.storage.log.base import LogDamaged, TopicNotFound
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.journal import replay
from penstock.storage.log.embedded.recovery import find_gap, map_file, parse_start
from penstock.storage.log.embedded.segments import TRUNCATE, SegmentStart, control_kind
from penstock.storage.log.topics import TopicConfig


@dataclass(frozen=True, slots=True)
class LostOffsets:
    """Records first … end - 1 of a partition are not in the log any more. An `end` of None: nothing says how many,
    perhaps none of this partition."""

    partition: int
    first: int
    end: int | None


@dataclass(slots=True)
class RepairReport:
    topic: str
    damaged_bytes: int = 0
    # bytes that were stored and are not in the file any more
    missing_bytes: int = 0
    set_aside: list[Path] = field(default_factory=list)
    lost: list[LostOffsets] = field(default_factory=list)
    # batches whose offsets went backwards: they were written twice, the first ones stay
    dropped_batches: int = 0
    missing_segments: int = 0
    # of the description that was rebuilt
    described_partitions: int | None = None

    @property
    def is_sound(self) -> bool:
        """Nothing had to be done."""
        is_whole = not self.missing_bytes and not self.missing_segments and self.described_partitions is None
        return is_whole and not self.damaged_bytes and not self.dropped_batches


def repair_topic(data_dir: Path | str, topic: str) -> RepairReport:
    """The broker must not run. Raises LogError if it does, TopicNotFound if there is no such topic."""
    root = files.log_directory(data_dir)
    directory = root / files.escape_topic(topic)
    lock = files.DirectoryLock(root)
    try:
        report = RepairReport(topic)
        config = _describe(directory, report)
        replay(root)
        tail = files.read_tail(directory) or (0, 0)
        nothing = [0] * config.partitions
        ends: list[int] | None = None
        firsts, free = list(nothing), nothing
        sequences = files.list_segments(directory)
        covered = -1
        for sequence, following in itertools.zip_longest(sequences, sequences[1:]):
            if sequence <= covered:
                continue  # what it holds is in an earlier, compacted one; the next start removes it
            durable = None if following is not None else tail[1] if sequence == tail[0] else 0
            guess = following - 1 if following is not None and config.is_compacted else 0
            path = files.segment_path(directory, sequence)
            ends, free = _repair_segment(path, firsts, ends, report, durable, covers_to=guess)
            covered = max(covered, _close_gap(path, following, ends, report))
        if tail[0] > max(sequences, default=0):
            report.missing_bytes += tail[1]
            report.lost += [LostOffsets(partition, end, None) for partition, end in enumerate(free)]
            free = [end + tail[1] for end in free]
        if free != (ends or nothing):
            sequences.append(_add_segment(directory, sequences, free, firsts))
        if not report.is_sound:
            _renew_tail(directory, sequences)
        return report
    except FileNotFoundError:
        raise TopicNotFound(f"there is no topic {topic!r} in {data_dir}") from None
    finally:
        lock.release()


def _describe(directory: Path, report: RepairReport) -> TopicConfig:
    """Raises LogDamaged when there is no description, and nothing to make one of."""
    try:
        return files.read_topic(directory)[1]
    except LogDamaged:
        partitions = _count_partitions(directory)
        if partitions is None:
            raise
    path = directory / files.TOPIC_FILE
    if path.exists():
        aside = path.with_name(f"{path.name}{files.BAD}")
        path.rename(aside)
        report.set_aside.append(aside)
    # nothing goes by itself before somebody has said again what may
    config = TopicConfig.of(report.topic, partitions, {"retention.ms": "-1"})
    files.write_topic(directory, report.topic, config)
    report.described_partitions = partitions
    return config


def _count_partitions(directory: Path) -> int | None:
    for sequence in files.list_segments(directory):
        with map_file(files.segment_path(directory, sequence)) as data:
            parsed = parse_start(data)
        if parsed is not None:
            return len(parsed[0].ends)
    return None


def _close_gap(path: Path, following: int | None, ends: list[int], report: RepairReport) -> int:
    """Segments are missing between this one and the next: from now on it says that nobody need look for them. Returns
    up to which segment it says so."""
    with map_file(path) as data:
        parsed = parse_start(data)
        if parsed is None:
            raise RuntimeError(f"{path} was repaired and does not start as it must")
        start, size = parsed
        if following is None or find_gap(start, following) is None:
            return start.covers_to
        rest = bytes(data[size:])
    with map_file(files.segment_path(path.parent, following)) as data:
        after = parse_start(data)
    report.missing_segments += following - start.sequence - 1
    if after is not None:
        for partition, offset in enumerate(after[0].ends):
            _note_gap(report, partition, ends[partition], offset)
            ends[partition] = max(ends[partition], offset)
    covering = SegmentStart(start.sequence, following - 1, start.created_ms, start.ends, start.firsts)
    path.with_suffix(files.INDEX).unlink(missing_ok=True)
    files.write_durably(path, covering.build() + rest)
    return covering.covers_to


def _add_segment(directory: Path, sequences: list[int], ends: list[int], firsts: list[int]) -> int:
    """An empty one, so that new records begin behind the offsets of those that are lost: whoever has read or stored
    these would take the new ones for them."""
    start = SegmentStart(max(sequences, default=0) + 1, 0, now_ms(), ends, firsts)
    files.write_durably(files.segment_path(directory, start.sequence), start.build())
    return start.sequence


def _renew_tail(directory: Path, sequences: list[int]) -> None:
    """It says what the newest segment has now; the next start would refuse anything else."""
    if not sequences:
        (directory / files.TAIL_FILE).unlink(missing_ok=True)
        files.sync_directory(directory)
        return
    fd = os.open(files.segment_path(directory, sequences[-1]), os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
        size = os.fstat(fd).st_size
    finally:
        os.close(fd)
    files.write_durably(directory / files.TAIL_FILE, encode_tail(sequences[-1], size))


def _repair_segment(
    path: Path, firsts: list[int], ends: list[int] | None, report: RepairReport, durable: int | None, *, covers_to: int
) -> tuple[list[int], list[int]]:
    """The offsets after the segment: of its records, and those that new ones may have. Of the newest `durable` bytes
    were stored; of others (None) the next one says what there was. `firsts` moves with its truncations. If its start is
    lost, it is taken to hold the segments up to `covers_to`."""
    with map_file(path) as data:
        batches, bad = _find_sound(data)
        parsed = parse_start(data)
        start = parsed[0] if parsed is not None else _guess_start(path, batches, firsts, ends, covers_to)
        is_damaged = bool(bad) or parsed is None
        kept, expected = _check_order(batches, start, ends, report, is_damaged)
        free = expected
        if durable is not None:
            report.missing_bytes += max(0, durable - len(data))
            places = _stored(bad, len(data), durable, len(start.build()))
            free = _pass_lost(data, places, kept, expected, report)
        _move_firsts(firsts, start, batches)
        if not is_damaged and len(kept) == len(batches) - 1:  # all but the start
            return expected, free
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
    return expected, free


def _pass_lost(
    data: memoryview, bad: list[tuple[int, int]], kept: list[BatchInfo], ends: list[int], report: RepairReport
) -> list[int]:
    """Notes what is lost of the newest segment and no later batch tells of, as far as headers still say it. Returns for
    each partition an offset that no lost record has had: of bytes that say nothing, each may have been a record."""
    after, room = list(ends), [0] * len(ends)
    for low, high in bad:
        # with zeros for what is missing, so that the header of a batch that was cut through is found
        piece = bytes(data[low:high]).ljust(high - low, b"\0")
        found, stop, _ = scan_batches(piece, 0, False)
        for batch in found:
            number = batch.partition
            if not control_kind(batch) and number < len(after) and batch.base_offset >= after[number]:
                _note_gap(report, number, after[number], batch.next_offset)
                after[number] = batch.next_offset
        told = {batch.partition for batch in kept if batch.position >= high}
        for number in range(len(room)):
            room[number] += len(piece) - stop if number not in told else 0
    report.lost += [LostOffsets(number, end, None) for number, end in enumerate(after) if room[number]]
    return [end + more for end, more in zip(after, room, strict=True)]


def _stored(bad: list[tuple[int, int]], size: int, durable: int, start_size: int) -> list[tuple[int, int]]:
    """The damaged and missing places without the start, which has no records, and without a torn tail: nobody was told
    that it is stored."""
    places = bad if bad and bad[-1][1] == size else [*bad, (size, size)]
    places = [*places[:-1], (places[-1][0], max(places[-1][0], durable))]
    return [(max(low, start_size), high) for low, high in places if max(low, start_size) < high]


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


def _move_firsts(firsts: list[int], start: SegmentStart, batches: list[BatchInfo]) -> None:
    firsts[:] = [max(pair) for pair in zip(firsts, start.firsts, strict=True)]
    for batch in batches:
        if control_kind(batch) == TRUNCATE and batch.partition < len(firsts):
            firsts[batch.partition] = max(firsts[batch.partition], batch.base_offset)


def _guess_start(
    path: Path, batches: list[BatchInfo], firsts: list[int], ends: list[int] | None, covers_to: int
) -> SegmentStart:
    """A start from what is around it, when the segment's own is lost. Records of earlier segments stay readable."""
    if ends is not None:
        return SegmentStart(int(path.stem), covers_to, now_ms(), list(ends), list(firsts))
    known = [0] * len(firsts)
    for batch in reversed(batches):
        if not control_kind(batch) and batch.partition < len(known):
            known[batch.partition] = batch.base_offset
    return SegmentStart(int(path.stem), covers_to, now_ms(), known, list(known))


def _check_order(
    batches: list[BatchInfo], start: SegmentStart, ends: list[int] | None, report: RepairReport, is_damaged: bool
) -> tuple[list[BatchInfo], list[int]]:
    """The batches that stay (without the start, which is written again), and the offsets after them. What is missing
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
