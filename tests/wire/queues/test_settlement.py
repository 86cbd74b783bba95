"""What do $ack, $nack, $reject and PUBACK do? Reference, section 5 (settlement)."""

import time

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.worlds.queues import VERBS

NUMBERS = [b"%d" % number for number in range(5)]


def test_ack_settles(publisher, open_queue, broker, queue):
    """Row "ack, classic": the entry leaves the pending list; nobody of the group gets it again."""
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.ack(*consumer.take(*NUMBERS))
    assert broker.progress(queue, "workers") == (5, 5, 0)
    consumer.close()
    again = open_queue()
    again.consume(f"$queue/{queue}", "workers")
    again.nothing()


@pytest.mark.queue(visibility_timeout="500ms")
def test_puback_does_not_settle(publisher, consumer, broker, queue):
    """Row "MQTT 5": explicit only; PUBACK ends the MQTT exchange, the entry stays pending."""
    consumer.consume(f"$queue/{queue}", "workers")
    before = time.monotonic()
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.next(b"1")
    assert broker.progress(queue, "workers") == (1, 0, 1)
    again = consumer.next(b"1")
    assert again.count == 2
    assert again.at - before > 0.45
    consumer.ack(again)


def test_an_explicit_verb_after_a_puback(publisher, consumer, queue):
    """Row "MQTT 5": a verb after an automatic PUBACK succeeds, whichever it is."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"0", b"1", b"2")
    for delivery, verb in zip(consumer.take(b"0", b"1", b"2"), VERBS, strict=True):
        consumer.raw.ping()
        consumer.settle(delivery, verb)


def test_an_explicit_verb_before_the_puback(publisher, consumer, queue):
    """Row "MQTT 5": the two are independent of each other."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    for delivery in consumer.take(b"1", b"2", puback=False):
        consumer.ack(delivery)
        consumer.raw.ack(delivery.packet)
    consumer.nothing()


def test_puback_frees_the_receive_maximum(publisher, open_queue, queue):
    """Row "MQTT 5": PUBACK frees Receive Maximum; `prefetch` on SUBSCRIBE is the bound on unsettled messages."""
    consumer = open_queue(receive_maximum=1)
    consumer.consume(f"$queue/{queue}", "workers", prefetch=3)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    unsettled = []
    for payload in NUMBERS[:3]:
        unsettled.append(consumer.next(payload, puback=False))
        consumer.nothing(0.05)
        consumer.raw.ack(unsettled[-1].packet)
    consumer.nothing(0.05)
    consumer.ack(unsettled[0])
    consumer.next(NUMBERS[3])


def test_the_receive_maximum_bounds_the_unsettled(publisher, open_queue, queue):
    """Below section 5: a bound on unsettled messages per consumer, by default the Receive Maximum."""
    consumer = open_queue(receive_maximum=2)
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    first, second = consumer.take(*NUMBERS[:2])
    consumer.nothing(0.1)
    consumer.ack(second)
    third = consumer.next(NUMBERS[2])
    consumer.nothing(0.05)
    consumer.ack(first, third)
    consumer.take_and_ack(*NUMBERS[3:])


def test_a_negative_puback_does_not_settle(publisher, consumer, broker, queue):
    """Row "MQTT 5": a PUBACK with a failure ends the MQTT exchange too, and no more."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1", puback=False)
    consumer.raw.send_ack(PacketType.PUBACK, delivery.packet.packet_id, 0x80)
    consumer.raw.ping()
    assert broker.progress(queue, "workers") == (1, 0, 1)
    consumer.ack(delivery)


@pytest.mark.parametrize("verb", VERBS)
def test_wrong_use_of_a_verb(publisher, consumer, broker, queue, verb):
    """Row "wrong verb use": missing, unknown or settled id → PUBACK 0x80 with a reason string; nothing changes."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    settled, pending = consumer.take(b"0", b"1")
    consumer.ack(settled)
    group = ("group-id", "workers")
    wrong = [
        [],
        [group],
        [("message-id", pending.message_id)],
        [("message-id", f"{queue}:99"), group],
        [("message-id", f"{queue}:2"), group],
        [("message-id", f"{queue}:-1"), group],
        [("message-id", f"{queue}:"), group],
        [("message-id", "1"), group],
        [("message-id", ""), group],
        [("message-id", "nonsense"), group],
        [("message-id", f"{queue}:1x"), group],
        [("message-id", f"{queue}:99999999999999999999999999"), group],
        [("message-id", "other:1"), group],
        [("message-id", pending.message_id), ("group-id", "nobody")],
        [("message-id", pending.message_id), ("group-id", "")],
        [("message-id", pending.message_id), ("group-id", "workers@eu/#")],
        [("message-id", settled.message_id), group],
    ]
    for pairs in wrong:
        consumer.command(f"$queue/{queue}/${verb}", pairs, refused=True)
    assert broker.progress(queue, "workers") == (2, 1, 1)
    consumer.ack(pending)


def test_settling_at_a_queue_that_does_not_exist(consumer, broker, queue):
    """Row "wrong verb use": refused, and no queue is made of it."""
    pairs = [("message-id", f"no-{queue}:0"), ("group-id", "workers")]
    consumer.command(f"$queue/no-{queue}/$ack", pairs, refused=True)
    assert broker.queue(f"no-{queue}") is None


@pytest.mark.any_log
def test_a_settlement_that_names_two_messages(publisher, consumer, queue):
    """Two values of one property: neither is settled. The same value twice is no question."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    first, second = consumer.take(b"0", b"1")
    topic, group = f"$queue/{queue}/$ack", ("group-id", "workers")
    both = [("message-id", first.message_id), ("message-id", second.message_id), group]
    answer = consumer.command(topic, both, refused=True)
    assert "twice" in answer.properties["reason_string"]
    consumer.command(topic, [*both[1:], ("group-id", "others")], refused=True)
    consumer.command(topic, [both[0], both[0], group, group])
    consumer.ack(second)


def test_a_second_settlement_is_refused(publisher, consumer, queue):
    """Row "wrong verb use": a settled id, whatever settled it."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"0", b"1", b"2")
    acked, rejected, nacked = consumer.take(b"0", b"1", b"2")
    consumer.ack(acked)
    consumer.reject(rejected)
    consumer.nack(nacked)
    for delivery in (acked, rejected, nacked):
        consumer.settle(delivery, "ack", refused=True)
        consumer.settle(delivery, "nack", refused=True)


@pytest.mark.parametrize("qos", [0, 2])
def test_a_settlement_of_another_qos(publisher, consumer, broker, queue, qos):
    """Row "MQTT 5": the verbs are publishes; QoS 2 is answered by the PUBREC, QoS 0 not at all."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    if qos == 2:
        consumer.settle(delivery, qos=2)
        consumer.settle(delivery, qos=2, refused=True)
    else:
        pairs = [("message-id", delivery.message_id), ("group-id", "workers")]
        consumer.raw.publish(f"$queue/{queue}/$ack", b"", properties={"user_property": pairs})
    broker.await_progress(queue, "workers", committed=1, pending=0)


def test_settlements_in_one_write(publisher, consumer, broker, queue):
    """Row "MQTT 5": many at once, each with an answer of its own, in their order [MQTT-4.6.0-2]."""
    consumer.consume(f"$queue/{queue}", "workers")
    payloads = [b"%d" % number for number in range(50)]
    publisher.publish(f"$queue/{queue}", *payloads)
    deliveries = consumer.take(*payloads)
    ids = []
    for delivery in deliveries:
        pairs = [("message-id", delivery.message_id), ("group-id", "workers")]
        options = {"qos": 1, "properties": {"user_property": pairs}}
        ids.append(consumer.raw.send_publish(f"$queue/{queue}/$ack", b"", **options))
    for packet_id in ids:
        consumer.raw.expect(PacketType.PUBACK, packet_id=packet_id, reason=0)
    assert broker.progress(queue, "workers") == (50, 50, 0)


def test_qos_0_is_not_for_classic_queues(consumer, broker, queue):
    """Row "QoS of deliveries": QoS 0 subscribe to a classic queue → 0x83."""
    assert consumer.try_consume(f"$queue/{queue}", "workers", qos=0) == [0x83]


@pytest.mark.queue(type="stream")
def test_qos_0_is_allowed_on_streams(publisher, consumer, queue):
    """Row "QoS of deliveries": allowed on streams."""
    assert consumer.try_consume(f"$queue/{queue}", "readers", qos=0) == [0]
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    for delivery in consumer.take(*NUMBERS, puback=False):
        assert delivery.packet.qos == 0


@pytest.mark.parametrize("published", [0, 1, 2])
def test_deliveries_are_acknowledged_ones(publisher, consumer, queue, published):
    """Row "QoS of deliveries": QoS 1, whatever the message was published with."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1", qos=published)
    assert consumer.next(b"1").packet.qos == 1


def test_the_example_of_cursor_and_committed(publisher, consumer, broker, queue):
    """Section 6, row "example": claim 0, 1; ack 0; ack 1 → committed 0, 1, 2; cursor 2."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    zero, one = consumer.take(b"0", b"1")
    assert broker.progress(queue, "workers") == (2, 0, 2)
    consumer.ack(zero)
    assert broker.progress(queue, "workers") == (2, 1, 1)
    consumer.ack(one)
    assert broker.progress(queue, "workers") == (2, 2, 0)


def test_committed_is_the_lowest_pending(publisher, consumer, broker, queue):
    """Section 6, row "cursor and committed": acknowledged out of order."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    deliveries = consumer.take(*NUMBERS)
    for settled, committed in ((3, 0), (1, 0), (0, 2), (2, 4), (4, 5)):
        consumer.ack(deliveries[settled])
        assert broker.group(queue, "workers")["committed"] == committed


@pytest.mark.queue(type="stream")
def test_ack_of_a_stream_is_a_checkpoint(publisher, open_queue, broker, queue):
    """Row "ack, stream": committed = offset + 1 when auto-commit is on."""
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    deliveries = consumer.take(*NUMBERS)
    consumer.ack(deliveries[4])
    assert broker.progress(queue, "readers") == (5, 5, 0)


@pytest.mark.queue(type="stream")
def test_nack_of_a_stream_has_no_effect(publisher, consumer, broker, queue):
    """Row "nack, stream": no effect, no redelivery, no refusal."""
    consumer.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    first, _ = consumer.take(b"0", b"1")
    consumer.settle(first, "nack")
    assert broker.progress(queue, "readers") == (2, 0, 0)
    consumer.nothing()


@pytest.mark.queue(type="stream")
def test_reject_of_a_stream_moves_past(publisher, open_queue, broker, new_name, queue):
    """Row "reject, stream", section 14 (reject skips on a stream): cursor and committed move past."""
    consumer = open_queue()
    consumer.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    consumer.reject(consumer.take(*NUMBERS)[1])
    cursor, committed, pending = broker.progress(queue, "readers")
    assert (cursor, committed, pending) == (5, 2, 0)
    consumer.close()
    again = open_queue()
    again.consume(f"$queue/{queue}", "readers", x_auto_commit="false")
    again.take(*NUMBERS[2:])
    assert broker.queue(f"$dlq/{queue}") is None or broker.counter(f"$dlq/{queue}", "depth") == 0


def test_no_consumer_is_sent_a_message_twice_at_a_time(publisher, consumer, queue):
    """Row "MQTT 5" and section 12: no resend on a live v5 connection, which MQTT 5 forbids [MQTT-4.4.0-1]."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1", puback=False)
    consumer.nothing(0.3)
    consumer.ack(delivery)


def test_a_consumer_that_publishes_to_its_own_queue(consumer, queue):
    """Row "MQTT 5": one connection may be publisher, consumer and settle, in any order."""
    consumer.consume(f"$queue/{queue}", "workers")
    for number in range(10):
        consumer.publish(f"$queue/{queue}", b"%d" % number)
        consumer.ack(consumer.next(b"%d" % number))


def test_the_answer_of_a_settlement_is_kept_over_a_kill(publisher, open_queue, broker, queue):
    """Row "ack, classic": an acknowledged settlement is durable; the others are still pending."""
    consumer = open_queue(V5)
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    deliveries = consumer.take(*NUMBERS)
    consumer.ack(deliveries[1], deliveries[3])
    broker.kill()
    broker.restart()
    again = open_queue(V5)
    again.consume(f"$queue/{queue}", "workers")
    left = again.take(NUMBERS[0], NUMBERS[2], NUMBERS[4])
    assert [delivery.count for delivery in left] == [2, 2, 2]
    again.ack(*left)
    again.nothing()


def test_puback_settles_where_the_subscription_says_so(publisher, consumer, broker, queue):
    """Section 15, point 4: per subscription by a user property, off by default."""
    consumer.consume(f"$queue/{queue}", "workers", settle_on_ack="true")
    publisher.publish(f"$queue/{queue}", b"1", b"2")
    first, second = consumer.take(b"1", b"2", puback=False)
    consumer.raw.ack(first.packet)
    broker.await_progress(queue, "workers", committed=1, pending=1)
    consumer.settle(first, refused=True)
    consumer.settle(second, "ack")
