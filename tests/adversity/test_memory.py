"""Does memory come back, and stay below its bounds, whatever clients do and however often?"""

import socket
import struct
import time

import pytest

from tests.support.clients.packets import (
    V5,
    V311,
    PacketType,
    Will,
    pack_connect,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
)
from tests.support.clients.streams import open_tcp

MIB = 1 << 20
# The log of what comes in keeps its newest part in memory; here it is about everything else.
QUIET = {"logging.level": "warning", "ingest.log": "none"}


def growth(broker, work, rounds: int, warm_up: int = 1) -> int:
    """Bytes by which `rounds` of the work grow the process, after some that may fill caches."""
    for number in range(warm_up):
        work(number)
    before = broker.resident_bytes()
    for number in range(warm_up, warm_up + rounds):
        work(number)
    return broker.resident_bytes() - before


def open_and_say(broker, data: bytes) -> socket.socket:
    connection = open_tcp(broker.address)
    connection.sendall(data)
    return connection


@pytest.mark.parametrize("ending", ["disconnect", "close", "reset"])
def test_connections_that_come_and_go(start_broker, ending):
    broker = start_broker(QUIET)
    will = Will("will", bytes(100), 1)

    def work(_: int) -> None:
        for number in range(400):
            data = pack_connect(V5, f"client{number}", will=will)
            data += pack_subscribe(V5, 1, [(f"a/{number}/+", 1), ("#", 0)])
            connection = open_and_say(broker, data + pack_publish(V5, f"a/{number}/b", bytes(200), qos=1, packet_id=2))
            connection.recv(10)
            if ending == "disconnect":
                connection.sendall(pack_disconnect(V5))
            elif ending == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()

    assert growth(broker, work, 4, warm_up=2) < 4 * MIB


def test_subscriptions_that_come_and_go(start_broker, connect):
    broker = start_broker(QUIET)
    client = connect(V5, broker=broker)

    def work(number: int) -> None:
        names = [f"{number}/{i}/+/x/{i}/#" for i in range(900)] + [f"$share/g{i}/{number}/{i}" for i in range(100)]
        client.subscribe(*names, qos=1)
        client.unsubscribe(*names)

    assert growth(broker, work, 20, warm_up=4) < 3 * MIB


def test_long_filters_are_given_back(start_broker, connect):
    """Not only free for others: what 4,000 filters of 30 KB took is no longer the process's."""
    broker = start_broker(QUIET | {"limits.max_subscription_bytes": 100 * MIB})
    before = broker.resident_bytes()
    clients = [connect(V5, broker=broker) for _ in range(4)]
    for number, client in enumerate(clients):
        for part in range(0, 1_000, 20):
            names = [f"{number}/{part + i}/".ljust(30_000, "x") for i in range(20)]
            assert client.subscribe(*names) == [0] * 20
    assert broker.resident_bytes() - before > 100 * MIB
    for client in clients:
        client.disconnect()
    deadline = time.monotonic() + 60
    while broker.resident_bytes() - before > 40 * MIB:
        assert time.monotonic() < deadline, (broker.resident_bytes() - before) // MIB
        time.sleep(0.1)


def test_retained_messages_that_come_and_go(start_broker, connect):
    broker = start_broker(QUIET | {"limits.match_cache": 100})
    client = connect(V5, broker=broker)

    def work(number: int) -> None:
        topics = [f"{number}/{i}/b/c/{i}" for i in range(2_000)]
        for payload in (b"x" * 300, b""):
            client.send_raw(b"".join(pack_publish(V5, topic, payload, retain=True) for topic in topics))
            client.ping()

    assert growth(broker, work, 12, warm_up=4) < 3 * MIB


def test_sessions_that_expire(start_broker):
    broker = start_broker(QUIET | {"limits.max_session_expiry": 1})
    publisher = broker.client(V311)
    publisher.connect("publisher")

    def work(number: int) -> None:
        for i in range(100):
            data = pack_connect(V311, f"client{number}-{i}", clean_start=False) + pack_subscribe(V311, 1, [("t", 1)])
            connection = open_and_say(broker, data)
            connection.recv(9)
            connection.close()
        publisher.ping()
        for _ in range(10):
            publisher.publish("t", bytes(1_000), qos=1)
        time.sleep(1.2)

    assert growth(broker, work, 3) < 3 * MIB


def test_large_packets(start_broker, connect):
    broker = start_broker(QUIET)
    client = connect(V5, broker=broker)
    client.subscribe("t", qos=2)

    def work(_: int) -> None:
        for qos in range(3):
            client.publish("t", bytes(1_000_000), qos=qos)
            client.ack(client.expect_publish("t"))

    assert growth(broker, work, 10, warm_up=3) < 8 * MIB


def test_topics_that_are_published_once(start_broker, connect):
    """The longest names there are, and never the same: what is remembered of them is bounded in bytes."""
    broker = start_broker(QUIET)
    client = connect(V5, broker=broker)

    def work(number: int) -> None:
        for i in range(100):
            client.send_publish(f"{number}/{i}/" + "x" * 60_000, b"")
        client.ping()

    assert growth(broker, work, 30, warm_up=15) < 80 * MIB


def test_retained_backlog_of_clients_that_do_not_read(start_broker, connect):
    """Retained messages waiting for a client count: replaced ones must not stay for everybody who never reads."""
    broker = start_broker(QUIET | {"limits.max_queued_bytes": 2 * MIB})
    publisher = connect(V5, broker=broker)
    before = broker.resident_bytes()
    for generation in range(6):
        for number in range(40):
            publisher.publish(f"r/{number}", bytes([generation]) * 500_000, qos=1, retain=True)
        client = connect(V5, broker=broker)
        client.send_raw(pack_subscribe(V5, 1, [("r/#", 0)]))
        client.expect(PacketType.SUBACK)
    publisher.ping()
    # the store itself is 20 MB; each client may have its queue and its output buffer
    assert broker.resident_bytes() - before < 75 * MIB


def test_unfinished_packets(start_broker):
    """Memory grows with what has come, not with what was announced, and goes with the connection."""
    broker = start_broker(QUIET | {"limits.max_packet_size": 200 * MIB})
    before = broker.resident_bytes()
    clients = []
    for number in range(100):
        client = broker.client(V311)
        client.connect(f"client{number}")
        client.send_raw(b"\x30\xff\xff\xff\x4f\x00\x01t" + bytes(10_000))
        clients.append(client)
    assert broker.resident_bytes() - before < 12 * MIB
    for client in clients:
        client.close()
