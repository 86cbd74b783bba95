"""What are queues that nobody configured, and those in memory? Reference, section 1 (no queue matches; ephemeral
storage, end, backlog). What `durable_queues.auto_create` says is tested in tests/wire/queue_settings."""

import time

import pytest

from tests.support.worlds.application import until

NUMBERS = [b"%d" % number for number in range(5)]
SHORT_LIVED = {"durable": False, "expires_after": "1s"}


@pytest.fixture
def name(new_name, broker):
    """Of a queue that is in no settings."""
    return new_name("nowhere-")


def dropped(broker):
    lines = [line for line in broker.metrics().splitlines() if line.startswith("penstock_queue_dropped_total ")]
    return float(lines[0].split()[1])


def test_a_publish_makes_the_queue(publisher, consumer, broker, name):
    """Rows "no queue matches", "late subscriber": `$queue/<n>/…` makes queue `<n>`; the backlog waits in it."""
    publisher.publish(f"$queue/{name}/a/b", *NUMBERS)
    assert broker.queue(name) is not None
    consumer.consume(f"$queue/{name}", "workers")
    deliveries = consumer.take_and_ack(*NUMBERS)
    assert [delivery.message_id for delivery in deliveries] == [f"{name}:{offset}" for offset in range(5)]
    assert {delivery.topic for delivery in deliveries} == {f"$queue/{name}/a/b"}


def test_its_pattern_is_its_name(publisher, consumer, broker, name):
    """Row "no queue matches", section 14: name and pattern: bound to `$queue/<n>/#`."""
    publisher.publish(f"$queue/{name}/a", b"1")
    publisher.publish(f"$queue/{name}", b"2")
    publisher.publish(f"$queue/{name}/x/y/z", b"3")
    consumer.consume(f"$queue/{name}", "workers")
    consumer.take(b"1", b"2", b"3")
    assert broker.queue(f"{name}/a") is None


def test_a_subscribe_makes_the_queue(publisher, consumer, broker, name):
    """Row "no queue matches": also on subscribe."""
    consumer.consume(f"$queue/{name}/a/#", "workers")
    assert broker.queue(name) is not None
    publisher.publish(f"$queue/{name}/b", b"other")
    publisher.publish(f"$queue/{name}/a/1", b"mine")
    consumer.ack(consumer.next(b"mine"))


@pytest.mark.parametrize("durable", [True, False])
def test_it_works_like_any_classic_queue(publisher, open_queue, broker, name, durable):
    """Rows "types" and "ephemeral storage": groups, settlement, redelivery as elsewhere."""
    if not durable:
        broker.api("queues", "POST", {"name": name, "durable": False})
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{name}", "workers")
    publisher.publish(f"$queue/{name}", b"1", b"2", b"3")
    acked, _, rejected = one.take(b"1", b"2", b"3")
    one.ack(acked)
    one.reject(rejected, "bad")
    two.consume(f"$queue/{name}", "workers")
    one.close()
    again = two.next(b"2")
    assert again.count == 2
    two.ack(again)
    broker.await_progress(name, "workers", cursor=3, committed=3, pending=0)
    dead = open_queue()
    dead.consume(f"$queue/$dlq/{name}", "undertakers")
    assert dead.next(b"3").properties["reason"] == "bad"


@pytest.mark.queue(type="stream", durable=False)
def test_an_ephemeral_stream(publisher, open_queue, queue):
    """Row "types": ephemeral is any type with durable = false."""
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    for group in ("one", "two"):
        reader = open_queue()
        reader.consume(f"$queue/{queue}", group, x_stream_offset="offset=2")
        reader.take(*NUMBERS[2:])


def test_it_is_in_memory(publisher, open_queue, broker, name):
    """Row "ephemeral storage": in memory; a kill takes its messages along."""
    broker.api("queues", "POST", {"name": name, "durable": False})
    publisher.publish(f"$queue/{name}", *NUMBERS)
    broker.kill()
    broker.restart()
    client = open_queue()
    client.consume(f"$queue/{name}", "workers")
    client.publish(f"$queue/{name}", b"new")
    assert client.next(b"new").offset == 0


def test_it_goes_after_its_last_consumer(publisher, open_queue, broker, name):
    """Row "ephemeral end", section 14: expires_after after the last consumer; not while one is there."""
    broker.api("queues", "POST", {"name": name, **SHORT_LIVED})
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{name}", "workers")
    two.consume(f"$queue/{name}", "others")
    publisher.publish(f"$queue/{name}", b"1")
    one.close()
    time.sleep(1.4)
    assert broker.queue(name) is not None, "gone under a consumer"
    two.close()
    left = time.monotonic()
    until(lambda: broker.queue(name) is None, 60, "the queue gone")
    assert time.monotonic() - left > 0.8


def test_messages_that_go_with_it_are_counted(publisher, broker, name):
    """They were acknowledged and nobody has read them: a counter and a line in the log say so."""
    broker.api("queues", "POST", {"name": name, **SHORT_LIVED})
    before, start = dropped(broker), broker.log_size()
    publisher.publish(f"$queue/{name}", *NUMBERS)
    until(lambda: broker.queue(name) is None, 60, "the queue gone")
    assert "expired with unread messages" in broker.await_log('"messages": 5', start)
    until(lambda: dropped(broker) == before + 5, 60, "they are counted")


def test_hundreds_of_new_names(publisher, broker, name):
    """Each is a queue of its own, with its message, until it expires."""
    topics = [f"{name}-{number}" for number in range(300)]
    for topic in topics:
        publisher.publish(f"$queue/{topic}/x", topic.encode())
    found = {queue["name"]: queue["depth"] for queue in broker.api("queues?limit=10000")["queues"]}
    assert [found.get(topic) for topic in topics] == [1] * 300


def test_it_goes_if_no_consumer_came(broker, name):
    """Row "ephemeral end": or after creation if none came."""
    broker.api("queues", "POST", {"name": name, **SHORT_LIVED})
    assert broker.queue(name) is not None
    until(lambda: broker.queue(name) is None, 60, "the queue gone")


def test_a_durable_queue_stays(broker, queue):
    """Row "ephemeral end": expires_after is of ephemeral queues only."""
    time.sleep(0.3)
    assert broker.queue(queue) is not None


def test_an_auto_created_queue_stays_for_a_while(publisher, broker, name):
    """Row "ephemeral end": 5 minutes by default, and never for a durable one."""
    publisher.publish(f"$queue/{name}", b"1")
    broker.api("queues", "POST", {"name": f"{name}-memory", "durable": False})
    time.sleep(0.5)
    assert broker.queue(name) is not None
    assert broker.queue(f"{name}-memory") is not None
