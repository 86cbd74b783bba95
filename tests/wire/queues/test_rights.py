"""Every delivery of a queue or stream is authorised for the client that receives it."""

import signal

import pytest

from tests.support.clients.packets import V5, V311, PacketType
from tests.support.toys.access import BADGES
from tests.support.worlds.application import persistent, until
from tests.support.worlds.queues import QueueClient, running_queue_broker

DENIED = 0x87
NUMBERS = [b"%d" % number for number in range(6)]
ALICE = 'clients = ["alice", "alice2", "admin"]\ntopics = ["$queue/#"]\n'
BOB = (
    'clients = ["bob", "bob2"]\nactions = ["subscribe"]\n'
    'topics = ["$queue/jobs/eu/#", "$queue/events/eu/#", "$queue/spy/#"]\n'
)
RULES = f'[[rules]]\neffect = "allow"\n{ALICE}\n[[rules]]\neffect = "allow"\n{BOB}'
NOT_EU = '[[rules]]\neffect = "deny"\nclients = ["alice"]\nactions = ["subscribe"]\ntopics = ["$queue/jobs/eu/#"]\n\n'
WIDER = RULES.replace('"$queue/jobs/eu/#"', '"$queue/jobs/#"')
NARROWER = RULES.replace('"$queue/jobs/eu/#", ', "")
WILDCARDS = ["$queue/#", "$queue/+", "$queue/+/pin", "$queue/+/#"]
QUEUES = [
    {"name": "jobs", "retry": {"initial_backoff": "50ms"}},
    {"name": "secret"},
    {"name": "spy"},
    {"name": "events", "type": "stream"},
]


@pytest.fixture
def broker(tmp_path):
    """One for each test: which groups there are is part of what is tested."""
    with running_queue_broker(tmp_path, queues=QUEUES, rules=RULES) as broker:
        yield broker


@pytest.fixture
def client(broker, connect):
    def open_client(name, version=V5, **options):
        return QueueClient(connect(version, name, broker=broker, **options))

    return open_client


def reload(broker, rules):
    broker.acl_path.write_text(rules)
    start = broker.log_size()
    broker.process.send_signal(signal.SIGHUP)
    broker.await_log("reloaded", start)


def groups(broker, queue):
    return {group["id"] for group in (broker.api(f"queues/{queue}/groups") or {"groups": []})["groups"]}


def held(broker, queue, group):
    return [offset for offset, entry in broker.pending(queue, group).items() if entry["state"] == "held"]


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("wildcard", WILDCARDS)
def test_a_wildcard_joins_only_queues_the_rules_can_allow(broker, client, wildcard, version):
    alice, bob = client("alice"), client("bob", version)
    bob.consume(wildcard)
    broker.api("queues", "POST", {"name": "madelater"})
    broker.api("queues", "POST", {"name": "streamlater", "type": "stream"})
    for queue in ("secret", "madelater", "streamlater", "unknown", "jobs", "events"):
        alice.publish(f"$queue/{queue}/pin", b"1234")
    alice.publish("$queue/spy/pin", b"his")
    assert bob.next(b"his").topic == "$queue/spy/pin"
    bob.nothing()
    for queue in ("secret", "madelater", "streamlater", "unknown"):
        assert groups(broker, queue) == set()


def test_a_member_with_fewer_rights_is_passed_over(broker, client):
    admin, alice, bob = client("admin"), client("alice"), client("bob")
    alice.consume("$queue/jobs", "workers", prefetch=100)
    bob.consume("$queue/jobs/#", "workers", prefetch=100)
    admin.publish("$queue/jobs/us/1", *NUMBERS)
    alice.take(*NUMBERS)
    bob.nothing()
    admin.publish("$queue/jobs/eu/1", *NUMBERS)
    assert {delivery.topic for delivery in bob.take_any(3)} == {"$queue/jobs/eu/1"}
    assert len(alice.take_any(3)) == 3


def test_a_foreign_group_gives_nothing_away(broker, client):
    """Named by a client without rights for it: no message, no settlement, not even of a message it knows of."""
    alice, bob = client("alice"), client("bob")
    alice.consume("$queue/secret", "payroll")
    alice.publish("$queue/secret/p1", b"1")
    delivery = alice.next(b"1")
    bob.consume("$queue/+", "payroll")
    bob.settle(delivery, "ack", refused=True)
    bob.settle(delivery, "reject", refused=True)
    alice.close()
    bob.nothing()
    alice = client("alice")
    alice.consume("$queue/secret", "payroll")
    again = alice.next(b"1")
    assert again.count == 2
    alice.ack(again)


def test_what_no_member_may_have_waits_and_holds_up_nobody(broker, client):
    alice, bob = client("alice"), client("bob")
    bob.consume("$queue/jobs", "workers")
    for number in NUMBERS:
        alice.publish("$queue/jobs/us/1", b"us" + number)
        alice.publish("$queue/jobs/eu/1", b"eu" + number)
    deliveries = bob.take(*(b"eu" + number for number in NUMBERS))
    bob.ack(*deliveries)
    assert {delivery.count for delivery in deliveries} == {1}
    bob.nothing()
    until(lambda: held(broker, "jobs", "workers") == [0, 2, 4, 6, 8, 10])
    for verb in ("ack", "nack", "reject", "extend"):
        bob.command(f"$queue/jobs/${verb}", [("message-id", "jobs:0"), ("group-id", "workers")], refused=True)
    assert broker.progress("jobs", "workers") == (12, 0, 6)
    alice.consume("$queue/jobs", "workers")
    deliveries = alice.take_and_ack(*(b"us" + number for number in NUMBERS))
    assert {delivery.count for delivery in deliveries} == {1}
    broker.await_progress("jobs", "workers", committed=12, pending=0)
    assert broker.group("jobs", "workers")["redelivered"] == 0


def test_a_busy_member_gets_its_messages_in_order(broker, client):
    """The other member goes on meanwhile."""
    admin, alice, bob = client("admin"), client("alice"), client("bob")
    reload(broker, NOT_EU + RULES)
    alice.consume("$queue/jobs", "workers", prefetch=1)
    bob.consume("$queue/jobs", "workers", prefetch=10)
    for number in NUMBERS:
        admin.publish("$queue/jobs/us/1", b"us" + number)
        admin.publish("$queue/jobs/eu/1", b"eu" + number)
    bob.ack(*bob.take(*(b"eu" + number for number in NUMBERS)))
    alice.take_and_ack(*(b"us" + number for number in NUMBERS))
    broker.await_progress("jobs", "workers", committed=12, pending=0)


def test_a_member_that_is_away_holds_up_nobody(broker, client):
    alice, bob = client("alice", **persistent(V5)), client("bob")
    alice.consume("$queue/jobs", "workers", prefetch=2)
    bob.consume("$queue/jobs", "workers")
    alice.close()
    admin = client("admin")
    for number in NUMBERS:
        admin.publish("$queue/jobs/us/1", b"us" + number)
        admin.publish("$queue/jobs/eu/1", b"eu" + number)
    bob.ack(*bob.take(*(b"eu" + number for number in NUMBERS)))
    alice = client("alice", **{**persistent(V5), "clean_start": False})
    alice.take_and_ack(*(b"us" + number for number in NUMBERS))


@pytest.mark.parametrize("version", [V311, V5])
def test_a_redelivery_goes_to_who_may_have_it(broker, client, version):
    alice, bob = client("alice"), client("bob", version)
    alice.consume("$queue/jobs", "bob", prefetch=2)
    bob.consume("$queue/jobs")
    admin = client("admin")
    admin.publish("$queue/jobs/us/1", b"us")
    alice.nack(alice.next(b"us"))
    alice.nack(alice.next(b"us"))
    alice.next(b"us")
    alice.close()
    bob.nothing()
    admin.publish("$queue/jobs/eu/1", b"eu")
    bob.next(b"eu")
    until(lambda: held(broker, "jobs", "bob") == [0])
    admin.consume("$queue/jobs", "bob")
    assert admin.next(b"us").count == 4


def test_rights_that_change_while_a_client_is_connected(broker, client):
    alice, bob = client("alice"), client("bob")
    bob.consume("$queue/jobs", "workers")
    alice.publish("$queue/jobs/us/1", b"us")
    alice.publish("$queue/jobs/eu/1", b"eu")
    bob.ack(bob.next(b"eu"))
    bob.nothing()
    reload(broker, WIDER)
    bob.ack(bob.next(b"us"))
    reload(broker, RULES)
    alice.publish("$queue/jobs/us/1", b"us")
    alice.publish("$queue/jobs/eu/1", b"eu")
    bob.ack(bob.next(b"eu"))
    bob.nothing()
    reload(broker, NARROWER)
    until(lambda: broker.group("jobs", "workers")["consumers"] == 0)
    alice.publish("$queue/jobs/eu/1", b"eu")
    bob.nothing()
    reload(broker, WIDER)
    bob.take(b"us", b"eu")


def test_a_wildcard_follows_rights_that_change(broker, client):
    alice, bob = client("alice"), client("bob")
    bob.consume("$queue/#")
    alice.publish("$queue/secret/a", b"secret")
    bob.nothing()
    reload(broker, RULES.replace('"$queue/spy/#"', '"$queue/secret/#"'))
    bob.ack(bob.next(b"secret"))
    until(lambda: broker.group("spy", "bob")["consumers"] == 0)
    alice.publish("$queue/spy/a", b"spy")
    bob.nothing()
    reload(broker, RULES)
    bob.ack(bob.next(b"spy"))
    alice.publish("$queue/secret/a", b"secret")
    bob.nothing()


def test_messages_claimed_for_a_client_that_loses_the_right_stay(broker, client):
    """They wait for room in the client when its rights go."""
    alice, bob = client("alice"), client("bob", properties={"receive_maximum": 1})
    reload(broker, WIDER)
    bob.consume("$queue/jobs", "workers", prefetch=10)
    alice.publish("$queue/jobs/us/1", b"0", b"1", b"2")
    first = bob.next(b"0", puback=False)
    reload(broker, RULES)
    bob.raw.ack(first.packet)
    bob.nothing()
    alice.consume("$queue/jobs", "workers")
    alice.take(b"1", b"2")


def test_after_a_restart(broker, client):
    alice = client("alice")
    for name, version in (("bob", V5), ("bob2", V311)):
        bob = client(name, version, **persistent(version))
        bob.consume("$queue/#")
        bob.close()
    for topic in ("secret/pin", "jobs/us/1", "jobs/eu/1", "spy/pin"):
        alice.publish(f"$queue/{topic}", topic.encode())
    broker.kill()
    broker.restart()
    for name, version in (("bob", V5), ("bob2", V311)):
        bob = client(name, version, **{**persistent(version), "clean_start": False})
        assert {delivery.topic for delivery in bob.take_any(2)} == {"$queue/jobs/eu/1", "$queue/spy/pin"}
        bob.nothing()
        assert held(broker, "jobs", name) == [0]
        bob.close()
        broker.kill()
        broker.restart()
    assert groups(broker, "secret") == set()
    alice = client("alice")
    alice.consume("$queue/jobs", "bob")
    alice.next(b"jobs/us/1")


def test_dead_letters(broker, client):
    """By the rights for `$queue/$dlq/…`, whoever may read the queue they come from."""
    admin, bob = client("admin"), client("bob")
    reload(broker, RULES + '\n[[rules]]\neffect = "allow"\nclients = ["bob"]\ntopics = ["$queue/$dlq/jobs/eu/#"]\n')
    assert bob.try_consume("$queue/$dlq/secret/#") == [DENIED]
    bob.consume("$queue/$dlq/+")
    admin.consume("$queue/jobs", "workers")
    admin.consume("$queue/secret", "workers")
    for topic in ("secret/eu/1", "jobs/us/1", "jobs/eu/1"):
        admin.raw.send_publish(f"$queue/{topic}", topic.encode(), qos=1)
    for _ in range(6):
        packet = admin.raw.receive()
        if packet.type == PacketType.PUBLISH:
            admin.raw.ack(packet)
            pairs = dict(packet.properties["user_property"])
            names = [("message-id", pairs["message-id"]), ("group-id", pairs["group-id"])]
            admin.raw.send_publish(f"$queue/{pairs['queue']}/$reject", b"", qos=1, properties={"user_property": names})
    assert bob.next(b"jobs/eu/1").topic == "$queue/$dlq/jobs/eu/1"
    bob.nothing()
    until(lambda: broker.queue("$dlq/secret") is not None)
    assert groups(broker, "$dlq%2Fsecret") == set()


# Streams


def test_a_stream_gives_only_what_its_reader_may_have(broker, client):
    alice, bob = client("alice"), client("bob")
    bob.consume("$queue/events/#")
    for number in NUMBERS:
        alice.publish("$queue/events/us/1", b"us" + number)
        alice.publish("$queue/events/eu/1", b"eu" + number)
    bob.take(*(b"eu" + number for number in NUMBERS))
    bob.nothing()
    broker.await_progress("events", "bob", committed=12)  # its own group: it has read all it can
    bob.close()
    bob = client("bob")
    bob.consume("$queue/events/#")
    bob.nothing()


def test_members_of_a_stream_group_get_what_they_may_have(broker, client):
    alice, bob, admin = client("alice"), client("bob"), client("admin")
    alice.consume("$queue/events", "readers")
    bob.consume("$queue/events", "readers")
    for number in NUMBERS:
        admin.publish("$queue/events/us/1", b"us" + number)
        admin.publish("$queue/events/eu/1", b"eu" + number)
    assert {delivery.topic for delivery in bob.take_any(6)} == {"$queue/events/eu/1"}  # they take turns
    assert {delivery.topic for delivery in alice.take_any(6)} == {"$queue/events/us/1"}
    broker.await_progress("events", "readers", committed=12)


def test_a_reader_with_fewer_rights_does_not_move_a_foreign_group(broker, client):
    """Neither by reading, nor by settling, committing or where it begins."""
    admin, alice, bob = client("admin"), client("alice"), client("bob")
    alice.consume("$queue/events", "readers")
    admin.publish("$queue/events/eu/1", b"first")
    alice.next(b"first")
    broker.await_progress("events", "readers", committed=1)
    alice.close()
    assert bob.try_consume("$queue/events", "readers", x_stream_offset="last") == [DENIED]
    bob.consume("$queue/events", "readers")
    for number in NUMBERS:
        admin.publish("$queue/events/us/1", b"us" + number)
        admin.publish("$queue/events/eu/1", b"eu" + number)
    deliveries = bob.take(*(b"eu" + number for number in NUMBERS))
    bob.ack(*deliveries)
    bob.reject(deliveries[-1])
    bob.commit("events", "readers", 10, refused=True)
    bob.nothing(0.4)  # longer than auto_commit_interval
    assert broker.group("events", "readers")["committed"] == 1
    alice = client("alice")
    alice.consume("$queue/events", "readers")
    alice.take(*(b"us" + number for number in NUMBERS))
    bob.take(*(b"eu" + number for number in NUMBERS))  # again: the group went back to the first that nobody could have
    broker.await_progress("events", "readers", committed=13)


def test_a_reader_with_fewer_rights_does_not_settle_for_a_foreign_group(broker, client):
    """Nor does it change whether the group commits by itself, even where the group reads only what it may have."""
    admin, alice, bob = client("admin"), client("alice"), client("bob")
    alice.consume("$queue/events", "readers", x_auto_commit="false")
    alice.close()
    bob.consume("$queue/events", "readers", x_auto_commit="true")
    admin.publish("$queue/events/eu/1", *NUMBERS)
    deliveries = bob.take(*NUMBERS)
    bob.ack(deliveries[0])
    bob.reject(deliveries[-1])
    bob.commit("events", "readers", 3, refused=True)
    bob.nothing(0.4)  # longer than auto_commit_interval
    bob.close()
    assert broker.group("events", "readers")["committed"] == 0
    alice = client("alice")
    alice.consume("$queue/events", "readers", x_auto_commit="false")
    alice.reject(alice.take(*NUMBERS)[2])
    assert broker.group("events", "readers")["committed"] == 3


@pytest.mark.parametrize("address", ["$queue/events/eu/#", "$queue/#"])
def test_a_place_is_asked_for_once(broker, client, address):
    """Not again when a right that was taken away is given back."""
    admin, bob = client("admin"), client("bob")
    admin.publish("$queue/events/eu/1", *NUMBERS)
    bob.consume(address, "readers", x_stream_offset="first")
    bob.take(*NUMBERS)
    group = "readers@eu/#" if address.endswith("eu/#") else "readers"
    broker.await_progress("events", group, committed=6)
    reload(broker, RULES.replace('"$queue/events/eu/#", ', ""))
    until(lambda: broker.group("events", group)["consumers"] == 0)
    reload(broker, RULES)
    until(lambda: broker.group("events", group)["consumers"] == 1)
    admin.publish("$queue/events/eu/1", b"next")
    bob.next(b"next")


@pytest.mark.parametrize("rights", ["jobs", "events"])
def test_a_wider_rule_brings_a_stream_what_was_passed_over(broker, client, rights):
    alice, bob = client("alice"), client("bob")
    alice.consume("$queue/events", "readers")
    alice.close()
    admin = client("admin")
    bob.consume("$queue/events", "readers")
    admin.publish("$queue/events/us/1", b"us")
    admin.publish("$queue/events/eu/1", b"eu")
    bob.next(b"eu")
    bob.nothing()
    reload(broker, RULES.replace(f'"$queue/{rights}/eu/#"', f'"$queue/{rights}/#"'))
    if rights == "jobs":
        bob.nothing()
    else:
        bob.take(b"us", b"eu")


def test_a_client_that_returns_without_rules_joins_what_was_refused(tmp_path, connect):
    """Its authenticator gave it rules at first, and gives it none now: it may consume every queue."""
    settings = {"access.authenticators": BADGES, "access.authorisers": "", "access.acl_file": ""}
    with running_queue_broker(tmp_path, settings=settings, queues=QUEUES) as broker:

        def spy(groups, **options):
            credentials = {"username": "spy", "password": b"badge:" + groups}
            return QueueClient(connect(V5, "spy", broker=broker, **credentials, **options))

        consumer = spy(b"granted", **persistent(V5))
        consumer.consume("$queue/#")
        assert (groups(broker, "spy"), groups(broker, "secret")) == ({"spy"}, set())
        consumer.close()
        consumer = spy(b"", **{**persistent(V5), "clean_start": False})
        until(lambda: groups(broker, "secret") == {"spy"})
        consumer.publish("$queue/secret/a", b"secret")
        consumer.ack(consumer.next(b"secret"))
