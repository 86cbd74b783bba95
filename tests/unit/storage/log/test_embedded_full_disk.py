"""A full disk: appends fail with words, nothing that was acknowledged is lost, and it goes on when there is room."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop

from penstock.storage.log.base import Appended, LogError, LogUnavailable, TopicPartition
from penstock.storage.log.embedded.compaction import CompactionPlan, compact
from tests.support.machine.waiting import until
from tests.support.worlds.embedded import keyed, number_of, numbered, opened, read_all, topic_directory

MIB = 1_048_576


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def fill(disk: Path, leave: int) -> Path:
    """A file that takes all of the room but `leave` bytes. Others may take some of it meanwhile."""
    path = disk / "ballast"
    with path.open("wb") as file:
        while True:
            stat = os.statvfs(disk)
            try:
                os.posix_fallocate(file.fileno(), 0, stat.f_bavail * stat.f_frsize - leave)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                file.truncate(0)
            else:
                return path


def test_a_full_disk_fails_appends_and_recovers(small_disk: Path) -> None:
    async def run() -> None:
        async with opened(small_disk) as log:
            await log.admin.create("t", 1)
            ballast = fill(small_disk, 2 * MIB)
            written, failure = 0, None
            while failure is None:
                try:
                    appended = await log.producer.send("t", 0, numbered(written, 100, 1_000))
                    assert appended.base_offset == written
                    written += 100
                except LogUnavailable as error:
                    failure = error
            assert failure.is_retryable
            assert "the disk is full" in str(failure)
            assert "the disk is full" in str(log.check())
            assert written > 0
            with pytest.raises(LogUnavailable):
                await log.producer.send("t", 0, numbered(written, 100, 1_000))
            assert [number_of(r) for r in await read_all(log, "t")] == list(range(written))
            ballast.unlink()
            # nobody appends: the log finds out by itself
            await until(lambda: log.check() is True, 30.0)
            appended = await log.producer.send("t", 0, numbered(written, 100, 1_000))
            assert appended.base_offset == written
        async with opened(small_disk) as log:
            assert [number_of(r) for r in await read_all(log, "t")] == list(range(written + 100))

    uvloop.run(run())


def test_only_what_does_not_fit_fails(small_disk: Path) -> None:
    """Several packs in one commit, of two topics: each is told its own fate, and it is the truth."""

    async def run() -> None:
        async with opened(small_disk) as log:
            for topic in ("a", "b"):
                await log.admin.create(topic, 1)
                await log.producer.send(topic, 0, numbered(0, 1))
            ballast = fill(small_disk, 3 * MIB)
            told: dict[str, list[Appended | LogError]] = {"a": [], "b": []}
            for _ in range(20):
                for topic, results in told.items():
                    log.producer.append(topic, 0, numbered(0, 200, 1_000), results.append)
                await asyncio.sleep(0.01)
            await until(lambda: sum(map(len, told.values())) == 40, 30.0)
            assert any(isinstance(result, LogUnavailable) for results in told.values() for result in results)
            ballast.unlink()
            for topic, results in told.items():
                kept = sum(result.count for result in results if isinstance(result, Appended))
                assert len(await read_all(log, topic)) == 1 + kept
                assert (await log.producer.send(topic, 0, numbered(0, 1))).base_offset == 1 + kept

    uvloop.run(run())


def test_compaction_without_room_fails_and_leaves_nothing(small_disk: Path) -> None:
    """Also when it has more keys than its table holds, so that it needs a file for what it found out."""

    async def run() -> None:
        async with opened(small_disk, maintenance_interval=3_600) as log:
            await log.admin.create("t", 1, {"cleanup.policy": "compact", "segment.bytes": "200000"})
            for first in range(0, 60_000, 1_000):
                await log.producer.send("t", 0, keyed(*((b"%d" % n, b"v") for n in range(first, first + 1_000))))
            plan = CompactionPlan.of(log.views["t"])
            assert plan is not None
            ballast = fill(small_disk, 0)
            with pytest.raises(OSError, match="No space left"):
                await asyncio.to_thread(compact, plan, 65_536)
            assert {path.suffix for path in topic_directory(small_disk, "t").iterdir()} <= {".seg", ".idx", ".json", ""}
            ballast.unlink()
            await log.maintenance.tidy()
            assert log.counters()["compactions"] == 1
            assert len(await read_all(log, "t")) == 60_000

    uvloop.run(run())


def test_retention_makes_room_on_a_full_disk(small_disk: Path) -> None:
    """A state topic that cannot be compacted for lack of room does not keep it from that."""

    async def run() -> None:
        async with opened(small_disk, maintenance_interval=3_600) as log:
            await log.admin.create("state", 1, {"cleanup.policy": "compact", "segment.bytes": "200000"})
            await log.admin.create("t", 1, {"segment.bytes": str(MIB), "retention.bytes": str(4 * MIB)})
            for _ in range(20):
                await log.producer.send("state", 0, keyed(*((b"%d" % n, b"." * 50) for n in range(500))))
            for _ in range(100):
                await log.producer.send("t", 0, numbered(0, 100, 1_000))
            fill(small_disk, 0)
            with pytest.raises(LogUnavailable):
                await log.producer.send("t", 0, numbered(0, 1_100, 1_000))  # more than a page may have left
            await log.maintenance.tidy()
            assert log.watermarks(TopicPartition("t", 0)).first > 0
            # nobody appends: the log finds out by itself
            await until(lambda: log.check() is True, 30.0)
            await log.producer.send("t", 0, numbered(0, 100, 1_000))

    uvloop.run(run())


def test_too_much_waiting_fails_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, max_pending_bytes=100_000) as log:
            await log.admin.create("t", 1)
            results: list[Appended | LogError] = []
            for _ in range(50):
                log.producer.append("t", 0, numbered(0, 10, 1_000), results.append)
            assert log.producer.pending_bytes <= 100_000
            await until(lambda: len(results) == 50)
            failed = [result for result in results if isinstance(result, LogUnavailable)]
            assert len(failed) == 41
            assert "wait to be written" in str(failed[0])
            assert len(await read_all(log, "t")) == 90

    uvloop.run(run())
