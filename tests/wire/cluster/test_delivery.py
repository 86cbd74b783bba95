"""Does what is published at one broker reach the clients of another, and one member of a shared subscription only?"""

import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.clients.packets import V5, V311, PacketType, pack_publish
from tests.support.clients.raw_client import receive_from
from tests.support.worlds.application import persistent, until


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_clean_session_at_another_broker_gets_the_message(pair, connect, topic, version, qos):
    """Once, in order, with the QoS of its subscription, and so does one at the same broker."""
    a, b = pair
    there = connect(version, broker=b)
    there.subscribe(topic, qos=qos)
    here = connect(version, broker=a)
    here.subscribe(topic, qos=qos)
    publisher = connect(V5, broker=a)
    payloads = [b"%d" % number for number in range(20)]
    for payload in payloads:
        publisher.publish(topic, payload, qos=qos)
    for client in (there, here):
        client.expect_payloads(payloads, qos=qos)
        client.expect_nothing(0.1)


def test_what_belongs_to_the_message_arrives(pair, connect, topic):
    """Properties, and what is left of the expiry [MQTT-3.3.2-6]; not RETAIN, unless it is asked for [MQTT-3.3.1-12]."""
    a, b = pair
    there = connect(V5, broker=b)
    there.subscribe(topic, qos=1, properties={"subscription_identifier": 7})
    publisher = connect(V5, broker=a)
    properties = {"content_type": "text", "user_property": [("k", "v")], "message_expiry_interval": 60}
    publisher.publish(topic, b"x", qos=1, retain=True, properties=properties)
    got = there.expect_publish(topic, b"x", qos=1, retain=False, ack=True)
    assert got.properties["content_type"] == "text"
    assert got.properties["user_property"] == [("k", "v")]
    assert 50 <= got.properties["message_expiry_interval"] <= 60
    assert got.properties["subscription_identifier"] in (7, [7])


def test_a_client_does_not_get_its_own_messages_back(pair, connect, topic, client_id):
    """No Local holds across brokers [MQTT-3.8.3-3], and the broker that took a message does not deliver it twice."""
    a, b = pair
    client = connect(V5, client_id, broker=a)
    client.send_subscribe((topic, 0x05))
    client.receive()
    echo = connect(V5, broker=a)
    echo.subscribe(topic, qos=1)
    client.publish(topic, b"mine", qos=1)
    echo.expect_publish(topic, b"mine", ack=True)
    connect(V5, broker=b).publish(topic, b"theirs", qos=1)
    client.expect_publish(topic, b"theirs", ack=True)
    echo.expect_publish(topic, b"theirs", ack=True)
    echo.expect_nothing(0.2)


def test_a_subscriber_of_another_broker_loses_nothing_of_a_burst(pair, connect, topic):
    """More than its queue holds: dispatch waits for it, the log has the rest."""
    a, b = pair
    there = connect(V5, broker=b, properties={"receive_maximum": 20})
    there.subscribe(topic, qos=1)
    local = connect(V5, broker=b)
    local.publish(topic, b"first", qos=1)
    there.expect_publish(topic, b"first", ack=True)
    payloads = [b"%d" % number for number in range(3_000)]

    def publish():
        publisher = connect(V5, broker=a)
        for start in range(0, len(payloads), 60):
            batch = payloads[start : start + 60]
            publisher.send_raw(
                b"".join(pack_publish(V5, topic, payload, qos=1, packet_id=i + 1) for i, payload in enumerate(batch))
            )
            for _ in batch:
                publisher.expect(PacketType.PUBACK)

    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish)
        there.expect_payloads(payloads, qos=1)
        publishing.result()


def test_retained_messages_are_those_of_all_brokers(pair, connect, topic):
    """[MQTT-3.3.1-5] [MQTT-3.3.1-6]: set at one, seen at the other, replaced there and removed there."""
    a, b = pair
    at_a, at_b = connect(V5, broker=a), connect(V5, broker=b)

    def seen(broker):
        client = connect(V5, broker=broker)
        client.subscribe(f"{topic}/#", qos=1)
        return {packet.topic: packet.payload for packet in client.receive_all(0.2)}

    at_a.publish(f"{topic}/1", b"first", qos=1, retain=True)
    at_a.publish(f"{topic}/2", b"second", qos=0, retain=True)
    both = {f"{topic}/1": b"first", f"{topic}/2": b"second"}
    until(lambda: seen(b) == both, 60)
    until(lambda: seen(a) == both, 60)
    at_b.publish(f"{topic}/1", b"third", qos=1, retain=True)
    at_b.publish(f"{topic}/2", b"", qos=1, retain=True)
    until(lambda: seen(a) == {f"{topic}/1": b"third"}, 60)
    until(lambda: seen(b) == {f"{topic}/1": b"third"}, 60)


def test_brokers_agree_on_who_was_last(pair, connect, topic):
    """Both set the same topics at the same time: afterwards both have the same value of each."""
    a, b = pair
    at_a, at_b = connect(V5, broker=a), connect(V5, broker=b)
    for number in range(50):
        at_a.send_publish(f"{topic}/{number}", b"a", qos=0, retain=True)
        at_b.send_publish(f"{topic}/{number}", b"b", qos=0, retain=True)
    at_a.publish(f"{topic}/end", b"", qos=1)
    at_b.publish(f"{topic}/end", b"", qos=1)

    def seen(broker):
        client = connect(V5, broker=broker)
        client.subscribe(f"{topic}/#", qos=1)
        return {packet.topic: packet.payload for packet in client.receive_all(0.3)}

    def agree():
        found = seen(a)
        return len(found) == 50 and found == seen(b)

    until(agree, 60)


@pytest.mark.parametrize(("qos", "keeps"), [(0, False), (1, False), (1, True)])
def test_a_shared_subscription_over_both_brokers(pair, connect, topic, qos, keeps):
    """Each message reaches one member, and every member has its turns [MQTT-4.8.2-3]."""
    a, b = pair
    options = persistent(V5) if keeps else {}
    members = [connect(V5, broker=broker, **options) for broker in (a, b, b)]
    for member in members:
        member.subscribe(f"$share/group/{topic}", qos=qos)
    publishers = [connect(V5, broker=a), connect(V5, broker=b)]
    numbers = itertools.count(1)

    def share_out(payloads):
        """What each of the members gets of them."""
        for number, payload in enumerate(payloads):
            publishers[number % 2].publish(topic, payload, qos=qos)
        # Until the brokers agree on the members, a message may go to none of them.
        shares = receive_from(members, len(payloads), seconds=0.1, ack=True, limit=5)
        return [[packet.payload for packet in share if packet.payload in payloads] for share in shares]

    def is_settled():
        """The brokers have told each other of their members, and forgotten the numbers before: each gets its turns."""
        tries = [b"try %d" % next(numbers) for _ in range(6)]
        shares = share_out(tries)
        return all(shares) and sorted(payload for share in shares for payload in share) == sorted(tries)

    until(lambda: is_settled() and is_settled(), 60, "each message at one member")
    payloads = [b"%d" % number for number in range(120)]
    got = share_out(payloads)
    until(lambda: _add(got, members) or sum(map(len, got)) >= len(payloads), 60, "all messages")
    _add(got, members, 0.2)
    counts = Counter(payload for mine in got for payload in mine)
    assert counts == Counter(payloads)
    assert all(20 <= len(mine) <= 60 for mine in got), [len(mine) for mine in got]
    for member in members:
        member.unsubscribe(f"$share/group/{topic}")


def _add(got, members, seconds=0.05):
    for mine, member in zip(got, members, strict=True):
        mine += [payload for payload in _collect(member, seconds) if b"try" not in payload]


def _collect(member, seconds):
    packets = member.receive_all(seconds)
    for packet in packets:
        member.ack(packet)
    return [packet.payload for packet in packets]
