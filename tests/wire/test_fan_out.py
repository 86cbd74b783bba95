"""Does every subscriber of one message get the packet of its own version, QoS, flags and properties?

The first subscriber of each kind has the packet written right into its output, the others get a copy of one that was
encoded for them: whoever comes first, the bytes are the same.
"""

import pytest

from tests.support.clients.packets import PINGREQ, V5, V311, PacketType

EXPIRY = {"message_expiry_interval": 100}
PROPERTIES = {**EXPIRY, "user_property": [("name", "value")], "content_type": "text"}
# version, QoS asked for, retain as published, subscription identifier, the largest packet it takes
SUBSCRIBERS = [
    *[(V311, qos, False, 0, 0) for qos in (0, 1, 2)],
    *[(V5, qos, as_published, 0, 0) for qos in (0, 1, 2) for as_published in (False, True)],
    (V5, 1, True, 7, 0),
    (V5, 0, False, 0, 40),
    (V5, 2, False, 0, 40),
]


def subscribe(connect, topic, subscriber):
    version, qos, as_published, identifier, largest = subscriber
    if version == V311:
        client = connect(V311)
        client.subscribe(topic, qos=qos)
        return client
    client = connect(V5, properties={"maximum_packet_size": largest} if largest else None)
    asked = {"subscription_identifier": identifier} if identifier else None
    client.subscribe(topic, qos=qos, retain_as_published=as_published, properties=asked)
    return client


def expect_own_copy(client, topic, payload, published_qos, subscriber):
    version, qos, as_published, identifier, largest = subscriber
    if largest:
        client.send_raw(PINGREQ)
        client.expect(PacketType.PINGRESP)  # and nothing before it: [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        return
    properties = {**PROPERTIES, **({"subscription_identifier": [identifier]} if identifier else {})}
    client.expect_publish(
        topic,
        payload,
        qos=min(qos, published_qos),
        retain=as_published,
        properties=properties if version == V5 else None,
        ack=True,
    )


@pytest.mark.parametrize("published_qos", [0, 1, 2])
@pytest.mark.parametrize("first", range(len(SUBSCRIBERS)))
def test_every_subscriber_gets_its_own_copy(connect, topic, first, published_qos):
    """[MQTT-3.8.4-8] [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT-3.3.4-3]: two of each kind, each kind once the first."""
    subscribers = [one for one in SUBSCRIBERS[first:] + SUBSCRIBERS[:first] for _ in range(2)]
    clients = [subscribe(connect, topic, one) for one in subscribers]
    publisher = connect(V5)
    for payload in (b"x" * 20, b"y" * 50, b"z" * 3_000):
        publisher.publish(topic, payload, qos=published_qos, retain=True, properties=PROPERTIES)
        for client, subscriber in zip(clients, subscribers, strict=True):
            expect_own_copy(client, topic, payload, published_qos, subscriber)
    publisher.publish(topic, retain=True)
