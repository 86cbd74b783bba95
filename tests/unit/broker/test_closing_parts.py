"""The parts of a process that ends: all of them while all is well, within a time when a service is away."""

from __future__ import annotations

import asyncio
import math
import time
from typing import Any

import pytest

from penstock.broker import closing
from penstock.broker.closing import close_parts
from penstock.broker.parts import Closing, Part, in_closing_order


class Parts:
    def __init__(self, **delays: float) -> None:
        self.closed: list[str] = []
        self.cancelled: list[str] = []
        self.parts = [Part(name=name, stop=self._close(name, delay)) for name, delay in delays.items()]

    def _close(self, name: str, delay: float) -> Any:
        async def close() -> None:
            try:
                await asyncio.sleep(delay)
            except asyncio.CancelledError:
                self.cancelled.append(name)
                raise
            self.closed.append(name)

        return close

    def run(self, seconds: float, away: str = "") -> float:
        started = time.monotonic()
        asyncio.run(close_parts(self.parts, seconds, lambda: away))
        return time.monotonic() - started


def test_each_takes_as_long_as_it_takes_while_all_is_well() -> None:
    parts = Parts(first=0.3, second=0.3, third=0.0)
    assert parts.run(0.4) >= 0.6
    assert parts.closed == ["first", "second", "third"]


def test_when_a_service_is_away_they_have_the_time_together_and_the_quick_ones_are_closed_all_the_same() -> None:
    parts = Parts(quick=0.0, waits=3600.0, waits_too=3600.0, last=0.0)
    assert parts.run(0.5, "Kafka is away") < 60
    assert parts.closed == ["quick", "last"]
    assert parts.cancelled == ["waits", "waits_too"]


def test_a_service_that_seems_well_and_does_not_answer() -> None:
    parts = Parts(waits=3600.0, last=0.0)
    assert parts.run(0.2) < 60
    assert parts.closed == ["last"]


def test_a_disk_is_waited_for(monkeypatch: Any) -> None:
    monkeypatch.setattr(closing, "LEAST_SECONDS", 0.0)
    parts = Parts(disk=0.5)
    parts.run(math.inf)
    assert parts.closed == ["disk"]


def test_what_fails_is_told() -> None:
    async def fail() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        asyncio.run(close_parts([Part(name="disk", stop=fail)], 1.0, lambda: ""))


def test_the_order_in_which_parts_stop() -> None:
    """By their place in it, and among equals the last one to start is the first."""
    places = [("log", Closing.LOG), ("a", Closing.SUBSCRIBERS), ("b", Closing.SUBSCRIBERS), ("admin", Closing.ADMIN)]
    parts = [Part(name=name, closing=place) for name, place in places]
    assert [part.name for part in in_closing_order(parts)] == ["admin", "b", "a", "log"]
