"""Two brokers on one Kafka and one Redis, as a cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from penstock.services.log_names import dispatch_group
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import read_state
from penstock.storage.log.kafka import KafkaLog
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.servers.redis_server import RedisServer
from tests.support.worlds.application import AppBroker, until

NODES = ("node-a", "node-b")
ALL = "tbmq.msg.all"
# A broker that was killed is a member until it has been silent for so long.
MEMBERS = {
    "cluster.heartbeat_interval": 0.5,
    "cluster.member_timeout": 3.0,
    "cluster.adopt_after": 3.0,
}


def start_node(
    directory: Path, node: str, kafka: KafkaCluster, redis: RedisServer, settings: Mapping[str, Any] | None = None
) -> AppBroker:
    own = {
        "server.node_id": node,
        "device.store": "redis",
        "redis.addresses": redis.address,
        "server.drain_seconds": 1,
        **MEMBERS,
        **(settings or {}),
    }
    return AppBroker(directory, "kafka", own, cluster=kafka)


def await_listening(broker: AppBroker) -> None:
    """The first start makes all topics, and the machine may be busy."""
    until(lambda: broker.process.poll() is not None or "sessions restored" in broker.log(), 120, "the broker's start")
    broker.wait_until_listening()


def await_dispatched(broker: AppBroker) -> None:
    """Until its dispatcher has done with all that is published by now, durably: a kill repeats nothing of it."""
    assert broker.cluster is not None
    admin = AdminClient({"bootstrap.servers": broker.cluster.bootstrap, "log_level": 0})
    group = dispatch_group(broker.settings["server.node_id"])
    places = [TopicPartition(ALL, number) for number in range(broker.settings["ingest.partitions"])]
    latest = admin.list_offsets({place: OffsetSpec.latest() for place in places}, request_timeout=30)
    ends = {place.partition: found.result().offset for place, found in latest.items()}

    def is_done() -> bool:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=30)
        committed = {place.partition: place.offset for place in asked[group].result().topic_partitions or ()}
        return all(committed.get(partition, 0) >= end for partition, end in ends.items())

    until(is_done, 60, f"{group} has committed {ends}")


def stored(broker: AppBroker, table: str) -> dict[bytes, bytes]:
    """What a broker that starts now would find in this table of the state store."""
    assert broker.cluster is not None
    settings = KafkaSettings(bootstrap_servers=broker.cluster.bootstrap, statistics_interval_ms=0)
    found: dict[bytes, bytes] = {}

    def take(key: bytes | None, value: bytes | None) -> None:
        found.pop(key or b"", None)
        if value is not None:
            found[key or b""] = value

    async def read() -> None:
        log = KafkaLog(settings)
        await log.start()
        try:
            await read_state(log, table, take)
        finally:
            await log.close()

    asyncio.run(read())
    return found


@contextlib.contextmanager
def running_cluster(directory: Path, settings: Mapping[str, Any] | None = None) -> Iterator[dict[str, AppBroker]]:
    """The brokers by name, when they know each other."""
    kafka = shared_cluster(1)
    forget_topics(kafka.bootstrap)
    redis = RedisServer()
    redis.start()
    brokers: dict[str, AppBroker] = {}
    try:
        for node in NODES:
            (directory / node).mkdir()
            brokers[node] = start_node(directory / node, node, kafka, redis, settings)
        for broker in brokers.values():
            await_listening(broker)
        yield brokers
    finally:
        for broker in brokers.values():
            if broker.is_alive:
                broker.stop()
        redis.stop()
        forget_topics(kafka.bootstrap)
