"""Is each SUBSCRIBE answered with the right codes, and are subscriptions made, replaced and merged as they should?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, pack, pack_subscribe

SUBACK = PacketType.SUBACK
BAD_FILTERS = ["a#", "a/b#", "#/a", "a/#/b", "##", "a+", "+a", "a/b+/c", "a/+b", "/a/#/", "a/++"]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_granted_qos_in_the_order_of_the_filters(connect, topic, version):
    """[MQTT-3.8.4-1] [MQTT-3.8.4-2] [MQTT-3.8.4-5] [MQTT-3.8.4-6] [MQTT-3.8.4-7] [MQTT-3.9.3-1] [MQTT-2.2.1-6]
    [MQTT3-3.8.4-1] [MQTT3-3.8.4-2] [MQTT3-3.8.4-4] [MQTT3-3.8.4-5] [MQTT3-3.9.3-1] [MQTT3-2.3.1-7]"""
    client = connect(version)
    filters = [(f"{topic}/{index}", qos) for index, qos in enumerate([2, 0, 1, 1, 0, 2])]
    client.send_raw(pack_subscribe(version, 65_535, filters))
    assert client.expect(SUBACK, packet_id=65_535).reasons == [2, 0, 1, 1, 0, 2]
    client.expect_nothing(0.05)


@pytest.mark.parametrize("bad", BAD_FILTERS)
def test_bad_filter_is_refused_alone(connect, topic, version, bad):
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-3.8.4-5] [MQTT-3.9.3-2] [MQTT3-4.7.1-2] [MQTT3-4.7.1-3] [MQTT3-3.9.3-2]:
    0x8F or 0x80 in its place, the others are granted."""
    client = connect(version)
    refusal = Reason.TOPIC_FILTER_INVALID if version == V5 else 0x80
    assert client.subscribe(f"{topic}/good", bad, f"{topic}/fine", qos=1) == [1, refusal, 1]
    connect(version).publish(f"{topic}/fine", b"x")
    client.expect_publish(f"{topic}/fine", b"x")


def test_large_subscribe(connect, topic, version):
    """[MQTT-3.8.4-6] [MQTT3-3.8.4-5]: many filters in one packet."""
    client = connect(version)
    names = [f"{topic}/{index}" for index in range(500)]
    assert client.subscribe(*names, qos=1) == [1] * 500
    connect(version).publish(names[-1], b"x")
    client.expect_publish(names[-1], b"x")


def test_subscribing_again_replaces(connect, topic, version):
    """[MQTT-3.8.4-3] [MQTT3-3.8.4-3]: one subscription with the new QoS."""
    client = connect(version)
    publisher = connect(version)
    for qos in (0, 2, 1):
        assert client.subscribe(topic, qos=qos) == [qos]
        publisher.publish(topic, b"x", qos=2)
        client.expect_publish(topic, b"x", qos=qos, ack=True)
        client.expect_nothing(0.05)


def test_subscribing_again_sends_retained_again_and_loses_nothing(connect, topic, version):
    """[MQTT-3.8.4-4] [MQTT3-3.8.4-3]"""
    publisher = connect(version)
    publisher.publish(topic, b"kept", qos=1, retain=True)
    client = connect(version)
    for _ in range(2):
        client.subscribe(topic)
        client.expect_publish(topic, b"kept", retain=True)
    publisher.publish(topic, b"live")
    client.expect_publish(topic, b"live", retain=False)


def test_overlapping_subscriptions_give_one_copy_with_the_highest_qos(connect, topic, version):
    """[MQTT-3.3.4-2] [MQTT3-3.3.5-1]"""
    client = connect(version)
    client.subscribe(f"{topic}/#", qos=0)
    client.subscribe(f"{topic}/a", qos=2)
    client.subscribe(f"{topic}/+", qos=1)
    connect(version).publish(f"{topic}/a", b"x", qos=2)
    client.expect_publish(f"{topic}/a", b"x", qos=2, ack=True)
    client.expect_nothing()


def test_same_filter_twice_in_one_packet(connect, topic, version):
    """[MQTT-3.8.4-5] [MQTT3-3.8.4-4]: as a sequence, the last one counts."""
    client = connect(version)
    client.send_raw(pack_subscribe(version, 1, [(topic, 0), (topic, 2)]))
    assert client.expect(SUBACK, packet_id=1).reasons == [0, 2]
    connect(version).publish(topic, b"x", qos=2)
    client.expect_publish(topic, b"x", qos=2, ack=True)
    client.expect_nothing(0.1)


def test_every_subscriber_gets_its_copy(connect, topic):
    """[MQTT-4.5.0-1] [MQTT3-4.5.0-1]: of each version, at its QoS."""
    subscribers = [(connect(version), qos) for version in (V31, V311, V5) for qos in (0, 1, 2)]
    for subscriber, qos in subscribers:
        subscriber.subscribe(topic, qos=qos)
    connect(V5).publish(topic, b"x", qos=2)
    for subscriber, qos in subscribers:
        subscriber.expect_publish(topic, b"x", qos=qos, ack=True)


def test_publisher_that_subscribes_gets_its_own_messages(connect, topic, version):
    """4.5, 3.8.3.1: without no local."""
    client = connect(version)
    client.subscribe(topic, qos=1)
    client.publish(topic, b"mine", qos=1)
    client.expect_publish(topic, b"mine", qos=1, ack=True)


def test_user_properties_of_a_subscribe_are_accepted(connect, topic):
    """3.8.2.1.3"""
    client = connect(V5)
    assert client.subscribe(topic, properties={"user_property": [("a", "1"), ("a", "2")]}) == [0]


P, M = Reason.PROTOCOL_ERROR, Reason.MALFORMED
BAD = {
    "no filter [MQTT-3.8.3-2] [MQTT3-3.8.3-3]": (P, lambda v: pack_subscribe(v, 1, [])),
    "QoS 3 [MQTT3-3.8.3-4]": (P, lambda v: pack_subscribe(v, 1, [("a", 3)])),
    "reserved option bits [MQTT-3.8.3-5] [MQTT3-3.8.3-4]": (M, lambda v: pack_subscribe(v, 1, [("a", 0xC0)])),
    "packet id 0 [MQTT-2.2.1-3] [MQTT3-2.3.1-1]": ((P, M), lambda v: pack_subscribe(v, 0, [("a", 0)])),
    "filter not UTF-8 [MQTT-3.8.3-1] [MQTT3-3.8.3-1]": (M, lambda v: pack_subscribe(v, 1, [(b"\xff", 0)])),
    "filter with U+0000 [MQTT-4.7.3-2] [MQTT3-4.7.3-2]": (M, lambda v: pack_subscribe(v, 1, [("a\0b", 0)])),
    "flags 0 [MQTT-3.8.1-1] [MQTT3-3.8.1-1]": (M, lambda v: b"\x80" + pack_subscribe(v, 1, [("a", 0)])[1:]),
    "flags 3 [MQTT-3.8.1-1] [MQTT3-3.8.1-1]": (M, lambda v: b"\x83" + pack_subscribe(v, 1, [("a", 0)])[1:]),
    "no options byte": (M, lambda v: pack(8, pack_subscribe(v, 1, [("a", 0)])[2:-1], 2)),
    "nothing at all": ((M, P), lambda v: b"\x82\x00"),
}


@pytest.mark.parametrize(("reason", "build"), BAD.values(), ids=BAD.keys())
def test_bad_subscribe(connect, bystander, version, reason, build):
    """[MQTT-4.13.1-1] [MQTT3-4.8.0-1]"""
    client = connect(version)
    client.send_raw(build(version))
    client.expect_disconnect(reason)


BAD_5 = {
    "retain handling 3": (P, pack_subscribe(V5, 1, [("a", 0x30)])),
    "unknown property": (M, pack_subscribe(V5, 1, [("a", 0)], b"\x7f\0")),
    "property of PUBLISH": (M, pack_subscribe(V5, 1, [("a", 0)], b"\x23\0\1")),
    "property length beyond the packet": (M, b"\x82\x06\0\1\x7f\0\1a"),
}


@pytest.mark.parametrize(("reason", "packet"), BAD_5.values(), ids=BAD_5.keys())
def test_bad_subscribe_5(connect, bystander, reason, packet):
    """3.8.2.1, 3.8.3.1, [MQTT-4.13.1-1]"""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect(reason)


@pytest.mark.parametrize("options", [0x04, 0x08, 0x10, 0x20])
def test_options_of_mqtt_5_are_reserved_bits_in_311(connect, topic, options):
    """[MQTT3-3.8.3-4]"""
    client = connect(V311)
    client.send_raw(pack_subscribe(V311, 1, [(topic, options)]))
    client.expect_closed()


def test_empty_filter(connect, bystander, version):
    """[MQTT-4.7.3-1] [MQTT3-4.7.3-1]: refused, by the code of the filter or by the end of the connection."""
    client = connect(version)
    client.send_raw(pack_subscribe(version, 1, [("", 0)]))
    answer = client.receive_all(0.3, at_least=1)
    if answer and answer[0].type == SUBACK:
        assert answer[0].reasons == [Reason.TOPIC_FILTER_INVALID if version == V5 else 0x80]
    else:
        client.expect_closed()
