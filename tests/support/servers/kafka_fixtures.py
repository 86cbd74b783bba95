"""Kafka for the tests: one cluster of each size for the whole session, started when the first test asks for it."""

from __future__ import annotations

import atexit
import uuid

import pytest

from tests.support.servers.kafka_cluster import KafkaCluster

_RUNNING: dict[int, KafkaCluster] = {}


def shared_cluster(brokers: int) -> KafkaCluster:
    """Several conftest.py offer the fixtures below, so what is shared cannot be a fixture itself."""
    if brokers not in _RUNNING:
        cluster = KafkaCluster(brokers)
        atexit.register(cluster.stop)
        _RUNNING[brokers] = cluster.start()
    return _RUNNING[brokers]


def stop_cluster(brokers: int) -> None:
    """The next who asks for it gets a new one."""
    cluster = _RUNNING.pop(brokers, None)
    if cluster is not None:
        cluster.stop()
        atexit.unregister(cluster.stop)


@pytest.fixture
def kafka() -> KafkaCluster:
    """One broker."""
    return shared_cluster(1)


@pytest.fixture
def kafka_cluster() -> KafkaCluster:
    """Three brokers."""
    return shared_cluster(3)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
