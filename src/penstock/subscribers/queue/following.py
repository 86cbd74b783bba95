"""Queues that other brokers of the cluster made, changed or deleted, and what their persistent clients consume: each
knows all of it a moment later."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from penstock._ext.record.segment import Record
from penstock.core.logging import get_logger
from penstock.services.node import ClusterNode
from penstock.services.packs.message import PackMessage
from penstock.services.packs.processor import Decoded
from penstock.storage.log.base import Log, LogError
from penstock.storage.state.topic_tail import StateTail
from penstock.subscribers.queue.definitions import Ending, QueueDefinition, decode, decode_ending
from penstock.subscribers.queue.state import DEFINITIONS, MEMBERS, MemberRecord, member_key

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

RETRY_SECONDS = 1.0


class Follower:
    """Reads the topics of definitions and members. A definition that this broker wrote itself comes back there, too,
    and is passed over."""

    def __init__(self, manager: QueueManager, log_provider: Log, node: ClusterNode, prefix: str) -> None:
        self._manager = manager
        reader = f"queues of {node.service_id}"
        self._tail = StateTail(log_provider, [DEFINITIONS, MEMBERS], reader, self._on_change, prefix=prefix)
        self._own: dict[str, bytes | None] = {}
        self._changes = node.queues.changes("queue-definitions", self._follow, _decode)

    def wrote(self, name: str, value: bytes | None) -> None:
        """Until it is read here, what others wrote before counts for nothing: this comes behind it."""
        self._own[name] = value

    def forget(self, name: str) -> None:
        """The store has refused what this broker wrote: if it is read all the same, it counts as any other change."""
        self._own.pop(name, None)

    async def run(self) -> None:
        """Returns when everything that is there has been read; changes come from then on."""
        while True:
            try:
                await self._tail.start()
                break
            except LogError as error:
                log.warning("queues of other nodes are not known yet", error=str(error))
                await self._tail.stop()
                await asyncio.sleep(RETRY_SECONDS)
        self._changes.start()

    async def stop(self) -> None:
        await self._changes.stop()
        await self._tail.stop()

    async def catch_up(self) -> None:
        """Everything is known that was durable before the call. Raises LogError."""
        await self._tail.catch_up()

    def member(self, client_id: str, topic_filter: str) -> MemberRecord | None:
        """What a persistent client asked for, wherever that was."""
        value = self._tail.get(MEMBERS, member_key(client_id, topic_filter))
        return None if value is None else msgspec.json.decode(value, type=MemberRecord)

    def _on_change(self, topic: str, key: bytes, value: bytes | None) -> None:
        if topic != DEFINITIONS:
            return
        name = key.decode()
        if name in self._own:
            if self._own[name] == value:
                del self._own[name]
            return
        self._changes.put(key, value)

    async def _follow(self, message: PackMessage) -> None:
        """One queue's changes come in their order; one that fails, since the log does, comes again."""
        name = str(message.originator)
        definition: QueueDefinition | Ending | None = message.value
        known = self._manager.queues.get(name)
        if name in self._own:
            return  # changed here meanwhile
        if isinstance(definition, Ending):
            self._manager.deletions.begun_elsewhere(name, definition.deleted_by)
        else:
            self._manager.deletions.over_elsewhere(name)
        if definition is None or isinstance(definition, Ending):
            if known is not None and known.definition.durable:
                log.info("a queue was deleted by another node", queue=name)
                for group in list(known.groups.values()) if known.is_current else ():
                    known.remove_group(group)  # who deleted it may not know them all
                await self._manager.forget(known)
            return
        if known is not None and known.definition.durable != definition.durable:
            log.warning("an ephemeral queue gives way to one that another node made", queue=name, messages=known.depth)
            await self._manager.forget(known)
            known = None
        if known is None or message.attempts > 1:
            log.info("a queue was made by another node", queue=name)
            await self._manager.adopt(definition)
        elif known.definition != definition:
            self._manager.apply(known, definition)


def _decode(record: Record) -> Decoded:
    """Raises QueueError for what a newer broker has written, say: that queue alone is not known here."""
    name = (record.key or b"").decode()
    return Decoded(None if record.value is None else decode_ending(record.value) or decode(record.value), name)
