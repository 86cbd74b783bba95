"""Are subscription identifiers sent back with every message their subscription caused?"""

import pytest

from tests.support.clients.packets import V5, Reason, pack_subscribe

LARGEST = 268_435_455


@pytest.mark.parametrize("identifier", [1, 127, 128, 16_384, LARGEST])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_identifier_comes_with_the_message(connect, topic, identifier, qos):
    """[MQTT-3.3.4-3] [MQTT-3.3.4-4]"""
    subscriber = connect(V5)
    subscriber.subscribe(topic, qos=qos, properties={"subscription_identifier": identifier})
    connect(V5).publish(topic, b"x", qos=qos)
    subscriber.expect_publish(topic, b"x", qos=qos, properties={"subscription_identifier": [identifier]}, ack=True)


def test_overlapping_subscriptions(connect, topic):
    """[MQTT-3.3.4-2] [MQTT-3.3.4-3] [MQTT-3.3.4-4]: one copy, the highest QoS, all identifiers there are."""
    subscriber = connect(V5)
    subscriber.subscribe(f"{topic}/a", qos=0, properties={"subscription_identifier": 1})
    subscriber.subscribe(f"{topic}/#", qos=2, properties={"subscription_identifier": 2})
    subscriber.subscribe(f"{topic}/+", qos=1)
    connect(V5).publish(f"{topic}/a", b"x", qos=2)
    publish = subscriber.expect_publish(f"{topic}/a", b"x", qos=2, ack=True)
    assert sorted(publish.properties["subscription_identifier"]) == [1, 2]
    subscriber.expect_nothing()


def test_one_identifier_for_several_filters(connect, topic):
    """3.8.2.1.2: it belongs to each subscription of the packet."""
    subscriber = connect(V5)
    subscriber.subscribe(f"{topic}/a", f"{topic}/b", properties={"subscription_identifier": 5})
    publisher = connect(V5)
    for name in ("a", "b"):
        publisher.publish(f"{topic}/{name}", b"x")
        subscriber.expect_publish(f"{topic}/{name}", properties={"subscription_identifier": [5]})


@pytest.mark.parametrize(("properties", "expected"), [({"subscription_identifier": 2}, [2]), (None, None)])
def test_identifier_is_replaced_with_the_subscription(connect, topic, properties, expected):
    """[MQTT-3.8.4-3]: a new one, or none."""
    subscriber = connect(V5)
    subscriber.subscribe(topic, properties={"subscription_identifier": 1})
    subscriber.subscribe(topic, properties=properties)
    connect(V5).publish(topic, b"x")
    assert subscriber.expect_publish(topic, b"x").properties.get("subscription_identifier") == expected


def test_identifier_outlives_the_connection(connect, client_id, topic):
    """4.1: it is part of the session."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    first = connect(V5, client_id, **options)
    first.subscribe(topic, qos=1, properties={"subscription_identifier": 3})
    first.disconnect()
    connect(V5).publish(topic, b"x", qos=1)
    second = connect(V5, client_id, **options)
    second.expect_publish(topic, b"x", properties={"subscription_identifier": [3]}, ack=True)
    connect(V5).publish(topic, b"y", qos=1)
    second.expect_publish(topic, b"y", properties={"subscription_identifier": [3]}, ack=True)


def test_identifier_of_a_shared_subscription(connect, topic):
    """[MQTT-3.3.4-3], 4.8.2"""
    subscriber = connect(V5)
    subscriber.subscribe(f"$share/group/{topic}", properties={"subscription_identifier": 4})
    connect(V5).publish(topic, b"x")
    subscriber.expect_publish(topic, b"x", properties={"subscription_identifier": [4]})


BAD = {
    "zero": b"\x0b\x00",
    "twice": b"\x0b\x01\x0b\x02",
    "five bytes": b"\x0b\xff\xff\xff\xff\x01",
}


@pytest.mark.parametrize("block", BAD.values(), ids=BAD.keys())
def test_bad_identifier(connect, bystander, topic, block):
    """3.8.2.1.2: 0 and a second one are protocol errors, a longer one is malformed."""
    client = connect(V5)
    client.send_raw(pack_subscribe(V5, 1, [(topic, 0)], block))
    client.expect_disconnect(Reason.MALFORMED if len(block) > 4 else Reason.PROTOCOL_ERROR)


def test_client_may_not_publish_with_an_identifier(connect, bystander, topic):
    """[MQTT-3.3.4-6]: a protocol error."""
    client = connect(V5)
    client.send_publish(topic, b"x", properties={"subscription_identifier": 1})
    client.expect_disconnect(Reason.PROTOCOL_ERROR)
