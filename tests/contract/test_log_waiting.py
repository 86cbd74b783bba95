"""Who waits for records, on every provider: consumers, without spinning; and appends that nothing waits for."""

from __future__ import annotations

import asyncio
import time
from statistics import median
from typing import Any

import pytest

from penstock.storage.log.base import Appended, Log, TopicPartition
from tests.contract.log_scenarios import numbered, pack_of, read_partition, run
from tests.contract.providers import Provider


def test_waiting_costs_nothing(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.poll(timeout=0.05)
        # Of the whole process: some providers wait in a thread of their own.
        cpu, wall = time.process_time(), time.monotonic()
        assert await consumer.poll(timeout=2.0) == []
        assert 1.9 <= time.monotonic() - wall < 15
        assert time.process_time() - cpu < 0.4
        await consumer.close()

    run(provider, scenario)


def test_a_waiting_poll_is_woken(provider: Provider, topic: str) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 1)
        consumer = log.consumer("")
        consumer.assign([TopicPartition(topic, 0)])
        await consumer.poll(timeout=0.1)
        woken = []
        for _ in range(5):
            waiting = asyncio.create_task(consumer.poll(timeout=60.0))
            await asyncio.sleep(0.2)
            assert not waiting.done()
            await log.producer.send(topic, 0, pack_of(b"now"))
            durable = time.monotonic()
            fetched = await waiting
            woken.append(time.monotonic() - durable)
            assert [each.pack.values() for each in fetched] == [[b"now"]]
        assert median(woken) < 0.5, woken
        await consumer.close()

    run(provider, scenario)


@pytest.mark.parametrize("collects", [False, True])
def test_an_append_that_nothing_waits_for_is_told_once(provider: Provider, topic: str, collects: bool) -> None:
    async def scenario(log: Log) -> None:
        await log.admin.create(topic, 2)
        await log.patient_producer.send(topic, 0, numbered(0, 1))
        for number in range(1, 6):
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            packs = [(partition, numbered(number, 1)) for partition in (0, 1)]
            log.patient_producer.append_packs(topic, packs, done.set_result, is_quiet=True)
            if collects:
                log.patient_producer.collect()
            results = await asyncio.wait_for(done, 60)
            assert results is None or all(isinstance(result, Appended) for result in results)
        log.patient_producer.collect()
        records = await read_partition(log, TopicPartition(topic, 0), 6)
        assert [record.value for record in records] == [b"%d" % number for number in range(6)]

    run(provider, scenario)
