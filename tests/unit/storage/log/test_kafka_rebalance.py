"""Members come and go under load: nothing is lost, and no partition has two who process it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

import confluent_kafka
import pytest
import uvloop

from penstock.storage.log.base import Committed, LogError, LogUnavailable, TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.consumer import KafkaConsumer
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_features import upgrade_feature
from tests.support.worlds.log_load import Load, pack_of

PARTITIONS = 6


class Shared:
    """What all members see: who owns what, and how often each record was processed."""

    def __init__(self) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.processed: Counter[tuple[int, int]] = Counter()
        self.by_member: Counter[str] = Counter()
        self.violations: list[str] = []


class Member:
    def __init__(self, log: KafkaLog, name: str, topic: str, shared: Shared, instance_id: str | None = None) -> None:
        self.name = name
        self._shared = shared
        self._consumer = log.consumer(f"group-{topic}", instance_id=instance_id)
        self._consumer.subscribe([topic], self._on_assigned, self._on_revoked)
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def partitions(self) -> list[TopicPartition]:
        if self._task.done():
            self._task.result()
        return self._consumer.assignment()

    async def leave(self) -> None:
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        await self._consumer.close()

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            if partition in self._shared.owners:
                self._shared.violations.append(f"{partition} has {self._shared.owners[partition]} and {self.name}")
            self._shared.owners[partition] = self.name

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            del self._shared.owners[partition]

    async def _run(self) -> None:
        while True:
            # A cancelled poll would leave its records with nobody; they are not committed, so the next owner has them.
            for fetched in await self._consumer.poll(200, 0.5):
                place = TopicPartition(fetched.topic, fetched.partition)
                if self._shared.owners.get(place) != self.name:
                    self._shared.violations.append(f"{self.name} got records of {place}")
                for record in fetched.pack:
                    self._shared.processed[fetched.partition, record.offset] += 1
                self._shared.by_member[self.name] += fetched.pack.count
                await asyncio.shield(self._consumer.commit({place: Committed(fetched.next_offset)}))


async def until(is_true: object, seconds: float = 60.0) -> None:
    assert callable(is_true)
    async with asyncio.timeout(seconds):
        while not is_true():  # noqa: ASYNC110 - the group's own pace
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_join_and_leave_under_load(kafka: KafkaCluster, topic: str, protocol: str) -> None:
    """With the protocol that Kafka 4 has for groups as well, if it is chosen."""
    if protocol == "consumer":
        upgrade_feature(kafka.bootstrap, "group.version", 1)

    async def scenario() -> None:
        settings = KafkaSettings(
            bootstrap_servers=kafka.bootstrap,
            topics={topic: f"partitions:{PARTITIONS}"},
            session_timeout_ms=6_000,
            heartbeat_interval_ms=300,
            consumer={"group.protocol": protocol},
        )
        log, other = KafkaLog(settings), KafkaLog(settings)
        await log.start()
        await other.start()
        shared = Shared()
        load = Load(log, topic, PARTITIONS, pause=0.01)
        await load.reach(500)
        first = Member(log, "first", topic, shared)
        await until(lambda: len(first.partitions) == PARTITIONS)
        second = Member(other, "second", topic, shared)
        await until(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2)
        await load.reach(1_000)
        await first.leave()
        await until(lambda: len(second.partitions) == PARTITIONS)
        third = Member(log, "third", topic, shared)
        await until(lambda: len(third.partitions) == PARTITIONS // 2)
        await load.reach(1_000)
        await load.stop()
        await until(lambda: set(load.values) <= set(shared.processed))
        assert shared.violations == []
        assert min(shared.by_member[name] for name in ("first", "second", "third")) > 0
        assert {place for place, times in shared.processed.items() if times > 1} == set()
        await second.leave()
        await third.leave()
        await log.close()
        await other.close()

    uvloop.run(scenario())


@pytest.mark.slow
def test_a_static_member_comes_back_to_its_partitions_without_a_rebalance(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        settings = KafkaSettings(
            bootstrap_servers=kafka.bootstrap,
            topics={topic: f"partitions:{PARTITIONS}"},
            session_timeout_ms=10_000,
            heartbeat_interval_ms=300,
        )
        log = KafkaLog(settings)
        await log.start()
        await log.admin.create(topic, PARTITIONS)
        shared = Shared()
        first = Member(log, "first", topic, shared, "node-1")
        second = Member(log, "second", topic, shared, "node-2")
        await until(lambda: len(first.partitions) == len(second.partitions) == PARTITIONS // 2)
        before = first.partitions, second.partitions
        await first.leave()
        await asyncio.sleep(1.5)
        assert second.partitions == before[1]
        first = Member(log, "first", topic, shared, "node-1")
        await until(lambda: len(first.partitions) == PARTITIONS // 2)
        assert (first.partitions, second.partitions) == before
        assert shared.violations == []
        await first.leave()
        await second.leave()
        await log.close()

    uvloop.run(scenario())


@pytest.mark.slow
def test_a_member_that_lost_its_place_for_good_joins_again(kafka: KafkaCluster, topic: str) -> None:
    """To librdkafka it is a fatal error that its place was given away, and it may have been itself that took it, when
    it joined anew after an outage."""

    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, heartbeat_interval_ms=300))
        await log.start()
        await log.admin.create(topic, 2)
        places = [TopicPartition(topic, number) for number in range(2)]
        told: list[str] = []
        member = log.consumer(f"group-{topic}", instance_id="node-1")
        member.subscribe(
            [topic], lambda given: told.append(f"+{len(given)}"), lambda gone: told.append(f"-{len(gone)}")
        )
        await read_until(member, lambda: member.assignment() == places)
        await asyncio.to_thread(take_place, kafka, topic)
        with pytest.raises(LogUnavailable, match="out"):
            await read_until(member, lambda: False)
        await log.producer.send(topic, 1, pack_of(b"to be read"))
        assert await read_until(member, lambda: member.assignment() == places) == [b"to be read"]
        await member.commit()
        assert told == ["+2", "-2", "+2"]
        await log.close()

    uvloop.run(scenario())


@pytest.mark.parametrize("patience", [30.0, 0.2])
def test_a_member_that_is_closed_in_the_middle_of_a_rebalance_leaves(
    kafka: KafkaCluster, topic: str, patience: float
) -> None:
    """librdkafka is in the call that the callback comes from: it cannot be closed before that is over. Who closes it
    may not have the patience for that; its thread ends all the same."""

    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap))
        await log.start()
        await log.admin.create(topic, 2)
        told: list[str] = []
        is_told = asyncio.Event()

        async def on_assigned(_: Sequence[TopicPartition]) -> None:
            is_told.set()
            await asyncio.sleep(0.5)
            told.append("assigned")

        member = log.consumer(f"group-{topic}")
        member.subscribe([topic], on_assigned, lambda _: told.append("revoked"))
        polling = asyncio.create_task(member.poll(10, 30))
        async with asyncio.timeout(30):
            await is_told.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await member.close()
        with pytest.raises(LogError, match="closed"):
            await polling
        await until(lambda: told == ["assigned", "revoked"])
        await until(lambda: all(one.name != f"kafka-consumer-group-{topic}" for one in threading.enumerate()))
        await log.close()

    uvloop.run(scenario())


def take_place(kafka: KafkaCluster, topic: str) -> None:
    """Another one under the same instance id comes and goes."""
    names = {"group.id": f"group-{topic}", "group.instance.id": "node-1"}
    strategy = {"partition.assignment.strategy": "cooperative-sticky"}
    other = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, **names, **strategy})
    other.subscribe([topic])
    deadline = time.monotonic() + 30
    while not other.assignment():
        assert time.monotonic() < deadline
        other.poll(0.05)
    other.close()


async def read_until(member: KafkaConsumer, is_true: Callable[[], bool]) -> list[bytes]:
    """Everything that it reads until then, and until nothing comes any more."""
    found: list[bytes] = []
    async with asyncio.timeout(60):
        while True:
            fetched = await member.poll(100, 0.5)
            found += [record.value or b"" for one in fetched for record in one.pack]
            if is_true() and not fetched:
                return found
