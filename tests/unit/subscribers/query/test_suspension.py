"""Retention of somebody else, as Kafka's, that waits for groups: its limits are lifted, replaced and put back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import NO_LIMITS, Limits, LogError, TopicPartition
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.base import Change
from penstock.subscribers.query.retention import Retention
from penstock.subscribers.query.source import Source
from penstock.subscribers.query.stored import RETENTION
from penstock.subscribers.query.suspension import BEHIND_LOOKS, CALM_LOOKS, TIDY_LOOKS, Suspension
from tests.support.machine.waiting import until

TOPIC = "tbmq.msg.all"
LIMITS = Limits(1_000_000, 5_000, ("retention.bytes",))
RECORD = b"x" * 100


class Admin:
    """Of a log whose retention is not its own."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.now = LIMITS
        self.refusal = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        return False

    async def limits(self, topic: str) -> Limits | None:
        return self.now

    async def set_limits(self, topic: str, limits: Limits) -> None:
        if self.refusal:
            raise LogError(self.refusal)
        self.now = limits


class Borrowed:
    """Like Kafka: the log of somebody else."""

    def __init__(self) -> None:
        self._inner = MemoryLog()
        self.admin = Admin(self._inner.admin)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Notes:
    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def items(self, table: str) -> Mapping[bytes, bytes]:
        assert table == RETENTION
        return self.kept

    async def write(self, changes: list[Change]) -> None:
        for _, key, value in changes:
            if value is None:
                self.kept.pop(key, None)
            else:
                self.kept[key] = value


class Scene:
    def __init__(self) -> None:
        self.log: Any = Borrowed()
        self.notes = Notes()
        self.source = Source(self.log, TOPIC, 2)
        self.is_mine = True
        self.suspension = self.make()

    def make(self) -> Suspension:
        """As by another process."""
        return Suspension(self.log, TOPIC, self.source, self.notes, is_mine=lambda: self.is_mine)

    async def write(self, records: int, partition: int = 0, at_ms: int = 0) -> None:
        pack = RecordPack()
        for _ in range(records):
            pack.append(RECORD, timestamp=at_ms)
        await self.log.producer.send(TOPIC, partition, pack)
        await self.source.marks(partition)

    async def look(self, needed: Mapping[int, int], times: int = 1, now_ms: int = 0) -> None:
        for _ in range(times):
            await self.suspension.look(needed, now_ms)

    async def first(self, partition: int = 0) -> int:
        return (await self.source.marks(partition)).first


def run(work: Callable[[Scene], Awaitable[None]]) -> None:
    async def main() -> None:
        scene = Scene()
        await scene.log.start()
        await scene.log.admin.create(TOPIC, 2, {"retention.ms": "-1"})
        await scene.source.start()
        try:
            await work(scene)
        finally:
            await scene.source.close()
            await scene.log.close()

    asyncio.run(main())


def test_nobody_is_behind() -> None:
    """Who commits a little later than what is written has read it by the time it counts."""

    async def work(scene: Scene) -> None:
        for number in range(3 * BEHIND_LOOKS):
            await scene.write(10)
            await scene.look({0: max(0, 10 * (number - BEHIND_LOOKS + 2))})
        assert scene.log.admin.now == LIMITS
        assert not scene.notes.kept

    run(work)


def test_a_group_that_is_behind_and_reads_on() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(100)
        await scene.look({0: 40}, BEHIND_LOOKS)
        assert scene.log.admin.now == LIMITS, "it may still read"
        await scene.look({0: 40})
        assert scene.log.admin.now == NO_LIMITS
        assert scene.suspension.noted == LIMITS
        await scene.look({0: 100}, CALM_LOOKS - 1)
        assert scene.log.admin.now == NO_LIMITS, "not at once: it may be behind again"
        await scene.look({0: 100})
        assert scene.log.admin.now == LIMITS
        assert not scene.notes.kept

    run(work)


@pytest.mark.parametrize("limits", [Limits(1_000, -1), Limits(-1, 2_500)], ids=["by age", "by size"])
def test_what_the_limits_would_remove_goes_meanwhile_as_far_as_no_group_needs_it(limits: Limits) -> None:
    """So that a group that is always a little behind does not make the log grow for ever."""

    async def work(scene: Scene) -> None:
        scene.log.admin.now = limits
        await scene.write(900, at_ms=5_000)
        await scene.write(100, at_ms=9_500)
        await scene.write(300, partition=1, at_ms=5_000)
        await scene.look({0: 200}, BEHIND_LOOKS + TIDY_LOOKS, now_ms=10_000)
        assert await scene.first() == 200, "not what the group needs"
        if limits.ms >= 0:
            assert await scene.first(1) == 300, "nobody needs the other partition"
        else:
            assert 0 < await scene.first(1) < 300, "and of it as much is kept as the limit says, rather more"
        await scene.look({0: 950}, TIDY_LOOKS, now_ms=10_000)
        assert 200 < await scene.first() <= 950
        if limits.ms >= 0:
            assert await scene.first() == 900, "what is young enough stays"
        assert scene.suspension.removed == await scene.first() + await scene.first(1)

    run(work)


def test_a_process_ends_in_between() -> None:
    """The limits that come back are those that were there first, whoever puts them back."""

    async def work(scene: Scene) -> None:
        await scene.write(100)
        await scene.look({0: 0}, BEHIND_LOOKS + 1)
        scene.suspension = scene.make()
        await scene.look({0: 0}, CALM_LOOKS)
        assert scene.suspension.noted == LIMITS
        # After the note and before the change.
        scene.log.admin.now = LIMITS
        scene.suspension = scene.make()
        await scene.look({0: 0})
        assert scene.log.admin.now == NO_LIMITS
        scene.suspension = scene.make()
        await scene.look({0: 100}, CALM_LOOKS + 1)
        assert scene.log.admin.now == LIMITS
        assert not scene.notes.kept

    run(work)


@pytest.mark.parametrize("is_read", [True, False])
def test_an_operator_changes_the_limits_meanwhile(is_read: bool) -> None:
    """What was said last are the limits."""

    async def work(scene: Scene) -> None:
        await scene.write(100)
        await scene.look({0: 0}, BEHIND_LOOKS + 1)
        scene.log.admin.now = other = Limits(77, 88)
        if is_read:
            await scene.look({0: 100}, CALM_LOOKS + 1)
            assert scene.log.admin.now == other
            assert not scene.notes.kept
        else:
            await scene.look({0: 0}, TIDY_LOOKS + 1)
            assert scene.suspension.noted == other

    run(work)


def test_limits_that_must_not_be_changed() -> None:
    """The broker's user may not, at Kafka: that is told, and nothing is noted that is not so."""

    async def work(scene: Scene) -> None:
        await scene.write(100)
        scene.log.admin.refusal = "not authorised"
        with pytest.raises(LogError):
            await scene.look({0: 0}, BEHIND_LOOKS + 1)
        assert not scene.notes.kept
        scene.log.admin.refusal = ""
        await scene.look({0: 0})
        assert scene.log.admin.now == NO_LIMITS

    run(work)


def test_where_everything_is_kept_nothing_is_to_do() -> None:
    async def work(scene: Scene) -> None:
        scene.log.admin.now = NO_LIMITS
        await scene.write(100)
        await scene.look({0: 0}, BEHIND_LOOKS + CALM_LOOKS)
        assert not scene.notes.kept

    run(work)


def test_one_node_does_it() -> None:
    async def work(scene: Scene) -> None:
        scene.is_mine = False
        await scene.write(100)
        await scene.look({0: 0}, 2 * BEHIND_LOOKS)
        assert scene.log.admin.now == LIMITS
        scene.is_mine = True
        await scene.look({0: 0}, BEHIND_LOOKS + 1)
        assert scene.log.admin.now == NO_LIMITS

    run(work)


class Groups:
    def __init__(self, wanted: Mapping[int, int]) -> None:
        self.wanted = wanted

    def needed(self) -> Mapping[int, int]:
        return self.wanted

    def positions(self) -> Mapping[tuple[str, str], Mapping[int, int]]:
        return {}


def test_by_itself_and_an_operator_who_decides_for_the_log() -> None:
    async def work(scene: Scene) -> None:
        await scene.write(100)
        retention = Retention(scene.log, TOPIC, interval=0.001, is_holding=True)
        await retention.protect(2)
        retention.start(scene.source, Groups({0: 0}), scene.notes)
        await until(lambda: retention.counters()["datasub_retention_suspended"] == 1)
        await retention.stop()
        assert scene.log.admin.now == NO_LIMITS, "nobody reads while no broker runs"
        scene.log.admin.refusal = "Kafka is away"
        other = Retention(scene.log, TOPIC, interval=0.001, is_holding=False)
        await other.protect(2)
        other.start(scene.source, Groups({0: 0}), scene.notes)
        await until(lambda: other.counters()["datasub_retention_failures"] > 1)
        scene.log.admin.refusal = ""
        await until(lambda: other.counters()["datasub_retention_suspended"] == 0)
        assert scene.log.admin.now == LIMITS
        await other.stop()

    run(work)
