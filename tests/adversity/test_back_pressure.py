"""Is a publisher that outruns its subscribers slowed down rather than its messages lost?"""

import threading
import time

import pytest

from tests.support.clients.packets import V5, pack_publish

PAYLOAD = bytes(2000)


@pytest.mark.parametrize("qos", [0, 1])
def test_subscriber_that_keeps_reading_loses_nothing(broker, connect, topic, qos):
    """The issue: a publisher that outruns its subscribers is slowed by not reading its socket."""
    subscriber = connect(V5)
    subscriber.subscribe(topic, qos=qos)
    publisher = connect(V5)
    publisher.stream.settimeout(60)
    count = 12_000 if qos == 0 else 3000

    def publish():
        if qos == 0:
            for first in range(0, count, 50):
                numbers = range(first, first + 50)
                publisher.send_raw(b"".join(pack_publish(V5, topic, b"%06d" % number + PAYLOAD) for number in numbers))
        else:
            for number in range(count):
                publisher.publish(topic, b"%06d" % number + PAYLOAD, qos=1)

    sender = threading.Thread(target=publish)
    sender.start()
    for expected in range(count):
        publish_packet = subscriber.expect_publish(topic, ack=True)
        assert int(publish_packet.payload[:6]) == expected
    sender.join(60)
    assert not sender.is_alive()


def test_slow_but_steady_subscriber_loses_nothing(start_broker, connect, topic):
    """It reads at a fraction of the publisher's speed: the publisher waits for it, other traffic does not."""
    broker = start_broker({"limits.backpressure_seconds": 20})
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe(topic)
    publisher = connect(V5, broker=broker)
    publisher.stream.settimeout(60)
    other = connect(V5, broker=broker)
    count = 6000
    packets = b"".join(pack_publish(V5, topic, b"%06d" % number + PAYLOAD) for number in range(count))
    sender = threading.Thread(target=publisher.send_raw, args=(packets,))
    sender.start()
    slowest = 0.0
    for expected in range(count):
        assert int(subscriber.expect_publish(topic).payload[:6]) == expected
        if expected % 300 == 0:
            start = time.monotonic()
            other.ping()
            slowest = max(slowest, time.monotonic() - start)
            time.sleep(0.05)
    sender.join(60)
    assert not sender.is_alive()
    assert slowest < 10.0  # not until the subscriber loses messages


def test_fan_in_of_many_fast_publishers(broker, connect, topic):
    """Ten publishers at full speed to one subscriber: every message arrives, each stream in order."""
    subscriber = connect(V5)
    subscriber.subscribe(f"{topic}/+")
    publishers = [connect(V5) for _ in range(10)]
    count = 2000

    def publish(publisher, name):
        publisher.stream.settimeout(60)
        for first in range(0, count, 100):
            numbers = range(first, first + 100)
            publisher.send_raw(b"".join(pack_publish(V5, f"{topic}/{name}", b"%d" % number) for number in numbers))

    senders = [threading.Thread(target=publish, args=(one, name)) for name, one in enumerate(publishers)]
    for sender in senders:
        sender.start()
    following = dict.fromkeys((f"{topic}/{name}" for name in range(10)), 0)
    for _ in range(count * 10):
        packet = subscriber.expect_publish()
        assert int(packet.payload) == following[packet.topic]
        following[packet.topic] += 1
    for sender in senders:
        sender.join(60)


def test_a_row_of_slow_readers_of_one_user_slows_a_publisher_once(start_broker, connect, topic, new_name):
    """limits.backpressure_seconds is the patience with a user (here: an address), not with each of its connections."""
    broker = start_broker({"limits.backpressure_seconds": 2})
    publisher = connect(V5, broker=broker)
    publisher.stream.settimeout(60)
    took = []
    readers = []
    for _ in range(4):
        reader = connect(V5, new_name("reader"), broker=broker)
        reader.subscribe(topic)
        readers.append(reader)
        started = time.monotonic()
        for _ in range(30):
            publisher.send_publish(topic, bytes(200_000))
        publisher.ping()
        took.append(time.monotonic() - started)
    assert took[0] >= 1.5
    assert sum(took[1:]) < 1.5
