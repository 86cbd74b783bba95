"""Does SIGHUP bring new passwords and rules into force, for connected clients too, and a bad file change nothing?"""

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.data_client import DataClient
from tests.support.clients.packets import V5, V311, PacketType, Reason, Will, pack_auth
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp, open_tls

OPEN = '[[rules]]\neffect = "allow"\ntopics = ["#"]\n'
CLOSED = '[[rules]]\neffect = "deny"\ntopics = ["private/#"]\n' + OPEN
DENIED = Reason.NOT_AUTHORIZED


@pytest.fixture
def acl_file(tmp_path):
    path = tmp_path / "acl.toml"
    path.write_text(OPEN)
    return path


@pytest.fixture
def ruled(start_file_broker, acl_file):
    return start_file_broker({"access": {"acl_file": str(acl_file)}, "sys": {"interval": 0}})


def test_rules_of_connected_clients(ruled, acl_file, connect, version):
    """Publishes, deliveries (also of topics matched before) and subscriptions follow the new rules at once."""
    publisher, subscriber = connect(version, broker=ruled), connect(version, broker=ruled)
    subscriber.subscribe("#", qos=1)
    publisher.publish("private/x", b"before", qos=1)
    subscriber.expect_publish("private/x", b"before", ack=True)
    acl_file.write_text(CLOSED)
    ruled.reload()
    answer = publisher.publish("private/x", b"after", qos=1)
    assert answer.reason == (DENIED if version == V5 else 0)
    publisher.publish("private/x", b"after")
    publisher.publish("public/x", b"after", qos=1)
    subscriber.expect_publish("public/x", b"after", ack=True)
    subscriber.expect_nothing(0.05)
    assert publisher.subscribe("private/y") == [DENIED if version == V5 else 0x80]
    acl_file.write_text(OPEN)
    ruled.reload()
    assert publisher.publish("private/x", b"again", qos=1).reason == 0
    subscriber.expect_publish("private/x", b"again", ack=True)


def test_deliveries_from_a_publisher_that_may(start_file_broker, connect, tmp_path):
    """The rules of the subscriber count for what it gets, whoever publishes."""
    path = tmp_path / "acl.toml"
    path.write_text(OPEN)
    broker = start_file_broker({"access": {"acl_file": str(path)}})
    reader, writer = connect(V5, "reader", broker=broker), connect(V5, "writer", broker=broker)
    reader.subscribe("private/x", "$share/group/private/y", qos=1)
    for name in ("private/x", "private/y"):
        writer.publish(name, b"before", qos=1)
        reader.expect_publish(name, b"before", ack=True)
    path.write_text('[[rules]]\neffect = "deny"\nclients = ["reader"]\ntopics = ["private/#"]\n' + OPEN)
    broker.reload()
    for name in ("private/x", "private/y"):
        for qos in (0, 1, 2):
            assert (answer := writer.publish(name, b"after", qos=qos)) is None or answer.reason in (0, 0x10)
    reader.expect_nothing(0.1)


def test_session_that_is_away(ruled, acl_file, connect, client_id):
    """Its later messages follow the new rules as well."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    client = connect(V5, client_id, broker=ruled, **options)
    client.subscribe("#", qos=1)
    client.close()
    publisher = connect(V5, "publisher", broker=ruled)
    acl_file.write_text(CLOSED.replace("[[rules]]", f'[[rules]]\nclients = ["{client_id}"]', 1))
    ruled.reload()
    for name in ("private/x", "public/x"):
        publisher.publish(name, b"x", qos=1)
    client = connect(V5, client_id, broker=ruled, **options)
    client.expect_publish("public/x", b"x", ack=True)
    client.expect_nothing(0.05)


def test_will_of_a_connected_client(ruled, acl_file, connect):
    """A will that has become forbidden is not published."""
    watcher = connect(V5, broker=ruled)
    watcher.subscribe("private/#", "public/#")
    wills = [connect(V5, broker=ruled, will=Will(name, b"gone")) for name in ("private/will", "public/will")]
    acl_file.write_text(CLOSED)
    ruled.reload()
    for client in wills:
        client.close()
    watcher.expect_publish("public/will", b"gone")
    watcher.expect_nothing(0.1)


BAD_FILES = {
    "no TOML": "[[rules",
    "unknown key": CLOSED + 'unknown = "x"\n',
    "bad effect": CLOSED.replace("deny", "forbid"),
    "bad filter": CLOSED.replace("private/#", "private/#/x"),
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_acl_file_keeps_the_old_rules(ruled, acl_file, connect, content):
    """The log names the file; everything else goes on."""
    client = connect(V5, broker=ruled)
    client.subscribe("private/x")
    acl_file.write_text(content)
    assert str(acl_file) in ruled.reload(refused=True)["error"]
    client.publish("private/x", b"x")
    client.expect_publish("private/x", b"x")
    newcomer = connect(V5, broker=ruled)
    assert newcomer.publish("private/x", b"y", qos=1).reason == 0
    acl_file.write_text(CLOSED)
    ruled.reload()
    assert client.publish("private/x", b"x", qos=1).reason == DENIED


def test_passwords(*, start_file_broker, penstock_command, password_file, tmp_path, connect, open_client):
    """A changed password and a removed user; clients that are in stay; a remembered password does not outlive it."""
    path = tmp_path / "passwords"
    path.write_bytes(password_file.read_bytes())
    broker = start_file_broker({"access": {"anonymous": "deny", "password_file": str(path)}})
    alice = connect(V311, broker=broker, username="alice", password=b"alice-secret")
    connect(V311, broker=broker, username="bob", password=b"bob-secret").disconnect()
    assert penstock_command("passwd", "-b", str(path), "alice", "new").returncode == 0
    assert penstock_command("passwd", "-D", str(path), "bob").returncode == 0
    connect(V311, broker=broker, username="bob", password=b"bob-secret").disconnect()  # not before SIGHUP
    broker.reload()
    for user in ("alice", "bob"):
        client = open_client(V311, broker=broker)
        client.send_connect("old", username=user, password=f"{user}-secret".encode())
        client.expect_refused_connect(Reason.BAD_CREDENTIALS, 4)
    connect(V311, broker=broker, username="alice", password=b"new").disconnect()
    alice.ping()
    path.write_text("alice:plain text\n")
    event = broker.reload(refused=True)
    assert str(path) in event["error"]
    assert "plain text" not in broker.log()
    connect(V311, broker=broker, username="alice", password=b"new").disconnect()


@pytest.mark.parametrize("is_disconnected", [True, False])
def test_removed_users(
    *, start_file_broker, penstock_command, password_file, tmp_path, connect, version, is_disconnected
):
    """They are disconnected at once, unless the settings say otherwise; nobody else is."""
    path = tmp_path / "passwords"
    path.write_bytes(password_file.read_bytes())
    access = {"password_file": str(path), "anonymous": "allow"}
    broker = start_file_broker({"access": access if is_disconnected else {**access, "disconnect_removed_users": False}})
    alice = connect(version, broker=broker, username="alice", password=b"alice-secret")
    bob = connect(version, broker=broker, username="bob", password=b"bob-secret", will=Will("bob/gone", b"gone"))
    nobody = connect(version, broker=broker)
    alice.subscribe("bob/#")
    assert penstock_command("passwd", "-D", str(path), "bob").returncode == 0
    bob.ping()
    broker.reload()
    if not is_disconnected:
        bob.ping()
        return
    if version == V5:
        assert bob.expect(PacketType.DISCONNECT, timeout=1.0).reason == Reason.NOT_AUTHORIZED
    bob.expect_closed()
    alice.expect_publish("bob/gone", b"gone")
    nobody.ping()
    assert "clients of removed users were disconnected" in broker.log()


def test_a_removed_user_keeps_its_session(*, start_file_broker, password_file, tmp_path, connect, client_id):
    """Until it expires: the user may come back."""
    path = tmp_path / "passwords"
    path.write_bytes(password_file.read_bytes())
    broker = start_file_broker({"access": {"password_file": str(path)}})
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    bob = connect(V5, client_id, broker=broker, username="bob", password=b"bob-secret", **options)
    bob.subscribe("a/b", qos=1)
    path.write_text(password_file.read_text().splitlines()[0] + "\n")
    broker.reload()
    assert bob.expect(PacketType.DISCONNECT, timeout=1.0).reason == Reason.NOT_AUTHORIZED
    connect(V5, broker=broker).publish("a/b", b"x", qos=1)
    path.write_bytes(password_file.read_bytes())
    broker.reload()
    bob = connect(V5, client_id, broker=broker, username="bob", password=b"bob-secret", **options)
    assert bob.connack.session_present
    bob.expect_publish("a/b", b"x", ack=True)


@pytest.mark.parametrize("is_disconnected", [True, False])
def test_removed_users_at_the_data_listener(start_file_broker, password_file, tmp_path, is_disconnected):
    path = tmp_path / "passwords"
    path.write_bytes(password_file.read_bytes())
    access = {"password_file": str(path), "disconnect_removed_users": is_disconnected}
    broker = start_file_broker({"access": access})
    port = broker.find_data_port()
    alice, bob = DataClient(port, hello=False), DataClient(port, hello=False)
    for name, client in (("alice", alice), ("bob", bob)):
        client.ask("hello", {"protocol": 1, "user": name, "password": f"{name}-secret"})
    path.write_text(password_file.read_text().splitlines()[0] + "\n")
    broker.reload()
    if not is_disconnected:
        bob.execute("SHOW TOPICS")
        return
    assert bob.receive()[1]["message"] == "the user was removed"
    assert bob.socket.recv(1) == b""
    alice.execute("SHOW TOPICS")


def test_names_from_certificates_need_no_password(start_file_broker, authority, password_file):
    """Who is known by a certificate is not removed with the password file's users."""
    identity = authority.issue("localhost")
    options = {
        "certificate": str(identity.certificate),
        "key": str(identity.key),
        "client_ca": str(authority.path),
        "client_certificate": "required",
        "certificate_username": "cn",
    }
    tls = Listener("tls", options)
    broker = start_file_broker({"access": {"password_file": str(password_file)}}, [tls])
    client = RawClient(open_tls(tls.host_and_port, authority.client_context(authority.issue("carol"))), V5)
    client.connect("carols")
    broker.reload()
    client.ping()
    client.disconnect()


def test_names_from_enhanced_authentication_need_no_password(start_file_broker, password_file, connect):
    """The method knows its users; the password file need not."""
    method = {"challenge": "tests.support.clients.enhanced_auth:Challenge"}
    broker = start_file_broker({"access": {"password_file": str(password_file), "enhanced": method}})
    client = RawClient(open_tcp(broker.address), V5)
    client.send_connect("c", properties={"authentication_method": "challenge"})
    client.expect(PacketType.AUTH)
    answer = {"authentication_method": "challenge", "authentication_data": b"right"}
    client.send_raw(pack_auth(Reason.CONTINUE_AUTHENTICATION, answer))
    client.expect(PacketType.CONNACK, reason=0)
    broker.reload()
    client.ping()
    client.disconnect()


def test_rules_that_come_later_trust_no_unproven_name(start_file_broker, connect, acl_file):
    """A name claimed while there were no rules opens nothing when rules for that name come."""
    broker = start_file_broker({"sys": {"interval": 0}})
    claiming = connect(V5, broker=broker, username="alice", password=b"anything")
    acl_file.write_text('[[rules]]\neffect = "allow"\nusers = ["alice"]\ntopics = ["alice/#"]\n')
    broker.write_settings(access={"acl_file": str(acl_file)})
    broker.reload()
    assert claiming.publish("alice/x", b"x", qos=1).reason == DENIED
    assert claiming.subscribe("alice/x") == [DENIED]
