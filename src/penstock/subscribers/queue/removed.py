"""Messages that an operator took out of the middle of a queue: a log cannot lose single records, so they are noted.

Kept as spans, since what is taken out mostly lies together: 100,000 messages in a row are one span.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import msgspec


class RemovedOffsets:
    """Offsets no group is given any more. What is before the head of the log need not be noted, see `prune`."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        # [start, end) of each span; spans neither touch nor overlap, lowest first.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def spans(self) -> list[tuple[int, int]]:
        return list(zip(self._starts, self._ends, strict=True))

    def add(self, offsets: Iterable[int]) -> None:
        self.add_spans((offset, offset + 1) for offset in offsets)

    def add_spans(self, more: Iterable[tuple[int, int]]) -> None:
        spans = sorted([*self.spans(), *more])
        self._starts, self._ends = [], []
        for start, end in spans:
            if self._ends and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append(start)
                self._ends.append(end)

    def first_kept(self, offset: int) -> int:
        """The first offset from this one on that was not removed: what is before it can be cut off the log."""
        place = bisect_right(self._starts, offset) - 1
        return self._ends[place] if place >= 0 and offset < self._ends[place] else offset

    def count_from(self, offset: int) -> int:
        """How many there are at this offset and behind it."""
        return sum(end - max(start, offset) for start, end in self.spans() if end > offset)

    def prune(self, head: int) -> None:
        """The log begins here now."""
        kept = [(max(start, head), end) for start, end in self.spans() if end > head]
        self._starts, self._ends = [start for start, _ in kept], [end for _, end in kept]

    def encode(self) -> bytes:
        return msgspec.msgpack.encode(self.spans())

    @classmethod
    def decode(cls, stored: bytes) -> RemovedOffsets:
        """Raises ValueError when these are none."""
        removed = cls()
        for start, end in msgspec.msgpack.decode(stored, type=list[tuple[int, int]]):
            removed._starts.append(start)
            removed._ends.append(end)
        return removed
