"""Does the server deliver at QoS 0, 1 and 2 by the book, with the lower of the two QoS?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, pack_ack, pack_publish

PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP


@pytest.mark.parametrize("version", [V31, V311, V5])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("published", [0, 1, 2])
def test_delivered_qos_is_the_lower_one(connect, topic, version, granted, published):
    """[MQTT-3.8.4-7] [MQTT-3.8.4-8] [MQTT3-3.8.4-6] [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2]"""
    subscriber = connect(version)
    assert subscriber.subscribe(topic, qos=granted) == [granted]
    connect(version).publish(topic, b"x", qos=published)
    subscriber.expect_publish(topic, b"x", qos=min(granted, published), dup=False, ack=True)
    subscriber.expect_nothing()


def test_qos_2_exchange_from_the_server(connect, topic, version):
    """[MQTT-4.3.3-4] [MQTT3-4.3.3-1]: PUBREL with the id of the PUBLISH after PUBREC."""
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=2)
    connect(version).publish(topic, b"x", qos=2)
    publish = subscriber.expect_publish(topic, b"x", qos=2)
    subscriber.send_ack(PUBREC, publish.packet_id)
    subscriber.expect(PUBREL, packet_id=publish.packet_id, reason=0)
    subscriber.send_ack(PUBCOMP, publish.packet_id)
    subscriber.expect_nothing()


def test_second_pubrec_is_answered_again(connect, topic, version):
    """[MQTT-4.3.3-4] [MQTT3-4.3.3-1]: until PUBCOMP the id is in use and PUBREL may be asked for again."""
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=2)
    connect(version).publish(topic, b"x", qos=2)
    publish = subscriber.expect_publish(topic, b"x", qos=2)
    for _ in range(2):
        subscriber.send_ack(PUBREC, publish.packet_id)
        subscriber.expect(PUBREL, packet_id=publish.packet_id, reason=0)


@pytest.mark.parametrize("qos", [1, 2])
def test_nothing_is_sent_again_within_a_connection(connect, topic, version, qos):
    """[MQTT-4.4.0-1]: no retransmission while the connection lasts."""
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=qos)
    connect(version).publish(topic, b"x", qos=qos)
    subscriber.expect_publish(topic, b"x", qos=qos)
    subscriber.expect_nothing(1.0)


@pytest.mark.parametrize("qos", [1, 2])
def test_packet_ids_in_flight_differ(connect, topic, version, qos):
    """[MQTT-2.2.1-4] [MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT3-2.3.1-4]"""
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=qos)
    publisher = connect(version)
    for number in range(20):
        publisher.publish(topic, str(number).encode(), qos=qos)
    publishes = subscriber.expect_payloads((str(number).encode() for number in range(20)), ack=False, qos=qos)
    assert len({publish.packet_id for publish in publishes}) == 20


def test_packet_id_still_in_flight_is_not_reused(connect, topic):
    """[MQTT-2.2.1-4] [MQTT3-2.3.1-4]: one id stays unacknowledged while all 65,535 go round (in bare bytes)."""
    subscriber, publisher = connect(V311), connect(V311)
    subscriber.subscribe(topic, qos=1)
    publisher.publish(topic, b"held", qos=1)
    held = subscriber.expect_publish(topic, b"held", qos=1)
    count = 500
    batch = b"".join(pack_publish(V311, topic, b"", qos=1, packet_id=number) for number in range(1, count + 1))
    size = len(batch) // count
    for _ in range(65_535 // count + 1):
        publisher.send_raw(batch)
        receive_bytes(publisher, 4 * count)
        received = receive_bytes(subscriber, len(batch))
        ids = {int.from_bytes(received[end - 2 : end], "big") for end in range(size, len(received) + 1, size)}
        assert len(ids) == count
        assert held.packet_id not in ids
        subscriber.send_raw(b"".join(pack_ack(PUBACK, V311, packet_id) for packet_id in ids))
    subscriber.ack(held)


def receive_bytes(client, size):
    received = b""
    while len(received) < size:
        data = client.stream.recv(size - len(received))
        assert data
        received += data
    return received


def test_client_and_server_ids_are_independent(connect, topic, version):
    """2.2.1: both sides may use the same id at once."""
    client = connect(version)
    client.subscribe(topic, qos=2)
    client.publish(topic, b"mine", qos=2, packet_id=1)
    publish = client.expect_publish(topic, b"mine", qos=2)
    client.publish(topic, b"other", qos=1, packet_id=publish.packet_id)
    client.ack(publish)
    client.expect_publish(topic, b"other", qos=1, ack=True)


def test_dup_of_the_publisher_is_not_forwarded(connect, topic, version):
    """[MQTT-3.3.1-3] [MQTT3-3.3.1-3]"""
    subscriber = connect(version)
    subscriber.subscribe(topic, qos=2)
    publisher = connect(version)
    for qos in (1, 2):
        publisher.publish(topic, b"x", qos=qos, dup=True)
        subscriber.expect_publish(topic, b"x", qos=qos, dup=False, ack=True)


@pytest.mark.parametrize("error", [Reason.UNSPECIFIED, Reason.NOT_AUTHORIZED, Reason.QUOTA_EXCEEDED])
def test_error_in_pubrec_ends_the_exchange(connect, client_id, topic, error):
    """[MQTT-4.4.0-2], 4.3.3: no PUBREL, the id and the quota are free, nothing is sent again on resume."""
    properties = {"session_expiry_interval": 60, "receive_maximum": 1}
    subscriber = connect(V5, client_id, clean_start=False, properties=properties)
    subscriber.subscribe(topic, qos=2)
    publisher = connect(V5)
    for payload in (b"refused", b"taken"):
        publisher.publish(topic, payload, qos=2)
    refused = subscriber.expect_publish(topic, b"refused", qos=2)
    subscriber.send_ack(PUBREC, refused.packet_id, error)
    subscriber.expect_publish(topic, b"taken", qos=2, ack=True)
    subscriber.close()
    connect(V5, client_id, clean_start=False, properties=properties).expect_nothing()


def test_error_in_puback_ends_the_exchange(connect, client_id, topic):
    """[MQTT-4.4.0-2]: the message counts as acknowledged."""
    properties = {"session_expiry_interval": 60}
    subscriber = connect(V5, client_id, clean_start=False, properties=properties)
    subscriber.subscribe(topic, qos=1)
    connect(V5).publish(topic, b"x", qos=1)
    publish = subscriber.expect_publish(topic, b"x", qos=1)
    subscriber.send_ack(PUBACK, publish.packet_id, Reason.IMPLEMENTATION_SPECIFIC)
    subscriber.ping()
    subscriber.close()
    connect(V5, client_id, clean_start=False, properties=properties).expect_nothing()


def test_wrong_kind_of_acknowledgement_does_not_complete_an_exchange(connect, client_id, topic, version):
    """[MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT3-4.3.2-1]: a QoS 1 message waits for its PUBACK."""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    subscriber = connect(version, client_id, **options)
    subscriber.subscribe(topic, qos=1)
    connect(version).publish(topic, b"x", qos=1)
    first = subscriber.expect_publish(topic, b"x", qos=1)
    subscriber.send_ack(PUBCOMP, first.packet_id)
    subscriber.close()
    again = connect(version, client_id, **options)
    assert again.expect_publish(topic, b"x", qos=1, dup=True).packet_id == first.packet_id
