"""Counters of all parts, checks for readiness, and how late the loop is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from penstock._ext.hub.connection import Hub
from penstock.broker.memory import MemoryKeeper
from penstock.broker.parts import Closing, Health, Part

TICK_SECONDS = 0.5
RETAINED_SWEEP = 10_000


class Ticker:
    """The regular work of the hub, twice a second."""

    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._memory = MemoryKeeper(lambda: hub.trie.subscription_bytes + hub.retained.bytes)
        self._handle: asyncio.TimerHandle | None = None
        self._lag = 0.0

    def part(self) -> Part:
        return Part(
            name="ticker",
            closing=Closing.SYS_TOPICS,
            start=self.start,
            stop=self.stop,
            counters=lambda: {"loop_lag": self._lag},
        )

    async def start(self) -> None:
        self._schedule()

    async def stop(self) -> None:
        if self._handle:
            self._handle.cancel()

    def _schedule(self) -> None:
        due = self._loop.time() + TICK_SECONDS
        self._handle = self._loop.call_at(due, self._tick, due)

    def _tick(self, due: float) -> None:
        self._lag = max(0.0, self._loop.time() - due)
        self._schedule()
        self._hub.tick()
        self._hub.sweep_retained(RETAINED_SWEEP)
        self._memory.look()


class Readiness:
    """Whether clients can connect: between the end of the start and the begin of the drain."""

    def __init__(self) -> None:
        self._is_ready = False

    def set(self, *, is_ready: bool) -> None:
        self._is_ready = is_ready

    def check(self) -> bool | str:
        return self._is_ready or "starting or draining"


def checks_of(readiness: Readiness, parts: Sequence[Part]) -> dict[str, Health]:
    return {"listeners": readiness.check, **{part.name: part.health for part in parts if part.is_checked}}


def counters_of(
    read_hub: Callable[[], Mapping[str, int | float]], parts: Sequence[Part]
) -> Callable[[], dict[str, int | float]]:
    """Everything that is counted, for metrics and $SYS."""

    def read() -> dict[str, int | float]:
        counters = dict(read_hub())
        for part in parts:
            counters.update(part.counters())
        return counters

    return read


def find_away(parts: Sequence[Part]) -> str:
    """Return why a service that others run cannot be reached, if one cannot. A disk is waited for whatever it takes."""
    return next((str(state) for part in parts if part.is_remote and (state := part.health()) is not True), "")
