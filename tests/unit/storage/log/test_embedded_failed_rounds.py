"""The disk refuses a commit of several topics: what was rolled back stays away, and what was acknowledged stays."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, LogError, LogUnavailable, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog, journal
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.unit.storage.log.power_cut import Disk

TOPICS = ("one", "two", "three")
FAILURES = ("journal write", "journal sync", "segment write", "segment sync")


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


async def append_all(log: EmbeddedLog, *values: bytes) -> list[Appended | BaseException]:
    sends = (log.producer.send(topic, 0, pack_of(*values)) for topic in TOPICS)
    return await asyncio.gather(*sends, return_exceptions=True)


class BadDisk:
    """Refuses what is switched on, for the files of the log."""

    def __init__(self, patch: pytest.MonkeyPatch, on_refused_sync: Callable[[int], None] = lambda _: None) -> None:
        self._on_refused_sync = on_refused_sync
        self.refused: set[str] = set()
        self.journals: dict[str, bytes] = {}  # what they held when they were refused
        patch.setattr(os, "fdatasync", self._watch(os.fdatasync, "sync"))
        patch.setattr(os, "pwrite", self._watch(os.pwrite, "write"))

    def _watch(self, real: Callable[..., Any], action: str) -> Callable[..., Any]:
        def watched(fd: int, *arguments: Any) -> Any:
            name = Path(f"/proc/self/fd/{fd}").readlink().name
            kind = "journal" if name.startswith(".journal") else "segment" if name.endswith(".seg") else ""
            if f"{kind} {action}" in self.refused:
                if kind == "journal":
                    self.journals[name] = Path(f"/proc/self/fd/{fd}").read_bytes()
                if action == "sync":
                    self._on_refused_sync(fd)
                else:
                    real(fd, arguments[0][: len(arguments[0]) // 2], *arguments[1:])
                raise OSError(errno.EIO, "the disk refuses")
            return real(fd, *arguments)

        return watched


@pytest.mark.parametrize("refused", [FAILURES[:1] + FAILURES[3:], FAILURES[1:2] + FAILURES[3:], FAILURES[2:3]])
@pytest.mark.parametrize("later", [b"", b"short", b"longer than what was refused " * 20])
def test_a_refused_round_never_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: tuple[str, ...], later: bytes
) -> None:
    """What counts is what a kill leaves, which is all that was written."""
    disk = BadDisk(monkeypatch)

    async def scenario() -> None:
        async with opened(tmp_path / "first") as log:
            await asyncio.gather(*map(log.admin.create, TOPICS))
            await append_all(log, b"before")
            disk.refused = set(refused)
            results = await append_all(log, b"refused, and more than a few bytes")
            assert all(isinstance(result, LogUnavailable) for result in results), results
            disk.refused = set()
            if later:
                assert all(isinstance(result, Appended) for result in await append_all(log, later))
            shutil.copytree(tmp_path / "first", tmp_path / "killed")
        expected = [b"before", later] if later else [b"before"]
        for directory in (tmp_path / "killed", tmp_path / "first"):
            async with opened(directory) as log:
                assert [await read_all(log, topic) for topic in TOPICS] == [expected] * 3
                assert (await log.producer.send("one", 0, pack_of(b"next"))).base_offset == len(expected)

    uvloop.run(scenario())


def test_a_later_round_counts_if_the_refused_one_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut takes back that the refused round was made void, and what the segments got since."""
    disk = BadDisk(monkeypatch)
    root, copy = tmp_path / "first" / "log", tmp_path / "cut" / "log"

    async def scenario() -> None:
        async with opened(tmp_path / "first") as log:
            await asyncio.gather(*map(log.admin.create, TOPICS))
            await append_all(log, b"before")
            disk.refused = {"journal sync", "segment sync"}
            await append_all(log, b"refused")
            disk.refused = set()
            sizes = {path: path.stat().st_size for path in root.glob("*/*.seg")}
            await append_all(log, b"acknowledged")
            shutil.copytree(tmp_path / "first", tmp_path / "cut")
        assert list(disk.journals) == [journal.NAMES[0]]
        for name, data in disk.journals.items():
            (copy / name).write_bytes(data)
        for path, size in sizes.items():
            os.truncate(copy / path.relative_to(root), size)
        async with opened(tmp_path / "cut") as log:
            assert [await read_all(log, topic) for topic in TOPICS] == [[b"before", b"acknowledged"]] * 3

    uvloop.run(scenario())


class Load:
    """Appends to all topics, on a disk that refuses at times, and knows what was acknowledged, in order."""

    def __init__(self, log: EmbeddedLog, chance: random.Random) -> None:
        self._log = log
        self._chance = chance
        self._number = 0
        self.acknowledged: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.appended: set[bytes] = set()

    async def append(self) -> None:
        topics = self._chance.sample(TOPICS, self._chance.choice((1, 2, 3, 3)))
        self._number += 1
        value = b"%d " % self._number + bytes(self._chance.choice((10, 200, 1_500)))
        self.appended.add(value)
        sends = (self._log.producer.send(topic, 0, pack_of(value)) for topic in topics)
        for topic, result in zip(topics, await asyncio.gather(*sends, return_exceptions=True), strict=True):
            assert isinstance(result, Appended | LogError), result
            if isinstance(result, Appended):
                self.acknowledged[topic].append(value)


@pytest.mark.parametrize("seed", range(12))
def test_cuts_and_kills_on_a_bad_disk_cost_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(journal, "SIZE", 32_768)
    disk = Disk(monkeypatch)
    bad = BadDisk(monkeypatch, disk.refuse)
    states = []

    async def scenario() -> None:
        async with opened(tmp_path / "first") as log:
            for topic in TOPICS:
                await log.admin.create(topic, properties={"segment.bytes": "8192"})
            load = Load(log, chance)
            for number in range(8):
                for _ in range(chance.randrange(3, 20)):
                    if chance.random() < 0.4:
                        bad.refused = set(chance.sample(FAILURES, chance.randrange(0, 4)))
                    await load.append()
                bad.refused = set(bad.refused) if chance.random() < 0.3 else set()
                acknowledged = {topic: list(values) for topic, values in load.acknowledged.items()}
                disk.after_power_cut(tmp_path / "first" / "log", tmp_path / f"cut-{number}" / "log", chance)
                shutil.copytree(tmp_path / "first", tmp_path / f"kill-{number}")
                states.append((acknowledged, set(load.appended)))
            bad.refused = set()

    uvloop.run(scenario())
    monkeypatch.undo()
    disk.close()
    for number, (acknowledged, appended) in enumerate(states):
        uvloop.run(_check_kill(tmp_path / f"kill-{number}", acknowledged))
        uvloop.run(_check_cut(tmp_path / f"cut-{number}", acknowledged, appended))


async def _check_kill(directory: Path, acknowledged: dict[str, list[bytes]]) -> None:
    async with opened(directory) as log:
        assert {topic: await read_all(log, topic) for topic in TOPICS} == acknowledged


async def _check_cut(directory: Path, acknowledged: dict[str, list[bytes]], appended: set[bytes]) -> None:
    """A disk that refuses cannot be made to forget either: what was refused last may be there."""
    async with opened(directory) as log:
        for topic, values in acknowledged.items():
            found = await read_all(log, topic)
            assert found[: len(values)] == values, topic
            assert set(found) <= appended
