"""What a client may do: rules per user, client id and pattern, for publishes, subscriptions, deliveries and wills."""

import pytest

from tests.support.brokers.file_broker import running_broker
from tests.support.clients.packets import V5, V311, PacketType, Reason, Will

RULES = """
[[rules]]
effect = "deny"
topics = ["shared/secret/#", "users/%u/private"]

[[rules]]
effect = "allow"
topics = ["shared/#"]

[[rules]]
effect = "allow"
users = ["alice"]
topics = ["alice/#", "$SYS/#"]

[[rules]]
effect = "allow"
actions = ["subscribe"]
users = ["bob"]
topics = ["alice/public/#"]

[[rules]]
effect = "allow"
actions = ["publish"]
clients = ["gateway-7"]
topics = ["gateway/#"]

[[rules]]
effect = "allow"
anonymous = true
topics = ["guests"]

[[rules]]
effect = "allow"
topics = ["devices/%c/#", "users/%u/#", "prefix-%c/x"]

[[rules]]
effect = "allow"
clients = ["root"]
topics = ["#", "$SYS/#"]
"""
DENIED = Reason.NOT_AUTHORIZED


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, password_file):
    directory = tmp_path_factory.mktemp("broker")
    (directory / "acl.toml").write_text(RULES)
    access = {"password_file": str(password_file), "acl_file": str(directory / "acl.toml")}
    with running_broker(directory, {"access": access, "sys": {"interval": 0}}) as broker:
        yield broker


@pytest.fixture
def enter(guarded, connect):
    """enter("alice") connects as this user, enter(None) without a name."""

    def enter_as(user, version=V5, client_id=None, **options):
        if user is not None:
            options |= {"username": user, "password": f"{user}-secret".encode()}
        return connect(version, client_id, broker=guarded, **options)

    return enter_as


def assert_may(client, allowed, denied):
    """Publish and subscribe, each topic by itself."""
    for name in allowed:
        assert client.publish(name, b"", qos=1, retain=True).reason in (0, 0x10), name
        assert client.subscribe(name) == [0], name
        client.unsubscribe(name)
    for name in denied:
        assert client.publish(name, b"", qos=1).reason == DENIED, name
        assert client.publish(name, b"", qos=2).reason == DENIED, name
        assert client.subscribe(name) == [DENIED], name


def test_users(enter):
    assert_may(enter("alice"), ["alice", "alice/x/y"], ["bob", "alicex", "gateway/x"])
    bob = enter("bob")
    assert_may(bob, ["users/bob/x"], ["alice/x", "users/alice/x", "users/bobx/x", "users", "users/bob/private"])
    assert bob.subscribe("alice/public/x", "alice/x") == [0, DENIED]
    assert bob.publish("alice/public/x", b"", qos=1).reason == DENIED
    assert_may(enter(None), ["guests"], ["alice/x", "users/bob/x"])
    assert bob.publish("guests", b"", qos=1).reason == DENIED


def test_client_ids(enter):
    client = enter(None, client_id="gateway-7")
    assert client.publish("gateway/1", b"", qos=1).reason in (0, 0x10)
    assert client.subscribe("gateway/1") == [DENIED]
    assert_may(client, ["devices/gateway-7/x"], ["devices/gateway-8/x"])
    assert_may(enter(None, client_id="gateway-77"), [], ["gateway/1", "devices/gateway-7/x"])


def test_user_name_pattern_is_not_for_the_nameless(enter):
    """A topic with %u is none without a user name; the other topics of its rule still count."""
    client = enter(None)
    assert_may(client, ["shared/x"], ["users", "users/", "users//x", "users/%u/x", "shared/secret/x"])


@pytest.mark.parametrize("client_id", ["+", "#", "a/b", "/", "+/x", "a/#", "a+", "../x"])
def test_client_id_never_widens_a_pattern(enter, guarded, client_id):
    """The issue: + # and / in a client id are text, not wildcards or separators."""
    client = enter(None, client_id=client_id)
    assert_may(client, [], ["devices/victim/x", "devices/x", "devices", "devices/a/b/x", "prefix-victim/x"])
    assert client.subscribe("devices/+/x", "devices/#", "devices/+/#") == [DENIED] * 3
    watcher = enter(None, client_id="victim")
    watcher.publish("devices/victim/x", b"private", qos=1)
    watcher.publish("devices/victim/x", b"private", qos=1, retain=True)
    client.expect_nothing(0.05)
    watcher.publish("devices/victim/x", b"", qos=1, retain=True)


def test_refused_publish(enter, topic, version):
    """[MQTT3-3.3.5-2] and [MQTT3-3.3.5-2]: 0x87 in MQTT 5; 3.1.1 gets the usual acknowledgement; QoS 0 is dropped."""
    root = enter(None, client_id="root")
    root.subscribe("forbidden/#", qos=2)
    client = enter("bob", version)
    for qos in (1, 2):
        answer = client.publish("forbidden/x", b"x", qos=qos, retain=True)
        assert answer.reason == (DENIED if version == V5 else 0)
    client.publish("forbidden/x", b"x")
    client.ping()
    root.expect_nothing(0.1)
    assert root.subscribe("forbidden/x") == [0]
    root.expect_nothing(0.1)  # nothing retained either
    assert client.publish("shared/x", b"still served", qos=2).reason in (0, 0x10)


def test_refused_publish_by_topic_alias(enter):
    """An alias for a denied topic opens nothing, and may stand for an allowed one later."""
    root = enter(None, client_id="root")
    root.subscribe("forbidden/x", "shared/alias")
    client = enter("bob")
    client.publish("forbidden/x", b"1", qos=1, properties={"topic_alias": 1})
    assert client.publish("", b"2", qos=1, properties={"topic_alias": 1}).reason == DENIED
    client.publish("shared/alias", b"3", qos=1, properties={"topic_alias": 1})
    assert client.publish("", b"4", qos=1, properties={"topic_alias": 1}).reason == 0
    root.expect_payloads([b"3", b"4"])
    root.expect_nothing(0.05)


def test_refused_subscribe(enter, version):
    """[MQTT-3.9.3-2] [MQTT3-3.9.3-2]: 0x87, in 3.1.1 0x80, only for the filters that are denied."""
    client = enter("bob", version)
    code = DENIED if version == V5 else 0x80
    assert client.subscribe("shared/x", "alice/x", "shared/secret/#", "users/bob/#", qos=1) == [1, code, code, 1]


FILTERS = ["shared/#", "shared/+/x", "$share/group/shared/#", "#"]


@pytest.mark.parametrize("topic_filter", FILTERS)
def test_partly_allowed_wildcard(enter, version, topic_filter):
    """Granted when it could get something; delivered is only what the rules allow: live and retained."""
    root = enter(None, client_id="root")
    root.publish("shared/a/x", b"retained", qos=1, retain=True)
    root.publish("shared/secret/x", b"retained", qos=1, retain=True)
    root.publish("alice/x", b"retained", qos=1, retain=True)
    client = enter("bob", version)
    assert client.subscribe(topic_filter, qos=1) == [1]
    is_shared = topic_filter.startswith("$share")
    if not is_shared:
        client.expect_publish("shared/a/x", b"retained", ack=True)
    for number in range(6):
        for name in ("shared/a/x", "shared/secret/x", "alice/x"):
            root.publish(name, b"%d" % number, qos=number % 3)
    for number in range(6):
        client.expect_publish("shared/a/x", b"%d" % number, ack=True)
    client.expect_nothing(0.05)


def test_shared_subscription_with_members_of_different_rights(enter):
    """A message goes to a member that may have it; the others are passed over, and none is lost."""
    alice, bob = enter("alice"), enter("bob")
    for client in (alice, bob):
        assert client.subscribe("$share/mixed/#", qos=1) == [1]
    root = enter(None, client_id="root")
    for number in range(20):
        root.publish("alice/only", b"%d" % number, qos=1)
    alice.expect_payloads([b"%d" % number for number in range(20)])
    bob.expect_nothing(0.05)


def test_queue_of_an_absent_client_holds_only_what_is_allowed(enter, client_id):
    """Also while it is away."""
    options = {"clean_start": False, "properties": {"session_expiry_interval": 60}}
    client = enter("bob", client_id=client_id, **options)
    client.subscribe("#", qos=1)
    client.close()
    root = enter(None, client_id="root")
    for name in ("shared/secret/y", "shared/y", "alice/y"):
        root.publish(name, name.encode(), qos=1)
    client = enter("bob", client_id=client_id, **options)
    topics = []
    while "shared/y" not in topics:
        packet = client.receive()
        topics += [] if packet.retain else [packet.topic]  # retained messages of other tests come first
    assert topics == ["shared/y"]
    client.expect_nothing()


@pytest.mark.parametrize(("topic", "is_allowed"), [("shared/will", True), ("alice/will", False), ("$SYS/x", False)])
def test_will(*, guarded, open_client, enter, version, topic, is_allowed):
    """A will the client may not publish is refused with its CONNECT: 0x87, in 3.1.1 code 5."""
    root = enter(None, client_id="root")
    root.subscribe("shared/will", "alice/will", "$SYS/x")
    client = open_client(version, broker=guarded)
    client.send_connect("willing", username="bob", password=b"bob-secret", will=Will(topic, b"gone"))
    if is_allowed:
        client.expect(PacketType.CONNACK, reason=0)
        client.close()
        root.expect_publish(topic, b"gone")
    else:
        client.expect_refused_connect(DENIED, 5)
        root.expect_nothing(0.1)


def test_sys_topics_need_a_rule(enter):
    """$SYS is not matched by # in a rule [MQTT-4.7.2-1]."""
    assert enter("alice").subscribe("$SYS/#") == [0]
    assert enter("bob").subscribe("$SYS/#") == [DENIED]


def test_unproven_user_name_opens_nothing(start_file_broker, connect, tmp_path):
    """Without a password file anybody can claim any name: rules for users do not apply."""
    (tmp_path / "acl.toml").write_text(RULES)
    broker = start_file_broker({"access": {"acl_file": str(tmp_path / "acl.toml")}})
    client = connect(V311, broker=broker, username="alice", password=b"alice-secret")
    assert client.subscribe("alice/x", "users/alice/x", "guests", "shared/x") == [0x80, 0x80, 0, 0]


def test_filters_of_queues_without_a_log(start_broker, connect, tmp_path):
    """As with one: `$queue/jobs` asks for all keys of the queue, and no group shares one by `$share/`."""
    rules = tmp_path / "acl.toml"
    rules.write_text('[[rules]]\neffect = "allow"\ntopics = ["$queue/jobs/eu/#"]\n')
    broker = start_broker({"ingest.log": "none", "access.acl_file": str(rules)})
    client = connect(V5, broker=broker)
    assert client.subscribe("$queue/jobs", "$queue/other") == [0, Reason.NOT_AUTHORIZED]
    assert client.subscribe("$share/g/$queue/jobs/eu") == [Reason.TOPIC_FILTER_INVALID]
