"""Packs through librdkafka to a real Kafka, without a Python object per record."""

from __future__ import annotations

import time

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from penstock._ext.kafka.client import Delivery, PackProducer
from penstock._ext.record.segment import RecordPack
from tests.support.servers.kafka_cluster import KafkaCluster

HEADERS = [("name", b"\x00"), ("name", b""), ("caf\u00e9", b"again")]


def wait_for(producer: PackProducer, finished: list[Delivery], count: int) -> None:
    deadline = time.monotonic() + 60
    while len(finished) < count:
        producer.poll()
        assert time.monotonic() < deadline
        time.sleep(0.001)


def read(kafka: KafkaCluster, topic: str, count: int) -> list[confluent_kafka.Message]:
    """With somebody else's client."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": topic})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[confluent_kafka.Message] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 10)
    consumer.close()
    return found


def new_topic(kafka: KafkaCluster, name: str) -> str:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_topics([NewTopic(name, 1, config={"retention.ms": "-1"})])[name].result(30)
    return name


def test_records_arrive_as_they_are(kafka: KafkaCluster, topic: str) -> None:
    new_topic(kafka, topic)
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": kafka.bootstrap, "enable.idempotence": True})
    plain, odd = RecordPack(), RecordPack()
    expected: list[tuple[bytes | None, bytes | None]] = []
    for value in (b"value", b"", None, bytes(100_000)):
        for key in (b"key", b"", None):
            plain.append(value, key)
            odd.append(
                value, key, [("name", b"\x00"), ("name", b""), ("caf\u00e9", b"again")], timestamp=1_600_000_000_123
            )
            expected.append((value, key))
    bare = RecordPack()
    bare.append(b"late", timestamp=1_600_000_000_124)
    producer.produce(Delivery(topic, 0, plain, None, finished))
    producer.produce_each(Delivery(topic, 0, odd, None, finished))
    producer.produce_each(Delivery(topic, 0, bare, None, finished))
    wait_for(producer, finished, 3)
    assert [(one.base_offset, one.failed, one.is_dense) for one in finished] == [
        (0, 0, True),
        (12, 0, True),
        (24, 0, True),
    ]
    found = read(kafka, topic, 25)
    assert [(one.value(), one.key()) for one in found[:24]] == expected * 2
    assert all(one.headers() is None for one in found[:12])
    assert all(one.headers() == HEADERS and one.timestamp()[1] == 1_600_000_000_123 for one in found[12:24])
    assert (found[24].headers(), found[24].timestamp()[1], found[24].key()) == (None, 1_600_000_000_124, None)
    producer.close()


@pytest.mark.parametrize("count", [1, 255, 256, 257, 1_000])
def test_packs_of_any_length_in_order(kafka: KafkaCluster, topic: str, count: int) -> None:
    new_topic(kafka, topic)
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 1})
    for part in range(3):
        pack = RecordPack()
        pack.extend([b"%d" % (part * count + number) for number in range(count)])
        producer.produce(Delivery(topic, 0, pack, None, finished))
    wait_for(producer, finished, 3)
    assert [one.base_offset for one in finished] == [0, count, 2 * count]
    assert [one.value() for one in read(kafka, topic, 3 * count)] == [b"%d" % number for number in range(3 * count)]
    producer.close()


def test_a_record_among_others_that_librdkafka_does_not_take(kafka: KafkaCluster, topic: str) -> None:
    new_topic(kafka, topic)
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2_000})
    pack = RecordPack()
    pack.extend([b"first", bytes(3_000), *[b"next"] * 400])
    producer.produce(Delivery(topic, 0, pack, None, finished))
    wait_for(producer, finished, 1)
    (delivery,) = finished
    assert isinstance(delivery.error, confluent_kafka.KafkaError)
    assert delivery.error.code() == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    assert delivery.failed == 1 + 402 - 256, "what was handed over with it is written, what comes behind is not"
    assert not delivery.is_dense
    producer.close()


def test_a_topic_that_is_not_there_and_more_topics_than_are_remembered(kafka: KafkaCluster, topic: str) -> None:
    new_topic(kafka, topic)
    finished: list[Delivery] = []
    producer = PackProducer({"bootstrap.servers": kafka.bootstrap, "message.timeout.ms": 3_000, "log_level": 0})
    pack = RecordPack()
    pack.append(b"x")
    producer.produce(Delivery("a/name/that/Kafka/does/not/allow", 0, pack, None, finished))
    for name in range(5_000):
        producer.forget_topic(f"never-{name}")
    producer.produce(Delivery(topic, 0, pack, None, finished))
    producer.forget_topic(topic)
    producer.produce(Delivery(topic, 0, pack, None, finished))
    wait_for(producer, finished, 3)
    assert [(one.topic == topic, one.failed) for one in finished].count((True, 0)) == 2
    assert [one.failed for one in finished if one.topic != topic] == [1]
    producer.close()
