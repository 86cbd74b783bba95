"""Commits of the embedded log: how many there are, which threads they wake, and who waits for company."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import resource
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import uvloop

from penstock._ext.record.segment import DiskThread, write_packs
from penstock.storage.log.base import Appended, LogUnavailable, TopicPartition
from penstock.storage.log.embedded import commit_thread
from penstock.storage.log.embedded.log import EmbeddedLog
from penstock.storage.log.embedded.topic_writer import Append
from tests.support.worlds.embedded import number_of, numbered, opened, read_all


def test_a_commit_wakes_one_thread_and_the_loop_once(tmp_path: Path) -> None:
    """Whether the disk thread writes it (one topic) or the commit thread (two of them)."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            for topic in ("a", "b"):
                await log.admin.create(topic)
                await log.producer.send(topic, 0, numbered(0, 1))
            thread, commits = log.thread, log.counters()["commits"]
            before = thread.turns, thread.thread_wakes, thread.loop_wakes
            for number in range(20):
                await log.producer.send("a", 0, numbered(number, 1))
            for number in range(20):
                await asyncio.gather(*(log.producer.send(topic, 0, numbered(number, 1)) for topic in ("a", "b")))
            after = thread.turns, thread.thread_wakes, thread.loop_wakes
            assert [now - then for now, then in zip(after, before, strict=True)] == [40, 40, 40]
            assert log.counters()["commits"] - commits == 40

    asyncio.run(main())


def append_quietly(log: EmbeddedLog, number: int, partition: int = 0) -> asyncio.Future[Any]:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    log.producer.append_packs("t", [(partition, numbered(number, 1))], done.set_result, is_quiet=True)
    return done


def test_a_commit_that_nothing_waits_for_does_not_wake_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "COLLECT_SECONDS", 3600.0)

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t")
            await log.producer.send("t", 0, numbered(0, 1))
            wakes = log.thread.loop_wakes
            for number in range(1, 20):
                done = append_quietly(log, number)
                await asyncio.sleep(0.05)
                assert not done.done()
                log.producer.collect()
                if not done.done():  # the disk took longer: then its event comes
                    wakes += 1
                assert await asyncio.wait_for(done, 30) is None
            assert log.thread.loop_wakes <= wakes
            assert log.producer.pending_bytes == 0
            last = append_quietly(log, 20)
        assert last.done()  # closing the log waits for it
        async with opened(tmp_path) as log:
            assert [number_of(record) for record in await read_all(log, "t")] == list(range(21))

    asyncio.run(main())


def test_a_commit_that_nothing_waits_for_is_noticed_after_a_while(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t")
            await log.producer.send("t", 0, numbered(0, 1))
            for number in range(1, 4):
                assert await asyncio.wait_for(append_quietly(log, number), 30) is None
                assert log.producer.pending_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("is_paused", [False, True])
def test_a_reader_waits_for_what_its_writer_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_paused: bool
) -> None:
    monkeypatch.setattr(commit_thread, "COLLECT_SECONDS", 3600.0)

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 2)
            await log.producer.send("t", 0, numbered(0, 1))
            consumer = log.consumer("g")
            consumer.subscribe(["t"])
            (fetched,) = await consumer.poll(10, 30)
            assert fetched.pack.count == 1
            if is_paused:
                consumer.pause(consumer.assignment())
            for number in range(1, 6):
                polling = asyncio.create_task(consumer.poll(10, 0.3 if is_paused else 30))
                await asyncio.sleep(0)
                done = append_quietly(log, number)
                found = await polling
                assert done.done() is not is_paused
                assert [number_of(record) for one in found for record in one.pack] == ([] if is_paused else [number])
                log.producer.collect()
                await asyncio.wait_for(done, 30)

    asyncio.run(main())


def test_what_is_appended_next_begins_when_a_quiet_commit_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_thread, "COLLECT_SECONDS", 3600.0)

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t")
            await log.producer.send("t", 0, numbered(0, 1))
            for number in range(1, 60, 2):
                done = append_quietly(log, number)
                if number % 3:
                    await asyncio.sleep(0.005)  # it is done, or still under way
                appended = await asyncio.wait_for(log.producer.send("t", 0, numbered(number + 1, 1)), 30)
                assert done.done()
                assert appended.base_offset == number + 1

    asyncio.run(main())


def test_what_comes_during_a_commit_is_one_commit(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t")
            await log.producer.send("t", 0, numbered(0, 1))
            turns = log.thread.turns
            sends = []
            for number in range(100):
                sends.append(asyncio.create_task(log.producer.send("t", 0, numbered(number, 1))))
                if number == 0:
                    while log.thread.turns == turns:  # noqa: ASYNC110  # counters have no event
                        await asyncio.sleep(0)
            await asyncio.gather(*sends)
            assert log.thread.turns == turns + 2
            assert len(await read_all(log, "t")) == 101

    asyncio.run(main())


def test_packs_are_freed_when_they_are_written(tmp_path: Path) -> None:
    """Not by the garbage collector, which does not know how large they are."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 2)
            gc.collect()
            gc.disable()
            try:
                for number in range(50):
                    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                    packs = [(partition, numbered(number, 1)) for partition in (0, 1)]
                    log.producer.append_packs("t", packs, done.set_result)
                    assert await done is None
                    assert [pack.base_offset for _, pack in packs] == [number, number]
                assert sum(isinstance(found, Append) for found in gc.get_objects()) < 10
            finally:
                gc.enable()

    asyncio.run(main())


def test_a_commit_takes_as_many_python_calls_for_twelve_packs_as_for_one(tmp_path: Path) -> None:
    """At ordinary rates nearly every message has a pack of its own."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 12)
            consumer = log.consumer("g")
            consumer.subscribe(["t"])
            await consumer.poll(1, 0.01)
            consumer.pause(consumer.assignment())

            async def count_calls(partitions: int) -> int:
                calls: list[str] = []

                def note(frame: FrameType, event: str, _argument: object) -> None:
                    if event == "call":
                        calls.append(frame.f_code.co_name)

                done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                packs = [(partition, numbered(0, 1)) for partition in range(partitions)]
                sys.setprofile(note)
                try:
                    log.producer.append_packs("t", packs, done.set_result)
                    await done
                finally:
                    sys.setprofile(None)
                return len(calls)

            for partitions in (1, 12):
                await count_calls(partitions)
            assert await count_calls(12) <= await count_calls(1) < 40

    uvloop.run(main())


@pytest.mark.parametrize("segment_bytes", [1_000_000, 300])
def test_packs_that_are_appended_together_fail_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, segment_bytes: int
) -> None:
    """Whether they are larger than a segment or not, and whichever thread writes them."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 4, {"segment.bytes": str(segment_bytes)})

            async def append(number: int) -> Any:
                done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                packs = [(partition, numbered(number, 1, size=100)) for partition in (2, 0, 3)]
                log.producer.append_packs("t", packs, done.set_result)
                return await done

            assert await append(0) is None
            writer = log.writers["t"]
            with monkeypatch.context() as patch:
                patch.setattr(writer, "begin", lambda *_: False)
                patch.setattr("penstock.storage.log.embedded.topic_writer.write_packs", lambda *_: (0, errno.EIO))
                results = await append(1)
                assert [type(result) for result in results] == [LogUnavailable] * 3
            assert await append(2) is None
            assert log.counters()["failed_appends"] == 3
            assert log.producer.pending_bytes == 0
        async with opened(tmp_path) as log:
            for partition, numbers in ((0, [0, 2]), (1, []), (2, [0, 2]), (3, [0, 2])):
                found = await read_all(log, "t", partition)
                assert [number_of(record) for record in found] == numbers
                assert [record.offset for record in found] == list(range(len(numbers)))

    asyncio.run(main())


def test_what_can_wait_waits_for_the_linger_or_for_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, linger_ms=300) as log:
            for topic in ("events", "t"):
                await log.admin.create(topic)
            done: list[Any] = []
            began, turns = time.monotonic(), log.thread.turns
            log.producer.append("events", 0, numbered(0, 1), done.append, can_wait=True)
            log.producer.append("events", 0, numbered(1, 1), done.append, can_wait=True)
            while not done:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.01)
            assert time.monotonic() - began >= 0.29
            assert len(done) == 2
            assert log.thread.turns == turns + 1
            log.producer.append("events", 0, numbered(2, 1), done.append, can_wait=True)
            await log.producer.send("t", 0, numbered(0, 1))
            assert len(done) == 3
            assert log.thread.turns == turns + 2
            assert [number_of(record) for record in await read_all(log, "events")] == [0, 1, 2]
            log.producer.append("events", 0, numbered(3, 1), done.append, can_wait=True)
        assert isinstance(done[3], Appended)  # closing takes it along

    asyncio.run(main())


def test_a_consumer_that_is_paused_is_not_woken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The dispatcher is a member of its group all the time, and reads only while there are persistent clients."""

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 4)
            consumer = log.consumer("g")
            consumer.subscribe(["t"])
            assert not await consumer.poll(10, 0.01)
            consumer.pause(consumer.assignment())
            polling = asyncio.create_task(consumer.poll(10, 60.0))
            await asyncio.sleep(0.01)
            looks: list[int] = []
            fetch = consumer._fetch

            async def counted(*arguments: int) -> Any:
                looks.append(1)
                return await fetch(*arguments)

            monkeypatch.setattr(consumer, "_fetch", counted)
            for number in range(20):
                await log.producer.send("t", number % 4, numbered(number, 1))
            assert not looks
            consumer.resume([TopicPartition("t", 1)])
            fetched, *_ = await polling
            assert [number_of(record) for record in fetched.pack] == [1]

    asyncio.run(main())


def test_the_failure_of_the_disk_thread_is_told_and_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        """The compiled thread, which finds that the disk does not take anything."""

        fails = False

        def __init__(self) -> None:
            self._disk = DiskThread()
            self.event = self._disk.event
            self.close = self._disk.close
            self.write = self._disk.write
            self.reset = self._disk.reset
            self.expect = self._disk.expect

        def take(self) -> int | None:
            failure = self._disk.take()
            return errno.EIO if failure is not None and Failing.fails else failure

    monkeypatch.setattr(commit_thread, "DiskThread", Failing)

    async def main() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t")
            await log.producer.send("t", 0, numbered(0, 1))
            Failing.fails = True
            results = await asyncio.gather(
                *(log.producer.send("t", 0, numbered(number, 1)) for number in (8, 9)), return_exceptions=True
            )
            assert [type(result) for result in results] == [LogUnavailable] * 2
            assert "t" in str(log.check())
            Failing.fails = False
            assert (await log.producer.send("t", 0, numbered(1, 1))).base_offset == 1
            assert log.check() is True
        async with opened(tmp_path) as log:
            assert [number_of(record) for record in await read_all(log, "t")] == [0, 1]

    asyncio.run(main())


def test_the_disk_thread(tmp_path: Path) -> None:
    packs = [numbered(0, 3), numbered(3, 2, size=5_000)]
    for pack in packs:
        pack.seal()
    packs[1].place(3)
    encoded = packs[0].encode(0) + packs[1].encode(1)
    file = os.open(tmp_path / "segment", os.O_CREAT | os.O_RDWR)
    tail = os.open(tmp_path / "tail", os.O_CREAT | os.O_RDWR)
    disk = DiskThread()

    def finish() -> int:
        deadline = time.monotonic() + 30
        while (failure := disk.take()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return failure

    assert disk.take() is None
    assert disk.expect() is False
    disk.write(file, 10, 10, [0, 1], packs, tail, b"so far")
    with pytest.raises(RuntimeError):
        disk.write(file, 10, 10, [0, 1], packs, tail, b"so far")
    assert finish() == 0
    assert disk.take() is None
    assert os.pread(tail, 100, 0) == b"so far"
    found = os.pread(file, 20_000, 10)
    assert len(found) == len(encoded)
    assert found[: len(packs[0].encode(0))] == packs[0].encode(0)
    read_only = os.open(tmp_path / "segment", os.O_RDONLY)
    disk.write(read_only, 10, 10, [0, 1], packs, tail, b"further")
    assert finish() == errno.EBADF
    assert os.pread(tail, 100, 0) == b"so far"
    disk.write(file, 40_000, 40_000, [0, 1], packs, tail, b"the end")
    disk.close()  # after what it is writing
    assert os.pread(tail, 100, 0) == b"the end"
    for fd in (file, tail, read_only):
        os.close(fd)


def test_a_closed_disk_thread_refuses_work(tmp_path: Path) -> None:
    """Otherwise the caller would wait for ever."""
    file = os.open(tmp_path / "segment", os.O_CREAT | os.O_RDWR)
    disk = DiskThread()
    disk.close()
    pack = numbered(0, 1)
    pack.seal()
    with pytest.raises(RuntimeError, match="closed"):
        disk.write(file, 0, 0, [0], [pack], -1, b"")
    disk.close()
    os.close(file)


def test_work_that_cannot_be_prepared_leaves_no_memory(tmp_path: Path) -> None:
    def pages() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0])

    pack = numbered(0, 1)
    pack.seal()
    packs, partitions = [pack] * 10_000, [*[0] * 9_999, -1]
    file = os.open(tmp_path / "segment", os.O_CREAT | os.O_RDWR)
    disk = DiskThread()
    before = pages()
    for _ in range(200):
        with pytest.raises(OverflowError):
            write_packs(file, 0, 0, partitions, packs, False)
        with pytest.raises(OverflowError):
            disk.write(file, 0, 0, partitions, packs, -1, b"")
    assert (pages() - before) * resource.getpagesize() < 100_000_000
    disk.close()
    os.close(file)


def test_every_pack_needs_a_partition(tmp_path: Path) -> None:
    """The compiled code reads as many partitions as there are packs."""
    file = os.open(tmp_path / "segment", os.O_RDWR | os.O_CREAT)
    try:
        with pytest.raises(ValueError, match="2 packs need as many partitions, 1 were given"):
            write_packs(file, 0, 0, [0], [numbered(0, 1), numbered(1, 1)], False)
    finally:
        os.close(file)
