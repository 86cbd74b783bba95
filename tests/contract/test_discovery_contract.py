"""Membership through the log behaves the same over every provider: several members in one process on one log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services.discovery import LogDiscovery
from penstock.services.model import QueueKey, ServiceInfo, ServiceType
from penstock.services.service import HashPartitionService
from penstock.services.topics import default_queues
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Appended, Log, LogError, LogUnavailable
from tests.contract.providers import PROVIDERS, Provider
from tests.support.machine.waiting import until

# Time between heartbeats, and after how long a silent member is taken for dead.
TIMES = {"memory": (0.03, 0.2), "embedded": (0.05, 0.5), "kafka": (0.2, 2.0)}
LONG = 120.0  # nobody is missed within a test
CORE = ServiceType.TB_CORE
# What a cluster of three Kafka brokers adds is proven by the most important ones.
ONE_KAFKA = pytest.mark.parametrize("provider", [*TIMES], indirect=True)


@pytest.fixture(params=[*TIMES, "kafka-cluster"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


@ONE_KAFKA
@pytest.mark.parametrize("is_there", [False, True], ids=["new", "of an earlier version"])
def test_old_heartbeats_do_not_stay_for_a_week(provider: Provider, is_there: bool) -> None:
    """Kafka compacts complete segments only: those of this topic are small. What an operator has set stays."""

    async def run() -> None:
        async with provider.open() as log:
            cluster = Cluster(log, *TIMES[provider.name])
            if is_there:
                await log.admin.create(cluster.topic, 1, {"cleanup.policy": "compact", "segment.bytes": "20971520"})
            await cluster.leave(await cluster.join("a"))
            properties = (await log.admin.describe(cluster.topic)).properties
            assert properties == {
                "cleanup.policy": "compact",
                "segment.ms": "600000",
                "segment.bytes": "20971520" if is_there else "10485760",
                "min.cleanable.dirty.ratio": "0.1",
            }

    asyncio.run(run())


class Cluster:
    def __init__(self, log: Log, interval: float, timeout: float) -> None:
        self.log = log
        self.interval = interval
        self.timeout = timeout
        self.topic = f"members-{uuid.uuid4().hex[:12]}"
        self.lists: dict[str, list[list[str]]] = {}
        self.running: list[LogDiscovery] = []

    def member(self, info: ServiceInfo, timeout: float | None = None, **options: object) -> LogDiscovery:
        return LogDiscovery(
            self.log, info, self.topic, interval=self.interval, timeout=timeout or self.timeout, **options
        )

    async def join(self, name: str, **options: object) -> LogDiscovery:
        member = self.member(ServiceInfo(service_id=name, service_types=frozenset([CORE])), **options)
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
        member._tasks.cancel()


def with_cluster(provider: Provider, scenario: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with provider.open() as log:
            cluster = Cluster(log, *TIMES[provider.name])
            try:
                await scenario(cluster)
            finally:
                for member in list(cluster.running):
                    await cluster.leave(member)

    asyncio.run(run())


def ids(member: LogDiscovery) -> list[str]:
    return [other.service_id for other in member.others()]


def test_join_and_leave(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        # Who leaves says so: nobody waits until it is missed.
        a = await cluster.join("a", timeout=LONG)
        assert cluster.lists["a"] == [[]]
        b = await cluster.join("b", timeout=LONG)
        assert cluster.lists["b"] == [["a"]]
        c = await cluster.join("c", timeout=LONG)
        await until(lambda: ids(a) == ["b", "c"] and ids(b) == ["a", "c"] and ids(c) == ["a", "b"])
        await cluster.leave(b)
        await until(lambda: ids(a) == ["c"] and ids(c) == ["a"])
        assert cluster.lists["a"] == [[], ["b"], ["b", "c"], ["c"]]

    with_cluster(provider, scenario)


def test_who_dies_is_missed_after_the_timeout_and_expelled(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"])
        cluster.kill(b)
        killed = time.monotonic()
        await until(lambda: ids(a) == [])
        assert time.monotonic() - killed > cluster.timeout / 2
        # A member that joins later does not know it at all.
        await until(lambda: a._table.get("b") is None)
        c = await cluster.join("c")
        assert ids(c) == ["a"]
        assert c._table.get("b") is None

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_a_stale_record_is_not_a_member(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        old = await cluster.join("old", wall_clock=lambda: 1_000.0)
        cluster.kill(old)
        a = await cluster.join("a")
        assert cluster.lists["a"] == [[]]
        await until(lambda: a._table.get("old") is None)

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_restart_under_the_same_id(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"])
        for _ in range(10):
            cluster.kill(b)
            killed = time.monotonic()
            b = again = await cluster.join("b")
            if time.monotonic() - killed < cluster.timeout / 2:
                break
            # The machine is so busy that it may have been missed meanwhile.
            await until(lambda: ids(a) == ["b"])
            cluster.lists["a"][:] = [[], ["b"]]
        await asyncio.sleep(2 * cluster.timeout)
        assert cluster.lists["a"] == [[], ["b"]]
        assert ids(again) == ["a"]
        assert again.conflicts == 0

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_a_namesake_is_noticed(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, second = await cluster.join("a"), await cluster.join("a")
        await until(lambda: first.conflicts > 0 and second.conflicts > 0)

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_who_is_away_for_good_is_told_once(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        gone: list[tuple[str, str]] = []
        options = {"timeout": LONG, "forget_after": 0.1}
        a = await cluster.join("a", on_forgotten=lambda name: gone.append(("a", name)), **options)
        await cluster.join("b", on_forgotten=lambda name: gone.append(("b", name)), **options)
        c = await cluster.join("c")
        await until(lambda: ids(a) == ["b", "c"])
        await cluster.leave(c)
        await until(lambda: bool(gone))
        await asyncio.sleep(4 * cluster.interval)
        assert gone == [("a", "c")]

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_rubbish_in_the_topic_is_skipped(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a = await cluster.join("a")
        pack = RecordPack()
        pack.append(b"not json", b"x")
        pack.append(b"{}", b"y")
        await cluster.log.producer.send(cluster.topic, 0, pack)
        keyless = RecordPack()
        keyless.append(b"no key at all")
        if provider.name == "kafka":  # it takes none in a compacted topic
            with pytest.raises(LogError, match="INVALID_RECORD"):
                await cluster.log.producer.send(cluster.topic, 0, keyless)
        else:
            await cluster.log.producer.send(cluster.topic, 0, keyless)
        await cluster.join("b")
        await until(lambda: ids(a) == ["b"])

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_the_blind_keep_their_list_and_hold_nothing(provider: Provider) -> None:
    """The log is away for longer than the timeout: nobody reshuffles, and afterwards everybody is still there."""

    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await until(lambda: ids(a) == ["b"] and ids(b) == ["a"])
        await a.acquire(["p"])

        async def fail(topic: str, partition: int, pack: RecordPack) -> Appended:
            raise LogUnavailable("away")

        send, cluster.log.producer.send = cluster.log.producer.send, fail
        # Whoever was heard a little earlier than oneself must not be missed first.
        a._table.get("b").heard_at -= cluster.timeout / 5
        await asyncio.sleep(2 * cluster.timeout)
        assert not a.holds(["p"])
        cluster.log.producer.send = send
        await until(lambda: a.holds(["p"]))
        assert cluster.lists == {"a": [[], ["b"]], "b": [["a"]]}

    with_cluster(provider, scenario)


def test_claims_pass_on(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await a.acquire(["p0", "p1"])
        waiting = asyncio.create_task(b.acquire(["p0"]))
        await asyncio.sleep(3 * cluster.interval)
        assert not waiting.done()
        await a.release(["p0"])
        await asyncio.wait_for(waiting, 30)
        assert b.holds(["p0"])
        assert not a.holds(["p0"])
        assert a.holds(["p1"])

    with_cluster(provider, scenario)


def test_claims_of_the_dead_pass_on_after_the_timeout(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b = await cluster.join("a"), await cluster.join("b")
        await a.acquire(["p"])
        cluster.kill(a)
        await asyncio.wait_for(b.acquire(["p"]), 30)
        assert not (await cluster.join("c")).holds(["p"])
        assert b.holds(["p"])

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_an_expelled_member_learns_that_it_lost_its_claims(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a = await cluster.join("a")
        await a.acquire(["p"])
        b = await cluster.join("b")
        waiting = asyncio.create_task(b.acquire(["p"]))
        await asyncio.sleep(2 * cluster.interval)
        await b._write("a", None)
        await asyncio.wait_for(waiting, 30)
        await until(lambda: not a.holds(["p"]))
        await until(lambda: ids(b) == ["a"])

    with_cluster(provider, scenario)


@ONE_KAFKA
def test_a_cancelled_wait_gives_the_claim_up(provider: Provider) -> None:
    async def scenario(cluster: Cluster) -> None:
        a, b, c = [await cluster.join(name) for name in "abc"]
        await a.acquire(["p"])
        waiting = asyncio.create_task(b.acquire(["p"]))
        await asyncio.sleep(cluster.interval)
        waiting.cancel()
        await asyncio.sleep(2 * cluster.interval)
        await a.release(["p"])
        await asyncio.wait_for(c.acquire(["p"]), 30)

    with_cluster(provider, scenario)


@pytest.mark.parametrize(
    ("provider", "delay"),
    [("memory", 0.0), ("memory", 0.5), ("embedded", 0.5), ("kafka", 0.0), ("kafka-cluster", 0.0)],
    indirect=["provider"],
)
def test_partitions_follow_the_members(provider: Provider, delay: float) -> None:
    """Join, leave and restart, seen from the partition services on top."""

    async def scenario(cluster: Cluster) -> None:
        services: dict[str, HashPartitionService] = {}

        async def start(name: str) -> LogDiscovery:
            info = ServiceInfo(service_id=name, service_types=frozenset([CORE]))
            service = HashPartitionService(
                info, default_queues(ServiceSettings()), asyncio.get_running_loop(), recalculate_delay=delay
            )
            member = cluster.member(info)
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
            await until(lambda: shares() == [5, 5])
            await cluster.leave(b)
        del services["b"]
        await until(lambda: shares() == [10])

    with_cluster(provider, scenario)
