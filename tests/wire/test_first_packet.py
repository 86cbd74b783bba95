"""Must CONNECT be the first packet of a connection, and only the first?"""

import time

import pytest

from tests.support.clients.packets import (
    PINGREQ,
    V5,
    V31,
    V311,
    PacketType,
    Reason,
    pack,
    pack_ack,
    pack_auth,
    pack_connect,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
)

NOT_CONNECT = {
    "publish": pack_publish(V311, "topic", b"payload"),
    "publish QoS 1": pack_publish(V311, "topic", b"payload", qos=1, packet_id=1),
    "puback": pack_ack(PacketType.PUBACK, V311, 1),
    "pubrel": pack_ack(PacketType.PUBREL, V311, 1),
    "subscribe": pack_subscribe(V311, 1, [("#", 0)]),
    "unsubscribe": pack_unsubscribe(V311, 1, ["#"]),
    "pingreq": PINGREQ,
    "disconnect": pack_disconnect(V311),
    "auth": pack_auth(0x18),
    "type 0": pack(0),
    "connack": b"\x20\x02\x00\x00",
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a browser at the wrong door\r\nAccept: */*\r\n\r\n",
    "TLS hello": bytes.fromhex("16030100c4010000c00303") + bytes(200),
}


@pytest.mark.parametrize("packet", NOT_CONNECT.values(), ids=NOT_CONNECT.keys())
def test_first_packet_is_not_connect(open_client, bystander, packet):
    """[MQTT-3.1.0-1] [MQTT3-3.1.0-1] [MQTT-3.14.0-1]: closed, and no DISCONNECT before a CONNACK."""
    client = open_client(V5)
    client.send_raw(packet)
    client.expect_closed()


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_second_connect_is_a_protocol_error(connect, bystander, version):
    """[MQTT-3.1.0-2] [MQTT-3.2.0-2] [MQTT3-3.1.0-2]"""
    client = connect(version)
    client.send_raw(pack_connect(version, client.client_id))
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


def test_two_connects_in_one_segment(open_client, client_id, version):
    """[MQTT-3.1.0-2] [MQTT-3.2.0-2] [MQTT3-3.1.0-2]: one CONNACK at most."""
    client = open_client(version)
    client.send_raw(pack_connect(version, client_id) * 2)
    client.expect(PacketType.CONNACK)
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


def test_time_to_send_connect(start_broker, open_client):
    """A connection without a whole CONNECT is closed after limits.connect_timeout (3.1.4, first action)."""
    broker = start_broker({"limits.connect_timeout": 1})
    start = time.monotonic()
    silent = open_client(V5, broker=broker)
    partial = open_client(V5, broker=broker)
    partial.send_raw(b"\x10\x20\x00\x04MQ")
    connected = open_client(V5, broker=broker)
    connected.connect("connected")
    for client in (silent, partial):
        client.expect_closed()
        assert 0.8 <= time.monotonic() - start < 9  # the default is ten seconds
    connected.ping()
