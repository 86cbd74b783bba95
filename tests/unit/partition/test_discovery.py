"""Membership through the log: several members in one process on one memory log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock._ext.segment import RecordPack
from penstock.logs.base import Appended, LogUnavailable
from penstock.logs.memory import MemoryLog
from penstock.partition.discovery import MEMBERS_TOPIC, LogDiscovery, SingleNode
from penstock.partition.model import QueueKey, ServiceInfo, ServiceType
from penstock.partition.service import HashPartitionService
from penstock.partition.settings import QueueSettings
from penstock.partition.topics import default_queues
from tests.support.waiting import until

INTERVAL, TIMEOUT = 0.03, 0.2
CORE = ServiceType.TB_CORE


class Cluster:
    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.lists: dict[str, list[list[str]]] = {}
        self.running: list[LogDiscovery] = []

    async def join(self, name: str, **options: object) -> LogDiscovery:
        info = ServiceInfo(service_id=name, service_types=frozenset([CORE]))
        member = LogDiscovery(self.log, info, interval=INTERVAL, timeout=TIMEOUT, **options)
        told = self.lists.setdefault(name, [])
        await member.start(lambda others: told.append([other.service_id for other in others]))
        self.running.append(member)
        return member

    async def leave(self, member: LogDiscovery) -> None:
        self.running.remove(member)
        await member.stop()

    def kill(self, member: LogDiscovery) -> None:
        """As kill -9: no farewell."""
        self.running.remove(member)
        for task in member._tasks:
            task.cancel()


def with_cluster(scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        cluster = Cluster(log)
        try:
            await scenario(cluster)
        finally:
            for member in list(cluster.running):
                await cluster.leave(member)
            await log.close()

    asyncio.run(run())


def ids(member: LogDiscovery) -> list[str]:
    return [other.service_id for other in member.others()]


def test_single_node() -> None:
    async def scenario() -> None:
        told: list[object] = []
        node = SingleNode()
        await node.start(told.append)
        await node.acquire(["p"])
        assert node.holds(["p"])
        await node.stop()
        assert told == [[]]

    asyncio.run(scenario())


def test_join_and_leave() -> None:
    async def scenario(cluster: Cluster) -> None:
        a = await cluster.join("a")
        assert cluster.lists["a"] == [[]]
        b = await cluster.join("b")
        assert cluster.lists["b"] == [["a"]]
        c = await cluster.join("c")
        await until(lambda: ids(a) == ["b", "c"] and ids(b) == ["a", "c"] and ids(c) == ["a", "b"])
        await cluster.leave(b)
        await until(lambda: ids(a) == ["c"] and ids(c) == ["a"], seconds=TIMEOUT)
        assert cluster.lists["a"] == [[], ["b"], ["b", "c"], ["c"]]

    with_cluster(scenario)


def test_who_dies_is_missed_after_the_timeout_and_expelled() -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"])
        cluster.kill(b)
        await asyncio.sleep(TIMEOUT / 2)
        assert ids(a) == ["b"]
        await until(lambda: ids(a) == [])
        # A member that joins later does not know it at all.
        await asyncio.sleep(2 * INTERVAL)
        c = await cluster.join("c")
        assert ids(c) == ["a"]
        assert c._table.get("b") is None

    with_cluster(scenario)


def test_a_stale_record_is_not_a_member() -> None:
    async def scenario(cluster: Cluster) -> None:
        old = await cluster.join("old", wall_clock=lambda: 1_000.0)
        cluster.kill(old)
        a = await cluster.join("a")
        assert cluster.lists["a"] == [[]]
        await until(lambda: a._table.get("old") is None)

    with_cluster(scenario)


def test_restart_under_the_same_id() -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"])
        cluster.kill(b)
        again = await cluster.join("b")
        await asyncio.sleep(2 * TIMEOUT)
        assert cluster.lists["a"] == [[], ["b"]]
        assert ids(again) == ["a"]
        assert again.conflicts == 0

    with_cluster(scenario)


def test_a_namesake_is_noticed() -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.join("a"), await cluster.join("a")
        await until(lambda: first.conflicts > 0 and second.conflicts > 0)

    with_cluster(scenario)


def test_who_is_away_for_good_is_told_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        gone: list[tuple[str, str]] = []
        a = await cluster.join("a", forget_after=0.1, on_forgotten=lambda name: gone.append(("a", name)))
        await cluster.join("b", forget_after=0.1, on_forgotten=lambda name: gone.append(("b", name)))
        c = await cluster.join("c")
        await until(lambda: ids(a) == ["b", "c"])
        await cluster.leave(c)
        await until(lambda: bool(gone))
        await asyncio.sleep(0.1)
        assert gone == [("a", "c")]

    with_cluster(scenario)


def test_rubbish_in_the_topic_is_skipped() -> None:
    async def scenario(cluster: Cluster) -> None:
        a = await cluster.join("a")
        pack = RecordPack()
        pack.append(b"not json", b"x")
        pack.append(b"{}", b"y")
        pack.append(b"no key at all")
        await cluster.log.producer.send(MEMBERS_TOPIC, 0, pack)
        await cluster.join("b")
        await until(lambda: ids(a) == ["b"])

    with_cluster(scenario)


def test_the_blind_keep_their_list_and_hold_nothing() -> None:
    """The log is away for longer than the timeout: nobody reshuffles, and afterwards everybody is still there."""

    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"] and ids(b) == ["a"])
        await a.acquire(["p"])

        async def fail(topic: str, partition: int, pack: RecordPack) -> Appended:
            raise LogUnavailable("away")

        send, cluster.log.producer.send = cluster.log.producer.send, fail
        await asyncio.sleep(2 * TIMEOUT)
        assert not a.holds(["p"])
        cluster.log.producer.send = send
        await until(lambda: a.holds(["p"]))
        assert cluster.lists == {"a": [[], ["b"]], "b": [["a"]]}

    with_cluster(scenario)


def test_claims_pass_on() -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await a.acquire(["p0", "p1"])
        waiting = asyncio.create_task(b.acquire(["p0"]))
        await asyncio.sleep(3 * INTERVAL)
        assert not waiting.done()
        await a.release(["p0"])
        await asyncio.wait_for(waiting, 30)
        assert b.holds(["p0"])
        assert not a.holds(["p0"])
        assert a.holds(["p1"])

    with_cluster(scenario)


def test_claims_of_the_dead_pass_on_after_the_timeout() -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await a.acquire(["p"])
        cluster.kill(a)
        await asyncio.wait_for(b.acquire(["p"]), 30)
        assert not (await cluster.join("c")).holds(["p"])
        assert b.holds(["p"])

    with_cluster(scenario)


def test_an_expelled_member_learns_that_it_lost_its_claims() -> None:
    async def scenario(cluster: Cluster) -> None:
        a = await cluster.join("a")
        await a.acquire(["p"])
        b = await cluster.join("b")
        waiting = asyncio.create_task(b.acquire(["p"]))
        await asyncio.sleep(2 * INTERVAL)
        await b._write("a", None)
        await asyncio.wait_for(waiting, 30)
        await until(lambda: not a.holds(["p"]))
        await until(lambda: ids(b) == ["a"])

    with_cluster(scenario)


def test_a_cancelled_wait_gives_the_claim_up() -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b, c = [await cluster.join(name) for name in "abc"]
        await a.acquire(["p"])
        waiting = asyncio.create_task(b.acquire(["p"]))
        await asyncio.sleep(INTERVAL)
        waiting.cancel()
        await asyncio.sleep(2 * INTERVAL)
        await a.release(["p"])
        await asyncio.wait_for(c.acquire(["p"]), 30)

    with_cluster(scenario)


def test_timeout_must_be_longer_than_the_interval() -> None:
    info = ServiceInfo(service_id="a", service_types=frozenset([CORE]))
    with pytest.raises(ValueError, match="more often"):
        LogDiscovery(MemoryLog(), info, interval=2, timeout=2)


@pytest.mark.parametrize("delay", [0.0, 0.5])
def test_partitions_follow_the_members(delay: float) -> None:
    """Join, leave and restart, seen from the partition services on top."""

    async def scenario(cluster: Cluster) -> None:
        services: dict[str, HashPartitionService] = {}

        async def start(name: str) -> LogDiscovery:
            info = ServiceInfo(service_id=name, service_types=frozenset([CORE]))
            service = HashPartitionService(
                info, default_queues(QueueSettings()), asyncio.get_running_loop(), recalculate_delay=delay
            )
            member = LogDiscovery(cluster.log, info, interval=INTERVAL, timeout=TIMEOUT)
            await member.start(service.members_changed)
            service.start(member.others())
            services[name] = service
            cluster.running.append(member)
            return member

        def shares() -> list[int]:
            return [len(service.my_partitions(QueueKey(CORE))) for service in services.values()]

        await start("a")
        b = await start("b")
        await until(lambda: shares() == [5, 5])
        await cluster.leave(b)
        if delay:
            b = await start("b")
            await asyncio.sleep(delay + 0.1)
            assert shares() == [5, 5]
            await cluster.leave(b)
        del services["b"]
        await until(lambda: shares() == [10])

    with_cluster(scenario)
