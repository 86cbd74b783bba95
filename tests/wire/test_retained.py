"""Are retained messages set, replaced, removed and found as they should be?"""

import time

import pytest

from tests.support.clients.packets import V5, V31, V311

ALL_VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


@pytest.fixture
def find(connect, version):
    """find(filter) gives {topic: payload} of what a new subscriber is sent; all of it must be flagged as retained."""

    def find_retained(topic_filter, qos=2):
        client = connect(version)
        client.subscribe(topic_filter, qos=qos)
        client.ping()
        publishes = client.receive_all(0.1)
        assert all(publish.retain for publish in publishes)
        return {publish.topic: publish.payload for publish in publishes}

    return find_retained


@ALL_VERSIONS
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_new_subscriber_gets_the_retained_message(connect, topic, version, qos):
    """[MQTT-3.3.1-5] [MQTT-3.3.1-9] [MQTT3-3.3.1-5] [MQTT3-3.3.1-6] [MQTT3-3.3.1-8]: flag set, with its QoS."""
    publisher = connect(version)
    publisher.publish(topic, b"kept", qos=qos, retain=True)
    publisher.ping()
    subscriber = connect(version)
    assert subscriber.subscribe(topic, qos=2) == [2]
    subscriber.expect_publish(topic, b"kept", qos=qos, retain=True, dup=False, ack=True)
    subscriber.expect_nothing()


@pytest.mark.parametrize("granted", [0, 1])
def test_retained_is_delivered_at_the_lower_qos(connect, topic, version, granted):
    """[MQTT-3.8.4-8] [MQTT3-3.8.4-6]"""
    connect(version).publish(topic, b"kept", qos=2, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=granted)
    subscriber.expect_publish(topic, b"kept", qos=granted, retain=True)


def test_live_delivery_has_no_retain_flag(connect, topic, version):
    """[MQTT-3.3.1-12] [MQTT3-3.3.1-9]: an established subscription gets it as a normal message."""
    subscriber = connect(version)
    subscriber.subscribe(topic)
    connect(version).publish(topic, b"x", retain=True)
    subscriber.expect_publish(topic, b"x", retain=False)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_newer_replaces_older(connect, find, topic, qos):
    """[MQTT-3.3.1-5] [MQTT3-3.3.1-5] [MQTT3-3.3.1-7]: also one of QoS 0 replaces one of QoS 2."""
    publisher = connect(V5)
    publisher.publish(topic, b"old", qos=2, retain=True)
    publisher.publish(topic, b"new", qos=qos, retain=True)
    publisher.ping()
    assert find(topic) == {topic: b"new"}


def test_empty_payload_removes(connect, find, topic, version):
    """[MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT3-3.3.1-10] [MQTT3-3.3.1-11]: and is itself a normal message."""
    publisher = connect(version)
    publisher.publish(topic, b"old", qos=1, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(topic)
    subscriber.expect_publish(topic, b"old", retain=True)
    publisher.publish(topic, b"", qos=1, retain=True)
    subscriber.expect_publish(topic, b"", retain=False)
    assert find(topic) == {}


def test_not_retained_leaves_the_retained_one_alone(connect, find, topic, version):
    """[MQTT-3.3.1-8] [MQTT3-3.3.1-12]: neither stored nor replacing nor removing."""
    publisher = connect(version)
    publisher.publish(f"{topic}/none", b"x", qos=1)
    publisher.publish(f"{topic}/kept", b"kept", qos=1, retain=True)
    publisher.publish(f"{topic}/kept", b"passing", qos=1)
    publisher.publish(f"{topic}/kept", b"", qos=1)
    assert find(f"{topic}/#") == {f"{topic}/kept": b"kept"}


def test_lookup_by_filter(connect, find, topic):
    """[MQTT-3.3.1-9] [MQTT3-3.3.1-6], 4.7: all that match, none that do not."""
    publisher = connect(V5)
    names = ["", "/a", "/a/b", "/a/b/c", "/b", "/b/b", "//b", "/a/"]
    for name in names:
        publisher.publish(topic + name, name.encode() or b"-", qos=1, retain=True)

    def found(topic_filter):
        return {name.removeprefix(topic) for name in find(topic + topic_filter)}

    assert found("/#") == set(names)
    assert found("/+") == {"/a", "/b"}
    assert found("/+/b") == {"/a/b", "/b/b", "//b"}
    assert found("/a/#") == {"/a", "/a/b", "/a/b/c", "/a/"}
    assert found("/a/+") == {"/a/b", "/a/"}
    assert found("/+/+/c") == {"/a/b/c"}
    assert found("") == {""}
    assert found("/c/#") == set()


def test_leading_wildcard_does_not_find_dollar_topics(connect, find, new_name):
    """[MQTT-4.7.2-1] [MQTT3-4.7.2-1]: also among retained messages."""
    name = new_name("$private")
    connect(V5).publish(f"{name}/x", b"hidden", qos=1, retain=True)
    assert f"{name}/x" not in find("#")
    assert find("+/x") == {}
    assert find(f"{name}/+") == {f"{name}/x": b"hidden"}


def test_many_retained_messages_are_all_sent(connect, topic, version):
    """[MQTT-3.3.1-9] [MQTT3-3.3.1-6]: more than fit in flight at once."""
    publisher = connect(version)
    names = {f"{topic}/{number}" for number in range(300)}
    for name in names:
        publisher.publish(name, b"kept", qos=1, retain=True)
    subscriber = connect(version)
    subscriber.subscribe(f"{topic}/+", qos=1)
    assert {subscriber.expect_publish(retain=True, ack=True).topic for _ in names} == names


def test_properties_are_kept(connect, topic):
    """[MQTT-3.3.1-5] [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20]"""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "a/b",
        "response_topic": "r",
        "correlation_data": b"\x00",
        "user_property": [("z", "1"), ("a", "2")],
    }
    connect(V5).publish(topic, b"kept", qos=1, retain=True, properties=properties)
    subscriber = connect(V5)
    subscriber.subscribe(topic, properties={"subscription_identifier": 9})
    publish = subscriber.expect_publish(topic, b"kept", retain=True)
    assert publish.properties == {**properties, "subscription_identifier": [9]}
    old = connect(V311)
    old.subscribe(topic)
    old.expect_publish(topic, b"kept", retain=True)


def test_retained_message_expires(connect, topic):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6], 3.3.2.3.3: the remaining time is told; afterwards it is gone."""
    publisher = connect(V5)
    publisher.publish(f"{topic}/long", b"x", qos=1, retain=True, properties={"message_expiry_interval": 60})
    publisher.publish(f"{topic}/short", b"x", qos=1, retain=True, properties={"message_expiry_interval": 1})
    time.sleep(2.1)
    subscriber = connect(V5)
    subscriber.subscribe(f"{topic}/#")
    publish = subscriber.expect_publish(f"{topic}/long")
    assert 55 <= publish.properties["message_expiry_interval"] <= 58
    subscriber.expect_nothing()


def test_each_filter_of_a_subscribe_finds_its_own(connect, topic, version):
    """[MQTT-3.8.4-5] [MQTT3-3.8.4-4]: as if each filter had come in a packet of its own."""
    publisher = connect(version)
    for name in ("a", "b", "c"):
        publisher.publish(f"{topic}/{name}", name.encode(), qos=1, retain=True)
    subscriber = connect(version)
    assert subscriber.subscribe(f"{topic}/a", f"{topic}/b") == [0, 0]
    assert {subscriber.expect_publish(retain=True).payload for _ in range(2)} == {b"a", b"b"}
    subscriber.expect_nothing()
