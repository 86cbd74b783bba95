"""Packs on their way into librdkafka, and the count of delivery reports. With a real Kafka: test_kafka_packs.py."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock._ext.kafka.client import Delivery, PackProducer, find_odd
from penstock._ext.record.segment import RecordPack, crc32c, read_batches

NOW = 1_700_000_000_000


def pack_of(*values: bytes | None, key: bytes | None = None) -> RecordPack:
    pack = RecordPack()
    for value in values:
        pack.append(value, key, timestamp=NOW)
    return pack


def test_what_cannot_be_produced_as_a_batch() -> None:
    assert find_odd(pack_of(b"12345678"), NOW - 1, NOW + 1, 8) == 0
    assert find_odd(pack_of(b"123456789"), NOW - 1, NOW + 1, 8) == 2
    assert find_odd(pack_of(None, key=b"123456789"), NOW - 1, NOW + 1, 8) == 2
    assert find_odd(pack_of(b"x"), NOW + 1, NOW + 2, 8) == 1
    assert find_odd(pack_of(b"x"), NOW - 2, NOW - 1, 8) == 1
    with_headers = RecordPack()
    with_headers.append(b"x", headers=[("name", b"value")], timestamp=NOW)
    assert find_odd(with_headers, NOW - 1, NOW + 1, 100) == 1


@pytest.mark.parametrize("failing", [None, 0, 1, 2])
def test_a_delivery_is_finished_by_its_last_report(failing: int | None) -> None:
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"0", b"1", b"2"), None, finished)
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    for number in range(3):
        assert not delivery.is_complete
        if number == failing:
            delivery.fail(error, 1)
        else:
            delivery.succeed(40 + number)
    assert finished == [delivery]
    assert delivery.failed == (0 if failing is None else 1)
    assert delivery.is_dense is (failing is None)
    assert delivery.error == (None if failing is None else error)
    assert delivery.base_offset == (-1 if failing == 0 else 40)


def test_another_producers_records_among_ours_are_noticed() -> None:
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"0", b"1"), None, finished)
    delivery.succeed(40)
    delivery.succeed(42)
    assert finished == [delivery]
    assert not delivery.is_dense


@pytest.mark.parametrize("unknown", [-1, -1001])
def test_an_offset_that_is_not_known_is_not_that_of_a_later_record(unknown: int) -> None:
    """Kafka has a repeated request's records already, and may have forgotten where."""
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"0", b"1", b"2"), None, finished)
    delivery.succeed(unknown)
    delivery.succeed(41)
    delivery.succeed(42)
    assert (delivery.base_offset, delivery.is_dense) == (-1, False)


@pytest.mark.parametrize("count", [1, 3])
def test_a_delivery_without_records_left_is_over(count: int) -> None:
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(*[b"x"] * count), None, finished)
    delivery.fail(ValueError("no"), 0)
    assert finished == []
    delivery.fail(ValueError("no"), count)
    assert finished == [delivery]
    assert delivery.failed == count


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ({"no.such.property": 1}, "No such configuration property"),
        ({"acks": "some"}, "acks"),
        ({"enable.idempotence": True, "acks": 0}, "acks"),
        ({"a.property.of.the.plugin": 1, "plugin.library.paths": "/nowhere/plugin"}, "/nowhere/plugin"),
        ({"ssl.ca.location": "/nowhere", "security.protocol": "ssl"}, "ssl.ca.location"),
    ],
)
def test_properties_that_librdkafka_does_not_take(properties: dict[str, str | int | bool], said: str) -> None:
    with pytest.raises(KafkaException, match=said):
        PackProducer(properties)


def test_a_producer_that_is_closed_takes_nothing() -> None:
    producer = PackProducer({"log_level": 0})
    producer.close()
    producer.close()
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"x", b"y"), None, finished)
    producer.produce(delivery)
    producer.poll()
    producer.purge()
    assert len(producer) == 0
    assert finished == [delivery]
    assert delivery.failed == 2


def test_what_was_never_written_is_given_up_at_the_end() -> None:
    """Nobody listens there; a pack that librdkafka still has when its producer goes stays readable until then."""
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    for _ in range(10):
        producer.produce(Delivery("a", 0, pack_of(*[b"x"] * 300), None, finished))
    assert len(producer) >= 3_000
    producer.purge()
    producer.close()
    assert [delivery.failed for delivery in finished] == [300] * 10
    assert {delivery.error.code() for delivery in finished if isinstance(delivery.error, KafkaError)} == {
        KafkaError._PURGE_QUEUE
    }
    abandoned = PackProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    abandoned.produce(Delivery("a", 0, pack_of(b"x"), None, finished))
    del abandoned
    assert len(finished) == 10


@pytest.mark.parametrize("damaged", [0, 1])
def test_damaged_headers_fail_what_is_behind_them_and_nobody_waits_for_it(damaged: int) -> None:
    pack = RecordPack()
    for number in range(2):
        pack.append(b"x", headers=[(f"name-{number}", b"value")], timestamp=NOW)
    data = bytearray(pack.encode(0))
    data[data.index(b"name-%d" % damaged) - 1] = 0x7F  # the size of the name
    data[8:12] = crc32c(data[12:]).to_bytes(4, "little")
    broken = RecordPack()
    read_batches(broken, data, 0, 0, -1, 2, 1_000)
    assert broken.count == 2
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    delivery = Delivery("a", 0, broken, None, finished)
    producer.produce_each(delivery)
    assert delivery.failed == 2 - damaged
    producer.purge()
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(60)
    assert not closing.is_alive()
    assert (finished, delivery.failed) == ([delivery], 2)
    assert isinstance(delivery.error, ValueError)


def test_more_than_the_queue_has_room_for() -> None:
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0, "queue.buffering.max.messages": 1_000})
    deliveries = [Delivery("a", 0, pack_of(*[b"x"] * 700), None, finished) for _ in range(3)]
    for delivery in deliveries:
        producer.produce(delivery)
    assert [delivery.failed for delivery in deliveries] == [0, 400, 700]
    assert finished == deliveries[2:]
    error = deliveries[1].error
    assert isinstance(error, KafkaError)
    assert error.code() == KafkaError._QUEUE_FULL
    producer.purge()
    producer.close()
    assert finished == [deliveries[2], deliveries[0], deliveries[1]]
    assert [delivery.failed for delivery in deliveries] == [700, 700, 700]


def test_what_librdkafka_says_comes_with_a_poll() -> None:
    errors: list[KafkaError] = []
    reports: list[str] = []
    lines: list[tuple[int, str]] = []
    producer = PackProducer(
        {
            "bootstrap.servers": "127.0.0.1:1",
            "statistics.interval.ms": 50,
            "client.id": "named",
            "enable.idempotence": True,
        },
        errors.append,
        reports.append,
        lambda level, line: lines.append((level, line)),
    )
    while not (errors and reports and lines):
        producer.poll()
    assert errors[0].code() in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN)
    assert "127.0.0.1" in errors[0].str()
    assert reports[0].startswith("{")
    assert any("[named#producer-" in line and level == 40 for level, line in lines)
    producer.fail_for_good(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "for a test")
    while not errors[-1].fatal():
        producer.poll()
    assert errors[-1].code() == KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER
    finished: list[Delivery] = []
    producer.produce(Delivery("a", 0, pack_of(b"x"), None, finished))
    assert [delivery.failed for delivery in finished] == [1]
    producer.close()
