"""Settlements that say a time: `$nack` with `delay`, and `$extend`, by which a consumer keeps a message for longer."""

import time

import pytest

from tests.support.clients.packets import V5

NUMBERS = [b"%d" % number for number in range(3)]
SOON = {"initial_backoff": "50ms", "max_backoff": "50ms", "max_retries": 3}
LASTING = {"session_expiry_interval": 3600}


def say(client, delivery, verb, *, refused=False, **properties):
    pairs = [("message-id", delivery.message_id), ("group-id", delivery.group), *properties.items()]
    return client.command(f"$queue/{delivery.queue}/${verb}", pairs, refused=refused)


@pytest.mark.queue(retry=SOON)
@pytest.mark.parametrize("delay", ["1.5", "1500ms"])
def test_a_nack_with_a_delay(publisher, consumer, queue, delay):
    """Instead of the pause of the queue; it counts as a nack."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    before = time.monotonic()
    say(consumer, delivery, "nack", delay=delay)
    consumer.nothing(1.0)
    again = consumer.next(b"1")
    assert again.at - before >= 1.5
    assert again.count == 2
    before = time.monotonic()
    say(consumer, again, "nack")
    assert consumer.next(b"1").at - before < 1.0


@pytest.mark.any_log
@pytest.mark.queue(retry={"initial_backoff": "1h", "max_backoff": "1h"})
def test_a_delay_of_nothing(publisher, consumer, queue):
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    say(consumer, consumer.next(b"1"), "nack", delay="0")
    assert consumer.next(b"1").count == 2


@pytest.mark.any_log
@pytest.mark.queue(retry={**SOON, "max_retries": 0})
def test_a_delay_does_not_save_the_last_delivery(publisher, consumer, broker, queue):
    consumer.consume(f"$queue/{queue}", "workers")
    consumer.consume(f"$queue/$dlq/{queue}", "undertakers")
    publisher.publish(f"$queue/{queue}", b"1")
    say(consumer, consumer.next(b"1"), "nack", delay="1h")
    assert consumer.next(b"1").value("_dlq_reason") == "max-deliveries"


@pytest.mark.queue(visibility_timeout="1s")
def test_an_extension(publisher, open_queue, queue):
    """Without it another consumer has the message after a second; with it the first one settles it."""
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"long")
    delivery = one.next(b"long")
    say(one, delivery, "extend", timeout="1h")
    two.consume(f"$queue/{queue}", "workers")
    two.nothing(2.0)
    one.ack(delivery)


@pytest.mark.any_log
@pytest.mark.queue(visibility_timeout="1s")
def test_work_that_is_extended_again_and_again(publisher, consumer, queue):
    """Without a `timeout` it is the visibility timeout of the queue, from now on; the delivery count stays."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    for _ in range(6):
        time.sleep(0.4)
        say(consumer, delivery, "extend")
    consumer.ack(delivery)
    publisher.publish(f"$queue/{queue}", b"2")
    assert consumer.next(b"2").count == 1


@pytest.mark.any_log
@pytest.mark.queue
def test_an_extension_may_shorten(publisher, consumer, queue):
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    say(consumer, consumer.next(b"1"), "extend", timeout="100ms")
    assert consumer.next(b"1", timeout=10).count == 2


@pytest.mark.queue(visibility_timeout="1s", retry=SOON)
def test_both_survive_a_kill(publisher, open_queue, broker, queue):
    """The message that waits and the one that a client with a session keeps; what was not extended comes again."""
    client = open_queue(client_id=f"lasting-{queue}", properties=LASTING)
    client.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"waits", b"kept", b"plain")
    waits, kept, _ = client.take(b"waits", b"kept", b"plain")
    say(client, waits, "nack", delay="1h")
    say(client, kept, "extend", timeout="1h")
    broker.kill()
    broker.restart()
    client = open_queue(V5, f"lasting-{queue}", clean_start=False, properties=LASTING)
    assert client.next(timeout=20).payload == b"plain"
    client.nothing(1.5)
    due = {entry["offset"]: entry["due_in"] for entry in broker.pending(queue, "workers").values()}
    assert 3000 < due[0] <= 3600
    assert 3000 < due[1] <= 3600
    client.ack(kept)


@pytest.mark.any_log
def test_what_is_no_time_is_refused(publisher, consumer, queue):
    """`max_delay` is 12 hours; the message stays as it is."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    for wrong in ("", "soon", "-1", "1.", ".5", "1h30m", "99999999999", "13h", "1 s", "1e3"):
        for verb, name in (("nack", "delay"), ("extend", "timeout")):
            answer = say(consumer, delivery, verb, refused=True, **{name: wrong})
            assert "max_delay" in answer.properties["reason_string"]
    consumer.ack(delivery)


@pytest.mark.any_log
@pytest.mark.queue(max_delay="5s")
def test_the_limit_is_the_queue_s_own(publisher, consumer, queue):
    """The visibility timeout of the queue, 30 s, is not under it."""
    consumer.consume(f"$queue/{queue}", "workers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    say(consumer, delivery, "extend", refused=True, timeout="6s")
    say(consumer, delivery, "extend", timeout="5s")
    say(consumer, delivery, "extend")
    consumer.ack(delivery)


@pytest.mark.any_log
def test_only_who_has_the_message_extends_it(publisher, open_queue, queue):
    one, two = open_queue(), open_queue()
    one.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = one.next(b"1")
    two.consume(f"$queue/{queue}", "workers")
    say(two, delivery, "extend", refused=True)
    one.ack(delivery)
    say(one, delivery, "extend", refused=True)
    stranger = open_queue()
    say(stranger, delivery, "extend", refused=True)


@pytest.mark.any_log
def test_a_delayed_message_takes_no_room(publisher, consumer, broker, queue):
    """Nor is it kept by an extension: its consumer has given it back."""
    consumer.consume(f"$queue/{queue}", "workers", prefetch=1)
    publisher.publish(f"$queue/{queue}", b"1", b"2", b"3")
    first = consumer.next(b"1")
    say(consumer, first, "nack", delay="1h")
    second = consumer.next(b"2")
    say(consumer, first, "extend", refused=True, timeout="1s")
    say(consumer, first, "nack", refused=True, delay="0")
    say(consumer, second, "extend", timeout="1h")
    consumer.nothing()  # it still has the second
    consumer.reject(second)
    say(consumer, second, "extend", refused=True)
    consumer.ack(consumer.next(b"3"))
    assert broker.pending(queue, "workers")[0]["state"] == "waiting"


@pytest.mark.any_log
@pytest.mark.queue(type="stream")
def test_streams_have_no_deliveries_to_extend(publisher, consumer, queue):
    consumer.consume(f"$queue/{queue}", "readers")
    publisher.publish(f"$queue/{queue}", b"1")
    delivery = consumer.next(b"1")
    say(consumer, delivery, "extend", timeout="1s")
    say(consumer, delivery, "nack", delay="1s")
