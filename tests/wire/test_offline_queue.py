"""Are messages for an absent client with a session kept and delivered in order when it returns?"""

import pytest

from tests.support.clients.packets import V5, V31, V311


def persistent(version):
    return {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("qos", [1, 2])
def test_messages_wait_for_the_client(connect, client_id, topic, version, qos):
    """[MQTT-4.5.0-1] [MQTT3-3.1.2-5] [MQTT3-4.5.0-1]: DUP is not set, they were never sent before."""
    subscriber = connect(version, client_id, **persistent(version))
    subscriber.subscribe(topic, qos=qos)
    subscriber.disconnect()
    payloads = [b"%d" % number for number in range(50)]
    publisher = connect(version)
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    subscriber = connect(version, client_id, **persistent(version))
    subscriber.expect_payloads(payloads, qos=qos, retain=False)
    subscriber.expect_nothing()


def test_qos_0_is_not_kept_for_the_absent(connect, client_id, topic, version):
    """4.1: keeping QoS 0 is optional for a server; this one keeps none, whichever side made it QoS 0."""
    subscriber = connect(version, client_id, **persistent(version))
    subscriber.subscribe(f"{topic}/a", qos=1)
    subscriber.subscribe(f"{topic}/b", qos=0)
    subscriber.disconnect()
    publisher = connect(version)
    publisher.publish(f"{topic}/a", b"published at 0", qos=0)
    publisher.publish(f"{topic}/b", b"subscribed at 0", qos=1)
    publisher.ping()
    connect(version, client_id, **persistent(version)).expect_nothing()


def test_queued_messages_keep_their_properties(connect, client_id, topic):
    """[MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17] [MQTT-3.3.2-18] [MQTT-3.3.2-20] [MQTT-3.3.4-3]"""
    subscriber = connect(V5, client_id, **persistent(V5))
    subscriber.subscribe(topic, qos=1, properties={"subscription_identifier": 7})
    subscriber.disconnect()
    properties = {
        "payload_format_indicator": 1,
        "content_type": "a/b",
        "response_topic": "r",
        "correlation_data": b"\x00",
        "user_property": [("z", "1"), ("a", "2"), ("z", "1")],
    }
    connect(V5).publish(topic, b"x", qos=1, properties=properties)
    publish = connect(V5, client_id, **persistent(V5)).expect_publish(topic, b"x", qos=1)
    assert publish.properties == {**properties, "subscription_identifier": [7]}


def test_every_topic_in_order_of_arrival(connect, client_id, topic, version):
    """[MQTT-4.6.0-5] [MQTT3-4.6.0-6]: of one topic, whatever their QoS; topics among each other have no order."""
    subscriber = connect(version, client_id, **persistent(version))
    subscriber.subscribe(f"{topic}/+", qos=2)
    subscriber.disconnect()
    publisher = connect(version)
    for number in range(30):
        publisher.publish(f"{topic}/{number % 3}", b"%d" % number, qos=1 + number % 2)
    subscriber = connect(version, client_id, **persistent(version))
    arrived = {f"{topic}/{number}": [] for number in range(3)}
    for _ in range(30):
        packet = subscriber.expect_publish(ack=True)
        arrived[packet.topic].append((packet.payload, packet.qos))
    for rest, packets in enumerate(arrived.values()):
        assert packets == [(b"%d" % number, 1 + number % 2) for number in range(rest, 30, 3)]


def test_messages_survive_several_partial_deliveries(connect, client_id, topic, version):
    """[MQTT-4.4.0-1] [MQTT3-4.4.0-1]: a client that takes one message per connection gets them all."""
    subscriber = connect(version, client_id, **persistent(version))
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher = connect(version)
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    for payload in payloads:
        subscriber = connect(version, client_id, **persistent(version))
        subscriber.expect_publish(topic, payload, qos=1, dup=None, ack=True)
        subscriber.ping()
        subscriber.close()
    connect(version, client_id, **persistent(version)).expect_nothing()


@pytest.mark.parametrize(("policy", "kept"), [("drop-newest", range(5)), ("drop-oldest", range(5, 10))])
def test_full_queue(*, start_broker, connect, client_id, topic, policy, kept):
    """limits.max_queued_messages and limits.queue_overflow, of a broker without a log and so without a store: what does
    not fit gives way, the rest stays in order."""
    broker = start_broker({"limits.max_queued_messages": 5, "limits.queue_overflow": policy, "ingest.log": "none"})
    options = {"broker": broker, **persistent(V5)}
    subscriber = connect(V5, client_id, **options)
    subscriber.subscribe(topic, qos=1)
    subscriber.disconnect()
    publisher = connect(V5, broker=broker)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    subscriber = connect(V5, client_id, **options)
    subscriber.expect_payloads(b"%d" % number for number in kept)
    subscriber.expect_nothing()


def test_queue_is_bounded_by_bytes(start_broker, connect, client_id, topic):
    """limits.max_queued_bytes, without a store: large messages do not fill the memory."""
    broker = start_broker({"limits.max_queued_bytes": 10_000, "ingest.log": "none"})
    options = {"broker": broker, **persistent(V5)}
    connect(V5, client_id, **options).subscribe(topic, qos=1)
    connect(V5, client_id, **options).disconnect()
    publisher = connect(V5, broker=broker)
    for _ in range(20):
        publisher.publish(topic, bytes(3000), qos=1)
    subscriber = connect(V5, client_id, **options)
    received = subscriber.receive_all(at_least=1)
    assert 1 <= len(received) <= 4
