"""Does a server with a capability turned off say so, refuse what needs it, and serve the rest?"""

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason, Will


def refused(client, reason):
    """A subscription that is not supported: by the code of the filter or by DISCONNECT, both with this reason."""
    answer = client.receive()
    if answer.type == PacketType.SUBACK:
        assert answer.reasons == [reason]
    else:
        assert (answer.type, answer.reason) == (PacketType.DISCONNECT, reason)


def test_no_retain(start_broker, connect, open_client, topic):
    """[MQTT-3.2.2-13] [MQTT-3.2.2-14], 3.2.2.3.5: 0x9A for a retained publish and a retained will."""
    broker = start_broker({"mqtt.retain_available": False, "sys.interval": 0})
    client = connect(V5, broker=broker)
    assert client.connack.properties["retain_available"] == 0
    client.publish(topic, b"x", qos=1)
    client.send_publish(topic, b"x", retain=True)
    client.expect_disconnect(Reason.RETAIN_NOT_SUPPORTED)
    will = open_client(V5, broker=broker)
    will.send_connect("will", will=Will(topic, b"x", retain=True))
    will.expect_refused_connect(Reason.RETAIN_NOT_SUPPORTED)


@pytest.mark.parametrize("maximum", [0, 1])
def test_lower_maximum_qos(start_broker, connect, open_client, topic, maximum):
    """[MQTT-3.2.2-9] [MQTT-3.2.2-10] [MQTT-3.2.2-11] [MQTT-3.2.2-12]: told, granted at most, 0x9B above it."""
    broker = start_broker({"mqtt.maximum_qos": maximum})
    client = connect(V5, broker=broker)
    assert client.connack.properties["maximum_qos"] == maximum
    assert [client.subscribe(f"{topic}/{qos}", qos=qos)[0] for qos in (0, 1, 2)] == [
        min(qos, maximum) for qos in (0, 1, 2)
    ]
    client.publish(topic, b"x", qos=maximum)
    client.send_publish(topic, b"x", qos=2)
    client.expect_disconnect(Reason.QOS_NOT_SUPPORTED)
    will = open_client(V5, broker=broker)
    will.send_connect("will", will=Will(topic, b"x", qos=2))
    will.expect_refused_connect(Reason.QOS_NOT_SUPPORTED)
    assert connect(V311, broker=broker).subscribe(topic, qos=2) == [maximum]


def test_no_wildcards(start_broker, connect, topic):
    """3.2.2.3.11, [MQTT3-3.8.3-2]: 0xA2, or 0x80 for 3.1.1."""
    broker = start_broker({"mqtt.wildcard_subscriptions": False})
    client = connect(V5, broker=broker)
    assert client.connack.properties["wildcard_subscription_available"] == 0
    assert client.subscribe(topic) == [0]
    client.send_subscribe((f"{topic}/#", 0))
    refused(client, Reason.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED)
    assert connect(V311, broker=broker).subscribe(topic, f"{topic}/+", "#") == [0, 0x80, 0x80]


def test_no_shared_subscriptions(start_broker, connect, topic):
    """3.2.2.3.13: 0x9E."""
    broker = start_broker({"mqtt.shared_subscriptions": False})
    client = connect(V5, broker=broker)
    assert client.connack.properties["shared_subscription_available"] == 0
    client.send_subscribe((f"$share/group/{topic}", 0))
    refused(client, Reason.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED)


def test_no_subscription_identifiers(start_broker, connect, topic):
    """3.2.2.3.12: 0xA1."""
    broker = start_broker({"mqtt.subscription_identifiers": False})
    client = connect(V5, broker=broker)
    assert client.connack.properties["subscription_identifier_available"] == 0
    client.send_subscribe((topic, 0), properties={"subscription_identifier": 1})
    refused(client, Reason.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED)


def test_no_empty_client_ids(start_broker, open_client):
    """[MQTT-3.1.3-8] [MQTT3-3.1.3-9] [MQTT3-3.2.2-5]: 0x85, code 2, then closed."""
    broker = start_broker({"mqtt.allow_zero_length_client_id": False})
    for version in (V311, V5):
        client = open_client(version, broker=broker)
        client.send_connect("")
        client.expect_refused_connect(Reason.CLIENT_ID_INVALID, code=2)
