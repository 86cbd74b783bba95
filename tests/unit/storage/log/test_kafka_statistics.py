"""What librdkafka reports of its clients becomes counters, summed up by the kind of client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import confluent_kafka
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.core.metrics import describe
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.consumer import KafkaConsumer
from penstock.storage.log.kafka.settings import (
    LEAST_INTERVAL_MS,
    admin_config,
    consumer_config,
    producer_config,
)
from penstock.storage.log.kafka.statistics import ClientStatistics, Statistics, StatisticsByKind
from tests.support.machine.waiting import until
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.log_load import pack_of


@asynccontextmanager
async def opened(kafka: KafkaCluster, interval: int = 100) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, statistics_interval_ms=interval))
    await log.start()
    try:
        yield log
    finally:
        await log.close()


async def read(consumer: KafkaConsumer, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    async with asyncio.timeout(60):
        while len(values) < count:
            values += [record.value for fetched in await consumer.poll(count, 1.0) for record in fetched.pack]
    return values


def report(node: int = 1, **numbers: Any) -> str:
    """As librdkafka writes one, without what nobody looks at."""
    of_node = {"nodeid": node, "state": "UP", "txerrs": 0, "rtt": {"avg": 2_000, "p99": 9_000}}
    of_node |= {name: numbers.pop(name) for name in ("state", "txerrs", "waitresp_cnt", "rtt") if name in numbers}
    brokers = {"127.0.0.1:1/bootstrap": {"nodeid": -1, "state": "UP", "txerrs": 1_000}, "127.0.0.1:1/1": of_node}
    return json.dumps({"brokers": brokers, **numbers})


def test_of_the_producer(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka) as log:
            counters = log.counters()
            assert not [key for key in counters if key.startswith("kafka_brokers")]  # nothing was reported yet
            async with asyncio.timeout(60):
                # statistics come every 100 ms and may be older than what was sent last
                while not (counters.get("kafka_sent_records") and counters["kafka_rtt_avg_ms_producer"]):
                    await log.producer.send(topic, 0, pack_of(b"x", b"y"))
                    counters = log.counters()
            assert counters["appended_records"] >= 2
            assert counters["kafka_sent_records"] >= 2
            assert counters["kafka_brokers_known_producer"] == counters["kafka_brokers_up_producer"] == 1
            assert counters["kafka_queue_messages_producer"] >= 0
            assert counters["kafka_request_errors_producer"] >= 0  # what never happened is there as well

    uvloop.run(scenario())


def test_of_consumers_together_also_when_one_is_closed(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.producer.send(topic, 0, pack_of(*[b"record"] * 500))
            consumers = [log.consumer(""), log.consumer(f"{topic}-group")]
            consumers[0].assign([TopicPartition(topic, 0)])
            consumers[1].subscribe([topic])
            for consumer in consumers:
                assert len(await read(consumer, 500)) == 500
            async with asyncio.timeout(60):
                while log.counters().get("kafka_received_records", 0) < 1_000 or not log.counters()["kafka_rebalances"]:
                    for consumer in consumers:
                        await consumer.poll(1, 0.05)
            counters = log.counters()
            assert counters["kafka_received_bytes"] >= 1_000 * len(b"record")
            assert counters["kafka_brokers_known_consumer"] == counters["kafka_brokers_up_consumer"] == 1
            # a fetch waits for records at the broker: that is no answer time of Kafka's
            assert not [key for key in counters if key.startswith("kafka_rtt") and key.endswith("consumer")]
            for consumer in consumers:
                await consumer.close()
            assert log.counters()["kafka_received_records"] >= 1_000
            assert "kafka_brokers_up_consumer" not in log.counters()

    uvloop.run(scenario())


def test_of_clients_that_nobody_polls(kafka: KafkaCluster, topic: str) -> None:
    """They are polled for their reports, which would pile up in them otherwise."""

    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.admin.create(topic)
            asker = log.consumer("")
            await asker.watermarks(TopicPartition(topic, 0))
            await until(
                lambda: bool(
                    log.counters().get("kafka_brokers_up_consumer") and log.counters().get("kafka_brokers_up_admin")
                ),
                60,
            )
            # What it is given afterwards is read from the beginning: looking for reports has taken no record.
            await log.producer.send(topic, 0, pack_of(b"a", b"b"))
            asker.assign([TopicPartition(topic, 0)])
            asker.serve_callbacks()
            assert await read(asker, 2) == [b"a", b"b"]

    uvloop.run(scenario())


def test_none_are_asked_for_where_they_are_switched_off(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka, interval=0) as log:
            await log.producer.send(topic, 0, pack_of(b"x"))
            assert [key for key in log.counters() if key.startswith("kafka_")] == [
                "kafka_client_errors",
                "kafka_topics_recreated",
            ]

    uvloop.run(scenario())


def test_of_many_clients_there_is_one_line_for_each_kind() -> None:
    every = StatisticsByKind()
    take: list[Callable[[str], None]] = []
    for number in range(100):
        client = every.add(ClientStatistics("consumer"))
        take.append(client.begin())
        take[-1](report(number % 3, rxmsgs=10, replyq=2, waitresp_cnt=1, txerrs=1, cgrp={"rebalance_cnt": 1}))
    every.add(ClientStatistics("producer")).begin()(
        report(7, txmsgs=5, msg_cnt=3, state="DOWN", rtt={"avg": 1, "p99": 70_000})
    )
    take[0](report(0, rxmsgs=11, rtt={"avg": 1, "p99": 101_000}))
    counters = every.counters()
    assert counters["kafka_received_records"] == 99 * 10 + 11
    assert counters["kafka_rebalances"] == counters["kafka_request_errors_consumer"] == 99
    assert counters["kafka_requests_waiting_consumer"] == 99
    assert counters["kafka_brokers_known_consumer"] == counters["kafka_brokers_up_consumer"] == 3
    assert counters["kafka_rtt_p99_ms_producer"] == 70
    assert "kafka_rtt_p99_ms_consumer" not in counters
    assert counters["kafka_queue_messages_consumer"] == 99 * 2
    assert counters["kafka_brokers_up_producer"] == 0
    assert counters["kafka_sent_records"] == 5
    families = describe({f"log_{key}": number for key, number in counters.items()})
    labels = {label for family in families for label, _ in family.samples}
    assert labels == {"", "consumer", "producer"}
    assert not [family for family in families if family.meaning.help.startswith("The broker's")]  # all are documented


def test_counters_do_not_fall_when_a_client_is_replaced_or_closed() -> None:
    every = StatisticsByKind()
    client = every.add(ClientStatistics("consumer"))
    first = client.begin()
    first(report(rxmsgs=10))
    assert every.counters()["kafka_request_timeouts_consumer"] == 0
    second = client.begin()
    assert every.counters()["kafka_received_records"] == 10
    first(report(rxmsgs=99))  # the one that was replaced says good-bye
    second(report(rxmsgs=3))
    assert every.counters()["kafka_received_records"] == 13
    every.remove(client)
    assert every.counters()["kafka_received_records"] == 13
    assert "kafka_brokers_up_consumer" not in every.counters()


def test_what_is_no_report_changes_nothing() -> None:
    client = ClientStatistics("producer")
    take = client.begin()
    take(report(txmsgs=4))
    take("{")
    assert client.read()[0]["kafka_sent_records"] == 4


def test_the_partitions_of_a_report_are_cut_out(kafka: KafkaCluster, topic: str) -> None:
    """A real report, because the cut depends on how librdkafka writes it."""
    found: list[str] = []
    config = {"bootstrap.servers": kafka.bootstrap, "statistics.interval.ms": 100, "stats_cb": found.append}
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(topic, 1)])[topic].result(30)
    producer = confluent_kafka.Producer(config)
    producer.produce(topic, b"x")
    assert producer.flush(30) == 0
    consumer = confluent_kafka.Consumer({**config, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    assert consumer.poll(30) is not None
    found.clear()
    for client in (producer, consumer):
        before = len(found)
        while len(found) == before:
            client.poll(0.2)
    consumer.close()
    for text in found:
        whole = json.loads(text)
        assert topic in whole["topics"]
        del whole["topics"]
        before, partitions = text.split('"topics":{')
        cut = before + '"topics":{' + partitions.replace(f'"{topic}"', "this is no JSON any more")
        assert Statistics.parse(cut) == Statistics.parse(json.dumps(whole))


def test_clients_of_which_there_are_many_report_seldom() -> None:
    quick, usual, off = (KafkaSettings(statistics_interval_ms=interval) for interval in (10, 5_000, 0))
    for settings, expected in ((quick, LEAST_INTERVAL_MS), (usual, 5_000), (off, 0)):
        assert consumer_config(settings, "g", None, "earliest")["statistics.interval.ms"] == expected
        assert admin_config(settings)["statistics.interval.ms"] == expected
        assert producer_config(settings)["statistics.interval.ms"] == settings.statistics_interval_ms
