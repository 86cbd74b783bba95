"""The cut of a log that is written, and second names for its files: what is copied is what was there at one moment."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import penstock
from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import LogDamaged, TopicCut
from penstock.storage.log.embedded import EmbeddedLog, files
from penstock.storage.log.embedded.backup import CutTooOld, Staging
from penstock.storage.log.embedded.verify import verify_segment, verify_topic
from penstock.storage.state.lmdb_copy import Snapshots, check_environment, find_environments
from penstock.storage.state.lmdb_kv import LmdbStore

Work = Callable[[EmbeddedLog], Awaitable[None]]


def with_log(directory: Path, work: Work) -> None:
    async def run() -> None:
        store = LmdbStore(directory / "state")
        log = EmbeddedLog(directory, store.space("groups"))
        await log.start()
        try:
            await work(log)
        finally:
            await log.close()
            store.close()

    asyncio.run(run())


async def append(log: EmbeddedLog, topic: str, *values: bytes) -> None:
    for value in values:
        pack = RecordPack()
        pack.append(value)
        await log.producer.send(topic, 0, pack)


def records_of(staging: Staging, topic: str) -> int:
    staged = staging.topics[files.escape_topic(topic)]
    staged.verify()
    return staged.records


def test_what_comes_after_the_cut_is_not_in_it_and_what_goes_is(tmp_path: Path) -> None:
    async def work(log: EmbeddedLog) -> None:
        await log.admin.create("a", 1, {"segment.bytes": "4096"})
        await log.admin.create("empty", 3)
        await append(log, "a", *[b"x" * 1000] * 10)
        cut = await log.cut()
        await append(log, "a", *[b"y" * 1000] * 10)
        with Staging(tmp_path) as staging:
            staging.stage(cut)
            assert len(staging.topics["a"].segments) >= 3
            await append(log, "a", *[b"z" * 1000] * 10)
            await log.admin.delete("a")
            assert records_of(staging, "a") == 10
            assert records_of(staging, "empty") == 0
            tail = files.decode_tail(staging.topics["a"].tail or b"")
            assert tail == (cut[0].sequence, cut[0].position)
            staging.clear()
            staging.stage(cut)  # a topic that is gone is left out
            assert list(staging.topics) == ["empty"]
        assert not list((tmp_path / "log").glob(".backup-*"))

    with_log(tmp_path, work)


def test_no_topic_is_ahead_of_the_one_its_records_came_from(tmp_path: Path) -> None:
    """B gets a record when A's is durable, as dispatch does it; no cut ever shows B ahead of A."""

    async def work(log: EmbeddedLog) -> None:
        for topic in ("a", "b"):
            await log.admin.create(topic)
        is_over = False

        async def write() -> None:
            while not is_over:
                await append(log, "a", b"x")
                await append(log, "b", b"x")

        writer = asyncio.ensure_future(write())
        starts = {cut.directory: cut.position for cut in await log.cut()}
        for _ in range(100):
            ends = {cut.directory: cut.position - starts[cut.directory] for cut in await log.cut()}
            assert 0 <= ends["a"] - ends["b"] <= 100, ends
        is_over = True
        await writer

    with_log(tmp_path, work)


def test_a_segment_that_was_replaced_asks_for_a_new_cut(tmp_path: Path) -> None:
    async def work(log: EmbeddedLog) -> None:
        await log.admin.create("a")
        await append(log, "a", b"x")
        (cut,) = await log.cut()
        with Staging(tmp_path) as staging, pytest.raises(CutTooOld):
            staging.stage([TopicCut(cut.directory, cut.sequence + 1, 100)])

    with_log(tmp_path, work)


def test_what_a_killed_backup_left_is_removed_and_one_at_work_is_left_alone(tmp_path: Path) -> None:
    async def work(log: EmbeddedLog) -> None:
        await log.admin.create("a")

    with_log(tmp_path, work)
    root = files.log_directory(tmp_path)
    dead, alive = root / ".backup-dead", root / ".backup-alive"
    for directory in (dead, alive):
        directory.mkdir()
        (directory / "1.seg").touch()
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with Staging(tmp_path) as staging:
        staging.stage_all()
        assert (dead.exists(), alive.exists()) == (False, True)
    os.close(lock)
    with_log(tmp_path, work)  # a start removes what is hidden
    assert not alive.exists()


def test_verify_finds_every_kind_of_damage(tmp_path: Path) -> None:
    async def work(log: EmbeddedLog) -> None:
        await log.admin.create("a", 1, {"segment.bytes": "4096"})
        await append(log, "a", *[b"x" * 1000] * 10)
        # Beside the broker that writes.
        assert verify_topic(tmp_path / "log" / "a").records == 10

    with_log(tmp_path, work)
    directory = tmp_path / "log" / "a"
    assert verify_topic(directory).records == 10
    paths = sorted(directory.glob("*.seg"))
    sound = [path.read_bytes() for path in paths]
    paths[0].write_bytes(sound[0][:-1] + b"?")
    with pytest.raises(LogDamaged, match="checksum"):
        verify_topic(directory)
    paths[0].write_bytes(sound[0])
    paths[-1].write_bytes(sound[-1][:-5])
    with pytest.raises(LogDamaged, match="the file ends here"):
        verify_topic(directory)
    paths[-1].unlink()
    with pytest.raises(LogDamaged, match="is missing"):
        verify_topic(directory)
    paths[-1].write_bytes(sound[-1] + b"torn")
    assert verify_topic(directory).records == 10
    with pytest.raises(LogDamaged):
        verify_segment("a", paths[-1])
    assert verify_segment("a", paths[-1], durable=len(sound[-1])).size == len(sound[-1])


WRITER = """
import sys
from penstock.storage.state.lmdb_kv import LmdbStore
space = LmdbStore(sys.argv[1]).space("things")
print("ready", flush=True)
sys.stdin.readline()
space.write([(b"%d" % number, b"after" * 1000) for number in range(2500)])  # larger than the map was
print("written", flush=True)
sys.stdin.readline()
"""


def test_a_picture_of_a_store_is_of_the_moment_it_was_taken(tmp_path: Path) -> None:
    """While another process writes so much that the file grows beyond its map."""
    store = LmdbStore(tmp_path / "one")
    store.space("things").write([(b"key", b"before")])
    store.close()
    assert [path.name for path in find_environments(tmp_path)] == ["one"]
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    command = [sys.executable, "-c", WRITER, str(tmp_path / "one")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        with Snapshots(find_environments(tmp_path)) as snapshots:
            print("go", file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "written\n"
            snapshots.copy("one", tmp_path / "before")
        with Snapshots(find_environments(tmp_path)) as snapshots:
            snapshots.copy("one", tmp_path / "after")
        print("end", file=writer.stdin, flush=True)
    assert (check_environment(tmp_path / "before"), check_environment(tmp_path / "after")) == (1, 2501)


READER = """
import sys
from penstock.storage.state.lmdb_kv import LmdbStore
transaction = LmdbStore(sys.argv[1], is_readonly=True).begin(write=False)
print("reading", flush=True)
sys.stdin.readline()
"""


def kill_a_reader(path: Path) -> int:
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}
    command = [sys.executable, "-c", READER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as reader:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "reading\n"
        reader.kill()
        return reader.pid


def test_who_was_killed_while_reading_keeps_no_pages(tmp_path: Path) -> None:
    """Its entry in the table of readers would keep every page since, and the file of the broker would grow for ever."""
    store = LmdbStore(tmp_path / "one")
    space = store.space("things")
    killed = kill_a_reader(tmp_path / "one")
    assert str(killed) in store.readers()
    space.write([(b"%d" % number, b"x" * 4000) for number in range(5000)])  # more than the map: it grows
    assert str(killed) not in store.readers()
    store.close()
