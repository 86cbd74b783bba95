"""What only the consumer of the Kafka provider has to care for: its thread, and callbacks that wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
import uvloop

from penstock.storage.log.base import Committed, LogError, OffsetOutOfRange, TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.log_load import pack_of


async def started(kafka: KafkaCluster, **settings: object) -> KafkaLog:
    log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, **settings))  # type: ignore[arg-type] # by name
    await log.start()
    return log


def test_what_a_cancelled_poll_has_read_comes_with_the_next(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka)
        await log.admin.create(topic)
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.poll(10, 0.5)
        values = []
        for number in range(20):
            polling = asyncio.ensure_future(consumer.poll(10, 2.0))
            await log.producer.send(topic, 0, pack_of(b"%d" % number))
            polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                values += [value for fetched in await polling for value in fetched.pack.values()]
        while len(values) < 20:
            polled = await consumer.poll(10, 2.0)
            assert polled, f"only {values}"
            values += [value for fetched in polled for value in fetched.pack.values()]
        assert values == [b"%d" % number for number in range(20)]
        await log.close()

    uvloop.run(scenario())


def test_a_seek_makes_what_a_cancelled_poll_has_read_stale(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka)
        await log.producer.send(topic, 0, pack_of(b"0", b"1", b"2", b"3"))
        place = TopicPartition(topic, 0)
        consumer = log.consumer("")
        consumer.assign([place])
        polling = asyncio.ensure_future(consumer.poll(4, 5.0))
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.sleep(1.0)
        await consumer.seek(place, 2)
        values: list[bytes | None] = []
        while len(values) < 2:
            values += [value for fetched in await consumer.poll(10, 5.0) for value in fetched.pack.values()]
        assert values == [b"2", b"3"]
        assert consumer.position(place) == 4
        await log.close()

    uvloop.run(scenario())


def test_a_poll_gives_no_more_than_asked_and_does_not_wait_for_more(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka, max_poll_records=5)
        await log.producer.send(topic, 0, pack_of(*(b"%d" % number for number in range(12))))
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0)])
        sizes = []
        async with asyncio.timeout(60):
            while sum(sizes) < 12:
                sizes += [sum(fetched.pack.count for fetched in await consumer.poll(500, 30.0))]
        assert max(sizes) == 5
        await log.close()

    uvloop.run(scenario())


def test_callbacks_of_a_rebalance_may_seek_and_commit(kafka: KafkaCluster, topic: str) -> None:
    """The assignment takes effect after the one, and is given back after the other."""

    async def scenario() -> None:
        log = await started(kafka)
        await log.producer.send(topic, 0, pack_of(b"0", b"1", b"2"))
        consumer = log.consumer(f"group-{topic}")
        place = TopicPartition(topic, 0)

        async def on_assigned(partitions: Sequence[TopicPartition]) -> None:
            assert partitions == [place]
            await consumer.seek(place, 1)

        async def on_revoked(partitions: Sequence[TopicPartition]) -> None:
            assert partitions == [place]
            await asyncio.sleep(0.05)
            await consumer.commit({place: Committed(3, "last")})

        consumer.subscribe([topic], on_assigned, on_revoked)  # type: ignore[arg-type] # the provider awaits them
        values: list[bytes | None] = []
        async with asyncio.timeout(60):
            while len(values) < 2:
                values += [value for fetched in await consumer.poll(10, 1.0) for value in fetched.pack.values()]
        assert values == [b"1", b"2"]
        await consumer.close()
        assert await log.admin.group_offsets(f"group-{topic}") == {place: Committed(3, "last")}
        with pytest.raises(LogError):
            await consumer.poll()
        await log.close()

    uvloop.run(scenario())


def test_without_a_reset_a_position_out_of_range_is_an_error(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka)
        await log.producer.send(topic, 0, pack_of(b"0", b"1", b"2"))
        await log.admin.truncate(TopicPartition(topic, 0), 2)
        consumer = log.consumer("", auto_offset_reset="none")
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.seek(TopicPartition(topic, 0), 0)
        with pytest.raises(OffsetOutOfRange) as missed:
            await consumer.poll(10, 10.0)
        assert (missed.value.first, missed.value.end) == (2, 3)
        await log.close()

    uvloop.run(scenario())


def test_truncating_behind_the_end_says_where_the_end_is(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka)
        await log.producer.send(topic, 0, pack_of(b"0", b"1", b"2"))
        with pytest.raises(OffsetOutOfRange) as missed:
            await log.admin.truncate(TopicPartition(topic, 0), 9)
        assert (missed.value.first, missed.value.end) == (0, 3)
        await log.close()

    uvloop.run(scenario())


def test_a_paused_partition_gives_nothing_until_it_is_resumed(kafka: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = await started(kafka, topics={topic: "partitions:2"})
        first, second = TopicPartition(topic, 0), TopicPartition(topic, 1)
        for number in range(2):
            await log.producer.send(topic, number, pack_of(b"%d" % number))
        consumer = log.consumer("")
        consumer.assign([first, second])
        consumer.pause([first])
        values: list[bytes | None] = []
        for _ in range(3):
            values += [value for fetched in await consumer.poll(10, 0.5) for value in fetched.pack.values()]
        assert values == [b"1"]
        consumer.resume([first])
        while len(values) < 2:
            values += [value for fetched in await consumer.poll(10, 5.0) for value in fetched.pack.values()]
        assert values == [b"1", b"0"]
        await log.close()

    uvloop.run(scenario())


def test_a_paused_partition_with_a_long_backlog_loses_nothing(kafka: KafkaCluster, topic: str) -> None:
    """More than is kept here: librdkafka is told to stop reading, and to go on."""

    async def scenario() -> None:
        log = await started(kafka, topics={topic: "partitions:2"})
        value = bytes(10_000)
        for number in range(2):
            for _ in range(4):
                await log.producer.send(topic, number, pack_of(*[value] * 100))
        slow, fast = TopicPartition(topic, 0), TopicPartition(topic, 1)
        consumer = log.consumer("")
        await consumer.add({slow: 0, fast: 0})
        offsets: dict[int, list[int]] = {0: [], 1: []}

        async def read(rounds: int) -> None:
            for _ in range(rounds):
                for fetched in await consumer.poll(500, 0.2, 50):
                    offsets[fetched.partition] += fetched.pack.offsets().tolist()

        async with asyncio.timeout(40):
            consumer.pause([slow])
            while len(offsets[1]) < 400:
                await read(1)
            await read(3)
            assert offsets[0] == []
            while len(offsets[0]) < 400:
                consumer.resume([slow])
                await read(2)
                consumer.pause([slow])
                await read(1)
        assert offsets == {0: list(range(400)), 1: list(range(400))}
        await log.close()

    uvloop.run(scenario())
