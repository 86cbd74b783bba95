"""Deadlines of very many things, of which nearly all are done before: adding and removing one costs the same always.

They are put into buckets, one for each tick of time. A heap of single deadlines would keep the finished ones until
their time comes, which at 50,000 calls a second and a minute each is millions of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
TICK = 0.025


class Deadlines(Generic[K]):
    """Late by at most one tick, never early. The clock is the caller's."""

    def __init__(self, tick: float = TICK) -> None:
        self._tick = tick
        self._buckets: dict[int, dict[K, None]] = {}
        self._order: list[int] = []

    def add(self, key: K, deadline: float) -> dict[K, None]:
        """The bucket the key is in: `bucket.pop(key, None)` removes it."""
        number = math.ceil(deadline / self._tick)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heappush(self._order, number)
        bucket[key] = None
        return bucket

    @property
    def next_due(self) -> float | None:
        """When `expire` has something to do; None = never."""
        return self._order[0] * self._tick if self._order else None

    def expire(self, now: float) -> list[K]:
        """Takes out what is due, the earliest bucket first."""
        expired: list[K] = []
        while self._order and self._order[0] * self._tick <= now:
            expired.extend(self._buckets.pop(heappop(self._order)))
        return expired

    def __len__(self) -> int:
        """Buckets held, empty ones too."""
        return len(self._buckets)
