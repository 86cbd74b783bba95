"""Do the members of a share of APPLICATION clients get every message when they are at several brokers, or move?"""

import contextlib
import os
import signal
import time

from tests.support.brokers.cluster import await_dispatched
from tests.support.clients.packets import V5, PacketType
from tests.support.worlds.application import persistent


@contextlib.contextmanager
def standing_still(broker):
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


def _subscribe(client, share):
    packet_id = client.send_subscribe((share, 1))
    suback = client.expect(PacketType.SUBACK, timeout=60)
    assert suback.packet_id == packet_id
    assert suback.reasons == [1]


def _receive(members, wanted, seconds=60):
    """What they get until each of the wanted ones has come; which of them never did."""
    missing = set(wanted)
    deadline = time.monotonic() + seconds
    while missing and time.monotonic() < deadline:
        for member in members:
            for packet in member.receive_all(0.1):
                if packet.type == PacketType.PUBLISH:
                    member.ack(packet)
                    missing.discard(packet.payload)
    return sorted(missing)


def test_a_first_member_at_a_broker_that_is_ahead(pair, connect, new_name, topic):
    """The one that has members already stands still: what it has not written to the shared topic is there before what
    the other one writes, or the readers would take it for repeats."""
    a, b = pair
    share = f"$share/group/{topic}"
    first = connect(V5, new_name("app"), broker=a, **persistent(V5))
    _subscribe(first, share)
    second = connect(V5, new_name("app"), broker=b, **persistent(V5))
    publisher = connect(V5, broker=b)
    publisher.publish(topic, b"before", qos=1)
    assert _receive([first], [b"before"]) == []
    payloads = [b"%d" % number for number in range(200)]
    with standing_still(a):
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        _subscribe(second, share)
        publisher.publish(topic, b"after", qos=1)
        await_dispatched(b)
    assert _receive([first, second], [*payloads, b"after"]) == []


def test_the_last_member_goes_to_a_broker_that_is_ahead(pair, connect, open_client, new_name, topic):
    """Its broker stands still and is given up: what that one has not dispatched is repeated for the share, too."""
    a, b = pair
    name = new_name("app")
    member = connect(V5, name, broker=a, **persistent(V5))
    _subscribe(member, f"$share/group/{topic}")
    publisher = connect(V5, broker=b)
    publisher.publish(topic, b"before", qos=1)
    assert _receive([member], [b"before"]) == []
    payloads = [b"%d" % number for number in range(200)]
    with standing_still(a):
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        member = open_client(V5, broker=b)
        member.send_connect(name, **persistent(V5))
        assert member.expect(PacketType.CONNACK, timeout=60).session_present
    publisher.publish(topic, b"after", qos=1)
    assert _receive([member], [*payloads, b"after"]) == []


def test_nothing_is_lost_while_a_member_moves(pair, connect, new_name, topic):
    """It is the only one, so with it the shared topic gets another writer each time."""
    a, b = pair
    name = new_name("app")
    publisher = connect(V5, broker=b)
    member = connect(V5, name, broker=a, **persistent(V5))
    _subscribe(member, f"$share/group/{topic}")
    missing = set()
    for turn in range(4):
        payloads = [b"%d" % number for number in range(turn * 50, turn * 50 + 50)]
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        missing.update(payloads)
        member = connect(V5, name, broker=(b, a)[turn % 2], **persistent(V5))
        missing = set(_receive([member], missing, 1))
    assert _receive([member], missing) == []


def test_a_new_share_does_not_get_what_was_there_before(pair, connect, new_name, topic):
    """Though its broker writes again what others have not dispatched: nobody was to have it."""
    a, b = pair
    publisher = connect(V5, broker=b)
    member = connect(V5, new_name("app"), broker=b, **persistent(V5))
    with standing_still(a):
        for _ in range(20):
            publisher.publish(topic, b"before", qos=1)
        await_dispatched(b)
        _subscribe(member, f"$share/group/{topic}")
        publisher.publish(topic, b"after", qos=1)
        assert member.expect(PacketType.PUBLISH, timeout=60).payload == b"after"


def test_what_a_member_has_in_flight_goes_with_it_to_another_broker(pair, connect, new_name, topic):
    a, b = pair
    name = new_name("app")
    publisher = connect(V5, broker=b)
    member = connect(V5, name, broker=a, **persistent(V5))
    member.send_subscribe((f"$share/group/{topic}", 2))
    assert member.expect(PacketType.SUBACK, timeout=60).reasons == [2]
    publisher.publish(topic, b"once", qos=2)
    sent = member.expect_publish(topic, timeout=60)
    time.sleep(1)  # stored by then
    member = connect(V5, name, broker=b, **persistent(V5))
    again = member.expect_publish(topic, dup=True, ack=True, timeout=60)
    assert (again.payload, again.packet_id, again.qos) == (b"once", sent.packet_id, 2)
    assert [packet for packet in member.receive_all(1) if packet.type == PacketType.PUBLISH] == []
