"""Do the limits of the settings hold, and does the server say so?"""

import time

from tests.support.clients.packets import V5, V311, PacketType, Reason, Will
from tests.support.clients.raw_client import ClosedByServer


def test_subscriptions_per_client(start_broker, connect, topic):
    """limits.max_subscriptions: 0x97 for what is too many; replacing one is not one more."""
    broker = start_broker({"limits.max_subscriptions": 3})
    client = connect(V5, broker=broker)
    names = [f"{topic}/{index}" for index in range(5)]
    assert client.subscribe(*names, qos=1) == [1, 1, 1, Reason.QUOTA_EXCEEDED, Reason.QUOTA_EXCEEDED]
    assert client.subscribe(names[0], qos=2) == [2]
    assert client.unsubscribe(names[0]) == [0]
    assert client.subscribe(names[4]) == [0]
    old = connect(V311, broker=broker)
    assert old.subscribe(*names) == [0, 0, 0, 0x80, 0x80]


def test_bytes_of_subscriptions(start_broker, connect):
    """limits.max_subscription_bytes and limits.max_total_subscription_bytes: long filters are bounded, too."""
    settings = {"limits.max_subscription_bytes": 100_000, "limits.max_total_subscription_bytes": 250_000}
    broker = start_broker(settings)
    clients = [connect(V5, broker=broker) for _ in range(4)]
    reasons = [client.subscribe(*(str(number).ljust(30_000, "x") for number in range(4))) for client in clients]
    assert [sum(reason == 0 for reason in codes) for codes in reasons] == [3, 3, 2, 0]
    assert {reason for codes in reasons for reason in codes} == {0, 0x97}
    # one that is there may be changed, and what is given back is free for others
    assert clients[0].subscribe("0".ljust(30_000, "x"), qos=1) == [1]
    clients[0].unsubscribe("0".ljust(30_000, "x"))
    assert clients[3].subscribe("y" * 30_000) == [0]
    clients[1].disconnect()
    assert clients[3].subscribe("z" * 30_000) == [0]
    log = broker.log()
    assert log.count("subscription refused") == 2
    assert "limits.max_total_subscription_bytes" in log


def test_topic_levels_and_length(start_broker, connect):
    """limits.max_topic_levels and limits.max_topic_length"""
    broker = start_broker({"limits.max_topic_levels": 4, "limits.max_topic_length": 50})
    client = connect(V5, broker=broker)
    assert client.subscribe("a/b/c/d", "a/b/c/d/e", "a/b/c/#", "x" * 50, "x" * 51) == [0, 0x8F, 0, 0, 0x8F]
    for name in ("a/b/c/d/e", "x" * 51):
        publisher = connect(V5, broker=broker)
        publisher.send_publish(name, b"x", qos=1, packet_id=1)
        answer = publisher.receive()
        assert answer.reason in (Reason.TOPIC_NAME_INVALID, Reason.QUOTA_EXCEEDED, Reason.MALFORMED)


def test_connections(start_broker, connect, open_client):
    """limits.max_connections: the next one is refused, and may come when another has gone."""
    broker = start_broker({"limits.max_connections": 3})
    clients = [connect(V5, broker=broker) for _ in range(3)]
    try:
        extra = open_client(V5, broker=broker)
        extra.send_connect("extra")
        answer = extra.receive()
        assert answer.type == PacketType.CONNACK
        assert answer.reason in (Reason.SERVER_BUSY, Reason.QUOTA_EXCEEDED, Reason.SERVER_UNAVAILABLE)
        extra.expect_closed()
    except (ClosedByServer, ConnectionError):
        pass
    clients.pop().disconnect()
    deadline = time.monotonic() + 30
    while True:
        try:
            connect(V5, broker=broker)
            break
        except (AssertionError, OSError):
            assert time.monotonic() < deadline, "no place again after a connection has ended"
            time.sleep(0.05)
    for client in clients:
        client.ping()


def test_receive_maximum_and_alias_maximum_are_announced(start_broker, connect, topic):
    """limits.receive_maximum, topic_alias_maximum [MQTT-3.2.2-18], max_keep_alive and max_session_expiry"""
    broker = start_broker(
        {
            "limits.receive_maximum": 5,
            "limits.topic_alias_maximum": 0,
            "limits.max_keep_alive": 30,
            "limits.max_session_expiry": 1000,
        }
    )
    client = connect(V5, broker=broker, keep_alive=0, properties={"session_expiry_interval": 2000})
    properties = client.connack.properties
    assert properties["receive_maximum"] == 5
    assert properties.get("topic_alias_maximum", 0) == 0
    assert properties["server_keep_alive"] == 30
    assert properties["session_expiry_interval"] == 1000
    for packet_id in range(1, 6):
        client.send_publish(topic, b"x", qos=2, packet_id=packet_id)
        client.expect(PacketType.PUBREC, packet_id=packet_id)
    client.send_publish(topic, b"x", qos=2, packet_id=6)
    client.expect_disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)
    client = connect(V5, broker=broker)
    client.send_publish(topic, b"x", properties={"topic_alias": 1})
    client.expect_disconnect(Reason.TOPIC_ALIAS_INVALID)


def test_in_flight_to_a_client(start_broker, connect, topic, version):
    """limits.max_inflight: a client of any version has at most so many unacknowledged messages; the rest waits."""
    broker = start_broker({"limits.max_inflight": 3})
    client = connect(version, broker=broker)
    client.subscribe(topic, qos=1)
    publisher = connect(version, broker=broker)
    payloads = [b"%d" % number for number in range(6)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    in_flight = client.expect_payloads(payloads[:3], ack=False)
    client.expect_nothing()
    for publish in in_flight:
        client.ack(publish)
    client.expect_payloads(payloads[3:])


def test_user_properties_per_packet(start_broker, connect, topic):
    """limits.max_user_properties"""
    broker = start_broker({"limits.max_user_properties": 5})
    client = connect(V5, broker=broker)
    client.subscribe(topic)
    few = {"user_property": [("n", "v")] * 5}
    client.publish(topic, b"x", properties=few)
    client.expect_publish(topic, b"x", properties=few)
    client.send_publish(topic, b"x", qos=1, packet_id=1, properties={"user_property": [("n", "v")] * 6})
    assert client.receive().reason in (Reason.QUOTA_EXCEEDED, Reason.MALFORMED, Reason.PACKET_TOO_LARGE)


def test_user_properties_of_a_connect_are_limited_by_its_size_only(connect):
    """The broker keeps none of them."""
    connect(V5, properties={"user_property": [("n", "v")] * 1_000})


def test_a_will_with_too_many_user_properties_is_refused_with_a_reason(open_client, client_id, topic):
    """limits.max_user_properties: those of a will are sent to its subscribers."""
    client = open_client(V5)
    will = Will(topic, b"gone", properties={"user_property": [("n", "v")] * 65})
    client.send_connect(client_id, will=will, properties={"maximum_packet_size": 100})
    connack = client.expect(PacketType.CONNACK, reason=Reason.QUOTA_EXCEEDED)
    assert "64 user properties" in connack.properties["reason_string"]
    client.expect_closed()


def test_retained_messages(start_broker, connect, topic):
    """limits.max_retained_messages: no more are kept; one that is there may still be replaced and removed."""
    broker = start_broker({"limits.max_retained_messages": 3, "sys.interval": 0})
    publisher = connect(V5, broker=broker)
    for index in range(5):
        publisher.publish(f"{topic}/{index}", b"first", qos=1, retain=True)
    publisher.publish(f"{topic}/0", b"second", qos=1, retain=True)
    publisher.publish(f"{topic}/1", b"", qos=1, retain=True)
    publisher.publish(f"{topic}/4", b"now there is room", qos=1, retain=True)
    client = connect(V5, broker=broker)
    client.subscribe(f"{topic}/+")
    client.ping()
    found = {packet.topic.rpartition("/")[2]: packet.payload for packet in client.receive_all(0.1, at_least=3)}
    assert found == {"0": b"second", "2": b"first", "4": b"now there is room"}


def test_retained_bytes(start_broker, connect, topic):
    """limits.max_retained_bytes: a message that takes the place of another is counted once."""
    broker = start_broker({"limits.max_retained_bytes": 100_000, "sys.interval": 0})
    publisher = connect(V5, broker=broker)
    publisher.publish(topic, b"a" * 60_000, qos=1, retain=True)
    publisher.publish(f"{topic}/more", b"b" * 60_000, qos=1, retain=True)
    publisher.publish(topic, b"c" * 60_000, qos=1, retain=True)
    client = connect(V5, broker=broker)
    client.subscribe(f"{topic}/#")
    client.expect_publish(topic, b"c" * 60_000, retain=True)
    client.expect_nothing(0.1)


def test_sessions(start_broker, connect, open_client):
    """limits.max_sessions: sessions of absent clients count; over it only who has one may come."""
    broker = start_broker({"limits.max_sessions": 2})
    for name in ("first", "second"):
        connect(V5, name, broker=broker, properties={"session_expiry_interval": 60}).disconnect()
    third = open_client(V5, broker=broker)
    third.send_connect("third")
    assert third.expect(PacketType.CONNACK).reason == Reason.QUOTA_EXCEEDED
    third.expect_closed()
    back = connect(V5, "first", broker=broker, clean_start=False)
    back.ping()
