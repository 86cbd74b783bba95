"""The book of lanes: contexts when they are needed, totals, time that is up, offsets for those outside."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock._ext.application.context import read_context
from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Hub, Session
from penstock.settings.application import ApplicationSettings
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.pack_reader import PackReader
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import OWN, TABLE, Contexts, make_key
from penstock.subscribers.application.lane_book import LaneBook, Place
from tests.support.worlds.lanes import (
    PAST,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    LaneClient,
    make_pack,
    numbered,
    record,
)


class Stage:
    def __init__(self, log: MemoryLog, **settings: Any) -> None:
        self.log = log
        self.loop = asyncio.get_running_loop()
        self.hub = Hub(self.loop)
        self.store = MemoryStateStore()
        self.contexts = Contexts(self.store, self.loop)
        self.book = LaneBook(self.hub, self.contexts, ApplicationSettings(**settings), lambda session: None)
        self.reader = PackReader(log.consumer("group"), 10, self.book.save)

    async def open(self, name: str, *, version: int = 4, prefix: bytes = b"") -> tuple[LaneClient, Lane, bytes]:
        await self.log.admin.create(f"app.{name}")
        session = Session(self.hub, name)
        client = LaneClient(self.hub, session, version=version)
        lane = Lane(session, f"app.{name}", pack_size=10)
        key = make_key(OWN, name, lane.topic, 0)
        self.book.open(lane, Place(key, prefix, self.reader))
        return client, lane, key

    def stored(self, key: bytes) -> bytes | None:
        return self.store.tables.get(TABLE, {}).get(key)

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0.005)


def run(scenario: Callable[[Stage], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        log = MemoryLog()
        await log.start()
        stage = Stage(log, **settings)
        stage.book.start(lambda lane: None)
        stage.reader.start()
        try:
            async with asyncio.timeout(60):
                await scenario(stage)
        finally:
            await stage.book.stop()
            await stage.reader.stop()
            await log.close()

    asyncio.run(main())


def test_a_context_is_written_when_something_waits_for_it() -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, key = await stage.open("a", prefix=b"owner\0")
        lane.offer([numbered(0, 2, qos=2)])
        stage.book.save([lane])
        stage.book.save([lane])
        assert stage.contexts.saves == 1
        await stage.until(lambda: len(client.take()) == 2)
        client.say(PUBREC, 2)  # a PUBREL waits: the book is told at the end of the iteration
        await stage.until(lambda: [packet.kind for packet in client.take()] == [PUBREL])
        stored = stage.stored(key)
        assert stored is not None
        assert stored.startswith(b"owner\0")
        assert read_context(stored[6:])["in_flight"] == [(0, 1, 1, "sent qos 2"), (1, 2, 1, "received")]

    run(scenario)


def test_what_was_acknowledged_is_written_soon() -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, key = await stage.open("a")
        lane.offer([numbered(0, 3)])
        stage.book.save([lane])
        await stage.until(lambda: len(client.take()) == 3)
        client.say(PUBACK, 1)
        await stage.until(lambda: read_context(stage.stored(key) or lane.peek())["committed"] == 1, 30.0)
        await stage.until(lambda: (stage.stored(key) or b"") == lane.peek(), 30.0)
        saves = stage.contexts.saves
        await asyncio.sleep(0.25)
        assert stage.contexts.saves == saves  # nothing changed, nothing is written

    run(scenario)


def test_closing_stores_the_last_context() -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, key = await stage.open("a", prefix=b"p")
        lane.offer([numbered(0, 3)])
        stage.book.close(lane)
        stage.book.close(lane)
        await asyncio.sleep(0.01)
        stored = stage.stored(key)
        assert stored is not None
        assert read_context(stored[1:])["in_flight"] == [(0, 1, 3, "planned")]
        assert len(stage.book) == 0
        assert client.session.outlets_now == []

    run(scenario)


def test_closing_without_its_context() -> None:
    async def scenario(stage: Stage) -> None:
        _, lane, key = await stage.open("a")
        stage.book.close(lane, keeps_context=False)
        await asyncio.sleep(0.01)
        assert stage.stored(key) is None

    run(scenario)


def test_totals_count_lanes_that_are_gone() -> None:
    async def scenario(stage: Stage) -> None:
        for name in "ab":
            client, lane, _ = await stage.open(name)
            lane.offer([make_pack([record(b"0"), record(b"1", expires_at=PAST), b"garbage", record(b"3")])])
            stage.book.save([lane])
            await stage.until(lambda client=client: len(client.take()) == 2)
            client.say(PUBACK, 1)
        assert stage.book.in_flight == 2
        stage.book.close(lane)
        totals = stage.book.totals()
        assert (totals["delivered"], totals["acknowledged"], totals["expired"], totals["damaged"]) == (4, 2, 2, 2)
        assert stage.book.in_flight == 1
        assert len(list(stage.book)) == 1

    run(scenario)


@pytest.mark.parametrize("strategy", ["retry-all", "skip-all"])
def test_time_that_is_up(strategy: str) -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, _ = await stage.open("a")
        lane.offer([numbered(0, 2)])
        stage.book.save([lane])
        await stage.until(lambda: len(client.take()) == 2)
        client.say(PUBACK, 2)
        stage.hub.tick()
        packets = []

        def look() -> bool:
            stage.hub.tick()
            packets.extend(client.take())
            return lane.committed == 2

        await stage.until(look)
        assert lane.skipped == 1
        sent = [(packet.packet_id, packet.dup) for packet in packets if packet.kind == PUBLISH]
        assert sent == ([(1, True)] if strategy == "retry-all" else [])

    run(scenario, ack_strategy=strategy, retries=1, pack_timeout=0.2, retry_pause=0.0)


def test_offsets_are_committed_for_those_outside() -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, _ = await stage.open("a")
        lane.offer([numbered(0, 3, qos=2)])
        stage.book.save([lane])
        await stage.until(lambda: len(client.take()) == 3)
        client.say(PUBREC, 1)
        await stage.until(client.take)
        client.say(PUBCOMP, 1)
        stage.book.close(lane)
        await stage.book.stop()
        place = TopicPartition("app.a", 0)
        assert stage.log.get_committed("group", place) == Committed(1)

    run(scenario)


def test_an_error_of_our_own_does_not_end_the_rounds() -> None:
    async def scenario(stage: Stage) -> None:
        client, lane, key = await stage.open("a")
        take, failures = stage.contexts.save, [RuntimeError("once")]

        def broken(lanes: Any) -> None:
            if failures:
                raise failures.pop()
            take(lanes)

        stage.contexts.save = broken  # the fault this is about
        lane.start_at(0)
        lane.offer([make_pack([b"garbage"])])  # nothing to send: a context that is written in the next round
        await stage.until(lambda: not failures)
        lane.offer([make_pack([b"garbage"], 1)])
        await stage.until(lambda: stage.stored(key) is not None)
        assert client.is_open

    run(scenario)


def test_the_book_sleeps_while_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker without APPLICATION clients is not woken for them."""
    monkeypatch.setattr("penstock.subscribers.application.lane_book.SAVE_SECONDS", 0.01)
    ticks: list[int] = []
    monkeypatch.setattr(LaneBook, "_tick", lambda _book, count: ticks.append(count))

    async def scenario(stage: Stage) -> None:
        await asyncio.sleep(0.2)
        assert not ticks
        _, lane, _ = await stage.open("a")
        await stage.until(lambda: len(ticks) > 2)
        stage.book.close(lane)
        await stage.until(lambda: not stage.book._uncommitted)
        await asyncio.sleep(0.1)
        count = len(ticks)
        await asyncio.sleep(0.2)
        assert len(ticks) == count

    run(scenario)
