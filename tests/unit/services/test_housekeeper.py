"""Tasks of the housekeeper: written down, handled once, tried again, put off, taken over by another broker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services import housekeeper as module
from penstock.services.housekeeper import CLIENT, KEY, Housekeeper, Task
from penstock.services.node import ClusterNode
from penstock.settings.cluster import ClusterSettings
from penstock.storage.log.base import LogUnavailable, TopicPartition, read_state
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.memory_log import with_memory_log
from tests.support.worlds.service_settings import services

QUICK = {"type": "RETRY_FAILED_AND_TIMED_OUT", "retries": 2, "pause_between_retries": 0.01}
SETTINGS: dict[str, Any] = {
    "core": {"partitions": 4, "housekeeper": {"processing_strategy": {**QUICK, "max_pause_between_retries": 0.01}}},
}
CLUSTER = ClusterSettings(heartbeat_interval=0.05, member_timeout=1.0)


class Broker:
    """What app.py makes of it."""

    def __init__(self, log: MemoryLog, name: str = "a", *, is_clustered: bool = False, **housekeeper: Any) -> None:
        document = {**SETTINGS, "core": {**SETTINGS["core"]}}
        document["core"]["housekeeper"] = {**SETTINGS["core"]["housekeeper"], **housekeeper}
        settings = services(document)
        cluster = CLUSTER if is_clustered else None
        self.node = ClusterNode(log, settings, name, asyncio.get_running_loop(), cluster=cluster)
        self.keeper = Housekeeper(self.node.queues, log, settings.core.housekeeper, is_alone=not is_clustered)
        self.handled: list[str] = []
        self.failures = 0
        self.keeper.serve(CLIENT, self.handle)

    async def handle(self, task: Task) -> None:
        if self.failures:
            self.failures -= 1
            raise LogUnavailable("away")
        self.handled.append(task.name)

    async def start(self) -> None:
        await self.node.start()
        await self.node.joined(30)
        await self.keeper.start()

    async def stop(self) -> None:
        await self.keeper.stop()
        await self.node.stop()

    def note(self, *names: str) -> None:
        for name in names:
            self.keeper.note(CLIENT, name, f"tbmq.msg.app.{name}")


@asynccontextmanager
async def started(log: MemoryLog, name: str = "a", *, failures: int = 0, **options: Any) -> AsyncIterator[Broker]:
    """One whose handler fails so often."""
    broker = Broker(log, name, **options)
    broker.failures = failures
    await broker.start()
    yield broker
    await broker.stop()


async def settled(log: MemoryLog, count: int) -> None:
    """So many tasks are committed."""
    group = "tb_core_housekeeper-consumer"

    async def committed() -> int:
        return sum(offset.offset for offset in (await log.admin.group_offsets(group)).values())

    async with asyncio.timeout(30):
        while await committed() < count:  # noqa: ASYNC110  # nobody tells when it changes
            await asyncio.sleep(0.01)


def test_a_broker_alone_has_no_queue_before_the_first_task_and_handles_each_once() -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log) as broker:
            assert not [topic for topic in log.topics if "housekeeper" in topic]
            broker.note("x", "y")
            await until(lambda: sorted(broker.handled) == ["x", "y"])
            await settled(log, 2)
        async with started(log) as after:
            after.note("z")
            await until(lambda: after.handled == ["z"])
            assert after.keeper.counters()["housekeeper_noted"] == 1

    with_memory_log(scenario)


def test_tasks_are_json_and_those_of_an_earlier_version_are_read() -> None:
    async def scenario(log: MemoryLog) -> None:
        before = Broker(log)
        await before.node.start()
        before.note("x")
        await until(lambda: any(log.watermarks(TopicPartition(topic, 0)).end for topic in log.topics))
        (topic,) = (topic for topic in log.topics if log.watermarks(TopicPartition(topic, 0)).end)
        seen: list[bytes | None] = []
        await read_state(log, topic, lambda _, value: seen.append(value))
        task = msgspec.json.decode(seen[0] or b"")
        assert (task["kind"], task["name"], task["topic"]) == (CLIENT, "x", "tbmq.msg.app.x")
        old = RecordPack()
        old.append(msgspec.msgpack.encode([CLIENT, "y", "tbmq.msg.app.y", 1]), b"y")
        await log.producer.send(topic, 0, old)
        async with started(log) as after:
            await until(lambda: after.handled == ["x", "y"])

    with_memory_log(scenario)


def test_what_was_noted_before_a_crash_is_handled_after_it() -> None:
    async def scenario(log: MemoryLog) -> None:
        before = Broker(log)
        await before.node.start()  # it handles nothing: it does not live long enough
        before.note("x")
        await until(lambda: any(topic.startswith("tb_housekeeper.") for topic in log.topics))
        async with started(log) as after:
            await until(lambda: after.handled == ["x"])

    with_memory_log(scenario)


def test_a_failure_is_tried_again() -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log, failures=2) as broker:
            broker.note("x")
            await until(lambda: broker.handled == ["x"])
            await settled(log, 1)
            assert broker.keeper.put_off == 0

    with_memory_log(scenario)


def test_a_task_that_fails_for_long_is_put_off_and_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log, failures=3) as broker:
            broker.note("x")
            await until(lambda: broker.keeper.put_off == 1)
            broker.note("y")
            await until(lambda: broker.handled == ["y"])
            assert log.topics["tb_housekeeper.reprocessing"].config.properties["retention.ms"] == str(90 * 86_400_000)
        monkeypatch.setattr(module, "PUT_OFF_SECONDS", 0.1)
        monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)
        async with started(log) as later:
            await until(lambda: later.handled == ["x"])

    with_memory_log(scenario)


def test_what_is_not_due_yet_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)

    async def scenario(log: MemoryLog) -> None:
        async with started(log, failures=3) as broker:
            broker.note("x")
            await until(lambda: broker.keeper.put_off == 1)
            await asyncio.sleep(0.3)
            assert broker.handled == []
            monkeypatch.setattr(module, "PUT_OFF_SECONDS", 0.1)
            await until(lambda: broker.handled == ["x"])

    with_memory_log(scenario)


def test_after_months_it_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVE_UP_SECONDS", 0.0)

    async def scenario(log: MemoryLog) -> None:
        async with started(log, failures=3) as broker:
            broker.note("x")
            await settled(log, 1)
            assert (broker.keeper.put_off, broker.handled) == (0, [])

    with_memory_log(scenario)


def test_a_handler_that_hangs_is_put_off_too() -> None:
    async def scenario(log: MemoryLog) -> None:
        broker = Broker(log, **{"pack_processing_timeout": 0.1})

        async def hang(_: Task) -> None:
            await asyncio.sleep(3_600)

        broker.keeper.serve(CLIENT, hang)
        await broker.start()
        broker.note("x")
        await until(lambda: broker.keeper.put_off == 1)
        await broker.stop()

    with_memory_log(scenario)


def test_a_task_of_a_newer_broker_is_put_off_not_dropped() -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log) as broker:
            broker.keeper.note("of tomorrow", "x", "y")
            await until(lambda: broker.keeper.put_off == 1)

    with_memory_log(scenario)


def test_what_the_log_does_not_take_is_kept_and_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEND_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(module, "MOST_UNSENT", 2)

    async def scenario(log: MemoryLog) -> None:
        async with started(log) as broker:
            append = log.producer.append

            def broken(topic: str, partition: int, pack: Any, on_done: Any) -> None:
                on_done(LogUnavailable("away"))

            monkeypatch.setattr(log.producer, "append", broken)
            broker.note("x", "y", "z")
            await until(lambda: broker.keeper.counters()["housekeeper_unsent"] == 2)  # and no more than that
            monkeypatch.setattr(log.producer, "append", append)
            await until(lambda: len(broker.handled) == 2)
            assert broker.keeper.counters()["housekeeper_unsent"] == 0

    with_memory_log(scenario)


def test_a_task_that_cannot_even_be_put_off_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is away for longer than the retries take, and back before the pack is committed."""

    async def scenario(log: MemoryLog) -> None:
        async with started(log, failures=3) as broker:
            put_off = broker.keeper._producer.send_and_wait
            tries = 0

            async def broken(*_: object) -> None:
                nonlocal tries
                tries += 1
                raise LogUnavailable("away")

            monkeypatch.setattr(broker.keeper._producer, "send_and_wait", broken)
            broker.note("x")
            await until(lambda: tries == 1)
            monkeypatch.setattr(broker.keeper._producer, "send_and_wait", put_off)
            await until(lambda: broker.handled == ["x"])

    with_memory_log(scenario)


@pytest.mark.parametrize("strategy", ["SKIP_ALL_FAILURES", "SKIP_ALL_FAILURES_AND_TIMED_OUT"])
def test_a_strategy_that_skips_failures_loses_no_task(strategy: str) -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log, **{"processing_strategy": {"type": strategy}}, failures=1) as broker:
            broker.note("x")
            await until(lambda: broker.keeper.put_off == 1)

    with_memory_log(scenario)


def test_with_fewer_partitions_than_before_no_task_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(log: MemoryLog) -> None:
        before = Broker(log)
        await before.node.start()  # it handles nothing: it does not live long enough
        names = [f"c{number}" for number in range(40)]
        before.note(*names)
        await until(lambda: sum(topic.startswith("tb_housekeeper.") for topic in log.topics) == 4)
        await log.admin.create("tb_housekeeper.something")
        monkeypatch.setitem(SETTINGS, "core", {**SETTINGS["core"], "partitions": 1})
        async with started(log) as after:
            await until(lambda: sorted(after.handled) == sorted(names))
            await settled(log, len(names))

    with_memory_log(scenario)


@pytest.mark.parametrize("how", ["the log fails", "a session ends"])
def test_former_partitions_are_known_whatever_happens_at_the_start(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    monkeypatch.setattr(module, "LOOK_AGAIN_SECONDS", 0.05)

    async def scenario(log: MemoryLog) -> None:
        before = Broker(log)
        await before.node.start()
        names = [f"c{number}" for number in range(40)]
        before.note(*names)
        await until(lambda: sum(topic.startswith("tb_housekeeper.") for topic in log.topics) == 4)
        monkeypatch.setitem(SETTINGS, "core", {**SETTINGS["core"], "partitions": 1})
        after = Broker(log)
        all_topics = log.admin.list

        async def disturbed() -> Any:
            monkeypatch.setattr(log.admin, "list", all_topics)
            if how == "the log fails":
                raise LogUnavailable("away")
            after.note("late")
            return await all_topics()

        await after.node.start()
        monkeypatch.setattr(log.admin, "list", disturbed)
        await after.keeper.start()
        expected = names if how == "the log fails" else [*names, "late"]
        await until(lambda: sorted(after.handled) == sorted(expected))
        await after.stop()

    with_memory_log(scenario)


def test_what_can_never_be_written_down_is_not_the_trouble_of_a_session_that_ends() -> None:
    async def scenario(log: MemoryLog) -> None:
        async with started(log) as broker:
            broker.note(2_000_000 * "x", "y")
            await until(lambda: broker.handled == ["y"])
            assert broker.keeper.counters()["housekeeper_unsent"] == 0

    with_memory_log(scenario)


def test_a_task_of_a_clock_that_was_wrong_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUT_OFF_SECONDS", 0.1)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)

    async def scenario(log: MemoryLog) -> None:
        async with started(log) as broker:
            producer = broker.keeper._producer
            monkeypatch.setattr(producer, "_wall_clock", lambda: time.time() + 1e6)
            await broker.keeper._put_off(Task(CLIENT, "x", "tbmq.msg.app.x", 2**62), LogUnavailable("away"))
            monkeypatch.setattr(producer, "_wall_clock", time.time)
            broker.note("y")
            await until(lambda: sorted(broker.handled) == ["x", "y"])

    with_memory_log(scenario)


def test_brokers_share_the_tasks_and_one_that_dies_leaves_its_own_to_the_other() -> None:
    async def scenario(log: MemoryLog) -> None:
        first, second = Broker(log, "a", is_clustered=True), Broker(log, "b", is_clustered=True)
        await first.start()
        await second.start()
        await until(lambda: len(second.node.partitions.my_partitions(KEY)) == 2)
        await until(lambda: len(first.node.partitions.my_partitions(KEY)) == 2)
        names = [f"c{number}" for number in range(40)]
        first.note(*names)
        await until(lambda: sorted(first.handled + second.handled) == sorted(names))
        assert first.handled
        assert second.handled
        await second.stop()
        more = [f"d{number}" for number in range(40)]
        first.note(*more)
        await until(lambda: set(more) <= set(first.handled))
        await first.stop()

    with_memory_log(scenario)
