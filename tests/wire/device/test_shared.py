"""Does a shared subscription of DEVICEs give each message to one of them, and keep it while all are away?"""

import pytest

from penstock.subscribers.device.store.base import group_queue
from tests.support.clients.packets import V5
from tests.support.clients.raw_client import receive_from
from tests.support.worlds.device import publish_all

SHARE = "some_group"


def numbered(count):
    return [b"%d" % number for number in range(count)]


@pytest.fixture
def join(open_device, new_name, topic):
    """join(version) makes a member of the group of `topic`; join(version, name) lets one return."""

    def join_one(version=V5, name=None, qos=1):
        client = open_device(version, name or new_name("member"))
        if not client.connack.session_present:
            client.subscribe(f"$share/{SHARE}/{topic}", qos=qos)
        return client

    return join_one


def test_members_share_the_messages(join, publisher, topic, version):
    """[MQTT-4.8.2-4]: each message to one of them, in the order of the topic for each; also at QoS 2."""
    members = [join(version, qos=2) for _ in range(3)]
    publish_all(publisher, topic, numbered(30), 2)
    received = [[int(packet.payload) for packet in mine] for mine in receive_from(members, 30, ack=True)]
    assert sorted(number for numbers in received for number in numbers) == list(range(30))
    assert all(numbers == sorted(numbers) for numbers in received)
    assert all(received), "one online member per message, but not always the same"


def test_only_those_online(*, broker, join, publisher, topic, new_name, version):
    """The issue: one online member per message; who is away is not chosen."""
    names = [new_name("member") for _ in range(3)]
    for name in names[:2]:
        join(version, name).disconnect()
    there = join(version, names[2])
    publish_all(publisher, topic, numbered(20))
    there.expect_payloads(numbered(20), dup=None)
    for name in names[:2]:
        broker.await_stored(name, 0)
        join(version, name).expect_nothing(0.1)


@pytest.mark.parametrize("qos", [1, 2])
def test_everybody_offline(*, broker, join, publisher, topic, new_name, version, qos):
    """The issue: stored for the group, drained by the first that returns, in order, each once."""
    names = [new_name("member") for _ in range(2)]
    for name in names:
        join(version, name, qos).disconnect()
    publish_all(publisher, topic, numbered(40), qos)
    broker.await_stored(group_queue(SHARE, topic), 40)
    first = join(version, names[1])
    first.expect_payloads(numbered(40), qos=qos, dup=False)
    publisher.publish(topic, b"live", qos=qos)
    first.expect_publish(topic, b"live", dup=False, ack=True)
    broker.await_stored(group_queue(SHARE, topic), 0)
    broker.await_stored(names[1], 0)
    first.disconnect()
    join(version, names[0]).expect_nothing(0.2)


def test_drained_messages_are_the_members_own(*, broker, join, open_device, publisher, topic, new_name, version):
    """Reference, defect 13: with ids of the member, beside its own stored ones, and again under them."""
    names = [new_name("member") for _ in range(2)]
    for name in names:
        join(version, name).disconnect()
    own = join(version, names[0])
    own.subscribe(f"{topic}/own", qos=1)
    own.disconnect()
    publish_all(publisher, topic, numbered(10))
    publish_all(publisher, f"{topic}/own", [b"own %d" % number for number in range(10)])
    broker.await_stored(names[0], 10)
    client = open_device(version, names[0])
    packets = [client.expect_publish(dup=False) for _ in range(20)]
    assert len({packet.packet_id for packet in packets}) == 20
    for level in (topic, f"{topic}/own"):
        mine = [packet.payload for packet in packets if packet.topic == level]
        assert mine == sorted(mine)
    for packet in packets[::2]:
        client.ack(packet)
    client.ping()
    client.close()
    client = open_device(version, names[0])
    again = [client.expect_publish(dup=True, ack=True) for _ in range(10)]
    assert {(one.packet_id, one.payload) for one in again} == {(one.packet_id, one.payload) for one in packets[1::2]}
    client.expect_nothing(0.1)
    broker.await_stored(names[0], 0)
    client.disconnect()
    join(version, names[1]).expect_nothing(0.1)


def test_the_last_member_takes_the_group_along(broker, join, publisher, topic, new_name):
    """When its last session has ended nobody can get what is stored for a group."""
    name = new_name("member")
    join(V5, name).disconnect()
    publish_all(publisher, topic, numbered(3))
    broker.await_stored(group_queue(SHARE, topic), 3)
    client = join(V5, name)
    client.expect_payloads(numbered(3), ack=False)
    client.disconnect(properties={"session_expiry_interval": 0})
    broker.await_stored(group_queue(SHARE, topic), 0)
    broker.await_stored(name, 0)
    join(V5, name).expect_nothing(0.1)


def test_the_last_session_that_ends_takes_what_is_stored_along(*, broker, join, connect, publisher, topic, new_name):
    """Not before: another member that is away may still return."""
    group = group_queue(SHARE, topic)
    names = [new_name("member") for _ in range(2)]
    for name in names:
        join(V5, name).disconnect()
    publish_all(publisher, topic, numbered(3))
    broker.await_stored(group, 3)
    connect(V5, names[0], clean_start=True).disconnect()
    publish_all(publisher, topic, numbered(1))
    broker.await_stored(group, 4)
    broker.kill()
    broker.restart()
    connect(V5, names[1], clean_start=True)
    broker.await_stored(group, 0)
    # Nothing of it comes back when the group is there again.
    member = join(V5, names[0])
    member.expect_nothing(0.1)
    assert member.unsubscribe(f"$share/{SHARE}/{topic}") == [0]
    if broker.redis is not None:
        assert broker.redis.cli("KEYS", f"{{{group}}}*").split() == []


def test_everybody_offline_over_a_kill(broker, join, publisher, topic, new_name):
    """Stored for the group, then kill -9: the first that returns gets all, QoS 2 exactly once [MQTT-4.3.3-8]."""
    names = [new_name("member") for _ in range(2)]
    for name in names:
        join(V5, name, 2).disconnect()
    publish_all(publisher, topic, numbered(20), 2)
    broker.kill()
    broker.restart()
    first = join(V5, names[0])
    assert first.connack.session_present
    first.expect_payloads(numbered(20), qos=2, dup=None)
    first.expect_nothing(0.3)
    first.disconnect()
    join(V5, names[1]).expect_nothing(0.2)
