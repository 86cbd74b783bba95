"""The executable as a node of a cluster: its clients of Kafka and Redis, with a real Kafka and a real Redis."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from tests.support.brokers.executable import BUILD_SECONDS, SECONDS, Alone
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics, own_topics
from tests.support.servers.redis_server import RedisServer, own_redis
from tests.support.worlds.application import QUICK_KAFKA, until

# The first test builds it if it has to.
pytestmark = pytest.mark.timeout(BUILD_SECONDS + 240)

# Clients whose id begins with `app` are APPLICATIONs, all others are DEVICEs.
ACCESS = '[[types]]\ntype = "application"\nclients = ["app*"]\n\n[[rules]]\neffect = "allow"\ntopics = ["#"]\n'


@dataclass
class Subscriber:
    """paho's client with a session that outlives the connection; what it got, in order."""

    client_id: str
    received: list[int] = field(default_factory=list)
    had_a_session: bool = False
    _client: mqtt.Client | None = None

    def connect(self, port: int) -> None:
        subscribed = threading.Event()
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, self.client_id, protocol=mqtt.MQTTv5)

        def on_connect(_: mqtt.Client, __: Any, flags: mqtt.ConnectFlags, code: ReasonCode, ___: Any) -> None:
            assert not code.is_failure, code
            self.had_a_session = flags.session_present
            client.subscribe("demo/#", qos=1)

        client.on_connect = on_connect
        client.on_subscribe = lambda *_: subscribed.set()
        client.on_message = lambda _, __, message: self.received.append(int(message.payload))
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        client.connect("127.0.0.1", port, clean_start=False, properties=session)
        client.loop_start()
        self._client = client
        assert subscribed.wait(SECONDS)

    def disconnect(self) -> None:
        if self._client is not None:
            self._client.disconnect()
            self._client.loop_stop()
            self._client = None

    def first_received(self) -> list[int]:
        """Without what came again: QoS 1 is at least once."""
        return list(dict.fromkeys(self.received))


class Publisher:
    """paho's client; sends numbers with QoS 1 and knows which of them were acknowledged."""

    def __init__(self, port: int) -> None:
        self.refused: list[ReasonCode] = []
        self._sent: list[tuple[int, mqtt.MQTTMessageInfo]] = []
        connected = threading.Event()
        self._client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, "sender", protocol=mqtt.MQTTv5, reconnect_on_failure=False
        )
        self._client.on_connect = lambda *_: connected.set()
        self._client.on_publish = self._on_publish
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        assert connected.wait(SECONDS)

    def _on_publish(self, _: mqtt.Client, __: Any, ___: int, code: ReasonCode, ____: Any) -> None:
        if code.is_failure:
            self.refused.append(code)

    def send(self, numbers: range) -> None:
        self._sent += [(number, self._client.publish("demo/number", str(number), qos=1)) for number in numbers]

    def acknowledged(self) -> list[int]:
        assert not self.refused
        return [number for number, info in self._sent if info.is_published()]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """That of the session, with nothing of others in it, and nothing of ours afterwards."""
    cluster = shared_cluster(1)
    forget_topics(cluster.bootstrap)
    yield cluster
    forget_topics(cluster.bootstrap)


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with own_redis(is_durable=True) as server:
        yield server


@pytest.fixture
def subscribers() -> Iterator[list[Subscriber]]:
    both = [Subscriber("app-billing"), Subscriber("meter")]
    yield both
    for subscriber in both:
        subscriber.disconnect()


def numbers_in_the_log(alone: Alone, node: list[str]) -> set[int]:
    """As the executable itself shows them: what Kafka has."""
    topics = alone.run("log", "topics", *node)
    assert topics.returncode == 0, topics.stderr
    assert "tbmq.msg.all" in topics.stdout
    logged = alone.run("log", "read", "tbmq.msg.all", "--json", "--filter", "demo/number", *node)
    assert logged.returncode == 0, logged.stderr
    return {int(json.loads(line)["payload"]) for line in logged.stdout.splitlines()}


def test_nothing_is_lost_on_kafka_and_redis(
    kafka: KafkaCluster, alone: Alone, redis: RedisServer, subscribers: list[Subscriber]
) -> None:
    """An APPLICATION and a DEVICE get all that was acknowledged: while they are connected, and what came while they
    were away, over a kill -9 amid publishes and over an orderly restart."""
    (alone.directory / "acl.toml").write_text(ACCESS)
    settings = {
        "log.provider": "kafka",
        "kafka.bootstrap_servers": kafka.bootstrap,
        "device.store": "redis",
        "redis.addresses": redis.address,
        "access.acl_file": "acl.toml",
        "ingest.partitions": 4,
        **QUICK_KAFKA,
    }
    node = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]

    def all_have(numbers: list[int]) -> bool:
        return all(set(numbers) <= set(subscriber.received) for subscriber in subscribers)

    def missing() -> str:
        lost = {each.client_id: sorted(set(expected) - set(each.received)) for each in subscribers}
        return f"{lost} did not arrive\n{alone.log()[-4000:]}"

    port = alone.serve(*node)
    for subscriber in subscribers:
        subscriber.connect(port)
        assert not subscriber.had_a_session
    publisher = Publisher(port)
    publisher.send(range(100))
    expected = list(range(100))
    until(lambda: all_have(expected), SECONDS, missing)
    # Each is kept where its type says.
    assert "tbmq.msg.app." in " ".join(own_topics(kafka.bootstrap))
    for subscriber in subscribers:
        subscriber.disconnect()
    publisher.send(range(100, 200))
    until(lambda: len(publisher.acknowledged()) == 200, SECONDS, missing)
    assert "meter" in redis.cli("KEYS", "*")
    publisher.send(range(200, 2000))
    until(lambda: len(publisher.acknowledged()) > 200, SECONDS, missing)
    alone.kill()
    publisher.close()
    expected = publisher.acknowledged()
    acknowledged = {*expected, *range(2000, 2100)}

    port = alone.serve(*node)
    for subscriber in subscribers:
        subscriber.connect(port)
        assert subscriber.had_a_session, subscriber.client_id
    until(lambda: all_have(expected), SECONDS, missing)
    for subscriber in subscribers:
        first = subscriber.first_received()
        assert first == sorted(first), f"{subscriber.client_id}: out of order"
        subscriber.disconnect()
    publisher = Publisher(port)
    publisher.send(range(2000, 2100))
    until(lambda: len(publisher.acknowledged()) == 100, SECONDS, missing)
    publisher.close()
    assert alone.stop() == 0

    port = alone.serve(*node)
    expected = list(range(2000, 2100))
    for subscriber in subscribers:
        subscriber.received.clear()
        subscriber.connect(port)
    until(lambda: all_have(expected), SECONDS, missing)
    for subscriber in subscribers:
        assert subscriber.received == expected, f"{subscriber.client_id}: what it had acknowledged came again"
        subscriber.disconnect()
    assert alone.stop() == 0
    logged = numbers_in_the_log(alone, node)
    assert acknowledged <= logged, sorted(acknowledged - logged)
