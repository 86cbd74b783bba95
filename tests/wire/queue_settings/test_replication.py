"""Replication of a queue comes from Kafka: factor and copies in sync per queue. Reference, section 12."""

import time

import pytest
from confluent_kafka.admin import AdminClient

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import NothingCame
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.worlds.queues import QueueBroker, QueueClient

pytestmark = [pytest.mark.slow, pytest.mark.skipif(IS_MOSQUITTO, reason="mosquitto has no durable queues")]

SAFE = {"enabled": True, "replication_factor": 3, "min_in_sync_replicas": 2}
QUEUES = [{"name": "safe", "replication": SAFE}, {"name": "plain"}]


@pytest.fixture
def cluster():
    """Three brokers of Kafka, all of them again afterwards."""
    found = shared_cluster(3)
    forget_topics(found.bootstrap)
    yield found
    found.wait_until_ready()


@pytest.fixture
def broker(cluster, tmp_path, request):
    started = QueueBroker(tmp_path, "kafka", queues=QUEUES, cluster=cluster)
    request.node.broker_logs = [(started, 0)]
    try:
        started.wait_until_listening()
        yield started
    finally:
        if started.is_alive:
            started.process.kill()
            started.process.wait()


def copies_of(cluster, topic):
    known = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(topic, timeout=60).topics[topic]
    return len(known.partitions[0].replicas)


@pytest.mark.timeout(180)
def test_never_a_success_without_the_copies_asked_for(cluster, broker, connect):
    """With one Kafka broker gone the queue goes on; with two gone nothing is acknowledged; nothing acknowledged is
    lost. The other queue has the one copy of the settings."""
    client = QueueClient(connect(V5, broker=broker))
    client.publish("$queue/safe", b"three")
    client.publish("$queue/plain", b"0")
    assert [copies_of(cluster, f"tbmq.queue.{name}") for name in ("safe", "plain")] == [3, 1]
    refused = broker.command("queue", "update", "plain", "-o", "replication.enabled=true", fails=1)
    assert "replication.factor 1, not 3" in refused
    try:
        cluster.kill(2)
        client.raw.send_publish("$queue/safe", b"two", qos=1)
        assert client.raw.receive(60).reason == 0
        cluster.kill(1)
        client.raw.send_publish("$queue/safe", b"one", qos=1)
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                answer = client.raw.receive(1)
            except NothingCame:
                continue
            assert answer.reason >= 0x80
    finally:
        for number in (1, 2):
            cluster.restart(number)
        cluster.wait_until_ready()
    consumer = QueueClient(connect(V5, broker=broker))
    consumer.consume("$queue/safe", "workers")
    assert [consumer.next(timeout=60).payload for _ in range(2)] == [b"three", b"two"]
