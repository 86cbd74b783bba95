"""The side that answers: an answer to everything that has not expired, and commits only behind the answers."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import CallWriter
from penstock.services.rpc.errors import RemoteError, RequestTimeout
from penstock.services.rpc.progress import Progress
from penstock.services.rpc.settings import ResponderSettings
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log, LogUnavailable, TopicPartition
from tests.support.worlds.rpc import GROUP, REQUESTS, RESPONSES, open_memory, responder, template, until

FAST = ResponderSettings(commit_seconds=0.01, retry_seconds=0.02)


def echo(request: Request) -> bytes:
    return request.data


async def committed(log: Log) -> int:
    offsets = await log.admin.group_offsets(GROUP)
    return sum(position.offset for position in offsets.values())


async def until_committed(log: Log, offset: int) -> None:
    async with asyncio.timeout(60):
        while await committed(log) < offset:  # noqa: ASYNC110  # nobody tells when it changes
            await asyncio.sleep(0.005)


def test_a_handler_that_fails_is_answered_at_once() -> None:
    """In the original no answer is sent and the caller waits for its timeout."""

    async def fails_later(request: Request) -> bytes:
        await asyncio.sleep(0)
        return fails(request)

    def fails(request: Request) -> bytes:
        if request.data == b"type":
            return "text"  # type: ignore[return-value] # a handler that is wrong
        raise KeyError("no such script")

    async def run() -> None:
        for handler in (fails, fails_later):
            async with open_memory() as log, responder(log, handler) as answers, template(log) as caller:
                with pytest.raises(RemoteError, match="no such script") as failed:
                    await asyncio.wait_for(caller.send(b"x"), 30)
                assert failed.value.code == "HANDLER_FAILED"
                with pytest.raises(RemoteError, match="str instead of bytes"):
                    await asyncio.wait_for(caller.send(b"type"), 30)
                assert answers.counters()["requests_failed_total"] == 2

    asyncio.run(run())


def test_a_handler_that_meets_a_cancellation_is_answered_and_the_next_request_handled() -> None:
    """As the result of a future that somebody cancelled is one. Before, no request was read any more."""

    def handler(request: Request) -> bytes:
        if request.data == b"cancelled":
            raise asyncio.CancelledError
        return request.data

    async def run() -> None:
        async with open_memory() as log, responder(log, handler), template(log) as caller:
            with pytest.raises(RemoteError, match="CancelledError"):
                await caller.send(b"cancelled", timeout=30)
            assert await caller.send(b"good", timeout=30) == b"good"

    asyncio.run(run())


def test_a_handler_that_takes_too_long_is_stopped_and_answered() -> None:
    stopped = []

    async def slow(request: Request) -> bytes:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            stopped.append(request.data)
            raise
        return b""

    async def run() -> None:
        settings = ResponderSettings(handler_timeout=0.05)
        async with open_memory() as log, responder(log, slow, settings=settings) as answers, template(log) as caller:
            with pytest.raises(RemoteError) as failed:
                await asyncio.wait_for(caller.send(b"x"), 30)
            assert failed.value.code == "HANDLER_TIMEOUT"
            assert stopped == [b"x"]
            assert answers.counters()["request_timeout_count"] == 1

    asyncio.run(run())


def test_a_timeout_of_the_handlers_own_is_a_failure() -> None:
    async def handler(request: Request) -> bytes:
        raise TimeoutError("the database did not answer")

    async def run() -> None:
        async with open_memory() as log, responder(log, handler), template(log) as caller:
            with pytest.raises(RemoteError, match="database") as failed:
                await asyncio.wait_for(caller.send(b"x"), 30)
            assert failed.value.code == "HANDLER_FAILED"

    asyncio.run(run())


def test_what_has_expired_is_not_handled() -> None:
    handled = []

    def note(request: Request) -> bytes:
        handled.append(request.data)
        return b""

    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            with pytest.raises(RequestTimeout):
                await caller.send(b"old", timeout=0.05)
            async with responder(log, note, settings=FAST) as answers:
                await caller.send(b"new")
                assert handled == [b"new"]
                assert answers.counters()["requests_expired_total"] == 1
            assert await committed(log) == 2

    asyncio.run(run())


def test_one_bad_request_is_answered_or_dropped_alone() -> None:
    """In the original a request without expireTs throws for the whole batch."""

    async def run() -> None:
        async with open_memory() as log, responder(log, echo) as answers, template(log) as caller:
            good = [caller.send(b"1", partition=0)]
            await asyncio.sleep(0)
            pack = RecordPack()
            pack.append(b"no headers", b"k")
            pack.append(b"x", b"k", [("requestId", b"\1" * 16), ("responseTopic", RESPONSES.encode())])
            pack.append(None, b"k")
            await log.producer.send(REQUESTS, 0, pack)
            good.append(caller.send(b"2", partition=0))
            assert await asyncio.gather(*good) == [b"1", b"2"]
            assert answers.counters()["requests_undecodable_total"] == 3
            await until(lambda: caller.counters()["responses_ignored_total"] == 1)

    asyncio.run(run())


def test_an_answer_that_is_too_large_is_an_error() -> None:
    async def run() -> None:
        settings = ResponderSettings(max_message_bytes=100)
        async with (
            open_memory() as log,
            responder(log, lambda request: bytes(101), settings=settings),
            template(log) as caller,
        ):
            with pytest.raises(RemoteError) as failed:
                await caller.send(b"x")
            assert failed.value.code == "ANSWER_TOO_LARGE"

    asyncio.run(run())


def test_no_more_than_the_maximum_is_handled_at_the_same_time() -> None:
    now = most = 0

    async def handler(request: Request) -> bytes:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.002)
        now -= 1
        return request.data

    async def run() -> None:
        settings = ResponderSettings(max_pending_requests=7)
        async with open_memory() as log, responder(log, handler, settings=settings), template(log) as caller:
            await asyncio.gather(*(caller.send(b"x") for _ in range(100)))
            assert most == 7

    asyncio.run(run())


def test_commits_follow_the_answers() -> None:
    """In the original the batch is committed when it is handed out: what a crash leaves unanswered is lost."""
    release = asyncio.Event()
    handled = []

    async def handler(request: Request) -> bytes:
        handled.append(request.data)
        if request.data == b"2":
            await release.wait()
        return request.data

    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            async with responder(log, handler, drain=0.0, settings=FAST):
                first = [caller.send(data, partition=0) for data in (b"1", b"2", b"3")]
                assert await first[0] == b"1"
                assert await first[2] == b"3"
                await asyncio.sleep(0.05)
                assert await committed(log) == 0, "the pack is not answered"
            # that was the crash; the next one starts with the whole pack
            release.set()
            async with responder(log, handler, settings=FAST):
                assert await asyncio.wait_for(first[1], 30) == b"2"
                await until_committed(log, 3)
            assert await committed(log) == 3
            assert handled == [b"1", b"2", b"3"] * 2
            assert caller.counters()["responses_ignored_total"] == 2, "the second answers to 1 and 3"

    asyncio.run(run())


def test_answers_are_sent_again_when_the_log_comes_back() -> None:
    async def run() -> None:
        async with open_memory() as log, template(log) as caller, responder(log, echo, settings=FAST) as answers:
            log.failures[RESPONSES] = [LogUnavailable("away") for _ in range(3)]
            assert await asyncio.wait_for(caller.send(b"x"), 30) == b"x"
            assert answers.counters()["responses_not_sent_total"] == 0

    asyncio.run(run())


def test_a_caller_that_is_gone_holds_up_nobody() -> None:
    async def run() -> None:
        async with open_memory() as log, responder(log, echo, settings=FAST) as answers, template(log) as caller:
            pack = RecordPack()
            now = int(time.time() * 1_000)
            CallWriter(b"x", b"js_eval.responses.gone").put(pack, b"x", b"\1" * 16, now, now + 60_000)
            await log.producer.send(REQUESTS, 0, pack)
            await until(lambda: answers.counters()["responses_not_sent_total"] == 1)
            assert await caller.send(b"x", partition=0) == b"x"
            await until_committed(log, 2)
            assert answers.counters()["pending_requests_count"] == 0

    asyncio.run(run())


def test_lag_is_shown_per_partition() -> None:
    async def run() -> None:
        settings = ResponderSettings(max_pending_requests=1)
        release = asyncio.Event()

        async def wait(request: Request) -> bytes:
            await release.wait()
            return b""

        async with (
            open_memory() as log,
            responder(log, wait, partitions=[0, 1, 2], settings=settings) as answers,
            template(log) as caller,
        ):
            calls = [caller.send(b"x", partition=0) for _ in range(4)]
            await until(lambda: answers.counters()["pending_requests_count"] == 1)
            assert await answers.lag() == {0: 3, 1: 0, 2: 0}
            release.set()
            await asyncio.gather(*calls)
            assert await answers.lag() == {0: 0, 1: 0, 2: 0}

    asyncio.run(run())


def test_progress_commits_from_the_front_only() -> None:
    progress = Progress()
    here, there = TopicPartition("t", 0), TopicPartition("t", 1)
    first, second, other = progress.add(here, 10, 2), progress.add(here, 15, 1), progress.add(there, 3, 1)
    progress.finish(second)
    progress.finish(first)
    assert progress.take() == {}
    progress.finish(other)
    progress.finish(first)
    done = progress.take()
    assert {partition: position.offset for partition, position in done.items()} == {here: 15, there: 3}
    progress.forget(there)
    progress.put_back(done)
    assert {partition: position.offset for partition, position in progress.take().items()} == {here: 15}
