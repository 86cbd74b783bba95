"""How does the server treat enhanced authentication it was not set up for, and problem information not asked for?"""

import pytest

from tests.support.clients.packets import V5, PacketType, Reason, pack, pack_auth


def test_unknown_method_is_refused(open_client, client_id):
    """[MQTT-4.12.0-1] [MQTT-3.2.2-7]: 0x8C."""
    client = open_client(V5)
    client.send_connect(client_id, properties={"authentication_method": "SCRAM-SHA-1", "authentication_data": b"x"})
    client.expect_refused_connect(Reason.BAD_AUTHENTICATION_METHOD)


AUTHS = {
    "continue": pack_auth(0x18, {"authentication_method": "x"}),
    "re-authenticate": pack_auth(0x19, {"authentication_method": "x"}),
    "success": pack_auth(0x00, {"authentication_method": "x"}),
    "short form": pack(PacketType.AUTH),
}


@pytest.mark.parametrize("packet", AUTHS.values(), ids=AUTHS.keys())
def test_auth_without_a_method_in_connect(connect, bystander, packet):
    """[MQTT-4.12.0-7] [MQTT-4.12.0-6]: a protocol error, and no AUTH comes back."""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


MALFORMED = {
    "reserved flags [MQTT-3.15.1-1]": pack(PacketType.AUTH, b"\x18\x00", 1),
    "unknown property": pack_auth(0x18, b"\x7f\x00"),
    "property length beyond the packet": pack(PacketType.AUTH, b"\x18\x05"),
}


@pytest.mark.parametrize("packet", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_auth(connect, bystander, packet):
    """[MQTT-3.15.1-1] [MQTT-3.15.2-1] [MQTT-4.13.1-1]"""
    client = connect(V5)
    client.send_raw(packet)
    client.expect_disconnect((Reason.MALFORMED, Reason.PROTOCOL_ERROR))


def test_no_problem_information_unless_wanted(connect, topic):
    """[MQTT-3.1.2-29]: with 0 no reason string or user property but in CONNACK, PUBLISH and DISCONNECT."""
    client = connect(V5, properties={"request_problem_information": 0})
    answers = [client.publish("$SYS/forbidden", b"x", qos=qos) for qos in (1, 2)]
    client.send_subscribe(("bad#", 0))
    answers.append(client.expect(PacketType.SUBACK))
    client.send_ack(PacketType.PUBREL, 99)
    answers.append(client.expect(PacketType.PUBCOMP))
    client.send_raw(b"\xa2\x09\x00\x05\x00\x00\x04none")
    answers.append(client.expect(PacketType.UNSUBACK))
    for answer in answers:
        assert not {"reason_string", "user_property"} & set(answer.properties), answer


def test_user_properties_of_messages_are_no_problem_information(connect, topic):
    """[MQTT-3.1.2-29]: they are forwarded in any case."""
    client = connect(V5, properties={"request_problem_information": 0})
    client.subscribe(topic)
    client.publish(topic, b"x", properties={"user_property": [("a", "b")]})
    client.expect_publish(topic, b"x", properties={"user_property": [("a", "b")]})
