"""A caller and a responder over one log, and a log that fails when told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from penstock._ext.record.segment import RecordPack
from penstock.services.names import responses_group, responses_topic
from penstock.services.rpc.responder import Responder
from penstock.services.rpc.template import RequestTemplate
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log, LogError, OnAppended
from penstock.storage.log.memory import MemoryLog

BASE = "js_eval"
REQUESTS = f"{BASE}.requests"
RESPONSES = responses_topic(BASE, "core-1")
GROUP = "js-executors"


class FaultyLog(MemoryLog):
    """`failures` maps topics to the errors their next appends get; `packs` counts what was appended."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: dict[str, list[LogError]] = {}
        self.packs: dict[str, int] = {}
        self._append = super().producer.append
        super().producer.append = self.append  # type: ignore[method-assign] # the instance's, to stand before it

    def append(self, topic: str, partition: int, pack: RecordPack, on_done: OnAppended | None = None) -> None:
        self.packs[topic] = self.packs.get(topic, 0) + 1
        waiting = self.failures.get(topic)
        if not waiting:
            self._append(topic, partition, pack, on_done)
        elif on_done is not None:
            asyncio.get_running_loop().call_soon(on_done, waiting.pop(0))


@asynccontextmanager
async def open_memory() -> AsyncIterator[FaultyLog]:
    log = FaultyLog()
    await log.start()
    await log.admin.create(REQUESTS, 3)
    try:
        yield log
    finally:
        await log.close()


def make_template(log: Log, **options: Any) -> RequestTemplate:
    return RequestTemplate(
        log,
        request_topic=options.pop("request_topic", REQUESTS),
        response_topic=RESPONSES,
        group=responses_group(BASE, "core-1"),
        service_id="core-1",
        **options,
    )


def make_responder(log: Log, handler: Callable[[Request], bytes | Awaitable[bytes]], **options: Any) -> Responder:
    return Responder(log, handler, request_topic=REQUESTS, group=GROUP, service_id="js-1", **options)


@asynccontextmanager
async def template(log: Log, **options: Any) -> AsyncIterator[RequestTemplate]:
    made = make_template(log, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def responder(
    log: Log, handler: Callable[[Request], bytes | Awaitable[bytes]], drain: float = 1.0, **options: Any
) -> AsyncIterator[Responder]:
    made = make_responder(log, handler, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.close(drain)


async def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - counters have no event
            await asyncio.sleep(0.005)
