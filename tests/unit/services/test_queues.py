"""Producers, consumers and factories of the queues, on the memory log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services.consumer import QueueConsumer
from penstock.services.consumers import ConsumerOptions
from penstock.services.factory import NotOfThisService, QueueFactory
from penstock.services.messages import QueueMessage
from penstock.services.model import (
    CALCULATED_FIELDS,
    SYSTEM_TENANT,
    QueueKey,
    ServiceInfo,
    ServiceType,
    TopicPartitionInfo,
)
from penstock.services.packs.message import PackMessage
from penstock.services.producer import MessageTooLarge, ProducerStopped, QueueFull, QueueProducer
from penstock.services.service import HashPartitionService
from penstock.services.topic_creator import TopicCreator
from penstock.services.topics import default_queues, notification_bases
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Committed, LogError, OnAppended, TopicNotFound, TopicPartition
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.memory_log import with_memory_log

CORE, RULE_ENGINE = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE
TPI = TopicPartitionInfo("tb_core", partition=0)


def new_factory(log: MemoryLog, *types: ServiceType, service_id: str = "n1", prefix: str = "") -> QueueFactory:
    settings = ServiceSettings(prefix=prefix)
    me = ServiceInfo(service_id=service_id, service_types=frozenset(types))
    partitions = HashPartitionService(
        me,
        default_queues(settings),
        asyncio.get_running_loop(),
        prefix=prefix,
        notification_bases=notification_bases(settings),
    )
    partitions.start()
    return QueueFactory(log, settings, partitions)


def test_send_and_read_back_in_order() -> None:
    async def scenario(log: MemoryLog) -> None:
        producer = QueueProducer(log, "tb_core", "n1", TopicCreator(log, ServiceSettings()))
        results: list[LogError | None] = []
        sent = [QueueMessage(uuid4(), b"%d" % i, {"own": b"x"}) for i in range(100)]
        for message in sent:
            producer.send(TPI, message, results.append)
        assert producer.pending_bytes > 0
        await producer.stop()
        assert results == [None] * 100
        assert producer.pending_bytes == 0
        assert log.topics["tb_core.0"].config.properties["retention.ms"] == "604800000"
        consumer = QueueConsumer(log, "tb_core", "group", [TPI])
        consumer.subscribe()
        received = await consumer.poll()
        assert [(message.key, message.data) for message in received] == [(m.key, m.data) for m in sent]
        assert received[0].producer_id == "n1"
        assert received[0].headers["own"] == b"x"

    with_memory_log(scenario)


def test_one_pack_per_partition_and_iteration() -> None:
    async def scenario(log: MemoryLog) -> None:
        await log.admin.create("tb_core.0")
        await log.admin.create("tb_core.1")
        appended: list[tuple[str, int]] = []
        append = log.producer.append

        def note(topic: str, partition: int, pack: RecordPack, on_done: OnAppended | None = None) -> None:
            appended.append((topic, pack.count))
            append(topic, partition, pack, on_done)

        log.producer.append = note
        producer = QueueProducer(log, "tb_core", "n1")
        for i in range(50):
            producer.send(TopicPartitionInfo("tb_core", partition=i % 2), QueueMessage(uuid4(), b""))
        await producer.stop()
        assert appended == [("tb_core.0", 25), ("tb_core.1", 25)]

    with_memory_log(scenario)


def test_too_large_is_refused_at_send() -> None:
    async def scenario(log: MemoryLog) -> None:
        producer = QueueProducer(log, "tb_core", "n1", max_message_size=1_000)
        with pytest.raises(MessageTooLarge, match="larger than 1000"):
            producer.send(TPI, QueueMessage(uuid4(), bytes(1_001)))
        assert producer.pending_bytes == 0

    with_memory_log(scenario)


def test_a_full_producer_refuses_or_waits() -> None:
    async def scenario(log: MemoryLog) -> None:
        await log.admin.create("tb_core.0")
        producer = QueueProducer(log, "tb_core", "n1", max_message_size=1_000, max_pending_bytes=1_000)
        producer.send(TPI, QueueMessage("k", bytes(900)))
        producer.send(TPI, QueueMessage("k", bytes(900)))
        with pytest.raises(QueueFull):
            producer.send(TPI, QueueMessage("k", bytes(900)))
        await asyncio.wait_for(producer.send_and_wait(TPI, QueueMessage("k", bytes(900))), 30)

    with_memory_log(scenario)


def test_failures_reach_the_sender() -> None:
    async def scenario(log: MemoryLog) -> None:
        producer = QueueProducer(log, "tb_core", "n1")
        with pytest.raises(TopicNotFound):
            await producer.send_and_wait(TPI, QueueMessage("k", b""))
        creating = QueueProducer(log, "tb_core", "n1", TopicCreator(log, ServiceSettings()))
        await creating.send_and_wait(TPI, QueueMessage("k", b""))
        await log.admin.delete("tb_core.0")
        with pytest.raises(TopicNotFound):
            await creating.send_and_wait(TPI, QueueMessage("k", b""))
        await creating.send_and_wait(TPI, QueueMessage("k", b"created again"))
        await creating.stop()
        with pytest.raises(ProducerStopped):
            creating.send(TPI, QueueMessage("k", b""))

    with_memory_log(scenario)


def test_send_to_all_makes_correlated_copies() -> None:
    async def scenario(log: MemoryLog) -> None:
        infos = [TopicPartitionInfo("tb_core", partition=i) for i in (2, 0, 1)]
        producer = QueueProducer(log, "tb_core", "n1", TopicCreator(log, ServiceSettings()))
        message = QueueMessage(uuid4(), b"data")
        await producer.send_to_all(infos, message)
        consumer = QueueConsumer(log, "tb_core", "group")
        found = {}
        for info in infos:
            consumer.subscribe([info])
            (found[info.partition],) = await consumer.poll()
        assert found[2].key == message.key
        assert len({copy.key for copy in found.values()}) == 3
        assert len({copy.headers["correlationId"] for copy in found.values()}) == 1

    with_memory_log(scenario)


def test_an_undecodable_record_costs_its_batch_nothing() -> None:
    async def scenario(log: MemoryLog) -> None:
        await log.admin.create("tb_core.0")
        pack = RecordPack()
        for key in (b"a", None, b"b"):
            pack.append(b"x", key)
        await log.producer.send("tb_core.0", 0, pack)
        aside: list[str] = []
        consumer = QueueConsumer(
            log, "tb_core", "group", [TPI], on_undecodable=lambda fetched, error: aside.append(str(error))
        )
        consumer.subscribe()
        assert [message.key for message in await consumer.poll()] == ["a", "b"]
        assert (consumer.undecodable, aside) == (1, ["the record at offset 1 has no key"])

    with_memory_log(scenario)


def test_commit_unsubscribe_and_stop() -> None:
    async def scenario(log: MemoryLog) -> None:
        producer = QueueProducer(log, "tb_core", "n1", TopicCreator(log, ServiceSettings()))
        await producer.send_and_wait(TPI, QueueMessage("1", b""))
        consumer = QueueConsumer(log, "tb_core", "group", [TPI])
        assert await consumer.poll(timeout=0) == []
        consumer.subscribe()
        assert consumer.partitions == {TPI}
        assert len(await consumer.poll()) == 1
        await consumer.commit()
        await producer.send_and_wait(TPI, QueueMessage("2", b""))
        consumer.unsubscribe()
        assert await consumer.poll(timeout=0) == []
        consumer.subscribe([TPI])
        assert [message.key for message in await consumer.poll()] == ["2"]
        await consumer.stop()
        assert consumer.is_stopped
        assert await consumer.poll() == []
        again = QueueConsumer(log, "tb_core", "group", [TPI])
        again.subscribe()
        assert [message.key for message in await again.poll()] == ["2"]

    with_memory_log(scenario)


def test_two_internal_topics_in_one_consumer() -> None:
    """The original assigns per topic, and the last assignment wins."""

    async def scenario(log: MemoryLog) -> None:
        infos = [TopicPartitionInfo(topic, None, 1, True) for topic in ("edqs.events", "edqs.state")]
        producer = QueueProducer(log, "edqs.events", "n1", TopicCreator(log, ServiceSettings()))
        for info in infos:
            await producer.send_and_wait(info, QueueMessage(info.topic, b""))
        consumer = QueueConsumer(log, "edqs", "group", infos)
        consumer.subscribe()
        keys = [message.key for _ in range(2) for message in await consumer.poll(timeout=0.1)]
        assert sorted(keys) == ["edqs.events", "edqs.state"]

    with_memory_log(scenario)


def test_factory_of_a_core_talks_to_a_rule_engine() -> None:
    async def scenario(log: MemoryLog) -> None:
        core = new_factory(log, CORE, service_id="core-1", prefix="prod")
        rules = new_factory(log, RULE_ENGINE, service_id="re-1", prefix="prod")
        info = core.partitions.resolve(RULE_ENGINE, "", SYSTEM_TENANT, uuid4())
        await core.producer(RULE_ENGINE).send_and_wait(info, QueueMessage(uuid4(), b"to the queue"))
        consumer = rules.consumer(QueueKey(RULE_ENGINE))
        assert consumer.group == "prod.tb_rule_engine_main-consumer"
        consumer.subscribe()
        assert [message.data for message in await consumer.poll()] == [b"to the queue"]
        info = core.partitions.notifications(RULE_ENGINE, "re-1")
        await core.notifications_producer(RULE_ENGINE).send_and_wait(info, QueueMessage(uuid4(), b"to you"))
        notified = rules.notifications_consumer(RULE_ENGINE)
        notified.subscribe()
        assert notified.group == "prod.tb-rule-engine-notifications-node-re-1"
        assert [message.data for message in await notified.poll()] == [b"to you"]

    with_memory_log(scenario)


def test_factory_gives_one_partition_or_a_topic_of_the_table() -> None:
    async def scenario(log: MemoryLog) -> None:
        factory = new_factory(log, CORE)
        consumer = factory.consumer(QueueKey(CORE), 3)
        assert consumer.group == "tb_core_main-consumer-3"
        consumer.subscribe()
        assert {info.full_topic_name for info in consumer.partitions} == {"tb_core.3"}
        assert factory.topic_producer("tb_usage_stats").default_topic == "tb_usage_stats"

    with_memory_log(scenario)


def test_calculated_fields_are_a_queue_of_the_rule_engines() -> None:
    async def scenario(log: MemoryLog) -> None:
        core, engine = new_factory(log, CORE), new_factory(log, RULE_ENGINE, service_id="re-1")
        key = QueueKey(RULE_ENGINE, CALCULATED_FIELDS)
        processor = engine.processor(key, ignore)
        assert (processor.queue.topic, processor.queue.partitions) == ("tb_cf_event", 10)
        assert processor.queue.pack_seconds == 60.0
        entity = uuid4()
        info = core.partitions.resolve(RULE_ENGINE, CALCULATED_FIELDS, SYSTEM_TENANT, entity)
        await core.producer(RULE_ENGINE, CALCULATED_FIELDS).send_and_wait(info, QueueMessage(entity, b"x"))
        assert info.full_topic_name.startswith("tb_cf_event.")
        assert info in engine.partitions.my_partitions(key)
        assert log.watermarks(info.log_partition).end == 1

    with_memory_log(scenario)


def test_addresses_of_edges() -> None:
    async def scenario(log: MemoryLog) -> None:
        core = new_factory(log, CORE, service_id="core-1", prefix="p")
        tenant, edge = uuid4(), uuid4()
        assert core.edge_notifications("core-1").full_topic_name == "p.tb_edge.notifications.core-1"
        assert core.edge_notifications("core-1").my_partition
        info = core.edge_events(tenant, edge)
        assert info.full_topic_name == f"p.tb_edge_event.notifications.{tenant}.{edge}"
        producer = core.topic_producer("tb_edge_event.notifications")
        for place in (info, core.edge_notifications("core-2")):
            await producer.send_and_wait(place, QueueMessage(edge, b"x"))
            properties = (await log.admin.describe(place.full_topic_name)).properties
            assert properties["retention.ms"] == str(7 * 86_400_000)

    with_memory_log(scenario)


def test_request_channels() -> None:
    async def scenario(log: MemoryLog) -> None:
        asks = new_factory(log, RULE_ENGINE, service_id="re-1").requests("js")
        answers = new_factory(log, ServiceType.JS_EXECUTOR, service_id="js-1").responder("js")
        assert asks.request_topic == answers.request_topic == "js_eval.requests"
        assert asks.request_group == answers.request_group == "js_executor_js-requests-consumer"
        assert (asks.response_topic, asks.response_group) == ("js_eval.responses.re-1", "js_eval-responses-node-re-1")
        assert (asks.request_partitions, asks.limits.max_pending, asks.limits.timeout) == (30, 10_000, 10.0)
        assert (asks.service_id, asks.response_properties["retention.ms"]) == ("re-1", "86400000")
        edqs = new_factory(log, CORE).requests("edqs")
        assert (edqs.request_topic, edqs.limits.timeout) == ("edqs.requests", 20.0)

    with_memory_log(scenario)


async def ignore(message: PackMessage) -> None: ...


def test_messages_of_a_queue_are_handled_as_its_settings_say() -> None:
    """Main gives up what fails, SequentialByOriginator does not; both are counted."""

    async def scenario(log: MemoryLog) -> None:
        core = new_factory(log, CORE, service_id="core-1")
        rules = new_factory(log, RULE_ENGINE, service_id="re-1")
        handled: list[bytes] = []

        async def handler(message: PackMessage) -> None:
            if message.value.data == b"bad":
                raise ValueError("bad")
            handled.append(message.value.data)

        managers = []
        for queue in ("Main", "SequentialByOriginator"):
            key = QueueKey(RULE_ENGINE, queue)
            processor = rules.processor(key, handler)
            managers.append(rules.manager(key, processor.process, ConsumerOptions(stop_seconds=0.1)))
            managers[-1].update(rules.partitions.my_partitions(key))
            info = core.partitions.resolve(RULE_ENGINE, queue, SYSTEM_TENANT, "device")
            producer = core.producer(RULE_ENGINE, queue)
            for data in (b"bad", queue.encode()):
                await producer.send_and_wait(info, QueueMessage("device", data))
        await until(lambda: rules.counters()["pack_failed_Main"] == 1 and handled == [b"Main"])
        await until(lambda: rules.counters()["pack_retried_failed_SequentialByOriginator"] == 1)
        assert handled == [b"Main"]  # what is behind one that comes again waits for it
        await asyncio.gather(*(manager.stop() for manager in managers))

    with_memory_log(scenario)


def test_notifications_are_handled_in_the_order_of_each_originator() -> None:
    async def scenario(log: MemoryLog) -> None:
        core = new_factory(log, CORE, service_id="core-1")
        handled: list[bytes] = []
        failures = [OSError("not yet")]

        async def handler(message: PackMessage) -> None:
            if message.value.data == b"a1" and failures:
                raise failures.pop()
            handled.append(message.value.data)

        manager = core.notifications_manager(CORE, handler)
        here = core.partitions.notifications(CORE, "core-1")
        producer = core.notifications_producer(CORE)
        for data in (b"a1", b"b1", b"a2", b"b2"):
            producer.send(here, QueueMessage(data[:1], data))
        await producer.stop()
        manager.update([here])
        await until(lambda: len(handled) == 4)
        assert handled == [b"b1", b"b2", b"a1", b"a2"]
        assert core.counters()["pack_retried_failed_tb_core.notifications"] == 1
        group = TopicPartition("tb_core.notifications.core-1", 0)
        consumer = log.consumer("tb-core-notifications-node-core-1")
        await until_true(lambda: consumer.committed([group]), lambda found: found[group] == Committed(4))
        await manager.stop()

    with_memory_log(scenario)


async def until_true(ask: Callable[[], Awaitable[Any]], is_right: Callable[[Any], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_right(await ask()):  # noqa: ASYNC110 - the log has no event for commits
            await asyncio.sleep(0.005)


def test_a_factory_gives_only_what_its_service_needs() -> None:
    async def scenario(log: MemoryLog) -> None:
        transport = new_factory(log, ServiceType.TB_TRANSPORT)
        for ask in (
            lambda: transport.producer(ServiceType.TB_VC_EXECUTOR),
            lambda: transport.producer(CORE, "Unknown"),
            lambda: transport.consumer(QueueKey(CORE)),
            lambda: transport.manager(QueueKey(CORE), lambda packs: asyncio.sleep(0)),
            lambda: transport.notifications_consumer(CORE),
            lambda: transport.notifications_producer(ServiceType.TB_TRANSPORT),
            lambda: transport.requests("js"),
            lambda: transport.responder("transport-api"),
            lambda: transport.calls("sessions"),
            lambda: transport.processor(QueueKey(CORE), ignore),
            lambda: transport.notifications_manager(CORE, ignore),
        ):
            with pytest.raises(NotOfThisService, match="TB_TRANSPORT cannot"):
                ask()
        monolith = new_factory(log, *ServiceType)
        monolith.producer(ServiceType.TB_VC_EXECUTOR)
        monolith.responder("transport-api")

    with_memory_log(scenario)
