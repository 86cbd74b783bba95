"""Is a CONNECT with each flag, field and property that is allowed accepted, and its CONNACK exact?"""

import string

import pytest

from tests.support.clients.packets import (
    V5,
    V31,
    V311,
    PacketType,
    Reason,
    Will,
    pack_connect,
    pack_publish,
    pack_subscribe,
    pack_unsubscribe,
)

ALLOWED_CHARACTERS = string.digits + string.ascii_letters
ALL_VERSIONS = pytest.mark.parametrize("version", [V31, V311, V5])


@ALL_VERSIONS
def test_first_packet_from_the_server_is_the_connack(connect, version):
    """[MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.2-1] [MQTT-3.2.2-2] [MQTT3-3.1.4-4] [MQTT3-3.2.0-1] [MQTT3-3.2.2-1]"""
    client = connect(version)
    assert client.connack.raw[0] == 0x20
    assert not client.connack.session_present
    if version != V5:
        assert client.connack.raw == b"\x20\x02\x00\x00"
    client.expect_nothing()


@ALL_VERSIONS
@pytest.mark.parametrize("length", [1, 23])
def test_client_ids_every_server_must_allow(connect, version, length):
    """[MQTT-3.1.3-5] [MQTT3-3.1.3-5]: 1 to 23 of the digits and letters."""
    for start in range(0, len(ALLOWED_CHARACTERS), length):
        connect(version, (ALLOWED_CHARACTERS * 2)[start : start + length]).close()


def test_long_and_odd_client_ids_are_allowed(connect, version, new_name):
    """A client id may hold any characters and be long: [MQTT-3.1.3-2] [MQTT3-3.1.3-2]"""
    unusual = new_name("id with spaces, +, #, /, ü and \U0001f600 ")
    for client_id in (unusual, new_name("x" * 200)):
        first = connect(version, client_id)
        other = connect(version, client_id + "y")
        first.ping()
        other.ping()


@pytest.mark.parametrize("username", [None, "user", "ünïcode"])
@pytest.mark.parametrize("password", [None, b"", b"\x00binary\xff"])
def test_user_name_and_password_fields(*, connect, open_client, new_name, version, username, password):
    """[MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19] [MQTT3-3.1.2-18] [MQTT3-3.1.2-19]
    [MQTT3-3.1.2-20] [MQTT3-3.1.2-21] [MQTT3-3.1.2-22]: a password without a user name is for MQTT 5 only."""
    if username is None and password is not None and version != V5:
        client = open_client(version)
        client.send_connect(new_name("client"), password=password)
        client.expect_closed()
    else:
        connect(version, username=username, password=password).ping()


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_every_combination_of_will_flags(connect, version, topic, qos, retain):
    """[MQTT-3.1.2-7] [MQTT-3.1.2-9] [MQTT-3.1.2-12] [MQTT3-3.1.2-9] [MQTT3-3.1.2-14]"""
    will = Will(topic, b"will", qos, retain)
    connect(version, will=will, username="user", password=b"password").disconnect()


def test_every_connect_property(connect):
    """All CONNECT properties of MQTT 5 at once, user properties also twice with one name."""
    connect(
        V5,
        properties={
            "session_expiry_interval": 5,
            "receive_maximum": 10,
            "maximum_packet_size": 100_000,
            "topic_alias_maximum": 10,
            "request_response_information": 1,
            "request_problem_information": 1,
            "user_property": [("name", "1"), ("name", "2"), ("", "")],
        },
    ).ping()


def test_every_will_property(connect, topic):
    """All will properties of MQTT 5 at once."""
    properties = {
        "will_delay_interval": 1,
        "payload_format_indicator": 1,
        "message_expiry_interval": 100,
        "content_type": "text/plain",
        "response_topic": "answers",
        "correlation_data": b"\x00\xff",
        "user_property": [("a", "1"), ("a", "2")],
    }
    connect(V5, will=Will(topic, b"will", properties=properties)).disconnect()


@pytest.mark.parametrize("version", [V311, V5])
def test_empty_client_id_with_clean_start_gets_an_id(open_client, version):
    """[MQTT-3.1.3-6] [MQTT-3.1.3-7] [MQTT-3.2.2-16] [MQTT3-3.1.3-6]: each gets another, MQTT 5 is told which."""
    clients = [open_client(version) for _ in range(3)]
    for client in clients:
        client.connect("")
    for client in clients:
        client.ping()
    if version == V5:
        assigned = [client.connack.properties["assigned_client_identifier"] for client in clients]
        assert len(set(assigned)) == 3
        assert all(assigned)
    else:
        assert clients[0].connack.raw == b"\x20\x02\x00\x00"


def test_empty_client_id_without_clean_session_is_refused(open_client):
    """[MQTT3-3.1.3-7] [MQTT3-3.1.3-8] [MQTT3-3.2.2-4] [MQTT3-3.2.2-5]"""
    client = open_client(V311)
    client.send_connect("", clean_start=False)
    client.expect_refused_connect(Reason.CLIENT_ID_INVALID, code=2)


def test_empty_client_id_without_clean_start_in_mqtt_5(open_client, connect):
    """[MQTT-3.1.3-6] [MQTT-3.2.2-16]: a new session under the assigned id, which can be resumed."""
    client = open_client(V5)
    connack = client.connect("", clean_start=False, properties={"session_expiry_interval": 60})
    assert not connack.session_present
    client.close()
    assert connect(V5, client.client_id, clean_start=False).connack.session_present


def test_empty_client_id_in_mqtt_31_is_refused(open_client):
    """MQTT 3.1: a client id has at least one character, or the server answers with code 2."""
    client = open_client(V31)
    client.send_connect("")
    client.expect_refused_connect(Reason.CLIENT_ID_INVALID, code=2)


def test_mqtt_31_marks_repeated_packets_with_dup(connect, client_id, topic):
    """MQTT 3.1, 2.1: DUP is legal in PUBREL, SUBSCRIBE and UNSUBSCRIBE, which 3.1.1 forbids."""
    client = connect(V31, client_id)
    for first_byte in (0x82, 0x8A):
        client.send_raw(bytes((first_byte,)) + pack_subscribe(V31, 7, [(topic, 2)])[1:])
        assert client.await_packet(PacketType.SUBACK, 7).reasons == [2]
    client.send_publish(topic, b"once", qos=2, packet_id=5)
    client.await_packet(PacketType.PUBREC, 5)
    for first_byte in (0x62, 0x6A):
        client.send_raw(bytes((first_byte, 2, 0, 5)))
        client.await_packet(PacketType.PUBCOMP, 5)
    client.expect_payloads([b"once"])
    client.send_raw(bytes((0xAA,)) + pack_unsubscribe(V31, 8, [topic])[1:])
    client.await_packet(PacketType.UNSUBACK, 8)


@pytest.mark.parametrize("version", [V311, V5])
def test_dup_in_pubrel_is_malformed_later(connect, version):
    """[MQTT3-3.6.1-1] [MQTT-3.6.1-1]"""
    client = connect(version)
    client.send_raw(bytes((0x6A, 2, 0, 5)))
    client.expect_disconnect(Reason.MALFORMED)


def test_a_client_id_given_is_not_assigned_again(connect):
    """[MQTT-3.2.2-16]: the property is for clients that gave none."""
    assert "assigned_client_identifier" not in connect(V5).connack.properties


@ALL_VERSIONS
def test_packets_right_behind_the_connect_are_processed(open_client, client_id, topic, version):
    """A client may send packets without waiting for the CONNACK (3.1.4, non-normative comment)."""
    client = open_client(version)
    client.send_raw(
        pack_connect(version, client_id)
        + pack_subscribe(version, 1, [(topic, 0)])
        + pack_publish(version, topic, b"early")
        + b"\xc0\x00"
    )
    client.expect(PacketType.CONNACK, reason=0)
    client.expect(PacketType.SUBACK, packet_id=1)
    client.expect_publish(topic, b"early")
    client.expect(PacketType.PINGRESP)
