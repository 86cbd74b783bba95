"""Does the CONNACK of MQTT 5 tell the capabilities and limits of the server?"""

import pytest

from tests.support.clients.packets import V5, PacketType, Reason, Will

# Each value may be left out only if it is what the specification assumes when it is absent.
CAPABILITIES = [
    ("receive_maximum", 100, 65_535),
    ("maximum_qos", 2, 2),
    ("retain_available", 1, 1),
    ("maximum_packet_size", 1024 * 1024, None),
    ("topic_alias_maximum", 16, 0),
    ("wildcard_subscription_available", 1, 1),
    ("subscription_identifier_available", 1, 1),
    ("shared_subscription_available", 1, 1),
]


@pytest.mark.parametrize(("name", "value", "when_absent"), CAPABILITIES)
def test_capability(connect, name, value, when_absent):
    """[MQTT-3.2.2-9] and 3.2.2.3: the defaults of the settings."""
    properties = connect(V5).connack.properties
    assert properties.get(name, when_absent) == value
    # Maximum QoS is 0 or 1, or absent: 2 must not be sent (3.2.2.3.4).
    assert properties.get("maximum_qos", 0) < 2


def test_session_expiry_is_told_when_it_is_not_the_one_asked_for(connect):
    """3.2.2.3.2: for ever is cut to seven days, and the client is told; a shorter wish stands."""
    forever = connect(V5, properties={"session_expiry_interval": 0xFFFFFFFF})
    assert forever.connack.properties["session_expiry_interval"] == 604_800
    short = connect(V5, properties={"session_expiry_interval": 100})
    assert short.connack.properties.get("session_expiry_interval", 100) == 100


def test_response_information_only_on_request(connect, client_id):
    """[MQTT-3.1.2-28]: `response/<client id>` for those who ask."""
    asking = connect(V5, client_id, properties={"request_response_information": 1})
    assert asking.connack.properties["response_information"] == f"response/{client_id}"
    for properties in (None, {"request_response_information": 0}):
        assert "response_information" not in connect(V5, properties=properties).connack.properties


def test_response_information_of_an_odd_client_id_is_a_usable_topic(connect, new_name):
    """A client id with wildcards or levels cannot make its response topic one that reaches others."""
    properties = {"request_response_information": 1}
    client = connect(V5, new_name("a/b+#"), properties=properties)
    information = client.connack.properties["response_information"]
    assert information.startswith("response/")
    assert information.count("/") == 1
    assert not set("+#") & set(information)


def test_connack_fits_the_clients_maximum_packet_size(connect):
    """[MQTT-3.1.2-24] [MQTT-3.2.2-19] [MQTT-3.2.2-20]: no reason string or user property beyond the limit."""
    client = connect(V5, properties={"maximum_packet_size": 128})
    assert len(client.connack.raw) <= 128


def test_no_authentication_method_without_one_in_connect(connect):
    """[MQTT-4.12.0-6]"""
    assert "authentication_method" not in connect(V5).connack.properties


def test_only_what_differs_from_the_default_is_sent(connect):
    """3.2.2.3: a property that has its default value says nothing, and small clients have little room."""
    client = connect(V5)
    assert set(client.connack.properties) == {"receive_maximum", "maximum_packet_size", "topic_alias_maximum"}
    assert len(client.connack.raw) == 16


@pytest.mark.parametrize("expiry", [0, 60])
@pytest.mark.parametrize("limit", [1, 2, 5, 12])
def test_a_client_that_no_connack_fits_is_disconnected(open_client, connect, client_id, limit, expiry):
    """[MQTT-3.1.2-24]: nothing larger than the client's maximum is sent, and nobody is left waiting for an answer."""
    stored = connect(V5, client_id, properties={"session_expiry_interval": 60})
    stored.disconnect()
    client = open_client(V5)
    properties = {"maximum_packet_size": limit, "session_expiry_interval": expiry}
    client.send_connect(client_id, clean_start=True, properties=properties)
    client.expect_closed()
    # The session that was there has not been touched.
    again = connect(V5, client_id, clean_start=False, properties={"session_expiry_interval": 60})
    assert again.connack.session_present


@pytest.mark.parametrize("limit", [13, 15, 16, 20, 25])
def test_a_small_client_is_served(connect, topic, limit):
    """It does without topic aliases where there is no room to tell it of them."""
    client = connect(V5, properties={"maximum_packet_size": limit, "session_expiry_interval": 60})
    assert len(client.connack.raw) <= limit
    assert ("topic_alias_maximum" in client.connack.properties) == (limit >= 16)
    client.subscribe("s", qos=1)
    client.publish("s", b"x", qos=1)
    client.ack(client.expect_publish("s", b"x"))


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 5])
def test_a_refusal_keeps_the_clients_maximum_packet_size(open_client, limit):
    """[MQTT-3.1.2-24]: the CONNACK that refuses a client has five bytes."""
    client = open_client(V5)
    client.send_connect("c", will=Will("$SYS/x", b"x"), properties={"maximum_packet_size": limit})
    if limit >= 5:
        client.expect(PacketType.CONNACK, reason=Reason.NOT_AUTHORIZED)
    client.expect_closed()
