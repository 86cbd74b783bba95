"""Who gets a message? Reference, section 3 (groups)."""

import time

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.application import persistent, until
from tests.support.worlds.queues import VERBS, both_kinds

NUMBERS = [b"%d" % number for number in range(10)]


def test_the_group_is_a_user_property(publisher, open_queue, queue):
    """Row "MQTT 5": user property `consumer-group` on SUBSCRIBE; its consumers share the messages."""
    one, two = open_queue(), open_queue()
    for consumer in (one, two):
        consumer.consume(f"$queue/{queue}", "workers", prefetch=5)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    deliveries = one.take_any(5) + two.take_any(5)
    assert sorted(delivery.payload for delivery in deliveries) == NUMBERS
    assert {delivery.group for delivery in deliveries} == {"workers"}


def test_the_default_group_is_the_whole_client_id(publisher, open_queue, new_name, queue):
    """Row "MQTT 5": default is the whole client id, also behind a `-`."""
    first, second = (new_name("worker-") for _ in range(2))
    for name in (first, second):
        consumer = open_queue(client_id=name)
        consumer.consume(f"$queue/{queue}")
        if name == first:
            publisher.publish(f"$queue/{queue}", b"all")
        assert consumer.next(b"all").group == name


def test_groups_are_independent(publisher, open_queue, broker, queue):
    """Row "independence": many groups per queue, many consumers per group."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumers = {group: open_queue() for group in ("a", "b", "c")}
    for group, consumer in consumers.items():
        consumer.consume(f"$queue/{queue}", group)
    for consumer in consumers.values():
        consumer.ack(*consumer.take(*NUMBERS)[:5])
    for group in consumers:
        assert broker.progress(queue, group) == (10, 5, 5)


def test_room_that_other_messages_leave_is_used(publisher, open_queue, new_name, queue):
    """Row "prefetch": the receive maximum is of all messages, and whoever leaves room leaves it for the queue too."""
    topic = new_name("ordinary")
    consumer = open_queue(properties={"receive_maximum": 1})
    consumer.raw.subscribe(topic, qos=1)
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.raw.publish(topic, b"ordinary", qos=1)
    ordinary = consumer.next(b"ordinary", puback=False)
    publisher.publish(f"$queue/{queue}", b"job")
    consumer.nothing()
    consumer.raw.ack(ordinary.packet)
    consumer.next(b"job")


def test_a_group_is_named_with_and_without_its_filter(publisher, consumer, broker, queue):
    """Row "identity": inner identity `group@filter`, deliveries carry the plain name, both accepted in settlements."""
    consumer.consume(f"$queue/{queue}/eu/#", "workers")
    publisher.publish(f"$queue/{queue}/eu/1", b"1", b"2")
    first, second = consumer.take(b"1", b"2")
    assert first.group == second.group == "workers"
    consumer.settle(first, group="workers")
    consumer.settle(second, group="workers@eu/#")
    assert broker.progress(queue, "workers@eu/#") == (2, 2, 0)


def test_one_group_name_with_two_filters_is_two_groups(publisher, open_queue, broker, queue):
    """Row "identity": each filter has a cursor and pending entries of its own."""
    eu, everything = open_queue(), open_queue()
    eu.consume(f"$queue/{queue}/eu/#", "workers")
    everything.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}/eu/1", b"1")
    eu.ack(eu.next(b"1"))
    everything.next(b"1")
    assert broker.progress(queue, "workers@eu/#") == (1, 1, 0)
    assert broker.progress(queue, "workers") == (1, 0, 1)


def test_a_plain_name_that_fits_two_groups_of_one_client(publisher, consumer, broker, queue):
    """Section 15, point 2: settles the one delivered first; `group@filter` names one exactly."""
    consumer.consume(f"$queue/{queue}/eu/#", "workers")
    publisher.publish(f"$queue/{queue}/eu/1", b"1")
    first = consumer.next(b"1")
    consumer.consume(f"$queue/{queue}", "workers")
    second = consumer.next(b"1")
    consumer.settle(first, group="workers")
    assert broker.progress(queue, "workers@eu/#") == (1, 1, 0)
    assert broker.progress(queue, "workers") == (1, 0, 1)
    consumer.settle(second, group="workers")
    assert broker.progress(queue, "workers") == (1, 1, 0)


def test_a_group_may_have_an_at_sign(publisher, open_queue, new_name, queue):
    """Row "identity": a client id with `@` is a group like any other, not one with a filter."""
    consumer = open_queue(client_id=new_name("user@host/"))
    consumer.consume(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    assert delivery.group == consumer.client_id
    consumer.ack(delivery)


@pytest.mark.parametrize("kind", both_kinds())
def test_a_new_group_starts_at_the_beginning(publisher, open_queue, queue, kind):
    """Row "start of a new group": the first offset still stored, also when others are far ahead."""
    ahead = open_queue()
    ahead.consume(f"$queue/{queue}", "ahead")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    ahead.take(*NUMBERS)
    late = open_queue()
    late.consume(f"$queue/{queue}", "late")
    late.take(*NUMBERS)


def test_unsubscribe_leaves_the_group(publisher, open_queue, queue):
    """Row "leaving": deliveries stop, pending entries are eligible at once (visibility timeout: 30 s)."""
    leaving, staying = open_queue(), open_queue()
    leaving.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    leaving.take(b"1", b"2")
    staying.consume(f"$queue/{queue}", "workers")
    assert leaving.raw.unsubscribe(f"$queue/{queue}") == [0]
    again = staying.take(b"1", b"2")
    assert [delivery.count for delivery in again] == [2, 2]
    publisher.publish(f"$queue/{queue}", b"3")
    staying.ack(*again, staying.next(b"3"))
    leaving.nothing(0.05)
    assert leaving.raw.unsubscribe(f"$queue/{queue}") == [0x11]


def test_unsubscribe_of_the_sole_consumer_keeps_everything(publisher, open_queue, queue):
    """Row "leaving": what it had waits for the next consumer."""
    leaving, coming = open_queue(), open_queue()
    leaving.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    leaving.take(b"1")
    leaving.raw.unsubscribe(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"2")
    leaving.nothing(0.05)
    coming.consume(f"$queue/{queue}", "workers")
    deliveries = coming.take_any(2)
    assert {(delivery.payload, delivery.count) for delivery in deliveries} == {(b"1", 2), (b"2", 1)}


@pytest.mark.parametrize("how", ["close", "disconnect"])
def test_the_entries_of_a_client_without_session_return_at_once(publisher, open_queue, queue, how):
    """Row "liveness": connection end, no session: released at once (visibility timeout: 30 s)."""
    leaving, staying = open_queue(), open_queue()
    leaving.consume(f"$queue/{queue}", "workers", prefetch=2)
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    leaving.take(b"1", b"2")
    staying.consume(f"$queue/{queue}", "workers")
    getattr(leaving.raw, how)()
    again = staying.take(b"1", b"2")
    assert [delivery.count for delivery in again] == [2, 2]
    staying.ack(*again)


@pytest.mark.queue(visibility_timeout="1s")
def test_the_entries_of_a_persistent_session_wait_for_the_visibility_timeout(publisher, open_queue, new_name, queue):
    """Row "liveness": of a persistent one after the visibility timeout."""
    leaving, staying = open_queue(client_id=new_name("persistent"), **persistent(V5)), open_queue()
    leaving.consume(f"$queue/{queue}", "workers", prefetch=1)
    before = time.monotonic()
    publisher.publish(f"$queue/{queue}", b"1")
    leaving.next(b"1")
    leaving.raw.disconnect()
    staying.consume(f"$queue/{queue}", "workers")
    again = staying.next(b"1")
    assert again.at - before > 0.9, "before the visibility timeout"
    assert again.count == 2
    staying.ack(again)


def test_a_persistent_session_keeps_its_membership(publisher, open_queue, new_name, queue):
    """Section 14: persistent session keeps membership; offline consumer loses nothing."""
    name = new_name("persistent")
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"before")
    consumer.ack(consumer.next(b"before"))
    consumer.raw.disconnect()
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer = open_queue(client_id=name, **persistent(V5))
    assert consumer.raw.connack.session_present
    deliveries = consumer.take(*NUMBERS)
    assert {delivery.group for delivery in deliveries} == {"workers"}
    consumer.ack(*deliveries)
    consumer.nothing(0.05)


def test_a_returning_consumer_settles_what_it_had(publisher, open_queue, broker, new_name, queue):
    """Rows "liveness" and "settle from a stranger": the session holds the entry, not the connection."""
    name = new_name("persistent")
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    consumer.close()
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.ack(delivery)
    assert broker.progress(queue, "workers") == (1, 1, 0)
    consumer.nothing(0.05)


def test_a_persistent_session_over_a_kill(publisher, open_queue, broker, new_name, queue):
    """Row "liveness", the broker ending instead of the connection: the session has its entries until the visibility
    timeout (30 s), so that nobody else gets them and it settles them when it is back."""
    name = new_name("persistent")
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.consume(f"$queue/{queue}", "workers", prefetch=2)
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    first, second = consumer.take(b"1", b"2")
    broker.kill()
    broker.restart()
    other = open_queue()
    other.consume(f"$queue/{queue}", "workers")
    other.nothing(0.2)
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.ack(first, second)
    assert broker.progress(queue, "workers") == (2, 2, 0)


@pytest.mark.parametrize("verb", VERBS)
def test_a_stranger_may_not_settle(publisher, open_queue, broker, queue, verb):
    """Row "settle from a stranger": all three verbs, refused with 0x80; of the same group, of none, of another."""
    holder, fellow, other = open_queue(), open_queue(), open_queue()
    holder.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = holder.next(b"1")
    fellow.consume(f"$queue/{queue}", "workers")
    other.consume(f"$queue/{queue}", "others")
    other.next(b"1")
    for stranger in (fellow, other, publisher):
        stranger.settle(delivery, verb, refused=True)
    assert broker.progress(queue, "workers") == (1, 0, 1)
    holder.settle(delivery, "ack")


def test_who_lost_an_entry_may_not_settle_it(publisher, open_queue, queue):
    """Row "settle from a stranger": an entry that went on to another is that one's."""
    slow, quick = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"1")
    lost = slow.next(b"1")
    slow.raw.unsubscribe(f"$queue/{queue}")
    quick.consume(f"$queue/{queue}", "workers")
    taken = quick.next(b"1")
    slow.settle(lost, refused=True)
    quick.ack(taken)


def test_a_clean_start_ends_the_membership(publisher, open_queue, broker, new_name, queue):
    """Row "liveness": a session that ends takes its memberships along; its entries return at once."""
    name = new_name("persistent")
    consumer = open_queue(client_id=name, **persistent(V5))
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.next(b"1")
    consumer.close()
    clean = open_queue(client_id=name)
    clean.nothing(0.05)
    until(lambda: not broker.group(queue, "workers")["consumers"], 60, "no consumer left")
    other = open_queue()
    other.consume(f"$queue/{queue}", "workers")
    assert other.next(b"1").count == 2


def test_a_session_taken_over_keeps_its_membership(publisher, open_queue, new_name, queue):
    """Row "liveness": a second connection of the same client takes the session with its memberships."""
    name = new_name("persistent")
    first = open_queue(client_id=name, **persistent(V5))
    first.consume(f"$queue/{queue}", "workers")
    second = open_queue(client_id=name, **persistent(V5))
    publisher.publish(f"$queue/{queue}", b"1")
    second.ack(second.next(b"1"))


@pytest.mark.any_log
def test_a_position_in_a_classic_queue_is_refused(consumer, queue):
    """It would be ignored: the group goes on where it is."""
    assert consumer.try_consume(f"$queue/{queue}", "workers", x_stream_offset="last") == [0x8F]


@pytest.mark.any_log
def test_leading_zeros_are_not_part_of_an_offset(publisher, consumer, queue):
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    pairs = [("message-id", f"{queue}:00"), ("group-id", "workers")]
    consumer.command(f"$queue/{queue}/$ack", pairs, refused=True)
    consumer.ack(delivery)
