"""Clients without properties: reference, rows "MQTT 3.1.1" of sections 3, 4 and 5."""

import pytest

from tests.support.clients.packets import V5, V31, V311
from tests.support.worlds.application import persistent

NUMBERS = [b"%d" % number for number in range(5)]


@pytest.mark.parametrize("version", [V31, V311], ids=["v31", "v311"])
def test_publish_and_consume(open_queue, broker, new_name, queue, version):
    """Section 5, "MQTT 3.1.1": PUBACK = ack; section 4: it gets no properties."""
    publisher, consumer = open_queue(version), open_queue(version, new_name("old"))
    consumer.consume(f"$queue/{queue}/#")
    publisher.publish(f"$queue/{queue}/a", *NUMBERS)
    deliveries = consumer.take(*NUMBERS, puback=False)
    assert {(delivery.topic, delivery.packet.qos) for delivery in deliveries} == {(f"$queue/{queue}/a", 1)}
    assert broker.progress(queue, consumer.client_id) == (5, 0, 5)
    for delivery in deliveries:
        consumer.raw.ack(delivery.packet)
    broker.await_progress(queue, consumer.client_id, committed=5, pending=0)


def test_the_group_is_the_whole_client_id(open_queue, publisher, broker, new_name, queue):
    """Section 3, "MQTT 3.1.1": the whole client id, not what stands before the first `-`."""
    prefix = new_name("old")
    consumers = [open_queue(V311, f"{prefix}-{number}") for number in range(2)]
    for consumer in consumers:
        consumer.consume(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"all")
    for consumer in consumers:
        consumer.next(b"all")
        broker.await_progress(queue, consumer.client_id, committed=1)


def test_qos_2(open_queue, publisher, broker, new_name, queue):
    """Section 5, "MQTT 3.1.1": PUBCOMP for QoS 2 = ack, where deliveries are of QoS 2."""
    consumer = open_queue(V311, new_name("old"))
    consumer.consume(f"$queue/{queue}", qos=2)
    publisher.publish(f"$queue/{queue}", *NUMBERS, qos=2)
    consumer.take(*NUMBERS)
    broker.await_progress(queue, consumer.client_id, committed=5, pending=0)


def test_qos_0_is_refused(open_queue, queue):
    """Section 5, "QoS of deliveries": 3.1.1 gets 0x80."""
    assert open_queue(V311).try_consume(f"$queue/{queue}", qos=0) == [0x80]


@pytest.mark.queue(visibility_timeout="400ms")
def test_what_is_not_acknowledged_comes_again(open_queue, publisher, new_name, queue):
    """Sections 5 and 6: without a PUBACK the entry stays pending and is given to the group again."""
    consumer = open_queue(V311, new_name("old"))
    consumer.consume(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"1")
    first = consumer.next(b"1", puback=False)
    consumer.close()
    again = open_queue(V311, consumer.client_id)
    again.consume(f"$queue/{queue}")
    second = again.next(b"1")
    assert first.payload == second.payload
    again.nothing(0.6)


def test_entries_of_a_clean_session_return_at_once(open_queue, publisher, new_name, queue):
    """Section 3, "liveness": no session, released at once (visibility timeout: 30 s)."""
    name = new_name("old")
    for attempt in range(2):
        consumer = open_queue(V311, name)
        consumer.consume(f"$queue/{queue}")
        if attempt == 0:
            publisher.publish(f"$queue/{queue}", b"1", b"2")
        consumer.take(b"1", b"2", puback=False)
        consumer.close()


def test_a_persistent_session(open_queue, publisher, broker, new_name, queue):
    """Section 14: persistent session keeps membership; what was not acknowledged is sent again [MQTT3-4.4.0-1]."""
    name = new_name("old")
    consumer = open_queue(V311, name, **persistent(V311))
    consumer.consume(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"0", b"1")
    acked, _ = consumer.take(b"0", b"1", puback=False)
    consumer.raw.ack(acked.packet)
    consumer.raw.ping()
    consumer.close()
    publisher.publish(f"$queue/{queue}", b"2")
    again = open_queue(V311, name, **persistent(V311))
    assert again.raw.connack.session_present
    again.take(b"1", b"2")
    broker.await_progress(queue, name, committed=3, pending=0)
    again.nothing(0.05)


def test_it_shares_a_group_with_newer_clients(open_queue, publisher, new_name, queue):
    """Section 3: a v5 client may name the group of an older one."""
    old, new = open_queue(V311, new_name("old")), open_queue(V5)
    old.consume(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"1")
    old.next(b"1")
    old.raw.unsubscribe(f"$queue/{queue}")
    publisher.publish(f"$queue/{queue}", b"2")
    new.consume(f"$queue/{queue}", old.client_id)
    new.ack(new.next(b"2"))
    new.nothing(0.05)


def test_it_cannot_settle_by_publishing(open_queue, broker, new_name, queue):
    """Seed: acknowledgements need v5; the verb is neither obeyed nor stored as a message."""
    consumer = open_queue(V311, new_name("old"))
    consumer.consume(f"$queue/{queue}")
    consumer.publish(f"$queue/{queue}", b"1")
    consumer.next(b"1", puback=False)
    consumer.raw.try_send_raw(b"\x30\x0f\x00\x0d$queue/x/$ack")
    other = open_queue(V5)
    other.raw.ping()
    assert broker.queue(queue)["tail"] == 1
    assert broker.queue("x") is None


@pytest.mark.queue(type="stream")
def test_streams(open_queue, publisher, broker, new_name, queue):
    """Sections 3 and 8: a stream without properties: from the beginning, then on from where it was."""
    name = new_name("old")
    reader = open_queue(V311, name)
    publisher.publish(f"$queue/{queue}", *NUMBERS)
    reader.consume(f"$queue/{queue}")
    reader.take(*NUMBERS)
    broker.await_progress(queue, name, committed=5)
    reader.close()
    publisher.publish(f"$queue/{queue}", b"5")
    again = open_queue(V311, name)
    again.consume(f"$queue/{queue}")
    again.take(b"5")


@pytest.mark.queue(retry={"max_retries": 2})
def test_dead_letters_after_too_many_deliveries(open_queue, publisher, new_name, queue):
    """Section 7: also of clients that cannot reject: each end of a connection is a delivery that failed."""
    name = new_name("old")
    for attempt in range(3):
        consumer = open_queue(V311, name)
        consumer.consume(f"$queue/{queue}")
        if attempt == 0:
            publisher.publish(f"$queue/{queue}", b"poison")
        consumer.next(b"poison", puback=False)
        consumer.close()
    dead = open_queue(V5)
    dead.consume(f"$queue/$dlq/{queue}", "undertakers")
    letter = dead.next(b"poison")
    assert letter.properties["_dlq_reason"] == "max-deliveries"
    assert letter.properties["_dlq_group"] == name
