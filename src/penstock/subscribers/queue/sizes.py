"""How many bytes of a queue's log lie before which offset: for queues that are bound by their size."""

from __future__ import annotations

from bisect import bisect_right

COARSEST = 4_096


class Sizes:
    """Runs of records by their first offset. Neighbours are joined when there are too many: then less is known, and
    less is removed, never more."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._bytes: list[int] = []
        self.total = 0

    @property
    def first(self) -> int | None:
        """The first offset that is accounted for."""
        return self._firsts[0] if self._firsts else None

    def add(self, first: int, size: int) -> None:
        """A run of records behind those that are there, or before the first of them."""
        self.total += size
        at = bisect_right(self._firsts, first)
        self._firsts.insert(at, first)
        self._bytes.insert(at, size)
        if len(self._firsts) > COARSEST:
            self._join_pairs()

    def _join_pairs(self) -> None:
        pairs = range(0, len(self._firsts) - 1, 2)
        rest = len(self._firsts) // 2 * 2
        self._bytes = [self._bytes[at] + self._bytes[at + 1] for at in pairs] + self._bytes[rest:]
        self._firsts = [self._firsts[at] for at in pairs] + self._firsts[rest:]

    def first_within(self, limit: int) -> int:
        """The first run that has to stay so that no less than `limit` bytes do; the last one always stays."""
        over, at = self.total - limit, 0
        while at < len(self._firsts) - 1 and over >= self._bytes[at]:
            over -= self._bytes[at]
            at += 1
        return self._firsts[at] if self._firsts else 0

    def prune(self, head: int, end: int) -> None:
        """What is before the head is gone; the log ends at `end`."""
        at = len(self._firsts) if head >= end else max(bisect_right(self._firsts, head) - 1, 0)
        self.total -= sum(self._bytes[:at])
        del self._firsts[:at], self._bytes[:at]
