"""Does UNSUBSCRIBE end a subscription, and is it always answered?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, pack, pack_unsubscribe

UNSUBACK = PacketType.UNSUBACK


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_messages_stop(connect, topic, version):
    """[MQTT-3.10.4-1] [MQTT-3.10.4-2] [MQTT-3.10.4-4] [MQTT3-3.10.4-1] [MQTT3-3.10.4-2] [MQTT3-3.10.4-4]"""
    client = connect(version)
    client.subscribe(topic, qos=1)
    publisher = connect(version)
    publisher.publish(topic, b"x", qos=1)
    client.expect_publish(topic, b"x", ack=True)
    assert client.unsubscribe(topic) == ([Reason.SUCCESS] if version == V5 else [])
    publisher.publish(topic, b"y", qos=1)
    client.expect_nothing()


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_unknown_filter_is_answered(connect, topic, version):
    """[MQTT-3.10.4-5] [MQTT3-3.10.4-5] [MQTT-3.11.3-2]: MQTT 5 with 0x11."""
    client = connect(version)
    assert client.unsubscribe(topic) == ([Reason.NO_SUBSCRIPTION_EXISTED] if version == V5 else [])


def test_several_filters_in_order(connect, topic, version):
    """[MQTT-3.10.4-6] [MQTT-3.11.3-1] [MQTT-2.2.1-6] [MQTT3-3.10.4-6] [MQTT3-2.3.1-7]: one UNSUBACK."""
    client = connect(version)
    client.subscribe(f"{topic}/a", f"{topic}/b", f"{topic}/c")
    client.send_raw(pack_unsubscribe(version, 4711, [f"{topic}/a", f"{topic}/x", f"{topic}/c", f"{topic}/a"]))
    unsuback = client.expect(UNSUBACK, packet_id=4711)
    if version == V5:
        assert unsuback.reasons == [0, 0x11, 0, 0x11]
    publisher = connect(version)
    for name in ("a", "b", "c"):
        publisher.publish(f"{topic}/{name}", name.encode())
    client.expect_publish(f"{topic}/b", b"b")
    client.expect_nothing(0.1)


def test_filters_are_compared_character_by_character(connect, topic, version):
    """[MQTT-3.10.4-1] [MQTT3-3.10.4-1]: a filter that matches the same topics is another filter."""
    client = connect(version)
    client.subscribe(f"{topic}/+", f"{topic}/a")
    client.unsubscribe(f"{topic}/#", f"{topic}/A", f"{topic}/a/", f"{topic}/")
    client.unsubscribe(f"{topic}/a")
    connect(version).publish(f"{topic}/a", b"x")
    client.expect_publish(f"{topic}/a", b"x")
    client.unsubscribe(f"{topic}/+")
    connect(version).publish(f"{topic}/a", b"x")
    client.expect_nothing()


def test_other_clients_keep_their_subscriptions(connect, topic, version):
    """[MQTT-3.10.4-1] [MQTT3-3.10.4-1]"""
    one, two = connect(version), connect(version)
    for client in (one, two):
        client.subscribe(topic)
    one.unsubscribe(topic)
    connect(version).publish(topic, b"x")
    two.expect_publish(topic, b"x")
    one.expect_nothing(0.1)


def test_delivery_in_flight_is_completed(connect, topic, version):
    """[MQTT-3.10.4-3] [MQTT3-3.10.4-3]: the QoS 2 exchange that was begun goes to its end."""
    client = connect(version)
    client.subscribe(topic, qos=2)
    connect(version).publish(topic, b"x", qos=2)
    publish = client.expect_publish(topic, b"x", qos=2)
    client.unsubscribe(topic)
    client.ack(publish)


def test_overlapping_subscription_stays(connect, topic, version):
    """[MQTT-3.10.4-1] [MQTT3-3.10.4-1]: with its own QoS."""
    client = connect(version)
    client.subscribe(f"{topic}/#", qos=0)
    client.subscribe(f"{topic}/a", qos=2)
    client.unsubscribe(f"{topic}/a")
    connect(version).publish(f"{topic}/a", b"x", qos=2)
    client.expect_publish(f"{topic}/a", b"x", qos=0)


P, M = Reason.PROTOCOL_ERROR, Reason.MALFORMED
BAD = {
    "no filter [MQTT-3.10.3-2] [MQTT3-3.10.3-2]": (P, lambda v: pack_unsubscribe(v, 1, [])),
    "packet id 0 [MQTT-2.2.1-3] [MQTT3-2.3.1-1]": ((P, M), lambda v: pack_unsubscribe(v, 0, ["a"])),
    "filter not UTF-8 [MQTT-3.10.3-1] [MQTT3-3.10.3-1]": (M, lambda v: pack_unsubscribe(v, 1, [b"\xff"])),
    "flags 0 [MQTT-3.10.1-1] [MQTT3-3.10.1-1]": (M, lambda v: b"\xa0" + pack_unsubscribe(v, 1, ["a"])[1:]),
    "flags 3 [MQTT-3.10.1-1] [MQTT3-3.10.1-1]": (M, lambda v: b"\xa3" + pack_unsubscribe(v, 1, ["a"])[1:]),
    "filter beyond the packet": (M, lambda v: pack(10, pack_unsubscribe(v, 1, ["abc"])[2:-1], 2)),
}


@pytest.mark.parametrize(("reason", "build"), BAD.values(), ids=BAD.keys())
def test_bad_unsubscribe(connect, bystander, version, reason, build):
    """[MQTT-4.13.1-1] [MQTT3-4.8.0-1]"""
    client = connect(version)
    client.send_raw(build(version))
    client.expect_disconnect(reason)


def test_bad_properties(connect, bystander):
    """3.10.2.1, [MQTT-4.13.1-1]: only user properties are allowed."""
    client = connect(V5)
    client.send_raw(pack_unsubscribe(V5, 1, ["a"], b"\x0b\x01"))
    client.expect_disconnect(M)
