"""The processor over a log: what is committed when, what is set aside, what is counted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.services.messages import QueueMessage, encode_message
from penstock.services.packs.aside import dead_letter_topic
from penstock.services.packs.message import NotYet, PackMessage
from penstock.services.packs.processor import PackProcessor
from penstock.services.packs.queues import PackQueue
from penstock.settings.services import AckSettings, AckStrategy, SubmitSettings, SubmitStrategy
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.memory import MemoryLog

TOPIC = "tb_rule_engine.main"
QUEUE = PackQueue("Main", TOPIC, pack_seconds=0.2, ack=AckSettings(pause=0))
DEVICES = [UUID(int=number) for number in range(3)]


@asynccontextmanager
async def running(
    queue: PackQueue, handler: Callable[[PackMessage], Awaitable[None]], values: list[tuple[int, bytes]], **options
) -> AsyncIterator[tuple[MemoryLog, PackProcessor, Callable[[], Awaitable[int]]]]:
    log = MemoryLog()
    await log.start()
    await log.admin.create(TOPIC)
    await log.admin.create("dead", 1)
    pack = RecordPack()
    for device, data in values:
        if device < 0:
            pack.append(data)
        else:
            encode_message(QueueMessage(DEVICES[device], data), pack, int(time.time() * 1_000))
    await log.producer.send(TOPIC, 0, pack)
    if options.pop("dead_letters", False):
        options["dead_letter"] = dead_letter_topic(log, "dead")
    processor = PackProcessor(queue, handler, **options)
    consumer = log.consumer("re-Main-consumer")
    consumer.assign([TopicPartition(TOPIC, 0)])
    task = asyncio.create_task(processor.run(consumer))

    async def committed() -> int:
        found = await consumer.committed([TopicPartition(TOPIC, 0)])
        position = found[TopicPartition(TOPIC, 0)]
        return 0 if position is None else position.offset

    try:
        yield log, processor, committed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await log.close()


async def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the processor has no event for what is counted
            await asyncio.sleep(0.005)


async def until_committed(committed: Callable[[], Awaitable[int]], offset: int) -> None:
    async with asyncio.timeout(60):
        while await committed() != offset:  # noqa: ASYNC110 - nor has the log one for commits
            await asyncio.sleep(0.005)


def test_one_record_that_cannot_be_decoded_is_set_aside() -> None:
    """In the original the whole batch throws."""
    handled = []

    async def handler(message: PackMessage) -> None:
        handled.append(message.value.data)

    async def run() -> None:
        values = [(0, b"1"), (-1, b"no key"), (1, b"2")]
        async with running(QUEUE, handler, values, dead_letters=True) as (log, processor, committed):
            await until_committed(committed, 3)
            assert handled == [b"1", b"2"]
            (aside,) = processor.aside.recent
            assert (aside.topic, aside.partition, aside.offset) == (TOPIC, 0, 1)
            assert "no key" in aside.reason
            counters = processor.counters()
            assert counters["undecodableMsgs"] == 1
            assert (counters["totalMsgs"], counters["successfulMsgs"]) == (2, 2)
            reader = log.consumer("")
            reader.assign([TopicPartition("dead", 0)])
            (fetched,) = await reader.poll(10, 1.0)
            (record,) = fetched.pack
            assert record.value == b"no key"
            assert dict(record.headers)["deadLetterFrom"] == f"{TOPIC}/0/1".encode()
            assert b"no key" in dict(record.headers)["deadLetterReason"]

    asyncio.run(run())


def test_a_dead_letter_topic_that_fails_holds_up_nobody() -> None:
    async def handler(message: PackMessage) -> None: ...

    async def refuse(what: object) -> None:
        raise OSError("full")

    async def run() -> None:
        async with running(QUEUE, handler, [(-1, b"bad"), (0, b"1")], dead_letter=refuse) as (_, processor, committed):
            await until_committed(committed, 2)
            assert processor.counters()["deadLetterFailures"] == 1

    asyncio.run(run())


def test_nothing_is_committed_before_everything_is_settled() -> None:
    attempts: dict[bytes, int] = {}
    may_succeed = asyncio.Event()

    async def handler(message: PackMessage) -> None:
        data = message.value.data
        attempts[data] = attempts.get(data, 0) + 1
        if data == b"2" and not may_succeed.is_set():
            raise ValueError("not yet")

    async def run() -> None:
        ack = AckSettings(AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=0, pause=0.01, max_pause=0.02)
        values = [(0, b"1"), (1, b"2"), (2, b"3")]
        async with running(replace(QUEUE, ack=ack), handler, values) as (_, processor, committed):
            await wait_for(lambda: attempts.get(b"2", 0) >= 3)
            assert await committed() == 0
            may_succeed.set()
            await until_committed(committed, 3)
            assert attempts[b"1"] == attempts[b"3"] == 1
            counters = processor.counters()
            assert counters["tmpFailed"] == attempts[b"2"] - 1
            assert counters["failedMsgs"] == 0
            assert (counters["successfulIterations"], counters["failedIterations"]) == (1, attempts[b"2"] - 1)

    asyncio.run(run())


def test_order_of_an_originator_through_failures() -> None:
    order: list[bytes] = []
    failures = {b"a1": 2, b"b2": 1}

    async def handler(message: PackMessage) -> None:
        data = message.value.data
        await asyncio.sleep(0)
        if failures.get(data, 0):
            failures[data] -= 1
            raise ValueError("again")
        order.append(data)

    async def run() -> None:
        queue = replace(
            QUEUE,
            submit=SubmitSettings(SubmitStrategy.SEQUENTIAL_BY_ORIGINATOR),
            ack=AckSettings(AckStrategy.RETRY_FAILED_AND_TIMED_OUT, retries=3, pause=0.001, max_pause=0.001),
        )
        values = [(0, b"a1"), (1, b"b1"), (0, b"a2"), (1, b"b2"), (0, b"a3"), (1, b"b3")]
        async with running(queue, handler, values) as (_, _, committed):
            await until_committed(committed, 6)
        assert [data for data in order if data.startswith(b"a")] == [b"a1", b"a2", b"a3"]
        assert [data for data in order if data.startswith(b"b")] == [b"b1", b"b2", b"b3"]

    asyncio.run(run())


def test_a_message_never_runs_twice_at_the_same_time() -> None:
    running_now = most = cancelled = 0

    async def handler(message: PackMessage) -> None:
        nonlocal running_now, most, cancelled
        running_now += 1
        most = max(most, running_now)
        try:
            if message.attempts == 1:
                await asyncio.sleep(30)
        except asyncio.CancelledError:
            cancelled += 1
            await asyncio.sleep(0.05)
            raise
        finally:
            running_now -= 1

    async def run() -> None:
        ack = AckSettings(AckStrategy.RETRY_TIMED_OUT, retries=1, pause=0)
        queue = replace(QUEUE, ack=ack, pack_seconds=0.05)
        async with running(queue, handler, [(0, b"1")]) as (_, processor, committed):
            await until_committed(committed, 1)
            assert (most, cancelled) == (1, 1)
            assert processor.counters()["tmpTimeout"] == 1

    asyncio.run(run())


def test_what_has_to_wait_is_tried_again_and_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        async def handler(message: PackMessage) -> None:
            if message.attempts < 3:
                raise NotYet("soon")

        queue = replace(QUEUE, ack=AckSettings(strategy=AckStrategy.RETRY_FAILED, retries=5, pause=0.01))
        async with running(queue, handler, [(0, b"x")]) as (_, processor, committed), asyncio.timeout(30):
            while await committed() < 1:  # noqa: ASYNC110  # nobody tells when it changes
                await asyncio.sleep(0.01)
            assert processor.counters()["tmpFailed"] == 2

    asyncio.run(run())
    assert not [record for record in caplog.records if "failed" in record.message]


def test_late_successes_still_count() -> None:
    release = asyncio.Event()

    async def handler(message: PackMessage) -> None:
        await release.wait()

    async def run() -> None:
        async with running(replace(QUEUE, pack_seconds=0.05), handler, [(0, b"1")]) as (_, processor, committed):
            await until_committed(committed, 1)
            assert processor.counters()["timeoutMsgs"] == 1
            release.set()
            await wait_for(lambda: processor.counters()["lateMsgs"] == 1)
            assert processor.counters()["successfulMsgs"] == 1

    asyncio.run(run())


def test_tenants_are_counted_apart() -> None:
    async def handler(message: PackMessage) -> None:
        if message.value == b"bad":
            raise ValueError

    async def run() -> None:
        def decode(record):
            return record.value, None, record.value[:1]

        async with running(QUEUE, handler, [(0, b"bad"), (0, b"x1"), (0, b"x2")], decode=decode) as (
            _,
            processor,
            committed,
        ):
            await until_committed(committed, 3)
            assert processor.statistics.tenants[b"x"]["successfulMsgs"] == 2
            assert processor.statistics.tenants[b"b"]["failedMsgs"] == 1

    asyncio.run(run())
