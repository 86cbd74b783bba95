"""Does a resumed session get again what it had not acknowledged, with the same ids, in order, and nothing else?"""

import pytest

from tests.support.clients.packets import V5, PacketType

PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP


@pytest.fixture
def resume(connect, client_id, version):
    """Connects to one and the same persistent session each time it is called."""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    return lambda: connect(version, client_id, **options)


@pytest.fixture
def publisher(connect, version):
    return connect(version)


@pytest.mark.parametrize("qos", [1, 2])
def test_unacknowledged_publish_is_sent_again(resume, publisher, topic, qos):
    """[MQTT-3.3.1-1] [MQTT-4.4.0-1] [MQTT3-3.3.1-1] [MQTT3-4.4.0-1]: DUP set, same id, same content, then done."""
    subscriber = resume()
    subscriber.subscribe(topic, qos=qos)
    publisher.publish(topic, b"x", qos=qos)
    first = subscriber.expect_publish(topic, b"x", qos=qos, dup=False)
    for _ in range(2):
        subscriber.close()
        subscriber = resume()
        again = subscriber.expect_publish(topic, b"x", qos=qos, dup=True)
        assert again.packet_id == first.packet_id
    subscriber.ack(again)
    subscriber.ping()
    subscriber.close()
    resume().expect_nothing()


def test_pubrel_is_sent_again_and_not_the_publish(resume, publisher, topic):
    """[MQTT-4.3.3-5] [MQTT-4.3.3-6] [MQTT-4.4.0-1] [MQTT3-4.3.3-1] [MQTT3-4.4.0-1]"""
    subscriber = resume()
    subscriber.subscribe(topic, qos=2)
    publisher.publish(topic, b"x", qos=2)
    publish = subscriber.expect_publish(topic, b"x", qos=2)
    subscriber.send_ack(PUBREC, publish.packet_id)
    subscriber.expect(PUBREL, packet_id=publish.packet_id)
    for _ in range(2):
        subscriber.close()
        subscriber = resume()
        subscriber.expect(PUBREL, packet_id=publish.packet_id, reason=0)
    subscriber.send_ack(PUBCOMP, publish.packet_id)
    subscriber.ping()
    subscriber.close()
    resume().expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_order_is_kept_across_a_resume(resume, publisher, topic, qos):
    """[MQTT-4.6.0-1] [MQTT-4.6.0-5] [MQTT3-4.6.0-1] [MQTT3-4.6.0-6]: in flight, then queued, then live."""
    subscriber = resume()
    subscriber.subscribe(topic, qos=qos)
    for number in range(5):
        publisher.publish(topic, b"flight %d" % number, qos=qos)
    in_flight = subscriber.expect_payloads([b"flight %d" % number for number in range(5)], ack=False)
    subscriber.ack(in_flight[2])
    subscriber.ping()
    subscriber.close()
    for number in range(5):
        publisher.publish(topic, b"queued %d" % number, qos=qos)
    subscriber = resume()
    for index in (0, 1, 3, 4):
        again = subscriber.expect_publish(topic, b"flight %d" % index, qos=qos, dup=True)
        assert again.packet_id == in_flight[index].packet_id
    queued = subscriber.expect_payloads([b"queued %d" % number for number in range(5)], ack=False, dup=None)
    assert not {publish.packet_id for publish in queued} & {in_flight[index].packet_id for index in (0, 1, 3, 4)}
    publisher.publish(topic, b"live", qos=qos)
    subscriber.expect_publish(topic, b"live", qos=qos, dup=False)


def test_mixed_states_are_resumed_in_their_order(resume, publisher, topic):
    """[MQTT-4.4.0-1] [MQTT3-4.4.0-1]: PUBREL for what was received, PUBLISH for what was not."""
    subscriber = resume()
    subscriber.subscribe(topic, qos=2)
    for payload in (b"a", b"b", b"c"):
        publisher.publish(topic, payload, qos=2)
    a, b, c = subscriber.expect_payloads([b"a", b"b", b"c"], ack=False)
    subscriber.send_ack(PUBREC, a.packet_id)
    subscriber.expect(PUBREL, packet_id=a.packet_id)
    subscriber.ack(b)
    subscriber.ping()
    subscriber.close()
    subscriber = resume()
    resent = [subscriber.receive() for _ in range(2)]
    assert [
        (packet.type, packet.packet_id) for packet in sorted(resent, key=lambda packet: packet.packet_id)
    ] == sorted([(PUBREL, a.packet_id), (PacketType.PUBLISH, c.packet_id)], key=lambda pair: pair[1])
    subscriber.expect_nothing()


def test_clean_start_sends_nothing_again(*, resume, connect, client_id, publisher, topic, version):
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]"""
    subscriber = resume()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"x", qos=1)
    subscriber.expect_publish(topic, b"x", qos=1)
    subscriber.close()
    connect(version, client_id, clean_start=True).expect_nothing()


def test_resume_respects_a_smaller_receive_maximum(connect, client_id, topic):
    """[MQTT-3.3.4-9] [MQTT-4.9.0-1]: the new connection's maximum counts for what is sent again."""

    def resume(receive_maximum):
        properties = {"session_expiry_interval": 60, "receive_maximum": receive_maximum}
        return connect(V5, client_id, clean_start=False, properties=properties)

    subscriber = resume(10)
    subscriber.subscribe(topic, qos=1)
    publisher = connect(V5)
    payloads = [b"%d" % number for number in range(5)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    subscriber.expect_payloads(payloads, ack=False)
    subscriber.close()
    subscriber = resume(2)
    first, second = subscriber.expect_payloads(payloads[:2], ack=False, dup=True)
    subscriber.expect_nothing()
    subscriber.ack(first)
    third = subscriber.expect_publish(topic, payloads[2], dup=True)
    subscriber.expect_nothing()
    subscriber.ack(second)
    subscriber.ack(third)
    subscriber.expect_payloads(payloads[3:], dup=True)


def test_unsubscribing_does_not_stop_what_is_in_flight(resume, publisher, topic):
    """[MQTT-3.10.4-3] [MQTT3-3.10.4-3]: delivery that was begun is completed, also over a reconnect."""
    subscriber = resume()
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"x", qos=1)
    first = subscriber.expect_publish(topic, b"x", qos=1)
    subscriber.unsubscribe(topic)
    subscriber.close()
    subscriber = resume()
    again = subscriber.expect_publish(topic, b"x", qos=1, dup=True)
    assert again.packet_id == first.packet_id
    subscriber.ack(again)
    subscriber.expect_nothing()
