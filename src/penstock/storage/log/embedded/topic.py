"""A topic as the loop sees it: what can be read. Only the loop's thread touches it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from penstock._ext.record.segment import PartitionState, RecentPacks, RecordPack, add_readable
from penstock.storage.log.base import TopicNotFound, Watermarks
from penstock.storage.log.embedded.reading import SegmentReader, Windows
from penstock.storage.log.embedded.recovery import RecoveredTopic
from penstock.storage.log.embedded.segments import Segment
from penstock.storage.log.topics import UNLIMITED, TopicConfig


class TopicView:
    def __init__(self, recovered: RecoveredTopic, windows: Windows, recent: RecentPacks) -> None:
        self.name = recovered.name
        self.directory: Path = recovered.directory
        self.config: TopicConfig = recovered.config
        self.segments: list[Segment] = recovered.segments
        self.partitions = [
            PartitionState(first, end) for first, end in zip(recovered.firsts, recovered.ends, strict=True)
        ]
        self.reader = SegmentReader(self.name, self.segments, windows)
        self.is_deleted = False
        self.is_compacting = False
        self._recent = recent

    def partition(self, number: int) -> PartitionState:
        if not 0 <= number < len(self.partitions):
            raise TopicNotFound(f"topic {self.name!r} has no partition {number}")
        return self.partitions[number]

    def watermarks(self, number: int) -> Watermarks:
        state = self.partition(number)
        return Watermarks(state.first, state.end)

    def add_segment(self, segment: Segment) -> Segment | None:
        """A new segment is written from now on; the one before it, if there is one, is closed."""
        closed = self.segments[-1] if self.segments else None
        self.segments.append(segment)
        return closed

    def add_packs(self, position: int, partitions: list[int], packs: list[RecordPack]) -> None:
        """Make the packs readable, which are in the last segment from the position on."""
        add_readable(self.segments[-1], self.partitions, self._recent, position, partitions, packs)

    @property
    def bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.segments)

    def move_first(self, number: int, offset: int) -> None:
        state = self.partition(number)
        state.first = max(state.first, offset)
        state.end = max(state.end, state.first)  # where a repair has left offsets out

    def find_expired(self, now_ms: int) -> int:
        """How many of the oldest segments go, of those that are closed."""
        config = self.config
        size, records, count = self.bytes, self.records, 0
        for segment in self.segments[:-1]:
            is_before_first = all(segment.end_of(number) <= state.first for number, state in enumerate(self.partitions))
            is_old = config.retention_ms >= 0 and segment.max_timestamp < now_ms - config.retention_ms
            is_large = config.total_bytes != UNLIMITED and size > config.total_bytes
            is_long = config.total_messages != UNLIMITED and records - segment.records >= config.total_messages
            if not is_before_first and not (config.is_deleted and (is_old or is_large or is_long)):
                break
            size -= segment.size
            records -= segment.records
            count += 1
        return count

    def count_free(self, expired: int, held: Mapping[int, int]) -> int:
        """How many of the expired ones lie before what is held of each partition, or before what is kept anyway."""
        for count, segment in enumerate(self.segments[:expired]):
            for number, offset in held.items():
                if number < len(self.partitions) and segment.end_of(number) > max(
                    offset, self.partitions[number].first
                ):
                    return count
        return expired

    def should_roll(self, now_ms: int) -> bool:
        """Whether the segment being written should be closed because of its age."""
        if not self.segments or not self.segments[-1].records:
            return False
        last, config = self.segments[-1], self.config
        if now_ms - last.start.created_ms > config.segment_ms:
            return True
        return config.is_deleted and 0 <= config.retention_ms < now_ms - last.max_timestamp

    def drop_segments(self, count: int) -> list[Segment]:
        """Takes the oldest out of the list; what starts after them is the first that is kept."""
        dropped = self.segments[:count]
        del self.segments[:count]
        self.reader.forget_positions()
        for number, offset in enumerate(self.segments[0].start.ends):
            self.move_first(number, offset)
        for state in self.partitions:
            while (pack := state.recent.first_pack) is not None and pack.next_offset <= state.first:
                state.recent.drop_first()
        return dropped

    def replace_segments(self, old: list[Segment], new: list[Segment]) -> None:
        """Compaction has put the records of the oldest segments into others."""
        if self.segments[: len(old)] != old:
            raise RuntimeError("the segments that were compacted are not the oldest any more")
        self.segments[: len(old)] = new
        self.reader.forget_positions()
