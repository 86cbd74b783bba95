"""Does the server take publishes of a client at QoS 0, 1 and 2 by the book?"""

import pytest

from tests.support.clients.packets import V5, V31, V311, PacketType, Reason

ALL_VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])
PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP


@pytest.fixture
def watcher(connect, topic):
    """Sees what the server made of each publish, at QoS 0 so that nothing has to be acknowledged."""
    client = connect(V311)
    client.subscribe(topic)
    return client


@ALL_VERSIONS
def test_qos_0_is_delivered_and_not_answered(connect, watcher, topic, version):
    """[MQTT-3.3.4-1] [MQTT-4.3.1-1] [MQTT3-3.3.4-1] [MQTT3-4.3.1-1]"""
    client = connect(version)
    client.publish(topic, b"payload")
    watcher.expect_publish(topic, b"payload", qos=0, retain=False)
    client.expect_nothing()


@ALL_VERSIONS
def test_qos_1_is_acknowledged(connect, watcher, topic, version):
    """[MQTT-2.2.1-5] [MQTT-3.3.4-1] [MQTT-4.3.2-4] [MQTT3-2.3.1-6] [MQTT3-3.3.4-1] [MQTT3-4.3.2-2]"""
    client = connect(version)
    for packet_id in (1, 77, 65_535):
        client.send_publish(topic, b"payload", qos=1, packet_id=packet_id)
        assert client.expect(PUBACK, packet_id=packet_id, reason=0).raw[2:4] == packet_id.to_bytes(2, "big")
        watcher.expect_publish(topic, b"payload")


def test_qos_1_with_the_same_id_after_puback_is_a_new_message(connect, watcher, topic, version):
    """[MQTT-4.3.2-5] [MQTT3-4.3.2-2]: whatever its DUP flag says."""
    client = connect(version)
    for dup in (False, True):
        client.send_publish(topic, b"payload", qos=1, packet_id=5, dup=dup)
        client.expect(PUBACK, packet_id=5)
        watcher.expect_publish(topic, b"payload")


@ALL_VERSIONS
def test_qos_2_is_acknowledged_in_two_steps(connect, watcher, topic, version):
    """[MQTT-2.2.1-5] [MQTT-4.3.3-8] [MQTT-4.3.3-11] [MQTT3-2.3.1-6] [MQTT3-4.3.3-2]"""
    client = connect(version)
    client.send_publish(topic, b"payload", qos=2, packet_id=9)
    client.expect(PUBREC, packet_id=9, reason=0)
    client.send_ack(PUBREL, 9)
    client.expect(PUBCOMP, packet_id=9, reason=0)
    watcher.expect_publish(topic, b"payload")
    watcher.expect_nothing()


def test_qos_2_duplicate_is_answered_but_not_delivered_again(connect, watcher, topic, version):
    """[MQTT-4.3.3-10] [MQTT3-4.3.3-2]: until PUBREL, with and without DUP."""
    client = connect(version)
    for dup in (False, True, False):
        client.send_publish(topic, b"payload", qos=2, packet_id=9, dup=dup)
        client.expect(PUBREC, packet_id=9)
    client.send_ack(PUBREL, 9)
    client.expect(PUBCOMP, packet_id=9)
    watcher.expect_publish(topic, b"payload")
    watcher.expect_nothing()


def test_qos_2_duplicate_after_reconnect_is_not_delivered_again(connect, client_id, watcher, topic, version):
    """[MQTT-4.3.3-10] [MQTT3-4.3.3-2]: the ids received are part of the session."""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    client = connect(version, client_id, **options)
    client.send_publish(topic, b"payload", qos=2, packet_id=9)
    client.expect(PUBREC, packet_id=9)
    client.close()
    again = connect(version, client_id, **options)
    again.send_publish(topic, b"payload", qos=2, packet_id=9, dup=True)
    again.expect(PUBREC, packet_id=9)
    again.send_ack(PUBREL, 9)
    again.expect(PUBCOMP, packet_id=9)
    watcher.expect_publish(topic, b"payload")
    watcher.expect_nothing()


def test_pubrel_after_reconnect_completes_the_exchange(connect, client_id, topic, version):
    """[MQTT-4.3.3-11] [MQTT3-4.3.3-2]"""
    options = {"clean_start": False} | ({"properties": {"session_expiry_interval": 60}} if version == V5 else {})
    client = connect(version, client_id, **options)
    client.send_publish(topic, b"payload", qos=2, packet_id=9)
    client.expect(PUBREC, packet_id=9)
    client.close()
    again = connect(version, client_id, **options)
    again.send_ack(PUBREL, 9)
    again.expect(PUBCOMP, packet_id=9, reason=0)


def test_qos_2_id_is_free_after_pubcomp(connect, watcher, topic, version):
    """[MQTT-4.3.3-12] [MQTT3-4.3.3-2]: the same id is then a new message."""
    client = connect(version)
    for payload in (b"first", b"second"):
        client.publish(topic, payload, qos=2, packet_id=9)
        watcher.expect_publish(topic, payload)


def test_qos_1_and_2_use_one_space_of_ids(connect, watcher, topic, version):
    """2.2.1: an id of QoS 1 is free again after its PUBACK and may serve QoS 2, and the other way round."""
    client = connect(version)
    for qos in (1, 2, 1, 2):
        client.publish(topic, b"payload", qos=qos, packet_id=3)
        watcher.expect_publish(topic, b"payload")


@ALL_VERSIONS
def test_pubrel_of_an_unknown_id_is_answered(connect, version):
    """3.6.2.1, [MQTT-4.3.3-11] [MQTT3-4.3.3-2]: MQTT 5 with 0x92."""
    client = connect(version)
    client.send_ack(PUBREL, 1234)
    client.expect(PUBCOMP, packet_id=1234, reason=Reason.PACKET_ID_NOT_FOUND if version == V5 else 0)
    client.ping()


def test_server_never_answers_puback_for_unknown_ids(connect, version):
    """Acknowledgements of things the server never sent do not cost the connection and change nothing."""
    client = connect(version)
    client.send_ack(PUBACK, 77)
    client.send_ack(PUBCOMP, 77)
    client.ping()
    client.expect_nothing()


def test_unknown_pubrec_is_answered_with_pubrel(connect, version):
    """4.3.3, 3.6.2.1: PUBREL 0x92 in MQTT 5, so that the other side can finish."""
    client = connect(version)
    client.send_ack(PUBREC, 78)
    pubrel = client.expect(PUBREL, packet_id=78)
    assert pubrel.reason == (Reason.PACKET_ID_NOT_FOUND if version == V5 else 0)


@pytest.mark.parametrize("qos", [1, 2])
def test_acknowledgements_come_in_the_order_of_the_publishes(connect, topic, version, qos):
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3] [MQTT-4.6.0-4] [MQTT3-4.6.0-2] [MQTT3-4.6.0-3] [MQTT3-4.6.0-4]"""
    client = connect(version)
    ids = [7, 3, 9, 1, 65_535, 2]
    for packet_id in ids:
        client.send_publish(topic, b"x", qos=qos, packet_id=packet_id)
    for packet_id in ids:
        client.expect(PUBACK if qos == 1 else PUBREC, packet_id=packet_id)
    if qos == 2:
        for packet_id in ids:
            client.send_ack(PUBREL, packet_id)
        for packet_id in ids:
            client.expect(PUBCOMP, packet_id=packet_id)


def test_reason_of_an_acknowledgement_without_subscribers(connect, watcher, topic, new_name):
    """3.4.2.1, 3.5.2.1: 0x10 when nobody subscribes, 0x00 when somebody does."""
    client = connect(V5)
    for qos in (1, 2):
        assert client.publish(new_name("nobody/"), b"x", qos=qos).reason == Reason.NO_MATCHING_SUBSCRIBERS
        assert client.publish(topic, b"x", qos=qos).reason == Reason.SUCCESS


def test_acknowledgements_in_their_long_forms_are_accepted(connect, topic):
    """3.4.2, 3.6.2: reason code without properties, empty properties, and all properties."""
    subscriber = connect(V5)
    subscriber.subscribe(topic, qos=1)
    publisher = connect(V5)
    forms = [b"", b"\0", b"\0\0", b"\0\x08\x1f\0\5hello", b"\0\x07\x26\0\1a\0\1b"]
    for form in forms:
        publisher.publish(topic, b"x", qos=1)
        publish = subscriber.expect_publish(topic, qos=1)
        body = publish.packet_id.to_bytes(2, "big") + form
        subscriber.send_raw(bytes([0x40, len(body)]) + body)
    subscriber.ping()
    publisher.send_publish(topic, b"x", qos=2, packet_id=50)
    publisher.expect(PUBREC, packet_id=50)
    publisher.send_raw(b"\x62\x04\x00\x32\x00\x00")
    publisher.expect(PUBCOMP, packet_id=50, reason=0)


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 100_000, 1_000_000])
def test_payloads_of_every_size(connect, watcher, topic, version, size):
    """2.1.4: each length of the remaining length; the payload is not touched."""
    payload = bytes(index * 7 % 256 for index in range(1000)) * (size // 1000 + 1)
    connect(version).publish(topic, payload[:size], qos=1)
    watcher.expect_publish(topic, payload[:size])
