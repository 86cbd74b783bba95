"""Dispatch when the log fails for a while, a topic is gone, or a message does not fit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import LogUnavailable, RecordTooLarge
from tests.support.worlds.dispatch_stage import Stage, numbers, run

pytestmark = pytest.mark.usefixtures("quick_dispatch")


def test_an_append_that_fails_is_tried_again() -> None:
    """Order is kept, nobody's messages are skipped, and the offset waits for all of them."""

    async def scenario(stage: Stage) -> None:
        for name in "abc":
            await stage.client(name)
        await stage.start()
        stage.log.failures["app.b"] = LogUnavailable("the disk is full")
        for value in range(5):
            await stage.publish("x", *numbers(2 * value, 2 * value + 1))
        await stage.until(lambda: stage.dispatcher.retries >= 3)
        await asyncio.sleep(0.1)
        assert stage.payloads("b") == []
        assert stage.committed() <= 0
        stage.log.failures.clear()
        await stage.until(lambda: all(len(stage.payloads(name)) == 10 for name in "abc"))
        assert all(stage.payloads(name) == numbers(*range(10)) for name in "abc")
        await stage.until(lambda: stage.committed() == 10)

    run(scenario)


def test_what_waits_in_the_log_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.log.lag_watch.LOOK_SECONDS", 0.01)

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        stage.log.failures["app.a"] = LogUnavailable("the disk is full")
        await stage.publish("x", *numbers(1))
        await stage.until(lambda: stage.dispatcher.retries >= 1)
        await stage.publish("x", *numbers(2, 3, 4))
        await stage.until(lambda: stage.dispatcher.counters()["dispatch_lag"] == 3)
        stage.log.failures.clear()
        await stage.until(lambda: stage.dispatcher.counters()["dispatch_lag"] == 0)
        assert stage.payloads("a") == numbers(1, 2, 3, 4)

    run(scenario)


def test_a_message_larger_than_one_topic_takes_stops_nobody() -> None:
    """It is lost for that client alone and counted; what came with it keeps its order."""

    async def scenario(stage: Stage) -> None:
        for name in "ab":
            await stage.client(name)
        take = stage.log._producer.append

        def append(topic: str, partition: int, pack: RecordPack, on_done: Callable | None = None) -> None:
            if topic == "app.b" and any(len(value) > 1_000 for value in pack.values()):
                assert on_done is not None
                asyncio.get_running_loop().call_soon(on_done, RecordTooLarge("more than 1000 bytes"))
            else:
                take(topic, partition, pack, on_done)

        stage.log._producer.append = append  # the fault this is about
        await stage.start()
        large = bytes(2_000)
        await stage.publish("x", b"0", b"1", large, b"2", large, b"3")
        await stage.until(lambda: stage.payloads("b") == numbers(0, 1, 2, 3))
        await stage.until(lambda: stage.payloads("a") == [b"0", b"1", large, b"2", large, b"3"])
        await stage.until(lambda: stage.committed() == 6)
        assert stage.dispatcher.counters()["dispatch_too_large"] == 2

    run(scenario)


def test_a_commit_that_fails_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        stage.log.commit_failure = LogUnavailable("Kafka is away")
        await stage.start()
        for value in range(6):
            await stage.publish("x", str(value).encode())
            await asyncio.sleep(0.04)
        await stage.until(lambda: stage.payloads("a") == numbers(*range(6)))
        assert stage.committed() == -1
        stage.log.commit_failure = None
        await stage.until(lambda: stage.committed() == 6)
        assert stage.payloads("a") == numbers(*range(6))

    run(scenario)


def test_a_poll_that_fails_is_tried_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        read = stage.log.try_read
        failures = 3

        def broken(*arguments: object) -> list[RecordPack]:
            nonlocal failures
            if failures:
                failures -= 1
                raise LogUnavailable("not now")
            return read(*arguments)

        stage.log.try_read = broken  # the fault this is about
        await stage.publish("x", *numbers(*range(9)))
        await stage.until(lambda: len(stage.payloads("a")) == 9)
        assert failures == 0
        assert stage.payloads("a") == numbers(*range(9))

    run(scenario)


def test_a_topic_that_somebody_removed_is_made_again() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        await stage.start()
        await stage.publish("x", b"1", b"2")
        await stage.until(lambda: "app.a" in stage.log.topics and len(stage.payloads("a")) == 2)
        assert stage.missing == ["app.a"]
        assert stage.payloads("b") == numbers(1, 2)

    run(scenario)


def test_a_topic_nobody_wants_any_more_is_passed_over() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        stage.is_wanted = False
        await stage.start()
        await stage.publish("x", b"1")
        await stage.until(lambda: stage.payloads("b") == [b"1"] and stage.committed() == 1)
        assert "app.a" not in stage.log.topics

    run(scenario)


def test_a_topic_that_cannot_be_made_now_loses_nothing() -> None:
    """The log is away when the topic is to be made again: the round is not given up, for nobody."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.client("b")
        await stage.log.admin.delete("app.a")
        stage.log.failures["app.b"] = LogUnavailable("away")
        stage.log.create_failure = LogUnavailable("away")
        await stage.start()
        await stage.publish("x", b"1", b"2")
        await stage.until(lambda: len(stage.missing) >= 1)
        await asyncio.sleep(0.05)
        await stage.publish("x", b"3")
        await asyncio.sleep(0.2)
        stage.log.failures.clear()
        stage.log.create_failure = None
        await stage.publish("x", b"4")
        await stage.until(lambda: "app.a" in stage.log.topics and b"4" in stage.payloads("a"))
        assert stage.payloads("b") == numbers(1, 2, 3, 4)
        assert stage.payloads("a") == numbers(1, 2, 3, 4)

    run(scenario)


def test_an_error_that_is_not_of_the_log_does_not_end_dispatch() -> None:
    """Whatever breaks in one round, the messages of the next still reach their clients."""

    async def scenario(stage: Stage) -> None:
        await stage.client("a")
        await stage.start()
        stage.log.failures["app.a"] = MemoryError("for a moment")  # no LogError
        await stage.publish("x", b"1")
        await asyncio.sleep(0.1)
        stage.log.failures.clear()
        await stage.publish("x", b"2")
        await stage.until(lambda: b"2" in stage.payloads("a"))
        assert stage.payloads("a") == numbers(1, 2)

    run(scenario)
