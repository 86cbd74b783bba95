"""Two brokers on one Kafka and one Redis, as a cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.support.application import AppBroker, until
from tests.support.kafka_cluster import KafkaCluster
from tests.support.kafka_fixtures import shared_cluster
from tests.support.kafka_topics import forget_topics
from tests.support.redis_server import RedisServer

NODES = ("node-a", "node-b")
# A broker that was killed is a member until it has been silent for so long.
MEMBERS = {
    "queue.cluster.heartbeat_interval": 0.5,
    "queue.cluster.member_timeout": 3.0,
    "queue.cluster.adopt_after": 3.0,
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
    until(lambda: broker.process.poll() is not None or "sessions restored" in broker.log(), 60, "the broker's start")
    broker.wait_until_listening()


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
