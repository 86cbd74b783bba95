"""Three brokers: one is killed under load, and what is not safe is said at the start."""

from __future__ import annotations

import asyncio
import logging

import pytest
import uvloop

from penstock.logs.kafka import KafkaLog, KafkaSettings
from tests.support.kafka_cluster import KafkaCluster
from tests.support.log_load import Load, assert_nothing_lost, pack_of

pytestmark = pytest.mark.slow
SAFE = "partitions:4;replication.factor:3;min.insync.replicas:2"


def test_kill_9_of_a_broker_under_load_loses_nothing(kafka_cluster: KafkaCluster, topic: str) -> None:
    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka_cluster.bootstrap, topics={topic: SAFE}))
        await log.start()
        load = Load(log, topic, 4)
        await load.reach(2_000)
        kafka_cluster.kill(2)
        await load.reach(8_000)
        kafka_cluster.restart(2)
        await load.reach(2_000)
        await load.stop()
        assert load.failures == []
        await assert_nothing_lost(log, topic, 4, load)
        await log.close()

    try:
        uvloop.run(scenario())
    finally:
        kafka_cluster.wait_until_ready()


def test_topics_that_can_lose_records_are_named(
    kafka_cluster: KafkaCluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=kafka_cluster.bootstrap, topics={f"{topic}-safe": SAFE}))
        await log.start()
        await log.producer.send(f"{topic}-weak", 0, pack_of(b"x"))
        await log.producer.send(f"{topic}-safe", 0, pack_of(b"x"))
        weak = await log.admin.find_weak_topics()
        assert any(name.startswith(f"{topic}-weak (replication.factor 1, min.insync.replicas 1)") for name in weak)
        assert not any(name.startswith(f"{topic}-safe") for name in weak)
        await log.close()

        again = KafkaLog(KafkaSettings(bootstrap_servers=kafka_cluster.bootstrap))
        await again.start()
        async with asyncio.timeout(60):
            while "can lose acknowledged records" not in caplog.text:  # noqa: ASYNC110 - said in the background
                await asyncio.sleep(0.05)
        await again.close()

    with caplog.at_level(logging.WARNING, "penstock"):
        uvloop.run(scenario())
