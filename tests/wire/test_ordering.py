"""Does each subscriber get the messages of one publisher in the order in which they were sent?"""

import pytest

from tests.support.clients.packets import V5, PacketType, pack_publish


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_order_per_topic_and_qos(connect, topic, version, qos):
    """[MQTT-4.6.0-5] [MQTT-4.6.0-6] [MQTT3-4.6.0-5] [MQTT3-4.6.0-6]"""
    subscribers = [connect(version) for _ in range(3)]
    for subscriber in subscribers:
        subscriber.subscribe(f"{topic}/#", qos=qos)
    publisher = connect(version)
    count = 90
    for number in range(count):
        publisher.send_publish(f"{topic}/{number % 2}", b"%d" % number, qos=qos)
        if qos == 2:
            pubrec = publisher.await_packet(PacketType.PUBREC, number + 1)
            publisher.send_ack(PacketType.PUBREL, pubrec.packet_id)
    for subscriber in subscribers:
        publishes = [subscriber.expect_publish(ack=True) for _ in range(count)]
        assert [publish.payload for publish in publishes] == [b"%d" % number for number in range(count)]


def test_order_with_mixed_qos(connect, topic):
    """4.6: within one QoS the order holds; this server keeps it across QoS as well while nothing has to wait."""
    subscriber = connect(V5)
    subscriber.subscribe(topic, qos=2)
    publisher = connect(V5)
    for number in range(30):
        publisher.publish(topic, b"%d" % number, qos=number % 3)
    received = [subscriber.expect_publish(topic, ack=True) for _ in range(30)]
    for qos in range(3):
        assert [packet.payload for packet in received if packet.qos == qos] == [b"%d" % n for n in range(qos, 30, 3)]


def test_order_of_many_small_segments_and_one_large(connect, topic, version):
    """[MQTT-4.6.0-5] [MQTT3-4.6.0-6]: however the bytes arrive."""
    subscriber = connect(version)
    subscriber.subscribe(topic)
    publisher = connect(version)
    packets = [pack_publish(version, topic, b"%d" % number) for number in range(2000)]
    publisher.send_raw(b"".join(packets[:1500]))
    for packet in packets[1500:1600]:
        publisher.send_raw(packet)
    publisher.send_raw(b"".join(packets[1600:]))
    subscriber.expect_payloads(b"%d" % number for number in range(2000))


def test_order_across_a_full_receive_maximum(connect, topic):
    """[MQTT-4.6.0-5]: what waits is not overtaken."""
    subscriber = connect(V5, properties={"receive_maximum": 3})
    subscriber.subscribe(topic, qos=1)
    publisher = connect(V5)
    for number in range(100):
        publisher.publish(topic, b"%d" % number, qos=1)
    subscriber.expect_payloads(b"%d" % number for number in range(100))
