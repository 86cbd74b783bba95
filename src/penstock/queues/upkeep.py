"""What is done with queues from time to time: streams are committed, logs cut, unused queues removed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.core.ports import Timer
from penstock.queues.retention import enforce_retention

if TYPE_CHECKING:
    from penstock.queues.manager import QueueManager

log = get_logger("penstock.queues")

COMMIT_AT_LEAST = 0.05
TIDY_AT_LEAST = 0.05


class Upkeep:
    """The clock of the queues."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._timers: list[Timer] = []

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
        interval = min(self._manager.settings.retention_interval, self._soonest_end())
        self._timers[1:2] = [self._manager.scheduler.call_later(max(interval, TIDY_AT_LEAST), self._tidy)]

    def _soonest_end(self) -> float:
        ends = [
            queue.definition.expires_after + queue.idle_since - time.monotonic()
            for queue in self._manager.queues.values()
            if not queue.definition.durable and not queue.has_consumers
        ]
        return min(ends, default=float("inf"))

    def _tidy(self) -> None:
        self._manager.spawn(self._tidy_all())

    async def _tidy_all(self) -> None:
        manager = self._manager
        now = time.monotonic()
        for queue in list(manager.queues.values()):
            try:
                if manager.queues.get(queue.name) is not queue:
                    continue  # deleted meanwhile
                if queue.has_ended(now):
                    await manager.delete(queue.name)
                elif manager.serves(queue):
                    if manager.relays is not None and queue.is_made:
                        await queue.look()  # others have published to it
                    await enforce_retention(queue)
            except PenstockError as error:
                log.warning("a queue cannot be tidied", queue=queue.name, error=str(error))
            except Exception as error:  # of one queue; the others are tidied all the same, now and later
                log.exception("a queue cannot be tidied", queue=queue.name, error=repr(error))
        if not manager.is_closing:
            self._tidy_later()
