"""Which offset may be committed while the records of many packs are finished in any order."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from penstock.storage.log.base import Committed, TopicPartition


class PackProgress:
    """The records of one pack that are not finished."""

    __slots__ = ("next_offset", "partition", "remaining")

    def __init__(self, partition: TopicPartition, next_offset: int, remaining: int) -> None:
        self.partition = partition
        self.next_offset = next_offset
        self.remaining = remaining


class Progress:
    """Per partition the packs that were read, in order; what is finished from the front on can be committed."""

    def __init__(self) -> None:
        self._packs: dict[TopicPartition, deque[PackProgress]] = {}
        self._done: dict[TopicPartition, int] = {}

    def add(self, partition: TopicPartition, next_offset: int, records: int) -> PackProgress:
        pack = PackProgress(partition, next_offset, records)
        self._packs.setdefault(partition, deque()).append(pack)
        return pack

    def finish(self, pack: PackProgress, records: int = 1) -> None:
        pack.remaining -= records
        if pack.remaining:
            return
        packs = self._packs.get(pack.partition)
        while packs and packs[0].remaining == 0:
            self._done[pack.partition] = packs.popleft().next_offset

    def forget(self, partition: TopicPartition) -> None:
        """The partition went to somebody else, who starts at what was committed."""
        self._packs.pop(partition, None)
        self._done.pop(partition, None)

    def take(self) -> dict[TopicPartition, Committed]:
        """What can be committed and was not taken before."""
        done, self._done = self._done, {}
        return {partition: Committed(offset) for partition, offset in done.items()}

    def put_back(self, offsets: Mapping[TopicPartition, Committed]) -> None:
        """They were not committed after all. What is finished since then, or went to somebody else, stays."""
        for partition, committed in offsets.items():
            if partition in self._packs:
                self._done.setdefault(partition, committed.offset)

    @property
    def has_news(self) -> bool:
        return bool(self._done)
