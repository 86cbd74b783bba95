"""Providers of access control from outside the broker (tests/support/toys/access.py): is their word law everywhere?"""

import json
import re
import time
import urllib.request

import pytest

from tests.support.clients.data_client import DataClient, DataFailure
from tests.support.clients.packets import V5, PacketType, Reason, pack_auth
from tests.support.toys.access import BADGES, FILE, REMOTE, ROOMS
from tests.support.worlds.datasub import wait_for

DENIED = Reason.NOT_AUTHORIZED
KNOCK = "tests.support.toys.access:Knock"
LAB = {"username": "ada", "password": b"badge:lab"}


@pytest.fixture
def rooms(tmp_path, monkeypatch):
    """The file of the toy authoriser."""
    path = tmp_path / "rooms.json"
    path.write_text(json.dumps({"lab": ["lab"], "office": ["office"]}))
    monkeypatch.setenv(FILE, str(path))
    return path


@pytest.fixture
def roomy(start_broker, rooms):
    return start_broker({"access.authenticators": f"{BADGES},anonymous", "access.authorisers": ROOMS})


def test_groups_of_an_identity_decide(roomy, connect):
    ada = connect(V5, broker=roomy, **LAB)
    assert ada.subscribe("room/lab/#", "room/office/#") == [0, DENIED]
    assert ada.publish("room/lab/1", b"x", qos=1).reason != DENIED
    ada.expect_publish("room/lab/1", b"x")
    assert ada.publish("room/office/1", b"x", qos=1).reason == DENIED
    assert "none of the groups ['lab'] has that room" in roomy.log()
    again = connect(V5, broker=roomy, **LAB)  # answered from the toy's memory, without waiting
    assert again.publish("room/lab/1", b"y", qos=1).reason != DENIED


@pytest.mark.parametrize(
    ("credentials", "reason"),
    [
        (("ada", b"paper"), 0x86),
        (("ada", b"stranger"), 0x86),
        (("outage", b"badge:lab"), 0x88),
    ],
)
def test_answers_of_a_provider(roomy, open_client, connect, credentials, reason):
    """Also where the listener admits anonymous clients; nobody else is affected."""
    client = open_client(V5, broker=roomy)
    client.send_connect("c", username=credentials[0], password=credentials[1])
    client.expect_refused_connect(reason)
    connect(V5, broker=roomy, **LAB).ping()
    connect(V5, broker=roomy).ping()  # without a user name


def test_client_ids_and_types(roomy, open_client, connect):
    client = open_client(V5, broker=roomy)
    client.send_connect("reserved-1", **LAB)
    client.expect_refused_connect(0x85)
    for name, credentials in {
        "by identity": {"username": "ada", "password": b"badge:application"},
        "by user name": {"username": "app-1", "password": b"badge:lab"},
        "by default": LAB,
    }.items():
        connect(V5, name, broker=roomy, **credentials)
    deadline = time.monotonic() + 10
    while len(connected := [line for line in roomy.log().splitlines() if "client connected" in line]) < 3:
        assert time.monotonic() < deadline
    types = ["application" if "application" in line else "device" for line in connected]
    assert types == ["application", "application", "device"]


def test_a_change_applies_to_connected_clients(roomy, rooms, connect):
    """Within moments, and without a reload."""
    ada = connect(V5, broker=roomy, **LAB)
    ada.subscribe("room/lab/#", qos=1)
    rooms.write_text(json.dumps({"lab": ["attic"]}))
    deadline = time.monotonic() + 10
    while ada.publish("room/attic/1", b"x", qos=1).reason == DENIED:
        assert time.monotonic() < deadline
    assert ada.publish("room/lab/1", b"x", qos=1).reason == DENIED
    ada.expect_nothing(0.1)


def test_connections_end_when_their_identity_expires(start_file_broker, rooms, connect):
    """MQTT 5: with 0xA0, maximum connect time."""
    broker = start_file_broker({"access": {"authenticators": [BADGES], "authorisers": [ROOMS], "anonymous": "deny"}})
    resident = connect(V5, broker=broker, **LAB)
    visitor = connect(V5, broker=broker, username="vic", password=b"badge:visitors")
    consumer = DataClient(broker.find_data_port(), hello=False)
    consumer.ask("hello", {"protocol": 1, "user": "vera", "password": "badge:visitors"})
    visitor.expect_disconnect(0xA0)
    assert consumer.receive()[1]["message"] == "the credentials have expired"
    resident.ping()


def test_grants_of_an_identity_need_no_authoriser(start_broker, connect):
    broker = start_broker({"access.authenticators": f"{BADGES},anonymous", "access.authorisers": ""})
    everybody = connect(V5, broker=broker)
    everybody.subscribe("#")
    assert everybody.publish("own/eve/1", b"x", qos=1).reason != DENIED
    everybody.expect_publish("own/eve/1", b"x")
    eve = connect(V5, broker=broker, username="eve", password=b"badge:granted")
    assert eve.publish("own/eve/1", b"x", qos=1).reason != DENIED
    assert eve.publish("own/ada/1", b"x", qos=1).reason == DENIED
    assert eve.subscribe("#") == [0]
    everybody.publish("own/ada/1", b"not for eve", qos=1)
    everybody.publish("own/eve/2", b"for eve", qos=1)
    eve.expect_publish("own/eve/2", b"for eve")


def test_a_remote_authoriser_is_asked_once(start_broker, open_client, connect):
    broker = start_broker({"access.authenticators": f"{BADGES},anonymous", "access.authorisers": REMOTE})
    ada = connect(V5, broker=broker, **LAB)
    assert ada.publish("room/lab/1", b"x", qos=1).reason != DENIED
    assert ada.publish("room/office/1", b"x", qos=1).reason == DENIED
    client = open_client(V5, broker=broker)
    client.send_connect("c", username="barred", password=b"badge:lab")
    client.expect_refused_connect(DENIED)


@pytest.mark.parametrize("authoriser", [ROOMS, REMOTE])
def test_groups_change_with_another_authentication(start_broker, rooms, connect, authoriser):
    """An exchange of AUTH packets, at CONNECT and later: the rules of the identity apply at once."""
    settings = {"access.authorisers": authoriser, "access.enhanced.knock": KNOCK}
    broker = start_broker(settings)
    knock = {"authentication_method": "knock", "authentication_data": b"lab"}
    ada = connect(V5, broker=broker, properties=knock)
    assert ada.publish("room/lab/1", b"x", qos=1).reason != DENIED
    assert ada.publish("room/office/1", b"x", qos=1).reason == DENIED
    ada.send_raw(pack_auth(Reason.REAUTHENTICATE, {**knock, "authentication_data": b"office"}))
    ada.expect(PacketType.AUTH, reason=0)
    assert ada.publish("room/lab/1", b"x", qos=1).reason == DENIED
    assert ada.publish("room/office/1", b"x", qos=1).reason != DENIED


@pytest.fixture
def knock(start_log_broker, rooms, connect):
    """knock("lab") is a client of these groups, with a session that lasts; `again` and `back` make them others."""
    settings = {"access.authenticators": f"enhanced,{BADGES}", "access.authorisers": ROOMS}
    broker = start_log_broker({**settings, "access.enhanced.knock": KNOCK})

    def properties(groups):
        return {"authentication_method": "knock", "authentication_data": groups.encode()}

    def come(groups):
        lasting = {**properties(groups), "session_expiry_interval": 600}
        return connect(V5, "ada", broker=broker, clean_start=False, properties=lasting)

    def again(client, groups):
        client.send_raw(pack_auth(Reason.REAUTHENTICATE, properties(groups)))
        client.expect(PacketType.AUTH, reason=0)
        return client

    def back(client, groups):
        client.disconnect()
        return come(groups)

    come.broker, come.again, come.back = broker, again, back
    return come


@pytest.mark.parametrize("how", ["again", "back"])
def test_queues_with_other_groups(knock, connect, how):
    """A client that has fewer rights from now on neither publishes to the queue nor consumes it."""
    ada = knock("lab")
    assert ada.subscribe("$queue/lab", qos=1) == [1]
    assert ada.publish("$queue/lab/1", b"x", qos=1).reason == 0
    ada.ack(ada.expect_publish("$queue/lab/1", b"x"))
    ada = getattr(knock, how)(ada, "office")
    assert ada.publish("$queue/lab/1", b"y", qos=1).reason == DENIED
    eve = connect(V5, broker=knock.broker, properties={"authentication_method": "knock", "authentication_data": b"lab"})
    assert eve.publish("$queue/lab/1", b"z", qos=1).reason == 0
    ada.expect_nothing(0.5)
    with urllib.request.urlopen(f"http://127.0.0.1:{knock.broker.admin_port}/metrics", timeout=30) as answer:
        assert re.search(r"^penstock_queue_consumers (\d+)", answer.read().decode(), re.MULTILINE)[1] == "0"


@pytest.mark.parametrize("how", ["again", "back"])
def test_query_topics_with_other_groups(knock, how):
    listening = re.compile(r'"listener": "data", "address": "127.0.0.1:(\d+)"')
    wait_for(lambda: listening.search(knock.broker.log()))
    (port,) = listening.findall(knock.broker.log())
    owner = DataClient(int(port), hello=False)
    owner.ask("hello", {"protocol": 1, "user": "owner", "password": "badge:lab,readings"})
    owner.execute('CREATE TOPIC readings AS SELECT payload.n AS n FROM "room/lab/#"')
    ada = knock("lab,readings")
    assert ada.subscribe("$share/g/readings", qos=1) == [1]
    ada.publish("room/lab/1", b'{"n": 1}', qos=1)
    ada.ack(ada.expect(PacketType.PUBLISH, 30.0))
    ada = getattr(knock, how)(ada, "lab")
    ada.publish("room/lab/1", b'{"n": 2}', qos=1)
    ada.expect_nothing(1.5)
    assert "a subscription to a query topic ends" in knock.broker.log()
    assert ada.subscribe("$share/g/readings", qos=1) == [DENIED]


def test_a_restored_session_keeps_its_groups(start_log_broker, rooms, connect):
    """What its rules allow waits for an offline client after a restart too, and nothing else does."""
    settings = {"access.authenticators": BADGES, "access.authorisers": ROOMS}
    broker = start_log_broker(settings)
    lasting = {"clean_start": False, "properties": {"session_expiry_interval": 600}}
    ada = connect(V5, "ada", broker=broker, **LAB, **lasting)
    assert ada.subscribe("room/lab/#", qos=1) == [1]
    ada.disconnect()
    broker.kill()
    broker.restart()
    other = connect(V5, broker=broker, **LAB)
    assert other.publish("room/lab/1", b"while away", qos=1).reason != DENIED
    ada = connect(V5, "ada", broker=broker, **LAB, **lasting)
    ada.expect_publish("room/lab/1", b"while away")


def test_consumers_at_the_data_listener(start_file_broker, rooms):
    broker = start_file_broker({"access": {"authenticators": [BADGES], "authorisers": [ROOMS], "anonymous": "deny"}})
    client = DataClient(broker.find_data_port(), hello=False)
    client.ask("hello", {"protocol": 1, "user": "ada", "password": "badge:lab"})
    client.execute("SHOW TOPICS")
    stranger = DataClient(broker.find_data_port(), hello=False)
    with pytest.raises(DataFailure, match="not a badge"):
        stranger.ask("hello", {"protocol": 1, "user": "ada", "password": "paper"})


def test_a_provider_that_cannot_be_loaded(penstock_command):
    done = penstock_command("check-config", "--set", "access.authenticators=nowhere:Nobody")
    assert done.returncode == 78
    assert "access.authenticators: 'nowhere:Nobody' cannot be loaded" in done.stderr
