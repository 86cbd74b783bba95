"""Packs to and from the messages of confluent-kafka, and the count of delivery reports."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, Message

from penstock._ext.kafka_records import Delivery, find_odd, messages_of, packs_of
from penstock._ext.segment import RecordPack

NOW = 1_700_000_000_000


def pack_of(*values: bytes | None, key: bytes | None = None) -> RecordPack:
    pack = RecordPack()
    for value in values:
        pack.append(value, key, timestamp=NOW)
    return pack


def message(topic: str, partition: int, offset: int, value: bytes | None, key: bytes | None = None) -> Message:
    return Message(topic=topic, partition=partition, offset=offset, value=value, key=key, timestamp=(1, NOW + offset))


def test_messages_of_a_pack() -> None:
    pack = pack_of(b"value", b"", None)
    pack.append(b"keyed", b"key", timestamp=NOW)
    pack.append(b"keyed", b"", timestamp=NOW)
    assert messages_of(pack) == [
        {"value": b"value"},
        {"value": b""},
        {"value": None},
        {"value": b"keyed", "key": b"key"},
        {"value": b"keyed", "key": b""},
    ]


def test_what_cannot_be_produced_as_a_batch() -> None:
    assert find_odd(pack_of(b"12345678"), NOW - 1, NOW + 1, 8) == 0
    assert find_odd(pack_of(b"123456789"), NOW - 1, NOW + 1, 8) == 2
    assert find_odd(pack_of(None, key=b"123456789"), NOW - 1, NOW + 1, 8) == 2
    assert find_odd(pack_of(b"x"), NOW + 1, NOW + 2, 8) == 1
    assert find_odd(pack_of(b"x"), NOW - 2, NOW - 1, 8) == 1
    with_headers = RecordPack()
    with_headers.append(b"x", headers=[("name", b"value")], timestamp=NOW)
    assert find_odd(with_headers, NOW - 1, NOW + 1, 100) == 1


def test_packs_of_messages_with_gaps_and_several_partitions() -> None:
    messages = [
        message("a", 0, 5, b"five"),
        message("a", 0, 9, None, b"key"),
        message("a", 1, 0, b"zero"),
        message("b", 1, 1, b"one", b""),
        message("a", 0, 10, b"ten"),
    ]
    packs, errors = packs_of(messages)
    assert errors == []
    assert [(topic, partition, pack.offsets().tolist()) for topic, partition, pack in packs] == [
        ("a", 0, [5, 9]),
        ("a", 1, [0]),
        ("b", 1, [1]),
        ("a", 0, [10]),
    ]
    first = packs[0][2]
    assert (first.base_offset, first.next_offset, first.is_sealed) == (5, 10, True)
    assert [(record.key, record.value, record.timestamp) for record in first] == [
        (None, b"five", NOW + 5),
        (b"key", None, NOW + 9),
    ]
    assert packs[2][2].keys() == [b""]


def test_an_offset_that_goes_back_starts_a_new_pack() -> None:
    packs, _ = packs_of([message("a", 0, 5, b"x"), message("a", 0, 3, b"y")])
    assert [pack.base_offset for _, _, pack in packs] == [5, 3]


def test_errors_are_set_apart() -> None:
    failed = Message(topic="a", partition=0, error=KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
    packs, errors = packs_of([message("a", 0, 5, b"x"), failed, message("a", 0, 6, b"y")])
    assert [pack.values() for _, _, pack in packs] == [[b"x", b"y"]]
    assert errors == [failed]
    assert packs_of([]) == ([], [])


@pytest.mark.parametrize("failing", [None, 0, 1, 2])
def test_a_delivery_is_finished_by_its_last_report(failing: int | None) -> None:
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"0", b"1", b"2"), None, finished)
    error = KafkaError(KafkaError._MSG_TIMED_OUT)
    for number in range(3):
        assert not delivery.is_complete
        delivery.report(error if number == failing else None, message("a", 0, 40 + number, b""))
    assert finished == [delivery]
    assert delivery.failed == (0 if failing is None else 1)
    assert delivery.is_dense is (failing is None)
    assert delivery.error == (None if failing is None else error)
    assert delivery.base_offset == (-1 if failing == 0 else 40)


def test_another_producers_records_among_ours_are_noticed() -> None:
    finished: list[Delivery] = []
    delivery = Delivery("a", 0, pack_of(b"0", b"1"), None, finished)
    delivery.report(None, message("a", 0, 40, b""))
    delivery.report(None, message("a", 0, 42, b""))
    assert finished == [delivery]
    assert not delivery.is_dense
