"""What only the Kafka provider does: topics on first use, its buffers, its batches, and life without Kafka."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from confluent_kafka import KafkaError
from confluent_kafka.admin import AdminClient

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, LogError, LogUnavailable, TopicNotFound, TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.admin import KafkaAdmin
from tests.support.machine.ports import free_port
from tests.support.machine.waiting import until
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.log_load import Load, assert_nothing_lost, pack_of, read_all


@asynccontextmanager
async def opened(kafka: KafkaCluster, **settings: Any) -> AsyncIterator[KafkaLog]:
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, **settings))
    await log.start()
    try:
        yield log
    finally:
        await log.close()


def test_a_topic_is_created_on_first_use_with_its_configured_properties(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        properties = {f"{topic}*": "partitions:3;retention.ms:60000;replication.factor:1"}
        async with opened(kafka, topics=properties) as log:
            results = await asyncio.gather(*(log.producer.send(topic, number, pack_of(b"x")) for number in range(3)))
            assert [result.partition for result in results] == [0, 1, 2]
            description = await log.admin.describe(topic)
            assert description.partitions == 3
            assert description.properties["retention.ms"] == "60000"
            with pytest.raises(TopicNotFound):
                await log.producer.send(topic, 3, pack_of(b"x"))

    uvloop.run(scenario())


def test_topics_are_not_created_where_that_is_switched_off(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka, create_topics=False) as log:
            with pytest.raises(TopicNotFound):
                await log.producer.send(topic, 0, pack_of(b"x"))
            await log.admin.create(topic)
            assert (await log.producer.send(topic, 0, pack_of(b"x"))).base_offset == 0

    uvloop.run(scenario())


def test_a_broker_that_has_not_heard_of_a_new_topic_is_asked_again(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cluster each answer may come from another broker, and they hear of a topic one after the other."""
    look_at = KafkaAdmin._look_at
    left = [3]

    async def look_through_another(self: KafkaAdmin, name: str) -> object:
        if left[0] > 0:
            left[0] -= 1
            raise TopicNotFound("not heard of yet")
        return await look_at(self, name)

    async def scenario() -> None:
        async with opened(kafka, create_topics=False) as log:
            await log.admin.create(topic)
            monkeypatch.setattr(KafkaAdmin, "_look_at", look_through_another)
            assert (await log.producer.send(topic, 0, pack_of(b"x"))).base_offset == 0
            left[0] = 3
            assert (await log.admin.describe(topic)).partitions == 1
            assert left == [0]
            with pytest.raises(TopicNotFound):
                await log.admin.describe(f"{topic}-never-made")

    uvloop.run(scenario())


def test_a_partition_that_is_not_there_costs_the_others_nothing(kafka: KafkaCluster, topic: str) -> None:
    """While the topic is looked for they wait together; one made again may have fewer partitions than it had."""

    async def scenario() -> None:
        async with opened(kafka, topics={topic: "partitions:2"}) as log, asyncio.timeout(30):
            sending = [log.producer.send(topic, number, pack_of(b"x")) for number in (0, 2, 1, 2, 0)]
            results = await asyncio.gather(*sending, return_exceptions=True)
            assert [type(result) for result in results] == [Appended, TopicNotFound, Appended, TopicNotFound, Appended]
            assert log.producer.pending_records == 0
            assert (await log.producer.send(topic, 1, pack_of(b"y"))).base_offset == 1

    uvloop.run(scenario())


def test_the_list_of_topics_is_remembered_until_we_change_it(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka) as log, opened(kafka) as other:
            assert topic not in await log.admin.list()
            await other.admin.create(topic)
            assert topic not in await log.admin.list()
            await log.admin.create(f"{topic}-own")
            assert {topic, f"{topic}-own"} <= set(await log.admin.list())

    uvloop.run(scenario())


def test_headers_times_tombstones_and_empty_values_survive(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        # Kafka of the tests looks for what is over its age every two seconds, and these records are.
        async with opened(kafka, topic_properties="retention.ms:-1") as log:
            odd = RecordPack()
            odd.append(b"value", b"key", [("name", b"\x00"), ("name", b"again")], timestamp=1_700_000_000_000)
            odd.append(None, b"gone", timestamp=1_700_000_000_001)
            plain = RecordPack()
            plain.append(b"", b"")
            plain.append(None, b"gone")
            before = time.time_ns() // 1_000_000
            await log.producer.send(topic, 0, odd)
            await log.producer.send(topic, 0, plain)
            consumer = log.consumer("")
            consumer.assign([TopicPartition(topic, 0)])
            records: list[Any] = []
            while len(records) < 4:
                for fetched in await consumer.poll(10, 5.0):
                    records += fetched.pack
            assert [record.value for record in records] == [b"value", None, b"", None]
            assert [record.key for record in records] == [b"key", b"gone", b"", b"gone"]
            assert records[0].headers == [("name", b"\x00"), ("name", b"again")]
            assert [record.timestamp for record in records[:2]] == [1_700_000_000_000, 1_700_000_000_001]
            assert abs(records[2].timestamp - before) < 1_000

    uvloop.run(scenario())


def test_a_record_that_is_too_large_fails_its_pack_and_nothing_is_written(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka, max_request_size=10_000) as log:
            with pytest.raises(LogError, match="max_request_size") as refused:
                await log.producer.send(topic, 0, pack_of(b"small", bytes(20_000)))
            assert not refused.value.is_retryable
            await log.producer.send(topic, 0, pack_of(b"next"))
            assert await read_all(log, topic, 1) == {0: [(0, b"next")]}

    uvloop.run(scenario())


def test_what_does_not_fit_the_buffer_fails_at_once(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka, buffer_memory=50_000) as log:
            results: list[Appended | LogError] = []
            for _ in range(100):
                log.producer.append(topic, 0, pack_of(bytes(1_000)), results.append)
            assert log.producer.pending_bytes <= 50_000
            while len(results) < 100:  # noqa: ASYNC110 - callbacks fill it
                await asyncio.sleep(0.01)
            refused = [result for result in results if isinstance(result, LogUnavailable)]
            assert 40 <= len(refused) <= 60
            assert log.producer.pending_bytes == 0
            assert (await log.producer.send(topic, 0, pack_of(b"again"))).base_offset == 100 - len(refused)

    uvloop.run(scenario())


def test_the_loop_goes_on_while_records_are_written_and_polled(kafka: KafkaCluster, topic: str) -> None:
    """No call of librdkafka waits on the loop's thread."""

    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.producer.send(topic, 0, pack_of(b"x"))
            consumer = log.consumer("")
            consumer.assign([TopicPartition(topic, 0)])
            polling = asyncio.ensure_future(consumer.poll(10, 5.0))
            load = Load(log, topic, 1)
            longest, last = 0.0, time.monotonic()
            while last < time.monotonic() + 1 and load.count < 5_000:
                await asyncio.sleep(0.001)
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            await load.stop()
            await polling
            assert longest < 1.0  # a call that waits would wait for some seconds

    uvloop.run(scenario())


def test_without_kafka_everything_starts_and_appends_fail_in_time(topic: str) -> None:
    async def scenario() -> None:
        port = free_port()
        log = KafkaLog(KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}", delivery_timeout_ms=1_000))
        started = time.monotonic()
        await log.start()
        assert time.monotonic() - started < 20
        assert f"127.0.0.1:{port}" in str(log.check())
        with pytest.raises(LogUnavailable):
            await asyncio.wait_for(log.producer.send(topic, 0, pack_of(b"x")), 20)
        consumer = log.consumer("group")
        consumer.assign([TopicPartition(topic, 0)])
        assert await consumer.poll(1, 0.2) == []
        await asyncio.wait_for(log.close(), 20)

    uvloop.run(scenario())


def test_after_a_fatal_error_a_new_producer_takes_over(kafka: KafkaCluster, topic: str) -> None:
    """As if Kafka had lost count of the idempotent producer's records; librdkafka has a function for such tests."""

    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.producer.send(topic, 0, pack_of(b"before"))
            results: list[Appended | LogError] = []
            for number in range(100):
                log.producer.append(topic, 0, pack_of(b"%d" % number), results.append)
            failed = log.producer._client
            failed.fail_for_good(KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, "for a test")
            async with asyncio.timeout(60):
                while len(results) < 100:  # noqa: ASYNC110 - callbacks fill it
                    await asyncio.sleep(0.01)
            assert all(result.is_retryable for result in results if isinstance(result, LogError))
            written = [value for _, value in (await read_all(log, topic, 1))[0]]
            promised = [b"%d" % number for number in range(100) if isinstance(results[number], Appended)]
            assert [value for value in written if value in promised] == promised
            async with asyncio.timeout(60):
                while log.producer._client is failed:  # noqa: ASYNC110 - the next poll hears of it
                    await asyncio.sleep(0.01)
            after = await log.producer.send(topic, 0, pack_of(b"after"))
            assert after.base_offset == len(written)

    uvloop.run(scenario())


@pytest.mark.slow
def test_a_broker_restarted_under_load_loses_nothing(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        async with opened(kafka, topics={topic: "partitions:4"}) as log:
            load = Load(log, topic, 4)
            await load.reach(2_000)
            await asyncio.to_thread(kafka.terminate, 1)
            await until(lambda: log.check() is not True)
            appended = load.count
            kafka.restart(1)
            await load.reach(5_000)
            await load.stop()
            assert load.count > appended
            assert log.check() is True
            assert load.failures == []
            await assert_nothing_lost(log, topic, 4, load)

    uvloop.run(scenario())


@pytest.mark.slow
def test_a_log_started_without_kafka_works_when_kafka_comes(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(kafka.kill, 1)
        async with opened(kafka) as log:
            assert log.check() is not True
            sending = asyncio.ensure_future(log.producer.send(topic, 0, pack_of(b"early")))
            kafka.restart(1)
            assert (await asyncio.wait_for(sending, 30)).base_offset == 0
            async with asyncio.timeout(60):
                while log.check() is not True:  # noqa: ASYNC110 - what readiness does
                    await asyncio.sleep(0.05)

    try:
        uvloop.run(scenario())
    finally:
        kafka.wait_until_ready()


def test_many_topics_at_once_are_few_requests(kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many clients connect at the same time; one of the names is asked for twice, and one is there already."""

    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.admin.create(f"{topic}-0")
            requests: list[int] = []
            real = AdminClient.create_topics

            def counted(self: AdminClient, topics: list[object], **options: object) -> object:
                requests.append(len(topics))
                return real(self, topics, **options)  # type: ignore[arg-type] # passed on as they came

            monkeypatch.setattr(AdminClient, "create_topics", counted)
            names = [f"{topic}-{number}" for number in range(40)]
            await asyncio.gather(*map(log.admin.create, [*names, names[7]]))
            assert len(requests) <= 3
            assert set(names) <= set(await log.admin.list())
            with pytest.raises(LogError, match="exists"):
                await log.admin.create(names[3], exist_ok=False)
            with pytest.raises(LogError, match="not/valid"):
                await asyncio.gather(log.admin.create("not/valid"), log.admin.create(f"{topic}-fine"))
            assert (await log.admin.describe(f"{topic}-fine")).partitions == 1
            await asyncio.gather(*map(log.admin.delete, names))
            assert not set(names) & set(await log.admin.list())

    uvloop.run(scenario())


def test_copies_of_a_topic_are_not_changed_here(kafka: KafkaCluster, topic: str) -> None:
    """Kafka moves replicas only with a tool of its own: asking for others is refused in words, with all the rest."""

    async def scenario() -> None:
        async with opened(kafka) as log:
            await log.admin.create(topic, 1, {"replication.factor": "1", "retention.ms": "60000"})
            with pytest.raises(LogError, match=r"replication.factor 1, not 3") as refused:
                await log.admin.alter(topic, {"replication.factor": "3", "retention.ms": "-1"})
            assert "kafka-reassign-partitions" in refused.value.hint
            assert (await log.admin.describe(topic)).properties["retention.ms"] == "60000"
            await log.admin.alter(topic, {"replication.factor": "1", "retention.ms": "-1"})
            assert (await log.admin.describe(topic)).properties["retention.ms"] == "-1"

    uvloop.run(scenario())
