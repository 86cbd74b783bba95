"""Does a plugged-in method of enhanced authentication get its exchange of AUTH packets, at CONNECT and later?"""

import pytest

from tests.support.clients.packets import V5, PacketType, Reason, pack_auth, pack_connect, pack_publish

AUTH, CONNACK = PacketType.AUTH, PacketType.CONNACK
METHODS = {"challenge": "Challenge", "slow": "SlowChallenge"}
SETTINGS = {f"access.enhanced.{name}": f"tests.support.clients.enhanced_auth:{kind}" for name, kind in METHODS.items()}


@pytest.fixture
def challenged(share_broker, open_client, client_id):
    """A client that has sent CONNECT with the method and got the question."""
    broker = share_broker("enhanced", SETTINGS)

    def begin(method):
        client = open_client(V5, broker=broker)
        client.send_connect(client_id, properties={"authentication_method": method, "authentication_data": b"hello"})
        question = client.expect(AUTH, reason=Reason.CONTINUE_AUTHENTICATION)
        assert question.properties["authentication_method"] == method
        assert question.properties["authentication_data"] == b"question"
        return client

    return begin


def answer(method, data, reason=Reason.CONTINUE_AUTHENTICATION):
    return pack_auth(reason, {"authentication_method": method, "authentication_data": data})


@pytest.mark.parametrize("method", METHODS)
def test_right_answer(challenged, method):
    """[MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]: CONNACK with the method and the last data."""
    client = challenged(method)
    client.send_raw(answer(method, b"right"))
    connack = client.expect(CONNACK, reason=0)
    assert connack.properties["authentication_method"] == method
    assert connack.properties["authentication_data"] == b"welcome"
    client.ping()


@pytest.mark.parametrize("method", METHODS)
def test_wrong_answer(challenged, method):
    """[MQTT-4.12.0-4]: refused and closed."""
    client = challenged(method)
    client.send_raw(answer(method, b"wrong"))
    client.expect_refused_connect((Reason.NOT_AUTHORIZED, Reason.BAD_CREDENTIALS))


INTRUDERS = {
    "another method [MQTT-4.12.0-5]": answer("slow", b"right"),
    "no method [MQTT-4.12.0-5]": pack_auth(Reason.CONTINUE_AUTHENTICATION),
    "re-authentication": answer("challenge", b"right", Reason.REAUTHENTICATE),
    "publish [MQTT-3.1.2-30]": pack_publish(V5, "topic", b"x"),
    "second connect [MQTT-3.1.0-2]": pack_connect(V5, "client"),
}


@pytest.mark.parametrize("packet", INTRUDERS.values(), ids=INTRUDERS.keys())
def test_packets_that_have_no_place_in_the_exchange(challenged, packet):
    """[MQTT-3.2.0-1] [MQTT-3.14.0-1] [MQTT-4.12.0-4]: closed; before that, if anything, a CONNACK that refuses."""
    client = challenged("challenge")
    client.send_raw(packet)
    packets = client.receive_until_closed()
    assert all(packet.type == CONNACK and packet.reason >= 0x80 for packet in packets)


def test_disconnect_within_the_exchange(challenged):
    """[MQTT-3.1.2-30]: a client may give up."""
    client = challenged("challenge")
    client.disconnect()


@pytest.mark.parametrize("method", METHODS)
def test_authenticating_again(challenged, method):
    """[MQTT-4.12.1-1], 4.12.1: while connected; other packets go on meanwhile."""
    client = challenged(method)
    client.send_raw(answer(method, b"right"))
    client.expect(CONNACK, reason=0)
    client.send_raw(answer(method, b"again", Reason.REAUTHENTICATE))
    client.expect(AUTH, reason=Reason.CONTINUE_AUTHENTICATION)
    client.ping()
    client.send_raw(answer(method, b"right"))
    success = client.expect(AUTH, reason=Reason.SUCCESS)
    assert success.properties["authentication_method"] == method
    client.ping()


def test_failing_to_authenticate_again(challenged):
    """[MQTT-4.12.1-2]: DISCONNECT and closed."""
    client = challenged("challenge")
    client.send_raw(answer("challenge", b"right"))
    client.expect(CONNACK, reason=0)
    client.send_raw(answer("challenge", b"again", Reason.REAUTHENTICATE))
    client.expect(AUTH, reason=Reason.CONTINUE_AUTHENTICATION)
    client.send_raw(answer("challenge", b"wrong"))
    client.expect_disconnect(Reason.NOT_AUTHORIZED)


def test_authenticating_again_with_another_method(challenged):
    """[MQTT-4.12.1-1]"""
    client = challenged("challenge")
    client.send_raw(answer("challenge", b"right"))
    client.expect(CONNACK, reason=0)
    client.send_raw(answer("slow", b"again", Reason.REAUTHENTICATE))
    client.expect_disconnect((Reason.BAD_AUTHENTICATION_METHOD, Reason.PROTOCOL_ERROR))


@pytest.mark.parametrize("limit", [10, 26, 27])
def test_a_question_keeps_the_clients_maximum_packet_size(share_broker, open_client, client_id, limit):
    """[MQTT-3.1.2-24]: a client that the AUTH does not fit is disconnected."""
    client = open_client(V5, broker=share_broker("enhanced", SETTINGS))
    client.send_connect(client_id, properties={"authentication_method": "challenge", "maximum_packet_size": limit})
    if limit == 27:
        assert len(client.expect(AUTH).raw) == limit
    else:
        client.expect_closed()
