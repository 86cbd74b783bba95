"""When does a message come again, and to whom? Reference, section 6 (pending list, redelivery, back-off).

Times are compared with a lower bound that a correct broker never falls below, and with a generous upper one: the
machine may be busy.
"""

import time

import pytest

from tests.support.clients.raw_client import receive_from

LATE = 20.0  # seconds that a busy machine may add
NUMBERS = [b"%d" % number for number in range(6)]


@pytest.mark.queue(visibility_timeout="400ms", retry={"max_retries": 100})
def test_a_hanging_consumer_loses_its_entries_to_another(publisher, open_queue, queue):
    """Row "stealing": by other consumers after the visibility timeout, not before."""
    hanging, other = open_queue(), open_queue()
    hanging.consume(f"$queue/{queue}", "workers", prefetch=1)
    before = time.monotonic()
    publisher.publish(f"$queue/{queue}", b"1")
    hanging.next(b"1")
    other.consume(f"$queue/{queue}", "workers")
    stolen = other.next(b"1")
    assert stolen.count >= 2
    assert stolen.at - before > 0.38
    other.ack(stolen)


@pytest.mark.queue(visibility_timeout="400ms", retry={"initial_backoff": "60s", "max_backoff": "60s"})
def test_a_sole_consumer_gets_its_own_entry_again(publisher, consumer, queue):
    """Row "stealing": own entries included, and no back-off on top of a timeout."""
    consumer.consume(f"$queue/{queue}", "workers")
    before = time.monotonic()
    publisher.publish(f"$queue/{queue}", b"1")
    first = consumer.next(b"1")
    second = consumer.next(b"1")
    assert second.count == 2
    assert second.at - before > 0.38
    assert second.at - first.at < 0.4 + LATE
    consumer.ack(second)


@pytest.mark.queue(visibility_timeout="500ms", retry={"max_retries": 50})
def test_every_delivery_restarts_the_visibility_clock(publisher, open_queue, queue):
    """Row "stealing": between two live consumers an entry does not ping-pong."""
    consumers = [open_queue(), open_queue()]
    for consumer in consumers:
        consumer.consume(f"$queue/{queue}", "workers")
    began = time.monotonic()
    publisher.publish(f"$queue/{queue}", b"1")
    got, end = [], None
    while end is None or time.monotonic() < end:
        if len(got) >= 2 and end is None:
            end = time.monotonic() + 0.9
        for consumer in consumers:
            for packet in consumer.raw.receive_all(0.05):
                consumer.raw.ack(packet)
                got.append(packet)
    counts = [int(dict(packet.properties["user_property"]).get("x-delivery-count", "1")) for packet in got]
    assert sorted(counts) == list(range(1, len(counts) + 1))
    assert 2 <= len(counts) <= 1 + (time.monotonic() - began) / 0.5


@pytest.mark.queue(retry={"initial_backoff": "200ms", "max_backoff": "500ms", "multiplier": 2.0, "max_retries": 10})
def test_back_off_grows_to_its_maximum(publisher, consumer, queue):
    """Row "backoff": delay after the n-th nack = min(max, initial * multiplier ** (n - 1)), for a sole consumer too."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    for count, delay in enumerate((0.2, 0.4, 0.5, 0.5), 2):
        nacked = consumer.nack(delivery)
        delivery = consumer.next(b"1")
        assert delivery.count == count
        assert delay - 0.02 < delivery.at - nacked < delay + LATE, f"delivery {count}"
    consumer.ack(delivery)


@pytest.mark.queue(retry={"initial_backoff": "300ms"})
def test_a_nacked_message_may_go_to_any_consumer(publisher, open_queue, queue):
    """Section 5, row "nack, classic": eligible after the back-off for any consumer of the group, the same one too."""
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    nacked = one.nack(one.next(b"1"))
    two.consume(f"$queue/{queue}", "workers")
    one.raw.unsubscribe(f"$queue/{queue}")
    delivery = two.next(b"1")
    assert delivery.count == 2
    assert delivery.at - nacked > 0.28, "before the back-off ended"
    two.ack(delivery)


@pytest.mark.queue(retry={"initial_backoff": "0s"})
def test_without_a_back_off_it_comes_at_once(publisher, consumer, queue):
    """Row "backoff": initial_backoff = 0."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    for count in range(1, 6):
        delivery = consumer.next(b"1", timeout=LATE)
        assert delivery.count == count
        consumer.nack(delivery)
    consumer.ack(consumer.next(b"1"))


@pytest.mark.queue(retry={"initial_backoff": "400ms"})
def test_a_nacked_message_does_not_hold_up_the_others(publisher, consumer, queue):
    """Section 5, row "nack, classic": only that message waits."""
    consumer.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.nack(consumer.next(NUMBERS[0]))
    for payload in NUMBERS[1:]:
        consumer.ack(consumer.next(payload))
    consumer.ack(consumer.next(NUMBERS[0]))


@pytest.mark.queue(retry={"initial_backoff": "300ms"})
def test_a_back_off_goes_on_when_the_consumer_leaves(publisher, open_queue, queue):
    """Rows "backoff" and "leaving": only entries that a consumer holds are released; one that waits goes on waiting."""
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    nacked = one.nack(one.next(b"1"))
    one.close()
    two.consume(f"$queue/{queue}", "workers")
    delivery = two.next(b"1")
    assert delivery.at - nacked > 0.28
    two.ack(delivery)


@pytest.mark.queue(max_pending=3)
def test_pending_entries_are_bounded(publisher, open_queue, broker, queue):
    """Constant "pending entries per group": configurable, then no claims; section 14, cap on pending entries."""
    one, two = open_queue(), open_queue()
    for consumer in (one, two):
        consumer.consume(f"$queue/{queue}", "workers", prefetch=100)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    broker.await_progress(queue, "workers", pending=3)
    received = receive_from([one.raw, two.raw], 3, seconds=0.2)
    got = [(consumer, packet) for consumer, mine in zip((one, two), received, strict=True) for packet in mine]
    assert sorted(packet.payload for _, packet in got) == NUMBERS[:3]
    assert broker.progress(queue, "workers") == (3, 0, 3)
    consumer, packet = got[0]
    pairs = [("message-id", dict(packet.properties["user_property"])["message-id"]), ("group-id", "workers")]
    consumer.command(f"$queue/{queue}/$ack", pairs)
    broker.await_progress(queue, "workers", cursor=4, pending=3)


@pytest.mark.queue(limits={"message_ttl": "1500ms"}, retry={"initial_backoff": "1600ms"})
def test_a_message_that_expires_while_pending(publisher, consumer, broker, queue):
    """Row "expired while pending": removed instead of redelivered, and not dead-lettered."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.nack(consumer.next(b"1"))
    broker.await_progress(queue, "workers", pending=0, committed=1)
    consumer.nothing(0.05)
    assert broker.queue(f"$dlq/{queue}") is None or broker.counter(f"$dlq/{queue}", "tail") == 0


def test_a_full_consumer_is_skipped(publisher, open_queue, queue):
    """Row "slow consumer": a full consumer is skipped, its fellow gets everything else."""
    slow, quick = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"slow")
    slow.next(b"slow")
    quick.consume(f"$queue/{queue}", "workers", prefetch=2)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    quick.take_and_ack(*NUMBERS)
    slow.nothing(0.05)


@pytest.mark.queue("other")
def test_a_full_consumer_delays_no_other_queue(publisher, open_queue, queues):
    """Row "slow consumer": per-queue scheduling; hundreds of unacknowledged messages at one stop no other queue."""
    slow, quick = open_queue(), open_queue()
    slow.consume(f"$queue/{queues['']}", "workers")
    quick.consume(f"$queue/{queues['other']}", "workers")
    many = [b"%d" % number for number in range(600)]
    for payload in many:
        publisher.raw.send_publish(f"$queue/{queues['']}", payload, qos=0)
    publisher.publish(f"$queue/{queues['']}", b"last")
    # `slow` reads nothing at all.
    for payload in NUMBERS:
        publisher.publish(f"$queue/{queues['other']}", payload)
        quick.ack(quick.next(payload, timeout=LATE))


@pytest.mark.queue("other")
def test_one_client_of_two_queues_full_in_one(publisher, open_queue, queues):
    """Row "slow consumer": the bound is per queue and group; the same client goes on in another queue."""
    consumer = open_queue()
    consumer.consume(f"$queue/{queues['']}", "workers", prefetch=2)
    consumer.consume(f"$queue/{queues['other']}", "workers", prefetch=2)
    publisher.publish(f"$queue/{queues['']}", *NUMBERS)
    consumer.take(*NUMBERS[:2])
    publisher.publish(f"$queue/{queues['other']}", *NUMBERS)
    consumer.take_and_ack(*NUMBERS)
    consumer.nothing(0.05)


@pytest.mark.queue(visibility_timeout="400ms", retry={"initial_backoff": "200ms", "multiplier": 150.0})
def test_a_timeout_is_no_nack(publisher, consumer, queue):
    """Rows "backoff" and "stealing": the first nack waits initial_backoff, however many timeouts came before."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.next(b"1")
    second = consumer.next(b"1")
    nacked = consumer.nack(second)
    third = consumer.next(b"1")
    assert third.count == 3
    assert 0.18 < third.at - nacked < 0.2 + LATE
    consumer.ack(third)


@pytest.mark.queue(visibility_timeout="300ms", retry={"max_retries": 100})
def test_many_entries_time_out_together(publisher, open_queue, broker, queue):
    """Constant "sweep": event driven; all of them come again, once each, in order."""
    hanging, other = open_queue(), open_queue()
    hanging.consume(f"$queue/{queue}", "workers")
    payloads = [b"%03d" % number for number in range(150)]
    for payload in payloads:
        publisher.raw.send_publish(f"$queue/{queue}", payload, qos=0)
    hanging.take(*payloads)
    other.consume(f"$queue/{queue}", "workers")
    hanging.close()
    again = other.take(*payloads)
    assert {delivery.count for delivery in again} <= {2, 3, 4, 5, 6, 7}
    other.raw.unsubscribe(f"$queue/{queue}")
    assert broker.progress(queue, "workers") == (150, 0, 150)


@pytest.mark.queue(max_pending=1)
def test_the_bound_of_pending_entries_is_changed(publisher, open_queue, broker, queue):
    """Section 1, row "configuration edited later": of the groups that are there, with what they have."""
    consumer = open_queue(receive_maximum=10)
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1", b"2", b"3")
    first = consumer.next(b"1")
    consumer.nothing(0.05)
    broker.command("queue", "update", queue, "-o", "max_pending=2")
    second = consumer.next(b"2")
    consumer.nothing(0.05)
    consumer.ack(first, second)
    consumer.take_and_ack(b"3")
