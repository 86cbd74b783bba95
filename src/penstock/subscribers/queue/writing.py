"""Definitions of queues in the state store: a queue is created or changed when its definition is stored, else not.

A store that reports an error may have stored the definition all the same, as when Kafka answers too late. The
definition of that name is then written again, as it is in this broker, until the store takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError
from penstock.storage.state.base import Change, StoreError
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.definitions import QueueDefinition, QueueError, check, encode
from penstock.subscribers.queue.names import topic_of
from penstock.subscribers.queue.queue import Queue

if TYPE_CHECKING:
    from penstock.subscribers.queue.following import Follower
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

AGAIN_SECONDS = 1.0
# For the turn, and again for the store: both together are less than a command waits for its answer.
PATIENCE_SECONDS = 20.0


class DefinitionWriter:
    """Creates and changes queues. `follower` reads definitions of other brokers; None: this broker is alone."""

    def __init__(self, manager: QueueManager, follower: Follower | None) -> None:
        self._manager = manager
        self._follower = follower
        self._unsure: set[str] = set()
        self.is_started = False
        """Before, definitions come from the settings file, and need not be stored when a call returns."""

    async def create(self, definition: QueueDefinition) -> Queue:
        """Raises QueueError and StoreError: there is no such queue then."""
        check(definition)
        manager, name = self._manager, definition.name
        async with self._turn_of(name, "created"):  # after the end of an earlier one
            self._check_free(name)
            manager.deletions.check_free(name)
            if len(manager.queues) >= manager.settings.max_queues:
                raise QueueError(f"there are {len(manager.queues)} queues, as many as durable_queues.max_queues allows")
            if definition.durable:
                await self._store(definition, "created")
                if name in manager.queues:
                    self._write_again(name)  # a client has used the name first
            self._check_free(name)
            queue = manager.open(definition)
        await manager.join_late(queue)
        return queue

    async def update(self, definition: QueueDefinition) -> None:
        """All of it, or nothing where it raises: QueueError, LogError, StoreError."""
        check(definition)
        manager, name = self._manager, definition.name
        async with self._turn_of(name, "changed"):
            queue = manager.find(name)
            before = queue.definition
            await queue.alter_log(definition)
            if definition.durable:
                try:
                    await self._store(definition, "changed")
                except StoreError:
                    with contextlib.suppress(LogError):
                        await queue.alter_log(before, altered_to=definition)
                    raise
            if manager.queues.get(name) is queue:
                manager.apply(queue, definition)

    async def store_mark(self, name: str, mark: bytes | None, changes: Sequence[Change] = ()) -> None:
        """The definition of a new queue, or of one that is being deleted, or none any more. Durable when this returns;
        raises StoreError: this call does not write it later."""
        try:
            await self._put(name, mark, changes)
        except StoreError:
            self._believe_the_store(name)
            raise

    async def _put(self, name: str, mark: bytes | None, changes: Sequence[Change] = ()) -> None:
        if self._follower is not None:
            self._follower.wrote(name, mark)
        await self._manager.state.store_now([*changes, (names.DEFINITIONS, name.encode(), mark)])

    def _believe_the_store(self, name: str) -> None:
        """If the store has what it has refused, it counts here as at all other brokers."""
        if self._follower is not None:
            self._follower.forget(name)

    def _check_free(self, name: str) -> None:
        if name in self._manager.queues:
            raise QueueError(f"there is a queue {name!r} already")

    @contextlib.asynccontextmanager
    async def _turn_of(self, name: str, verb: str) -> AsyncIterator[None]:
        turn = self._manager.turn_of(topic_of(name, self._manager.prefix))
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await turn.acquire()
        except TimeoutError:
            raise _refusal(name, verb, "an earlier change of it is not stored yet") from None
        try:
            yield
        finally:
            turn.release()

    async def _store(self, definition: QueueDefinition, verb: str) -> None:
        name, value = definition.name, encode(definition)
        if not self.is_started:
            if self._follower is not None:
                self._follower.wrote(name, value)
            self._manager.state.store([(names.DEFINITIONS, name.encode(), value)])
            return
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self._put(name, value)
        except (StoreError, TimeoutError) as error:
            self._write_again(name)
            cause = str(error) or f"no answer in {PATIENCE_SECONDS:g} s"
            raise _refusal(name, verb, f"its definition cannot be stored now: {cause}") from None

    def _write_again(self, name: str) -> None:
        """While there are other brokers, what the store has in the end counts for all of them: one of them may use the
        queue already, or may have written the name since."""
        if self._manager.has_others:
            self._believe_the_store(name)
        elif name not in self._unsure:
            self._unsure.add(name)
            self._manager.spawn(self._write_until_stored(name))

    async def _write_until_stored(self, name: str) -> None:
        manager = self._manager
        try:
            while True:
                await asyncio.sleep(AGAIN_SECONDS)
                if await self._write_once(name):
                    break
        finally:
            self._unsure.discard(name)
        log.info("definition written again after an error", queue=name, exists=name in manager.queues)

    async def _write_once(self, name: str) -> bool:
        manager = self._manager
        async with manager.turn_of(topic_of(name, manager.prefix)):
            if name in manager.deletions:
                return True  # the deletion writes it
            if manager.has_others:
                self._believe_the_store(name)
                return True
            queue = manager.queues.get(name)
            durable = queue if queue is not None and queue.definition.durable else None
            if durable is not None and not durable.is_stored:
                return True  # its first use writes it
            try:
                await self._put(name, None if durable is None else encode(durable.definition))
            except StoreError:
                return False
        return True


def _refusal(name: str, verb: str, cause: str) -> StoreError:
    return StoreError(f"the queue {name!r} was not {verb}: {cause}", "Try again later.")
