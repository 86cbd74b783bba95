"""Does a DISCONNECT of the client end its connection, in each form it may have, and are bad ones refused?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, Will, pack, pack_disconnect, pack_publish

CLIENT_REASONS = [0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_server_closes_after_disconnect(connect, version):
    """[MQTT-3.14.4-2] [MQTT3-3.14.4-1]"""
    connect(version).disconnect()


def test_packets_after_disconnect_are_ignored(connect, topic, version):
    """[MQTT-3.14.4-1] [MQTT3-3.14.4-2]"""
    watcher = connect(version)
    watcher.subscribe(topic)
    client = connect(version)
    client.send_raw(pack_disconnect(version) + pack_publish(version, topic, b"late"))
    client.expect_closed()
    watcher.expect_nothing()


@pytest.mark.parametrize("reason", CLIENT_REASONS)
def test_every_reason_a_client_may_give(connect, reason):
    """[MQTT-3.14.2-1]: with and without properties."""
    connect(V5).disconnect(reason)
    connect(V5).disconnect(reason, {"reason_string": "bye", "user_property": [("a", "b")]})


BAD = {
    "reserved flags [MQTT-3.14.1-1]": (Reason.MALFORMED, pack(PacketType.DISCONNECT, flags=1)),
    "unknown reason code [MQTT-3.14.2-1]": ((Reason.MALFORMED, Reason.PROTOCOL_ERROR), pack(14, b"\x42")),
    "reason code of the server": ((Reason.MALFORMED, Reason.PROTOCOL_ERROR), pack(14, b"\x8e")),
    "unknown property": (Reason.MALFORMED, pack_disconnect(V5, 0, b"\x7f\0")),
    "property of PUBLISH": (Reason.MALFORMED, pack_disconnect(V5, 0, b"\x23\0\1")),
    "session expiry twice": (Reason.PROTOCOL_ERROR, pack_disconnect(V5, 0, b"\x11\0\0\0\0" * 2)),
    "property length beyond the packet": (Reason.MALFORMED, pack(14, b"\0\x0a")),
    "trailing bytes": (Reason.MALFORMED, pack(14, b"\0\0\0")),
}


@pytest.mark.parametrize(("reason", "packet"), BAD.values(), ids=BAD.keys())
def test_bad_disconnect(connect, bystander, reason, packet):
    """[MQTT-4.13.1-1] [MQTT-4.13.2-1]"""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect(reason)


def test_bad_disconnect_311_is_not_a_normal_one(connect, topic):
    """[MQTT3-2.2.2-2] [MQTT3-3.14.1-1] [MQTT3-3.14.4-3]: reserved bits or a body
    make it a violation, after which the will is sent."""
    watcher = connect(V311)
    watcher.subscribe(topic)
    for packet in (pack(14, flags=1), pack(14, b"\0")):
        client = connect(V311, will=Will(topic, b"will"))
        client.send_raw(packet)
        client.expect_closed()
        watcher.expect_publish(topic, b"will")
