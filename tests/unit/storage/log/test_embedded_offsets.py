"""Offsets of groups and the topics they are of: a new topic of the same name is read from its beginning."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
import uvloop

from penstock.storage.log.base import Committed, LogError, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.embedded.offsets import Change, StoredOffset, make_key
from penstock.storage.state.lmdb_kv import LmdbSpace, LmdbStore
from tests.support.worlds.embedded import number_of, numbered, opened

ROOT = Path(__file__).resolve().parents[4]
PARTITION = TopicPartition("t", 0)
DIES_WHILE_IT_DELETES = """
import asyncio, os, sys
from pathlib import Path
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.log.embedded import admin
from tests.support.worlds.embedded import numbered, opened

delete = admin._delete_directory

def die(*arguments):
    if sys.argv[2] == "after":
        delete(*arguments)
    os._exit(9)

async def main():
    async with opened(Path(sys.argv[1])) as log:
        await log.admin.create("t", 1)
        await log.producer.send("t", 0, numbered(0, 100))
        await log.consumer("g").commit({TopicPartition("t", 0): Committed(100)})
        admin._delete_directory = die
        await log.admin.delete("t")

asyncio.run(main())
"""


async def read_as_group(log: EmbeddedLog) -> list[int]:
    consumer = log.consumer("g")
    consumer.assign([PARTITION])
    return [number_of(record) for fetched in await consumer.poll(1_000, 10.0) for record in fetched.pack]


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_while_a_topic_is_deleted(tmp_path: Path, when: str) -> None:
    """Around the moment at which its directory goes."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", DIES_WHILE_IT_DELETES, str(tmp_path), when]
    assert subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 9
    store = LmdbStore(tmp_path / "state")
    assert store.space("groups").scan() == []
    store.close()

    async def run() -> None:
        async with opened(tmp_path) as log:
            if when == "before":
                await log.admin.delete("t")
            assert await log.admin.group_offsets("g") == {}
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 150))
            assert await read_as_group(log) == list(range(150))

    uvloop.run(run())


def test_offsets_of_a_topic_that_is_missing_are_dropped_at_the_start(tmp_path: Path) -> None:
    """As an earlier version left them, or somebody who removed the directory."""

    async def prepare() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("kept", 1)
            await log.producer.send("kept", 0, numbered(0, 5))
            await log.consumer("g").commit({TopicPartition("kept", 0): Committed(5)})

    uvloop.run(prepare())
    store = LmdbStore(tmp_path / "state")
    stale = [
        (make_key(group, PARTITION), msgspec.msgpack.encode(StoredOffset(group, "t", 0, 100, "")))
        for group in ("g", "only-here")
    ]
    store.space("groups").write(stale)
    store.close()

    async def run() -> None:
        async with opened(tmp_path) as log:
            assert await log.admin.groups() == ["g"]
            assert await log.admin.group_offsets("g") == {TopicPartition("kept", 0): Committed(5)}
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 150))
            assert await read_as_group(log) == list(range(150))

    uvloop.run(run())
    store = LmdbStore(tmp_path / "state")
    assert len(store.space("groups").scan()) == 1
    store.close()


class SlowStore:
    """A disk that takes longer for a commit than for the deletion of a topic."""

    def __init__(self, space: LmdbSpace) -> None:
        self.scan = space.scan
        self._space = space

    def write(self, changes: Iterable[Change]) -> None:
        time.sleep(0.3)
        self._space.write(changes)


def test_a_commit_that_is_under_way_while_the_topic_is_deleted(tmp_path: Path) -> None:
    store = LmdbStore(tmp_path / "state")
    slow = SlowStore(store.space("groups"))

    async def run() -> None:
        log = EmbeddedLog(tmp_path, slow)
        await log.start()
        try:
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 100))
            commit = asyncio.ensure_future(log.consumer("g").commit({PARTITION: Committed(100)}))
            await asyncio.sleep(0)  # it has been handed to the thread
            await log.admin.delete("t")
            await asyncio.gather(commit, return_exceptions=True)
            assert await log.admin.group_offsets("g") == {}
            with pytest.raises(LogError):
                await log.consumer("g").commit({PARTITION: Committed(100)})
        finally:
            await log.close()

    uvloop.run(run())
    assert slow.scan() == []
    store.close()


def test_a_topic_that_is_deleted_while_others_create_it(tmp_path: Path) -> None:
    """Before, who waited to create it did so in the directory that was deleted then: what was appended was gone."""

    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1)

            async def make_and_delete() -> None:
                await log.admin.create("t", 1)
                await log.admin.delete("t")

            await asyncio.gather(log.admin.delete("t"), make_and_delete(), log.admin.create("t", 1))
            assert await log.admin.list() == []
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 3))
            assert log.check() is True

    uvloop.run(run())
