"""What is removed from a queue, and what never is? Reference, section 9 (policy, truncation offset).

A log removes whole segments, so more may stay than a policy asks for, but never less. What the tests compare is the
first offset that a new group of a stream gets, and whether everything a group has not settled is there.
"""

import time

import pytest

from tests.support.worlds.application import until

# Enough of them for several segments of the smallest size that a log has (1 MiB with Kafka).
SIZE = 50_000
COUNT = 60


def fill(publisher, queue, count=COUNT, size=SIZE):
    payloads = [(b"%d " % number).ljust(size, b".") for number in range(count)]
    for payload in payloads:
        publisher.raw.send_publish(f"$queue/{queue}", payload, qos=0)
    publisher.publish(f"$queue/{queue}", b"last")
    return [*payloads, b"last"]


def first_offset(open_queue, queue, group):
    reader = open_queue()
    reader.consume(f"$queue/{queue}", group, x_stream_offset="first")
    return reader.next().offset


@pytest.mark.queue(type="stream", retention={"max_length_messages": 10})
def test_a_stream_by_messages(publisher, open_queue, broker, queue):
    """Row "policy", section 14 (retention by count): the policy alone decides for a stream."""
    fill(publisher, queue)
    until(lambda: broker.counter(queue, "head") > 0, 60, "something removed")
    first = first_offset(open_queue, queue, "new")
    assert 0 < first <= COUNT + 1 - 10
    assert first == broker.counter(queue, "head")


@pytest.mark.queue(type="stream", retention={"max_length_bytes": 10 * SIZE})
def test_a_stream_by_bytes(publisher, open_queue, broker, queue):
    """Row "policy": max_length_bytes."""
    fill(publisher, queue)
    until(lambda: broker.counter(queue, "head") > 0, 60, "something removed")
    assert 0 < first_offset(open_queue, queue, "new") <= COUNT + 1 - 9


@pytest.mark.queue(type="stream", retention={"max_age": "8s"})  # what is young has to be read within that
def test_a_stream_by_age(publisher, open_queue, broker, queue):
    """Row "policy": max_age; what is younger stays."""
    fill(publisher, queue)
    until(lambda: broker.counter(queue, "head") > 0, 60, "something removed")
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "new")
    publisher.publish(f"$queue/{queue}", b"young")
    delivery = reader.next()
    assert delivery.offset > 0
    while delivery.offset != COUNT + 1:
        last, delivery = delivery, reader.next()
        assert delivery.offset == last.offset + 1
    assert delivery.payload == b"young"


@pytest.mark.queue(type="stream")
def test_a_stream_without_a_policy_keeps_everything(publisher, open_queue, broker, queue):
    """Row "truncation offset": no policy = nothing goes, though a group has read all of it."""
    payloads = fill(publisher, queue)
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "ahead")
    reader.take_and_ack(*payloads)
    time.sleep(0.5)  # more than two looks of retention
    assert broker.counter(queue, "head") == 0
    assert first_offset(open_queue, queue, "new") == 0


@pytest.mark.queue(retention={"max_length_messages": 5, "max_length_bytes": 1000, "max_age": "100ms"})
def test_a_classic_queue_that_nobody_has_read(publisher, open_queue, broker, queue):
    """Row "truncation offset": no group = nothing may go, whatever the policy says."""
    payloads = fill(publisher, queue)
    time.sleep(0.5)
    assert broker.counter(queue, "head") == 0
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take(*payloads)


@pytest.mark.queue(retention={"max_length_messages": 5, "max_age": "100ms"})
def test_a_classic_queue_keeps_what_is_not_settled(publisher, open_queue, broker, queue):
    """Row "truncation offset": classic, lowest of committed and policy: unread and pending data stay."""
    payloads = fill(publisher, queue)
    quick, slow = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "slow", prefetch=3)
    slow.take(*payloads[:3])
    quick.consume(f"$queue/{queue}", "quick")
    quick.take_and_ack(*payloads)
    time.sleep(0.5)
    assert broker.counter(queue, "head") == 0
    slow.close()
    again = open_queue()
    again.consume(f"$queue/{queue}", "slow")
    # given back and new messages may come in any order: those given back are read again from the log
    taken = sorted(again.next().payload for _ in payloads)
    assert taken == sorted(payloads)


@pytest.mark.queue(retention={"max_length_messages": 5, "max_age": "100ms"})
def test_a_classic_queue_is_truncated_behind_every_group(publisher, open_queue, broker, queue):
    """Row "truncation offset": what every group has settled goes."""
    payloads = fill(publisher, queue)
    consumers = {group: open_queue() for group in ("one", "two")}
    for group, consumer in consumers.items():
        consumer.consume(f"$queue/{queue}", group)
    for consumer in consumers.values():
        consumer.take_and_ack(*payloads)
    until(lambda: broker.counter(queue, "head") > 0, 60, "something removed")
    assert broker.counter(queue, "depth") == 0
    for group in ("one", "two"):
        assert broker.progress(queue, group) == (COUNT + 1, COUNT + 1, 0)


@pytest.mark.queue(type="stream", retention={"max_length_messages": 10})
def test_a_reader_that_fell_behind_goes_on_at_the_first_stored(publisher, open_queue, broker, queue):
    """Rows "policy" and "start of a new group": a committed offset that is gone is no hole in which a reader hangs."""
    publisher.publish(f"$queue/{queue}", b"first")
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    reader.next(b"first")
    reader.close()
    fill(publisher, queue)
    until(lambda: broker.counter(queue, "head") > 0, 60, "something removed")
    again = open_queue()
    again.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    assert again.next().offset == broker.counter(queue, "head")


@pytest.mark.queue(type="stream", retention={"max_length_messages": 10})
def test_what_nobody_has_read_is_counted(publisher, open_queue, broker, queue):
    """The issue: nothing unread goes except by a policy, and that is counted."""
    reader = open_queue()
    reader.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    reader.take(b"0", b"1")
    reader.commit(queue, "readers", 1)
    reader.close()
    fill(publisher, queue)
    until(lambda: broker.counter(queue, "head") > 2, 60, "something removed")
    found = broker.queue(queue)
    assert found["dropped"] == found["head"] - 2
    broker.api(f"queues/{queue}/purge", "POST", {})
    assert broker.counter(queue, "dropped") == found["dropped"]  # that was no policy
