"""Is the maximum packet size of either side respected?"""

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason, pack_publish, pack_subscribe, pack_unsubscribe
from tests.support.clients.wire_types import varint

SERVER_MAXIMUM = 1024 * 1024
CLIENT_MAXIMUM = 200


def payload_for(topic, packet_size, qos=0):
    """A payload that makes the PUBLISH the server sends to an MQTT 5 client exactly this long."""
    fixed = len(pack_publish(V5, topic, b"", qos=qos, packet_id=1 if qos else None))
    size = packet_size - fixed
    while fixed - 2 + size + 1 + len(varint(fixed - 2 + size)) > packet_size:
        size -= 1
    return bytes(size)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_server_drops_what_is_too_large_for_the_client(connect, topic, qos):
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]: that message only, for that client only; the exchange goes on without it."""
    small = connect(V5, properties={"maximum_packet_size": CLIENT_MAXIMUM, "receive_maximum": 1})
    large = connect(V5)
    for client in (small, large):
        client.subscribe(topic, qos=qos)
    publisher = connect(V5)
    fitting = payload_for(topic, CLIENT_MAXIMUM, qos)
    messages = [b"before", fitting, fitting + b"!", bytes(5000), b"after"]
    for payload in messages:
        publisher.publish(topic, payload, qos=qos)
    large.expect_payloads(messages)
    publishes = small.expect_payloads([b"before", fitting, b"after"])
    assert len(publishes[1].raw) == CLIENT_MAXIMUM
    small.expect_nothing()


def test_too_large_in_the_queue_is_dropped_on_resume(connect, client_id, topic):
    """[MQTT-3.1.2-25]: the maximum of the new connection counts."""
    properties = {"session_expiry_interval": 60}
    client = connect(V5, client_id, clean_start=False, properties=properties)
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher = connect(V5)
    for payload in (b"before", bytes(5000), b"after"):
        publisher.publish(topic, payload, qos=1)
    properties["maximum_packet_size"] = CLIENT_MAXIMUM
    client = connect(V5, client_id, clean_start=False, properties=properties)
    client.expect_payloads([b"before", b"after"])
    client.expect_nothing()


def test_retained_message_too_large_is_not_sent(connect, topic):
    """[MQTT-3.1.2-24] [MQTT-3.1.2-25]"""
    connect(V5).publish(topic, bytes(5000), qos=1, retain=True)
    client = connect(V5, properties={"maximum_packet_size": CLIENT_MAXIMUM})
    client.subscribe(topic, qos=1)
    client.expect_nothing()


def test_properties_count(connect, topic):
    """[MQTT-3.1.2-24]: the size is that of the whole packet, with properties and subscription identifier."""
    client = connect(V5, properties={"maximum_packet_size": CLIENT_MAXIMUM})
    client.subscribe(topic, qos=0, properties={"subscription_identifier": 1})
    publisher = connect(V5)
    publisher.publish(topic, b"x", qos=0, properties={"user_property": [("name", "v" * CLIENT_MAXIMUM)]})
    publisher.publish(topic, payload_for(topic, CLIENT_MAXIMUM))
    publisher.publish(topic, b"after")
    client.expect_publish(topic, b"after")


def test_largest_packet_the_server_takes(connect, topic, version):
    """3.2.2.3.6: exactly the maximum is fine."""
    subscriber = connect(version)
    subscriber.subscribe(topic)
    payload = payload_for(topic, SERVER_MAXIMUM)
    connect(V5).publish(topic, payload)
    subscriber.expect_publish(topic, payload)


def test_packet_above_the_servers_maximum(connect, bystander, topic, version):
    """[MQTT-3.2.2-15], 3.2.2.3.6: 0x95 as soon as the length is known."""
    client = connect(version)
    client.send_raw(b"\x30" + varint(SERVER_MAXIMUM) + b"\x00")
    client.expect_disconnect(Reason.PACKET_TOO_LARGE)


def test_own_maximum_packet_size(start_broker, connect, topic):
    """limits.max_packet_size: announced and enforced."""
    broker = start_broker({"limits.max_packet_size": 1000})
    client = connect(V5, broker=broker)
    assert client.connack.properties["maximum_packet_size"] == 1000
    subscriber = connect(V311, broker=broker)
    subscriber.subscribe(topic)
    payload = payload_for(topic, 1000)
    client.publish(topic, payload)
    subscriber.expect_publish(topic, payload)
    client.send_publish(topic, payload + b"!")
    client.expect_disconnect(Reason.PACKET_TOO_LARGE)


def test_acknowledgements_stay_within_the_clients_maximum(connect):
    """[MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2] [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2]
    [MQTT-3.7.2-3] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2] [MQTT-3.14.2-3] [MQTT-3.14.2-4]:
    reason strings and user properties give way to the limit."""
    client = connect(V5, properties={"maximum_packet_size": 100})
    for qos in (1, 2):
        assert len(client.publish("$SYS/forbidden", b"x", qos=qos).raw) <= 100
    client.send_subscribe(("#/no/filter", 0))
    assert len(client.expect(PacketType.SUBACK).raw) <= 100
    client.send_ack(PacketType.PUBREL, 9)
    assert len(client.expect(PacketType.PUBCOMP).raw) <= 100
    client.send_ack(PacketType.PUBREC, 9)
    assert len(client.expect(PacketType.PUBREL).raw) <= 100
    client.send_raw(pack_unsubscribe(V5, 9, ["never/subscribed"]))
    assert len(client.expect(PacketType.UNSUBACK).raw) <= 100
    client.send_raw(b"\x82\x00")
    assert len(client.expect_disconnect((Reason.MALFORMED, Reason.PROTOCOL_ERROR)).raw) <= 100


def test_message_that_fits_without_a_topic_alias_is_sent(connect, topic):
    """[MQTT-3.1.2-25]: the alias a server may add is no reason to drop what fits as it is."""
    payload = payload_for(topic, CLIENT_MAXIMUM)
    client = connect(V5, properties={"maximum_packet_size": CLIENT_MAXIMUM, "topic_alias_maximum": 5})
    client.subscribe(topic)
    publisher = connect(V5)
    for _ in range(3):
        publisher.publish(topic, payload)
    publishes = [client.expect_publish(payload=payload) for _ in range(3)]
    assert publishes[0].topic == topic


@pytest.mark.parametrize(
    "packet",
    [
        pack_subscribe(V5, 1, [(f"f/{number}", 0) for number in range(40)]),
        pack_unsubscribe(V5, 1, [f"f/{number}" for number in range(40)]),
    ],
    ids=["SUBACK", "UNSUBACK"],
)
def test_an_answer_that_does_not_fit_ends_the_connection(connect, bystander, packet):
    """[MQTT-3.1.2-24]: the answer cannot be shortened; the client gets a DISCONNECT with the reason instead."""
    client = connect(V5, properties={"maximum_packet_size": 30})
    client.send_raw(packet)
    client.expect_disconnect(Reason.PACKET_TOO_LARGE)
