"""Does the broker bind client ids to users, as the [[client_ids]] entries of the ACL file say?"""

import pytest

from tests.support.clients.data_client import DataClient, DataFailure
from tests.support.clients.packets import V5, V31, V311, Reason

RULES = """
[[client_ids]]
effect = "deny"
clients = ["%u-bad*"]

[[client_ids]]
effect = "allow"
clients = ["%u", "%u-*", "100%%"]

[[client_ids]]
effect = "allow"
users = ["bob"]
clients = ["billing", "etl-*-night"]

[[client_ids]]
effect = "allow"
anonymous = true
clients = ["guest-*"]

[[rules]]
effect = "allow"
topics = ["#"]
"""
REFUSED = (Reason.CLIENT_ID_INVALID, 2)
FORBIDDEN = "CONNECT refused: the user may not use the client id ([[client_ids]])"


@pytest.fixture
def acl_file(tmp_path):
    path = tmp_path / "acl.toml"
    path.write_text(RULES)
    return path


@pytest.fixture
def bound(start_file_broker, acl_file, password_file):
    access = {"acl_file": str(acl_file), "password_file": str(password_file)}
    return start_file_broker({"access": access, "sys": {"interval": 0}})


def login(user):
    return {} if user is None else {"username": user, "password": f"{user}-secret".encode()}


ALLOWED = [
    ("alice", "alice"),
    ("alice", "alice-7"),
    ("alice", "100%"),
    ("bob", "billing"),
    ("bob", "etl-1-night"),
    ("bob", "bob-"),
    (None, "guest-1"),
]
DENIED = [
    ("alice", "alicex"),
    ("alice", "bob"),
    ("alice", "bob-7"),
    ("alice", "billing"),
    ("alice", "alice-bad-1"),
    ("alice", "%u"),
    ("alice", "guest-1"),
    ("bob", "billing2"),
    ("bob", "etl-night"),
    (None, "alice"),
    (None, "-x"),
    (None, ""),
]


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_the_first_entry_that_fits_decides(bound, open_client, version):
    for user, client_id in ALLOWED:
        client = open_client(version, broker=bound)
        client.connect(client_id, **login(user))
        client.disconnect()
    begin = bound.log_size()
    for user, client_id in DENIED:
        if client_id:
            client = open_client(version, broker=bound)
            client.send_connect(client_id, **login(user))
            client.expect_refused_connect(*REFUSED)
    assert FORBIDDEN in bound.log(begin)


def test_ids_that_the_broker_assigns_are_free(bound, open_client):
    """Nobody else can know them."""
    client = open_client(V5, broker=bound)
    client.connect("", **login("alice"))
    assert client.client_id
    client.ping()


def test_a_connected_client_is_not_disturbed(bound, connect, open_client, topic):
    """A foreign CONNECT is refused before it reaches the session, persistent or not."""
    owner = connect(V5, "alice-1", broker=bound, **login("alice"))
    owner.subscribe(topic)
    for options in ({"clean_start": True}, {"clean_start": False, "properties": {"session_expiry_interval": 60}}):
        client = open_client(V5, broker=bound)
        client.send_connect("alice-1", **login("bob"), **options)
        client.expect_refused_connect(*REFUSED)
    owner.publish(topic, b"x")
    owner.expect_publish(topic, b"x")


def test_entries_follow_a_reload(bound, acl_file, open_client):
    acl_file.write_text(
        '[[client_ids]]\neffect = "allow"\nusers = ["bob"]\n[[rules]]\neffect = "allow"\ntopics = ["#"]\n'
    )
    bound.reload()
    open_client(V5, broker=bound).connect("whatever", **login("bob"))
    client = open_client(V5, broker=bound)
    client.send_connect("alice", **login("alice"))
    client.expect_refused_connect(*REFUSED)
    acl_file.write_text(RULES.replace("%u-*", "%c-*"))
    assert "write %u for the user name" in bound.reload(refused=True)["error"]


def test_consumers_at_the_data_listener_are_bound_as_well(bound):
    """Rules with %c and [[data]] entries with `clients` apply to their id. A consumer without an id needs no entry."""
    port = bound.find_data_port()

    def say_hello(user, client_id):
        who = {} if user is None else {"user": user, "password": f"{user}-secret"}
        DataClient(port, hello=False).ask("hello", {"protocol": 1, "client_id": client_id, **who})

    for user, client_id in [*ALLOWED, ("alice", ""), (None, "")]:
        say_hello(user, client_id)
    for user, client_id in DENIED:
        if client_id:
            with pytest.raises(DataFailure, match="may not use the client id"):
                say_hello(user, client_id)
    assert "may not use the client id" in bound.await_event("client refused")["reason"]
