"""Creates queues when a client publishes or subscribes to an unknown name.

`durable_queues.auto_create` says whether such a queue is durable, ephemeral, or refused. The definition of a durable
one is stored before its log is created, and therefore before the first publisher or consumer gets an answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._ext.hub.connection import QUEUE_LIMIT, QUEUE_OFF, answer_text
from penstock.core.logging import Throttled, get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.storage.log.base import LogUnavailable
from penstock.storage.state.base import StoreError
from penstock.subscribers.queue.definitions import QueueDefinition, encode, on_first_use
from penstock.subscribers.queue.names import is_dead_letters
from penstock.subscribers.queue.queue import Queue

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

NOT_HERE = 0  # no queue, and the publisher gets the general answer


class FirstUse:
    """Creates queues on first use, and counts them."""

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._names: set[str] = set()
        self._warnings = Throttled(log, interval=10.0)

    def opened(self, queue: Queue) -> None:
        """Count a queue that was opened, if it was created on first use."""
        if queue.definition.origin == "auto" and not is_dead_letters(queue.name):
            self._names.add(queue.name)

    def gone(self, queue: Queue) -> None:
        self._names.discard(queue.name)

    def make(self, name: str, configured: QueueDefinition | None) -> Queue | int:
        """Create the queue and return it, or the number of the answer (see `answer_text`) that says why not.
        `configured` is its definition in the settings, if an operator has deleted a configured queue."""
        manager = self._manager
        settings = manager.settings
        if is_dead_letters(name) or name in manager.deletions:
            return NOT_HERE
        if settings.auto_create == "off":
            return QUEUE_OFF
        if len(self._names) >= settings.max_auto_queues or len(manager.queues) >= settings.max_queues:
            self._warnings.warning(
                "queue not created: limit of automatically created queues reached",
                queue=name,
                created=len(self._names),
                queues=len(manager.queues),
            )
            return QUEUE_LIMIT
        queue = manager.open(configured or on_first_use(name, durable=settings.auto_create == "durable"))
        queue.is_stored = not queue.definition.durable
        if not manager.is_alone and queue.definition.durable:
            queue.is_current = False  # another node may have created it, too: read the stored state first
        manager.spawn(manager.join_late(queue))
        log.info("queue created on first use", queue=name, durable=queue.definition.durable)
        return queue

    def refused(self, answer: int) -> Refused:
        """Return the refusal for a consumer."""
        if answer == QUEUE_LIMIT:
            return Refused(Refusal.QUOTA_EXCEEDED, answer_text(QUEUE_LIMIT))
        if answer == QUEUE_OFF:
            return Refused(Refusal.NOT_FOUND, answer_text(QUEUE_OFF))
        return Refused(Refusal.QUOTA_EXCEEDED, "there is no such queue, and one cannot be created now")

    async def is_ready(self, queue: Queue) -> bool:
        """Store the definition if necessary and return whether it is durable: another node may serve the queue, and has
        to read it."""
        try:
            if not queue.is_stored:
                await self.store(queue)
        except LogUnavailable as error:
            log.warning("queue not created", queue=queue.name, error=str(error))
            return False
        return True

    async def store(self, queue: Queue) -> None:
        """Store the definition; it is durable when this returns. Raises LogError."""
        try:
            await self._manager.definitions.store_mark(queue.name, encode(queue.definition))
        except StoreError as error:
            raise LogUnavailable(f"the definition of the queue {queue.name!r} cannot be stored: {error}") from None
        queue.is_stored = True
