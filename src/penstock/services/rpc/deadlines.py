"""Deadlines of very many things, of which nearly all are done before: adding and removing one costs the same always.

They are put into buckets, one for each tick of time. A heap of single deadlines would keep the finished ones until
their time comes, which at 50,000 calls a second and a minute each is millions of them.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Hashable
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


class DeadlineTimer(Generic[K]):
    """Deadlines with one timer of the running loop for all of them."""

    def __init__(self, on_expired: Callable[[K], None], clock: Callable[[], float]) -> None:
        self._deadlines: Deadlines[K] = Deadlines()
        self._on_expired = on_expired
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._due = math.inf
        self._is_closed = False

    def add(self, key: K, deadline: float) -> dict[K, None]:
        """As Deadlines.add."""
        bucket = self._deadlines.add(key, deadline)
        if deadline < self._due:
            self._arm()
        return bucket

    def expire(self) -> None:
        """What is due now. The timer calls it in time; a test with a clock of its own calls it itself."""
        for key in self._deadlines.expire(self._clock()):
            self._on_expired(key)
        self._arm()

    def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._deadlines.next_due
        self._due = math.inf if due is None else due
        if due is not None and not self._is_closed:
            delay = max(0.0, due - self._clock())
            self._timer = asyncio.get_running_loop().call_later(delay, self.expire)
