"""What is done with queues from time to time: streams are committed, logs cut, unused queues removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.core.ports import Timer
from penstock.subscribers.queue.abandoned import expire_groups, time_left
from penstock.subscribers.queue.retention import enforce_retention

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.queue import Queue

log = get_logger("penstock.queues")

COMMIT_AT_LEAST = 0.05
TIDY_AT_LEAST = 0.05


class Upkeep:
    """The clock of the queues."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._timers: list[Timer] = []
        self._tidies_at = 0.0
        self._is_tidying = False

    def start(self) -> None:
        self._commit_streams()
        self._tidy_later()

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def _commit_streams(self) -> None:
        manager = self._manager
        for queue in manager.queues.values():
            if queue.core.is_stream:
                for group in queue.groups.values():
                    if group.members:
                        group.auto_commit()
        interval = max(manager.settings.auto_commit_interval, COMMIT_AT_LEAST)
        self._timers[:1] = [manager.scheduler.call_later(interval, self._commit_streams)]

    def _tidy_later(self) -> None:
        interval = max(min(self._manager.settings.retention_interval, self._soonest_end()), TIDY_AT_LEAST)
        self._tidies_at = time.monotonic() + interval
        self._timers[1:2] = [self._manager.scheduler.call_later(interval, self._tidy)]

    def expect(self, seconds: float) -> None:
        """Tidy by then, because something expires unless it is used again."""
        soonest = time.monotonic() + max(seconds, TIDY_AT_LEAST)  # else each call would put the timer off
        if len(self._timers) > 1 and soonest < self._tidies_at and not self._is_tidying:
            self._timers[1].cancel()
            self._tidy_later()

    def _soonest_end(self) -> float:
        ends = [
            queue.definition.expires_after + queue.idle_since - time.monotonic()
            for queue in self._manager.queues.values()
            if not queue.definition.durable and not queue.has_consumers
        ]
        now = time.time()
        groups = [group for queue in self._manager.queues.values() for group in queue.groups.values()]
        return min([*ends, *(max(time_left(group, now), 0.0) for group in groups)], default=float("inf"))

    def _tidy(self) -> None:
        self._is_tidying = True
        self._manager.spawn(self._tidy_all())

    async def _tidy_all(self) -> None:
        manager = self._manager
        now = time.monotonic()
        lost = 0
        for queue in list(manager.queues.values()):
            try:
                if manager.queues.get(queue.name) is not queue:
                    continue  # deleted meanwhile
                if queue.has_ended(now):
                    lost += await self._end(queue)
                elif manager.serves(queue):
                    if not manager.is_alone and queue.is_made:
                        await queue.look()  # others have published to it
                    expire_groups(manager, queue)
                    await enforce_retention(queue)
            except PenstockError as error:
                log.warning("a queue cannot be tidied", queue=queue.name, error=str(error))
            except Exception as error:  # of one queue; the others are tidied all the same, now and later
                log.exception("a queue cannot be tidied", queue=queue.name, error=repr(error))
        if lost:
            log.warning(
                "unused ephemeral queues expired with unread messages",
                messages=lost,
                advice="publish to a durable queue, or raise expires_after, if the messages matter",
            )
        self._is_tidying = False
        if not manager.is_closing:
            self._tidy_later()

    async def _end(self, queue: Queue) -> int:
        """Delete an ephemeral queue; return the number of messages that were not settled."""
        lost = queue.depth
        queue.dropped += lost
        await self._manager.delete(queue.name)
        return lost
