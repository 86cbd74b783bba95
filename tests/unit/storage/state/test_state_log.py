"""State in a log that refuses for a while: nothing is lost, nothing overtakes, and at last the callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import LogError, LogUnavailable, OnAppended
from penstock.storage.log.memory import MemoryLog, MemoryProducer
from penstock.storage.state import topic as state_log
from penstock.storage.state.base import StoreError
from penstock.storage.state.topic import StateLog


class MoodyProducer:
    """Refuses as many appends as `refusals` says, in turn; the records of the others are in `appended`."""

    def __init__(self, producer: MemoryProducer) -> None:
        self._producer = producer
        self.refusals: list[LogError] = []
        self.appended: list[list[bytes | None]] = []
        self.tries = 0

    def append(self, topic: str, partition: int, pack: RecordPack, on_done: OnAppended | None = None) -> None:
        self.tries += 1
        if self.refusals:
            assert on_done is not None
            asyncio.get_running_loop().call_soon(on_done, self.refusals.pop(0))
            return
        self.appended.append(pack.values())
        self._producer.append(topic, partition, pack, on_done)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


class MoodyLog(MemoryLog):
    def __init__(self) -> None:
        super().__init__()
        self.moody = MoodyProducer(super().producer)

    @property
    def producer(self) -> MoodyProducer:  # type: ignore[override]  # the same with refusals
        return self.moody


def run(work: Callable[[MoodyLog, StateLog], Awaitable[None]]) -> None:
    async def limited() -> None:
        log = MoodyLog()
        await log.start()
        store = StateLog(log)
        async with asyncio.timeout(60):
            await store.load("t", lambda key, value: None)
            log.moody.appended.clear()
            log.moody.tries = 0
            await work(log, store)
        await log.close()

    uvloop.run(limited())


@pytest.fixture(autouse=True)
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "RETRY_SECONDS", 0.01)


def test_one_pack_for_an_iteration() -> None:
    async def work(log: MoodyLog, store: StateLog) -> None:
        for number in range(10):
            store.store([("t", b"%d" % (number % 5), b"%d" % number)])
        assert store.pending == 5
        await store.flush()
        assert log.moody.appended == [[b"5", b"6", b"7", b"8", b"9"]]

    run(work)


def test_what_is_refused_for_a_while_is_not_overtaken() -> None:
    async def work(log: MoodyLog, store: StateLog) -> None:
        log.moody.refusals = [LogUnavailable("away")] * 3
        told: list[int] = []
        for number in range(4):
            store.store([("t", b"k", b"%d" % number)], lambda error, n=number: told.append(n))
            await asyncio.sleep(0)
        await store.flush()
        assert log.moody.appended == [[b"0"], [b"1", b"2", b"3"]]
        assert told == [0, 1, 2, 3]
        assert store.pending == 0

    run(work)


def test_callers_are_told_when_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "PATIENCE_SECONDS", 0.1)

    async def work(log: MoodyLog, store: StateLog) -> None:
        log.moody.refusals = [LogUnavailable("Kafka is away")] * 1_000
        store.store([("t", b"k", b"1")])
        with pytest.raises(StoreError, match="Kafka is away"):
            await store.flush()
        assert log.moody.tries > 2
        assert store.check() == "Kafka is away"
        log.moody.refusals = []
        store.store([("t", b"k", b"2")])
        await store.flush()
        assert store.check() is True
        assert log.moody.appended == [[b"2"]]

    run(work)


def test_what_can_never_be_appended_is_told_at_once() -> None:
    async def work(log: MoodyLog, store: StateLog) -> None:
        log.moody.refusals = [LogError("too large")]
        store.store([("t", b"k", b"1")])
        with pytest.raises(StoreError, match="too large"):
            await store.flush()
        assert log.moody.tries == 1

    run(work)


def test_a_load_gives_the_newest_and_not_its_own_marks() -> None:
    async def work(log: MoodyLog, store: StateLog) -> None:
        store.store([("t", b"a", b"1"), ("t", b"b", b"2")])
        store.store([("t", b"a", None)])
        await store.flush()
        found: dict[bytes, bytes | None] = {}
        assert await StateLog(log).load("t", found.__setitem__) == 1
        assert found == {b"b": b"2"}

    run(work)


def test_a_large_iteration_is_several_packs_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_log, "BYTES_IN_PACK", 10_000)

    async def work(log: MoodyLog, store: StateLog) -> None:
        store.store(("t", b"%d" % n, b"%d " % n * 500) for n in range(50))
        await store.flush()
        assert len(log.moody.appended) > 5
        assert [value for values in log.moody.appended for value in values] == [b"%d " % n * 500 for n in range(50)]

    run(work)


def test_a_key_that_changes_twice_is_written_where_it_changed_last() -> None:
    """Kafka may have only the beginning of what a killed broker gave it: what is moved from one key to another must not
    be missing from both."""

    async def work(log: MoodyLog, store: StateLog) -> None:
        store.store([("t", b"from", b"everything")])
        store.store([("t", b"to", b"the message")])
        store.store([("t", b"from", b"the rest")])
        await store.flush()
        assert log.moody.appended == [[b"the message", b"the rest"]]

    run(work)
