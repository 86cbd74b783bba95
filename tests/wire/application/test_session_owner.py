"""Does a session, with its topic and stored messages, stay with the user who created it?

Clients whose id begins with `app` are APPLICATIONs, the others DEVICEs. alice may read everything; bob and clients
without a user name may read only what lies under `bob/`.
"""

import pytest

from penstock.storage.log.embedded import open_reader
from penstock_schema.event import TOPIC, EventKind, decode_event
from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.worlds.application import AppBroker, persistent, running_app_broker, topic_of, until

RULES = """
[[types]]
type = "application"
clients = ["app*"]

[[rules]]
effect = "allow"
users = ["alice"]
topics = ["#"]

[[rules]]
effect = "allow"
topics = ["bob/#"]
"""
KINDS = ("app", "device")
REFUSED = {V5: Reason.CLIENT_ID_INVALID, V311: 2}
FOREIGN = "CONNECT refused: the session of the client id belongs to another user"
TAKEN = "another user took over a client id, its session ended"


def start(directory, provider, password_file, settings):
    own = {"access.password_file": str(password_file), "access.anonymous": "allow", **settings}
    return running_app_broker(directory, provider, own)


@pytest.fixture(scope="module", params=["deny", "allow"])
def takeover(request):
    return request.param


@pytest.fixture(scope="module")
def module_broker(provider, takeover, password_file, tmp_path_factory):
    settings = {} if takeover == "deny" else {"access.foreign_takeover": takeover}
    with start(tmp_path_factory.mktemp("owner"), provider, password_file, settings) as broker:
        broker.acl_path.write_text(RULES)
        reload_rules(broker)
        yield broker


def reload_rules(broker: AppBroker) -> None:
    begin = broker.log_size()
    broker.process.send_signal(1)
    broker.await_log("reloaded", begin)


def login(user):
    return {} if user is None else {"username": user, "password": f"{user}-secret".encode()}


@pytest.fixture
def enter(connect, broker):
    """enter("alice", version, name) connects that user to a session that outlives the connection."""

    def enter_as(user, version, name, **options):
        return connect(version, name, broker=broker, **login(user), **{**persistent(version), **options})

    return enter_as


@pytest.fixture
def refuse(open_client, broker):
    """refuse("bob", version, name) connects and must be refused, because the session is of another user."""

    def refuse_one(user, version, name, **options):
        client = open_client(version, broker=broker)
        client.send_connect(name, **login(user), **{**persistent(version), **options})
        client.expect_refused_connect(REFUSED[V5], REFUSED[V311])

    return refuse_one


def leave_messages(enter, broker, version, name, topic, *, count=5):
    """alice's session, with messages that wait for it."""
    owner = enter("alice", version, name)
    owner.subscribe(topic, qos=1)
    owner.disconnect()
    payloads = [b"%d" % number for number in range(count)]
    publisher = enter("alice", V5, f"publisher-{name}", clean_start=True)
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    if name.startswith("app"):
        until(lambda: broker.end_offset(topic_of(name)) >= count, what="the messages in the topic")
    return publisher, payloads


@pytest.mark.parametrize("kind", KINDS)
def test_another_user_gets_no_stored_message(*, broker, takeover, enter, refuse, new_name, topic, version, kind):
    """The foreign CONNECT is refused and the owner loses nothing; where the settings allow it, the newcomer gets a
    session without anything of the owner's."""
    name = new_name(kind)
    begin = broker.log_size()
    publisher, payloads = leave_messages(enter, broker, version, name, topic)
    if takeover == "deny":
        for other in ("bob", None):
            refuse(other, version, name)
            refuse(other, version, name, clean_start=True)
        broker.await_log(FOREIGN, begin)
        owner = enter("alice", version, name)
        assert owner.connack.session_present
        assert [owner.expect_publish(topic, ack=True).payload for _ in payloads] == payloads
        return
    for other in ("bob", None, "bob"):
        newcomer = enter(other, version, name)
        assert not newcomer.connack.session_present
        publisher.publish(topic, b"later", qos=1)
        newcomer.expect_nothing(0.4)
        newcomer.subscribe("bob/x", qos=1)
        publisher.publish("bob/x", b"own", qos=1)
        newcomer.expect_publish("bob/x", b"own", ack=True)
        newcomer.ping()
        newcomer.disconnect()
    broker.await_log(TAKEN, begin)


@pytest.mark.parametrize("kind", KINDS)
def test_messages_that_keep_coming_stay_with_the_owner(*, takeover, enter, refuse, new_name, topic, version, kind):
    """The owner is connected and its topic is written to all the time: no message slips into the next session."""
    name = new_name(kind)
    owner = enter("alice", version, name)
    owner.subscribe(topic, qos=1)
    publisher = enter("alice", V311, f"publisher-{name}", clean_start=True)
    sent = 0
    for turn in range(6):
        for _ in range(50):
            publisher.send_publish(topic, b"%d" % sent, qos=1)
            sent += 1
        if takeover == "deny":
            refuse("bob", version, name, clean_start=bool(turn % 2))
            owner.ping()
            continue
        newcomer = enter("bob", version, name)
        assert not newcomer.connack.session_present
        newcomer.expect_nothing(0.3)
        owner = enter("alice", version, name)
        assert not owner.connack.session_present
        owner.subscribe(topic, qos=1)
    publisher.ping()


@pytest.mark.parametrize("kind", KINDS)
def test_a_connected_owner_keeps_its_connection(*, takeover, enter, refuse, new_name, topic, version, kind):
    if takeover != "deny":
        pytest.skip("there the owner is disconnected")
    name = new_name(kind)
    owner = enter("alice", version, name)
    owner.subscribe(topic, qos=1)
    refuse("bob", version, name)
    refuse(None, version, name, clean_start=True)
    owner.publish(topic, b"still here", qos=1)
    owner.expect_publish(topic, b"still here", ack=True)
    # the owner itself may take it over, and end it
    again = enter("alice", version, name)
    assert again.connack.session_present
    again.disconnect()
    fresh = enter("alice", version, name, clean_start=True)
    assert not fresh.connack.session_present
    fresh.disconnect()


@pytest.mark.parametrize("owner", [None, "bob"])
def test_a_session_that_ends_with_its_connection_is_taken_over(*, broker, connect, new_name, version, owner):
    """MQTT asks for it, and nothing is lost but the connection; the log says so [MQTT-3.1.4-3] [MQTT3-3.1.4-2]."""
    name = new_name("device")
    begin = broker.log_size()
    old = connect(version, name, broker=broker, **login(owner))
    connect(version, name, broker=broker, **login("alice")).ping()
    if version == V5:
        assert old.expect(PacketType.DISCONNECT).reason == Reason.SESSION_TAKEN_OVER
    old.expect_closed()
    broker.await_log(TAKEN, begin)


@pytest.mark.parametrize("kind", KINDS)
def test_anonymous_clients_are_one_identity(*, enter, new_name, version, kind):
    name = new_name(kind)
    client = enter(None, version, name)
    client.subscribe("bob/waits", qos=1)
    client.disconnect()
    enter("bob", V5, f"publisher-{name}", clean_start=True).publish("bob/waits", b"x", qos=1)
    client = enter(None, version, name)
    assert client.connack.session_present
    client.expect_publish("bob/waits", b"x", ack=True)


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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.providers("embedded")
def test_events(*, broker, takeover, enter, refuse, new_name, topic, version, kind):
    """Who tried, from where, and what came of it."""
    name = new_name(kind)
    leave_messages(enter, broker, version, name, topic, count=1)
    if takeover == "deny":
        refuse("bob", version, name)
        wanted, reason = EventKind.REFUSED, Reason.CLIENT_ID_INVALID
    else:
        enter("bob", version, name)
        wanted, reason = EventKind.TAKEN_OVER, 0

    def find():
        return [event for event in read_events(broker) if event.client_id == name and event.kind == wanted]

    (event,) = until(find, what="the event")
    assert (event.username, event.cause, event.reason) == ("bob", "foreign_identity", reason)
    assert event.address.startswith("127.0.0.1")


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_changes_nothing(*, broker, takeover, enter, refuse, new_name, topic, version, kind):
    """The owner is in the stored record of the session."""
    name = new_name(kind)
    _, payloads = leave_messages(enter, broker, version, name, topic)
    broker.kill()
    broker.restart()
    if takeover == "deny":
        refuse("bob", version, name)
        owner = enter("alice", version, name)
        assert owner.connack.session_present
        assert {owner.expect_publish(topic, dup=None, ack=True).payload for _ in payloads} == set(payloads)
    else:
        newcomer = enter("bob", version, name)
        assert not newcomer.connack.session_present
        newcomer.expect_nothing(0.5)
        newcomer.disconnect()
        broker.kill()
        broker.restart()
        newcomer = enter("bob", version, name)
        assert newcomer.connack.session_present
        newcomer.expect_nothing(0.5)
