"""How full is a queue? `limits.max_depth` counts the messages that the slowest group has yet to settle, not the span of
offsets between the oldest of them and the end of the log."""

import pytest

from tests.support.worlds.application import until

QUOTA_EXCEEDED = 0x97
NUMBERS = [b"%d" % number for number in range(12)]


@pytest.mark.queue(limits={"max_depth": 3})
def test_one_held_message_does_not_close_the_queue(publisher, consumer, broker, queue):
    """A consumer keeps the first message and acknowledges all others."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"held")
    held = consumer.next(b"held")
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        consumer.take_and_ack(number)
    shown = broker.queue(queue)
    assert (shown["depth"], shown["pending"], shown["refused"]) == (1, 1, 0)
    publisher.publish(f"$queue/{queue}", b"a", b"b")
    publisher.publish(f"$queue/{queue}", b"c", reason=QUOTA_EXCEEDED)
    assert broker.counter(queue, "depth") == 3
    consumer.ack(held)
    publisher.publish(f"$queue/{queue}", b"c")
    consumer.take_and_ack(b"a", b"b", b"c")
    until(lambda: broker.counter(queue, "depth") == 0)


@pytest.mark.queue(limits={"max_depth": 3}, retry={"initial_backoff": "1h", "max_backoff": "1h"})
def test_a_message_in_back_off_does_not_close_the_queue(publisher, consumer, broker, queue):
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"poison")
    consumer.nack(consumer.next(b"poison"))
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        consumer.take_and_ack(number)
    assert broker.counter(queue, "depth") == 1


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 3})
def test_a_held_message_is_counted_alike_after_a_restart(publisher, consumer, broker, queue, open_queue):
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"held")
    consumer.next(b"held")
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        consumer.take_and_ack(number)
    broker.kill()
    broker.restart()
    publisher = open_queue()
    publisher.publish(f"$queue/{queue}", b"a", b"b")
    publisher.publish(f"$queue/{queue}", b"c", reason=QUOTA_EXCEEDED)
    assert broker.counter(queue, "depth") == 3


@pytest.mark.queue(limits={"max_depth": 3})
def test_each_group_is_counted_for_itself(publisher, open_queue, broker, queue):
    """Two groups hold one message each, and not the same one."""
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "one")
    two.consume(f"$queue/{queue}", "two")
    publisher.publish(f"$queue/{queue}", b"first")
    one.next(b"first")
    two.take_and_ack(b"first")
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        one.take_and_ack(number)
        taken = two.next(number)
        if number != NUMBERS[4]:
            two.ack(taken)
    assert broker.counter(queue, "depth") == 1
    publisher.publish(f"$queue/{queue}", b"a", b"b")
    publisher.publish(f"$queue/{queue}", b"c", reason=QUOTA_EXCEEDED)


@pytest.mark.any_log
@pytest.mark.queue("target", limits={"max_depth": 4})
def test_a_move_makes_room_for_publishers(publisher, broker, queues):
    """What an operator has taken out of the middle of a queue counts neither for the list nor for publishers."""
    target = queues["target"]
    publisher.publish(f"$queue/{target}/keep", b"0")
    publisher.publish(f"$queue/{target}/go", b"1", b"2")
    publisher.publish(f"$queue/{target}/keep", b"3")
    publisher.publish(f"$queue/{target}/keep", b"4", reason=QUOTA_EXCEEDED)
    broker.api(f"queues/{target}/move", "POST", {"to": queues[""], "filter": "go"})
    assert broker.counter(target, "depth") == 2
    publisher.publish(f"$queue/{target}/keep", b"4", b"5")
    publisher.publish(f"$queue/{target}/keep", b"6", reason=QUOTA_EXCEEDED)


@pytest.mark.queue(limits={"max_depth": 3}, overflow="drop-oldest")
def test_the_message_being_worked_on_is_not_dropped(publisher, consumer, broker, queue):
    """drop-oldest takes the oldest message that no consumer has."""
    consumer.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"held")
    held = consumer.next(b"held")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    until(lambda: broker.counter(queue, "depth") == 3)
    assert broker.counter(queue, "dropped") == len(NUMBERS) - 2
    consumer.ack(held)
    consumer.take_and_ack(*NUMBERS[-2:])
    until(lambda: broker.counter(queue, "depth") == 0)
    assert broker.counter(queue, "dropped") == len(NUMBERS) - 2


@pytest.mark.queue(limits={"max_depth": 3}, overflow="drop-oldest", visibility_timeout="2s")
def test_a_held_message_is_still_in_the_log_when_it_is_due_again(publisher, open_queue, broker, queue):
    """What was dropped around it is removed from the log, the message itself is not."""
    lost = open_queue()
    lost.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"held")
    lost.next(b"held")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    lost.close()
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "workers")
    taken = {delivery.payload for delivery in consumer.take_any(3)}
    assert taken == {b"held", *NUMBERS[-2:]}


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 2}, overflow="drop-oldest")
def test_the_newest_message_is_kept_when_consumers_hold_all_others(publisher, consumer, broker, queue):
    """Consumers may hold more than max_depth; what they hold stays, and so does the newest message."""
    consumer.consume(f"$queue/{queue}", "workers", prefetch=4)
    publisher.publish(f"$queue/{queue}", *NUMBERS[:4])
    taken = consumer.take(*NUMBERS[:4])
    publisher.publish(f"$queue/{queue}", *NUMBERS[4:])
    until(lambda: broker.counter(queue, "depth") == 5)
    assert broker.counter(queue, "dropped") == len(NUMBERS) - 5
    consumer.ack(*taken)
    consumer.take_and_ack(NUMBERS[-1])


@pytest.mark.any_log
@pytest.mark.queue(limits={"max_depth": 3}, overflow="drop-oldest")
def test_only_the_slow_group_loses_messages(publisher, open_queue, broker, queue):
    """A message dropped from two groups is counted once."""
    quick, slow = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "slow", prefetch=1)
    quick.consume(f"$queue/{queue}", "quick")
    for number in NUMBERS:
        publisher.publish(f"$queue/{queue}", number)
        quick.take_and_ack(number)
    assert broker.counter(queue, "dropped") == len(NUMBERS) - 3
    slow.take_and_ack(NUMBERS[0], *NUMBERS[-2:])
    late = open_queue()
    late.consume(f"$queue/{queue}", "late")
    for delivery in late.take_any(3):
        assert delivery.payload in NUMBERS[-3:]
    late.nothing()
