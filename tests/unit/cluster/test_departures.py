"""Clients that are at another broker: two nodes on one log in memory, real sessions and connections at one of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.segment import RecordPack
from penstock.cluster.departures import Departures
from penstock.mqtt.refusals import disconnect
from penstock.services.node import ClusterNode
from penstock.sessions.registry import Opening, SessionRegistry
from penstock.storage.log.base import LogError
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.lanes import LaneClient
from tests.support.worlds.service_settings import services

SETTINGS = services(
    {
        "prefix": "p",
        "notifications": {"processing_strategy": {"retries": 3, "pause_between_retries": 0.01}},
        "changes": {"processing_strategy": {"retries": 3, "pause_between_retries": 0.01}},
    }
)
TOPIC = "p.tb_transport.notifications.node-a"
LATER = 10**12


class Applications:
    """Stands for the delivery to persistent clients: gives sessions away, after as many failures as it is told."""

    def __init__(self) -> None:
        self.failures = 0
        self.given: list[str] = []

    async def give_away(self, session: Session, remove: Callable[[], None]) -> dict[int, int]:
        await asyncio.sleep(0)
        if self.failures:
            self.failures -= 1
            raise LogError("the log is away")
        remove()
        self.given.append(session.client_id)
        return {}


class World:
    def __init__(self, log: MemoryLog) -> None:
        loop = asyncio.get_running_loop()
        self.log = log
        self.hub = Hub(loop)
        self.registry = SessionRegistry(self.hub, loop, disconnect=disconnect)
        self.applications = Applications()
        self.owners: dict[str, str] = {}
        self.claimed: set[str] = set()
        self.caught_up = 0
        self.written_later: dict[str, str] = {}
        self.nodes = {name: ClusterNode(log, SETTINGS, name, loop) for name in ("node-a", "node-b")}
        self.here, self.there = (self._make(name) for name in self.nodes)

    def _make(self, node: str) -> Departures:
        return Departures(
            self.nodes[node].queues,
            self.registry,
            self.applications,  # type: ignore[arg-type]
            node=node,
            owner_of=self.owners.get,
            catch_up=self._catch_up,
            is_claimed=self.claimed.__contains__,
        )

    async def _catch_up(self) -> None:
        self.caught_up += 1
        self.owners.update(self.written_later)

    def connect(self, client_id: str, expiry: int = 0) -> Session:
        self.here.came(client_id)
        session, _ = self.registry.open(Opening(client_id, None, True, expiry, None))
        client = LaneClient(self.hub, session, version=5)
        client.handler.on_closed = lambda *_: self.registry.leave(session, keep_will=True)
        return session

    def tell(self, client_id: str, at: int | None = None) -> None:
        """The other node does."""
        self.there.tell("node-a", client_id, time.time_ns() if at is None else at)

    @property
    def counters(self) -> dict[str, int]:
        return self.nodes["node-a"].counters()

    async def until_handled(self, count: int) -> None:
        """So many rounds without a failure."""
        name = "pack_rounds_successful_p.tb_transport.notifications"
        await until(lambda: self.counters[name] == count)


def in_world(work: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        world = World(log)
        for node in world.nodes.values():
            await node.start()
        world.here.start()
        try:
            await work(world)
        finally:
            await world.here.stop()
            await log.close()

    asyncio.run(run())


def test_a_session_that_ends_with_its_connection_goes_when_it_is_told() -> None:
    """[MQTT-3.1.4-3]: nothing else is written down of it."""

    async def work(world: World) -> None:
        connections = [world.connect(name).connection for name in ("c", "other")]
        world.tell("c")
        await until(lambda: world.registry.get("c") is None)
        assert not connections[0].is_open
        assert connections[1].is_open
        assert (world.there.told, world.here.lost) == (1, 1)
        properties = world.log.topics[TOPIC].config.properties
        assert properties["retention.ms"] == str(7 * 86_400_000)

    in_world(work)


def test_a_client_that_reconnects_while_its_session_goes_is_disconnected_again() -> None:
    """Its state is being stored meanwhile: it finds its session where that goes, and no connection is left without."""

    async def work(world: World) -> None:
        session = world.connect("c", expiry=600)
        world.owners["c"] = "node-b"
        stored = asyncio.Event()
        give_away = world.applications.give_away

        async def slowly(session: Session, remove: Callable[[], None]) -> dict[int, int]:
            await stored.wait()
            return await give_away(session, remove)

        world.applications.give_away = slowly  # type: ignore[method-assign]
        world.here.read("c", "node-b")
        await until(lambda: world.here.lost == 1)
        again, present = world.registry.open(Opening("c", None, False, 600, None))
        assert present
        assert again is session
        client = LaneClient(world.hub, session, version=5)
        client.handler.on_closed = lambda *_: world.registry.leave(session, keep_will=True)
        connection = session.connection
        stored.set()
        await until(lambda: world.registry.get("c") is None)
        assert not connection.is_open
        assert session.connection is None

    in_world(work)


def test_who_came_back_after_the_notice_stays() -> None:
    async def work(world: World) -> None:
        session = world.connect("c")
        world.tell("c", at=time.time_ns() - LATER)
        await world.until_handled(1)
        assert session.connection is not None
        assert session.connection.is_open
        assert world.registry.get("c") is session

    in_world(work)


def test_a_notice_waits_for_the_record_of_a_session_that_stays() -> None:
    """If the client went while the record names this node, the other one would lose the session again."""

    async def work(world: World) -> None:
        world.owners["c"] = "node-a"
        session = world.connect("c", expiry=100)
        world.tell("c")
        await until(lambda: world.caught_up >= 2)
        assert session.connection is not None
        world.owners["c"] = "node-b"
        await until(lambda: world.applications.given == ["c"])
        assert world.registry.get("c") is None
        assert world.counters["pack_retried_failed_p.tb_transport.notifications"] >= 1

    in_world(work)


def test_nothing_is_decided_while_the_client_is_about_to_come() -> None:
    async def work(world: World) -> None:
        world.connect("c")
        world.claimed.add("c")
        world.tell("c")
        await until(lambda: world.counters["pack_retried_failed_p.tb_transport.notifications"] >= 1)
        assert world.registry.get("c") is not None
        world.claimed.clear()
        await until(lambda: world.registry.get("c") is None)

    in_world(work)


def test_a_session_named_by_its_record_goes_though_the_log_fails_twice() -> None:
    async def work(world: World) -> None:
        for name in ("c", "d"):
            world.owners[name] = "node-b"
            world.connect(name, expiry=100)
        world.applications.failures = 2
        for name in ("c", "d"):
            world.here.read(name, "node-b")
        await until(lambda: sorted(world.applications.given) == ["c", "d"])
        counters = world.counters
        assert counters["pack_retried_failed_sessions"] == 2
        assert counters["pack_failed_sessions"] == 0

    in_world(work)


def test_who_wrote_last_keeps_the_client() -> None:
    """Two brokers that did not hear each other have it. The record of the other one is read before the own one, which
    is later: letting go, as the other does too, would leave nobody with the client."""

    async def work(world: World) -> None:
        session = world.connect("a", expiry=300)
        world.owners["a"] = "node-b"
        world.written_later["a"] = "node-a"
        world.here.read("a", "node-b")
        await until(lambda: world.caught_up > 0)
        await asyncio.sleep(0.05)
        assert world.registry.get("a") is session
        assert session.connection is not None
        assert world.here.lost == 0

    in_world(work)


def test_a_record_that_is_no_notice_is_set_aside() -> None:
    async def work(world: World) -> None:
        await until(lambda: TOPIC in world.log.topics)
        pack = RecordPack()
        pack.append(b"\xff\xff", b"c")
        pack.append(b"no key")
        await world.log.producer.send(TOPIC, 0, pack)
        world.connect("c")
        world.tell("c")
        await until(lambda: world.registry.get("c") is None)
        assert world.counters["pack_undecodable_p.tb_transport.notifications"] == 2

    in_world(work)


def test_of_very_many_clients_the_last_are_remembered(monkeypatch) -> None:
    """One that is forgotten connected before those that are not, so an older notice does not touch it."""
    monkeypatch.setattr("penstock.cluster.departures.MOST_REMEMBERED", 2)

    async def work(world: World) -> None:
        sessions = {name: world.connect(name) for name in "abc"}
        before = time.time_ns() - LATER
        for name in "abc":
            world.tell(name, at=before)
        await world.until_handled(1)
        assert all(session.connection is not None for session in sessions.values())
        world.tell("a")
        await until(lambda: world.registry.get("a") is None)

    in_world(work)
