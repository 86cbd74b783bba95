"""Do topic aliases work in both directions, within their limits and within one connection?"""

import pytest

from tests.support.clients.packets import V5, V311, Reason

SERVER_MAXIMUM = 16


@pytest.fixture
def watcher(connect, topic):
    client = connect(V311)
    client.subscribe(f"{topic}/#")
    return client


def test_alias_stands_for_its_topic(connect, watcher, topic):
    """[MQTT-3.3.2-12], 3.3.2.3.4: set with the topic, then used without, at each QoS; the alias is not forwarded."""
    client = connect(V5)
    client.publish(f"{topic}/a", b"set", properties={"topic_alias": 1})
    watcher.expect_publish(f"{topic}/a", b"set")
    for qos in (0, 1, 2):
        client.publish("", b"used", qos=qos, properties={"topic_alias": 1})
        watcher.expect_publish(f"{topic}/a", b"used")


def test_every_alias_up_to_the_maximum(connect, watcher, topic):
    """[MQTT-3.3.2-12]"""
    client = connect(V5)
    for alias in range(1, SERVER_MAXIMUM + 1):
        client.publish(f"{topic}/{alias}", b"set", properties={"topic_alias": alias})
        watcher.expect_publish(f"{topic}/{alias}", b"set")
    for alias in range(SERVER_MAXIMUM, 0, -1):
        client.publish("", b"used", properties={"topic_alias": alias})
        watcher.expect_publish(f"{topic}/{alias}", b"used")


def test_alias_can_be_moved(connect, watcher, topic):
    """3.3.2.3.4: a packet with topic and alias changes the mapping."""
    client = connect(V5)
    for name in ("a", "b", "a"):
        client.publish(f"{topic}/{name}", b"set", properties={"topic_alias": 3})
        watcher.expect_publish(f"{topic}/{name}", b"set")
        client.publish("", b"used", properties={"topic_alias": 3})
        watcher.expect_publish(f"{topic}/{name}", b"used")


def test_aliases_of_two_clients_are_their_own(connect, watcher, topic):
    """3.3.2.3.4: mappings exist within one connection."""
    one, two = connect(V5), connect(V5)
    one.publish(f"{topic}/one", b"", qos=1, properties={"topic_alias": 1})
    two.publish(f"{topic}/two", b"", qos=1, properties={"topic_alias": 1})
    one.publish("", b"", qos=1, properties={"topic_alias": 1})
    topics = [watcher.expect_publish().topic for _ in range(3)]
    assert topics == [f"{topic}/one", f"{topic}/two", f"{topic}/one"]


@pytest.mark.parametrize("alias", [0, SERVER_MAXIMUM + 1, 65_535])
def test_alias_out_of_range(connect, bystander, topic, alias):
    """[MQTT-3.2.2-17] [MQTT-3.3.2-8] [MQTT-3.3.2-9], 3.3.4: DISCONNECT 0x94."""
    client = connect(V5)
    client.send_publish(topic, b"x", properties={"topic_alias": alias})
    client.expect_disconnect(Reason.TOPIC_ALIAS_INVALID)


def test_unknown_alias_without_a_topic(connect, bystander):
    """3.3.4: DISCONNECT 0x82."""
    client = connect(V5)
    client.send_publish("", b"x", properties={"topic_alias": 5})
    client.expect_disconnect(Reason.PROTOCOL_ERROR)


def test_aliases_do_not_outlive_the_connection(connect, client_id, topic):
    """[MQTT-3.3.2-7]: not even when the session does."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    first = connect(V5, client_id, **options)
    first.publish(topic, b"set", qos=1, properties={"topic_alias": 1})
    first.disconnect()
    second = connect(V5, client_id, **options)
    assert second.connack.session_present
    second.send_publish("", b"used", properties={"topic_alias": 1})
    second.expect_disconnect(Reason.PROTOCOL_ERROR)


def decode_topics(publishes, maximum):
    """Topics of the publishes of a server that may use aliases up to `maximum`."""
    aliases, topics = {}, []
    for publish in publishes:
        alias = publish.properties.get("topic_alias")
        if alias is not None:
            assert 1 <= alias <= maximum, f"alias {alias} above the client's maximum"
            if publish.topic:
                aliases[alias] = publish.topic
        topics.append(publish.topic or aliases[alias])
    return topics


@pytest.mark.parametrize("maximum", [1, 3, 65_535])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_aliases_from_the_server(connect, topic, maximum, qos):
    """[MQTT-3.1.2-26] [MQTT-3.3.2-11]: whichever the server uses, each message decodes to its topic."""
    subscriber = connect(V5, properties={"topic_alias_maximum": maximum})
    subscriber.subscribe(f"{topic}/#", qos=qos)
    publisher = connect(V5)
    topics = [f"{topic}/{number * 7 % 5}" for number in range(40)]
    for number, name in enumerate(topics):
        publisher.publish(name, b"%d" % number, qos=qos)
    publishes = subscriber.expect_payloads(b"%d" % number for number in range(40))
    assert decode_topics(publishes, maximum) == topics
    if maximum >= 5:
        assert any(not publish.topic for publish in publishes), "aliases offered for all topics are used"


@pytest.mark.parametrize("properties", [None, {"topic_alias_maximum": 0}], ids=["absent", "0"])
def test_no_aliases_without_the_clients_leave(connect, topic, properties):
    """[MQTT-3.1.2-27]"""
    subscriber = connect(V5, properties=properties)
    subscriber.subscribe(topic)
    publisher = connect(V5)
    for _ in range(5):
        publisher.publish(topic, b"x")
        assert "topic_alias" not in subscriber.expect_publish(topic, b"x").properties


def test_server_aliases_begin_anew_with_each_connection(connect, client_id, topic):
    """[MQTT-3.3.2-7]: what is sent again after a resume carries its topic or a mapping of this connection."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60, "topic_alias_maximum": 5}}
    subscriber = connect(V5, client_id, **options)
    subscriber.subscribe(f"{topic}/#", qos=1)
    publisher = connect(V5)
    topics = {b"%d" % number: f"{topic}/{number % 2}" for number in range(6)}
    for payload, name in topics.items():
        publisher.publish(name, payload, qos=1)

    def decode(publishes):  # by payload: two topics have no order between each other
        return dict(zip([publish.payload for publish in publishes], decode_topics(publishes, 5), strict=True))

    assert decode([subscriber.expect_publish() for _ in topics]) == topics
    subscriber.close()
    again = connect(V5, client_id, **options)
    assert decode([again.expect_publish(dup=True) for _ in topics]) == topics


def test_alias_set_by_a_message_nobody_receives(connect, watcher, topic, new_name):
    """3.3.2.3.4: the mapping holds although nobody subscribed to the first message."""
    client = connect(V5)
    client.publish(new_name("nobody/"), b"", properties={"topic_alias": 2})
    client.publish(f"{topic}/x", b"", properties={"topic_alias": 1})
    watcher.expect_publish(f"{topic}/x")
    client.publish("", b"", properties={"topic_alias": 2})
    client.publish("", b"last", properties={"topic_alias": 1})
    watcher.expect_publish(f"{topic}/x", b"last")
