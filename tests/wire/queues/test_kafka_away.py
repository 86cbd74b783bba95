"""A queue is used first while Kafka is unreachable or refuses its topic: it works as soon as Kafka does."""

import contextlib
import signal
import time

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.application import until
from tests.support.worlds.queues import QueueBroker, QueueClient, running_queue_broker

QUOTA_EXCEEDED = 0x97
AWAY = "the log cannot store messages now: publish it again later"
REPLICATED = {"name": "copies", "replication": {"enabled": True, "replication_factor": 3}, "limits": {"max_depth": 3}}


def refuse(client, topic, payload, seconds=60.0):
    packet_id = client.raw.send_publish(topic, payload, qos=1)
    answer = client.raw.expect(PacketType.PUBACK, seconds, packet_id=packet_id)
    assert answer.reason == QUOTA_EXCEEDED
    assert answer.properties["reason_string"] == AWAY


def accept(client, topic, payload, patience=60.0):
    """Kafka needs some time after a pause; a publish that meets it before is refused, and sent again."""
    deadline = time.monotonic() + patience
    while client.raw.publish(topic, payload, qos=1).reason:
        assert time.monotonic() < deadline, "still refused"


@pytest.fixture
def own_kafka(tmp_path):
    """A broker on a Kafka of its own, which a test may stop."""
    cluster = KafkaCluster(1).start()
    broker = QueueBroker(tmp_path, "kafka", queues=[{"name": "known"}, {"name": "late"}], cluster=cluster)
    try:
        broker.wait_until_listening()
        yield broker, cluster
        broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()
        cluster.stop()


@contextlib.contextmanager
def stopped(cluster):
    kafka = cluster.nodes[0].process
    kafka.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        kafka.send_signal(signal.SIGCONT)
    cluster.wait_until_ready()


def test_a_topic_that_kafka_refuses(tmp_path, connect):
    """One node cannot have three copies. Refused messages are not in the queue, and do not count."""
    with running_queue_broker(tmp_path, "kafka", queues=[{"name": "known"}, REPLICATED]) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/known", b"0")
        for number in range(5):
            refuse(client, "$queue/copies", b"%d" % number)
        found = broker.queue("copies")
        assert (found["depth"], found["tail"], found["refused"]) == (0, 0, 5)
        broker.command("queue", "update", "copies", "-o", "replication.enabled=false")
        for number in range(3):
            client.publish("$queue/copies", b"stored %d" % number)
        assert broker.queue("copies")["depth"] == 3
        client.consume("$queue/copies", "workers")
        client.take_and_ack(*(b"stored %d" % number for number in range(3)))
        client.close()


def test_a_queue_that_is_new_while_kafka_is_unreachable(own_kafka, connect):
    broker, cluster = own_kafka
    client = QueueClient(connect(V5, broker=broker, keep_alive=0))
    client.publish("$queue/known", b"0")
    with stopped(cluster):
        refuse(client, "$queue/late/a", b"refused", 120.0)
    accept(client, "$queue/late/a", b"stored")
    client.publish("$queue/late/b", b"stored too")
    assert broker.queue("late")["depth"] == 2
    client.consume("$queue/late", "workers")
    client.take_and_ack(b"stored", b"stored too")
    client.close()


def test_a_queue_that_an_operator_creates_while_kafka_is_unreachable(own_kafka, connect):
    """It is not there, in the broker or after a restart, also where Kafka has written its definition too late; the
    same for settings. A retry works."""
    broker, cluster = own_kafka
    client = QueueClient(connect(V5, broker=broker, keep_alive=0))
    client.publish("$queue/known", b"0")
    create = ("queue", "create", "made", "-o", "limits.max_depth=7")
    with stopped(cluster):
        for _ in range(2):
            assert "'made' was not created" in broker.command(*create, fails=1)
            assert broker.queue("made") is None
        assert "'known' was not changed" in broker.command("queue", "update", "known", "-o", "max_pending=7", fails=1)
        assert broker.queue("known")["definition"]["max_pending"] == 100_000
    until(lambda: broker.log().count("definition written again after an error") == 2)
    broker.kill()
    broker.restart()
    assert broker.queue("made") is None
    assert broker.queue("known")["definition"]["max_pending"] == 100_000
    broker.command(*create)
    client = QueueClient(connect(V5, broker=broker))
    client.publish("$queue/made", b"1")
    broker.kill()
    broker.restart()
    assert broker.queue("made")["definition"]["limits"]["max_depth"] == 7
    client = QueueClient(connect(V5, broker=broker))
    client.consume("$queue/made", "workers")
    client.take_and_ack(b"1")
