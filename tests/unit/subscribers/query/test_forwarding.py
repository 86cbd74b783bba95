"""Consumer groups of a cluster: two nodes on one log in memory, with everything real between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock.services.node import ClusterNode
from penstock.settings.cluster import ClusterSettings
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.topic import StateLog
from penstock.subscribers.query.groups.forwarding import ClusterCoordinator
from penstock.subscribers.query.making import Neighbours, make_service
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.service import DataService
from penstock_client import wire
from penstock_client.errors import AlreadyExists, BadRequest, NotAMember, NotFound, SqlError, StaleEpoch
from tests.support.worlds.datasub_world import ALICE, MemorySource, NoRows, Rules, numbers
from tests.support.worlds.service_settings import services

SETTINGS = services(prefix="p")
CLUSTER = ClusterSettings(heartbeat_interval=0.1, member_timeout=1.0)
TOPIC = 'CREATE TOPIC {} AS SELECT ts FROM "sensors/#"'


class Node:
    """A broker's part of it."""

    def __init__(self, log: MemoryLog, name: str, source: MemorySource) -> None:
        loop = asyncio.get_running_loop()
        self.name = name
        self.node = ClusterNode(log, SETTINGS, name, loop, cluster=CLUSTER)
        neighbours = Neighbours(log, self.node, name, "p")
        self.store = StateLog(log, topic_of=lambda table: f"p.{table}")
        self.fetcher = NoRows()
        parts = make_service(self.store, Rules(), source, self.fetcher, loop, neighbours=neighbours)
        self.service: DataService = parts.service
        self.counters = parts.counters

    async def start(self) -> None:
        await self.node.start()
        await self.node.joined(10)
        await self.service.start()

    async def kill(self) -> None:
        """Without a farewell to the cluster or to the groups."""
        assert self.node._by_log is not None
        self.node._by_log._tasks.cancel()
        await self.service.stop()

    async def join(self, group: str, *topics: str) -> wire.Assignment:
        answer = await self.service.handle(ALICE, "subscribe", wire.Subscribe(group, list(topics)))
        assert isinstance(answer, wire.Assignment)
        return answer

    async def ask(self, group: str, consumer: str, epoch: int = -1) -> wire.Assignment | None:
        answer = await self.service.handle(ALICE, "ask", wire.Ask(consumer, group, epoch))
        assert answer is None or isinstance(answer, wire.Assignment)
        return answer

    async def ready(self, group: str, consumer: str, partitions: int = 4) -> wire.Assignment:
        """As soon as it has so many."""
        async with asyncio.timeout(30):
            while True:
                answer = await self.ask(group, consumer)
                if answer is not None and answer.state == "ready" and len(answer.partitions) == partitions:
                    return answer
                await asyncio.sleep(0.05)

    async def committed(self, group: str, topic: str) -> list[int | None]:
        answer = await self.service.handle(ALICE, "committed", wire.Positions(group, [(topic, 0), (topic, 1)]))
        assert isinstance(answer, list)
        return answer


class Cluster:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.source = MemorySource()
        self.a, self.b = (Node(self.log, name, self.source) for name in ("node-a", "node-b"))
        self.alive = [self.a, self.b]

    def group_of(self, owner: Node) -> str:
        """A name that this node has."""
        return next(
            name for name in (f"g{number}" for number in range(1_000)) if self.a.node.owner_of(name) == owner.name
        )

    async def kill(self, node: Node) -> None:
        self.alive.remove(node)
        await node.kill()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not is_true():  # noqa: ASYNC110  # nothing tells of it
                await asyncio.sleep(0.02)


def in_cluster(work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        cluster = Cluster()
        await cluster.log.start()
        for node in cluster.alive:
            await node.start()
        await cluster.until(lambda: all(node.node.others() for node in cluster.alive))
        await cluster.until(lambda: cluster.a.node.owner_of("x") == cluster.b.node.owner_of("x") != "")
        await cluster.until(
            lambda: all(
                {node.node.owner_of(str(n)) for n in range(100)} == {"node-a", "node-b"} for node in cluster.alive
            )
        )
        try:
            await work(cluster)
        finally:
            for node in cluster.alive:
                await node.service.stop()
                await node.node.stop()
            await cluster.log.close()

    asyncio.run(run())


def test_members_at_both_nodes_are_one_group() -> None:
    async def work(cluster: Cluster) -> None:
        a, b = cluster.a, cluster.b
        group = cluster.group_of(b)
        await a.service.execute(TOPIC.format("hot"), ALICE)
        assert b.service.topic("hot") is None or b.service.topic("hot") == a.service.topic("hot")
        first = await a.join(group, "hot")
        second = await b.join(group, "hot")
        mine = await a.ready(group, first.consumer, 2)
        theirs = await b.ready(group, second.consumer, 2)
        assert sorted(numbers(mine) + numbers(theirs)) == [0, 1, 2, 3]
        assert (a.counters()["consumers"], b.counters()["consumers"]) == (0, 2)
        cluster.source.write(10)
        number, other = numbers(mine)[0], numbers(theirs)[0]
        commit = wire.Commit(first.consumer, group, mine.epoch, [("hot", number, 4)])
        await a.service.handle(ALICE, "commit", commit)
        asked = wire.Positions(group, [("hot", number)])
        assert await b.service.handle(ALICE, "committed", asked) == [4]
        assert await a.service.handle(ALICE, "committed", asked) == [4]
        with pytest.raises(StaleEpoch):
            await a.service.handle(ALICE, "commit", wire.Commit(first.consumer, group, mine.epoch, [("hot", other, 4)]))
        # Rows are read where the consumer is.
        await a.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, group, mine.epoch, "hot", number, 4))
        with pytest.raises(StaleEpoch):
            await a.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, group, mine.epoch, "hot", other, 4))
        with pytest.raises(StaleEpoch):
            await a.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, group, mine.epoch - 1, "hot", number, 4))
        with pytest.raises(NotAMember):
            await a.service.handle(ALICE, "fetch", wire.Fetch("nobody", group, mine.epoch, "hot", number, 4))
        for node in (a, b):
            assert len((await node.service.execute("SHOW CONSUMERS", ALICE)).rows) == 2
            assert len((await node.service.execute("SHOW SUBSCRIPTIONS", ALICE)).rows) == 4
        await a.service.handle(ALICE, "leave", wire.Leave(first.consumer, group))
        await b.ready(group, second.consumer, 4)
        with pytest.raises(NotAMember):
            await a.ask(group, first.consumer)

    in_cluster(work)


def test_the_catalogue_is_the_same_everywhere() -> None:
    async def work(cluster: Cluster) -> None:
        a, b = cluster.a, cluster.b
        for node, name in ((a, "one"), (b, "two")):
            await node.service.execute(TOPIC.format(name), ALICE)
            shown = await node.service.execute("SHOW TOPICS", ALICE)
            assert name in [row[0] for row in shown.rows]  # what a node has answered it shows
            await cluster.until(lambda name=name: all(each.service.topic(name) for each in (a, b)))  # type: ignore[misc]
        with pytest.raises(AlreadyExists):
            await b.service.execute(TOPIC.format("one"), ALICE)
        for node in (a, b):
            with pytest.raises(SqlError) as caught:
                await node.service.execute("CREATE TOPIC t AS SELECT count(*) FROM x", ALICE)
            assert caught.value.column > 1
            with pytest.raises(NotFound, match="nothing"):
                await node.join("g", "nothing")
        group = cluster.group_of(a)
        joined = await b.join(group, "one", "two")
        ready = await b.ready(group, joined.consumer, 8)
        with pytest.raises(BadRequest, match="FORCE"):
            await b.service.execute("DROP TOPIC one", ALICE)
        b.fetcher.woken.clear()
        await b.service.execute("DROP TOPIC FORCE one", ALICE)
        # The group's coordinator is elsewhere; what is parked here is answered all the same, before anybody asks.
        assert (group, joined.consumer) in b.fetcher.woken
        told = await b.ready(group, joined.consumer)
        assert told.refused == {"one": "topic one was dropped"}
        b.fetcher.woken.clear()
        await a.service.execute('RELOAD TOPIC two AS SELECT qos FROM "sensors/#"', ALICE)
        await cluster.until(lambda: b.service.topic("two").schema == [("qos", 2)])  # type: ignore[union-attr]
        assert (group, joined.consumer) in b.fetcher.woken
        again = await b.ask(group, joined.consumer, told.epoch)
        assert again is not None
        assert again.epoch > told.epoch > ready.epoch
        await b.service.execute("REVOKE SUBSCRIBE ON two FROM bob", ALICE)
        with pytest.raises(Exception, match="may not subscribe"):
            await a.service.handle(Identity(user="bob"), "subscribe", wire.Subscribe(group, ["two"]))
        await b.service.execute(f"DROP CONSUMER GROUP FORCE {group} ON two", ALICE)
        gone = await b.ask(group, joined.consumer, again.epoch)
        assert gone is not None
        assert set(gone.refused) == {"one", "two"}

    in_cluster(work)


def test_an_heir_goes_on_where_the_group_was() -> None:
    """The owner dies; the consumer, connected to the other node, sees no error and loses no commit."""

    async def work(cluster: Cluster) -> None:
        a, b = cluster.a, cluster.b
        group = cluster.group_of(b)
        await a.service.execute(TOPIC.format("hot"), ALICE)
        cluster.source.write(10)
        joined = await a.join(group, "hot")
        ready = await a.ready(group, joined.consumer)
        commit = wire.Commit(joined.consumer, group, ready.epoch, [("hot", 0, 4)])
        await a.service.handle(ALICE, "commit", commit)
        cluster.source.write(10)
        await cluster.kill(b)
        again = await a.ready(group, joined.consumer)
        async with asyncio.timeout(30):
            while again.epoch == ready.epoch:
                again = await a.ready(group, joined.consumer)
        assert again.consumer == joined.consumer
        assert again.epoch > ready.epoch
        assert [each.offset for each in again.partitions] == [4, 10, 10, 10]
        assert a.counters()["consumers"] == 1
        with pytest.raises(StaleEpoch):
            await a.service.handle(ALICE, "commit", commit)
        commit.epoch = again.epoch
        await a.service.handle(ALICE, "commit", commit)
        assert await a.committed(group, "hot") == [4, None]

    in_cluster(work)


def test_a_commit_of_a_former_coordinator_is_overruled() -> None:
    """A node that was cut off and does not know it yet writes to the store: the owner's word comes last."""

    async def work(cluster: Cluster) -> None:
        a, b = cluster.a, cluster.b
        group = cluster.group_of(b)
        await a.service.execute(TOPIC.format("hot"), ALICE)
        cluster.source.write(10)
        assert isinstance(a.service.coordinator, ClusterCoordinator)
        # The former one, from before b had the group.
        old = a.service.coordinator._local._book
        old.open(group)
        await asyncio.sleep(0.01)
        joined = await b.join(group, "hot")
        ready = await b.ready(group, joined.consumer)
        commit = wire.Commit(joined.consumer, group, ready.epoch, [("hot", 0, 8), ("hot", 1, 8)])
        await b.service.handle(ALICE, "commit", commit)
        await old.commit(group, [("hot", 0, 2)], lambda: None)
        old.close(group)
        await cluster.until(lambda: old.of(group, "hot").committed == {0: 8, 1: 8})
        assert await b.committed(group, "hot") == [8, 8]

    in_cluster(work)
