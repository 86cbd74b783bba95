"""Do the members of a shared subscription share its messages, each message going to one of them?"""

from collections import Counter
from itertools import chain

import pytest

from tests.support.clients.packets import V5, V311, PacketType, Reason
from tests.support.clients.raw_client import receive_from
from tests.support.worlds.application import until

PERSISTENT = {"clean_start": False, "properties": {"session_expiry_interval": 60}}


@pytest.fixture
def join(connect, topic):
    """join() connects one more member of the group, at the given QoS."""

    def join_group(qos=0, *, group="group", version=V5, client_id=None, **options):
        member = connect(version, client_id, **options)
        assert member.subscribe(f"$share/{group}/{topic}", qos=qos) == [qos]
        return member

    return join_group


def publish_numbers(connect, topic, count, qos=0):
    publisher = connect(V5)
    for number in range(count):
        publisher.publish(topic, b"%d" % number, qos=qos)
    publisher.ping()


def take(members, count):
    """Payloads that reach each of the members, so many of them together."""
    found = receive_from(members, count, seconds=0.1, ack=True)
    return [[publish.payload for publish in mine] for mine in found]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_each_message_reaches_one_member_in_turn(connect, join, topic, qos):
    """4.8.2, [MQTT-4.8.2-3]: round robin spreads them evenly."""
    members = [join(qos) for _ in range(3)]
    publish_numbers(connect, topic, 30, qos)
    received = take(members, 30)
    assert Counter(chain.from_iterable(received)) == Counter(b"%d" % number for number in range(30))
    assert [len(payloads) for payloads in received] == [10, 10, 10]


def test_each_member_at_its_own_qos(connect, join, topic):
    """[MQTT-4.8.2-3]: the QoS granted to the member that is chosen."""
    members = {qos: join(qos) for qos in (0, 1, 2)}
    publish_numbers(connect, topic, 6, qos=2)
    for qos, member in members.items():
        for _ in range(2):
            member.expect_publish(topic, qos=qos, ack=True)


def test_groups_and_plain_subscriptions_are_independent(connect, join, topic):
    """4.8.2: each group gets a copy, and each plain subscriber."""
    groups = [[join(group=name) for _ in range(2)] for name in ("red", "blue")]
    plain = connect(V5)
    plain.subscribe(topic)
    publish_numbers(connect, topic, 10)
    everything = [b"%d" % number for number in range(10)]
    assert take([plain], 10) == [everything]
    for members in groups:
        assert sorted(chain.from_iterable(take(members, 10))) == everything


def test_one_client_in_a_group_and_beside_it(connect, join, topic):
    """4.8.2: a shared subscription and a plain one to the same filter are two subscriptions; each gives the message."""
    member = join()
    member.subscribe(topic)
    publish_numbers(connect, topic, 1)
    assert take([member], 2) == [[b"0", b"0"]]


def test_groups_are_told_apart_by_name_and_filter(connect, topic):
    """4.8.2: same name with another filter is another group."""
    one, two = connect(V5), connect(V5)
    one.subscribe(f"$share/group/{topic}/+")
    two.subscribe(f"$share/group/{topic}/a")
    connect(V5).publish(f"{topic}/a", b"x", qos=1)
    one.expect_publish(f"{topic}/a", b"x")
    two.expect_publish(f"{topic}/a", b"x")


def test_wildcards_in_the_filter(connect, topic):
    """4.8.2: the rest of the filter works as any other."""
    member = connect(V5)
    member.subscribe(f"$share/group/{topic}/+/c/#")
    publisher = connect(V5)
    for name in ("a/c", "b/c/d", "c", "a/b"):
        publisher.publish(f"{topic}/{name}", name.encode())
    publisher.ping()
    assert take([member], 2) == [[b"a/c", b"b/c/d"]]


def test_no_retained_messages(connect, topic):
    """4.8.2: retained messages are not sent to a shared subscription when it is made."""
    connect(V5).publish(topic, b"kept", qos=1, retain=True)
    for handling in (0, 1):
        member = connect(V5)
        member.subscribe(f"$share/group/{topic}", retain_handling=handling)
        member.expect_nothing(0.1)


def test_member_that_unsubscribes(connect, join, topic):
    """[MQTT-3.10.4-1]: the filter with `$share/` names the subscription; the others go on."""
    stays, leaves = join(), join()
    assert leaves.unsubscribe(topic) == [Reason.NO_SUBSCRIPTION_EXISTED]
    assert leaves.unsubscribe(f"$share/group/{topic}") == [Reason.SUCCESS]
    publish_numbers(connect, topic, 10)
    assert list(map(len, take([stays, leaves], 10))) == [10, 0]


@pytest.mark.parametrize("gracefully", [True, False])
def test_member_that_goes_away(connect, join, topic, gracefully):
    """4.8.2: what comes after a member's session has ended goes to the others."""
    stays, leaves = join(1), join(1)
    leaves.disconnect() if gracefully else leaves.close()
    stays.ping()
    publish_numbers(connect, topic, 10, qos=1)
    assert list(map(len, take([stays], 10))) == [10]


def test_connected_members_come_before_absent_ones(connect, join, topic, client_id):
    """4.8.2: a member whose session lives on without a connection is not chosen while another is there."""
    stays, absent = join(1), join(1, client_id=client_id, **PERSISTENT)
    absent.disconnect()
    publish_numbers(connect, topic, 10, qos=1)
    assert list(map(len, take([stays], 10))) == [10]


def test_absent_group_keeps_messages_for_its_members(connect, join, topic, client_id):
    """4.8.2, [MQTT-4.5.0-1]: with nobody connected a message of QoS 1 waits for a member with a session."""
    join(1, client_id=client_id, **PERSISTENT).disconnect()
    publish_numbers(connect, topic, 5, qos=1)
    connect(V5, client_id, **PERSISTENT).expect_payloads([b"%d" % number for number in range(5)])


def test_unacknowledged_qos_1_of_an_ended_member_goes_to_another(connect, join, topic):
    """4.8.2: the session of the chosen member ends, so another member gets the message."""
    ends = join(1)
    publish_numbers(connect, topic, 3, qos=1)
    ends.expect_payloads([b"0", b"1", b"2"], ack=False)
    other = join(1)
    ends.close()
    received = [other.expect_publish(topic, qos=1, ack=True).payload for _ in range(3)]
    assert received == [b"0", b"1", b"2"]


def test_qos_2_in_flight_is_completed_with_the_same_member(connect, join, topic, client_id):
    """[MQTT-4.8.2-4]: it waits for its member to come back."""
    member = join(2, client_id=client_id, **PERSISTENT)
    publish_numbers(connect, topic, 1, qos=2)
    first = member.expect_publish(topic, b"0", qos=2)
    other = join(2)
    member.close()
    other.expect_nothing()
    again = connect(V5, client_id, **PERSISTENT)
    assert again.expect_publish(topic, b"0", qos=2, dup=True, ack=True).packet_id == first.packet_id


def test_qos_2_in_flight_of_an_ended_session_goes_to_nobody(connect, join, topic):
    """[MQTT-4.8.2-5]: it might have been processed already."""
    ends = join(2)
    publish_numbers(connect, topic, 1, qos=2)
    ends.expect_publish(topic, b"0", qos=2)
    other = join(2)
    ends.close()
    other.expect_nothing()


@pytest.mark.parametrize("qos", [1, 2])
def test_refused_message_goes_to_nobody_else(connect, join, topic, qos):
    """[MQTT-4.8.2-6]: PUBACK or PUBREC with an error ends it."""
    refuses = join(qos)
    publish_numbers(connect, topic, 1, qos=qos)
    publish = refuses.expect_publish(topic, b"0", qos=qos)
    other = join(qos)
    refuses.send_ack(PacketType.PUBACK if qos == 1 else PacketType.PUBREC, publish.packet_id, Reason.NOT_AUTHORIZED)
    refuses.ping()
    refuses.close()
    other.expect_nothing()


BAD_SHARES = ["$share/", "$share/group", "$share/group/", "$share//topic", "$share/gr+up/topic", "$share/gr#up/topic"]


@pytest.mark.parametrize("topic_filter", BAD_SHARES)
def test_bad_shared_filter(connect, bystander, topic_filter):
    """[MQTT-4.8.2-1] [MQTT-4.8.2-2]: refused, by the code of the filter or by the end of the connection."""
    client = connect(V5)
    client.send_subscribe((topic_filter, 0))
    answer = client.receive()
    if answer.type == PacketType.SUBACK:
        assert answer.reasons == [Reason.TOPIC_FILTER_INVALID]
    else:
        assert answer.reason in (Reason.MALFORMED, Reason.PROTOCOL_ERROR, Reason.TOPIC_FILTER_INVALID)


def test_members_of_different_versions(connect, join, topic):
    """A 3.1.1 client may be a member, as an extension users expect."""
    members = [join(version=V311), join()]
    publish_numbers(connect, topic, 10)
    assert sorted(chain.from_iterable(take(members, 10))) == [b"%d" % number for number in range(10)]


def test_message_too_large_for_one_member_goes_to_another(connect, join, topic):
    """3.1.2.11.4: a server may give it to a member that can take it; none is asked twice and nothing else is lost."""
    small = join(1, properties={"maximum_packet_size": 200})
    large = join(1)
    publisher = connect(V5)
    for number in range(4):
        publisher.publish(topic, b"%d" % number + bytes(500), qos=1)
        publisher.publish(topic, b"%d" % number, qos=1)
    wanted = {b"0", b"1", b"2", b"3"}
    received = set()
    until(lambda: received.update(*take([small, large], 1)) or wanted <= received, 60, "all small messages")
    assert {payload for payload in received if len(payload) == 1} == wanted


@pytest.mark.parametrize("strategy", ["round-robin", "random", "sticky", "hash-client", "hash-topic"])
def test_strategies(start_broker, connect, topic, strategy):
    """mqtt.shared_strategy: each delivers every message once; which member gets it follows the strategy."""
    broker = start_broker({"mqtt.shared_strategy": strategy})
    members = [connect(V5, broker=broker) for _ in range(3)]
    for member in members:
        member.subscribe(f"$share/group/{topic}/+")
    publisher = connect(V5, broker=broker)
    for number in range(60):
        publisher.publish(f"{topic}/{number % 20}", b"%d" % (number % 20))
    publisher.ping()
    received = take(members, 60)
    assert Counter(chain.from_iterable(received)) == Counter({b"%d" % number: 3 for number in range(20)})
    used = sum(1 for payloads in received if payloads)
    if strategy in {"sticky", "hash-client"}:
        assert used == 1
    else:
        assert used == 3
    if strategy == "hash-topic":
        assert all(set(Counter(payloads).values()) == {3} for payloads in received)
