"""Queues of a cluster on every provider: members find each other, share the partitions, and lose nothing in between."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from penstock.services.consumers import ConsumerManager, ConsumerOptions
from penstock.services.discovery import LogDiscovery
from penstock.services.factory import QueueFactory
from penstock.services.messages import QueueMessage, decode_message
from penstock.services.model import (
    SYSTEM_TENANT,
    PartitionChange,
    QueueKey,
    ServiceInfo,
    ServiceType,
    TopicPartitionInfo,
)
from penstock.services.producer import MessageTooLarge, QueueProducer
from penstock.services.service import HashPartitionService
from penstock.services.topics import create_topics, default_queues, notification_bases
from penstock.settings.cluster import ClusterSettings
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Fetched, Log
from tests.contract.providers import PROVIDERS, Provider
from tests.support.machine.waiting import until
from tests.support.worlds.service_settings import services

CORE = ServiceType.TB_CORE
KEY = QueueKey(CORE)
PARTITIONS, ENTITIES, ROUNDS = 4, 20, 10
OPTIONS = ConsumerOptions(max_records=20, poll_seconds=0.5, retry_seconds=0.1)


@pytest.fixture(params=["memory", "embedded", "kafka"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


@dataclass
class Results:
    handled: dict[uuid.UUID, list[int]] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    run_twice: set[str] = field(default_factory=set)

    def has(self, entity: uuid.UUID, count: int) -> bool:
        return len(self.handled.get(entity, ())) >= count

    async def handle(self, packs: Sequence[Fetched]) -> None:
        topics = {fetched.topic for fetched in packs}
        self.run_twice |= topics & self.running
        self.running |= topics
        await asyncio.sleep(0.01)
        for fetched in packs:
            for record in fetched.pack:
                message = decode_message(record)
                self.handled.setdefault(message.key, []).append(int(message.data))
        self.running -= topics


class Node:
    """A core service as app.py would put it together."""

    def __init__(self, log: Log, settings: ServiceSettings, name: str, results: Results, patience: float) -> None:
        me = ServiceInfo(service_id=name, service_types=frozenset([CORE]))
        loop = asyncio.get_running_loop()
        self.partitions = HashPartitionService(
            me,
            default_queues(settings),
            loop,
            prefix=settings.prefix,
            notification_bases=notification_bases(settings),
        )
        topic = f"{settings.prefix}.{ClusterSettings().topic}"
        self.discovery = LogDiscovery(log, me, topic, interval=0.1, timeout=patience)
        self.factory = QueueFactory(log, settings, self.partitions, claims=self.discovery)
        self.manager: ConsumerManager = self.factory.manager(KEY, results.handle, OPTIONS)
        self.partitions.listen(PartitionChange, self.follow)

    def follow(self, event: PartitionChange) -> None:
        if KEY in event.partitions:
            self.manager.update(event.partitions[KEY])

    async def start(self) -> None:
        await self.discovery.start(self.partitions.members_changed)
        self.partitions.start(self.discovery.others())

    async def stop(self) -> None:
        await self.manager.stop()
        await self.discovery.stop()


async def scenario(log: Log, patience: float) -> None:
    prefix = f"q{uuid.uuid4().hex[:8]}"
    settings = services({"prefix": prefix, "core.partitions": PARTITIONS, "rule_engine.queues": []})
    results = Results()
    entities = [uuid.uuid4() for _ in range(ENTITIES)]
    first, second = (Node(log, settings, name, results, patience) for name in ("core-1", "core-2"))
    await first.start()
    producer = first.factory.producer(CORE)

    async def send_round(number: int) -> None:
        sends = [
            producer.send_and_wait(
                first.partitions.resolve(CORE, "", SYSTEM_TENANT, entity), QueueMessage(entity, b"%d" % number)
            )
            for entity in entities
        ]
        await asyncio.gather(*sends)

    for number in range(ROUNDS):
        await send_round(number)
        if number == 2:
            await second.start()
            await until(lambda: len(first.partitions.my_partitions(KEY)) == PARTITIONS / 2, patience)
        if number == 5:
            await until(lambda: len(second.manager.running()) == PARTITIONS / 2, patience)
            await second.stop()
    expected = {entity: list(range(ROUNDS)) for entity in entities}
    await until(lambda: sum(map(len, results.handled.values())) >= ENTITIES * ROUNDS, 3 * patience)
    await first.stop()
    await producer.stop()
    assert results.handled == expected
    assert not results.run_twice


def test_a_second_node_comes_and_goes_and_nothing_is_lost_or_out_of_order(provider: Provider) -> None:
    async def run() -> None:
        async with provider.open() as log:
            await scenario(log, provider.patience)

    asyncio.run(run())


def test_a_queue_whose_groups_become_of_another_kind_goes_on_where_it_was(provider: Provider) -> None:
    """One group for all partitions, then one for each, and back: nothing is handled twice, nothing is left out."""

    async def run() -> None:
        async with provider.open() as log:
            prefix = f"q{uuid.uuid4().hex[:8]}"
            settings = services({"prefix": prefix, "core.partitions": PARTITIONS, "rule_engine.queues": []})
            me = ServiceInfo(service_id="core-1", service_types=frozenset([CORE]))
            partitions = HashPartitionService(me, default_queues(settings), asyncio.get_running_loop(), prefix=prefix)
            partitions.start([])
            factory = QueueFactory(log, settings, partitions)
            producer, results, entity = factory.producer(CORE), Results(), uuid.uuid4()
            info = partitions.resolve(CORE, "", SYSTEM_TENANT, entity)
            for turn in range(4):
                for number in range(5 * turn, 5 * turn + 5):
                    await producer.send_and_wait(info, QueueMessage(entity, b"%d" % number))
                options = replace(OPTIONS, is_per_partition=turn % 2 == 1)
                manager = factory.manager(KEY, results.handle, options)
                manager.update(partitions.my_partitions(KEY))
                expected = list(range(5 * turn + 5))
                await until(partial(results.has, entity, len(expected)), provider.patience)
                await manager.stop()
                assert results.handled[entity] == expected
            await producer.stop()

    asyncio.run(run())


def test_a_message_that_the_log_does_not_take_costs_the_others_nothing(provider: Provider) -> None:
    """Those of one iteration of the loop are appended together: what the log would refuse must not be among them."""

    async def run() -> None:
        async with provider.open() as log:
            info = TopicPartitionInfo(f"q{uuid.uuid4().hex[:12]}", partition=0)
            await log.admin.create(info.full_topic_name, 1)
            producer = QueueProducer(log, info.topic, "core-1")
            messages = [QueueMessage(uuid.uuid4(), bytes(size)) for size in (5, 1_048_500, 5, 1_047_700, 5)]
            sends = [producer.send_and_wait(info, message) for message in messages]
            results = await asyncio.gather(*sends, return_exceptions=True)
            assert [results[index] for index in (0, 2, 3, 4)] == [None] * 4
            if provider.name == "kafka":
                assert isinstance(results[1], MessageTooLarge)
                assert "kafka.max_request_size" in str(results[1])
            else:
                assert results[1] is None
            await producer.stop()

    asyncio.run(run())


def test_all_topics_of_the_table_can_be_created(provider: Provider) -> None:
    async def run() -> None:
        async with provider.open() as log:
            settings = services(
                {
                    "prefix": f"t{uuid.uuid4().hex[:8]}",
                    **{f"{name}.partitions": 2 for name in ("core", "edge", "vc", "edqs", "tasks", "js")},
                    **{f"{name}.partitions": 2 for name in ("transport_api", "calculated_fields")},
                    "rule_engine.queues": [{"name": "Main", "topic": "main", "partitions": 2}],
                    "tasks.types": ["export"],
                }
            )
            names = await create_topics(log.admin, settings, {kind: ["n1"] for kind in ServiceType})
            assert set(names) <= set(await log.admin.list())
            described = await log.admin.describe(f"{settings.prefix}.edqs.state")
            assert described.partitions == 2
            assert described.properties["cleanup.policy"] == "compact"
            kept = await log.admin.describe(f"{settings.prefix}.tb_housekeeper.reprocessing")
            assert kept.properties["retention.ms"] == "7776000000"

    asyncio.run(run())
