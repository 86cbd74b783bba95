"""Segments go by age, bytes and messages; compaction keeps the newest of each key."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from penstock.storage.log.base import OffsetOutOfRange, TopicPartition, read_state
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.embedded.compaction import CompactionPlan, compact
from penstock.storage.log.embedded.recovery import recover_topic
from tests.support.worlds.embedded import keyed, numbered, opened, read_all, segments_of, topic_directory

HOUR = 3_600_000
PARTITION = TopicPartition("t", 0)


def now() -> int:
    return int(time.time() * 1000)


def run(directory: Path, scenario: Callable[[EmbeddedLog], Awaitable[None]], **options: float) -> None:
    async def main() -> None:
        async with opened(directory, **{"maintenance_interval": 3_600, **options}) as log:
            await scenario(log)

    uvloop.run(main())


async def append(log: EmbeddedLog, packs: int, records: int = 20, timestamp: int | None = None) -> None:
    for _ in range(packs):
        end = log.watermarks(PARTITION).end
        await log.producer.send("t", 0, numbered(end, records, timestamp=timestamp))


def test_what_retention_removes_is_never_of_the_next_topic_of_that_name(tmp_path: Path) -> None:
    """Before, while the disk was slow, a topic that was deleted and made anew lost its first segment."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "4096", "retention.bytes": "0"})
        for number in range(3):
            await log.producer.send("t", 0, numbered(number, 1, 3_000))

        async def make_anew() -> None:
            await log.admin.delete("t")
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 3))

        is_quick = threading.Event()
        slow = asyncio.ensure_future(log.in_thread(is_quick.wait))
        tidying = asyncio.create_task(log.maintenance.tidy())
        await asyncio.sleep(0)
        making = asyncio.create_task(make_anew())
        await asyncio.wait({making}, timeout=1)
        is_quick.set()
        await asyncio.gather(slow, tidying, making)
        assert len(segments_of(tmp_path, "t")) == 1

    run(tmp_path, scenario)


def test_another_size_of_segments_counts_at_once(tmp_path: Path) -> None:
    """Before, it did from the next start on: retention, which takes whole segments, had none to take."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1)
        await log.admin.alter("t", {"segment.bytes": "4096"})
        for number in range(10):
            await log.producer.send("t", 0, numbered(number, 1, 3_000))
        assert len(segments_of(tmp_path, "t")) == 10

    run(tmp_path, scenario)


async def tidy(log: EmbeddedLog) -> None:
    await log.maintenance.tidy()


def test_retention_by_age(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.ms": str(HOUR)})
        await append(log, 20, timestamp=now() - 2 * HOUR)
        await tidy(log)
        # the segment being written goes as well when all of it is old
        assert log.watermarks(PARTITION).first > 300
        await append(log, 20)
        await tidy(log)
        records = await read_all(log, "t")
        assert records[0].offset == log.watermarks(PARTITION).first == 400
        assert len(records) == 400
        assert log.counters()["segments_removed"] >= 3

    run(tmp_path, scenario)
    recovered = recover_topic(topic_directory(tmp_path, "t"))
    assert (recovered.firsts, recovered.ends) == ([400], [800])


def test_retention_by_bytes(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.bytes": "8192"})
        await append(log, 60)
        await tidy(log)
        assert sum(path.stat().st_size for path in segments_of(tmp_path, "t")) <= 8_192 + 2_048
        assert log.watermarks(PARTITION).first > 500
        assert log.watermarks(PARTITION).end == 1_200
        assert (await read_all(log, "t"))[-1].offset == 1_199

    run(tmp_path, scenario)


def test_the_limit_is_of_all_partitions_together(tmp_path: Path) -> None:
    """docs/ingest-log.md says so: they are in the same segments."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 4, {"segment.bytes": "2048", "retention.bytes": "2048"})
        await log.producer.send("t", 1, numbered(0, 1))
        await append(log, 60)
        await tidy(log)
        assert 4_096 < sum(path.stat().st_size for path in segments_of(tmp_path, "t")) <= 4 * 2_048 + 2_048
        quiet = log.watermarks(TopicPartition("t", 1))
        assert (quiet.first, quiet.end) == (1, 1)

    run(tmp_path, scenario)


def test_retention_by_messages(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.messages": "500"})
        await append(log, 60)
        await tidy(log)
        kept = len(await read_all(log, "t"))
        assert 500 <= kept <= 700

    run(tmp_path, scenario)


def test_nothing_goes_without_a_limit(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.ms": "-1"})
        await append(log, 20, timestamp=5)
        await tidy(log)
        assert len(await read_all(log, "t")) == 400

    run(tmp_path, scenario)


def test_segments_roll_by_age(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.ms": "1"})
        await append(log, 1)
        await asyncio.sleep(0.01)
        await tidy(log)
        await append(log, 1)
        assert len(segments_of(tmp_path, "t")) == 2
        assert len(await read_all(log, "t")) == 40

    run(tmp_path, scenario)


def test_a_reader_that_retention_overtakes(tmp_path: Path) -> None:
    """It goes on where the partition begins now, or is told so if it asked for that."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.bytes": "4096"})
        easy, strict = log.consumer(""), log.consumer("", auto_offset_reset="none")
        for consumer in (easy, strict):
            consumer.assign([PARTITION])
            await consumer.seek(PARTITION, 0)
        await append(log, 40)
        await tidy(log)
        first = log.watermarks(PARTITION).first
        assert first > 0
        assert (await easy.poll(10))[0].pack.base_offset == first
        with pytest.raises(OffsetOutOfRange) as caught:
            await strict.poll(10)
        assert (caught.value.first, caught.value.end) == (first, 800)

    run(tmp_path, scenario, cache_bytes=0)


def test_truncation_removes_segments(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048"})
        await append(log, 40)
        before = len(segments_of(tmp_path, "t"))
        await log.admin.truncate(PARTITION, 700)
        await tidy(log)
        assert len(segments_of(tmp_path, "t")) <= before - 3
        assert (await read_all(log, "t"))[0].offset == 700

    run(tmp_path, scenario)
    assert recover_topic(topic_directory(tmp_path, "t")).firsts == [700]


async def state_of(log: EmbeddedLog) -> dict[bytes | None, bytes | None]:
    state: dict[bytes | None, bytes | None] = {}
    await read_state(log, "t", state.__setitem__)
    return {key: value for key, value in state.items() if value is not None}


COMPACT = {"cleanup.policy": "compact", "segment.bytes": "4096", "delete.retention.ms": str(HOUR)}


def test_compaction(tmp_path: Path) -> None:
    expected: dict[bytes | None, bytes | None] = {}

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 2, COMPACT)
        chance = random.Random(3)
        for number in range(1_500):
            key, partition = b"key%d" % (number % 40), number % 2
            value = None if chance.random() < 0.1 else b"%d" % number
            await log.producer.send("t", partition, keyed((key, value), timestamp=now() - 2 * HOUR))
            expected[key] = value
        before = sum(path.stat().st_size for path in segments_of(tmp_path, "t"))
        files = len(segments_of(tmp_path, "t"))
        await tidy(log)
        assert log.counters()["compactions"] == 1
        assert sum(path.stat().st_size for path in segments_of(tmp_path, "t")) < before / 5
        assert len(segments_of(tmp_path, "t")) < files / 3
        alive = {key: value for key, value in expected.items() if value is not None}
        assert await state_of(log) == alive
        offsets = [record.offset for record in await read_all(log, "t", 0)]
        assert offsets == sorted(offsets)
        assert log.watermarks(PARTITION).end == 750
        await tidy(log)
        assert log.counters()["compactions"] == 1
        await log.producer.send("t", 0, keyed((b"new", b"1")))
        assert (await state_of(log))[b"new"] == b"1"

    async def after(log: EmbeddedLog) -> None:
        alive = {key: value for key, value in expected.items() if value is not None}
        assert await state_of(log) == {**alive, b"new": b"1"}

    run(tmp_path, scenario, cache_bytes=0)
    run(tmp_path, after, cache_bytes=0)


def test_young_tombstones_stay(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, COMPACT)
        await log.producer.send("t", 0, keyed((b"gone", b"1"), (b"gone", None), (b"last", b"1")))
        await log.maintenance.roll(log.views["t"])
        await tidy(log)
        assert [(r.offset, r.key, r.value) for r in await read_all(log, "t")] == [
            (1, b"gone", None),
            (2, b"last", b"1"),
        ]

    run(tmp_path, scenario, cache_bytes=0)


def test_a_state_whose_end_is_an_old_tombstone_is_read_to_its_end(tmp_path: Path) -> None:
    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, COMPACT)
        await log.producer.send("t", 0, keyed((b"a", b"1"), (b"b", b"1"), (b"b", None), timestamp=now() - 9 * HOUR))
        await log.maintenance.roll(log.views["t"])
        await tidy(log)
        async with asyncio.timeout(60):
            assert await state_of(log) == {b"a": b"1"}

    run(tmp_path, scenario, cache_bytes=0)


def test_a_crash_during_compaction_is_mended(tmp_path: Path) -> None:
    """The compacted file has its name already, what it replaces is still there, and another one is half written."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, COMPACT)
        for number in range(1_000):
            await log.producer.send("t", 0, keyed((b"key%d" % (number % 10), b"%d" % number)))

    run(tmp_path, scenario)

    async def crash(log: EmbeddedLog) -> None:
        plan = CompactionPlan.of(log.views["t"])
        assert plan is not None
        built = compact(plan)
        assert built[0].start.covers_to > built[0].sequence
        built[0].path.rename(built[0].path.with_suffix(".seg"))
        built[0].path.with_suffix(".idx").unlink()

    run(tmp_path, crash)
    (topic_directory(tmp_path, "t") / f"{3:020}.clean").write_bytes(b"half")

    async def after(log: EmbeddedLog) -> None:
        assert await state_of(log) == {b"key%d" % key: b"%d" % (990 + key) for key in range(10)}

    run(tmp_path, after)
    assert not list(topic_directory(tmp_path, "t").glob("*.clean"))


def test_readers_during_compaction_and_retention(tmp_path: Path) -> None:
    """Whoever reads meanwhile sees rising offsets and ends with the newest values."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, COMPACT)

        async def maintain() -> None:
            while True:
                await tidy(log)
                await asyncio.sleep(0.001)

        job = asyncio.create_task(maintain())
        state: dict[bytes | None, bytes | None] = {}
        consumer = log.consumer("")
        consumer.assign([PARTITION])
        last = -1
        for number in range(2_000):
            await log.producer.send("t", 0, keyed((b"key%d" % (number % 10), b"%d" % number)))
            if number % 50 == 49:
                for fetched in await consumer.poll(37, 0):
                    for record in fetched.pack:
                        assert record.offset > last
                        last = record.offset
        while consumer.position(PARTITION) < 2_000:
            for fetched in await consumer.poll(1_000, 1):
                for record in fetched.pack:
                    state[record.key] = record.value
        assert state == {b"key%d" % key: b"%d" % (1_990 + key) for key in range(10)}
        assert log.counters()["compactions"] > 1
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job

    run(tmp_path, scenario, cache_bytes=0)


def refuse(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def fill_state(log: EmbeddedLog, records: int = 1_000) -> None:
    await log.admin.create("state", 1, COMPACT)
    for number in range(records):
        await log.producer.send("state", 0, keyed((b"key%d" % (number % 10), b"%d" % number)))


def test_a_topic_that_cannot_be_compacted_keeps_retention_from_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it would be for ever: only retention makes room. A failed attempt leaves no file either."""

    async def scenario(log: EmbeddedLog) -> None:
        await fill_state(log)
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.bytes": "8192"})
        await append(log, 60)
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as full:
            full.setattr("penstock.storage.log.embedded.compaction.os.fsync", refuse)
            for _ in range(5):
                await tidy(log)
        assert log.watermarks(PARTITION).first > 500
        assert log.counters()["maintenance_failures"] == 5
        assert log.counters()["compactions"] == 0
        assert not list(topic_directory(tmp_path, "state").glob("*.clean"))
        assert len(os.listdir("/proc/self/fd")) < before + 5
        await tidy(log)
        assert log.counters()["compactions"] == 1

    run(tmp_path, scenario)


def test_a_segment_that_cannot_be_closed_keeps_no_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing one begins another, for which a full disk has no room; those over the limit go all the same."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.bytes": "8192", "segment.ms": "1"})
        await append(log, 60)
        await asyncio.sleep(0.01)
        monkeypatch.setattr("penstock.storage.log.embedded.topic_writer.files.sync_directory", refuse)
        await tidy(log)
        assert log.watermarks(PARTITION).first > 500
        assert log.counters()["maintenance_failures"] == 1
        monkeypatch.undo()
        assert len(await read_all(log, "t")) > 0

    run(tmp_path, scenario)


def test_an_index_that_cannot_be_written_ends_no_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was replaced is removed, and every compacted file has its name."""

    async def scenario(log: EmbeddedLog) -> None:
        await log.admin.create("t", 1, COMPACT)
        for number in range(1_000):
            await log.producer.send("t", 0, keyed((b"key%d" % (number % 300), b"%d" % number)))
        monkeypatch.setattr(Path, "write_bytes", refuse)
        await tidy(log)
        assert log.counters()["compactions"] == 1
        assert len(segments_of(tmp_path, "t")) == len(log.views["t"].segments) > 2
        monkeypatch.undo()

    async def after(log: EmbeddedLog) -> None:
        assert await state_of(log) == {b"key%d" % (n % 300): b"%d" % n for n in range(700, 1_000)}

    run(tmp_path, scenario, cache_bytes=0)
    run(tmp_path, after, cache_bytes=0)
