"""Does an operator see what was refused: denied topics, failed logins, failed handshakes?"""

import json
import socket
import ssl
import time

import pytest

from penstock.access.passwords import hash_password
from tests.support.brokers.broker import Listener
from tests.support.clients.data_client import DataClient, DataFailure
from tests.support.clients.packets import V5, V311, Reason, Will
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp

RULES = """
[[rules]]
effect = "deny"
users = ["alice"]
topics = ["secret/#"]

[[rules]]
effect = "allow"
users = ["alice"]
topics = ["own/#"]
"""


@pytest.fixture(scope="module")
def server_identity(authority):
    return authority.issue("localhost")


@pytest.fixture
def guarded(start_file_broker, tmp_path, server_identity):
    passwords, rules = tmp_path / "passwords", tmp_path / "acl.toml"
    passwords.write_text(f"alice:{hash_password(b'wonder')}\n")
    passwords.chmod(0o600)
    rules.write_text(RULES)
    listeners = [
        Listener("tcp", {"name": "plain-2"}),
        Listener(
            "tls",
            {"name": "secure", "certificate": str(server_identity.certificate), "key": str(server_identity.key)},
        ),
    ]
    access = {"password_file": str(passwords), "acl_file": str(rules), "anonymous": "deny"}
    return start_file_broker({"access": access}, listeners)


def connect(broker, version=V5, client_id="pump", password=b"wonder", **options):
    client = RawClient(open_tcp(broker.listeners[0].host_and_port), version)
    client.connect(client_id, username="alice", password=password, **options)
    return client


def recorded(broker, penstock_command, kind):
    """The events of a kind that the log has by now."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        done = penstock_command("log", "read", "tbmq.events", "--json", "--config", str(broker.settings_path))
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        events = [each for each in found if kind in json.dumps(each)]
        if events:
            return events
        time.sleep(0.2)
    raise AssertionError(f"no event {kind}: {done.stdout} {done.stderr}")


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize(("topic", "rule"), [("secret/x", "rule 1 denies it"), ("other", "no rule allows it")])
def test_a_denied_publish_is_reported(guarded, version, topic, rule):
    """Also to a client of MQTT 3, which is told yes."""
    client = connect(guarded, version)
    for _ in range(3):
        client.publish(topic, b"x", qos=1)
    line = guarded.await_event("access denied")
    assert (line["level"], line["action"], line["topic"], line["rule"]) == ("warning", "publish", topic, rule)
    assert (line["client_id"], line["username"]) == ("pump", "alice")
    assert line["peer"].startswith("127.0.0.1:")
    client.ping()
    assert len(guarded.events("access denied")) == 1


def test_a_denied_subscription_is_reported(guarded):
    client = connect(guarded)
    assert client.subscribe("secret/#", qos=1) == [Reason.NOT_AUTHORIZED]
    line = guarded.await_event("access denied")
    assert (line["action"], line["topic"], line["rule"]) == ("subscribe", "secret/#", "rule 1 denies it")


@pytest.mark.parametrize("topic_filter", ["$share/group/secret/#", "$queue/jobs"])
def test_the_rule_that_denies_a_subscription_is_that_of_its_topics(guarded, topic_filter):
    """Rules know nothing of `$share`, and `$queue/jobs` stands for all keys of the queue."""
    client = connect(guarded)
    assert client.subscribe(topic_filter, qos=1) == [Reason.NOT_AUTHORIZED]
    line = guarded.await_event("access denied")
    expected = "rule 1 denies it" if "secret" in topic_filter else "no rule allows it"
    assert (line["topic"], line["rule"]) == (topic_filter, expected)


def test_a_denied_will_is_reported(guarded):
    """With its topic and the rule: CONNACK says only that the client is not authorized."""
    client = RawClient(open_tcp(guarded.listeners[0].host_and_port), V5)
    client.connect(
        "pump", username="alice", password=b"wonder", will=Will("secret/gone", b"x"), reason=Reason.NOT_AUTHORIZED
    )
    line = guarded.await_event("access denied")
    assert (line["topic"], line["rule"]) == ("secret/gone", "will: rule 1 denies it")
    assert not guarded.events("client refused")


def test_a_denied_publish_to_a_queue_is_reported(guarded):
    client = connect(guarded)
    assert client.publish("$queue/jobs/1", b"x", qos=1).reason == Reason.NOT_AUTHORIZED
    assert guarded.await_event("access denied")["topic"] == "$queue/jobs/1"


def test_a_failed_login_is_reported_once(guarded):
    for number in range(4):
        client = RawClient(open_tcp(guarded.listeners[0].host_and_port), V5)
        client.connect(f"thief{number}", username="alice", password=b"guess", reason=Reason.BAD_CREDENTIALS)
        client.close()
    line = guarded.await_event("client refused")
    assert (line["level"], line["username"], line["client_id"]) == ("warning", "alice", "thief0")
    assert "password" in line["reason"]
    assert line["listener"] == "plain-2"
    connect(guarded).ping()
    assert len(guarded.events("client refused")) == 1


def test_a_failed_handshake_is_reported(guarded):
    """A client that speaks no TLS, and one that does not trust the certificate."""
    with socket.create_connection(guarded.listeners[1].host_and_port) as plain:
        plain.sendall(b"\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
        plain.settimeout(30)
        plain.recv(100)
    first = guarded.await_event("connection refused")
    assert first["reason"].startswith("TLS handshake failed: the client does not speak TLS")
    assert (first["level"], first["listener"]) == ("warning", "secure")
    assert first["peer"].startswith("127.0.0.1:")
    context = ssl.create_default_context()
    with (
        pytest.raises(ssl.SSLError),
        socket.create_connection(guarded.listeners[1].host_and_port) as untrusting,
        context.wrap_socket(untrusting, server_hostname="localhost"),
    ):
        pass
    deadline = time.monotonic() + 30
    while len(lines := guarded.events("connection refused")) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "does not" in lines[1]["reason"]


def test_a_failed_login_at_the_data_listener_is_reported(guarded):
    client = DataClient(guarded.find_data_port(), hello=False)
    with pytest.raises(DataFailure):
        client.ask("hello", {"protocol": 1, "user": "alice", "password": "guess", "client_id": "thief"})
    line = guarded.await_event("client refused")
    assert (line["level"], line["username"], line["client_id"], line["listener"]) == (
        "warning",
        "alice",
        "thief",
        "data",
    )
    assert line["peer"].startswith("127.0.0.1:")
    assert "password is wrong" in line["reason"]


def test_a_failed_handshake_at_the_data_listener_is_reported(start_file_broker, server_identity):
    tls = {"transport": "tls", "certificate": str(server_identity.certificate), "key": str(server_identity.key)}
    broker = start_file_broker({"data_subscription": tls})
    with socket.create_connection(("127.0.0.1", broker.find_data_port())) as plain:
        plain.sendall(b"not a handshake at all")
        plain.settimeout(30)
        plain.recv(100)
    line = broker.await_event("connection refused")
    assert (line["level"], line["listener"]) == ("warning", "data")
    assert line["reason"].startswith("TLS handshake failed: the client does not speak TLS")


def test_refusals_are_events(guarded, penstock_command):
    client = connect(guarded)
    client.publish("secret/x", b"x", qos=1)
    thief = RawClient(open_tcp(guarded.listeners[0].host_and_port), V5)
    thief.connect("thief", username="alice", password=b"guess", reason=Reason.BAD_CREDENTIALS)
    guarded.await_event("client refused")
    denied = json.dumps(recorded(guarded, penstock_command, "denied"))
    assert "secret/x" in denied
    assert "rule 1" in denied
    assert "thief" in json.dumps(recorded(guarded, penstock_command, "refused"))
