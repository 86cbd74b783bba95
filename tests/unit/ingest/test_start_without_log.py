"""A log that is unavailable while the broker starts: the start waits, and loses nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock._ext.hub.connection import Hub
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.ingest import retained
from penstock.ingest.retained import RETAINED_TOPIC, restore_retained
from penstock.storage.log import waiting
from penstock.storage.log.base import Fetched, LogError, LogUnavailable
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.waiting import until_available


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(retained, "SILENCE_SECONDS", 0.05)


class Away:
    """Fails as often as it is told to, then does the work."""

    def __init__(self, work: Any, times: int) -> None:
        self._work = work
        self.times = times

    async def __call__(self, *arguments: Any, **options: Any) -> Any:
        if self.times:
            self.times -= 1
            raise LogUnavailable("away")
        return await self._work(*arguments, **options)


async def opened(topics: int) -> MemoryLog:
    """A log with retained messages."""
    log = MemoryLog()
    await log.start()
    pack = RecordPack()
    for number in range(topics):
        name = f"t/{number}"
        pack.append(encode(name, b"kept", 1, True, received_at=now_ms()), name.encode())
    await log.admin.create(RETAINED_TOPIC)
    await log.producer.send(RETAINED_TOPIC, 0, pack)
    return log


def test_work_is_done_when_the_log_is_available() -> None:
    async def work() -> int:
        return 7

    away = Away(work, 3)
    assert asyncio.run(until_available(away, "count")) == 7
    assert away.times == 0


def test_what_will_not_pass_is_an_error() -> None:
    async def work() -> None:
        raise LogError("not allowed")

    with pytest.raises(LogError, match="not allowed"):
        asyncio.run(until_available(work, "count"))


def test_retained_messages_are_read_when_the_log_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        log = await opened(5)
        monkeypatch.setattr(log.admin, "create", Away(log.admin.create, 2))
        assert await restore_retained(Hub(asyncio.get_running_loop()), log) == 5

    asyncio.run(test())


def test_retained_messages_that_do_not_come_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's client does not say that nobody answers: nothing comes. That is not the end of the topic."""

    async def test() -> None:
        log = await opened(5)
        new_consumer = log.consumer
        silent = True

        def consumer(group: str) -> Any:
            found: Any = new_consumer(group)
            nonlocal silent
            if silent:
                silent = False
                poll = found.poll

                async def nothing(*_: object) -> list[Fetched]:
                    found.watermarks = Away(found.watermarks, 1)
                    found.poll = poll
                    return []

                found.poll = nothing
            return found

        monkeypatch.setattr(log, "consumer", consumer)
        assert await restore_retained(Hub(asyncio.get_running_loop()), log) == 5

    asyncio.run(test())
