"""Many topics in one commit share one fdatasync, and a power cut costs nothing that was acknowledged."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, LogError, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog, files, journal
from penstock.storage.log.embedded.repair import repair_topic
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.unit.storage.log.power_cut import Disk


@asynccontextmanager
async def opened(directory: Path) -> AsyncIterator[EmbeddedLog]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"))
    try:
        await log.start()
        yield log
    finally:
        await log.close()
        store.close()


def pack_of(*values: bytes) -> RecordPack:
    pack = RecordPack()
    pack.extend(values)
    return pack


async def read_all(log: EmbeddedLog, topic: str) -> list[bytes | None]:
    consumer = log.consumer("")
    await consumer.add({TopicPartition(topic, 0): 0})
    values: list[bytes | None] = []
    while fetched := await consumer.poll(10_000, 0):
        for each in fetched:
            values += each.pack.values()
    await consumer.close()
    return values


async def fan_out(log: EmbeddedLog, topics: list[str], value: bytes) -> None:
    await asyncio.gather(*(log.producer.send(topic, 0, pack_of(value)) for topic in topics))


def test_many_topics_are_one_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as log:
            topics = [f"topic-{number}" for number in range(60)]
            await asyncio.gather(*map(log.admin.create, topics))
            await fan_out(log, topics, b"first")  # makes the journal
            count = 0
            real = os.fdatasync

            def counted(fd: int) -> None:
                nonlocal count
                count += 1
                real(fd)

            monkeypatch.setattr(os, "fdatasync", counted)
            await fan_out(log, topics, b"second")
            assert 1 <= count <= 3
            monkeypatch.undo()
            assert log.counters()["journal_rounds"] >= 2
            assert [await read_all(log, topic) for topic in topics] == [[b"first", b"second"]] * 60
        assert not list((tmp_path / "log").glob(".journal*"))
        async with opened(tmp_path) as log:
            assert [await read_all(log, topic) for topic in topics] == [[b"first", b"second"]] * 60

    uvloop.run(scenario())


@pytest.mark.parametrize("loss", ["cut", "zeros", "noise"])
def test_what_segments_lost_is_put_back(tmp_path: Path, loss: str) -> None:
    copy = tmp_path / "copy"

    async def before() -> list[str]:
        async with opened(tmp_path / "original") as log:
            topics = [f"topic-{number}" for number in range(20)]
            await asyncio.gather(*map(log.admin.create, topics))
            for number in range(5):
                await fan_out(log, topics, b"%d" % number * 50)
            shutil.copytree(tmp_path / "original", copy)
            return topics

    async def after(topics: list[str]) -> None:
        async with opened(copy) as log:
            for topic in topics:
                assert await read_all(log, topic) == [b"%d" % number * 50 for number in range(5)]
                assert (await log.producer.send(topic, 0, pack_of(b"next"))).base_offset == 5

    topics = uvloop.run(before())
    for path in (copy / "log").glob("*/*.seg"):
        data = path.read_bytes()
        start = int.from_bytes(data[4:8], "little")
        lost = {"cut": b"", "zeros": bytes(len(data) - start), "noise": os.urandom(len(data) - start)}[loss]
        path.write_bytes(data[:start] + lost)
    uvloop.run(after(topics))


def test_a_topic_made_anew_gets_nothing_of_the_old_one(tmp_path: Path) -> None:
    copy = tmp_path / "copy"

    async def scenario() -> None:
        async with opened(tmp_path / "original") as log:
            await asyncio.gather(*map(log.admin.create, ("one", "two")))
            await fan_out(log, ["one", "two"], b"old")
            await log.admin.delete("one")
            await asyncio.sleep(0.002)  # segments are told apart by their time of creation
            await log.admin.create("one")
            shutil.copytree(tmp_path / "original", copy)
        async with opened(copy) as log:
            assert await read_all(log, "one") == []
            assert await read_all(log, "two") == [b"old"]

    uvloop.run(scenario())


def test_a_journal_that_fails_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with opened(tmp_path) as log:
            topics = [f"topic-{number}" for number in range(10)]
            await asyncio.gather(*map(log.admin.create, topics))
            await fan_out(log, topics, b"0")
            real = os.fdatasync

            def failing(fd: int) -> None:
                if ".journal" in str(Path(f"/proc/self/fd/{fd}").readlink()):
                    raise OSError(5, "the disk refuses")
                real(fd)

            monkeypatch.setattr(os, "fdatasync", failing)
            await fan_out(log, topics, b"1")
            monkeypatch.undo()
            rounds = log.counters()["journal_rounds"]
            await fan_out(log, topics, b"2")
            assert log.counters()["journal_rounds"] > rounds
            assert [await read_all(log, topic) for topic in topics] == [[b"0", b"1", b"2"]] * 10

    uvloop.run(scenario())


class Load:
    """Appends to random topics, creates and deletes some, and knows what was acknowledged."""

    def __init__(self, log: EmbeddedLog, chance: random.Random) -> None:
        self._log = log
        self._chance = chance
        self._number = 0
        self.appended: dict[str, list[bytes]] = {}
        self.acknowledged: dict[str, int] = {}
        self._made = 0

    async def create(self) -> None:
        topic = f"topic-{self._made}"
        self._made += 1
        await self._log.admin.create(topic, properties={"segment.bytes": "4096"})
        self.appended[topic], self.acknowledged[topic] = [], 0

    async def delete(self) -> None:
        topic = self._chance.choice(sorted(self.appended))
        del self.appended[topic], self.acknowledged[topic]
        await self._log.admin.delete(topic)

    def append(self) -> None:
        count = self._chance.choice((1, 2, 5, len(self.appended)))
        for topic in self._chance.sample(sorted(self.appended), min(count, len(self.appended))):
            values = [self._next_value() for _ in range(self._chance.choice((1, 1, 3)))]
            self.appended[topic] += values
            self._log.producer.append(topic, 0, pack_of(*values), self._on_done)

    def _next_value(self) -> bytes:
        self._number += 1
        return b"%d " % self._number + bytes(self._chance.choice((10, 200, 1_500)))

    def _on_done(self, result: Appended | LogError) -> None:
        assert isinstance(result, Appended)
        if result.topic in self.acknowledged:
            self.acknowledged[result.topic] = result.base_offset + result.count


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_costs_nothing_acknowledged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(journal, "SIZE", 65_536)
    disk = Disk(monkeypatch)
    copies = [tmp_path / f"copy-{number}" for number in range(3)]

    async def scenario() -> list[tuple[dict[str, list[bytes]], dict[str, int]]]:
        states = []
        async with opened(tmp_path / "original") as log:
            load = Load(log, chance)
            for _ in range(6):
                await load.create()
            for copy in copies:
                for _ in range(chance.randrange(5, 40)):
                    for _ in range(chance.choice((1, 1, 1, 4))):
                        load.append()
                    await asyncio.sleep(chance.choice((0, 0, 0.001, 0.005)))
                    if chance.random() < 0.05:
                        await chance.choice((load.create, load.delete))()
                # what is acknowledged before the cut must be there; what is appended before it may be
                acknowledged = dict(load.acknowledged)
                disk.after_power_cut(tmp_path / "original" / "log", copy / "log", chance)
                states.append(({topic: list(values) for topic, values in load.appended.items()}, acknowledged))
            assert log.counters()["journal_rounds"] > 0
        return states

    states = uvloop.run(scenario())
    monkeypatch.undo()
    disk.close()
    for copy, (appended, acknowledged) in zip(copies, states, strict=True):
        uvloop.run(_check(copy, appended, acknowledged))


async def _check(directory: Path, appended: dict[str, list[bytes]], acknowledged: dict[str, int]) -> None:
    async with opened(directory) as log:
        assert set(await log.admin.list()) >= set(appended)
        for topic, values in appended.items():
            found = await read_all(log, topic)
            assert len(found) >= acknowledged[topic], topic
            assert found == values[: len(found)], topic


def test_repair_puts_back_first(tmp_path: Path) -> None:
    copy = tmp_path / "copy"

    async def before() -> None:
        async with opened(tmp_path / "original") as log:
            await asyncio.gather(*map(log.admin.create, ("one", "two")))
            await fan_out(log, ["one", "two"], b"kept")
            shutil.copytree(tmp_path / "original", copy)

    uvloop.run(before())
    path = files.segment_path(copy / "log" / "one", 1)
    data = path.read_bytes()
    path.write_bytes(data[: int.from_bytes(data[4:8], "little")])
    assert repair_topic(copy, "one").is_sound
    assert not list((copy / "log").glob(".journal*"))
    assert path.read_bytes() == data
