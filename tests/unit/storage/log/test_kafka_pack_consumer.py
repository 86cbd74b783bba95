"""Packs out of a real Kafka through librdkafka, and what its consumer asks and is told, without anything around it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock._ext.kafka.client import PackConsumer
from penstock._ext.record.segment import RecordPack
from tests.support.servers.kafka_cluster import KafkaCluster

MIB = 1_048_576
Place = tuple[str, int]
Failure = tuple[KafkaError, str | None, int]


@pytest.fixture
def properties(kafka: KafkaCluster, topic: str) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": kafka.bootstrap,
        "group.id": f"group-{topic}",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "cooperative-sticky",
        "log_level": 0,
    }


@pytest.fixture
def consumer(properties: dict[str, str | int | bool]) -> Iterator[PackConsumer]:
    consumer = PackConsumer(properties)
    yield consumer
    consumer.close()


@pytest.fixture
def others(kafka: KafkaCluster) -> Iterator[confluent_kafka.Producer]:
    """Somebody else's producer."""
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 0})
    yield producer
    producer.flush(30)


def new_topic(kafka: KafkaCluster, name: str, partitions: int = 1) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, partitions, config={"retention.ms": "-1"})])[name].result(30)
    return name


def read(
    consumer: PackConsumer, count: int, most: int = 100, largest: int = MIB
) -> tuple[list[tuple[str, int, RecordPack]], list[Failure]]:
    """Until there are so many records and failures in all."""
    packs: list[tuple[str, int, RecordPack]] = []
    failures: list[Failure] = []
    deadline = time.monotonic() + 60
    while sum(pack.count for _, _, pack in packs) + len(failures) < count:
        assert time.monotonic() < deadline
        more, failed = consumer.read(most, 0.2, largest)
        packs += more
        failures += failed
    return packs, failures


def test_records_come_as_they_were_written(
    kafka: KafkaCluster, topic: str, consumer: PackConsumer, others: confluent_kafka.Producer
) -> None:
    new_topic(kafka, topic)
    headers: list[tuple[str, bytes | None]] = [("name", b"\x00value"), ("name", None), ("caf\u00e9", b"")]
    written: list[dict[str, Any]] = [
        {"value": value, "key": key, "timestamp": 1_600_000_000_000 + number, "headers": given}
        for number, (value, key, given) in enumerate(
            (value, key, given)
            for value in (b"value", b"", None, bytes(100_000))
            for key in (b"key", b"", None)
            for given in (headers, [])
        )
    ]
    for message in written:
        others.produce(topic, partition=0, **message)
    assert others.flush(30) == 0
    consumer.assign({(topic, 0): OFFSET_BEGINNING})
    packs, failures = read(consumer, len(written))
    assert failures == []
    assert all((name, number) == (topic, 0) and pack.is_sealed for name, number, pack in packs)
    records = [record for _, _, pack in packs for record in pack]
    assert [record.offset for record in records] == list(range(len(written)))
    for record, message in zip(records, written, strict=True):
        assert (record.value, record.key, record.timestamp) == (message["value"], message["key"], message["timestamp"])
        assert record.headers == [(name, value or b"") for name, value in message["headers"]]


def test_gaps_between_offsets_stay(kafka: KafkaCluster, topic: str, consumer: PackConsumer) -> None:
    """The end of a transaction takes an offset and is no record."""
    new_topic(kafka, topic)
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for number in range(5):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction(30)
    consumer.assign({(topic, 0): 2})
    packs, _ = read(consumer, 4)
    assert [offset for _, _, pack in packs for offset in pack.offsets().tolist()] == [2, 4, 6, 8]
    assert packs[-1][2].next_offset == 9
    assert packs[0][2].base_offset == 2


def test_a_pack_is_of_one_partition_and_no_larger_than_allowed(
    kafka: KafkaCluster, topic: str, consumer: PackConsumer, others: confluent_kafka.Producer
) -> None:
    names = [new_topic(kafka, f"{topic}-{number}", 2) for number in range(2)]
    places = [(name, number) for name in names for number in range(2)]
    for number in range(300):
        for name, partition in places:
            others.produce(name, b"%d %d" % (partition, number) + bytes(200), partition=partition)
    assert others.flush(30) == 0
    consumer.assign(dict.fromkeys(places, OFFSET_BEGINNING))
    packs, _ = read(consumer, 1_200, most=1_000, largest=10_000)
    found: dict[Place, list[int]] = {}
    for name, partition, pack in packs:
        assert pack.size < 10_000 + 300
        assert all((record.value or b"").startswith(b"%d " % partition) for record in pack)
        found.setdefault((name, partition), []).extend(pack.offsets().tolist())
    assert found == {place: list(range(300)) for place in places}


@pytest.mark.parametrize("most", [1, 2, 511, 512, 513, 1_500])
def test_no_more_than_was_asked_for(
    kafka: KafkaCluster, topic: str, consumer: PackConsumer, others: confluent_kafka.Producer, most: int
) -> None:
    new_topic(kafka, topic)
    for number in range(2_000):
        others.produce(topic, b"%d" % number, partition=0)
    assert others.flush(30) == 0
    consumer.assign({(topic, 0): OFFSET_BEGINNING})
    values: list[bytes | None] = []
    deadline = time.monotonic() + 60
    while len(values) < 2_000:
        assert time.monotonic() < deadline
        packs, _ = consumer.read(most, 0.2, MIB)
        assert sum(pack.count for _, _, pack in packs) <= most
        values += [record.value for _, _, pack in packs for record in pack]
    assert values == [b"%d" % number for number in range(2_000)]


def test_what_librdkafka_says_instead_of_records(
    kafka: KafkaCluster, topic: str, properties: dict[str, str | int | bool], others: confluent_kafka.Producer
) -> None:
    new_topic(kafka, topic, 2)
    others.produce(topic, b"x", partition=1)
    assert others.flush(30) == 0
    consumer = PackConsumer({**properties, "auto.offset.reset": "error"})
    consumer.assign({(topic, 0): 1_000, (topic, 1): 0})
    packs, failures = read(consumer, 2)
    assert [(name, number, pack.count) for name, number, pack in packs] == [(topic, 1, 1)]
    error, name, number = failures[0]
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in error.str()
    assert (name, number) == (topic, 0)
    consumer.close()


def test_offsets_and_their_metadata(
    kafka: KafkaCluster, topic: str, consumer: PackConsumer, others: confluent_kafka.Producer
) -> None:
    new_topic(kafka, topic, 2)
    for number in range(10):
        others.produce(topic, b"x", partition=0, timestamp=1_600_000_000_000 + number)
    assert others.flush(30) == 0
    consumer.commit({(topic, 0): (4, "caf\u00e9"), (topic, 1): (0, "")})
    assert consumer.committed([(topic, 0), (topic, 1)], 10) == {(topic, 0): (4, "caf\u00e9"), (topic, 1): (0, "")}
    assert consumer.committed([], 10) == {}
    assert consumer.watermarks(topic, 0, 10) == (0, 10)
    times = {(topic, 0): 1_600_000_000_003, (topic, 1): -2}
    assert consumer.offsets_for_times(times, 10) == {(topic, 0): 3, (topic, 1): 0}
    assert consumer.offsets_for_times({(topic, 0): 1_700_000_000_000}, 10) == {(topic, 0): -1}
    consumer.look_up(topic, 10)
    consumer.assign({(topic, 0): confluent_kafka.OFFSET_INVALID})
    packs, _ = read(consumer, 6)
    assert packs[0][2].base_offset == 4
    consumer.pause([(topic, 0)])
    others.produce(topic, b"later", partition=0)
    assert others.flush(30) == 0
    assert consumer.read(10, 0.5, MIB) == ([], [])
    consumer.resume([(topic, 0)])
    assert read(consumer, 1)[0][0][2].base_offset == 10
    consumer.seek(topic, 0, 8)
    assert read(consumer, 3)[0][0][2].base_offset == 8
    with pytest.raises(KafkaException):
        consumer.watermarks(f"{topic}-no", 0, 10)
    with pytest.raises(KafkaException):
        consumer.incremental_unassign([(f"{topic}-no", 0)])


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
@pytest.mark.parametrize("listening", ["nobody", "idle", "failing"])
def test_who_does_not_answer_a_rebalance_has_the_partitions(
    *,
    kafka: KafkaCluster,
    topic: str,
    properties: dict[str, str | int | bool],
    others: confluent_kafka.Producer,
    strategy: str,
    listening: str,
) -> None:
    new_topic(kafka, topic)
    others.produce(topic, b"x", partition=0)
    assert others.flush(30) == 0
    told: list[tuple[str, list[Place]]] = []

    def hear(of: str, places: list[Place]) -> None:
        told.append((of, places))
        if listening == "failing":
            raise ArithmeticError(of)

    consumer = PackConsumer({**properties, "partition.assignment.strategy": strategy})
    if listening == "nobody":
        consumer.subscribe([topic], None, None)
    else:
        consumer.subscribe([topic], lambda _, places: hear("given", places), lambda _, places: hear("taken", places))
    count = raised = 0
    deadline = time.monotonic() + 60
    while count + raised < (2 if listening == "failing" else 1):
        assert time.monotonic() < deadline
        try:
            count += sum(pack.count for _, _, pack in consumer.read(10, 0.2, MIB)[0])
        except ArithmeticError as error:
            raised += str(error) == "given"
    assert count == 1
    if listening == "failing":
        with pytest.raises(ArithmeticError, match="taken"):
            consumer.close()
    consumer.close()
    assert told == ([] if listening == "nobody" else [("given", [(topic, 0)]), ("taken", [(topic, 0)])])


def test_a_callback_cannot_close_the_consumer_it_comes_from(
    kafka: KafkaCluster, topic: str, properties: dict[str, str | int | bool]
) -> None:
    new_topic(kafka, topic)
    consumer = PackConsumer(properties)
    consumer.subscribe([topic], lambda consumer, _: consumer.close(), lambda consumer, _: consumer.close())
    with pytest.raises(RuntimeError, match="in the middle of a rebalance"):
        read(consumer, 1)
    with pytest.raises(RuntimeError, match="in the middle of a rebalance"):
        consumer.close()
    consumer.close()


def test_a_closed_consumer_says_so(consumer: PackConsumer) -> None:
    consumer.close()
    consumer.close()
    for ask in (
        lambda: consumer.read(1, 0.0, MIB),
        lambda: consumer.assign({}),
        lambda: consumer.commit({("a", 0): (1, "")}),
        lambda: consumer.watermarks("a", 0, 1),
        lambda: consumer.subscribe(["a"], None, None),
    ):
        with pytest.raises(RuntimeError, match="closed"):
            ask()


def test_a_question_of_another_thread_is_waited_for(kafka: KafkaCluster, consumer: PackConsumer, topic: str) -> None:
    """close() does not take librdkafka away from under it."""
    new_topic(kafka, topic)
    answers: list[object] = []

    def ask() -> None:
        while True:
            try:
                answers.append(consumer.watermarks(topic, 0, 10))
            except (RuntimeError, KafkaException) as error:
                answers.append(error)
                if isinstance(error, RuntimeError):
                    return

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    consumer.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert (0, 0) in answers


def test_one_that_is_forgotten_ends_quietly(kafka: KafkaCluster, topic: str, properties: dict[str, Any]) -> None:
    new_topic(kafka, topic)
    told: list[object] = []
    consumer = PackConsumer(properties, told.append)
    consumer.subscribe([topic], lambda consumer, places: told.append(consumer), lambda *_: told.append("taken"))
    deadline = time.monotonic() + 60
    while not told:
        consumer.read(1, 0.2, MIB)
        assert time.monotonic() < deadline
    told.clear()
    del consumer
    gc.collect()
    assert told == []


def test_one_that_is_forgotten_with_partitions_it_has_not_heard_of_ends(
    kafka: KafkaCluster, topic: str, properties: dict[str, Any]
) -> None:
    new_topic(kafka, topic)
    forgotten = [PackConsumer(properties)]
    forgotten[0].subscribe([topic], None, None)
    time.sleep(2)  # it has joined and was given the partition, and nobody reads
    ending = threading.Thread(target=forgotten.clear, daemon=True)
    ending.start()
    ending.join(60)
    assert not ending.is_alive()


@pytest.mark.parametrize(
    "wrong",
    [{"topic": 1}, {(b"topic", 0): 1}, {("topic", "0"): 1}, {("topic", 0): "1"}, {("topic", 0): (1, None)}],
    ids=str,
)
def test_places_that_are_none(consumer: PackConsumer, wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        consumer.assign(wrong)
