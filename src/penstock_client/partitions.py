"""Partitions as an application names them, and the numbers that stand for places rather than offsets."""

from __future__ import annotations

from dataclasses import dataclass, field

OFFSET_BEGINNING = -2
OFFSET_END = -1
OFFSET_STORED = -1000  # what the group has committed
OFFSET_INVALID = -1001  # nothing is known


@dataclass(slots=True, unsafe_hash=True)
class TopicPartition:
    """Equal when topic and partition are: the offset is what is said about it. `begin` and `end` are the first offset
    that the log still has and the one that the next message will get."""

    topic: str
    partition: int = -1
    offset: int = field(default=OFFSET_INVALID, compare=False)
    begin: int = field(default=OFFSET_INVALID, compare=False)
    end: int = field(default=OFFSET_INVALID, compare=False)

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition
