"""Does the topic `tbmq.events` tell who came, subscribed and went, and what was delivered?"""

import time

import pytest

from penstock.storage.log.embedded import open_reader
from penstock_schema.event import TOPIC, EventKind, decode_event
from tests.support.brokers.log_broker import LogBroker
from tests.support.clients.packets import V5, V311


@pytest.fixture
def broker(tmp_path):
    running = LogBroker(tmp_path)
    running.wait_until_listening()
    yield running
    running.kill()


def read_events(broker):
    reader = open_reader(broker.data_dir, TOPIC)
    marks = reader.watermarks(0)
    offset, found = marks.first, []
    while offset < marks.end:
        pack = reader.read(0, offset)
        found.extend(decode_event(record.value) for record in pack)
        offset = pack.next_offset
    reader.close()
    return found


def test_a_clients_life(broker, connect):
    client = connect(V5, "reader", broker=broker)
    client.subscribe("a/+", qos=1)
    for number in range(3):
        connect(V311, f"writer{number}", broker=broker).publish("a/b", b"x", qos=1)
        client.expect_publish("a/b", b"x", ack=True)
    client.unsubscribe("a/+")
    client.disconnect()
    deadline = time.monotonic() + 30
    events = []
    while EventKind.SESSION_ENDED not in {event.kind for event in events}:
        assert time.monotonic() < deadline, events
        time.sleep(0.05)
        events = read_events(broker)
    own = [event for event in events if event.client_id == "reader"]
    assert [event.kind for event in own] == [
        EventKind.CONNECTED,
        EventKind.SUBSCRIBED,
        EventKind.UNSUBSCRIBED,
        EventKind.DELIVERED,
        EventKind.DISCONNECTED,
        EventKind.SESSION_ENDED,
    ]
    assert (own[0].protocol, own[1].topic, own[1].qos, own[3].count) == (5, "a/+", 1, 3)
    assert {event.client_id for event in events} >= {"reader", "writer0", "writer1", "writer2"}


def test_what_is_dropped(broker, connect):
    """A message that is too large for the client, by cause."""
    client = connect(V5, "small", broker=broker, properties={"maximum_packet_size": 100})
    client.subscribe("big", qos=0)
    connect(V5, broker=broker).publish("big", bytes(500), qos=1)
    client.disconnect()
    deadline = time.monotonic() + 30
    dropped = []
    while not dropped:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        dropped = [event for event in read_events(broker) if event.kind == EventKind.DROPPED]
    assert [(event.client_id, event.cause, event.count) for event in dropped] == [("small", "too_large", 1)]


def await_event(broker, kind):
    deadline = time.monotonic() + 30
    while not (found := [event for event in read_events(broker) if event.kind == kind]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def test_what_expired_while_the_client_was_away(broker, connect):
    client = connect(V5, "sleeper", broker=broker, clean_start=True, properties={"session_expiry_interval": 3600})
    client.subscribe("late", qos=1)
    client.disconnect()
    connect(V5, broker=broker).publish("late", b"old", qos=1, properties={"message_expiry_interval": 5})
    time.sleep(5.2)  # the time of the message, not of the broker
    client = connect(V5, "sleeper", broker=broker, clean_start=False, properties={"session_expiry_interval": 3600})
    client.ping()
    client.disconnect()
    expired = await_event(broker, EventKind.EXPIRED)
    assert [(event.client_id, event.cause, event.count) for event in expired] == [("sleeper", "expired", 1)]


def test_a_dead_letter(broker, connect):
    worker = connect(V5, "worker", broker=broker)
    worker.subscribe("$queue/mqtt/#", qos=1, properties={"user_property": [("consumer-group", "g")]})
    connect(V5, broker=broker).publish("$queue/mqtt/job", b"x", qos=1)
    delivery = worker.expect_publish("$queue/mqtt/job", b"x", ack=True)
    named = {name: value for name, value in delivery.properties["user_property"] if name in ("message-id", "group-id")}
    worker.publish("$queue/mqtt/$reject", b"", qos=1, properties={"user_property": list(named.items())})
    [event] = await_event(broker, EventKind.DEAD_LETTERED)
    assert (event.topic, event.cause, event.count) == ("$queue/mqtt/job", "mqtt: rejected", 1)
