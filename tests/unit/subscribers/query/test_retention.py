"""Retention that waits for groups: what is held from the first moment on, and what is free again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.state.base import Change
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.subscribers.query.retention import Retention
from penstock.subscribers.query.source import Source
from tests.support.machine.waiting import until

TOPIC = "tbmq.msg.all"


class Groups:
    def __init__(self) -> None:
        self.wanted: dict[int, int] = {}

    def needed(self) -> Mapping[int, int]:
        return self.wanted

    def positions(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        return {}


class NoNotes:
    def items(self, table: str) -> Mapping[bytes, bytes]:
        return {}

    async def write(self, changes: list[Change]) -> None:
        raise AssertionError("nothing is suspended here")


def run(directory: Path, scenario: Callable[[EmbeddedLog], Awaitable[None]]) -> None:
    async def main() -> None:
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"))
        try:
            await log.start()
            async with asyncio.timeout(60):
                await scenario(log)
        finally:
            await log.close()
            store.close()

    asyncio.run(main())


async def fill(log: EmbeddedLog, records: int = 200) -> None:
    await log.admin.create(TOPIC, 2, {"segment.bytes": "2048", "retention.bytes": "2048"})
    for _ in range(records // 10):
        pack = RecordPack()
        pack.extend([b"x" * 100] * 10)
        await log.producer.send(TOPIC, 0, pack)


async def first(log: EmbeddedLog) -> int:
    await log.maintenance.tidy()
    return log.watermarks(TopicPartition(TOPIC, 0)).first


def test_nothing_goes_before_the_groups_are_known_and_then_what_they_have_read(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        retention = Retention(log, TOPIC, interval=0.01, is_holding=True)
        await retention.protect(2)
        await fill(log)
        assert await first(log) == 0
        assert log.counters()["segments_held"] > 0
        source, groups = Source(log, TOPIC, 1), Groups()
        groups.wanted = {0: 100, 1: 0}
        retention.start(source, groups, NoNotes())
        await until(lambda: log.held[TOPIC].get(0) == 100)
        assert 0 < await first(log) <= 100
        groups.wanted = {}  # DROP CONSUMER GROUP
        await until(lambda: not log.held[TOPIC])
        assert await first(log) > 100
        assert log.counters()["segments_held"] == 0
        await retention.stop()
        await source.close()

    run(tmp_path, scenario)


def test_an_operator_may_decide_for_the_log(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        retention = Retention(log, TOPIC, interval=0.01, is_holding=False)
        await retention.protect(2)
        source, groups = Source(log, TOPIC, 1), Groups()
        groups.wanted = {0: 0}
        retention.start(source, groups, NoNotes())
        await fill(log)
        assert await first(log) > 0
        await source.close()

    run(tmp_path, scenario)


def test_a_topic_with_more_partitions_than_the_settings_say_is_held_whole(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await fill(log, 10)
        await Retention(log, TOPIC, interval=1, is_holding=True).protect(1)
        assert log.held[TOPIC] == {0: 0, 1: 0}

    run(tmp_path, scenario)


def test_what_is_needed_anew_is_held_at_once(tmp_path: Path) -> None:
    """Not at the next look, which may be an hour away: a burst may come before it."""

    async def scenario(log: EmbeddedLog) -> None:
        retention = Retention(log, TOPIC, interval=3_600, is_holding=True)
        await retention.protect(2)
        await retention.look_now()  # nobody is known yet, so everything stays
        assert log.held[TOPIC] == {0: 0, 1: 0}
        await fill(log, 10)
        source, groups = Source(log, TOPIC, 1), Groups()
        retention.start(source, groups, NoNotes())
        await until(lambda: not log.held[TOPIC])
        groups.wanted = {0: 3}
        await retention.look_now()
        assert log.held[TOPIC] == {0: 3}
        await retention.stop()
        await source.close()

    run(tmp_path, scenario)
