"""One consumer for many lanes, over a memory log: room, replacement, and topics that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from penstock._ext.application.lane import ApplicationDesk, Lane
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled
from penstock.storage.log import pack_reader as module
from penstock.storage.log.base import LogUnavailable, TopicPartition
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.pack_reader import PackReader, ReaderPool
from tests.support.worlds.lanes import PUBACK, LaneClient, record


class Stage:
    def __init__(self, log: MemoryLog, max_records: int) -> None:
        self.log = log
        self.hub = Hub(asyncio.get_running_loop())
        self.desk = ApplicationDesk(self.hub, self.on_lanes, lambda session: None, packs_in_flight=2)
        self.max_records = max_records
        self.reader = PackReader(log.consumer("group"), max_records, self.save)
        self.clients: dict[str, LaneClient] = {}
        self.numbers: dict[str, list[int]] = {}

    def on_lanes(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            self.reader.go_on(lane)

    def save(self, lanes: list[Lane]) -> None:
        for lane in lanes:
            lane.snapshot()
            lane.saved(lane.last_mark)

    def lane(self, name: str, topic: str | None = None) -> Lane:
        """A connected client and its lane, being read."""
        session = Session(self.hub, name)
        self.clients[name] = LaneClient(self.hub, session)
        lane = Lane(session, topic or f"app.{name}", pack_size=self.max_records)
        self.desk.open(lane)
        return lane

    async def fill(self, name: str, count: int, first: int = 0) -> None:
        pack = RecordPack()
        for number in range(first, first + count):
            pack.append(record(str(number).encode()))
        await self.log.producer.send(f"app.{name}", 0, pack)

    def look(self, name: str, *, answers: bool = True) -> list[int]:
        numbers = self.numbers.setdefault(name, [])
        for packet in self.clients[name].take():
            numbers.append(int(packet.payload))
            if answers:
                self.clients[name].say(PUBACK, packet.packet_id)
        return numbers

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - there is no event for what a client got
                await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.05)


def run(scenario: Callable[[Stage], Awaitable[None]], max_records: int = 10) -> None:
    async def main() -> None:
        log = MemoryLog()
        await log.start()
        stage = Stage(log, max_records)
        stage.reader.start()
        try:
            async with asyncio.timeout(60):
                await scenario(stage)
        finally:
            await stage.reader.stop()
            await log.close()

    asyncio.run(main())


def test_each_client_gets_its_own_in_order() -> None:
    async def scenario(stage: Stage) -> None:
        names = [f"c{number}" for number in range(20)]
        for name in names:
            await stage.log.admin.create(f"app.{name}")
            await stage.fill(name, 35)
            stage.reader.add(stage.lane(name))
        await stage.until(lambda: all(len(stage.look(name)) == 35 for name in names))
        assert all(stage.numbers[name] == list(range(35)) for name in names)
        for name in names:
            await stage.fill(name, 5, 35)
        await stage.until(lambda: all(len(stage.look(name)) == 40 for name in names))

    run(scenario)


def test_a_lane_without_room_waits_and_goes_on() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.slow")
        await stage.log.admin.create("app.quick")
        slow, quick = stage.lane("slow"), stage.lane("quick")
        await stage.fill("slow", 500)
        await stage.fill("quick", 500)
        stage.reader.add(slow)
        stage.reader.add(quick)
        await stage.until(lambda: len(stage.look("quick")) == 500)
        stage.look("slow", answers=False)
        assert slow.is_paused
        assert slow.position <= 4 * 2 * 10 + 10  # as much as is made ready
        assert stage.numbers["slow"] == list(range(20))  # two packs of ten
        for packet_id in range(1, 21):
            stage.clients["slow"].say(PUBACK, packet_id)
        await stage.until(lambda: len(stage.look("slow")) == 500)
        assert stage.numbers["slow"] == list(range(500))

    run(scenario)


def test_a_lane_that_is_removed_gets_no_more() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.a")
        lane = stage.lane("a")
        stage.reader.add(lane)
        await stage.fill("a", 3)
        await stage.until(lambda: len(stage.look("a")) == 3)
        stage.reader.remove(lane)
        await stage.fill("a", 3, 3)
        await asyncio.sleep(0.05)
        assert lane.position == 3

    run(scenario)


def test_a_lane_that_is_replaced_starts_at_its_own_offset() -> None:
    """A client reconnects faster than the reader follows: the new lane must not get the old one's position."""

    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.a")
        await stage.fill("a", 30)
        first = stage.lane("a")
        stage.reader.add(first)
        await stage.until(lambda: stage.look("a", answers=False))
        position = first.position
        assert position >= 10
        stage.clients["a"].lose()
        stage.reader.remove(first)
        second = stage.lane("a")
        stage.numbers["a"] = []
        stage.reader.add(second)
        await stage.until(lambda: len(stage.look("a")) == 30)
        assert stage.numbers["a"] == list(range(30))

    run(scenario)


def test_a_topic_that_is_not_there_does_not_keep_the_others_from_theirs() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.good")
        await stage.fill("good", 5)
        stage.reader.add(stage.lane("missing"))
        stage.reader.add(stage.lane("good"))
        await stage.until(lambda: len(stage.look("good")) == 5, 30.0)
        await stage.log.admin.create("app.missing")
        await stage.fill("missing", 2)
        await stage.until(lambda: len(stage.look("missing")) == 2, 30.0)

    run(scenario)


def test_a_topic_that_goes_away_does_not_keep_the_others_from_theirs() -> None:
    async def scenario(stage: Stage) -> None:
        for name in ("gone", "good"):
            await stage.log.admin.create(f"app.{name}")
            await stage.fill(name, 2)
            stage.reader.add(stage.lane(name))
        await stage.until(lambda: len(stage.look("good")) == len(stage.look("gone")) == 2)
        await stage.log.admin.delete("app.gone")
        await asyncio.sleep(0.1)
        for first in (2, 4, 6):
            await stage.fill("good", 2, first)
            await asyncio.sleep(0.02)
        await stage.until(lambda: len(stage.look("good")) == 8, 30.0)
        assert stage.numbers["good"] == list(range(8))

    run(scenario)


def test_reads_that_fail_for_a_while() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.a")
        read, failures = stage.log.try_read, [LogUnavailable("not now") for _ in range(3)]

        def broken(*arguments: object) -> list[RecordPack]:
            if failures:
                raise failures.pop()
            return read(*arguments)

        stage.log.try_read = broken  # the fault this is about
        stage.reader.add(stage.lane("a"))
        await stage.fill("a", 40)
        await stage.until(lambda: len(stage.look("a")) == 40)
        assert not failures
        assert stage.numbers["a"] == list(range(40))

    run(scenario)


def test_one_lane_that_breaks_does_not_end_the_reading() -> None:
    """Whatever happens to the packs of one client, the others get theirs."""

    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.good")
        await stage.log.admin.create("app.bad")
        stage.desk.packs_in_flight = 1_000
        bad = stage.lane("bad")
        stage.reader.add(bad)
        for _ in range(14):  # more than there are packet ids, and the client acknowledges nothing
            await stage.fill("bad", 5_000)
        await stage.until(lambda: bad.in_flight > 55_000)
        await asyncio.sleep(0.05)
        stage.reader.add(stage.lane("good"))
        await stage.fill("good", 5)
        await stage.until(lambda: len(stage.look("good")) == 5, 30.0)

    run(scenario, 500)


def test_commits_what_is_acknowledged() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("app.a")
        lane = stage.lane("a")
        stage.reader.add(lane)
        await stage.fill("a", 5)
        await stage.until(lambda: len(stage.look("a", answers=False)) == 5)
        stage.clients["a"].say(PUBACK, 1)
        stage.clients["a"].say(PUBACK, 2)
        stage.clients["a"].say(PUBACK, 4)
        await stage.reader.commit([lane])
        place = TopicPartition("app.a", 0)
        assert await stage.reader.committed(place) == 2
        await stage.reader.commit([])
        await stage.log.admin.delete("app.a")
        await stage.reader.commit([lane])  # somebody removed it: a warning, no more
        assert await stage.reader.committed(place) is None

    run(scenario)


def test_shared_partitions_wait_for_a_lane() -> None:
    async def scenario(stage: Stage) -> None:
        await stage.log.admin.create("shared", 3)
        shared = PackReader(stage.log.consumer("g"), 10, stage.save)
        assigned: list[TopicPartition] = []
        revoked: list[TopicPartition] = []
        pack = RecordPack()
        for number in range(4):
            pack.append(record(str(number).encode()))
        await stage.log.producer.send("shared", 1, pack)
        shared.start_shared("shared", assigned.extend, revoked.extend)
        try:
            await stage.until(lambda: len(assigned) == 3)
            session = Session(stage.hub, "a")
            stage.clients["a"] = LaneClient(stage.hub, session)
            lane = Lane(session, "shared", 1, is_shared=True)
            stage.desk.open(lane)
            lane.start_at(1)
            await asyncio.sleep(0.02)
            assert lane.position == 1
            shared.add(lane)
            await stage.until(lambda: len(stage.look("a")) == 3)
            assert stage.numbers["a"] == [1, 2, 3]
            other = stage.log.consumer("g")
            other.subscribe(["shared"])
            await other.poll(1, 0.05)
            await stage.until(lambda: revoked)
            await other.close()
        finally:
            await shared.stop()

    run(scenario)


def test_a_reader_without_a_group_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lanes are those of claims. It would warn of every commit, and each reader for itself."""

    async def scenario(stage: Stage) -> None:
        warnings: list[str] = []
        monkeypatch.setattr(Throttled, "warning", lambda _, what, error: warnings.append(f"{what}: {error}"))
        await stage.log.admin.create("app.a")
        pool: ReaderPool[Lane] = ReaderPool(lambda: stage.log.consumer(""), 10, stage.save)
        lane = stage.lane("a")
        reader = pool.reader_for(TopicPartition("app.a", 0))
        reader.add(lane)
        await reader.commit([lane])
        await pool.stop()
        assert not warnings

    run(scenario)
