"""The side that asks: deadlines of each call, the bound on what waits, and answers nobody waits for."""

from __future__ import annotations

import asyncio
import time

import pytest

from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import CallWriter
from penstock.services.messages import decode_message
from penstock.services.rpc.errors import (
    RequestNotSent,
    RequestTimeout,
    RequestTooLarge,
    TemplateClosed,
    TooManyPending,
)
from penstock.services.rpc.responder import Responder
from penstock.services.rpc.settings import RequestSettings
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import EARLIEST, LogUnavailable, TopicPartition
from tests.support.machine.manual_clock import ManualClock
from tests.support.worlds.rpc import REQUESTS, RESPONSES, open_memory, responder, template, until


def echo(request: Request) -> bytes:
    return request.data


def test_answers_find_their_calls() -> None:
    async def run() -> None:
        async with open_memory() as log, responder(log, echo), template(log) as caller:
            calls = [caller.send(str(number).encode()) for number in range(500)]
            assert await asyncio.gather(*calls) == [str(number).encode() for number in range(500)]
            counters = caller.counters()
            assert counters["pending_requests_count"] == counters["pending_requests_memory"] == 0
            assert counters["requests_completed_total"] == counters["requests_sent_total"] == 500
            assert counters["response_lag"] > 0
            assert await caller.lag() == 0
            assert log.packs[REQUESTS] == 1, "what one iteration of the loop sends is one pack"
            assert log.packs[RESPONSES] == 1

    asyncio.run(run())


def test_a_call_that_cannot_be_written_costs_the_others_nothing() -> None:
    """Before, calls of the same iteration of the loop were not sent, and nobody was told until their deadlines."""

    async def run() -> None:
        async with open_memory() as log, responder(log, echo), template(log) as caller:
            with pytest.raises(OverflowError):
                caller.send(b"x", timeout=float("inf"), partition=0)
            with pytest.raises(TypeError):
                caller.send("text", partition=1)  # type: ignore[arg-type] # a caller that is wrong
            assert await caller.send(b"good", partition=2, timeout=30) == b"good"
            assert caller.counters()["pending_requests_count"] == 0

    asyncio.run(run())


def test_each_call_has_its_own_deadline() -> None:
    """In the original a timeout shows between 1x and 2x the template's maximum, and a shorter one is not honoured."""

    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            timeouts = [0.05, 0.4, 0.1, 0.2, 0.05]
            started = time.monotonic()

            async def call(seconds: float) -> float:
                with pytest.raises(RequestTimeout, match="no answer"):
                    await caller.send(b"x", timeout=seconds)
                return time.monotonic() - started

            for seconds, waited in zip(timeouts, await asyncio.gather(*map(call, timeouts)), strict=True):
                assert seconds <= waited <= seconds + 10  # the template's maximum is a minute
            assert caller.counters()["request_timeout_count"] == 5
            assert caller.counters()["pending_requests_count"] == 0

    asyncio.run(run())


def test_deadlines_follow_the_clock_they_are_given() -> None:
    async def run() -> None:
        clock = ManualClock()
        async with open_memory() as log, template(log, clock=clock) as caller:
            default, short = caller.send(b"x"), caller.send(b"x", timeout=10)
            clock.now = 9.99
            caller.expire()
            assert not short.done()
            clock.now = 10.025
            caller.expire()
            assert isinstance(short.exception(), RequestTimeout)
            clock.now = 59.9
            caller.expire()
            assert not default.done()
            clock.now = 60.025
            caller.expire()
            assert isinstance(default.exception(), RequestTimeout)

    asyncio.run(run())


def test_headers_carry_the_calls_own_deadline() -> None:
    """In the original expireTs is the template's maximum."""

    async def run() -> None:
        now = int(time.time())
        async with open_memory() as log, template(log, wall_clock=lambda: now) as caller:
            caller.send(b"x", timeout=2.5, partition=0).cancel()
            caller.send(b"y", partition=0, headers=[("trace", b"1")]).cancel()
            reader = log.consumer("")
            reader.assign([TopicPartition(REQUESTS, 0)])
            await reader.seek(TopicPartition(REQUESTS, 0), EARLIEST)
            (fetched,) = await reader.poll(10, 2.0)
            first, second = map(decode_message, fetched.pack)
            assert (first.expire_ts, second.expire_ts) == (now * 1_000 + 2_500, now * 1_000 + 60_000)
            assert first.response_topic == RESPONSES
            assert first.request_id is not None
            assert first.request_id.version == 4
            assert first.key == first.request_id
            assert second.headers["trace"] == b"1"

    asyncio.run(run())


def test_more_than_the_maximum_fails_at_once() -> None:
    async def run() -> None:
        settings = RequestSettings(max_pending_requests=10)
        async with open_memory() as log, template(log, settings=settings) as caller:
            calls = [caller.send(b"x", timeout=5) for _ in range(10)]
            started = time.monotonic()
            with pytest.raises(TooManyPending):
                caller.send(b"x")
            assert time.monotonic() - started < 2
            assert caller.counters()["requests_rejected_total"] == 1
            assert caller.counters()["pending_requests_memory"] > 10
            calls[3].cancel()
            caller.send(b"a caller that gave up makes room")
            with pytest.raises(TooManyPending):
                caller.send(b"x")
            await asyncio.sleep(0)
            assert caller.counters()["requests_sent_total"] == 11

    asyncio.run(run())


def test_a_request_that_cannot_be_sent_fails_at_once() -> None:
    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            log.failures[REQUESTS] = [LogUnavailable("the disk is full")]
            with pytest.raises(RequestNotSent, match="disk is full") as failed:
                await asyncio.wait_for(caller.send(b"x"), 30)
            assert isinstance(failed.value.__cause__, LogUnavailable)
            assert caller.counters()["pending_requests_count"] == 0
            assert caller.counters()["requests_failed_total"] == 1

    asyncio.run(run())


def test_what_is_too_large_is_refused_with_a_clear_error() -> None:
    """In the original it shows up as a timeout."""

    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            with pytest.raises(RequestTooLarge, match="1048577 bytes"):
                caller.send(b"x" * 1_048_577)

    asyncio.run(run())


def test_late_unknown_and_unreadable_answers_are_counted() -> None:
    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            with pytest.raises(RequestTimeout):
                await caller.send(b"x", timeout=0.05)
            async with responder(log, echo, wall_clock=lambda: time.time() - 30) as late:
                await until(lambda: late.counters()["requests_answered_total"] == 1)
                pack = RecordPack()
                pack.append(b"no headers")
                CallWriter(b"x").put(pack, b"nobody asked", b"\0" * 16, int(time.time() * 1_000))
                await log.producer.send(RESPONSES, 0, pack)
                await until(lambda: caller.counters()["responses_ignored_total"] == 2)
            assert caller.counters()["responses_undecodable_total"] == 1
            assert caller.counters()["requests_completed_total"] == 0

    asyncio.run(run())


def test_answers_to_an_earlier_life_are_not_read() -> None:
    async def run() -> None:
        async with open_memory() as log:
            await log.admin.create(RESPONSES, 1)
            pack = RecordPack()
            CallWriter(b"x").put(pack, b"old", b"\0" * 16, int(time.time() * 1_000))
            await log.producer.send(RESPONSES, 0, pack)
            async with responder(log, echo), template(log) as caller:
                assert await caller.send(b"new") == b"new"
                assert caller.counters()["responses_ignored_total"] == 0

    asyncio.run(run())


def test_closing_fails_what_waits() -> None:
    async def run() -> None:
        async with open_memory() as log:
            async with template(log) as caller:
                call = caller.send(b"x")
            with pytest.raises(TemplateClosed):
                await call
            with pytest.raises(TemplateClosed):
                caller.send(b"x")

    asyncio.run(run())


def test_a_key_keeps_its_partition_and_the_others_take_turns() -> None:
    async def run() -> None:
        async with open_memory() as log, template(log) as caller:
            for _ in range(3):
                caller.send(b"x").cancel()
                caller.send(b"k", key=b"device-1").cancel()
                await asyncio.sleep(0.01)
            ends = [(await log.consumer("").watermarks(TopicPartition(REQUESTS, p))).end for p in range(3)]
            assert sorted(ends) == [1, 1, 4]
            with pytest.raises(ValueError, match="no partition 3"):
                caller.send(b"x", partition=3)
            with pytest.raises(ValueError, match="more than 0"):
                caller.send(b"x", timeout=0)

    asyncio.run(run())


def test_a_call_to_one_instance_goes_to_its_own_topic() -> None:
    async def run() -> None:
        async with open_memory() as log:
            for name in ("a", "b"):
                await log.admin.create(f"calls.notifications.{name}")
            asked: list[str] = []

            def answering(name: str) -> Responder:
                def handle(request: Request) -> bytes:
                    asked.append(name)
                    return name.encode() + request.data

                topic = f"calls.notifications.{name}"
                return Responder(log, handle, request_topic=topic, group=name, service_id=name, partitions=[0])

            responders = [answering("a"), answering("b")]
            for one in responders:
                await one.start()
            async with template(log, request_topic=None) as caller:
                calls = [
                    caller.send(b"%d" % number, to=f"calls.notifications.{'ab'[number % 2]}") for number in range(6)
                ]
                assert await asyncio.gather(*calls) == [b"a0", b"b1", b"a2", b"b3", b"a4", b"b5"]
                assert sorted(asked) == ["a"] * 3 + ["b"] * 3
                with pytest.raises(RequestNotSent, match="no topic"):
                    await caller.send(b"x", to="calls.notifications.nobody", timeout=0.05)
            for one in responders:
                await one.close()

    asyncio.run(run())
