"""The end of a queue: a mark that it ends, then its log, then what is stored of it. So a crash in between leaves a
deletion that goes on with the next start, never messages that would be in the next queue of this name; and until the
end of the end the name is taken."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.logging import get_logger
from penstock.storage.log.base import Log, LogError, TopicNotFound
from penstock.storage.state.base import Change, StoreError
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.definitions import Ending, QueueDefinition, QueueError, encode_ending
from penstock.subscribers.queue.names import topic_of
from penstock.subscribers.queue.queue import Queue
from penstock.subscribers.queue.state import StoredQueue

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

AGAIN_SECONDS = 5.0


@dataclass(slots=True, eq=False)
class _Ending:
    definition: QueueDefinition
    topic: str
    log: Log
    stored: Callable[[], list[Change]]
    """What is stored of its groups, as changes that remove it."""
    is_marked: bool = False
    is_given_up: bool = False
    """Another broker deletes it."""

    @property
    def name(self) -> str:
        return self.definition.name


class Deletions:
    """`node` is written to the marks: who has begun goes on with it, and nobody else. Two brokers would not know of
    each other when one of them is done and there is a new queue of this name."""

    def __init__(self, manager: QueueManager, node: str) -> None:
        self._manager = manager
        self._node = node
        self._under_way: dict[str, _Ending] = {}
        self._elsewhere: set[str] = set()
        self._wanted: dict[str, QueueDefinition] = {}

    def __contains__(self, name: str) -> bool:
        """Whether messages of an earlier queue of this name may still be there."""
        return name in self._under_way or name in self._elsewhere

    def check_free(self, name: str) -> None:
        if name in self:
            raise QueueError(
                f"a queue {name!r} is still being deleted, its log cannot be removed yet", "Try again in a moment."
            )

    def make_after(self, definition: QueueDefinition) -> None:
        """The configuration wants a new queue of a name that is still taken."""
        log.warning("a queue is made when the one of before is deleted", queue=definition.name)
        self._wanted[definition.name] = definition

    async def run(self, queue: Queue) -> bool:
        """In the turn of its topic. Whether it is gone; else that is tried again, and nobody need wait for it."""
        groups = list(queue.groups.values())
        state = self._manager.state
        state.save([group.core for group in groups])  # so that all that is stored of them is known
        ending = _Ending(
            queue.definition,
            queue.topic,
            queue.log,
            lambda: [change for group in groups for change in state.removal_of(group.core)],
        )
        if queue.definition.durable:
            # Before the name is free. An ephemeral one leaves nothing, and its log is in memory: who uses the name
            # meanwhile is not refused, the next one waits for the turn.
            self._under_way[queue.name] = ending
        await self._manager.forget(queue)
        return await self._begin(ending)

    async def resume(self, mark: Ending, stored: StoredQueue | None) -> None:
        """At the start, of a queue with the mark of this broker or another one."""
        definition = mark.definition
        name = definition.name
        if mark.deleted_by != self._node:
            self._elsewhere.add(name)
            log.warning("a queue is still being deleted by another broker", queue=name, node=mark.deleted_by)
            return
        log.info("the deletion of a queue goes on", queue=name)
        changes = names.removal_of_stored(name, stored or StoredQueue())
        topic = topic_of(name, self._manager.prefix)
        ending = self._under_way[name] = _Ending(definition, topic, self._manager.durable_log, lambda: changes, True)
        async with self._manager.turn_of(topic):
            await self._begin(ending)

    def begun_elsewhere(self, name: str, node: str) -> None:
        """Another broker deletes the queue. Its mark is the newer one: if both were told to, it is the other's work."""
        if node == self._node:
            return
        self._elsewhere.add(name)
        if (ending := self._under_way.pop(name, None)) is not None:
            ending.is_given_up = True

    def over_elsewhere(self, name: str) -> None:
        if name in self._elsewhere:
            self._elsewhere.discard(name)
            self._free(name)

    async def _begin(self, ending: _Ending) -> bool:
        is_gone = await self._try(ending)
        if not is_gone:
            if not ending.is_given_up:
                self._under_way[ending.name] = ending
            self._manager.spawn(self._run_later(ending))
        elif ending.definition.durable:
            self._free(ending.name)
        return is_gone

    async def _run_later(self, ending: _Ending) -> None:
        while not ending.is_given_up:
            await asyncio.sleep(AGAIN_SECONDS)
            async with self._manager.turn_of(ending.topic):
                if ending.is_given_up:
                    return
                if await self._try(ending):
                    self._free(ending.name)
                    return

    def _free(self, name: str) -> None:
        self._under_way.pop(name, None)
        self._manager.hub.queues.bindings.bump()  # publishers who were refused meanwhile would be for ever
        if (wanted := self._wanted.pop(name, None)) is not None:
            self._manager.spawn(self._make(wanted))  # later: it waits for the turn that the deletion still has

    async def _make(self, wanted: QueueDefinition) -> None:
        try:
            await self._manager.configure(wanted)
        except (QueueError, LogError, StoreError) as error:
            log.error("a queue of the configuration cannot be made", queue=wanted.name, error=str(error))

    async def _try(self, ending: _Ending) -> bool:
        try:
            await self._end(ending)
        except (LogError, StoreError) as error:
            what = "the log of a deleted queue cannot be removed yet, it is tried again"
            log.warning(what, queue=ending.name, error=str(error))
            return False
        return True

    async def _end(self, ending: _Ending) -> None:
        """Every step may be taken twice. Raises LogError and StoreError."""
        name, manager = ending.name, self._manager
        is_durable = ending.definition.durable
        if is_durable and not ending.is_marked:
            await manager.definitions.store_mark(name, encode_ending(ending.definition, self._node))
            ending.is_marked = True
        if ending.is_given_up:
            return
        with contextlib.suppress(TopicNotFound):  # nobody has used it yet
            await ending.log.admin.delete(ending.topic)
        if is_durable:
            kinds = (names.REMOVED, names.DEAD)
            changes: list[Change] = [(names.STATE, names.state_key(name, "", kind), None) for kind in kinds]
            await manager.definitions.store_mark(name, None, ending.stored() + changes)
