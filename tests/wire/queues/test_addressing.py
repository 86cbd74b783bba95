"""Which messages of a queue does a consumer get, and under which topic? Reference, section 2 (addressing, filters)."""

import pytest

from tests.support.clients.packets import V5

KEYS = ["", "a", "a/b", "a/b/c", "a/", "/a", "b", "eu/images/resize", "us/images/png", "images", "images/png", "A"]
MATCHES = {
    "": KEYS,
    "#": KEYS,
    "a": ["a"],
    "a/#": ["a", "a/b", "a/b/c", "a/"],
    "+": ["a", "b", "images", "A"],
    "a/+": ["a/b", "a/"],
    "+/a": ["/a"],
    "+/+": ["a/b", "a/", "/a", "images/png"],
    "+/images/#": ["eu/images/resize", "us/images/png"],
    "images/#": ["images", "images/png"],
    "+/+/c": ["a/b/c"],
    "none": [],
}


def address(queue, key):
    return f"$queue/{queue}/{key}" if key else f"$queue/{queue}"


def test_filters_are_mqtt_filters(publisher, open_queue, queue):
    """Rows "shape", "consumer filter": what follows the name, as in MQTT: `x/#` matches `x`, `+` an empty level."""
    for key in KEYS:
        publisher.publish(address(queue, key), key.encode())
    publisher.publish(f"$queue/{queue}/end", b"end")
    for number, (topic_filter, expected) in enumerate(MATCHES.items()):
        consumer = open_queue()
        consumer.consume(address(queue, topic_filter), f"g{number}")
        got = [consumer.next() for _ in expected]
        assert [delivery.payload.decode() for delivery in got] == expected, topic_filter
        assert [delivery.topic for delivery in got] == [address(queue, key) for key in expected]
        if topic_filter in ("", "#", "+"):
            consumer.take(b"end")
    consumer.nothing()


def test_live_messages_are_filtered_too(publisher, consumer, queue):
    """Row "consumer filter": applied at delivery, to what comes after the SUBSCRIBE as well."""
    consumer.consume(f"$queue/{queue}/+/images/#", "workers")
    for key in ("eu/images/resize", "eu/sounds", "us/images/png", "images"):
        publisher.publish(f"$queue/{queue}/{key}", key.encode())
    consumer.take_and_ack(b"eu/images/resize", b"us/images/png")
    consumer.nothing()


def test_the_binding_takes_all_keys(publisher, open_queue, queue):
    """Row "binding": every queue binds `$queue/<name>/#`, whatever filter its consumers use."""
    narrow, wide = open_queue(), open_queue()
    narrow.consume(f"$queue/{queue}/a", "narrow")
    # Before the first message: what no group wants is removed at any time.
    wide.consume(f"$queue/{queue}", "wide", prefetch=1)
    publisher.publish(f"$queue/{queue}/b", b"1")
    publisher.publish(f"$queue/{queue}/a", b"2")
    narrow.take(b"2")
    wide.take_and_ack(b"1", b"2")


def test_no_filter_and_hash_are_one_group(publisher, open_queue, broker, queue):
    """Row "no filter": empty and `#` are the same filter, hence the same group."""
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "workers", prefetch=5)
    two.consume(f"$queue/{queue}/#", "workers", prefetch=5)
    publisher.publish(f"$queue/{queue}/k", *[b"%d" % number for number in range(10)])
    payloads = {delivery.payload for consumer in (one, two) for delivery in consumer.take_any(5)}
    assert len(payloads) == 10
    assert broker.progress(queue, "workers") == (10, 0, 10)


def test_several_groups_with_several_filters(publisher, open_queue, queue):
    """Row "several groups, several filters"; seed, example 5."""
    eu, images = open_queue(), open_queue()
    eu.consume(f"$queue/{queue}/eu/#", "eu-processors")
    images.consume(f"$queue/{queue}/+/images/#", "image-processors")
    publisher.publish(f"$queue/{queue}/eu/images/resize", b"both")
    publisher.publish(f"$queue/{queue}/eu/text", b"eu")
    publisher.publish(f"$queue/{queue}/us/images", b"images")
    eu.take_and_ack(b"both", b"eu")
    images.take_and_ack(b"both", b"images")
    eu.nothing(0.05)


@pytest.mark.queue("audit", topics=["$queue/{queue}/#"])
def test_the_topic_of_a_delivery(publisher, consumer, queues):
    """Row "topic of a delivery": the published one where it belongs to the queue, else below the queue's own."""
    orders, audit = queues[""], queues["audit"]
    for topic in (f"$queue/{orders}", f"$queue/{orders}/x/y", f"$queue/{audit}/own"):
        publisher.publish(topic, topic.encode())
    consumer.consume(f"$queue/{audit}", "auditors")
    copied, below, own = consumer.take_any(3)
    assert copied.topic == f"$queue/{audit}/$queue/{orders}"
    assert below.topic == f"$queue/{audit}/$queue/{orders}/x/y"
    assert own.topic == f"$queue/{audit}/own"
    for delivery in (copied, below, own):
        assert delivery.properties["x-source-topic"] == delivery.payload.decode()
        assert delivery.queue == audit


def test_a_routing_key_before_a_control_word_is_ignored(publisher, consumer, broker, queue):
    """Row "control words": `$queue/<q>/images/$ack` settles like `$queue/<q>/$ack`."""
    publisher.publish(f"$queue/{queue}/k", b"1", b"2", b"3")
    consumer.consume(f"$queue/{queue}", "workers")
    for verb, delivery in zip(("ack", "nack", "reject"), consumer.take(b"1", b"2", b"3"), strict=True):
        pairs = [("message-id", delivery.message_id), ("group-id", "workers")]
        consumer.command(f"$queue/{queue}/images/png/${verb}", pairs)
    assert broker.queue(queue)["tail"] == 3, "a control word was stored as a message"


@pytest.mark.parametrize("word", ["$ack", "$nack", "$reject", "$commit"])
def test_a_control_word_elsewhere_is_refused(publisher, consumer, queue, word):
    """Row "control words": elsewhere in the topic → 0x80, and nothing is stored."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}/{word}/x", b"misplaced", reason=0x80)
    publisher.publish(f"$queue/{queue}/a/{word}/b/c", b"misplaced", reason=0x80)
    publisher.publish(f"$queue/{queue}/a", b"stored")
    assert consumer.next(b"stored").offset == 0


@pytest.mark.parametrize("topic", ["$queue/", "$queue//key"])
def test_an_address_without_a_name_is_refused(publisher, consumer, topic):
    """Row "shape": `$queue/<name>[/<routing key>]`."""
    answer = publisher.raw.publish(topic, b"", qos=1)
    assert answer.reason >= 0x80
    assert consumer.try_consume(topic, "workers")[0] >= 0x80


def test_ordinary_dollar_topics_are_none_of_a_queue(connect, topic, provider, broker):
    """Row "shape": `$queues/x` and `$queuex/…` are ordinary topics."""
    client = connect(V5)
    client.subscribe(f"$queues/{topic}", qos=1)
    client.publish(f"$queues/{topic}", b"ordinary", qos=1)
    publish = client.expect_publish(f"$queues/{topic}", b"ordinary", ack=True)
    assert "user_property" not in publish.properties
