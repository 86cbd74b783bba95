"""Three brokers: one is killed under load, and what is not safe is said at the start."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import pytest
import uvloop

from penstock.operate.doctor.backends import check_topics
from penstock.storage.log.base import LogUnavailable
from penstock.storage.log.kafka import KafkaLog, KafkaSettings
from penstock.storage.log.kafka.inspect import inspect
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.application import until
from tests.support.worlds.log_load import Load, assert_nothing_lost, pack_of

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


def test_doctor_sees_the_copies_that_topics_really_have(kafka_cluster: KafkaCluster, topic: str) -> None:
    """Replication factor, copies in sync and the least of them, with all brokers and with one of them gone."""
    beginning = {f"{topic}-safe": SAFE, f"{topic}-two": "partitions:1;replication.factor:2;min.insync.replicas:1"}
    settings = KafkaSettings(bootstrap_servers=kafka_cluster.bootstrap, topics=beginning)

    async def make() -> None:
        log = KafkaLog(settings)
        await log.start()
        for name in beginning:
            await log.producer.send(name, 0, pack_of(b"x"))
        await log.close()

    def seen() -> dict[str, tuple[int, int, int, int]]:
        """Partitions, copies, those in sync, and how many must be; nothing while a new controller is elected."""
        try:
            report = inspect(settings, topic)
        except LogUnavailable:
            return {}
        return {
            each.name.removeprefix(topic): (each.partitions, each.copies, each.in_sync, each.min_in_sync)
            for each in report.topics
        }

    def await_sight(condition: Callable[[], bool]) -> None:
        until(condition, 60, lambda: str(seen()))

    uvloop.run(make())
    try:
        await_sight(lambda: seen() == {"-safe": (4, 3, 3, 2), "-two": (1, 2, 2, 1)})
        report = inspect(settings, topic)
        assert (report.brokers, [each.is_safe for each in report.topics]) == (3, [True, False])
        said = {finding.what for finding in check_topics(report) if finding.state == "problem"}
        assert said == {
            f"1 of 2 topics can lose acknowledged messages: {topic}-two (replication.factor 2, min.insync.replicas 1)"
        }
        kafka_cluster.kill(2)
        await_sight(lambda: seen().get("-safe") == (4, 3, 2, 2))
        report = inspect(settings, topic)
        assert report.brokers == 2
        assert any("copies are missing or behind" in finding.what for finding in check_topics(report))
        kafka_cluster.restart(2)
        await_sight(lambda: seen().get("-safe") == (4, 3, 3, 2))
    finally:
        kafka_cluster.wait_until_ready()
