"""Who may connect: passwords, anonymous clients, and listeners that the network can reach."""

import select
import socket
import subprocess

import msgspec
import pytest

from tests.support.brokers.broker import Listener, free_port
from tests.support.brokers.file_broker import running_broker
from tests.support.clients.data_client import DataClient
from tests.support.clients.packets import V5, V31, V311, PacketType, Reason, pack_connect
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import open_tcp
from tests.wire.conftest import PASSWORDS

ALICE = {"username": "alice", "password": b"alice-secret"}
BOB = {"username": "bob", "password": b"bob-secret"}
BAD_CREDENTIALS = (Reason.BAD_CREDENTIALS, 4)
NOT_AUTHORIZED = (Reason.NOT_AUTHORIZED, 5)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, password_file):
    """A broker with a password file that denies anonymous clients."""
    access = {"anonymous": "deny", "password_file": str(password_file)}
    with running_broker(tmp_path_factory.mktemp("broker"), {"access": access}) as broker:
        yield broker


def test_password_file_holds_no_password(password_file):
    """`penstock passwd`: argon2id hashes, for its owner only."""
    text = password_file.read_text()
    assert [line.partition(":")[0] for line in text.splitlines()] == list(PASSWORDS)
    assert text.count("$argon2id$") == len(PASSWORDS)
    assert not any(password in text for password in PASSWORDS.values())
    assert password_file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_right_password(guarded, connect, topic, version):
    """Twice, because the second time it is remembered."""
    for _ in range(2):
        client = connect(version, broker=guarded, **ALICE)
        client.subscribe(topic)
        client.publish(topic, b"x")
        client.expect_publish(topic, b"x")
        client.disconnect()


WRONG = {
    "wrong password": ({**ALICE, "password": b"bob-secret"}, BAD_CREDENTIALS),
    "one byte more": ({**ALICE, "password": b"alice-secret "}, BAD_CREDENTIALS),
    "empty password": ({**ALICE, "password": b""}, BAD_CREDENTIALS),
    "no password": ({"username": "alice"}, BAD_CREDENTIALS),
    "unknown user": ({**ALICE, "username": "mallory"}, BAD_CREDENTIALS),
    "empty user": ({**ALICE, "username": ""}, BAD_CREDENTIALS),
    "another case": ({**ALICE, "username": "Alice"}, BAD_CREDENTIALS),
    "longest password": ({**ALICE, "password": bytes(60_000)}, BAD_CREDENTIALS),
    "nobody": ({}, NOT_AUTHORIZED),
}


@pytest.mark.parametrize(("options", "codes"), WRONG.values(), ids=WRONG.keys())
def test_exact_reason(*, guarded, open_client, client_id, version, options, codes):
    """[MQTT-3.1.4-2] [MQTT3-3.2.2-5] [MQTT-3.2.2-7]: 0x86 or 0x87, in 3.1.1 codes 4 and 5, then the end."""
    client = open_client(version, broker=guarded)
    client.send_connect(client_id, **options)
    client.expect_refused_connect(*codes)


def test_password_without_a_user_name(guarded, open_client, client_id):
    """3.1.2.9: MQTT 5 may send a password alone, which opens nothing here."""
    client = open_client(V5, broker=guarded)
    client.send_connect(client_id, password=b"alice-secret")
    client.expect_refused_connect((Reason.NOT_AUTHORIZED, Reason.BAD_CREDENTIALS))


def test_packets_behind_a_connect_wait_for_the_verdict(guarded, open_client, client_id, topic, new_name):
    """[MQTT-3.1.4-6]: sent at once, served after CONNACK when the password is right, never when it is wrong."""
    watcher = open_client(V5, broker=guarded)
    watcher.connect(new_name("watcher"), **BOB)
    watcher.subscribe(topic)
    for password, is_right in ((b"guess", False), (b"alice-secret", True)):
        client = open_client(V5, broker=guarded)
        client.send_connect(client_id, username="alice", password=password)
        client.send_publish(topic, password)
        if is_right:
            client.expect(PacketType.CONNACK, reason=0)
            watcher.expect_publish(topic, password)
        else:
            client.expect_refused_connect(Reason.BAD_CREDENTIALS)
            watcher.expect_nothing(0.1)


def test_session_belongs_to_its_user(guarded, connect, open_client, client_id, topic):
    """Another user with the same client id is refused, and the first one loses nothing."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    client = connect(V5, client_id, broker=guarded, **ALICE, **options)
    client.subscribe(topic, qos=1)
    client.close()
    other = open_client(V5, broker=guarded)
    other.send_connect(client_id, **BOB, **options)
    other.expect_refused_connect(Reason.CLIENT_ID_INVALID)
    connect(V5, broker=guarded, **BOB).publish(topic, b"for alice", qos=1)
    client = connect(V5, client_id, broker=guarded, **ALICE, **options)
    assert client.connack.session_present
    client.expect_publish(topic, b"for alice", ack=True)


def test_many_verifications_at_once(guarded, open_client, new_name):
    """Checks of passwords wait for each other, not the other clients for them."""
    clients = [open_client(V5, broker=guarded) for _ in range(30)]
    for number, client in enumerate(clients):
        client.send_connect(new_name("many"), username="alice", password=b"guess %d" % number)
    steady = open_client(V5, broker=guarded)
    steady.connect(new_name("steady"), **ALICE)
    steady.ping()
    for client in clients:
        client.expect_refused_connect(Reason.BAD_CREDENTIALS)


def test_anonymous_on_loopback_by_default(connect, version):
    """access.anonymous = "loopback"; a user name without a password file is no hindrance."""
    connect(version).ping()
    connect(version, username="anybody", password=b"anything").ping()


def test_passwords_and_anonymous_together(start_file_broker, password_file, connect, open_client, client_id):
    """The default with a password file: no name is fine on loopback, a wrong one is not."""
    broker = start_file_broker({"access": {"password_file": str(password_file)}})
    connect(V5, broker=broker).ping()
    connect(V5, broker=broker, **BOB).ping()
    client = open_client(V5, broker=broker)
    client.send_connect(client_id, username="bob", password=b"x")
    client.expect_refused_connect(Reason.BAD_CREDENTIALS)


def test_anonymous_of_one_listener(start_file_broker, password_file, open_client):
    """listeners.anonymous overrides access.anonymous."""
    listener = Listener("tcp", {"anonymous": "allow"})
    access = {"anonymous": "deny", "password_file": str(password_file)}
    broker = start_file_broker({"access": access}, [listener])
    inside = RawClient(open_tcp(listener.host_and_port), V5)
    inside.connect("inside")
    inside.close()
    outside = open_client(V5, broker=broker)
    outside.send_connect("outside")
    outside.expect_refused_connect(Reason.NOT_AUTHORIZED)


@pytest.mark.parametrize("address", ["0.0.0.0", "*"])
def test_open_listener_without_authentication_does_not_start(penstock_command, tmp_path, address):
    """The issue: exit code 78, and the setting to change."""
    ended = penstock_command(
        "serve", "--listen", f"{address}:{free_port()}", "--admin", "", "--data-dir", str(tmp_path / "data")
    )
    assert ended.returncode == 78
    assert "access.password_file" in ended.stderr
    assert 'access.anonymous = "allow"' in ended.stderr
    assert "Traceback" not in ended.stderr


def test_denying_everybody_does_not_start(penstock_command):
    """access.anonymous = "deny" with nothing to authenticate by: nobody could ever connect."""
    ended = penstock_command(
        "serve", "--listen", f"127.0.0.1:{free_port()}", "--set", "access.anonymous=deny", "--admin", ""
    )
    assert ended.returncode == 78
    assert "access.password_file" in ended.stderr


@pytest.mark.parametrize("content", ["alice:plain\n", None], ids=repr)
def test_bad_password_file_does_not_start(penstock_command, tmp_path, content):
    """A password file that cannot be used is named."""
    path = tmp_path / "passwords"
    if content is not None:
        path.write_text(content)
    ended = penstock_command(
        "serve", "--listen", f"127.0.0.1:{free_port()}", "--admin", "", "--set", f"access.password_file={path}"
    )
    assert ended.returncode == 78
    assert str(path) in ended.stderr
    assert "Traceback" not in ended.stderr


def test_mosquitto_pub_with_a_password(guarded):
    """The real mosquitto_pub with -u and -P."""
    command = ["mosquitto_pub", "-p", str(guarded.port), "-t", "t", "-m", "m", "-u", "alice", "-P"]
    assert subprocess.run([*command, "alice-secret"], check=False, capture_output=True, timeout=60).returncode == 0
    refused = subprocess.run([*command, "wrong"], check=False, capture_output=True, timeout=60)
    assert refused.returncode != 0
    assert b"bad user name or password" in refused.stderr.lower()


class Flood:
    """Wrong passwords with ever new user names, all from one address."""

    def __init__(self, port, say):
        self.sockets = []
        for number in range(120):
            self.sockets.append(socket.create_connection(("127.0.0.1", port), 30, source_address=("127.0.0.2", 0)))
            self.sockets[-1].sendall(say(number))

    def count_answered(self):
        return len(select.select(self.sockets, [], [], 0)[0])

    def close(self):
        for each in self.sockets:
            each.close()


def hello_of(number):
    body = msgspec.msgpack.encode([1, "hello", {"protocol": 1, "user": f"nobody{number}", "password": "guess"}])
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize("listener", ["mqtt", "data"])
def test_wrong_passwords_of_one_address_delay_no_other_address(start_file_broker, password_file, listener):
    """A password takes 20 ms and more to check, so the flood fills the line: a first login from elsewhere is next."""
    broker = start_file_broker({"access": {"anonymous": "deny", "password_file": str(password_file)}})
    if listener == "mqtt":
        flood = Flood(broker.port, lambda n: pack_connect(V5, f"c{n}", username=f"nobody{n}", password=b"guess"))
        RawClient(open_tcp(broker.address), V5).connect("first", **ALICE)
    else:
        port = broker.find_data_port()
        flood = Flood(port, hello_of)
        DataClient(port, hello=False).ask("hello", {"protocol": 1, "user": "alice", "password": "alice-secret"})
    answered = flood.count_answered()
    flood.close()
    assert answered < 60, f"{answered} of 120 were checked first"
