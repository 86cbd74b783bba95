"""QoS 2 packet ids reach the store in the order of their batches, whenever the log has the messages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from penstock._ext.record.segment import RecordPack
from penstock.ingest import received_order
from penstock.ingest.ingest import Ingest
from penstock.ingest.received import MARK, SLACK_MS, TABLE, TIME, ReceivedIds
from penstock.storage.log.base import Appended, LogUnavailable, TopicPartition, Watermarks
from penstock.storage.log.sending import append_each
from penstock.storage.state.base import StoreError
from penstock.storage.state.memory import MemoryStateStore


class World:
    """A log whose appends are durable when a test says so, and a store that is done at once."""

    def __init__(self) -> None:
        self.appends: list[tuple[int, Any]] = []
        self.stored: list[tuple[str, bytes]] = []
        self.committed: list[int] = []
        producer = SimpleNamespace(
            append=lambda _, part, __, done, **___: self.appends.append((part, done)),
            append_packs=lambda *arguments, **_: append_each(producer, *arguments),  # type: ignore[arg-type]  # as below
            largest_record=0,
            gathers=False,
            collect=lambda: None,
        )
        log = SimpleNamespace(patient_producer=producer, admin=Reader(0, 0))
        hub = SimpleNamespace(
            log_committed=lambda ticket, *_: self.committed.append(ticket),
            log_to=lambda *_, **__: None,
            stop_gathering=lambda: None,
            is_spread=False,
            is_quiet=False,
            ticket=0,
        )
        self.is_shared = False
        self.ingest = Ingest(hub, log, "t", 4, {}, received=self)  # type: ignore[arg-type]  # the parts it uses

    def store(self, changes: list[tuple[Any, bytes]], on_done: Any) -> None:
        self.stored += [(session.client_id, ids) for session, ids in changes]
        on_done(None)

    def mark(self, ends: dict[int, int], at: int) -> None:
        pass

    def submit(self, ticket: int, ids: bytes, *partitions: int) -> None:
        packs = [(partition, RecordPack()) for partition in partitions]
        for _, pack in packs:
            pack.append(b"message")
        self.ingest.submit(ticket, packs, 0, (None, [(SimpleNamespace(client_id="c"), ids)], [], []))  # type: ignore[arg-type,list-item]  # as above

    def fail(self, partition: int) -> None:
        (done,) = [done for part, done in self.appends if part == partition]
        done(LogUnavailable("not now"))

    def finish(self, partition: int) -> None:
        (done,) = [done for part, done in self.appends if part == partition]
        done(Appended("t", partition, 0, 1))


def test_what_was_released_stays_released() -> None:
    """A batch that only releases has nothing to wait for in the log, and yet it waits for those before it: else what
    they say of the session is stored over it, the id counts as held after a crash, and the next message with it is
    taken for one that the broker has."""
    world = World()
    world.submit(1, b"1 2", 0)
    world.submit(2, b"2")
    world.submit(3, b"2 3", 1)
    world.finish(1)
    assert (world.stored, world.committed) == ([], [])
    world.finish(0)
    assert world.stored == [("c", b"1 2"), ("c", b"2"), ("c", b"2 3")]
    assert world.committed == [1, 2, 3]
    assert world.ingest.batches_open == 0


def test_nothing_is_logged_while_publishers_do_not_know_of_a_failure() -> None:
    """They send again what failed, and younger messages of theirs must not be in the log before it."""
    world = World()
    world.submit(1, b"1", 0)
    world.submit(2, b"", 1)
    world.fail(1)
    world.submit(3, b"2", 2, 3)
    assert [partition for partition, _ in world.appends] == [0, 1]
    assert world.committed == []
    world.finish(0)
    assert world.committed == [1, 2, 3]
    world.submit(4, b"2", 2)
    world.finish(2)
    assert world.committed == [1, 2, 3, 4]
    assert world.stored == [("c", b"1"), ("c", b"2")]


def test_an_offset_that_kafka_did_not_say_moves_no_mark_back() -> None:
    """Or a start would look through the whole log for packet ids."""
    world = World()
    for ticket, offset in ((1, 40), (2, -1)):
        world.submit(ticket, b"", 0)
        world.appends.pop()[1](Appended("t", 0, offset, 1))
    assert world.ingest._ends == {0: 41}


class Reader:
    """What a start asks of a log: where it begins and ends, what lies at a time, and some records to read."""

    def __init__(self, first: int, end: int, second_of_record: float = 1.0) -> None:
        self.first, self.end = first, end
        self._step = second_of_record * 1000
        self._position: dict[TopicPartition, int] = {}
        self.read: dict[int, int] = {}  # how many records of each partition
        self.admin = self.producer = self

    async def create(self, *_: Any) -> None:
        pass

    async def describe(self, _topic: str) -> Any:
        return SimpleNamespace(partitions=3)

    def consumer(self, group: str) -> Any:
        assert not group
        return self

    async def watermarks(self, _place: TopicPartition) -> Watermarks:
        return Watermarks(self.first, self.end)

    async def add(self, starts: dict[TopicPartition, int]) -> None:
        self._position |= starts

    async def seek(self, place: TopicPartition, offset: int) -> None:
        self._position[place] = offset

    async def seek_to_time(self, place: TopicPartition, timestamp_ms: int) -> int:
        self._position[place] = min(max(round(timestamp_ms / self._step), self.first), self.end)
        return self._position[place]

    async def poll(self, most: int, _timeout: float) -> list[Any]:
        for place, position in self._position.items():
            if position < self.end:
                count = min(most, self.end - position)
                self.read[place.partition] = self.read.get(place.partition, 0) + count
                self._position[place] += count
                return [SimpleNamespace(pack=None, topic="t", partition=place.partition, next_offset=position + count)]
        raise AssertionError("a read behind the end")

    async def close(self) -> None:
        pass


NOTHING_FOUND: Any = SimpleNamespace(find_received=lambda _: [])


async def start(store: MemoryStateStore, log: Any) -> ReceivedIds:
    await asyncio.sleep(0)
    received = ReceivedIds(store)
    await received.restore(lambda _: None)
    await received.restore_late(NOTHING_FOUND, log, "t", lambda _: None)
    return received


async def marked(store: MemoryStateStore) -> dict[int, int]:
    await asyncio.sleep(0)
    found: dict[bytes, bytes | None] = {}
    await store.load(TABLE, found.__setitem__)
    return msgspec.json.decode(found[MARK] or b"", type=dict[int, int])


def test_a_mark_forgets_no_partition() -> None:
    """After a start nothing was written to most of them: they are still known to be stored up to where they were."""

    async def main() -> None:
        store = MemoryStateStore()
        received = await start(store, Reader(0, 4))
        received.mark({0: 5, 1: 7}, 1_000)
        received.mark({}, 2_000)
        received.mark({1: 9}, 3_000)
        assert await marked(store) == {0: 5, 1: 9, 2: 4, TIME: 3_000}

    asyncio.run(main())


def test_nothing_is_marked_before_the_last_mark_was_looked_at() -> None:
    """Clients without sessions publish while the store cannot be read: what an earlier process has left stays."""

    async def main() -> None:
        store = MemoryStateStore()
        (await start(store, Reader(0, 4))).mark({0: 5}, 1_000)
        ReceivedIds(store).mark({0: 99, 2: 99}, 2_000)
        assert await marked(store) == {0: 5, 1: 4, 2: 4, TIME: 1_000}

    asyncio.run(main())


def test_what_others_have_written_is_not_read_from_the_last_start_on() -> None:
    """On a Kafka that many share a broker writes to few partitions. Of the others it looks at what is newer than its
    last mark, and a little more, however long ago it started; what it has marked itself is not read again."""

    async def main() -> None:
        store = MemoryStateStore()
        (await start(store, Reader(0, 100))).mark({1: 999_990}, 1_000_000 * 1000)
        log = Reader(0, 1_000_500)
        await start(store, log)
        assert log.read == {0: 500 + SLACK_MS // 1000, 1: 510, 2: 500 + SLACK_MS // 1000}
        # and from there the next time
        log = Reader(0, 1_000_600)
        await start(store, log)
        assert log.read == {0: 100, 1: 100, 2: 100}

    asyncio.run(main())


def test_a_mark_of_an_earlier_version_has_no_time() -> None:
    async def main() -> None:
        store = MemoryStateStore()
        store.store([(TABLE, MARK, b'{"0":10,"1":20}')])
        log = Reader(5, 50_000)
        await start(store, log)
        assert log.read == {0: 49_990, 1: 49_980, 2: 49_995}

    asyncio.run(main())


def test_nothing_to_read_where_nothing_is_newer() -> None:
    async def main() -> None:
        store = MemoryStateStore()
        (await start(store, Reader(0, 0))).mark({}, 90_000_000)
        log = Reader(0, 50_000)
        await start(store, log)
        assert log.read == {}

    asyncio.run(main())


def test_an_idle_broker_marks_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others write meanwhile is then nothing it has to read at its start; while a batch of its own is not done,
    the mark does not move."""
    monkeypatch.setattr("penstock.ingest.ingest.LONGEST_MARK_SECONDS", 0.001)

    async def main() -> None:
        world = World()
        marks: list[dict[int, int]] = []
        world.is_shared, world.mark = True, lambda ends, _: marks.append(ends)  # type: ignore[method-assign]  # as above
        await world.ingest.start("all", "murmur2", 1)
        while len(marks) < 2:  # noqa: ASYNC110 - a stand-in has no event
            await asyncio.sleep(0.001)
        world.submit(1, b"1", 2)
        marks.clear()
        await asyncio.sleep(0.02)
        assert not marks
        world.finish(2)
        while not marks:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)
        assert marks[-1] == {2: 1}
        await world.ingest.stop()

    asyncio.run(main())


class Failing(World):
    """A store that is done when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[list[tuple[str, bytes]], Any]] = []

    def store(self, changes: list[tuple[Any, bytes]], on_done: Any) -> None:
        self.asked.append(([(session.client_id, ids) for session, ids in changes], on_done))

    def answer(self, error: StoreError | None = None, index: int = 0) -> None:
        changes, on_done = self.asked.pop(index)
        if error is None:
            self.stored += changes
        on_done(error)

    async def until_asked(self) -> None:
        async with asyncio.timeout(30):
            while not self.asked:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.001)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(received_order, "RETRY_SECONDS", 0.01)


@pytest.mark.usefixtures("quick")
def test_messages_that_are_logged_do_not_fail_because_their_ids_are_not_stored() -> None:
    """Else their publishers send them again, and the log has them twice."""

    async def test() -> None:
        world = Failing()
        for ticket in (1, 2):
            world.submit(ticket, b"%d" % ticket, ticket)
            world.finish(ticket)
        world.answer(StoreError("away"))
        world.answer(StoreError("away"))
        world.submit(3, b"3", 3)
        world.finish(3)
        assert world.committed == []
        await world.until_asked()
        world.answer(StoreError("still away"))
        await world.until_asked()
        world.answer()
        assert world.stored == [("c", b"3")]
        assert world.committed == [1, 2, 3]
        world.submit(4, b"4", 0)
        world.finish(0)
        world.answer()
        assert world.committed == [1, 2, 3, 4]

    asyncio.run(test())


@pytest.mark.usefixtures("quick")
def test_ids_that_failed_are_not_stored_over_newer_ones() -> None:
    async def test() -> None:
        world = Failing()
        for ticket in (1, 2):
            world.submit(ticket, b"%d" % ticket, ticket)
            world.finish(ticket)
        world.answer(StoreError("away"))
        await asyncio.sleep(0.05)
        world.answer()
        async with asyncio.timeout(30):
            while world.committed != [1, 2]:  # noqa: ASYNC110 - there is no event
                await asyncio.sleep(0.001)
        assert world.stored == [("c", b"2")]
        assert world.asked == []

    asyncio.run(test())
