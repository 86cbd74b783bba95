"""A clock that stands still until a test moves it, and the timers that hang on it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count
from typing import Any


class ManualTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self.callback: Callable[[], object] | None = callback

    def cancel(self) -> None:
        self.callback = None


class ManualClock:
    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def __call__(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> ManualTimer:
        timer = ManualTimer(lambda: callback(*args))
        heapq.heappush(self._timers, (self.now + delay, next(self._numbers), timer))
        return timer

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._timers and self._timers[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()
        self.now = end
