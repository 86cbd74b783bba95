"""Does every malformed or forbidden packet cost its sender the connection, with the right reason, and nobody else?"""

import contextlib

import pytest

from tests.support.clients.packets import (
    V5,
    V31,
    V311,
    PacketType,
    Reason,
    pack,
    pack_ack,
    pack_auth,
    pack_disconnect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
)
from tests.support.clients.raw_client import ClosedByServer

M, P = Reason.MALFORMED, Reason.PROTOCOL_ERROR
EITHER = (M, P)
ACKS = (PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP)
RIGHT_FLAGS = {PacketType.PUBREL: 2, PacketType.SUBSCRIBE: 2, PacketType.UNSUBSCRIBE: 2}


def sample(packet_type, version):
    """A packet of this type that a client might send, right in all but what a test changes."""
    return {
        PacketType.PUBLISH: pack_publish(version, "a/b", b"payload", qos=1, packet_id=1),
        PacketType.SUBSCRIBE: pack_subscribe(version, 1, [("a/b", 0)]),
        PacketType.UNSUBSCRIBE: pack_unsubscribe(version, 1, ["a/b"]),
        PacketType.PINGREQ: pack(PacketType.PINGREQ),
        PacketType.DISCONNECT: pack_disconnect(version),
        **{ack: pack_ack(ack, version, 1) for ack in ACKS},
    }[packet_type]


def body_of(packet):
    return packet[2:]


WRONG_FLAGS = [
    (packet_type, flags)
    for packet_type in (*ACKS, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ, PacketType.DISCONNECT)
    for flags in (0, 1, 2, 4, 8, 15)
    if flags != RIGHT_FLAGS.get(packet_type, 0)
]


@pytest.mark.parametrize(
    ("packet_type", "flags"), WRONG_FLAGS, ids=[f"{packet_type.name}-{flags}" for packet_type, flags in WRONG_FLAGS]
)
def test_reserved_flags(connect, bystander, version, packet_type, flags):
    """[MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1]
    [MQTT3-2.2.2-1] [MQTT3-2.2.2-2] [MQTT3-3.6.1-1] [MQTT3-3.8.1-1] [MQTT3-3.10.1-1] [MQTT3-3.14.1-1]"""
    client = connect(version)
    client.send_raw(pack(packet_type, body_of(sample(packet_type, version)), flags))
    client.expect_disconnect(M)


FROM_SERVER_ONLY = {
    "CONNACK": b"\x20\x03\x00\x00\x00",
    "SUBACK": b"\x90\x04\x00\x01\x00\x00",
    "UNSUBACK": b"\xb0\x04\x00\x01\x00\x00",
    "PINGRESP": b"\xd0\x00",
}


@pytest.mark.parametrize("packet", FROM_SERVER_ONLY.values(), ids=FROM_SERVER_ONLY.keys())
def test_packets_only_a_server_sends(connect, bystander, version, packet):
    """2.1.2, [MQTT-4.13.1-1] [MQTT3-4.8.0-1]"""
    client = connect(version)
    client.send_raw(packet)
    client.expect_disconnect(EITHER)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_packet_type_0(connect, bystander, version):
    """2.1.2: forbidden."""
    client = connect(version)
    client.send_raw(b"\x00\x00")
    client.expect_disconnect(EITHER)


@pytest.mark.parametrize("version", [V31, V311])
def test_auth_before_mqtt_5(connect, bystander, version):
    """2.2.1 of 3.1.1: type 15 is reserved."""
    client = connect(version)
    client.send_raw(pack_auth(0x18))
    client.expect_closed()


LENGTHS = {
    "five bytes": b"\x30\x80\x80\x80\x80\x01",
    "five bytes, all set": b"\xc0\xff\xff\xff\xff\x7f",
    "never ending": b"\x30" + b"\xff" * 50,
}


@pytest.mark.parametrize("packet", LENGTHS.values(), ids=LENGTHS.keys())
def test_remaining_length_of_more_than_four_bytes(connect, bystander, version, packet):
    """2.1.4, 1.5.5: malformed as soon as the fourth byte says that more follow."""
    client = connect(version)
    client.send_raw(packet)
    client.expect_disconnect(M)


@pytest.mark.parametrize("packet", [b"\xc0\x80\x00", b"\xc0\x80\x80\x80\x00"])
def test_remaining_length_longer_than_needed(connect, bystander, packet):
    """[MQTT-1.5.5-1]: the length must be as short as can be."""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect(M)


PUBLISHES = {
    "QoS 3 [MQTT-3.3.1-4] [MQTT3-3.3.1-4]": (M, lambda v: b"\x36" + pack_publish(v, "a", b"x", qos=1, packet_id=1)[1:]),
    "packet id 0, QoS 1 [MQTT-2.2.1-3] [MQTT3-2.3.1-1]": (EITHER, lambda v: pack_publish(v, "a", qos=1, packet_id=0)),
    "packet id 0, QoS 2 [MQTT-2.2.1-3] [MQTT3-2.3.1-1]": (EITHER, lambda v: pack_publish(v, "a", qos=2, packet_id=0)),
    "empty topic [MQTT-4.7.3-1] [MQTT3-4.7.3-1]": (
        (P, Reason.TOPIC_NAME_INVALID),
        lambda v: pack_publish(v, "", b"x"),
    ),
    "+ in the topic [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT3-3.3.2-2] [MQTT3-4.7.1-1]": (
        (M, P, Reason.TOPIC_NAME_INVALID),
        lambda v: pack_publish(v, "a/+/b", b"x"),
    ),
    "# in the topic [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT3-3.3.2-2] [MQTT3-4.7.1-1]": (
        (M, P, Reason.TOPIC_NAME_INVALID),
        lambda v: pack_publish(v, "a/#", b"x"),
    ),
    "no topic": (M, lambda v: b"\x30\x00"),
    "half a topic length": (M, lambda v: b"\x30\x01\x00"),
    "topic beyond the packet": (M, lambda v: b"\x30\x04\x00\x05ab"),
    "no packet id": (M, lambda v: b"\x32\x03\x00\x01a"),
    "half a packet id": (M, lambda v: b"\x32\x04\x00\x01a\x00"),
}


@pytest.mark.parametrize(("reason", "build"), PUBLISHES.values(), ids=PUBLISHES.keys())
def test_bad_publish(connect, bystander, version, reason, build):
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1] [MQTT3-4.8.0-1]"""
    client = connect(version)
    client.send_raw(build(version))
    client.expect_disconnect(reason)


PUBLISHES_5 = {
    "no property length [MQTT-2.2.2-1]": (M, b"\x30\x03\x00\x01a"),
    "property length beyond the packet": (M, b"\x30\x05\x00\x01a\x05\x01"),
    "property length of five bytes": (M, b"\x30\x08\x00\x01a\xff\xff\xff\xff\x01"),
    "property length longer than needed [MQTT-1.5.5-1]": (M, b"\x30\x05\x00\x01a\x80\x00"),
}


@pytest.mark.parametrize(("reason", "packet"), PUBLISHES_5.values(), ids=PUBLISHES_5.keys())
def test_bad_publish_5(connect, bystander, reason, packet):
    """[MQTT-4.13.1-1]"""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect(reason)


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("ack", ACKS, ids=[ack.name for ack in ACKS])
def test_bad_acknowledgements(connect, bystander, version, ack):
    """3.4 to 3.7, [MQTT-4.13.1-1] [MQTT3-4.8.0-1]: without an id, with half of one, with id 0."""
    flags = RIGHT_FLAGS.get(ack, 0)
    for body in (b"", b"\x00", b"\x00\x00"):
        client = connect(version)
        client.send_raw(pack(ack, body, flags))
        client.expect_disconnect(EITHER)


@pytest.mark.parametrize("ack", ACKS, ids=[ack.name for ack in ACKS])
def test_acknowledgements_with_more_than_an_id_in_311(connect, bystander, ack):
    """3.4 to 3.7 of 3.1.1: the remaining length is 2."""
    client = connect(V311)
    client.send_raw(pack(ack, b"\x00\x01\x00", RIGHT_FLAGS.get(ack, 0)))
    client.expect_closed()


ACK_BODIES_5 = {
    "unknown reason code": (EITHER, b"\x42"),
    "reason code of another packet": (EITHER, b"\x8e"),
    "property length beyond the packet": (M, b"\x00\x05"),
    "unknown property": (M, b"\x00\x02\x7f\x00"),
    "property of another packet": (M, b"\x00\x03\x23\x00\x01"),
    "reason string twice": (P, b"\x00\x08\x1f\x00\x01a\x1f\x00\x01a"),
    "reason string not UTF-8": (M, b"\x00\x04\x1f\x00\x01\xff"),
    "bytes after the properties": (M, b"\x00\x00\x00"),
}


@pytest.mark.parametrize("ack", ACKS, ids=[ack.name for ack in ACKS])
@pytest.mark.parametrize(("reason", "tail"), ACK_BODIES_5.values(), ids=ACK_BODIES_5.keys())
def test_bad_acknowledgements_5(connect, bystander, ack, reason, tail):
    """[MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1] [MQTT-4.13.1-1]"""
    client = connect(V5)
    client.send_raw(pack(ack, b"\x00\x01" + tail, RIGHT_FLAGS.get(ack, 0)))
    client.expect_disconnect(reason)


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_pingreq_with_a_body(connect, bystander, version):
    """3.12: no variable header, no payload."""
    client = connect(version)
    client.send_raw(b"\xc0\x01\x00")
    client.expect_disconnect(EITHER)


TYPES = [PacketType.PUBLISH, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE]


def last_answer(client):
    """The PINGRESP, or what came last before the end of the connection."""
    last = None
    with contextlib.suppress(ClosedByServer):
        while last is None or last.type != PacketType.PINGRESP:
            last = client.receive()
    return last


@pytest.mark.parametrize("packet_type", TYPES, ids=[packet_type.name for packet_type in TYPES])
def test_every_truncation(connect, bystander, version, packet_type):
    """Cut at each byte, with the length corrected: accepted only where a whole packet is left; never a crash."""
    packet = sample(packet_type, version)
    for size in range(len(body_of(packet))):
        client = connect(version)
        client.try_send_raw(pack(packet_type, body_of(packet)[:size], packet[0] & 0x0F))
        client.try_send_raw(b"\xc0\x00")
        last = last_answer(client)
        if last is not None and last.type == PacketType.PINGRESP:
            assert packet_type == PacketType.PUBLISH, f"cut to {size} bytes it was taken for whole"
        elif version == V5:
            assert last is None or last.reason in (M, P)


def test_server_says_nothing_after_its_disconnect(connect, topic):
    """[MQTT-3.14.4-1] [MQTT-3.14.4-2]: the packets behind the bad one are not processed or answered."""
    watcher = connect(V5)
    watcher.subscribe(topic)
    client = connect(V5)
    client.send_raw(b"\x00\x00" + pack_publish(V5, topic, b"x", qos=1, packet_id=1) + b"\xc0\x00")
    client.expect_disconnect(EITHER)
    watcher.expect_nothing()


def test_what_came_before_the_bad_packet_counts(connect, topic, version):
    """4.13: a good publish in the same segment is delivered; its acknowledgement waits for the log and may be late."""
    watcher = connect(version)
    watcher.subscribe(topic)
    client = connect(version)
    client.send_raw(pack_publish(version, topic, b"good", qos=1, packet_id=1) + b"\x00\x00")
    client.expect_disconnect(EITHER)
    watcher.expect_publish(topic, b"good")
