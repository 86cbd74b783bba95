"""What does a delivery carry? Reference, section 4 (properties on a delivery)."""

import time

import pytest

from tests.support.clients.packets import V5, V311

RESERVED = [
    "message-id",
    "group-id",
    "queue",
    "offset",
    "x-stream-offset",
    "x-stream-timestamp",
    "x-work-committed-offset",
    "x-work-acked",
    "x-work-group",
    "x-source-topic",
    "x-delivery-count",
]


def test_a_first_delivery_of_a_classic_queue(publisher, consumer, queue):
    """Rows `message-id`, `group-id`, `queue`, `offset`, "further": exactly these, and no x-delivery-count yet."""
    publisher.publish(f"$queue/{queue}/a/b", b"0", b"1")
    consumer.consume(f"$queue/{queue}/a/#", "workers")
    for offset, delivery in enumerate(consumer.take(b"0", b"1")):
        assert delivery.properties == {
            "message-id": f"{queue}:{offset}",
            "group-id": "workers",
            "queue": queue,
            "offset": str(offset),
            "x-source-topic": f"$queue/{queue}/a/b",
        }
        assert (delivery.packet.qos, delivery.packet.dup, delivery.packet.retain) == (1, False, False)


@pytest.mark.queue(retry={"initial_backoff": "0s"})
def test_the_delivery_count_from_the_second_on(publisher, consumer, queue):
    """Row "further": x-delivery-count; a PUBACK ended the first exchange, so that a delivery again is no duplicate."""
    publisher.publish(f"$queue/{queue}", b"1")
    consumer.consume(f"$queue/{queue}", "workers")
    first = consumer.next(b"1")
    assert "x-delivery-count" not in first.properties
    consumer.nack(first)
    second = consumer.next(b"1")
    assert second.properties["x-delivery-count"] == "2"
    assert (second.message_id, second.offset) == (first.message_id, first.offset)
    assert not second.packet.dup
    consumer.nack(second)
    assert consumer.next(b"1").properties["x-delivery-count"] == "3"


@pytest.mark.queue(type="stream")
def test_a_delivery_of_a_stream(publisher, consumer, queue):
    """Row `x-stream-offset`, `x-stream-timestamp`: streams; Unix milliseconds."""
    before = int(time.time() * 1000)
    publisher.publish(f"$queue/{queue}/a", b"0", b"1")
    after = int(time.time() * 1000)
    consumer.consume(f"$queue/{queue}", "readers")
    stamps = []
    for offset, delivery in enumerate(consumer.take(b"0", b"1")):
        properties = delivery.properties
        stamps.append(int(properties.pop("x-stream-timestamp")))
        assert properties == {
            "message-id": f"{queue}:{offset}",
            "group-id": "readers",
            "queue": queue,
            "offset": str(offset),
            "x-stream-offset": str(offset),
            "x-source-topic": f"$queue/{queue}/a",
        }
    assert before <= stamps[0] <= stamps[1] <= after


@pytest.mark.queue(type="stream", primary_group="workers")
def test_the_progress_of_the_primary_group(publisher, open_queue, queue):
    """Row `x-work-committed-offset`, `x-work-acked`, `x-work-group`: when a primary group is configured."""
    workers, readers = open_queue(), open_queue()
    publisher.publish(f"$queue/{queue}", b"0", b"1", b"2")
    workers.consume(f"$queue/{queue}", "workers", x_auto_commit="false")
    workers.take(b"0", b"1", b"2")
    workers.commit(queue, "workers", 1)
    readers.consume(f"$queue/{queue}", "readers")
    for delivery, acked in zip(readers.take(b"0", b"1", b"2"), ("true", "true", "false"), strict=True):
        assert delivery.properties["x-work-group"] == "workers"
        assert delivery.properties["x-work-committed-offset"] == "2"
        assert delivery.properties["x-work-acked"] == acked


@pytest.mark.queue(type="stream", primary_group="workers")
def test_a_primary_group_that_has_not_begun(publisher, consumer, queue):
    """Row `x-work-…`: nothing is acked before the primary group has committed anything."""
    publisher.publish(f"$queue/{queue}", b"0")
    consumer.consume(f"$queue/{queue}", "readers")
    properties = consumer.next(b"0").properties
    assert properties["x-work-group"] == "workers"
    assert properties["x-work-acked"] == "false"
    assert properties.get("x-work-committed-offset", "0") == "0"


@pytest.mark.parametrize("kind", ["classic", "stream"])
@pytest.mark.queue("stream", type="stream", primary_group="workers")
@pytest.mark.queue("classic")
def test_nothing_can_be_forged(publisher, consumer, queues, kind):
    """Row "forged values": a publisher's values of these names are overwritten, its own names stay."""
    queue = queues[kind]
    forged = [("mine", "1"), *((name, "forged") for name in RESERVED), ("mine", "2"), ("x-delivery-count", "7")]
    publisher.publish(f"$queue/{queue}", b"1", properties={"user_property": forged})
    consumer.consume(f"$queue/{queue}", "readers")
    delivery = consumer.next(b"1")
    assert "forged" not in [value for _, value in delivery.pairs]
    assert [value for name, value in delivery.pairs if name == "mine"] == ["1", "2"]
    names = [name for name, _ in delivery.pairs if name != "mine"]
    assert len(names) == len(set(names))
    assert "x-delivery-count" not in names
    assert dict(delivery.pairs)["x-source-topic"] == f"$queue/{queue}"
    assert dict(delivery.pairs)["message-id"] == f"{queue}:0"


def test_properties_of_the_publisher_pass_unchanged(publisher, consumer, queue):
    """Section 4, and MQTT 5: what is no property of the queue is the application's own [MQTT-3.3.2-17]."""
    properties = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\x00\x01",
        "user_property": [("b", "2"), ("a", "1"), ("b", "3")],
    }
    publisher.publish(f"$queue/{queue}", b"text", properties=properties)
    consumer.consume(f"$queue/{queue}", "workers")
    packet = consumer.next(b"text").packet
    for name in ("payload_format_indicator", "content_type", "response_topic", "correlation_data"):
        assert packet.properties[name] == properties[name]
    own = [pair for pair in packet.properties["user_property"] if pair[0] in ("a", "b")]
    assert own == properties["user_property"]


def test_the_expiry_left_is_told(publisher, consumer, queue):
    """[MQTT-3.3.2-6]: the interval a message has left, not more than it was published with."""
    publisher.publish(f"$queue/{queue}", b"1", properties={"message_expiry_interval": 100})
    publisher.publish(f"$queue/{queue}", b"2")
    consumer.consume(f"$queue/{queue}", "workers")
    with_expiry, without = consumer.take(b"1", b"2")
    assert 90 < with_expiry.packet.properties["message_expiry_interval"] <= 100
    assert without.packet.properties.get("message_expiry_interval", 604_800) <= 604_800


def test_a_subscription_identifier_comes_along(publisher, consumer, queue):
    """[MQTT-3.3.4-3]: the identifier of the subscription is in the PUBLISH."""
    properties = {"subscription_identifier": 7, "user_property": [("consumer-group", "workers")]}
    assert consumer.raw.subscribe(f"$queue/{queue}", qos=1, properties=properties) == [1]
    publisher.publish(f"$queue/{queue}", b"1")
    assert consumer.next(b"1").packet.properties["subscription_identifier"] == [7]


def test_a_publisher_of_either_version(open_queue, consumer, queue):
    """Section 4: MQTT 3.1.1 sends no properties; its messages get those of the queue all the same."""
    for version in (V311, V5):
        open_queue(version).publish(f"$queue/{queue}/k", b"%d" % version)
    consumer.consume(f"$queue/{queue}", "workers")
    first, second = consumer.take(b"4", b"5")
    assert first.properties | second.properties == second.properties
    assert first.properties.keys() == second.properties.keys()


def test_payloads_of_all_sizes(publisher, consumer, queue):
    """Section 4: the payload is the publisher's, byte for byte."""
    payloads = [b"", b"\0", bytes(range(256)), b"x" * 70_000]
    publisher.publish(f"$queue/{queue}", *payloads)
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.take_and_ack(*payloads)
