"""Does the server publish its state under $SYS with the names users of mosquitto know, and keep clients out?"""

import re
import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason

# Topic below $SYS/broker/ and what its payload looks like
TOPICS = {
    "version": r".+ .*\d.*",
    "uptime": r"\d+ seconds",
    "clients/total": r"\d+",
    "clients/connected": r"\d+",
    "clients/disconnected": r"\d+",
    "clients/maximum": r"\d+",
    "clients/active": r"\d+",
    "clients/inactive": r"\d+",
    "clients/expired": r"\d+",
    "messages/received": r"\d+",
    "messages/sent": r"\d+",
    "messages/stored": r"\d+",
    "publish/messages/received": r"\d+",
    "publish/messages/sent": r"\d+",
    "publish/messages/dropped": r"\d+",
    "publish/bytes/received": r"\d+",
    "publish/bytes/sent": r"\d+",
    "bytes/received": r"\d+",
    "bytes/sent": r"\d+",
    "retained messages/count": r"\d+",
    "subscriptions/count": r"\d+",
    "store/messages/count": r"\d+",
    "store/messages/bytes": r"\d+",
    "load/messages/received/1min": r"\d+\.\d\d",
    "load/messages/sent/15min": r"\d+\.\d\d",
    "load/publish/received/5min": r"\d+\.\d\d",
    "load/bytes/sent/1min": r"\d+\.\d\d",
    "load/connections/1min": r"\d+\.\d\d",
}


def read_state(client, seconds):
    """The newest payload of each topic below $SYS/broker/ within the time."""
    state = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for packet in client.receive_all(0.2):
            state[packet.topic.removeprefix("$SYS/broker/")] = packet.payload.decode()
    return state


def test_names_values_and_updates(start_broker, connect, topic):
    """The issue: `$SYS` with mosquitto's names; numbers that move with what happens."""
    broker = start_broker({"sys.interval": 1})
    clients = [connect(V5, broker=broker) for _ in range(4)]
    watcher = connect(V311, broker=broker)
    watcher.subscribe("$SYS/#")
    for _ in range(50):
        clients[0].publish(topic, b"x" * 10, qos=1)
    state = read_state(watcher, 2.6)
    missing = {name for name in TOPICS if name not in state}
    assert not missing
    for name, pattern in TOPICS.items():
        assert re.fullmatch(pattern, state[name]), f"{name}: {state[name]!r}"
    assert int(state["clients/connected"]) == 5
    assert int(state["publish/messages/received"]) == 50
    assert int(state["publish/bytes/received"]) >= 500
    assert int(state["messages/received"]) >= 50
    assert int(state["subscriptions/count"]) == 1
    late = connect(V311, broker=broker)
    late.subscribe("$SYS/broker/version")
    late.expect_publish("$SYS/broker/version", retain=True)


def test_not_matched_by_a_leading_wildcard(start_broker, connect):
    """[MQTT-4.7.2-1] [MQTT3-4.7.2-1]"""
    broker = start_broker({"sys.interval": 1})
    client = connect(V311, broker=broker)
    client.subscribe("#")
    client.subscribe("+/broker/uptime")
    client.expect_nothing(1.5)


def test_interval_0_turns_it_off(start_broker, connect):
    """sys.interval = 0"""
    broker = start_broker({"sys.interval": 0})
    client = connect(V311, broker=broker)
    client.subscribe("$SYS/#")
    client.expect_nothing(0.5)


@pytest.mark.parametrize("name", ["$SYS", "$SYS/broker/version", "$SYS/x"])
def test_clients_may_not_publish_there(connect, name):
    """4.7.2: topics with $ are for the server's own use; 0x87 where there is an acknowledgement to put it in."""
    watcher = connect(V5)
    watcher.subscribe(name, retain_handling=2)
    client = connect(V5)
    for qos in (1, 2):
        assert client.publish(name, b"forged", qos=qos).reason == Reason.NOT_AUTHORIZED
    client.publish(name, b"forged")
    client.ping()
    watcher.ping()
    assert all(packet.payload != b"forged" for packet in watcher.receive_all(0.1))


def test_refused_qos_2_publish_leaves_its_id_free(connect, topic):
    """[MQTT-4.3.3-9]: after PUBREC 0x87 the same id is a new message, without PUBREL and PUBCOMP between."""
    watcher = connect(V5)
    watcher.subscribe(topic)
    client = connect(V5)
    client.send_publish("$SYS/x", b"forged", qos=2, packet_id=5)
    client.expect(PacketType.PUBREC, packet_id=5, reason=Reason.NOT_AUTHORIZED)
    assert client.publish(topic, b"new", qos=2, packet_id=5).reason == Reason.SUCCESS
    watcher.expect_publish(topic, b"new")


def test_clients_of_311_may_not_publish_there(connect):
    """[MQTT3-3.3.5-2]: acknowledged as usual or the connection is closed; in any case nobody gets it."""
    watcher = connect(V5)
    watcher.subscribe("$SYS/x")
    client = connect(V311)
    client.send_publish("$SYS/x", b"forged", qos=1, packet_id=1)
    client.receive_all(0.1, at_least=1)
    watcher.expect_nothing(0.1)
