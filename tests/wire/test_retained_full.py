"""When the store of retained messages is full: the old message stays, and one user cannot fill the store."""

from __future__ import annotations

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Will
from tests.support.worlds.application import until

QUOTA_EXCEEDED = 0x97


def retained_at(connect, broker, topic: str, **options) -> bytes | None:
    client = connect(V5, broker=broker, **options)
    client.subscribe(topic)
    client.ping()
    found = [packet.payload for packet in client.received() if packet.type == PacketType.PUBLISH]
    client.close()
    assert len(found) <= 1
    return found[0] if found else None


def fill(client, count: int, size: int) -> list[int]:
    reasons = []
    for number in range(count):
        answer = client.publish(f"fill/{number}", bytes(size), qos=1, retain=True)
        reasons.append(answer.reason)
    return reasons


@pytest.mark.parametrize("qos", [1, 2])
def test_refused_and_the_old_one_stays(start_file_broker, connect, qos):
    broker = start_file_broker({"limits": {"max_retained_bytes": 50_000}, "sys": {"interval": 0}})
    watcher = connect(V5, broker=broker)
    watcher.subscribe("vic/#")
    victim = connect(V5, "victim", broker=broker)
    victim.publish("vic/state", b"old", qos=qos, retain=True)
    watcher.expect_publish("vic/state", b"old")
    assert fill(connect(V5, broker=broker), 400, 100)[-1] == QUOTA_EXCEEDED
    answer = victim.publish("vic/state", bytes(5_000), qos=qos, retain=True)
    assert answer.reason == QUOTA_EXCEEDED
    assert "limits.max_retained" in answer.properties["reason_string"]
    watcher.expect_nothing(0.1)  # it was refused
    assert retained_at(connect, broker, "vic/state") == b"old"
    victim.publish("vic/state", b"new", qos=qos, retain=True)
    assert retained_at(connect, broker, "vic/state") == b"new"
    event = broker.await_event("retained message not stored: the store is full")
    assert event["topic"].startswith("fill/")
    assert "max_retained_bytes" in event["advice"]


@pytest.mark.parametrize(("version", "qos"), [(V311, 0), (V311, 1), (V311, 2), (V5, 0)])
def test_delivered_and_not_retained(start_broker, connect, version, qos):
    """Where nothing can be refused. With QoS 0 the old one goes [MQTT3-3.3.1-7]."""
    broker = start_broker({"limits.max_retained_bytes": 5_000, "sys.interval": 0})
    watcher = connect(V5, broker=broker)
    watcher.subscribe("vic/#")
    publisher = connect(version, broker=broker)
    publisher.publish("vic/state", b"old", qos=qos, retain=True)
    publisher.publish("vic/state", bytes(5_000), qos=qos, retain=True)
    watcher.expect_payloads([b"old", bytes(5_000)])
    assert retained_at(connect, broker, "vic/state") == (b"old" if qos else None)
    publisher.publish("vic/state", b"", qos=qos, retain=True)
    watcher.expect_publish("vic/state", b"")
    assert retained_at(connect, broker, "vic/state") is None


def test_will_that_has_no_room(start_broker, connect):
    broker = start_broker({"limits.max_retained_bytes": 1_000, "sys.interval": 0})
    watcher = connect(V5, broker=broker)
    watcher.subscribe("vic/#")
    connect(V5, broker=broker).publish("vic/state", b"old", qos=1, retain=True)
    connect(V5, broker=broker, will=Will("vic/state", bytes(2_000), 1, True)).close()
    watcher.expect_payloads([b"old", bytes(2_000)])
    assert retained_at(connect, broker, "vic/state") == b"old"


def test_share_of_a_user(start_file_broker, connect, password_file):
    """limits.max_retained_share: one user cannot fill the store. Clients without a name are together one user."""
    settings = {
        "limits": {"max_retained_messages": 10, "max_retained_share": 40},
        "sys": {"interval": 0},
        "access": {"anonymous": "allow", "password_file": str(password_file)},
    }
    broker = start_file_broker(settings)
    alice = {"username": "alice", "password": b"alice-secret"}
    bob = {"username": "bob", "password": b"bob-secret"}
    for options, prefix in ((alice, "a"), ({}, "n")):
        reasons = []
        for number in range(6):
            client = connect(V5, broker=broker, **options)  # other connections, and the same user
            reasons.append(client.publish(f"{prefix}/{number}", b"x", qos=1, retain=True).reason)
        assert [reason == QUOTA_EXCEEDED for reason in reasons] == [False] * 4 + [True] * 2
    other = connect(V5, broker=broker, **bob)
    assert other.publish("b/0", b"x", qos=1, retain=True).reason != QUOTA_EXCEEDED
    # it may replace and clear its own, and takes over those of others
    client = connect(V5, broker=broker, **alice)
    assert client.publish("a/0", b"y", qos=1, retain=True).reason != QUOTA_EXCEEDED
    assert client.publish("b/0", b"y", qos=1, retain=True).reason == QUOTA_EXCEEDED
    client.publish("a/1", b"", qos=1, retain=True)
    assert client.publish("b/0", b"y", qos=1, retain=True).reason != QUOTA_EXCEEDED
    event = broker.await_event("retained message not stored: the user's share is used up")
    assert (event["username"], event["topic"]) == ("alice", "a/4")
    broker.terminate()
    # after a restart it is still known whose they are
    broker.process = broker._start()
    broker.wait_until_listening()
    client = connect(V5, broker=broker, **alice)
    assert client.publish("a/9", b"x", qos=1, retain=True).reason == QUOTA_EXCEEDED
    other = connect(V5, broker=broker, **bob)
    assert other.publish("b/1", b"x", qos=1, retain=True).reason != QUOTA_EXCEEDED


def test_the_broker_s_own_topics_hide_no_client(start_file_broker, connect):
    """$SYS topics need room too; a warning about them is not the one about a client without a user name."""
    broker = start_file_broker({"limits": {"max_retained_messages": 1}, "sys": {"interval": 3600}})
    full = "retained message not stored: the store is full"
    assert broker.await_event(full)["client_id"] is None
    meter = connect(V5, "meter", broker=broker)

    def is_reported() -> bool:
        meter.publish("meter/state", b"on", qos=1, retain=True)
        return any(event["client_id"] == "meter" for event in broker.events(full))

    until(is_reported, what=broker.log)  # the hub reports once a second
