"""Consumers that wait for records, on every provider: without spinning, and woken by the first."""

from __future__ import annotations

import asyncio
import time
from statistics import median

from penstock.logs.base import Log, TopicPartition
from tests.contract.log_scenarios import pack_of, run
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
