"""Who may move the place of a stream's group: its members, and clients with a right to the verb itself."""

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.queues import QueueClient, running_queue_broker

NUMBERS = [b"%d" % number for number in range(10)]
RULES = """
[[rules]]
effect = "allow"
clients = ["alice", "alice2"]
topics = ["$queue/#"]

[[rules]]
effect = "allow"
clients = ["carol"]
actions = ["publish"]
topics = ["$queue/events/#", "$queue/+/+"]

[[rules]]
effect = "deny"
clients = ["dora"]
topics = ["$queue/events2/$commit"]

[[rules]]
effect = "allow"
clients = ["dora"]
actions = ["publish"]
topics = ["$queue/+/$commit"]
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    queues = [{"name": name, "type": "stream"} for name in ("events", "events2", "filtered", "names", "back")]
    with running_queue_broker(tmp_path_factory.mktemp("commit"), queues=queues, rules=RULES) as broker:
        yield broker


@pytest.fixture
def client(broker, connect):
    return lambda name: QueueClient(connect(V5, name, broker=broker))


def committed(broker, queue, group):
    return broker.group(queue, group)["committed"]


@pytest.mark.parametrize("queue", ["events", "events2"])
def test_a_right_to_publish_messages_is_no_right_to_commit(broker, client, queue):
    alice, carol, dora = client("alice"), client("carol"), client("dora")
    alice.publish(f"$queue/{queue}", *NUMBERS)
    alice.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    alice.take(*NUMBERS)
    carol.commit(queue, "readers", 3, refused=True)
    assert committed(broker, queue, "readers") == 0
    alice.commit(queue, "readers", 1)
    if queue == "events":  # named by a rule: the verb itself
        dora.commit(queue, "readers", 3)
        assert committed(broker, queue, "readers") == 4
        dora.commit(queue, "nobody", 3, refused=True)
    else:
        dora.commit(queue, "readers", 3, refused=True)
        assert committed(broker, queue, "readers") == 2


def test_a_commit_moves_the_group_it_names(broker, client):
    """Groups of one name with different filters: a name alone is the one without a filter."""
    alice, other, dora = client("alice"), client("alice2"), client("dora")
    for number in NUMBERS:
        alice.publish("$queue/filtered/k0", number)
        alice.publish("$queue/filtered/k1", number)
    alice.consume("$queue/filtered/k0", "flt", x_auto_commit="false")
    alice.take(*NUMBERS)
    dora.commit("filtered", "flt", 3, refused=True)
    assert committed(broker, "filtered", "flt@k0") == 0
    other.consume("$queue/filtered/k1", "flt", x_auto_commit="false")
    other.take(*NUMBERS)
    other.commit("filtered", "flt", 5)  # its own, and there is only one of this name
    dora.commit("filtered", "flt@k0", 2)
    assert (committed(broker, "filtered", "flt@k0"), committed(broker, "filtered", "flt@k1")) == (3, 6)


def test_a_client_in_several_groups_of_one_name(broker, client):
    """Its deliveries say which group they are of, and what it says moves that one only."""
    alice = client("alice")
    for address in ("$queue/names/k0", "$queue/names/k1"):
        alice.consume(address, "flt", x_auto_commit="false")
    publisher = client("alice2")
    for number in NUMBERS:
        publisher.publish("$queue/names/k0", number)
        publisher.publish("$queue/names/k1", number)
    deliveries = alice.take_any(20)
    assert {(delivery.topic, delivery.group) for delivery in deliveries} == {
        ("$queue/names/k0", "flt@k0"),
        ("$queue/names/k1", "flt@k1"),
    }
    alice.commit("names", "flt", 3, refused=True)
    alice.settle(deliveries[0], "reject", group="flt", refused=True)
    last = max((delivery for delivery in deliveries if delivery.group == "flt@k1"), key=lambda each: each.offset)
    alice.reject(last)
    alice.commit("names", "flt@k0", 3)
    assert (committed(broker, "names", "flt@k0"), committed(broker, "names", "flt@k1")) == (4, 20)


def test_only_a_member_goes_back(broker, client):
    alice, dora = client("alice"), client("dora")
    alice.publish("$queue/back", *NUMBERS)
    alice.consume("$queue/back", "readers", x_auto_commit="false")
    alice.take(*NUMBERS)
    alice.commit("back", "readers", 3)
    dora.commit("back", "readers", 1)  # it is done already
    assert committed(broker, "back", "readers") == 4
    alice.commit("back", "readers", 1)
    assert committed(broker, "back", "readers") == 2
