"""What an operator does to queues while clients use them, on both logs. Reference, section 12 (administration)."""

import time
from datetime import datetime

import pytest

from tests.support.worlds.application import until
from tests.support.worlds.queues import both_kinds


@pytest.mark.queue("target")
def test_messages_are_moved_from_under_their_consumers(publisher, consumer, broker, queue, queues):
    """What is moved is in the other queue, nobody can settle it here any more, and the rest goes on."""
    for key in ("eu/1", "us/1", "eu/2", "us/2"):
        publisher.publish(f"$queue/{queue}/{key}", key.encode())
    consumer.consume(f"$queue/{queue}", "workers", prefetch=3)
    first, second, third = consumer.take(b"eu/1", b"us/1", b"eu/2")
    consumer.ack(first)
    answer = broker.api(f"queues/{queue}/move", "POST", {"to": queues["target"], "filter": "eu/#"})
    assert answer["moved"] == 1  # eu/1 is done
    consumer.settle(third, refused=True)
    consumer.ack(second)
    consumer.take_and_ack(b"us/2")
    broker.await_progress(queue, "workers", cursor=4, committed=4, pending=0)
    consumer.consume(f"$queue/{queues['target']}", "workers")
    [moved] = consumer.take_and_ack(b"eu/2")
    assert moved.properties["x-source-topic"] == f"$queue/{queue}/eu/2"


def test_the_age_of_the_oldest_unsettled_message(publisher, consumer, broker, queue):
    """Of the first message that some group has yet to settle; without a group, of the first there is."""
    assert broker.queue(queue)["oldest_age"] is None
    before = time.time()
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    middle = time.time()
    publisher.publish(f"$queue/{queue}", b"3")

    def oldest():
        shown = broker.queue(queue)
        age = shown["oldest_age"]
        at = datetime.fromisoformat(shown["oldest_at"]).timestamp() if age is not None else None
        assert at is None or abs(time.time() - age - at) < 60
        return at

    until(lambda: oldest() is not None)  # Kafka may not answer in time
    assert before - 1 < oldest() < middle + 1
    consumer.consume(f"$queue/{queue}", "workers")
    first, second, third = consumer.take(b"1", b"2", b"3")
    consumer.ack(second, third)
    assert before - 1 < oldest() < middle + 1
    consumer.ack(first)
    assert oldest() is None


@pytest.mark.queue("target")
def test_what_was_never_claimed_moves_as_well(publisher, consumer, broker, queue, queues):
    """Messages no group has seen yet, out of the middle; they do not come any more."""
    publisher.publish(f"$queue/{queue}/a", b"1", b"2")
    publisher.publish(f"$queue/{queue}/b", b"3")
    publisher.publish(f"$queue/{queue}/a", b"4")
    assert broker.api(f"queues/{queue}/move", "POST", {"to": queues["target"], "filter": "b"})["moved"] == 1
    assert broker.counter(queue, "depth") == 3
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take_and_ack(b"1", b"2", b"4")
    consumer.nothing()
    broker.await_progress(queue, "workers", cursor=4, committed=4, pending=0)


def test_dead_letters_come_back(publisher, consumer, broker, queue):
    """A replayed message begins anew: as it was published, without a word of its death."""
    publisher.publish(f"$queue/{queue}/k", b"bad", properties={"user_property": [("own", "1")]})
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.reject(consumer.next(b"bad"), "for no reason")
    until(lambda: broker.queue(f"$dlq/{queue}") and broker.counter(f"$dlq/{queue}", "depth") == 1, 60, "a dead letter")
    assert broker.api(f"queues/$dlq/{queue}/replay", "POST", {})["moved"] == 1
    again = consumer.next(b"bad")
    assert (again.count, again.topic, again.offset) == (1, f"$queue/{queue}/k", 1)
    assert [pair for pair in again.pairs if pair[0] in ("own", "reason") or "dlq" in pair[0]] == [("own", "1")]
    consumer.ack(again)
    assert broker.counter(f"$dlq/{queue}", "depth") == 0


def test_purged_while_consumed(publisher, consumer, broker, queue):
    """Nothing of before comes again, what comes afterwards is delivered."""
    publisher.publish(f"$queue/{queue}", *(b"%d" % number for number in range(20)))
    consumer.consume(f"$queue/{queue}", "workers", prefetch=5)
    taken = consumer.take_any(5)
    assert broker.api(f"queues/{queue}/purge", "POST", {})["purged"] == 20
    consumer.settle(taken[0], refused=True)
    publisher.publish(f"$queue/{queue}", b"new")
    consumer.take_and_ack(b"new")
    broker.await_progress(queue, "workers", cursor=21, committed=21, pending=0)


def test_paused_and_resumed(publisher, consumer, broker, queue):
    """A paused queue takes messages and settlements and delivers nothing."""
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.consume(f"$queue/{queue}", "workers")
    first = consumer.next(b"1")
    assert broker.api(f"queues/{queue}/pause", "POST", {})["paused"] is True
    publisher.publish(f"$queue/{queue}", b"2")
    consumer.ack(first)
    consumer.nothing()
    broker.api(f"queues/{queue}/resume", "POST", {})
    consumer.take_and_ack(b"2")


@pytest.mark.queue(type="stream")
def test_a_group_is_sent_back_while_it_reads(publisher, consumer, broker, queue):
    """To an offset, to a time, to the end."""
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    time.sleep(0.02)
    then = int(time.time() * 1000)
    publisher.publish(f"$queue/{queue}", b"3")
    consumer.consume(f"$queue/{queue}", "readers")
    consumer.take(b"1", b"2", b"3")
    for to, expected in ((1, [b"2", b"3"]), (f"timestamp={then}", [b"3"]), ("first", [b"1", b"2", b"3"]), ("last", [])):
        broker.api(f"queues/{queue}/seek", "POST", {"group": "readers", "to": to})
        consumer.take(*expected)
        consumer.nothing(0.05)
    publisher.publish(f"$queue/{queue}", b"4")
    consumer.take(b"4")


def test_an_appended_message_is_delivered(consumer, broker, queue):
    """Durable when the answer comes, with the properties that were asked for."""
    consumer.consume(f"$queue/{queue}/eu/#", "workers")
    body = {"key": "eu/1", "payload": "by hand", "user_properties": [["a", "b"]], "content_type": "text/plain"}
    assert broker.api(f"queues/{queue}/messages", "POST", body)["message_id"] == f"{queue}:0"
    delivery = consumer.next(b"by hand")
    assert delivery.packet.properties["content_type"] == "text/plain"
    assert (delivery.topic, delivery.properties["a"]) == (f"$queue/{queue}/eu/1", "b")
    consumer.ack(delivery)


@pytest.mark.queue(retry={"initial_backoff": "60s", "max_backoff": "60s"})
def test_an_operator_settles_for_a_consumer(publisher, consumer, open_queue, broker, queue):
    """The verbs of the original's queue service: ack, nack, claim; and reject. The consumer is no longer asked."""
    payloads = [b"%d" % number for number in range(5)]
    consumer.consume(f"$queue/{queue}", "workers", prefetch=4)
    publisher.publish(f"$queue/{queue}", *payloads)
    held = consumer.take(*payloads[:4])

    def settle(verb, *offsets):
        return broker.api(f"queues/{queue}/{verb}", "POST", {"group": "workers", "offsets": list(offsets)})

    answer = settle("ack", 0, 77)
    assert (answer["settled"], answer["unknown"]) == (1, [77])
    consumer.settle(held[0], refused=True)
    last = consumer.next(payloads[4])  # there is room for it now
    assert settle("nack", 1)["settled"] == 1
    assert broker.pending(queue, "workers")[1]["state"] == "waiting"
    assert settle("reject", 2)["settled"] == 1
    other = open_queue()
    other.consume(f"$queue/$dlq/{queue}", "undertakers")
    assert other.next(payloads[2]).properties["_dlq_reason"] == "rejected"
    assert settle("claim", 1, 3)["settled"] == 2  # also what waits for its back-off
    again = consumer.take_any(2)
    assert {(delivery.payload, delivery.count) for delivery in again} == {(payloads[1], 2), (payloads[3], 2)}
    consumer.ack(last, again[0])
    assert settle("ack", again[1].offset)["settled"] == 1
    broker.kill()  # its answer was durable
    broker.restart()
    broker.await_progress(queue, "workers", cursor=5, committed=5, pending=0)


@pytest.mark.parametrize("kind", both_kinds())
def test_truncated_by_an_operator(*, publisher, consumer, open_queue, broker, queue, kind):
    """What is before the offset is nobody's any more; what is behind it is not touched."""
    payloads = [b"%d" % number for number in range(6)]
    consumer.consume(f"$queue/{queue}", "workers", prefetch=4, x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *payloads[:4])
    held = consumer.take(*payloads[:4])
    slow = open_queue()
    slow.consume(f"$queue/{queue}", "slow", x_auto_commit="false")
    slow.close()
    answer = broker.api(f"queues/{queue}/truncate", "POST", {"before": 3})
    assert (answer["removed"], answer["head"], answer["depth"]) == (3, 3, 1)
    if kind == "classic":
        consumer.settle(held[2], refused=True)
        consumer.ack(held[3])
    publisher.publish(f"$queue/{queue}", *payloads[4:])
    consumer.take(*payloads[4:])
    slow = open_queue()
    slow.consume(f"$queue/{queue}", "slow")
    slow.take(*payloads[3:])
    assert broker.counter(queue, "dropped") == 0


def test_a_classic_group_goes_back_only_when_all_is_settled(publisher, consumer, broker, queue):
    """Else it would be given what it has; the command says so instead of doing nothing."""
    publisher.consume(f"$queue/{queue}", "others", prefetch=1)  # for them the log keeps what this group settles
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.publish(f"$queue/{queue}", b"0", b"1")
    first, second = consumer.take(b"0", b"1")
    consumer.ack(first)
    refused = broker.command("queue", "seek", queue, "workers", "--to", "first", "--yes", fails=1)
    assert "unsettled deliveries up to offset 1" in refused
    consumer.ack(second)
    broker.command("queue", "seek", queue, "workers", "--to", "first", "--yes")
    consumer.take_and_ack(b"0", b"1")
