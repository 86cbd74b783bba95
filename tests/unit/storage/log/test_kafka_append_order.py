"""Appends that time out while Kafka is unreachable: nothing younger is written before they are appended again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial

import pytest
import uvloop

from penstock.storage.log.base import EARLIEST, Appended, LogError, LogUnavailable, TopicPartition
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from tests.support.machine.waiting import until
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.log_load import pack_of

TIMEOUT = 6.0


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    """Of its own: it is killed."""
    cluster = KafkaCluster(1).start()
    yield cluster
    cluster.stop()


def test_what_was_appended_after_one_that_times_out_fails_with_it(kafka: KafkaCluster, topic: str) -> None:
    """Its publisher sends both again, in their order: the second one must not be there first."""

    async def scenario() -> None:
        log = KafkaLog(
            KafkaSettings(bootstrap_servers=kafka.bootstrap, delivery_timeout_ms=round(TIMEOUT * 1000), retries=1)
        )
        await log.start()
        await log.admin.create(topic, 2)
        for partition in (0, 1):
            await log.producer.send(topic, partition, pack_of(b"before"))
        await asyncio.to_thread(kafka.kill, 1)
        results: dict[str, tuple[float, Appended | LogError]] = {}

        def append(name: str) -> None:
            def on_done(result: Appended | LogError) -> None:
                results[name] = time.monotonic(), result

            log.producer.append(topic, 0, pack_of(name.encode()), on_done)

        append("first")
        await asyncio.sleep(0.8 * TIMEOUT)
        append("second")
        await until(lambda: "first" in results)
        await until(lambda: "second" in results)
        assert all(isinstance(result, LogUnavailable) for _, result in results.values())
        # By itself it would have failed a good deal later, and would be written if Kafka came back before that.
        assert results["second"][0] - results["first"][0] < 0.3 * TIMEOUT
        kafka.restart(1)
        await asyncio.to_thread(kafka.wait_until_ready)
        for name in ("third", "fourth"):
            append(name)
        await until(lambda: len(results) == 4)
        assert [type(results[name][1]) for name in ("third", "fourth")] == [Appended, Appended]
        await log.close()

    uvloop.run(scenario())


def test_lasting_appends_wait_and_are_written_once(kafka: KafkaCluster, topic: str) -> None:
    """Neither they nor what was appended after them time out. Without them appends fail as those of others do."""

    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka.bootstrap, delivery_timeout_ms=round(TIMEOUT * 1000)))
        await log.start()
        await log.admin.create(topic, 2)
        results: dict[str, Appended | LogError] = {}

        def append(name: str, *, is_lasting: bool, partition: int = 0) -> None:
            on_done = partial(results.__setitem__, name)
            log.patient_producer.append(topic, partition, pack_of(name.encode()), on_done, is_lasting=is_lasting)

        append("before", is_lasting=False)
        await until(lambda: "before" in results)
        # Sent to a Kafka that is about to die: it may have written them, and its answer is lost.
        for number in range(200):
            append(f"early {number}", is_lasting=True, partition=number % 2)
            await asyncio.sleep(0.001)
        await asyncio.to_thread(kafka.kill, 1)
        append("lasting", is_lasting=True)
        append("later", is_lasting=False)
        await asyncio.sleep(1.5 * TIMEOUT)
        assert "lasting" not in results
        assert "later" not in results
        kafka.restart(1)
        await asyncio.to_thread(kafka.wait_until_ready)
        await until(lambda: len(results) == 203)
        assert all(isinstance(result, Appended) for result in results.values()), results
        written: list[str] = []
        consumer = log.consumer("")
        await consumer.add({TopicPartition(topic, number): EARLIEST for number in (0, 1)})
        while (polled := await consumer.poll(100, 1.0)) or len(written) < 203:
            for fetched in polled:
                written += [record.value.decode() for record in fetched.pack if record.value is not None]
        assert sorted(written) == sorted(results)
        assert written.index("lasting") < written.index("later")
        await consumer.close()

        await asyncio.to_thread(kafka.kill, 1)
        append("refused", is_lasting=False)
        await until(lambda: "refused" in results)
        assert isinstance(results["refused"], LogUnavailable)
        await log.close()

    uvloop.run(scenario())
