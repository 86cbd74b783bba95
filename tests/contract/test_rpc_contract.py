"""Request and response behave the same over every provider of logs."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from statistics import median

import pytest
import uvloop

from penstock.services.rpc.errors import RemoteError, RequestTimeout, RequestTooLarge
from penstock.services.rpc.responder import Responder
from penstock.services.rpc.settings import ResponderSettings
from penstock.services.rpc.template import RequestTemplate
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log
from tests.contract.providers import PROVIDERS, Provider


@pytest.fixture(params=["memory", "embedded", "kafka", "kafka-cluster"])
def provider(request: pytest.FixtureRequest, tmp_path: Path) -> Provider:
    return PROVIDERS[request.param](request, tmp_path)


class Pair:
    """A caller and any number of responders of one service."""

    def __init__(self, log: Log) -> None:
        self.name = f"rpc{uuid.uuid4().hex[:12]}"
        self.log = log
        self.template = RequestTemplate(
            log,
            request_topic=f"{self.name}.requests",
            response_topic=f"{self.name}.responses.core-1",
            group=f"{self.name}-responses-node-core-1",
            service_id="core-1",
        )
        self.responders: list[Responder] = []

    async def start(self) -> None:
        await self.log.admin.create(f"{self.name}.requests", 4)
        await self.template.start()

    async def add_responder(self, handler) -> Responder:
        responder = Responder(
            self.log,
            handler,
            request_topic=f"{self.name}.requests",
            group=self.name,
            service_id=f"js-{len(self.responders)}",
            settings=ResponderSettings(commit_seconds=0.01),
        )
        await responder.start()
        self.responders.append(responder)
        return responder

    async def close(self) -> None:
        await self.template.close()
        for responder in self.responders:
            await responder.close()


def handle(request: Request) -> bytes:
    if request.data.startswith(b"bad"):
        raise ValueError("bad data")
    return request.data[::-1]


async def handle_later(request: Request) -> bytes:
    await asyncio.sleep(0)
    return handle(request)


@pytest.mark.parametrize("handler", [handle, handle_later], ids=["sync", "async"])
def test_every_call_gets_its_own_answer(provider: Provider, handler) -> None:
    async def run() -> None:
        async with provider.open() as log:
            pair = Pair(log)
            await pair.start()
            await pair.add_responder(handler)
            for _ in range(5):
                data = [uuid.uuid4().bytes for _ in range(200)]
                calls = [pair.template.send(one, timeout=30) for one in data]
                assert await asyncio.gather(*calls) == [one[::-1] for one in data]
                await asyncio.sleep(0)
            with pytest.raises(RemoteError, match="bad data"):
                await pair.template.send(b"bad", timeout=30)
            assert pair.template.counters()["requests_completed_total"] == 1_001
            await pair.close()

    uvloop.run(run())


async def sleep_and_measure(seconds: float) -> float:
    started = time.monotonic()
    await asyncio.sleep(seconds)
    return time.monotonic() - started


def test_a_deadline_is_honoured_within_100_ms(provider: Provider) -> None:
    async def run() -> None:
        async with provider.open() as log:
            pair = Pair(log)
            await pair.start()
            waits, delays = [], []
            # A little behind 0.2 s: a clock that ticks as seldom as that would be late by most of a tick.
            for seconds in (0.21, 0.22, 0.23, 0.24, 0.25):
                started = time.monotonic()
                plain = asyncio.create_task(sleep_and_measure(seconds))
                with pytest.raises(RequestTimeout):
                    await pair.template.send(b"x", timeout=seconds)
                waits.append(time.monotonic() - started - seconds)
                # A machine that is busy delays any timer of this loop, which is not the template's fault.
                delays.append(time.monotonic() - started - await plain)
            assert min(waits) >= 0
            assert median(delays) <= 0.1, delays
            await pair.close()

    uvloop.run(run())


LARGE = 1_048_400
"""Within RequestSettings.max_message_bytes; with its headers more than Kafka takes."""


def test_a_request_that_the_log_does_not_take_costs_the_others_nothing(provider: Provider) -> None:
    async def run() -> None:
        async with provider.open() as log:
            pair = Pair(log)
            await pair.start()
            await pair.add_responder(lambda request: request.data[:5])

            async def call(size: int) -> bytes:
                return await pair.template.send(bytes(size), timeout=30, partition=0)

            results = await asyncio.gather(*map(call, (5, LARGE, 5, LARGE - 1_000, 5)), return_exceptions=True)
            assert [results[index] for index in (0, 2, 3, 4)] == [bytes(5)] * 4
            if provider.name == "kafka":
                assert isinstance(results[1], RequestTooLarge)
                assert "kafka.max_request_size" in str(results[1])
                with pytest.raises(RequestTooLarge):
                    pair.template.send(bytes(LARGE - 1_000), headers=[("more", bytes(900))], timeout=30)
            else:
                assert results[1] == bytes(5)
            await pair.close()

    uvloop.run(run())


def test_an_answer_that_the_log_does_not_take_is_an_error_answer_and_costs_the_others_nothing(
    provider: Provider,
) -> None:
    async def run() -> None:
        async with provider.open() as log:
            pair = Pair(log)
            await pair.start()
            await pair.add_responder(lambda request: bytes(int(request.data)))
            sizes = (5, LARGE, 6, LARGE - 1_000, 7)
            calls = [pair.template.send(b"%d" % size, timeout=30, partition=0) for size in sizes]
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert [len(results[index]) for index in (0, 2, 3, 4)] == [5, 6, LARGE - 1_000, 7]
            if provider.name == "kafka":
                assert isinstance(results[1], RemoteError)
                assert results[1].code == "ANSWER_TOO_LARGE"
            else:
                assert len(results[1]) == LARGE
            await pair.close()

    uvloop.run(run())


def test_what_was_not_answered_is_answered_by_the_next(provider: Provider) -> None:
    async def never(request: Request) -> bytes:
        if request.data == b"2":
            await asyncio.Event().wait()
        return request.data

    async def run() -> None:
        async with provider.open() as log:
            pair = Pair(log)
            await pair.start()
            first = await pair.add_responder(never)
            calls = [pair.template.send(data, timeout=60, partition=1) for data in (b"1", b"2", b"3")]
            await asyncio.wait_for(calls[0], 30)
            await asyncio.wait_for(calls[2], 30)
            pair.responders.remove(first)
            await first.close(drain_seconds=0.0)
            await pair.add_responder(lambda request: request.data)
            assert await asyncio.wait_for(calls[1], 30) == b"2"
            await pair.close()

    uvloop.run(run())
