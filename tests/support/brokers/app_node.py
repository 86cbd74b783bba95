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
from penstock.core.refusal import Refused
from penstock.dispatch.dispatcher import Dispatcher
from penstock.dispatch.moves import SessionMoves
from penstock.dispatch.persistent import PersistentDispatch
from penstock.dispatch.share_feeds import ShareFeeds
from penstock.dispatch.type_change import TypeChange
from penstock.services.housekeeper import Task, Use
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Log
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.base import Change, OnStored
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import Contexts
from penstock.subscribers.application.control import ApplicationControl, ApplicationOverview
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.application.subscriber import ApplicationSubscriber
from penstock.subscribers.base import Arrival
from penstock.subscribers.kinds import Kinds
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


class Others(Elsewhere):
    """Other nodes, as a test describes them."""

    def __init__(self) -> None:
        self.clients: set[str] = set()
        self.has_shares = False
        self.ask: Callable[[Task], Awaitable[Use]] | None = None
        self.groups: list[str] = []

    @property
    def is_alone(self) -> bool:  # type: ignore[override]  # asked each time
        return self.ask is None

    def has_session(self, client_id: str) -> bool:
        return client_id in self.clients

    def has_members(self, share_filter: bytes) -> bool:
        return self.has_shares

    def dispatch_groups(self) -> list[str]:
        return self.groups

    async def use_of(self, task: Task) -> Use:
        assert self.ask is not None
        return await self.ask(task)


class Applications:
    """The kinds of subscriber of a node that serve APPLICATION clients, asked as the front-ends do."""

    def __init__(self, node: Node) -> None:
        delivery, log = node.delivery, node.log
        self.dispatcher = Dispatcher(node.hub, log, INGEST, delivery.make_again, group="msg-all-consumer-group")
        self.overview = ApplicationOverview(delivery, log)
        self.control = ApplicationControl(self.overview, delivery, log, node.end)
        feeds = ShareFeeds(self.dispatcher, delivery.shared, log, INGEST, node.others)
        self.sharing = feeds.sharing
        persistent = PersistentDispatch(self.dispatcher)
        self.changes = TypeChange(
            node.hub,
            self.dispatcher,
            delivery=delivery,
            overview=self.overview,
            devices=None,
            on_type=node.types.append,
        )
        subscriber = ApplicationSubscriber(delivery, self.overview, self.dispatcher, feeds.sharing)
        self.kinds = Kinds([subscriber, persistent, self.changes])
        self.moves = SessionMoves(self.kinds, self.dispatcher, persistent, feeds, delivery.shared)

    async def start(self) -> None:
        for kind in self.kinds:
            await kind.start()

    async def stop(self) -> None:
        for kind in reversed(list(self.kinds)):
            await kind.stop()

    def must_prepare(self, session: Session | None, client_id: str, client_type: str, expiry: int, clean: bool) -> bool:
        return self.kinds.must_prepare(Arrival(client_id, client_type, expiry, clean), session)

    async def prepare(self, session: Session | None, client_id: str, client_type: str, expiry: int, clean: bool) -> str:
        return await self.kinds.prepare(Arrival(client_id, client_type, expiry, clean), session)

    def is_full(self, client_id: str, client_type: str, expiry: int) -> bool:
        try:
            self.kinds.check_arrival(Arrival(client_id, client_type, expiry, False))
        except Refused:
            return True
        return False

    def counters(self) -> dict[str, int | float]:
        return {name: value for kind in self.kinds for name, value in kind.counters().items()}


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
        self.others = Others()
        self.noted: list[tuple[str, str, str]] = []
        self.delivery = ApplicationDelivery(
            self.hub,
            log,
            Contexts(state, self.loop),
            self.names,
            self.settings,
            elsewhere=self.others,
            note=lambda *task: self.noted.append(task),
        )
        self.applications = Applications(self)
        self.kinds = self.applications.kinds

    async def start(self, sessions: Iterable[tuple[str, list[tuple[bytes, int, int]]]] = ()) -> None:
        """`sessions`: client ids and subscriptions of before the restart."""
        await self.applications.start()
        for client_id, subscriptions in sessions:
            session = self._new_session(client_id)
            session.since = 0  # it was there before anything that is in the log
            for topic_filter, options, identifier in subscriptions:
                self.hub.trie.subscribe(session, topic_filter, options, identifier)
        await self.kinds.restore(list(self.sessions.values()))

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
        self.kinds.opened(session, is_present=present)
        client = LaneClient(self.hub, session, version=version, receive_maximum=receive_maximum)
        self.clients.append(client)
        self.kinds.attached(session)
        return client

    def end(self, session: Session) -> None:
        self.sessions.pop(session.client_id, None)
        session.end()
        self.kinds.ended(session)

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
