"""Is a packet the same packet however its bytes arrive, and is nothing reserved for what was only announced?"""

import time

import pytest

from tests.support.clients.packets import (
    V5,
    PacketType,
    Reason,
    pack_connect,
    pack_publish,
    pack_subscribe,
)
from tests.support.clients.wire_types import varint


def conversation(version, client_id, topic):
    """CONNECT, SUBSCRIBE, publishes of every QoS and a ping, as one run of bytes."""
    properties = {"user_property": [("a", "b" * 50)]}
    return b"".join(
        [
            pack_connect(version, client_id, username="user", password=b"password"),
            pack_subscribe(version, 1, [(topic, 0), (f"{topic}/other", 2)]),
            pack_publish(version, topic, b"zero", properties=properties),
            pack_publish(version, topic, bytes(300), qos=1, packet_id=2),
            b"\xc0\x00",
        ]
    )


def check_answers(client, topic):
    client.expect(PacketType.CONNACK, reason=0)
    client.expect(PacketType.SUBACK, packet_id=1)
    client.expect_publish(topic, b"zero")
    answers = [client.receive() for _ in range(3)]
    assert {answer.type for answer in answers} == {PacketType.PUBLISH, PacketType.PUBACK, PacketType.PINGRESP}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
def test_any_segmentation(open_client, client_id, topic, version, size):
    """4.2: a stream of bytes has no borders."""
    data = conversation(version, client_id, topic)
    client = open_client(version)
    for start in range(0, len(data), size):
        client.send_raw(data[start : start + size])
        if size < 10:
            time.sleep(0.0002)
    check_answers(client, topic)


def test_two_slow_clients_do_not_mix(open_client, new_name, topic):
    """Partial packets are kept per connection."""
    clients = [(open_client(V5), new_name("client"), new_name("topic/")) for _ in range(3)]
    data = [conversation(V5, client_id, own_topic) for _, client_id, own_topic in clients]
    for start in range(0, max(map(len, data)), 5):
        for (client, *_), own_data in zip(clients, data, strict=True):
            client.send_raw(own_data[start : start + 5])
    for client, _, own_topic in clients:
        check_answers(client, own_topic)


def test_large_packet_in_many_segments(connect, topic, version):
    """A packet larger than any read buffer, between two small ones."""
    subscriber = connect(version)
    subscriber.subscribe(topic)
    publisher = connect(version)
    payload = bytes(range(256)) * 3000
    data = b"".join(pack_publish(version, topic, body) for body in (b"before", payload, b"after"))
    for start in range(0, len(data), 50_001):
        publisher.send_raw(data[start : start + 50_001])
        time.sleep(0.001)
    subscriber.expect_payloads([b"before", payload, b"after"])


def test_announced_length_reserves_nothing(start_broker, connect):
    """The issue: 256 MB announced without data costs no memory; here within the limit, so that nothing is refused."""
    broker = start_broker({"limits.max_packet_size": 268_435_461})
    bystander = connect(V5, broker=broker)
    before = broker.resident_bytes()
    clients = [connect(V5, broker=broker) for _ in range(40)]
    for client in clients:
        client.send_raw(b"\x30" + varint(268_435_455) + b"\x00\x05")
    bystander.ping()
    time.sleep(0.2)
    assert broker.resident_bytes() - before < 30 * 1024 * 1024
    bystander.ping()


def test_announced_length_above_the_limit(connect, bystander, version):
    """[MQTT-4.13.1-1], 3.1.2.11.4: ended at once, 0x95 for MQTT 5."""
    client = connect(version)
    client.send_raw(b"\x30" + varint(268_435_455))
    client.expect_disconnect(Reason.PACKET_TOO_LARGE)


def test_connect_announced_larger_than_allowed(open_client, bystander):
    """limits.connect_packet_size: a stranger cannot make the server hold 256 MB."""
    client = open_client(V5)
    client.try_send_raw(b"\x10" + varint(268_435_455) + b"\x00\x04MQTT\x05\x02\x00\x3c")
    packets = client.receive_until_closed()
    assert [packet.type for packet in packets] in ([], [PacketType.CONNACK])


def test_connection_that_ends_within_a_packet(connect, bystander, topic, version):
    """A half publish is no publish."""
    watcher = connect(version)
    watcher.subscribe(topic)
    packet = pack_publish(version, topic, b"whole")
    for size in range(1, len(packet)):
        client = connect(version)
        client.send_raw(packet[:size])
        client.close()
    connect(version).publish(topic, b"whole")
    watcher.expect_publish(topic, b"whole")
    watcher.expect_nothing()
