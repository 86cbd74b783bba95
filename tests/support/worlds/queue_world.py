"""Durable queues with their logs and state in memory, and consumers without a network: what they claim, a test says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import uvloop

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock._ext.wire.packets import encode_publish_properties
from penstock.mqtt.queue_consumers import MqttConsumers, subscribe
from penstock.mqtt.refusals import disconnect
from penstock.sessions.registry import Opening, SessionRegistry
from penstock.settings.queues import DurableQueueSettings
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.queue.control import QueueControl
from penstock.subscribers.queue.definitions import QueueDefinition
from penstock.subscribers.queue.group import Group
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.queue import Queue

NOW = 1_700_000_000.0


class QueueWorld:
    """`control` has the time NOW; the manager has that of the machine."""

    def __init__(self, settings: DurableQueueSettings) -> None:
        loop = asyncio.get_running_loop()
        self.hub = Hub(loop)
        self.log = MemoryLog()
        self.store = MemoryStateStore()
        self.manager = QueueManager(
            self.hub, self.log, MemoryLog(), self.store, loop, settings=settings, lasting=MqttConsumers(self.hub.trie)
        )
        self.control = QueueControl(self.manager, clock=lambda: NOW)
        self._registry = SessionRegistry(self.hub, loop, disconnect=disconnect)
        self._numbers = itertools.count()

    @property
    def queues(self) -> dict[str, Queue]:
        return self.manager.queues

    async def fill(self, name: str, keys: list[str] | tuple[str, ...] = (), **definition: object) -> Queue:
        """A queue with a message for each key, whose payload is the key."""
        queue = await self.manager.create(QueueDefinition(name=name, **definition))  # type: ignore[arg-type]
        await queue.make()
        for key in keys:
            await queue.append(record_of(f"$queue/{name}/{key}", key.encode()))
        return queue

    async def join(self, queue: Queue, group: str, client_id: str = "", *, filter: str = "") -> Group:
        """The group, with one consumer more if there is a client."""
        if client_id:
            session = self.open_session(client_id)
            address = f"{queue.address}/{filter}" if filter else queue.address
            pairs = [("consumer-group", group)]
            assert await subscribe(self.manager, session, address, qos=1, properties=pairs) == 1
        return queue.group(group, filter)

    def open_session(self, client_id: str, *, lasts: bool = True) -> Session:
        return self._registry.open(Opening(client_id, None, False, 3600 if lasts else 0, None, 5))[0]

    def claim(self, group: Group, count: int) -> None:
        """The first consumer has the next so many messages."""
        number = group.members[0].core.number if group.members else 1
        for offset in range(group.cursor, group.cursor + count):
            group.core.pending.claim(offset, number, group.core.clock_ms + 30_000)
        group.queue.update_floor()


def in_world(work: Callable[[QueueWorld], Awaitable[None]], settings: DurableQueueSettings | None = None) -> None:
    async def run() -> None:
        world = QueueWorld(settings or DurableQueueSettings())
        await world.log.start()
        await world.manager.start()
        try:
            await work(world)
        finally:
            await world.manager.close()

    uvloop.run(run())


def record_of(
    topic: str,
    payload: bytes,
    *,
    pairs: list[tuple[str, str]] | None = None,
    timestamp: int = int(NOW * 1000),
    expires_at: int = 0,
) -> RecordPack:
    """A message as the broker logs it."""
    pack = RecordPack()
    props = encode_publish_properties(user_properties=pairs) if pairs else b""
    value = encode(topic, payload, 1, client_id="c", received_at=timestamp, expires_at=expires_at, props=props)
    pack.append(value, key=topic.encode(), timestamp=timestamp)
    return pack
