"""Is the receive maximum of either side respected, and does it hold up nothing but QoS 1 and 2 publishes?"""

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason

PUBREC, PUBREL, PUBCOMP = PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
SERVER_MAXIMUM = 100


@pytest.fixture
def narrow(connect, topic):
    """A subscriber at QoS 2 that takes two unacknowledged messages at a time."""
    client = connect(V5, properties={"receive_maximum": 2})
    client.subscribe(topic, qos=2)
    return client


@pytest.mark.parametrize("qos", [1, 2])
def test_server_keeps_to_the_clients_maximum(connect, narrow, topic, qos):
    """[MQTT-3.3.4-9] [MQTT-4.9.0-2]: the next goes out when one is acknowledged, in order, none is lost."""
    publisher = connect(V5)
    for number in range(6):
        publisher.publish(topic, b"%d" % number, qos=qos)
    in_flight = narrow.expect_payloads([b"0", b"1"], ack=False)
    narrow.expect_nothing()
    for number in range(2, 6):
        narrow.ack(in_flight.pop(0))
        in_flight.append(narrow.expect_publish(topic, b"%d" % number, qos=qos))
        narrow.expect_nothing(0.05)


def test_quota_is_given_back_by_pubcomp_not_by_pubrec(connect, narrow, topic):
    """[MQTT-3.3.4-9], 4.9: a QoS 2 message counts until its PUBCOMP."""
    publisher = connect(V5)
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=2)
    first, _ = narrow.expect_payloads([b"0", b"1"], ack=False)
    narrow.send_ack(PUBREC, first.packet_id)
    narrow.expect(PUBREL, packet_id=first.packet_id)
    narrow.expect_nothing()
    narrow.send_ack(PUBCOMP, first.packet_id)
    narrow.expect_publish(topic, b"2")


def test_quota_is_given_back_by_a_pubrec_with_an_error(connect, narrow, topic):
    """[MQTT-3.3.4-9], 4.9"""
    publisher = connect(V5)
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=2)
    first, _ = narrow.expect_payloads([b"0", b"1"], ack=False)
    narrow.send_ack(PUBREC, first.packet_id, Reason.UNSPECIFIED)
    narrow.expect_publish(topic, b"2")


def test_quota_does_not_rise_above_the_maximum(connect, narrow, topic):
    """4.9: acknowledgements of unknown ids give nothing."""
    for packet_id in (1000, 1001, 1002):
        narrow.send_ack(PacketType.PUBACK, packet_id)
        narrow.send_ack(PUBCOMP, packet_id)
    narrow.ping()
    publisher = connect(V5)
    for number in range(4):
        publisher.publish(topic, b"%d" % number, qos=1)
    narrow.expect_payloads([b"0", b"1"], ack=False)
    narrow.expect_nothing()


def test_full_quota_delays_nothing_else(connect, narrow, topic, new_name):
    """[MQTT-3.3.4-10] [MQTT-4.9.0-3]: QoS 0, SUBACK, UNSUBACK, acknowledgements and pings go on."""
    publisher = connect(V5)
    other = new_name("other/")
    for number in range(3):
        publisher.publish(topic, b"%d" % number, qos=1)
    narrow.expect_payloads([b"0", b"1"], ack=False)
    assert narrow.subscribe(other, qos=0) == [0]
    publisher.publish(other, b"QoS 0")
    narrow.expect_publish(other, b"QoS 0", qos=0)
    assert narrow.publish(other, b"mine", qos=1).reason == 0
    narrow.expect_publish(other, b"mine", qos=0)
    assert narrow.unsubscribe(other) == [0]
    narrow.ping()


def test_maximum_of_one(connect, topic):
    """[MQTT-3.3.4-9]: strictly one after the other."""
    client = connect(V5, properties={"receive_maximum": 1})
    client.subscribe(topic, qos=1)
    publisher = connect(V5)
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
    client.expect_payloads(b"%d" % number for number in range(20))


def test_client_may_use_the_whole_maximum_of_the_server(connect, topic):
    """3.2.2.3.3: 100 unacknowledged QoS 2 publishes are accepted; PUBCOMP frees each."""
    client = connect(V5)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.expect(PUBREC, packet_id=packet_id)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.send_ack(PUBREL, packet_id)
        client.expect(PUBCOMP, packet_id=packet_id)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
        client.expect(PUBREC, packet_id=packet_id)


def test_client_that_exceeds_the_maximum_is_disconnected(connect, bystander, topic):
    """[MQTT-3.3.4-7], 3.3.4: DISCONNECT 0x93."""
    client = connect(V5)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
        client.expect(PUBREC, packet_id=packet_id)
    client.send_publish(topic, b"x", qos=2, packet_id=SERVER_MAXIMUM + 1)
    client.expect_disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)


def test_duplicate_of_a_qos_2_publish_does_not_count_again(connect, topic):
    """[MQTT-4.3.3-10]: the same id sent again is no further message."""
    client = connect(V5)
    for packet_id in range(1, SERVER_MAXIMUM + 1):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
        client.expect(PUBREC, packet_id=packet_id)
    client.send_publish(topic, b"x", qos=2, packet_id=1, dup=True)
    client.expect(PUBREC, packet_id=1)


def test_mqtt_311_knows_no_receive_maximum(connect, topic):
    """3.1.1 gives a client no limit: 200 QoS 2 publishes in flight are answered."""
    client = connect(V311)
    for packet_id in range(1, 201):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
        client.expect(PUBREC, packet_id=packet_id)
    for packet_id in range(1, 201):
        client.send_ack(PUBREL, packet_id)
        client.expect(PUBCOMP, packet_id=packet_id)


@pytest.fixture
def resume(connect, client_id):
    """Connects to one and the same persistent session with the given receive maximum."""

    def connect_again(receive_maximum):
        properties = {"session_expiry_interval": 60, "receive_maximum": receive_maximum}
        return connect(V5, client_id, clean_start=False, properties=properties)

    return connect_again


def test_full_quota_does_not_delay_pubrel_on_resume(connect, resume, topic):
    """[MQTT-3.3.4-10] [MQTT-4.4.0-1]: PUBREL is no PUBLISH and goes out at once."""
    client = resume(10)
    client.subscribe(topic, qos=2)
    publisher = connect(V5)
    for payload in (b"first", b"second"):
        publisher.publish(topic, payload, qos=2)
    _, second = client.expect_payloads([b"first", b"second"], ack=False)
    client.send_ack(PUBREC, second.packet_id)
    client.expect(PUBREL, packet_id=second.packet_id)
    client.close()
    resume(1).await_packet(PUBREL, second.packet_id)


def test_acknowledgement_of_what_was_not_sent_again_yet_gives_no_quota(connect, resume, topic):
    """[MQTT-3.3.4-9]: after a resume only what is on the way in this connection counts."""
    client = resume(10)
    client.subscribe(topic, qos=1)
    publisher = connect(V5)
    payloads = [b"%d" % number for number in range(4)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    in_flight = client.expect_payloads(payloads, ack=False)
    client.close()
    client = resume(1)
    first = client.expect_publish(topic, b"0", dup=True)
    client.send_ack(PacketType.PUBACK, in_flight[3].packet_id)
    client.expect_nothing()
    client.ack(first)
    client.expect_payloads([b"1", b"2"], dup=True)
    client.expect_nothing(0.1)
