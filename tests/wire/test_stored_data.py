"""The present code finds and delivers all data that the code of commit 79aea34 has stored.

tests/support/worlds/stored_data.py says how it was made. One broker is started on the files for each log; the tests
take what is theirs from it, each once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock_client import Admin, Consumer
from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType
from tests.support.clients.raw_client import RawClient, receive_from
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.servers.kafka_fixtures import shared_cluster
from tests.support.servers.kafka_topics import forget_topics
from tests.support.servers.redis_server import RedisServer, own_redis
from tests.support.worlds.application import persistent, until
from tests.support.worlds.datasub import read
from tests.support.worlds.stored_data import (
    FOREVER,
    LONG,
    SECRET,
    TAKEN_ID,
    StoredDataBroker,
    unpack_directory,
    unpack_servers,
)

ALICE = {"username": "alice", "password": SECRET.encode()}
# Rows of tbmq.msg.all that a publish wrote: every message above the `$` topics, retained ones and removals included.
LOGGED = 42


def _run(
    directory: Path, cluster: KafkaCluster | None = None, redis: RedisServer | None = None
) -> Iterator[StoredDataBroker]:
    broker = StoredDataBroker(directory, cluster, redis)
    try:
        broker.wait_until_listening()
        yield broker
        broker.stop()
    finally:
        if broker.is_alive:
            broker.process.kill()
            broker.process.wait()


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredDataBroker]:
    if IS_MOSQUITTO:
        pytest.skip("the data is Penstock's own")
    directory = tmp_path_factory.mktemp("stored")
    if request.param == "embedded":
        unpack_directory(directory)
        yield from _run(directory)
        return
    cluster = shared_cluster(1)
    forget_topics(cluster.bootstrap)
    with own_redis() as redis:
        unpack_servers(directory, cluster, redis)
        yield from _run(directory, cluster, redis)


def come_back(broker: StoredDataBroker, client_id: str, version: int = V5, **options: object) -> RawClient:
    """A client whose session must be there."""
    client = broker.client(version)
    assert client.connect(client_id, **persistent(version, FOREVER), **options).session_present
    return client


@pytest.mark.parametrize(("client_id", "kind", "identifier"), [("device1", "device", 7), ("app1", "application", 8)])
def test_messages_of_an_absent_client(broker: StoredDataBroker, client_id: str, kind: str, identifier: int) -> None:
    """In order, with their properties; the session belongs to the user who made it."""
    stranger = broker.client(V5)
    stranger.connect(client_id, reason=0x85, **persistent(V5, FOREVER))
    stranger.close()
    with come_back(broker, client_id, **ALICE) as client:
        for number in range(3):
            packet = client.expect_publish(f"{kind}/{number}", b"%s %d" % (kind.encode(), number), qos=1, ack=True)
            assert packet.properties["user_property"] == [("number", str(number))]
            assert packet.properties["correlation_data"] == b"\x00\xff"
            assert packet.properties["subscription_identifier"] == [identifier]
        client.expect_publish(f"{kind}/twice", b"exactly once", qos=2, ack=True)
        client.expect_publish(f"{kind}/long", LONG, qos=1, ack=True)
        if kind == "device":
            client.expect_publish("device/unreleased", b"unreleased", qos=2, ack=True)
            # Of a client that was connected until the end, and one whose delay has passed since.
            wills = [client.expect_publish(qos=1, ack=True, timeout=90) for _ in range(2)]
            assert {(will.topic, will.payload) for will in wills} == {
                ("wills/early", b"early"),
                ("wills/late", b"late"),
            }
        # its subscription is live as well
        client.publish(f"{kind}/new", b"new", qos=1)
        client.expect_publish(f"{kind}/new", b"new", qos=1, ack=True)


@pytest.mark.parametrize(("client_id", "topic"), [("device2", "half/device"), ("app2", "half/application")])
def test_messages_on_their_way(broker: StoredDataBroker, client_id: str, topic: str) -> None:
    """The packet ids of QoS 2 go on where they were: a PUBREL for what was received, DUP for what was sent."""
    with come_back(broker, client_id, V311) as client:
        packets = [client.receive(), client.receive()]
        (released,) = [packet for packet in packets if packet.type == PacketType.PUBREL]
        (sent,) = [packet for packet in packets if packet.type == PacketType.PUBLISH]
        assert (sent.topic, sent.payload, sent.qos, sent.dup) == (topic, b"half 2", 2, True)
        assert sent.packet_id == (released.packet_id or 0) + 1
        client.send_ack(PacketType.PUBCOMP, released.packet_id or 0)
        client.ack(sent)
        client.expect_nothing()


@pytest.mark.parametrize("members", [("device3", "device4"), ("app3", "app4")])
def test_messages_of_a_share(broker: StoredDataBroker, members: tuple[str, str]) -> None:
    clients = [come_back(broker, member) for member in members]
    found = receive_from(clients, 6, ack=True)
    # Messages that the first member has not acknowledged when the second joins may come to both.
    assert {packet.payload for each in found for packet in each} == {b"share %d" % number for number in range(6)}
    for client in clients:
        client.disconnect()


def test_an_unreleased_publish_is_not_taken_twice(broker: StoredDataBroker) -> None:
    with come_back(broker, "sender") as sender, broker.client(V5) as witness:
        witness.connect("witness")
        witness.subscribe("device/unreleased", qos=2)
        sender.send_publish("device/unreleased", b"unreleased", qos=2, packet_id=TAKEN_ID, dup=True)
        sender.await_packet(PacketType.PUBREC, TAKEN_ID)
        sender.send_ack(PacketType.PUBREL, TAKEN_ID)
        sender.await_packet(PacketType.PUBCOMP, TAKEN_ID)
        witness.expect_nothing()


def test_retained_messages(broker: StoredDataBroker) -> None:
    with broker.client(V5) as client:
        client.connect("collector")
        client.subscribe("kept/#", qos=2)
        plain, rich = sorted((client.expect_publish(retain=True, ack=True) for _ in range(2)), key=lambda it: it.topic)
        assert (plain.topic, plain.payload, plain.qos) == ("kept/plain", b"plain", 1)
        assert (rich.topic, rich.payload, rich.qos) == ("kept/rich", b"rich", 2)
        assert rich.properties["content_type"] == "text/plain"
        assert rich.properties["response_topic"] == "answers/1"
        assert rich.properties["user_property"] == [("colour", "blue")]
        client.expect_nothing()


def test_a_queue_its_pending_and_its_dead_letters(broker: StoredDataBroker) -> None:
    consumer = broker.open_consumer("consumer2")
    consumer.consume("$queue/work", "crew")
    deliveries = sorted(consumer.take_any(4), key=lambda each: each.payload)
    assert [each.payload for each in deliveries] == [b"work 2", b"work 3", b"work 4", b"work 5"]
    assert [each.count for each in deliveries] == [2, 2, 2, 1]
    consumer.ack(*deliveries)
    broker.await_progress("work", "crew", pending=0)
    undertaker = broker.open_consumer("undertaker")
    undertaker.consume("$queue/$dlq/work", "crew")
    dead = undertaker.next(b"work 1")
    assert "no good" in dict(dead.pairs).values()
    undertaker.ack(dead)
    for client in (consumer, undertaker):
        client.close()


def test_a_stream_goes_on_after_what_its_group_committed(broker: StoredDataBroker) -> None:
    reader = broker.open_consumer("reader2")
    reader.consume("$queue/events", "readers")
    assert [each.offset for each in reader.take(b"events 5", b"events 6", b"events 7")] == [5, 6, 7]
    reader.close()


def test_a_query_topic_its_group_and_its_grants(broker: StoredDataBroker) -> None:
    with Admin(broker.data_keys()) as admin:
        assert [row["topic_name"] for row in admin.execute("SHOW TOPICS").to_pylist()] == ["numbers"]
        assert "bob" in {value for row in admin.execute("SHOW GRANTS").to_pylist() for value in row.values()}
    consumer = Consumer(broker.readers_config())
    consumer.subscribe(["numbers"])
    assert read(consumer, 3) == [4, 5, 6]
    consumer.close()


def test_the_log_of_all_messages(broker: StoredDataBroker) -> None:
    until(lambda: len(broker.records("tbmq.msg.all")) >= LOGGED)
    payloads = [record.payload for record in broker.records("tbmq.msg.all")]
    assert payloads.count(b"the last message") == 1
    assert payloads.count(b"unreleased") == 1
    assert payloads.count(LONG) == 2


def test_the_files_of_the_embedded_log_have_no_fault(tmp_path: Path) -> None:
    unpack_directory(tmp_path)
    command = [sys.executable, "-m", "penstock", "log", "verify", "--data-dir", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
