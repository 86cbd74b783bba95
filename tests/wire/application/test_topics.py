"""Does each APPLICATION have a topic of the log under its right name, and is it gone when its session is?"""

import hashlib
import json

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, pack_disconnect
from tests.support.worlds.application import PREFIX, SHARED_PREFIX, persistent, topic_of, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

SETTINGS = {"application.topic_properties": "retention.ms:3600000;segment.bytes:1048576"}


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("shape", ["app{}", "app-{}", "app/{}", "app {} ü", "app{}" + "x" * 240])
def test_names_of_clients(broker, open_app, new_name, version, shape):
    """Seed: the id where it is alphanumeric, else its SHA-256, and where it is too long (reference, defect 15)."""
    name = shape.format(new_name(""))
    open_app(version, name)
    expected = PREFIX + (name if name.isalnum() and name.isascii() and len(name) < 230 else sha256(name))
    broker.await_topic(expected)


def test_an_id_that_looks_like_a_hash_is_hashed(*, broker, connect, open_app, publisher, topic, new_name):
    """Reference, defect 15: nobody gets the topic of another by taking its SHA-256 for a client id."""
    victim = f"app-{new_name('x')}"
    open_app(V5, victim).subscribe(topic, qos=1)
    thief = sha256(victim)
    broker.change_types(("app*", thief))
    try:
        client = open_app(V5, thief)
        publisher.publish(topic, b"secret", qos=1)
        client.expect_nothing(0.3)
        assert {PREFIX + thief, PREFIX + sha256(thief)} <= broker.topics()
    finally:
        broker.change_types(("app*",))


@pytest.mark.parametrize(
    ("levels", "name"),
    [("{}/topic", "{}.topic"), ("{}/#", "{}.mlw"), ("{}/+", "{}.slw"), ("{}/+/x/#", "{}.slw.x.mlw"),
     ("{}/wärme", None), ("{}/a_b", None), ("{}/a.b", None), ("{}/slw", None), ("{}//x", None)],
)  # fmt: skip
def test_names_of_shared_filters(broker, open_app, new_name, levels, name):
    """Seed: `/` is `.`, `+` is `slw`, `#` is `mlw`; SHA-256 where the name would be invalid or ambiguous."""
    base = new_name("filter")
    topic_filter = levels.format(base)
    open_app(V5).subscribe(f"$share/group/{topic_filter}", qos=1)
    broker.await_topic(SHARED_PREFIX + (name.format(base) if name else sha256(topic_filter)))


def test_made_with_the_first_persistent_connection(broker, open_app, connect, app_id, version):
    """Seed: when the client connects with a persistent session, before there is any message."""
    connect(version, app_id).disconnect()
    assert topic_of(app_id) not in broker.topics()
    client = open_app(version)
    assert topic_of(app_id) in broker.topics()
    client.disconnect()
    assert topic_of(app_id) in broker.topics()


def test_properties_and_partitions(broker, open_app, app_id):
    """TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES; one partition always."""
    open_app(V5).close()
    described = json.loads(broker.command("log", "describe", topic_of(app_id), options=["--json"]))
    assert len(described["partitions"]) == 1
    assert described["properties"]["retention.ms"] == "3600000"


def test_records_are_the_publishes(broker, open_app, backlog, app_id, topic):
    """`penstock log read` shows what waits for a client."""
    payloads = backlog(V5, 5)
    records = broker.await_records(topic_of(app_id), 5)
    assert [(record.topic, record.payload) for record in records] == [(topic, payload) for payload in payloads]
    shown = broker.command("log", "read", topic_of(app_id), options=["--json"]).splitlines()
    assert [json.loads(line)["payload"].encode() for line in shown] == payloads


def test_removed_by_a_clean_session(broker, backlog, connect, app_id, version):
    """The issue: removed when the session ends; here because the client wants no other any more."""
    backlog(version, 3)
    connect(version, app_id, clean_start=True)
    broker.await_topic(topic_of(app_id), exists=False)


def test_removed_by_a_disconnect(broker, open_app, app_id):
    """3.14.2.2.2: session expiry 0 in DISCONNECT ends the session with the connection."""
    client = open_app(V5)
    assert topic_of(app_id) in broker.topics()
    client.disconnect(properties={"session_expiry_interval": 0})
    broker.await_topic(topic_of(app_id), exists=False)


def test_removed_when_the_session_expires(broker, open_app, app_id, backlog, topic):
    open_app(V5, seconds=1).close()
    broker.await_topic(topic_of(app_id), exists=False)
    payloads = backlog(V5, 2)
    open_app(V5).expect_payloads(payloads)


def test_a_new_session_under_the_same_id_begins_empty(*, broker, backlog, connect, open_app, publisher, topic, app_id):
    backlog(V5, 3)
    fresh = connect(V5, app_id, **(persistent(V5) | {"clean_start": True}))
    fresh.subscribe(topic, qos=1)
    publisher.publish(topic, b"new", qos=1)
    packets = [fresh.expect_publish(topic, b"new", dup=False, ack=True)]
    fresh.expect_nothing(0.1)
    assert packets[0].packet_id >= 1
    fresh.disconnect()
    publisher.publish(topic, b"newer", qos=1)
    open_app(V5).expect_publish(topic, b"newer", dup=False, ack=True)


def test_a_session_that_ends_while_messages_come(*, broker, open_app, connect, publisher, topic, new_name):
    """Sessions end and begin under load: nobody else misses a message, and no topic stays behind."""
    witness = open_app(V5, new_name("app"))
    witness.subscribe(f"{topic}/#", qos=1)
    names = [new_name("app") for _ in range(3)]
    for number in range(30):
        name = names[number % 3]
        client = open_app(V5, name)
        client.subscribe(f"{topic}/#", qos=1)
        publisher.publish(f"{topic}/{number}", b"%d" % number, qos=1)
        if number % 2:
            client.send_raw(pack_disconnect(V5, properties={"session_expiry_interval": 0}))
            client.receive_until_closed()
        client.close()
    assert {int(witness.expect_publish(ack=True).payload) for _ in range(30)} == set(range(30))
    for name in names:
        connect(V311, name).disconnect()
    until(lambda: not {topic_of(name) for name in names} & broker.topics(), 60, "no topic stays behind")


def test_shared_topic_goes_with_its_last_member(broker, open_app, connect, new_name):
    base = new_name("shared")
    name = f"{SHARED_PREFIX}{base}.x"
    members = [new_name("app") for _ in range(2)]
    for member in members:
        open_app(V5, member).subscribe(f"$share/group/{base}/x", qos=1)
    assert name in broker.topics()
    connect(V5, members[0])
    assert name in broker.topics()
    connect(V5, members[1])
    broker.await_topic(name, exists=False)
