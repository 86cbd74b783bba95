"""What happens in the broker, as records of the topic `tbmq.events`: who came and went, what was not delivered and why.

For people who ask later, not for the broker: a record may be lost when the log is slow, and then it is counted. The
format is penstock_schema/event.proto; the Spark job `delivery` reads it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, Log, LogError
from penstock_schema.event import TOPIC, VERSION, Event, EventKind, encode_event

__all__ = ["TOPIC", "EventKind", "EventLog", "EventRecorder"]

MAX_PENDING = 10_000
TOGETHER_SECONDS = 0.02  # a commit for each connection of a storm would cost more than the connection
MOST_TOGETHER = 1_000
PROPERTIES = {"retention.ms": "604800000", "segment.bytes": "26214400", "retention.bytes": "134217728"}


class EventRecorder:
    """Where events are recorded. As it is here they are not: the settings say so, or the broker has no log."""

    recorded = 0
    lost = 0

    async def start(self) -> None:
        """Make the topic if need be. Raises LogError when that is not possible now."""

    def record(
        self,
        kind: EventKind,
        client_id: str,
        *,
        topic: str = "",
        cause: str = "",
        reason: int = 0,
        qos: int = 0,
        count: int = 0,
        username: str | None = None,
        protocol: int = 0,
        address: str = "",
    ) -> None:
        """Note an event. Never blocks and never raises for what the log cannot do."""

    def flush(self) -> None:
        """Hand over what was recorded."""


class EventLog(EventRecorder):
    """`record` from the loop's thread, as often as one likes: a pack leaves fifty times a second at most.

    `max_pending` bounds the events that are not yet durable; what comes while there are so many is counted in `lost`.
    """

    def __init__(
        self,
        log: Log,
        *,
        node: str = "",
        topic: str = TOPIC,
        max_pending: int = MAX_PENDING,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._node = node
        self._topic = topic
        self._max_pending = max_pending
        self._clock = clock
        self._waiting: list[Event] = []
        self._under_way = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_started = False
        self.recorded = 0
        self.lost = 0

    async def start(self, properties: Mapping[str, str] = PROPERTIES) -> None:
        """Makes the topic if need be; events wait for it. Raises LogError when that is not possible now."""
        await self._log.admin.create(self._topic, 1, properties)
        self._is_started = True
        self.flush()

    @property
    def pending(self) -> int:
        """Recorded and not yet durable."""
        return len(self._waiting) + self._under_way

    def record(
        self,
        kind: EventKind,
        client_id: str,
        *,
        topic: str = "",
        cause: str = "",
        reason: int = 0,
        qos: int = 0,
        count: int = 0,
        username: str | None = None,
        protocol: int = 0,
        address: str = "",
    ) -> None:
        if len(self._waiting) + self._under_way >= self._max_pending:
            self.lost += 1
            return
        at = int(self._clock() * 1000)
        self._waiting.append(
            Event(
                VERSION, kind, at, client_id, username, topic, qos, reason, cause, count, self._node, protocol, address
            )
        )
        if len(self._waiting) == MOST_TOGETHER:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._is_started:
            return
        events, self._waiting = self._waiting, []
        if not events:
            return
        pack = RecordPack()
        pack.extend([encode_event(event) for event in events], timestamp=int(self._clock() * 1000))
        count = len(events)
        self._under_way += count

        def on_done(result: Appended | LogError) -> None:
            self._under_way -= count
            if isinstance(result, LogError):
                self.lost += count
            else:
                self.recorded += count

        self._log.producer.append(self._topic, 0, pack, on_done, can_wait=True)
