"""Is the message expiry interval forwarded with the time that remains, and an expired message never delivered?"""

import time

from tests.support.clients.packets import V5, PacketType

PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
PERSISTENT = {"clean_start": False, "properties": {"session_expiry_interval": 60}}


def expiring(seconds):
    return {"message_expiry_interval": seconds}


def test_interval_is_forwarded(connect, topic):
    """[MQTT-3.3.2-6]: what did not wait has the value of the publisher; what had none gets none."""
    subscriber = connect(V5)
    subscriber.subscribe(topic, qos=2)
    publisher = connect(V5)
    for qos in (0, 1, 2):
        publisher.publish(topic, b"x", qos=qos, properties=expiring(100))
        publish = subscriber.expect_publish(topic, b"x", qos=qos, ack=True)
        assert publish.properties["message_expiry_interval"] in (99, 100)
    publisher.publish(topic, b"x")
    assert subscriber.expect_publish(topic, b"x").properties == {}


def test_waiting_messages(connect, new_name, topic):
    """[MQTT-3.3.2-5] [MQTT-3.3.2-6]: in the queue of an absent client and behind a full receive maximum."""
    absent = new_name("client")
    client = connect(V5, absent, **PERSISTENT)
    client.subscribe(topic, qos=1)
    client.disconnect()
    narrow = connect(V5, properties={"receive_maximum": 1})
    narrow.subscribe(topic, qos=1)
    publisher = connect(V5)
    publisher.publish(topic, b"first", qos=1)
    publisher.publish(topic, b"short", qos=1, properties=expiring(1))
    publisher.publish(topic, b"long", qos=1, properties=expiring(60))
    publisher.publish(topic, b"last", qos=1)
    first = narrow.expect_publish(topic, b"first")
    time.sleep(2.1)
    narrow.ack(first)
    returned = connect(V5, absent, **PERSISTENT)
    returned.expect_publish(topic, b"first", ack=True)
    for client in (narrow, returned):
        publish = client.expect_publish(topic, b"long", ack=True)
        assert 55 <= publish.properties["message_expiry_interval"] <= 58
        client.expect_publish(topic, b"last", ack=True)
        client.expect_nothing(0.1)


def test_interval_0_never_waits(connect, client_id, topic):
    """3.3.2.3.3: 0 has passed as soon as the message has to wait; it is delivered at once or not at all."""
    client = connect(V5, client_id, **PERSISTENT)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher = connect(V5)
    publisher.publish(topic, b"now or never", qos=1, properties=expiring(0))
    publisher.publish(topic, b"after", qos=1)
    time.sleep(0.05)
    connect(V5, client_id, **PERSISTENT).expect_publish(topic, b"after")


def test_largest_interval(connect, client_id, topic):
    """3.3.2.3.3: 0xFFFFFFFF seconds from now is no overflow."""
    client = connect(V5, client_id, **PERSISTENT)
    client.subscribe(topic, qos=1)
    client.disconnect()
    connect(V5).publish(topic, b"x", qos=1, properties=expiring(0xFFFFFFFF))
    publish = connect(V5, client_id, **PERSISTENT).expect_publish(topic, b"x")
    assert publish.properties["message_expiry_interval"] >= 0xFFFFFFFF - 3


def test_started_delivery_is_completed_after_expiry(connect, client_id, topic):
    """[MQTT-4.3.3-7] [MQTT-4.3.3-13]: expiry stops no QoS 2 exchange that has begun, in either direction."""
    subscriber = connect(V5, client_id, **PERSISTENT)
    subscriber.subscribe(topic, qos=2)
    publisher = connect(V5)
    publisher.send_publish(topic, b"x", qos=2, packet_id=1, properties=expiring(1))
    publisher.expect(PUBREC, packet_id=1)
    publisher.send_ack(PUBREL, 1)
    publisher.expect(PUBCOMP, packet_id=1)
    publisher.send_publish(topic, b"y", qos=2, packet_id=2, properties=expiring(1))
    publisher.expect(PUBREC, packet_id=2)
    publish = subscriber.expect_publish(topic, b"x", qos=2)
    time.sleep(1.6)
    subscriber.send_ack(PUBREC, publish.packet_id)
    subscriber.await_packet(PUBREL, publish.packet_id)
    subscriber.send_ack(PUBCOMP, publish.packet_id)
    publisher.send_ack(PUBREL, 2)
    publisher.expect(PUBCOMP, packet_id=2, reason=0)


def test_publish_in_flight_is_sent_again_after_expiry(connect, client_id, topic):
    """[MQTT-4.4.0-1] [MQTT-4.3.3-7]: what was sent once belongs to the session until it is acknowledged."""
    subscriber = connect(V5, client_id, **PERSISTENT)
    subscriber.subscribe(topic, qos=2)
    connect(V5).publish(topic, b"x", qos=2, properties=expiring(1))
    first = subscriber.expect_publish(topic, b"x", qos=2)
    subscriber.close()
    time.sleep(1.6)
    again = connect(V5, client_id, **PERSISTENT)
    assert again.expect_publish(topic, b"x", qos=2, dup=True, ack=True).packet_id == first.packet_id
