"""What sessions leave behind in a cluster: removed by whoever is left, and never what another broker still uses."""

from __future__ import annotations

import time

from tests.support.clients.packets import V5, PacketType, pack_disconnect
from tests.support.worlds.application import SHARED_PREFIX, persistent, topic_of, until

ENDS = {"session_expiry_interval": 0}


def _subscribe(client, share):
    client.send_subscribe((share, 1))
    assert client.expect(PacketType.SUBACK, timeout=60).reasons == [1]


def test_another_broker_removes_what_a_dead_one_has_left(pair, connect, new_name):
    a, b = pair
    topic = new_name("topic")
    names = [new_name("app") for _ in range(10)]
    apps = [connect(V5, name, broker=a, **persistent(V5)) for name in names]
    _subscribe(apps[0], f"$share/group/{topic}")
    ours = {*map(topic_of, names), SHARED_PREFIX + topic}
    until(lambda: ours <= b.topics(), 60)
    before = b.tasks()
    for app in apps:
        app.send_raw(pack_disconnect(V5, 0, ENDS))
    until(lambda: b.tasks() >= before + len(ours), 60, "everything written down")
    a.kill()

    def left_behind():
        """Of a session whose end was not stored yet, the other broker has the session by then."""
        entries = b.api("applications")
        shared = {share["topic"] for entry in entries for share in b.application(entry["client_id"])["shared"]}
        return ours & b.topics() - {entry["topic"] for entry in entries} - shared

    try:
        b.await_log("member is silent, expelled", seconds=60)
        until(lambda: not left_behind(), 120, lambda: f"left behind: {left_behind()}")
    finally:
        a.restart()


def test_a_client_that_ends_its_session_and_comes_to_another_broker_keeps_what_it_gets_there(pair, connect, new_name):
    """The first broker may just be about to remove the topic of the session that ended."""
    a, b = pair
    topic = new_name("topic")
    name = new_name("app")
    publisher = connect(V5, broker=b)
    for number in range(5):
        first, second = (a, b) if number % 2 == 0 else (b, a)
        old = connect(V5, name, broker=first, **persistent(V5))
        old.subscribe(topic, qos=1)
        old.send_raw(pack_disconnect(V5, 0, ENDS))
        new = connect(V5, name, broker=second, **persistent(V5))
        new.subscribe(topic, qos=1)
        new.disconnect()
        payloads = [b"%d of %d" % (one, number) for one in range(20)]
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        back = connect(V5, name, broker=second, **persistent(V5))
        assert back.connack.session_present
        assert [back.expect_publish(topic, ack=True, timeout=60).payload for _ in payloads] == payloads
        back.disconnect(0, ENDS)


def test_the_last_member_of_one_group_takes_nothing_from_another_group(pair, connect, new_name):
    """Both share one filter, and so one topic: what waits there for the group at the other broker stays."""
    a, b = pair
    topic = new_name("topic")
    name = new_name("app")
    waits = connect(V5, name, broker=b, **persistent(V5))
    _subscribe(waits, f"$share/patient/{topic}")
    goes = connect(V5, new_name("app"), broker=a, **persistent(V5))
    _subscribe(goes, f"$share/hasty/{topic}")
    publisher = connect(V5, broker=b)
    publisher.publish(topic, b"first", qos=1)
    assert waits.expect_publish(topic, ack=True, timeout=60).payload == b"first"
    waits.disconnect()
    payloads = {b"%d" % number for number in range(20)}
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    start = a.log_size()
    goes.send_raw(pack_disconnect(V5, 0, ENDS))
    noted = "penstock_housekeeper_noted_total"
    until(lambda: any(line.startswith(noted) and float(line.split()[-1]) for line in a.metrics().splitlines()), 60)
    until(lambda: topic_of(goes.client_id) not in b.topics(), 60)
    assert "the topic of a shared subscription was removed" not in a.log(start)
    back = connect(V5, name, broker=b, **persistent(V5))
    assert {back.expect_publish(topic, dup=None, ack=True, timeout=60).payload for _ in payloads} == payloads
    assert SHARED_PREFIX + topic in b.topics()
    back.disconnect(0, ENDS)
    until(lambda: SHARED_PREFIX + topic not in b.topics(), 120)


def test_who_joins_a_share_while_its_last_member_leaves_the_other_broker_gets_everything(pair, connect, new_name):
    """Neither broker knows of the other's member yet, or the topic is just being removed."""
    a, b = pair
    publisher = connect(V5, broker=b)
    for number, moment in enumerate((-0.08, -0.05, -0.02, 0.0, 0.0, 0.02, 0.05, -0.03)):
        first, second = (a, b) if number % 2 == 0 else (b, a)
        topic = new_name("topic")
        leaves = connect(V5, new_name("app"), broker=first, **persistent(V5))
        joins = connect(V5, new_name("app"), broker=second, **persistent(V5))
        _subscribe(leaves, f"$share/group/{topic}")
        starts = a.log_size(), b.log_size()
        if moment < 0:
            leaves.send_raw(pack_disconnect(V5, 0, ENDS))
            time.sleep(-moment)
            _subscribe(joins, f"$share/group/{topic}")
        else:
            _subscribe(joins, f"$share/group/{topic}")
            time.sleep(moment)
            leaves.send_raw(pack_disconnect(V5, 0, ENDS))
        payloads = {b"%d" % one for one in range(10)}
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        got = set()
        while not payloads <= got:
            got.add(joins.expect_publish(topic, dup=None, ack=True, timeout=60).payload)
        # Nobody tries to take the group away from under it, now or later.
        assert "cannot be removed" not in a.log(starts[0]) + b.log(starts[1])
        joins.disconnect(0, ENDS)


def test_a_share_that_begins_again_where_it_was_before_gets_everything(pair, connect, new_name):
    """Its only member goes to another broker, and ends its session there at once. The first broker remembers nothing of
    it: not that it is in use, and not how far a topic was read that is gone."""
    a, b = pair
    topic = new_name("topic")
    name = new_name("app")
    publisher = connect(V5, broker=b)
    member = connect(V5, name, broker=a, **persistent(V5))
    _subscribe(member, f"$share/group/{topic}")
    old = {b"old %d" % number for number in range(200)}
    for payload in old:
        publisher.publish(topic, payload, qos=1)
    while old:
        old.discard(member.expect_publish(topic, dup=None, ack=True, timeout=60).payload)
    time.sleep(1)  # stored by then
    member = connect(V5, name, broker=b, **persistent(V5))
    assert member.connack.session_present
    member.send_raw(pack_disconnect(V5, 0, ENDS))
    until(lambda: SHARED_PREFIX + topic not in b.topics(), 120, "the topic of the share is gone")
    member = connect(V5, new_name("app"), broker=a, **persistent(V5))
    _subscribe(member, f"$share/group/{topic}")
    payloads = {b"%d" % number for number in range(50)}
    for payload in payloads:
        publisher.publish(topic, payload, qos=1)
    got = set()
    while not payloads <= got:
        got.add(member.expect_publish(topic, dup=None, ack=True, timeout=60).payload)
    member.disconnect(0, ENDS)


def test_what_members_share_goes_when_the_last_of_them_leave_several_brokers_at_the_same_time(pair, connect, new_name):
    """Each broker still counts the members of the other, which may be DEVICE clients as well."""
    a, b = pair
    left = set()
    for moment, kind in ((0.0, "app"), (0.05, "app"), (0.1, "app"), (0.0, "device")):
        topic = new_name("topic")
        members = [
            connect(V5, new_name(one), broker=broker, **persistent(V5)) for one, broker in (("app", a), (kind, b))
        ]
        for member in members:
            _subscribe(member, f"$share/group/{topic}")
        time.sleep(1)  # they know of each other
        members[0].send_raw(pack_disconnect(V5, 0, ENDS))
        time.sleep(moment)
        if kind == "app":
            members[1].send_raw(pack_disconnect(V5, 0, ENDS))
        left.add(SHARED_PREFIX + topic)
    until(lambda: not left & b.topics(), 120, lambda: f"left behind: {left & b.topics()}")
