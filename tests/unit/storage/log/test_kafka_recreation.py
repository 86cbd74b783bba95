"""A topic that somebody else deletes and makes again while it is read is noticed, told, and read from its beginning."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from penstock.storage.log.base import TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.consumer import KafkaConsumer
from penstock.storage.log.kafka.recreation import MOST_AT_ONCE, Recreations
from penstock.storage.log.kafka.shelf import ShelfPartition
from tests.support.servers.kafka_cluster import KafkaCluster

SECONDS = 60.0
TOLD = "a topic was deleted and made again"


class Outsider:
    """Somebody else with rights on the same Kafka."""

    def __init__(self, kafka: KafkaCluster, topic: str) -> None:
        self._servers = {"bootstrap.servers": kafka.bootstrap, "log_level": 0}
        self._admin = AdminClient(self._servers)
        self._topic = topic

    def create(self) -> None:
        """Kafka may need a moment to forget the one before."""
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                self._admin.create_topics([NewTopic(self._topic, 1, 1)])[self._topic].result(SECONDS)
                return
            except KafkaException:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def delete(self) -> None:
        self._admin.delete_topics([self._topic], operation_timeout=SECONDS)[self._topic].result(SECONDS)

    def write(self, *values: str) -> None:
        producer = Producer(self._servers)
        for value in values:
            producer.produce(self._topic, value, partition=0)
        assert producer.flush(SECONDS) == 0


async def read(consumer: KafkaConsumer, wanted: Callable[[list[bytes]], bool]) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(SECONDS):
        while not wanted(found):
            for fetched in await consumer.poll(100, 0.5):
                found += [value or b"" for value in fetched.pack.values()]
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("group", ["", "group"])
@pytest.mark.parametrize("count", [3, 15], ids=["shorter", "longer"])
def test_it_is_noticed_and_read_from_its_beginning(
    kafka: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture, group: str, count: int
) -> None:
    """Without it the first ten of the longer one would be passed over."""
    somebody = Outsider(kafka, topic)

    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, statistics_interval_ms=0))
        await log.start()
        consumer = log.consumer(f"{group}-{topic}" if group else "")
        if group:
            consumer.subscribe([topic])
        else:
            consumer.assign([TopicPartition(topic, 0)])
        assert len(await read(consumer, lambda found: len(found) == 10)) == 10
        await until(lambda: all(place.known is not None for place in consumer.places()))
        await asyncio.to_thread(somebody.delete)
        await asyncio.to_thread(somebody.create)
        new = [f"new {number}" for number in range(count)]
        await asyncio.to_thread(somebody.write, *new)
        found = await read(consumer, lambda found: {value.encode() for value in new} <= set(found))
        assert not [value for value in found if value.startswith(b"old")]
        await until(lambda: log.counters()["kafka_topics_recreated"] == 1)
        await log.close()

    somebody.create()
    somebody.write(*[f"old {number}" for number in range(10)])
    with caplog.at_level(logging.ERROR, "penstock"):
        asyncio.run(scenario())
    (told,) = [record for record in caplog.records if TOLD in record.getMessage()]
    assert told.levelno == logging.ERROR


class FakeIds:
    def __init__(self) -> None:
        self.ids: dict[str, str] = {}
        self.asked: list[list[str]] = []

    async def topic_ids(self, names: object) -> dict[str, str]:
        chosen = list(names)  # type: ignore[call-overload] # whatever it is, it is asked for by name
        self.asked.append(chosen)
        return {name: self.ids.get(name, "first") for name in chosen}


class FakeReader:
    is_subscribed = False

    def __init__(self, *places: ShelfPartition) -> None:
        self._places = list(places)
        self.sought: list[TopicPartition] = []

    def places(self) -> list[ShelfPartition]:
        return self._places

    def has(self, place: ShelfPartition) -> bool:
        return place in self._places

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        self.sought.append(partition)


def test_who_has_moved_it_since_knows_where_to_read() -> None:
    """As our own clients do, whose topics are deleted and made again when they end and come back."""
    ids, place = FakeIds(), ShelfPartition(TopicPartition("t", 0), 7, move=1)
    reader, recreations = FakeReader(place), Recreations(ids)

    async def scenario() -> None:
        await recreations.look([reader])
        ids.ids["t"], place.move = "second", 2
        await recreations.look([reader])
        assert reader.sought == []
        ids.ids["t"] = "third"
        await recreations.look([reader])
        assert reader.sought == [place.partition]
        reader._places = [ShelfPartition(TopicPartition("t", 0), 7, move=3)]  # removed, and added again
        ids.ids["t"] = "fourth"
        await recreations.look([reader])
        assert len(reader.sought) == 1

    asyncio.run(scenario())
    assert recreations.count == 2


def test_of_the_log_of_all_messages_it_is_said_who_does_not_get_what(caplog: pytest.LogCaptureFixture) -> None:
    ids, reader = (
        FakeIds(),
        FakeReader(ShelfPartition(TopicPartition("t", 0), 7, 1), ShelfPartition(TopicPartition("all", 0), 7, 1)),
    )
    recreations = Recreations(ids, "all")

    async def scenario() -> None:
        await recreations.look([reader])
        ids.ids = {"t": "second", "all": "second"}
        await recreations.look([reader])

    with caplog.at_level(logging.ERROR, "penstock"):
        asyncio.run(scenario())
    assert recreations.count == 2
    assert caplog.text.count("persistent clients take messages of the new topic for known ones") == 1


def test_of_many_topics_a_few_are_asked_for_at_a_time_and_all_of_them_in_turn() -> None:
    ids = FakeIds()
    reader = FakeReader(
        *(ShelfPartition(TopicPartition(f"t{number:04}", 0), 0, 1) for number in range(3 * MOST_AT_ONCE))
    )
    recreations = Recreations(ids)

    async def scenario() -> None:
        for _ in range(3):
            await recreations.look([reader], is_due=False)
        await recreations.look([reader], is_due=False)
        assert [len(asked) for asked in ids.asked] == 3 * [MOST_AT_ONCE]
        for _ in range(3):
            await recreations.look([reader])

    asyncio.run(scenario())
    assert len({name for asked in ids.asked[3:] for name in asked}) == 3 * MOST_AT_ONCE
    assert max(map(len, ids.asked)) == MOST_AT_ONCE
