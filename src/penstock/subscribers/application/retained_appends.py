"""Retained messages for new subscriptions of APPLICATION clients, on their way into the clients' topics.

SUBACK was sent already, so what the log does not take now is tried until it does, or until the session is over. How
much may wait is bounded: over it new subscriptions are refused.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from penstock._ext.hub.connection import Session
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.storage.log.base import Log, LogError, TopicNotFound

log = get_logger("penstock.application")

MOST_BYTES = 64 * 1_048_576
PART_BYTES = 4 * 1_048_576
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 2.0

Waiting = deque[tuple[Session, RecordPack]]


class RetainedAppends:
    """`is_current` says whether a session still lives; `make_again` is told of a topic that is missing, and says
    whether it is there now."""

    def __init__(
        self, log_provider: Log, is_current: Callable[[Session], bool], make_again: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._log = log_provider
        self._is_current = is_current
        self._make_again = make_again
        self._waiting: dict[str, Waiting] = {}
        self._tasks = TaskSet()
        self._bytes = 0
        self._warnings = Throttled(log, interval=10.0)

    @property
    def is_full(self) -> bool:
        return self._bytes >= MOST_BYTES

    def count(self, topic: str) -> int:
        """Messages that wait for the topic."""
        return sum(pack.count for _, pack in self._waiting.get(topic, ()))

    def add(self, session: Session, topic: str, pack: RecordPack) -> None:
        """Behind what waits for the topic already."""
        self._bytes += pack.size
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append((session, pack))
            return
        self._waiting[topic] = deque([(session, pack)])
        self._tasks.spawn(self._append_all(topic))

    async def done(self, topic: str) -> None:
        """Return when nothing is on its way into the topic."""
        while topic in self._waiting and self._tasks:
            await self._tasks.wait_for_one()

    def stop(self) -> None:
        self._tasks.cancel()
        lost = sum(pack.count for waiting in self._waiting.values() for _, pack in waiting)
        if lost:
            log.error("retained messages are lost for new subscriptions: the log did not take them", messages=lost)

    async def _append_all(self, topic: str) -> None:
        waiting = self._waiting[topic]
        while waiting:
            session, pack = waiting[0]
            for part in split(pack):
                if not await self._append(session, topic, part):
                    break
            waiting.popleft()
            self._bytes -= pack.size
        del self._waiting[topic]

    async def _append(self, session: Session, topic: str, pack: RecordPack) -> bool:
        """False when nobody is to have it any more."""
        pause = FIRST_PAUSE
        while self._is_current(session):
            try:
                await self._log.producer.send(topic, 0, pack)
                return True
            except LogError as error:
                if not (error.is_retryable or isinstance(error, TopicNotFound)):
                    log.error("retained messages are lost for a new subscription", topic=topic, error=str(error))
                    return True
                self._warn(topic, error)
                if isinstance(error, TopicNotFound) and not await self._is_there(topic):
                    return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        return False

    async def _is_there(self, topic: str) -> bool:
        try:
            return await self._make_again(topic)
        except LogError as error:
            self._warn(topic, error)
            return True

    def _warn(self, topic: str, error: LogError) -> None:
        self._warnings.warning(
            "retained messages wait for the log", per=type(error).__name__, topic=topic, error=str(error)
        )


def split(pack: RecordPack) -> list[RecordPack]:
    """In parts the log takes beside everything else."""
    parts = -(-pack.size // PART_BYTES)
    if parts <= 1:
        return [pack]
    records = max(1, pack.count // parts)
    pack.place(0)
    found: list[RecordPack] = []
    at = 0
    while at < pack.count:
        part = pack.slice(at, records)  # less, if it would be larger than a pack may be
        found.append(part)
        at = part.next_offset
    return found
