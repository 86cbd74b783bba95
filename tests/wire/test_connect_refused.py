"""Is a CONNECT that breaks the rules refused with the right code, and the connection closed?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, Will, pack, pack_connect
from tests.support.clients.properties import pack_property
from tests.support.clients.wire_types import string

HEAD_311 = string("MQTT") + b"\x04"
HEAD_5 = string("MQTT") + b"\x05"
WILL = Will("will/topic", b"payload")


def connect_5(flags: int = 2, properties: bytes = b"\0", payload: bytes = b"\0\1x") -> bytes:
    return pack(PacketType.CONNECT, HEAD_5 + bytes([flags]) + b"\0\x3c" + properties + payload)


def connect_311(flags: int = 2, payload: bytes = b"\0\1x") -> bytes:
    return pack(PacketType.CONNECT, HEAD_311 + bytes([flags]) + b"\0\x3c" + payload)


MALFORMED_311 = {
    "reserved connect flag [MQTT3-3.1.2-3]": connect_311(flags=3),
    "reserved fixed header flags [MQTT3-2.2.2-2]": pack(1, HEAD_311 + b"\2\0\x3c\0\1x", 1),
    "will QoS 3 [MQTT3-3.1.2-14]": pack_connect(V311, "x", will=WILL, flags=0x1E),
    "will QoS without will flag [MQTT3-3.1.2-11] [MQTT3-3.1.2-13]": connect_311(flags=0x0A),
    "will retain without will flag [MQTT3-3.1.2-15]": connect_311(flags=0x22),
    "will flag without will fields [MQTT3-3.1.2-9]": connect_311(flags=0x06),
    "user name flag without user name [MQTT3-3.1.2-19]": connect_311(flags=0x82),
    "password flag without password [MQTT3-3.1.2-21]": pack_connect(V311, "x", username="u", flags=0xC2),
    "password without user name [MQTT3-3.1.2-22]": pack_connect(V311, "x", password=b"p"),
    "user name without its flag [MQTT3-3.1.2-18]": connect_311(payload=b"\0\1x\0\1u"),
    "no client id [MQTT3-3.1.3-3]": connect_311(payload=b""),
    "client id not UTF-8 [MQTT3-3.1.3-4]": connect_311(payload=b"\0\2\xc3\x28"),
    "client id with U+0000 [MQTT3-1.5.3-2]": connect_311(payload=b"\0\1\0"),
    "will topic not UTF-8 [MQTT3-3.1.3-10]": connect_311(6, b"\0\1x\0\1\xff\0\0"),
    "user name not UTF-8 [MQTT3-3.1.3-11]": connect_311(0x82, b"\0\1x\0\1\xff"),
    "truncated client id": connect_311(payload=b"\0\5x"),
    "no keep-alive": pack(1, HEAD_311 + b"\2"),
    "trailing bytes": connect_311(payload=b"\0\1xyz"),
    "wildcard in the will topic [MQTT3-4.7.1-1]": pack_connect(V311, "x", will=Will("a/#")),
    "empty will topic [MQTT3-4.7.3-1]": pack_connect(V311, "x", will=Will("")),
}


@pytest.mark.parametrize("packet", MALFORMED_311.values(), ids=MALFORMED_311.keys())
def test_malformed_connect_311_is_closed_without_connack(open_client, bystander, packet):
    """[MQTT3-3.1.4-1] [MQTT3-3.2.2-6] [MQTT3-4.8.0-1]"""
    client = open_client(V311)
    client.send_raw(packet)
    client.expect_closed()


M, P = Reason.MALFORMED, Reason.PROTOCOL_ERROR
EITHER = (M, P)
TOPIC = (M, P, Reason.TOPIC_NAME_INVALID)


def with_property(name: str, *values: object) -> bytes:
    block = b"".join(pack_property(name, value) for value in values)
    return pack_connect(V5, "x", properties=block)


def with_will_property(name: str, *values: object) -> bytes:
    block = b"".join(pack_property(name, value) for value in values)
    return pack_connect(V5, "x", will=Will("will/topic", properties=block))


MALFORMED_5 = {
    "reserved connect flag [MQTT-3.1.2-3]": (M, connect_5(flags=3)),
    "will QoS 3 [MQTT-3.1.2-12]": (M, pack_connect(V5, "x", will=WILL, flags=0x1E)),
    "will QoS without will flag [MQTT-3.1.2-11]": (EITHER, connect_5(flags=0x0A)),
    "will retain without will flag [MQTT-3.1.2-13]": (EITHER, connect_5(flags=0x22)),
    "will flag without will fields [MQTT-3.1.2-9]": (EITHER, connect_5(flags=0x06)),
    "user name flag without user name [MQTT-3.1.2-17]": (EITHER, connect_5(flags=0x82)),
    "password flag without password [MQTT-3.1.2-19]": (EITHER, connect_5(flags=0x42)),
    "user name without its flag [MQTT-3.1.2-16]": (EITHER, connect_5(payload=b"\0\1x\0\1u")),
    "no client id [MQTT-3.1.3-3]": (EITHER, connect_5(payload=b"")),
    "client id not UTF-8 [MQTT-3.1.3-4]": ((M, Reason.CLIENT_ID_INVALID), connect_5(payload=b"\0\2\xc3\x28")),
    "will topic not UTF-8 [MQTT-3.1.3-11]": (TOPIC, connect_5(6, payload=b"\0\1x\0\0\1\xff\0\0")),
    "user name not UTF-8 [MQTT-3.1.3-12]": (M, connect_5(0x82, payload=b"\0\1x\0\1\xff")),
    "user name with U+0000 [MQTT-1.5.4-2]": (M, connect_5(0x82, payload=b"\0\1x\0\1\0")),
    "truncated client id": (M, connect_5(payload=b"\0\5x")),
    "trailing bytes": (EITHER, connect_5(payload=b"\0\1xyz")),
    "wildcard in the will topic [MQTT-4.7.0-1]": (TOPIC, pack_connect(V5, "x", will=Will("a/+"))),
    "empty will topic [MQTT-4.7.3-1]": (TOPIC, pack_connect(V5, "x", will=Will(""))),
    "property length beyond the packet": (M, connect_5(properties=b"\x7f")),
    "unknown property": (M, connect_5(properties=b"\2\x7f\0")),
    "property of PUBLISH": (M, with_property("topic_alias", 1)),
    "property of the will": (M, with_property("will_delay_interval", 1)),
    "property of the server": (M, with_property("maximum_qos", 1)),
    "truncated property": (M, connect_5(properties=b"\3\x11\0\0")),
    "session expiry twice": (P, with_property("session_expiry_interval", 1, 1)),
    "receive maximum 0": (P, with_property("receive_maximum", 0)),
    "receive maximum twice": (P, with_property("receive_maximum", 1, 1)),
    "maximum packet size 0": (P, with_property("maximum_packet_size", 0)),
    "maximum packet size twice": (P, with_property("maximum_packet_size", 99, 99)),
    "topic alias maximum twice": (P, with_property("topic_alias_maximum", 1, 1)),
    "request response information 2": (P, with_property("request_response_information", 2)),
    "request problem information 2": (P, with_property("request_problem_information", 2)),
    "authentication data without method": (P, with_property("authentication_data", b"x")),
    "authentication method twice": (P, with_property("authentication_method", "a", "a")),
    "user property not UTF-8 [MQTT-1.5.7-1]": (M, with_property("user_property", (b"\xff", "v"))),
    "will delay twice": (P, with_will_property("will_delay_interval", 1, 1)),
    "will payload format twice": (P, with_will_property("payload_format_indicator", 1, 1)),
    "will content type twice": (P, with_will_property("content_type", "a", "a")),
    "will with a property of CONNECT": (M, with_will_property("receive_maximum", 1)),
    "will response topic with a wildcard [MQTT-3.3.2-14]": (TOPIC, with_will_property("response_topic", "a/#")),
}


@pytest.mark.parametrize(("reason", "packet"), MALFORMED_5.values(), ids=MALFORMED_5.keys())
def test_malformed_connect_5_is_answered_with_its_reason(open_client, bystander, reason, packet):
    """[MQTT-3.1.4-1] [MQTT-3.1.4-2] [MQTT-3.2.2-6] [MQTT-3.2.2-7] [MQTT-3.2.2-8] [MQTT-3.14.0-1]
    [MQTT-4.13.1-1] [MQTT-4.13.2-1]"""
    client = open_client(V5)
    client.send_raw(packet)
    client.expect_refused_connect(reason)


@pytest.mark.parametrize("flags", [1, 2, 4, 8, 15])
def test_reserved_fixed_header_flags(open_client, flags):
    """[MQTT-2.1.3-1] [MQTT3-2.2.2-2]: closed; whether a CONNACK comes first is left to the server, here."""
    client = open_client(V5)
    client.send_raw(pack(1, HEAD_5 + b"\2\0\x3c\0\0\1x", flags))
    assert read_until_closed(client) in (b"", b"\x20\x03\x00\x81\x00")


@pytest.mark.parametrize("level", [0, 1, 2, 6, 7, 127])
def test_unknown_protocol_level(open_client, client_id, level):
    """[MQTT-3.1.2-2] [MQTT3-3.1.2-2] [MQTT3-3.2.2-5]: code 1 of 3.1.1 or 0x84 of 5, then closed."""
    client = open_client(V311)
    client.send_raw(pack_connect(V311, client_id, protocol_level=level))
    assert read_until_closed(client) in (b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00")


@pytest.mark.parametrize("name", ["", "MQTt", "mqtt", "MQIsd", "MQTTX", "HTTP"])
def test_unknown_protocol_name_is_closed(open_client, client_id, name):
    """[MQTT-3.1.2-1] [MQTT3-3.1.2-1]"""
    client = open_client(V311)
    client.send_raw(pack_connect(V311, client_id, protocol_name=name))
    assert read_until_closed(client) in (b"", b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00")


@pytest.mark.parametrize(("name", "level"), [("MQTT", 3), ("MQIsdp", 4), ("MQIsdp", 5)])
def test_name_of_one_version_with_the_level_of_another(open_client, client_id, name, level):
    """[MQTT-3.1.2-1] [MQTT3-3.1.2-1] [MQTT3-3.1.2-2]"""
    client = open_client(V311)
    client.send_raw(pack_connect(V31, client_id, protocol_name=name, protocol_level=level))
    assert read_until_closed(client) in (b"", b"\x20\x02\x00\x01", b"\x20\x03\x00\x84\x00")


def test_nothing_after_a_refused_connect_is_processed(open_client, connect, topic):
    """[MQTT-3.1.4-6] [MQTT3-3.1.4-5]"""
    watcher = connect(V5)
    watcher.subscribe(topic)
    for version, packet in ((V5, connect_5(flags=3)), (V311, connect_311(flags=3))):
        client = open_client(version)
        client.send_raw(packet + b"\x30" + bytes([2 + len(topic)]) + string(topic))
        client.expect_refused_connect(M)
    watcher.expect_nothing()


def read_until_closed(client) -> bytes:
    received = b""
    while data := client.stream.recv(100):
        received += data
    return received
