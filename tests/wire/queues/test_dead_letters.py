"""Where do rejected messages and those delivered too often go? Reference, section 7 (dead-letter queue)."""

import time
from datetime import datetime

import pytest

from tests.support.clients.packets import V5
from tests.support.worlds.application import persistent, until

AT_ONCE = {"initial_backoff": "0s", "max_retries": 2}


def moved_at(text):
    """Seconds since the epoch; Unix milliseconds or a date, the reference leaves it open."""
    return int(text) / 1000 if text.isdigit() else datetime.fromisoformat(text).timestamp()


def read_dead(open_queue, queue, *payloads, key=""):
    """What a consumer of the dead letters gets."""
    reader = open_queue()
    reader.consume(f"$queue/$dlq/{queue}{key}", "undertakers")
    deliveries = reader.take_and_ack(*payloads)
    reader.nothing(0.05)
    return deliveries


def test_a_rejected_message_is_a_dead_letter(publisher, consumer, open_queue, broker, queue):
    """Rows "status", "address", "content": readable at `$queue/$dlq/<queue>[/<key>]` with reason and history."""
    before = time.time() - 1
    own = {"content_type": "text/plain", "user_property": [("mine", "1"), ("mine", "2")]}
    publisher.publish(f"$queue/{queue}/a/b", b"bad", properties=own)
    consumer.consume(f"$queue/{queue}", "workers")
    delivery = consumer.next(b"bad")
    consumer.reject(delivery, "no such customer")
    broker.await_progress(queue, "workers", cursor=1, committed=1, pending=0)
    [dead] = read_dead(open_queue, queue, b"bad")
    assert dead.topic == f"$queue/$dlq/{queue}/a/b"
    assert dead.packet.properties["content_type"] == "text/plain"
    assert [value for name, value in dead.pairs if name == "mine"] == ["1", "2"]
    properties = {name: value for name, value in dead.pairs if name != "mine"}
    assert before <= moved_at(properties.pop("_dlq_moved_at")) <= time.time() + 1
    properties.pop("x-source-topic")
    assert properties == {
        "_dlq_original_queue": queue,
        "_dlq_original_topic": f"$queue/{queue}/a/b",
        "_dlq_group": "workers",
        "_dlq_delivery_count": "1",
        "_dlq_original_id": delivery.message_id,
        "_dlq_reason": "rejected",
        "reason": "no such customer",
        "message-id": f"$dlq/{queue}:0",
        "queue": f"$dlq/{queue}",
        "offset": "0",
        "group-id": "undertakers",
    }


def test_a_rejection_without_a_reason(publisher, consumer, open_queue, queue):
    """Row "content": the client's reason is there only if it gave one."""
    publisher.publish(f"$queue/{queue}", b"bad")
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.reject(consumer.next(b"bad"))
    [dead] = read_dead(open_queue, queue, b"bad")
    assert dead.topic == f"$queue/$dlq/{queue}"
    assert dead.properties["_dlq_reason"] == "rejected"
    assert "reason" not in dead.properties


@pytest.mark.queue(retry=AT_ONCE)
def test_nacks_are_exhausted(publisher, consumer, open_queue, broker, queue):
    """Rows "max deliveries" and "status": first delivery + max_retries, then the DLQ and not sooner."""
    publisher.publish(f"$queue/{queue}", b"poison")
    consumer.consume(f"$queue/{queue}", "workers")
    for count in (1, 2, 3):
        delivery = consumer.next(b"poison")
        assert delivery.count == count
        assert broker.queue(f"$dlq/{queue}") is None or broker.counter(f"$dlq/{queue}", "tail") == 0
        consumer.nack(delivery)
    [dead] = read_dead(open_queue, queue, b"poison")
    assert dead.properties["_dlq_reason"] == "max-deliveries"
    assert dead.properties["_dlq_delivery_count"] == "3"
    consumer.nothing(0.05)
    broker.await_progress(queue, "workers", cursor=1, committed=1, pending=0)


@pytest.mark.queue(visibility_timeout="300ms", retry={"max_retries": 1})
def test_timeouts_are_exhausted(publisher, consumer, open_queue, queue):
    """Row "max deliveries": a delivery that nobody settles counts like one that was nacked."""
    publisher.publish(f"$queue/{queue}", b"poison")
    consumer.consume(f"$queue/{queue}", "workers")
    first, second = consumer.take(b"poison", b"poison")
    assert (first.count, second.count) == (1, 2)
    [dead] = read_dead(open_queue, queue, b"poison")
    assert dead.properties["_dlq_reason"] == "max-deliveries"
    assert dead.properties["_dlq_delivery_count"] == "2"
    consumer.nothing(0.05)


@pytest.mark.queue(retry={"max_retries": 0})
def test_no_retries_at_all(publisher, consumer, open_queue, queue):
    """Row "max deliveries": max_retries = 0 is the first delivery alone."""
    publisher.publish(f"$queue/{queue}", b"poison")
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.nack(consumer.next(b"poison"))
    [dead] = read_dead(open_queue, queue, b"poison")
    assert dead.properties["_dlq_delivery_count"] == "1"


def test_dead_letters_are_filtered_by_key(publisher, consumer, open_queue, queue):
    """Row "address": the resolver takes two levels after `$dlq`, what follows is the filter."""
    publisher.publish(f"$queue/{queue}/eu/1", b"eu")
    publisher.publish(f"$queue/{queue}/us/1", b"us")
    consumer.consume(f"$queue/{queue}", "workers")
    for delivery in consumer.take(b"eu", b"us"):
        consumer.reject(delivery)
    read_dead(open_queue, queue, b"us", key="/us/#")


def test_dead_letters_are_a_queue_like_any_other(publisher, consumer, open_queue, broker, queue):
    """Row "address": groups, ack and nack work there; consumers may be there before the first letter."""
    reader = open_queue()
    reader.consume(f"$queue/$dlq/{queue}", "undertakers")
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    consumer.consume(f"$queue/{queue}", "workers")
    for delivery in consumer.take(b"1", b"2"):
        consumer.reject(delivery)
    first, second = reader.take(b"1", b"2")
    reader.settle(first, "ack")
    reader.settle(second, "nack")
    assert broker.progress(f"$dlq/{queue}", "undertakers") == (2, 1, 1)


@pytest.mark.queue("graves")
@pytest.mark.queue("own", dlq={"topic": "$queue/{queue}-graves/from/own"})
def test_another_address_for_dead_letters(publisher, consumer, open_queue, broker, queues):
    """Row "address": `dlq.topic`, an optional override; section 14, custom topic."""
    own, graves = queues["own"], queues["graves"]
    publisher.publish(f"$queue/{own}/k", b"bad")
    consumer.consume(f"$queue/{own}", "workers")
    consumer.reject(consumer.next(b"bad"))
    reader = open_queue()
    reader.consume(f"$queue/{graves}", "undertakers")
    dead = reader.next(b"bad")
    assert dead.topic.startswith(f"$queue/{graves}/from/own")
    assert dead.properties["_dlq_original_queue"] == own
    assert broker.queue(f"$dlq/{own}") is None or broker.counter(f"$dlq/{own}", "tail") == 0


@pytest.mark.queue(dlq={"enabled": False}, retry=AT_ONCE)
def test_disabled_is_discarded_and_counted(publisher, consumer, broker, queue):
    """Row "switch": disabled = discarded, counted."""
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    consumer.consume(f"$queue/{queue}", "workers", prefetch=1)
    consumer.reject(consumer.next(b"1"))
    for _ in range(3):
        consumer.nack(consumer.next(b"2"))
    broker.await_progress(queue, "workers", committed=2, pending=0)
    assert broker.queue(f"$dlq/{queue}") is None or broker.counter(f"$dlq/{queue}", "tail") == 0
    assert broker.counter(queue, "dead") == 2


@pytest.mark.queue(limits={"message_ttl": "300ms"})
def test_expired_messages_are_not_dead_letters(publisher, consumer, broker, queue):
    """Row "expired messages": not moved."""
    publisher.publish(f"$queue/{queue}", b"1")
    time.sleep(0.4)
    consumer.consume(f"$queue/{queue}", "workers")
    until(lambda: broker.progress(queue, "workers")[:2] == (1, 1), 60, "the expired one is passed")
    consumer.nothing(0.05)
    assert broker.queue(f"$dlq/{queue}") is None or broker.counter(f"$dlq/{queue}", "tail") == 0


def test_each_group_has_its_dead_letters(publisher, open_queue, queue):
    """Row "several groups": per group, each with its `_dlq_group`."""
    publisher.publish(f"$queue/{queue}", b"bad")
    consumers = {group: open_queue() for group in ("one", "two", "three")}
    for group, consumer in consumers.items():
        consumer.consume(f"$queue/{queue}", group)
    for group, consumer in consumers.items():
        delivery = consumer.next(b"bad")
        if group == "two":
            consumer.ack(delivery)
        else:
            consumer.reject(delivery)
    dead = read_dead(open_queue, queue, b"bad", b"bad")
    assert {letter.properties["_dlq_group"] for letter in dead} == {"one", "three"}


def test_the_history_cannot_be_forged(publisher, consumer, open_queue, queue):
    """Section 4, "forged values", and "content": a publisher's `_dlq_…` do not survive."""
    forged = [(f"_dlq_{name}", "forged") for name in ("original_queue", "group", "reason", "original_id", "moved_at")]
    publisher.publish(f"$queue/{queue}", b"bad", properties={"user_property": forged})
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.reject(consumer.next(b"bad"))
    [dead] = read_dead(open_queue, queue, b"bad")
    assert "forged" not in dead.properties.values()
    assert dead.properties["_dlq_group"] == "workers"


def test_a_dead_letter_survives_a_kill(publisher, consumer, open_queue, broker, queue):
    """Row "status": appended first, then removed: an answered reject is in the DLQ whatever happens."""
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    consumer.consume(f"$queue/{queue}", "workers")
    one, two = consumer.take(b"1", b"2")
    consumer.reject(one, "bad")
    broker.kill()
    broker.restart()
    reader = open_queue()
    reader.consume(f"$queue/$dlq/{queue}", "undertakers")
    dead = reader.next(b"1")
    assert dead.properties["reason"] == "bad"
    again = open_queue()
    again.consume(f"$queue/{queue}", "workers")
    assert again.next(b"2").count == 2
    assert two.count == 1


@pytest.mark.queue(retry=AT_ONCE)
def test_replay_brings_dead_letters_back(publisher, consumer, broker, queue):
    """The issue: replayable; a replayed message begins anew in its queue, under its key."""
    publisher.publish(f"$queue/{queue}/a", b"1", properties={"user_property": [("mine", "1")]})
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.reject(consumer.next(b"1"))
    until(lambda: broker.queue(f"$dlq/{queue}") and broker.counter(f"$dlq/{queue}", "depth") == 1, 60, "a dead letter")
    broker.command("queue", "replay", f"$dlq/{queue}", options=["--yes"])
    again = consumer.next(b"1")
    assert again.topic == f"$queue/{queue}/a"
    assert again.count == 1
    assert again.properties["mine"] == "1"
    consumer.ack(again)
    consumer.nothing(0.05)


@pytest.mark.queue(visibility_timeout="2s", limits={"message_ttl": "1s"}, retry={"max_retries": 0})
def test_a_message_that_expired_with_its_last_consumer(publisher, consumer, broker, queue):
    """Row "expired messages": not moved; its delivery was the last one, so nothing else would be done with it."""
    publisher.publish(f"$queue/{queue}", b"late")
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.next(b"late")
    broker.await_progress(queue, "workers", cursor=1, committed=1, pending=0)
    assert broker.queue(f"$dlq/{queue}") is None
    found = broker.queue(queue)
    assert (found["expired"], found["dead"]) == (1, 0)


def test_dead_letters_are_awaited_over_a_kill(publisher, open_queue, broker, new_name, queue):
    """Who waits for dead letters before there are any is one more consumer: QoS 0 is refused, a session keeps it."""
    name, address = new_name("undertaker"), f"$queue/$dlq/{queue}"
    undertaker = open_queue(client_id=name, **persistent(V5))
    assert undertaker.try_consume(address, "undertakers", qos=0) == [0x83]
    undertaker.consume(address, "undertakers")
    broker.kill()
    broker.restart()
    undertaker = open_queue(client_id=name, **persistent(V5))
    worker = open_queue()
    worker.consume(f"$queue/{queue}", "workers")
    worker.publish(f"$queue/{queue}", b"bad")
    worker.reject(worker.next(b"bad"))
    undertaker.ack(undertaker.next(b"bad"))
