"""Do the APPLICATIONs of a shared subscription get every message once, whoever comes and goes?"""

import threading
from collections import Counter

import pytest

from tests.support.clients.packets import V5, V311, PacketType, pack_disconnect, pack_subscribe
from tests.support.clients.publishers import Publisher
from tests.support.clients.raw_client import ClosedByServer, NothingCame, receive_from
from tests.support.worlds.application import SHARED_PREFIX, persistent, until

SETTINGS = {"application.shared_partitions": 6}


@pytest.mark.parametrize("turn", range(3))
def test_a_subscriber_that_leaves_at_once_keeps_its_share(*, broker, connect, new_name, version, turn):
    """SUBSCRIBE and DISCONNECT arrive together: the subscription is there when the client returns."""
    name, topic = new_name("app"), new_name("left")
    share = f"$share/group{turn}/{topic}/#"
    client = connect(version, name, broker=broker, **persistent(version))
    client.send_raw(pack_subscribe(version, 1, [(share, 1)]) + pack_disconnect(version))
    client.close()
    until(lambda: broker.api(f"sessions/{name}")["subscriptions"], 20, "the subscription")
    connect(V5, broker=broker).publish(f"{topic}/x", b"x", qos=1)
    client = connect(version, name, broker=broker, **persistent(version))
    assert client.connack.session_present
    client.expect_publish(f"{topic}/x", b"x", ack=True)
    client.disconnect()


class Member:
    """Takes and acknowledges in a thread, until it is told to leave."""

    def __init__(self, client):
        self.client = client
        self.payloads = []
        self.again = 0
        self._leaving = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        try:
            while not self._leaving.is_set():
                try:
                    packet = self.client.receive(0.05)
                except NothingCame:
                    continue
                if packet.type == PacketType.PUBLISH:
                    self.payloads.append(packet.payload)
                    self.again += packet.dup
                    self.client.ack(packet)
        except (ClosedByServer, OSError):
            pass

    def stop(self):
        self._leaving.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        return self.payloads

    def leave(self):
        """DISCONNECT; what is on its way to it then stays unacknowledged."""
        payloads = self.stop()
        self.client.try_send_raw(b"\xe0\x00")
        self.client.close()
        return payloads


@pytest.fixture
def join(open_app, new_name, topic):
    """join() makes a member of the group of `topic`; join(client_id=...) lets one return."""

    def join_one(version=V5, *, client_id=None, qos=2, share="group", topic_filter=topic):
        client = open_app(version, client_id or new_name("app"))
        assert client.subscribe(f"$share/{share}/{topic_filter}", qos=qos) == [qos]
        return client

    return join_one


def take(client, count):
    """So many publishes, acknowledged."""
    return [client.expect_publish(dup=None, ack=True).payload for _ in range(count)]


def publish_until_everybody_has_some(publisher, topic, members):
    """Members of a group begin at their own time; gives the payloads published."""
    sent = []

    def publish_more():
        for _ in range(20):
            sent.append(b"%d" % len(sent))
            publisher.publish(topic, sent[-1], qos=1)
        return all(member.payloads for member in members)

    until(publish_more, 60, "a share for every member")
    return sent


def test_members_split_the_messages(join, publisher, topic):
    """[MQTT-4.8.2-4]: each message to one of them."""
    members = [Member(join(version)) for version in (V311, V5)]
    sent = publish_until_everybody_has_some(publisher, topic, members)
    until(lambda: sum(len(member.payloads) for member in members) >= len(sent), 60, "all of them")
    received = Counter(payload for member in members for payload in member.stop())
    assert set(received) == set(sent)
    # What was with one member when the other joined may come to both, as after any reconnect.
    assert sum(received.values()) - len(sent) <= sum(member.again for member in members)


@pytest.mark.parametrize(("published", "subscribed"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_the_lower_qos(join, publisher, topic, published, subscribed):
    """Seed: the minimum of the publisher's and the subscriber's, at delivery."""
    member = join(qos=subscribed)
    publisher.publish(topic, b"x", qos=published)
    member.expect_publish(topic, b"x", qos=min(published, subscribed), ack=True)


@pytest.mark.parametrize(("published", "subscribed"), [(0, 2), (1, 0)])
def test_qos_0_goes_to_one_member(join, publisher, topic, published, subscribed):
    members = [join(qos=subscribed) for _ in range(2)]
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=published)
    publisher.ping()
    packets = [packet for mine in receive_from(members, 10, seconds=0.5) for packet in mine]
    assert sorted(packet.payload for packet in packets) == [b"%d" % number for number in range(10)]
    assert {packet.qos for packet in packets} == {0}


def test_two_share_names_on_one_filter(join, publisher, topic, version):
    """Two groups of one topic of the log: each gets everything."""
    one, other = join(version, share="one"), join(version, share="other")
    for number in range(20):
        publisher.publish(topic, b"%d" % number, qos=1)
    for member in (one, other):
        assert sorted(take(member, 20), key=int) == [b"%d" % number for number in range(20)]
        member.expect_nothing(0.1)


def test_devices_and_applications_are_separate_groups(join, connect, publisher, topic, client_id):
    """Reference 4: the same share name; each group gets the message."""
    app = join()
    device = connect(V5, client_id, **persistent(V5))
    device.subscribe(f"$share/group/{topic}", qos=1)
    for number in range(10):
        publisher.publish(topic, b"%d" % number, qos=1)
    for member in (app, device):
        assert sorted(take(member, 10)) == [b"%d" % number for number in range(10)]
        member.expect_nothing(0.1)


def test_filters_that_look_alike_do_not_mix(broker, join, publisher, new_name):
    """Reference, defect 15: `a/+` and `a/slw` never share a topic of the log."""
    base = new_name("alike")
    before = broker.topics()
    wild, literal = join(topic_filter=f"{base}/+"), join(topic_filter=f"{base}/slw")
    made = {name for name in broker.topics() - before if name.startswith(SHARED_PREFIX)}
    assert f"{SHARED_PREFIX}{base}.slw" in made
    assert len(made) == 2
    publisher.publish(f"{base}/x", b"x", qos=1)
    publisher.publish(f"{base}/slw", b"slw", qos=1)
    assert sorted(take(wild, 2)) == [b"slw", b"x"]
    assert take(literal, 1) == [b"slw"]
    for member in (wild, literal):
        member.expect_nothing(0.1)


def test_everybody_offline(*, join, open_app, publisher, topic, version, new_name):
    """Seed: what nobody can take waits in the log, for the first that returns."""
    names = [new_name("app") for _ in range(2)]
    for name in names:
        join(version, client_id=name).disconnect()
    for number in range(30):
        publisher.publish(topic, b"%d" % number, qos=1)
    first = open_app(version, names[1])
    assert sorted(take(first, 30), key=int) == [b"%d" % number for number in range(30)]
    first.disconnect()
    open_app(version, names[0]).expect_nothing(0.5)


def test_a_shared_subscription_beside_an_own_one(open_app, publisher, topic, version):
    """Seed: the main consumer and those of shared subscriptions do not know each other: a copy for each."""
    client = open_app(version)
    client.subscribe(topic, qos=1)
    assert client.subscribe(f"$share/group/{topic}", qos=1) == [1]
    publisher.publish(topic, b"x", qos=1)
    assert take(client, 2) == [b"x", b"x"]
    client.unsubscribe(f"$share/group/{topic}")
    publisher.publish(topic, b"y", qos=1)
    assert take(client, 1) == [b"y"]
    client.expect_nothing(0.2)


def test_no_retained_messages(join, publisher, topic):
    """4.8.2: a shared subscription is not sent retained messages when it begins."""
    publisher.publish(topic, b"kept", qos=1, retain=True)
    join().expect_nothing(0.3)


def test_unacknowledged_messages_of_a_member_that_returns(join, open_app, publisher, topic, new_name):
    """[MQTT-4.8.2-5]: they are its own until it returns; with DUP and the same id."""
    name = new_name("app")
    member = join(client_id=name)
    publisher.publish(topic, b"x", qos=2)
    first = member.expect_publish(topic, b"x", qos=2)
    member.close()
    again = open_app(V5, name).expect_publish(topic, b"x", qos=2, dup=True, ack=True)
    assert again.packet_id == first.packet_id


def test_members_come_and_go_under_load(broker, join, open_app, topic, new_name):
    """The issue: without loss. Who left with messages on their way returns at the end."""
    names = [new_name("app") for _ in range(4)]
    load = Publisher(broker, new_name("load"), V5, qos=1, window=50)
    shared = f"$share/group/{load.topic}"
    for name in names:
        client = open_app(V5, name)
        assert client.subscribe(shared, qos=1) == [1]
        client.disconnect()
    received = []
    members = {name: Member(open_app(V5, name)) for name in names[:2]}
    load.start()
    for leaving, coming in ((names[0], names[2]), (names[1], names[3]), (names[2], names[0])):
        until(lambda: sum(len(member.payloads) for member in members.values()) > 100, 60, "messages between changes")
        received += members.pop(leaving).leave()
        members[coming] = Member(open_app(V5, coming))
    load.stop()
    load.join()
    for name in set(names) - set(members):
        members[name] = Member(open_app(V5, name))

    def everything():
        return received + [payload for member in members.values() for payload in member.payloads]

    until(lambda: load.acknowledged <= set(everything()), 60, "every acknowledged message")
    repeated = sum(member.again for member in members.values())
    for member in members.values():
        member.stop()
    assert len(load.acknowledged) > 100
    print(f"{len(load.acknowledged)} acknowledged, {len(everything())} received, {repeated} of them with DUP")
