"""Do messages of a shared topic keep their order when a member may not have them any more?

The topic has one partition: between partitions there is no order.
"""

import signal

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.application import persistent, until
from tests.wire.application.test_revoked_rights import OPEN, closed_for, denied

SETTINGS = {"application.shared_partitions": 1}
COUNT = 30


@pytest.fixture
def set_rules(broker):
    def write(text):
        begin = broker.log_size()
        broker.acl_path.write_text(text)
        broker.process.send_signal(signal.SIGHUP)
        broker.await_log("reloaded", begin)

    write(OPEN)
    return write


@pytest.fixture
def share(new_name):
    """A topic with this name, and the filter that it is shared by."""
    name = f"secret/{new_name('group')}"
    return name, f"$share/g/{name}"


def expect_in_order(member, topic, numbers, qos):
    for number in numbers:
        member.expect_publish(topic, b"%d" % number, qos=qos, ack=True)
    member.expect_nothing(0.2)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("stays", [0.0, 0.02, 0.1])
def test_a_member_that_leaves_while_messages_are_put_aside(*, broker, connect, new_name, set_rules, share, qos, stays):
    """The first of them were offered to the other member, the rest is still in the partition when that one returns."""
    name, other = new_name("app"), new_name("app")
    topic, share_filter = share
    for one in (name, other):
        client = connect(V5, one, broker=broker, **persistent(V5))
        client.subscribe(share_filter, qos=qos)
        client.disconnect()
    publisher = connect(V5, broker=broker)
    for number in range(COUNT):
        publisher.publish(topic, b"%d" % number, qos=qos)
    before = denied(broker)
    set_rules(closed_for(name))
    client = connect(V5, name, broker=broker, **persistent(V5))
    client.expect_nothing(stays)
    client.disconnect()
    expect_in_order(connect(V5, other, broker=broker, **persistent(V5)), topic, range(COUNT), qos)
    assert denied(broker) == before


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("stays", [0.0, 0.3])
def test_a_member_with_more_to_come(*, broker, connect, new_name, set_rules, share, qos, stays):
    """Messages that were planned for a member when its right went are another member's, each once."""
    name, other = new_name("app"), new_name("app")
    topic, share_filter = share
    client = connect(V5, name, broker=broker, **persistent(V5, receive_maximum=3))
    client.subscribe(share_filter, qos=qos)
    member = connect(V5, other, broker=broker, **persistent(V5))
    member.subscribe(share_filter, qos=qos)
    member.disconnect()
    publisher = connect(V5, broker=broker)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=qos)
    first = [client.expect_publish(topic, b"%d" % number) for number in range(2)]
    until(lambda: planned(broker, name) == 10, what="the messages that are planned")
    before = denied(broker)
    set_rules(closed_for(name))
    for packet in first:
        client.ack(packet)
    client.expect_nothing(stays)
    expect_in_order(connect(V5, other, broker=broker, **persistent(V5)), topic, range(2, 10), qos)
    client.ping()
    assert denied(broker) == before


def planned(broker, name):
    return next(one["in_flight"] for one in broker.api("applications") if one["client_id"] == name)
