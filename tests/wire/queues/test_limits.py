"""What does a queue refuse, drop or let expire? Reference, section 9 (limits, TTL) and the last lines of section 5."""

import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType
from tests.support.worlds.queues import both_kinds

QUOTA_EXCEEDED = 0x97


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.queue(limits={"max_message_size": 1000})
def test_too_large_a_message_is_refused(publisher, consumer, queue, qos):
    """Row `limits.max_message_size`: MQTT 5 PUBACK/PUBREC 0x97 with reason string; the connection stays."""
    [answer] = publisher.publish(f"$queue/{queue}", b"x" * 1001, qos=qos, reason=QUOTA_EXCEEDED)
    assert answer.properties["reason_string"]
    publisher.publish(f"$queue/{queue}", b"y" * 1000, qos=qos)
    consumer.consume(f"$queue/{queue}", "workers")
    assert consumer.next(b"y" * 1000).offset == 0


@pytest.mark.queue(limits={"max_message_size": 1000})
def test_too_large_a_message_of_qos_0(publisher, consumer, broker, queue):
    """Row `limits.max_message_size`: QoS 0 has no answer; it does not enter, and is counted."""
    publisher.publish(f"$queue/{queue}", b"x" * 2000, qos=0)
    publisher.publish(f"$queue/{queue}", b"small")
    consumer.consume(f"$queue/{queue}", "workers")
    assert consumer.next(b"small").offset == 0
    assert broker.counter(queue, "refused") == 1


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.queue(limits={"max_depth": 3})
def test_a_full_queue_refuses(publisher, consumer, broker, queue, qos):
    """Row `limits.max_depth`: 0x97 with reason string; what was acknowledged stays."""
    publisher.publish(f"$queue/{queue}", b"0", b"1", b"2", qos=qos)
    [answer] = publisher.publish(f"$queue/{queue}", b"3", qos=qos, reason=QUOTA_EXCEEDED)
    assert answer.properties["reason_string"]
    assert broker.counter(queue, "depth") == 3
    assert broker.counter(queue, "refused") == 1
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take(b"0", b"1", b"2")


@pytest.mark.queue(limits={"max_depth": 3})
def test_settling_makes_room(publisher, consumer, queue):
    """Each settled message makes room for one, whether older ones are settled or not: test_depth.py has the rest."""
    publisher.publish(f"$queue/{queue}", b"0", b"1", b"2")
    consumer.consume(f"$queue/{queue}", "workers")
    zero, one, _ = consumer.take(b"0", b"1", b"2")
    consumer.ack(one)
    publisher.publish(f"$queue/{queue}", b"3")
    publisher.publish(f"$queue/{queue}", b"4", reason=QUOTA_EXCEEDED)
    consumer.ack(zero)
    publisher.publish(f"$queue/{queue}", b"4")
    publisher.publish(f"$queue/{queue}", b"5", reason=QUOTA_EXCEEDED)
    consumer.take(b"3", b"4")


@pytest.mark.queue(limits={"max_depth": 2})
def test_the_slowest_group_decides(publisher, open_queue, queue):
    """Section 15, point 3: the group with the most unsettled messages."""
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    quick, slow = open_queue(), open_queue()
    slow.consume(f"$queue/{queue}", "slow")
    slow.take(b"0", b"1")
    quick.consume(f"$queue/{queue}", "quick")
    quick.take_and_ack(b"0", b"1")
    publisher.publish(f"$queue/{queue}", b"2", reason=QUOTA_EXCEEDED)


@pytest.mark.queue(limits={"max_depth": 3})
def test_a_burst_is_cut_exactly(publisher, queue):
    """Row `limits.max_depth`: many messages in one write; those that fit are taken, the others refused, in order."""
    ids = [publisher.raw.send_publish(f"$queue/{queue}", b"%d" % number, qos=1) for number in range(6)]
    answers = [publisher.raw.expect(PacketType.PUBACK, packet_id=packet_id).reason for packet_id in ids]
    assert answers == [0, 0, 0, QUOTA_EXCEEDED, QUOTA_EXCEEDED, QUOTA_EXCEEDED]


@pytest.mark.queue(limits={"max_depth": 3}, overflow="drop-oldest")
def test_drop_oldest(publisher, consumer, broker, queue):
    """The issue: a policy (reject | drop-oldest); what is dropped is counted."""
    publisher.publish(f"$queue/{queue}", *[b"%d" % number for number in range(8)])
    assert broker.counter(queue, "depth") == 3
    assert broker.counter(queue, "dropped") == 5
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take_and_ack(b"5", b"6", b"7")


@pytest.mark.queue(type="stream", limits={"max_depth": 2})
def test_the_depth_of_a_stream_is_not_limited(publisher, consumer, queue):
    """Section 15, point 3: on streams retention bounds the log and max_depth is ignored."""
    publisher.publish(f"$queue/{queue}", *[b"%d" % number for number in range(5)])
    consumer.consume(f"$queue/{queue}", "readers")
    consumer.take(*[b"%d" % number for number in range(5)])


@pytest.mark.queue("full", topics=["$queue/{queue}/#"], limits={"max_depth": 1})
def test_a_full_queue_among_several(publisher, queues):
    """Rows "fan-out" and `limits.max_depth`: the publisher is told when one of the queues did not take it."""
    publisher.publish(f"$queue/{queues['']}", b"0")
    publisher.publish(f"$queue/{queues['']}", b"1", reason=QUOTA_EXCEEDED)


@pytest.mark.queue(topics=["plain/{queue}"], capture=True, limits={"max_depth": 1})
def test_a_captured_message_is_not_lost_in_silence(publisher, broker, queue):
    """Section 1, row "what enters a queue": capture never with silent loss."""
    publisher.publish(f"plain/{queue}", b"0")
    publisher.publish(f"plain/{queue}", b"1", reason=QUOTA_EXCEEDED)
    assert broker.counter(queue, "refused") == 1


@pytest.mark.parametrize("what", ["size", "depth"])
@pytest.mark.queue(limits={"max_message_size": 1000, "max_depth": 1})
def test_an_older_client_is_closed(open_queue, queue, what):
    """Row `limits.…`: 3.1.1 has no reason codes; it closes the connection."""
    client = open_queue(V311)
    if what == "depth":
        client.publish(f"$queue/{queue}", b"0")
    client.raw.send_publish(f"$queue/{queue}", b"x" * (1001 if what == "size" else 1), qos=1)
    client.raw.expect_closed()


@pytest.mark.parametrize("kind", both_kinds())
@pytest.mark.queue(limits={"message_ttl": "2s"})
def test_messages_expire_by_the_setting(publisher, open_queue, queue, kind):
    """Row `limits.message_ttl`, section 14 (TTL in both types): stamped at publish, skipped by both types."""
    prompt = open_queue()
    prompt.consume(f"$queue/{queue}", "prompt")
    publisher.publish(f"$queue/{queue}", b"old", b"older")
    prompt.take(b"old", b"older")
    time.sleep(2.1)
    late = open_queue()
    late.consume(f"$queue/{queue}", "late")
    publisher.publish(f"$queue/{queue}", b"new")
    assert late.next(b"new").offset == 2


@pytest.mark.queue("endless", limits={"message_ttl": 0})
@pytest.mark.queue("short", limits={"message_ttl": "2s"})
def test_the_smaller_of_both_expiries(publisher, open_queue, queues):
    """Row `limits.message_ttl`: the smaller of this and the MQTT 5 message expiry; 0 = none."""
    expiring = {"properties": {"message_expiry_interval": 1}}
    publisher.publish(f"$queue/{queues['endless']}", b"second", **expiring)
    publisher.publish(f"$queue/{queues['endless']}", b"for ever")
    publisher.publish(f"$queue/{queues['short']}", b"hour", properties={"message_expiry_interval": 3600})
    time.sleep(2.1)
    short, endless = open_queue(), open_queue()
    short.consume(f"$queue/{queues['short']}", "workers")
    publisher.publish(f"$queue/{queues['short']}", b"fresh")
    short.take(b"fresh")
    endless.consume(f"$queue/{queues['endless']}", "workers")
    endless.take(b"for ever")


@pytest.mark.queue(limits={"message_ttl": "200ms"})
def test_expired_messages_never_enter_the_pending_list(publisher, consumer, broker, queue):
    """Row `limits.message_ttl`: never enters the pending list; counted; the cursor passes it."""
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    time.sleep(0.3)
    consumer.consume(f"$queue/{queue}", "workers")
    broker.await_progress(queue, "workers", cursor=2, committed=2, pending=0)
    assert broker.counter(queue, "expired") == 2
    consumer.nothing(0.05)


@pytest.mark.parametrize("value", ["0", "-1", "many", ""])
def test_a_prefetch_that_is_none(consumer, broker, queue, value):
    """Section 5, last line: the bound is overridable by a user property; nonsense is refused."""
    [reason] = consumer.try_consume(f"$queue/{queue}", "workers", prefetch=value)
    assert reason >= 0x80


def test_a_prefetch_above_the_receive_maximum(publisher, open_queue, queue):
    """Section 5, last line, and [MQTT-3.3.4-9]: unsettled ones may be more, unacknowledged ones not."""
    consumer = open_queue(receive_maximum=2)
    consumer.consume(f"$queue/{queue}", "workers", prefetch=4)
    payloads = [b"%d" % number for number in range(6)]
    publisher.publish(f"$queue/{queue}", *payloads)
    held = consumer.take(*payloads[:2], puback=False)
    consumer.nothing(0.05)
    for delivery in held:
        consumer.raw.ack(delivery.packet)
    consumer.take(*payloads[2:4])
    consumer.nothing(0.05)


@pytest.mark.queue(ack_durability="buffered")
def test_buffered_durability(publisher, open_queue, broker, queue):
    """Row "durability": two levels; the end of the process alone loses nothing of either."""
    payloads = [b"%d" % number for number in range(50)]
    publisher.publish(f"$queue/{queue}", *payloads)
    broker.kill()
    broker.restart()
    consumer = open_queue(V5)
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take_and_ack(*payloads)


def test_fsync_durability(publisher, open_queue, broker, queue):
    """Row "durability", section 14: fsync level (the default) survives a kill."""
    payloads = [b"%d" % number for number in range(50)]
    publisher.publish(f"$queue/{queue}", *payloads)
    broker.kill()
    broker.restart()
    consumer = open_queue(V5)
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take_and_ack(*payloads)
