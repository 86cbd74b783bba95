"""The $SYS topics, with the names and the arithmetic that users of mosquitto know.

`compute` is a pure function of two readings of the counters and the time between them; `SysPublisher` calls it every
interval and publishes what has changed.

The load averages are exponential moving averages of a rate per minute, over 1, 5 and 15 minutes: with dt seconds
between two readings, rate = difference * 60 / dt and average = rate + exp(-dt / window) * (average - rate), from 0 on.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.core.metrics import Number
from penstock.core.process import resident_bytes

ROOT = "$SYS/broker/"
WINDOWS = {"1min": 60.0, "5min": 300.0, "15min": 900.0}
# Averages that moved less than can be seen are not published again.
LOAD_FORMAT = "{:.2f}"

_log = logging.getLogger(__name__)

# Topic below $SYS/broker/ -> the keys whose sum it shows.
_COUNTS: dict[str, tuple[str, ...]] = {
    "clients/expired": ("sessions_expired",),
    "messages/received": ("packets_received",),
    "messages/sent": ("packets_sent",),
    "messages/inflight": ("inflight",),
    "messages/stored": ("retained_messages", "queued_messages"),
    "store/messages/count": ("retained_messages", "queued_messages"),
    "store/messages/bytes": ("retained_bytes", "queued_bytes"),
    "publish/messages/received": ("messages_received_qos0", "messages_received_qos1", "messages_received_qos2"),
    "publish/messages/sent": ("messages_sent_qos0", "messages_sent_qos1", "messages_sent_qos2"),
    "publish/bytes/received": ("publish_bytes_received",),
    "publish/bytes/sent": ("publish_bytes_sent",),
    "bytes/received": ("bytes_received",),
    "bytes/sent": ("bytes_sent",),
    "retained messages/count": ("retained_messages",),
    "subscriptions/count": ("subscriptions",),
    "shared_subscriptions/count": ("shared_subscriptions",),
}
_DROPPED = "messages_dropped_"
_LOADS: dict[str, tuple[str, ...]] = {
    "messages/received": _COUNTS["messages/received"],
    "messages/sent": _COUNTS["messages/sent"],
    "publish/received": _COUNTS["publish/messages/received"],
    "publish/sent": _COUNTS["publish/messages/sent"],
    "bytes/received": _COUNTS["bytes/received"],
    "bytes/sent": _COUNTS["bytes/sent"],
    "sockets": ("connections_total",),
    "connections": ("connections_total",),
}


@dataclass(slots=True)
class SysState:
    """What one update leaves for the next."""

    uptime: float = 0.0
    maximum_clients: int = 0
    maximum_heap: int = 0
    last: dict[str, Number] = field(default_factory=dict)
    averages: dict[str, float] = field(default_factory=dict)


def _sum(counters: Mapping[str, Number], keys: tuple[str, ...]) -> Number:
    return sum(counters.get(key, 0) for key in keys)


def _dropped(counters: Mapping[str, Number]) -> Number:
    return sum(number for key, number in counters.items() if key.startswith(_DROPPED))


def compute(counters: Mapping[str, Number], state: SysState, dt: float) -> dict[str, bytes]:
    """Every topic with its payload. `dt` is the time in seconds since the last update, or since the start."""
    state.uptime += dt
    connected = int(counters.get("connections_current", 0))
    # A connection that has not sent its CONNECT yet is counted before its session is.
    total = max(int(counters.get("sessions", 0)), connected)
    state.maximum_clients = max(state.maximum_clients, connected)
    values = {
        "uptime": f"{int(state.uptime)} seconds",
        "clients/total": str(total),
        "clients/connected": str(connected),
        "clients/active": str(connected),
        "clients/disconnected": str(total - connected),
        "clients/inactive": str(total - connected),
        "clients/maximum": str(state.maximum_clients),
        "publish/messages/dropped": str(_dropped(counters)),
    }
    for topic, keys in _COUNTS.items():
        if any(key in counters for key in keys):  # what is not counted is not shown as 0
            values[topic] = str(_sum(counters, keys))
    values.update(_compute_loads(counters, state, dt))
    return {ROOT + topic: value.encode() for topic, value in values.items()}


def _compute_loads(counters: Mapping[str, Number], state: SysState, dt: float) -> dict[str, str]:
    totals = {name: _sum(counters, keys) for name, keys in _LOADS.items()}
    totals["publish/dropped"] = _dropped(counters)
    values: dict[str, str] = {}
    for name, total in totals.items():
        rate = (total - state.last.get(name, 0)) * 60.0 / dt if dt > 0 else 0.0
        for window, seconds in WINDOWS.items():
            topic = f"load/{name}/{window}"
            average = state.averages.get(topic, 0.0)
            if dt > 0:
                average = rate + math.exp(-dt / seconds) * (average - rate)
            state.averages[topic] = average
            values[topic] = LOAD_FORMAT.format(average)
    state.last = totals
    return values


class Publish(Protocol):
    """Publishes in the broker's own name; retained, so that a new subscriber sees the present state at once."""

    def __call__(self, topic: str, payload: bytes, retain: bool = True) -> None: ...


class SysPublisher:
    """Publishes the topics every `interval` seconds; 0 = never."""

    def __init__(
        self,
        publish: Publish,
        read_counters: Callable[[], Mapping[str, Number]],
        interval: float,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        read_memory: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._read_memory = read_memory
        self._publish = publish
        self._read_counters = read_counters
        self._interval = interval
        self._version = version
        self._clock = clock
        self._state = SysState()
        self._updated_at = clock()
        self._shown: dict[str, bytes] = {}
        self._task: asyncio.Task[None] | None = None

    def update(self) -> None:
        """One update: what has changed since the last one is published."""
        now = self._clock()
        values = compute(self._read_counters(), self._state, now - self._updated_at)
        self._updated_at = now
        values[f"{ROOT}version"] = f"penstock version {self._version}".encode()
        self._add_heap(values)
        for topic, payload in values.items():
            if self._shown.get(topic) != payload:
                self._publish(topic, payload, retain=True)
        self._shown = values

    def _add_heap(self, values: dict[str, bytes]) -> None:
        """mosquitto counts what it has allocated; here it is the memory of the process, which is what fills up."""
        used = self._read_memory()
        if used is not None:
            self._state.maximum_heap = max(self._state.maximum_heap, used)
            values[f"{ROOT}heap/current"] = str(used).encode()
            values[f"{ROOT}heap/maximum"] = str(self._state.maximum_heap).encode()

    def start(self) -> None:
        if self._interval and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _run(self) -> None:
        while True:
            try:
                self.update()
            except Exception:
                _log.exception("the $SYS topics were not updated")
            await asyncio.sleep(self._interval)
