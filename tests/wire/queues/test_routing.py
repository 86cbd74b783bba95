"""What enters which queue? Reference, section 1 (queue types and routing)."""

import pytest

from tests.support.clients.packets import V5, V311, Will
from tests.support.worlds.queues import both_kinds


@pytest.mark.parametrize("kind", both_kinds())
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publish_is_enqueued_in_order(publisher, consumer, queue, kind, qos):
    """Sections 1 (types) and 9 (durability): every QoS enters; 1 and 2 are acknowledged with success."""
    payloads = [b"%d" % number for number in range(20)]
    publisher.publish(f"$queue/{queue}/key", *payloads, qos=qos)
    consumer.consume(f"$queue/{queue}", "workers")
    deliveries = consumer.take(*payloads)
    assert [delivery.offset for delivery in deliveries] == list(range(20))
    consumer.ack(*deliveries)
    consumer.nothing()


def test_an_unacknowledged_burst_keeps_its_order(publisher, consumer, queue):
    """Row "types": order of one publisher, many in one loop iteration."""
    consumer.consume(f"$queue/{queue}", "workers")
    ids = [publisher.raw.send_publish(f"$queue/{queue}", b"%d" % number, qos=1) for number in range(100)]
    for packet_id in ids:
        assert publisher.raw.receive().packet_id == packet_id
    consumer.take_and_ack(*[b"%d" % number for number in range(100)])


@pytest.mark.queue(topics=["plain/{queue}/#"])
def test_an_ordinary_publish_never_enters(publisher, consumer, connect, queue):
    """Row "what enters a queue": only topics under `$queue/`, even if a binding matches."""
    subscriber = connect(V5)
    subscriber.subscribe(f"plain/{queue}/#", qos=1)
    publisher.publish(f"plain/{queue}/a", b"ordinary")
    subscriber.expect_publish(payload=b"ordinary", ack=True)
    publisher.publish(f"$queue/{queue}/a", b"queued")
    consumer.consume(f"$queue/{queue}", "workers")
    assert consumer.next(b"queued").offset == 0


def test_a_queued_publish_is_no_ordinary_one(publisher, connect, queue):
    """Row "what enters a queue": `$queue/` goes through the queue manager, not to ordinary subscribers."""
    subscriber = connect(V5)
    subscriber.subscribe("#", "+/+/+", qos=1)
    publisher.publish(f"$queue/{queue}/a", b"queued")
    subscriber.expect_nothing()


@pytest.mark.queue(topics=["plain/{queue}/+"], capture=True)
def test_capture_is_an_option(publisher, consumer, connect, queue):
    """Row "what enters a queue": capture as an explicit option, besides the ordinary subscribers, nothing lost."""
    subscriber = connect(V5)
    subscriber.subscribe(f"plain/{queue}/#", qos=1)
    for number, qos in enumerate((0, 1, 2)):
        publisher.publish(f"plain/{queue}/a", b"%d" % number, qos=qos)
    publisher.publish(f"plain/{queue}/a/b", b"other")
    publisher.publish(f"$queue/{queue}/x", b"queued")
    subscriber.expect_payloads([b"0", b"1", b"2", b"other"])
    consumer.consume(f"$queue/{queue}", "workers")
    for number in range(3):
        delivery = consumer.next(b"%d" % number)
        assert delivery.topic == f"$queue/{queue}/plain/{queue}/a"
        assert delivery.properties["x-source-topic"] == f"plain/{queue}/a"
    assert consumer.next(b"queued").topic == f"$queue/{queue}/x"


@pytest.mark.queue("copies", topics=["$queue/{queue}/#"])
@pytest.mark.queue("eu", topics=["$queue/{queue}/eu/+", "$queue/other/#"])
def test_fan_out_to_every_queue_whose_patterns_match(publisher, open_queue, queues):
    """Row "fan-out": a publish is appended to every queue whose patterns match."""
    publisher.publish(f"$queue/{queues['']}/eu/a", b"1")
    publisher.publish(f"$queue/{queues['']}/us/a", b"2")
    for suffix, expected in {"": [b"1", b"2"], "copies": [b"1", b"2"], "eu": [b"1"]}.items():
        consumer = open_queue()
        consumer.consume(f"$queue/{queues[suffix]}", "workers")
        for offset, delivery in enumerate(consumer.take_and_ack(*expected)):
            assert (delivery.queue, delivery.offset) == (queues[suffix], offset)
        consumer.raw.ping()
        consumer.nothing(0.05)


@pytest.mark.queue(topics=["$queue/{queue}/#", "$queue/{queue}/a/+", "$queue/{queue}/+/b", "$queue/+/a/{queue}"])
def test_stored_once_however_many_patterns_match(publisher, consumer, queue):
    """Section 14: a `$queue` publish is stored once."""
    publisher.publish(f"$queue/{queue}/a/b", b"once")
    publisher.publish(f"$queue/{queue}/a/{queue}", b"once more")
    publisher.publish(f"$queue/{queue}/last", b"last")
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take(b"once", b"once more", b"last")


@pytest.mark.parametrize("payload", [b"kept?", b""], ids=["payload", "empty"])
def test_a_retained_publish_is_enqueued_and_not_retained(broker, publisher, open_queue, queue, payload):
    """Row "retained publish to `$queue/…`": enqueued like any other; nothing is kept as retained."""
    publisher.publish(f"$queue/{queue}/a", payload, retain=True)
    for group in ("one", "two"):
        consumer = open_queue()
        consumer.consume(f"$queue/{queue}/#", group)
        assert not consumer.next(payload).packet.retain
        consumer.nothing(0.05)
    retained = broker.api("retained?filter=%24queue%2F%23")
    assert f"$queue/{queue}" not in str(retained)


@pytest.mark.queue("second")
def test_a_subscription_spans_queues(publisher, consumer, queues):
    """Row "name with wildcard": `$queue/+/temperature` spans queues; each settles at its own."""
    key = f"temperature-{queues['']}"
    consumer.consume(f"$queue/+/{key}", "spanning")
    for name in queues.values():
        publisher.publish(f"$queue/{name}/{key}", name.encode())
        publisher.publish(f"$queue/{name}/other", b"other")
    deliveries = {delivery.queue: delivery for delivery in consumer.take_any(2)}
    assert {name: delivery.payload for name, delivery in deliveries.items()} == {
        name: name.encode() for name in queues.values()
    }
    for name, delivery in deliveries.items():
        assert delivery.topic == f"$queue/{name}/{key}"
        consumer.ack(delivery)
    consumer.nothing()


def test_a_spanning_subscription_sees_queues_made_later(publisher, consumer, queue):
    """Row "name with wildcard", and a queue that did not exist at the time of the SUBSCRIBE."""
    consumer.consume(f"$queue/+/late-{queue}", "spanning")
    publisher.publish(f"$queue/made-later-{queue}/late-{queue}", b"late")
    delivery = consumer.next(b"late")
    assert delivery.queue == f"made-later-{queue}"
    consumer.ack(delivery)


@pytest.mark.parametrize("version", [V311, V5], ids=["v311", "v5"])
def test_a_will_enters_a_queue(open_queue, consumer, queue, version):
    """Row "what enters a queue": a will is a publish like any other."""
    dying = open_queue(version, will=Will(f"$queue/{queue}/wills", b"gone", qos=1))
    dying.close()
    consumer.consume(f"$queue/{queue}", "workers")
    assert consumer.next(b"gone").topic == f"$queue/{queue}/wills"
