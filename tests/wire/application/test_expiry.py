"""Are expired messages skipped without a trace, and do the others say how long they have left?"""

import time

import pytest

from tests.support.clients.packets import V5, V311
from tests.support.worlds.application import until


def expiring(seconds):
    return {"message_expiry_interval": seconds}


@pytest.fixture
def absent(open_app, topic):
    """An APPLICATION of each version that has subscribed and left; gives its return."""

    def leave(version, qos=1):
        client = open_app(version)
        client.subscribe(topic, qos=qos)
        client.disconnect()
        return lambda: open_app(version)

    return leave


def test_expired_messages_are_skipped_without_a_packet_id(absent, publisher, topic, version):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6], seed: skipped, no id used; the remaining seconds are forwarded."""
    returns = absent(version)
    for payload, properties in (
        (b"first", None),
        (b"short", expiring(1)),
        (b"long", expiring(100)),
        (b"short too", expiring(2)),
        (b"last", None),
    ):
        publisher.publish(topic, payload, qos=1, properties=properties)
    time.sleep(2.2)
    client = returns()
    packets = client.expect_payloads([b"first", b"long", b"last"], ack=True)
    ids = [packet.packet_id for packet in packets]
    assert ids == list(range(ids[0], ids[0] + 3)), "an expired message used up a packet id"
    if version == V5:
        assert 95 <= packets[1].properties["message_expiry_interval"] <= 98
        assert "message_expiry_interval" not in packets[0].properties
    client.expect_nothing()
    client.close()
    returns().expect_nothing()


def test_a_backlog_that_expired_whole(broker, open_app, publisher, topic, app_id):
    """Whole packs of nothing: the offset is committed all the same and new messages come."""
    client = open_app(V311)
    client.subscribe(topic, qos=1)
    client.disconnect()
    for number in range(300):
        publisher.send_publish(topic, b"%d" % number, qos=0)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1, properties=expiring(1))
    time.sleep(1.3)
    client = open_app(V311)
    publisher.publish(topic, b"alive", qos=1)
    client.expect_publish(topic, b"alive", ack=True)
    client.expect_nothing(0.1)
    until(lambda: broker.application(app_id)["lag"] == 0, 60, "committed")


def test_interval_0_is_never_stored(absent, publisher, topic):
    """3.3.2.3.3 and reference, defect 9: 0 has passed as soon as the message has to wait."""
    returns = absent(V5)
    publisher.publish(topic, b"now or never", qos=1, properties=expiring(0))
    publisher.publish(topic, b"after", qos=1)
    time.sleep(0.05)
    client = returns()
    client.expect_publish(topic, b"after", ack=True)
    client.expect_nothing(0.1)


@pytest.mark.parametrize("interval", [0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_long_intervals(absent, publisher, topic, interval):
    """Reference, defect 9: an interval from 2**31 on is neither expired nor for ever."""
    returns = absent(V5)
    publisher.publish(topic, b"x", qos=1, properties=expiring(interval))
    left = returns().expect_publish(topic, b"x", ack=True).properties["message_expiry_interval"]
    assert interval - 5 <= left <= interval


def test_live_messages_say_their_interval(open_app, publisher, topic):
    client = open_app(V5)
    client.subscribe(topic, qos=1)
    publisher.publish(topic, b"x", qos=1, properties=expiring(50))
    left = client.expect_publish(topic, b"x", ack=True).properties["message_expiry_interval"]
    assert 48 <= left <= 50


@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_sent_once_is_sent_again_after_it_expired(open_app, publisher, topic, qos):
    """[MQTT-4.4.0-1] [MQTT-4.3.3-7]: a delivery that has begun is completed."""
    client = open_app(V5)
    client.subscribe(topic, qos=qos)
    publisher.publish(topic, b"x", qos=qos, properties=expiring(1))
    first = client.expect_publish(topic, b"x", qos=qos)
    client.close()
    time.sleep(1.3)
    client = open_app(V5)
    again = client.expect_publish(topic, b"x", qos=qos, dup=True, ack=True)
    assert again.packet_id == first.packet_id
    client.expect_nothing(0.1)
