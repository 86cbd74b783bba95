"""Is a topic alias announced before it is used, whatever the client's Maximum Packet Size?"""

import pytest

from tests.support.clients.packets import V5


@pytest.mark.parametrize("limit", [128, 129, 130, 131, 132, 140])
def test_alias_is_announced_before_it_is_used(connect, topic, limit):
    """[MQTT-3.3.2-12] [MQTT-3.1.2-24]: announcing makes a packet longer, also by a longer length field, or two."""
    publisher = connect(V5)
    for size in range(limit - 20, limit + 1):
        subscriber = connect(V5, properties={"maximum_packet_size": limit, "topic_alias_maximum": 10})
        subscriber.subscribe(topic)
        publisher.publish(topic, bytes(size), qos=1)
        publisher.publish(topic, b"small", qos=1)
        names: dict[int, str] = {}
        while True:
            publish = subscriber.receive()
            alias = publish.properties.get("topic_alias")
            if publish.topic and alias is not None:
                names[alias] = publish.topic
            name = publish.topic or names.get(alias)
            assert name == topic, f"alias {alias} means nothing; limit {limit}, payload of {size}"
            assert len(publish.payload) <= limit
            if publish.payload == b"small":
                break
        fits = 2 + 2 + len(topic) + 1 + size <= limit
        assert not fits or len(names) <= 1
        subscriber.close()


def test_message_that_fits_only_without_an_alias(connect, topic):
    """[MQTT-3.1.2-25]: nothing that fits is dropped because the broker would like to announce an alias with it."""
    publisher = connect(V5)
    for limit in range(126, 140):
        size = limit - 2 - 2 - len(topic) - 1  # one byte of remaining length
        if size + 2 + len(topic) + 1 > 127:
            size -= 1
        subscriber = connect(V5, properties={"maximum_packet_size": limit, "topic_alias_maximum": 10})
        subscriber.subscribe(topic)
        publisher.publish(topic, bytes(size), qos=1)
        subscriber.expect_publish(topic, bytes(size), properties={})
        subscriber.close()
