"""One broker's APPLICATION clients without sockets: the delivery over a memory log and a memory store, real clients'
packets in and out. A node may be dropped as a crash does, and another started on the same log and store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.dispatch.persistent_clients import PersistentClients
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Log
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.base import Change, OnStored
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.names import ApplicationNames
from tests.support.worlds.lanes import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient, Packet, record

INGEST = "tbmq.msg.all"
EXPIRY = 3_600
SECONDS = 60.0


class SlowStore(MemoryStateStore):
    """Keeps what it is given while `is_held`: nothing of it is durable."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.held: list[tuple[list[Change], OnStored | None]] = []

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        if self.is_held:
            self.held.append((list(changes), on_done))
        else:
            super().store(changes, on_done)

    def let_go(self) -> None:
        self.is_held = False
        held, self.held = self.held, []
        for changes, on_done in held:
            super().store(changes, on_done)


class Node:
    """Made by `running`."""

    def __init__(self, log: Log, state: MemoryStateStore, **settings: Any) -> None:
        self.log = log
        self.state = state
        self.settings = ApplicationSettings(**settings)
        self.loop = asyncio.get_running_loop()
        self.hub = Hub(self.loop)
        self.names = ApplicationNames()
        self.sessions: dict[str, Session] = {}
        self.clients: list[LaneClient] = []
        self.types: list[Session] = []
        self.applications = PersistentClients(
            self.hub,
            log,
            state,
            self.names,
            settings=self.settings,
            devices=None,
            ingest_topic=INGEST,
            dispatch_group="msg-all-consumer-group",
            scheduler=self.loop,
            end_session=self.end,
            on_type=self.types.append,
            connected_until=lambda client_id: 0,
        )
        self.delivery = self.applications.delivery

    async def start(self, sessions: Iterable[tuple[str, list[tuple[bytes, int, int]]]] = ()) -> None:
        """`sessions`: client ids and subscriptions of before the restart."""
        await self.applications.start()
        for client_id, subscriptions in sessions:
            session = self._new_session(client_id)
            session.since = 0  # it was there before anything that is in the log
            for topic_filter, options, identifier in subscriptions:
                self.hub.trie.subscribe(session, topic_filter, options, identifier)
        await self.applications.restore(list(self.sessions.values()))

    async def stop(self) -> None:
        await self.applications.stop()

    def _new_session(self, client_id: str) -> Session:
        session = self.sessions[client_id] = Session(self.hub, client_id)
        session.client_type = "application"
        session.expiry_interval = EXPIRY
        return session

    async def connect(
        self, client_id: str, *, version: int = 4, clean: bool = False, receive_maximum: int = 65_535
    ) -> LaneClient:
        """What handle_connect does with an APPLICATION client."""
        applications, session = self.applications, self.sessions.get(client_id)
        if applications.must_prepare(session, client_id, "application", EXPIRY, clean):
            await applications.prepare(session, client_id, "application", EXPIRY, clean)
        if session is not None and session.connection is not None:
            session.connection.shutdown("taken over")
        if session is not None and clean:
            self.end(session)
            session = None
        present = session is not None
        session = session or self._new_session(client_id)
        applications.opened(session, EXPIRY, present=present)
        client = LaneClient(self.hub, session, version=version, receive_maximum=receive_maximum)
        self.clients.append(client)
        applications.attached(session)
        return client

    def end(self, session: Session) -> None:
        self.sessions.pop(session.client_id, None)
        session.end()
        self.applications.ended(session)

    async def subscribe(self, client: LaneClient, topic_filter: bytes, options: int = 2, identifier: int = 0) -> None:
        session = client.session
        async with self.applications.sharing(self.delivery.unprepared(session, [topic_filter])):
            self.hub.trie.subscribe(session, topic_filter, options, identifier)
            self.delivery.subscribed(session, topic_filter, options, identifier)

    def unsubscribe(self, client: LaneClient, topic_filter: bytes) -> None:
        self.hub.trie.unsubscribe(client.session, topic_filter)
        self.delivery.unsubscribed(client.session, topic_filter)

    async def publish(self, topic: str, numbers: Iterable[int], *, qos: int = 1, partition: int = 0) -> None:
        """Into the log of all messages, as a client's messages get there."""
        pack = RecordPack()
        for number in numbers:
            pack.append(encode(topic, str(number).encode(), qos, received_at=now_ms()))
        await self.log.producer.send(INGEST, partition, pack)

    async def fill(self, topic: str, numbers: Iterable[int], *, qos: int = 1, partition: int = 0) -> None:
        """Into a client's topic at once."""
        pack = RecordPack()
        for number in numbers:
            pack.append(record(str(number).encode(), qos=qos))
        await self.log.producer.send(topic, partition, pack)

    async def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - parts without an event of their own
                await asyncio.sleep(0.005)


class Reader:
    """Answers everything a client gets as it should, unless told otherwise; remembers what came."""

    def __init__(self, client: LaneClient, *, says_nothing: bool = False) -> None:
        self.client = client
        self.says_nothing = says_nothing
        self.packets: list[Packet] = []
        self.numbers: list[int] = []

    def look(self) -> list[int]:
        for packet in self.client.take():
            self.packets.append(packet)
            if packet.kind == PUBLISH:
                self.numbers.append(int(packet.payload))
            if self.says_nothing:
                continue
            if packet.kind == PUBLISH and packet.qos:
                self.client.say(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id)
            elif packet.kind == PUBREL:
                self.client.say(PUBCOMP, packet.packet_id)
        return self.numbers

    async def until(self, count: int, seconds: float = SECONDS) -> list[int]:
        async with asyncio.timeout(seconds):
            while len(self.look()) < count:  # noqa: ASYNC110 - a client has no event for what comes
                await asyncio.sleep(0.005)
        return self.numbers

    async def rest(self, seconds: float = 0.1) -> list[int]:
        """Everything that comes within the time."""
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            self.look()
            await asyncio.sleep(0.01)
        return self.look()


def run(
    scenario: Callable[[Node], Awaitable[None]],
    *,
    log: MemoryLog | None = None,
    state: MemoryStateStore | None = None,
    partitions: int = 1,
    seconds: float = 60.0,
    **settings: Any,
) -> None:
    """A node and the scenario on a loop of their own."""

    async def main() -> None:
        memory = log or MemoryLog()
        await memory.start()
        await memory.admin.create(INGEST, partitions)
        node = Node(memory, state or MemoryStateStore(), **settings)
        try:
            async with asyncio.timeout(seconds):
                await node.start()
                await scenario(node)
        finally:
            await node.stop()
            await memory.close()

    asyncio.run(main())


async def restart(node: Node, **settings: Any) -> Node:
    """As after a crash: connections, lanes and whatever was not durable are gone; sessions come back."""
    known = [(name, node.hub.trie.subscriptions(session)) for name, session in node.sessions.items()]
    node.state.failure = "the process is dead"
    await node.stop()
    state = MemoryStateStore()
    state.tables = {table: dict(records) for table, records in node.state.tables.items()}
    other = Node(node.log, state, **settings)
    await other.start(known)
    return other
