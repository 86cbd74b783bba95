"""Another process reads the files while they are written, rolled, compacted and removed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
import uvloop

from penstock.storage.log.base import OffsetOutOfRange, TopicNotFound, TopicPartition, Watermarks
from penstock.storage.log.embedded import open_reader
from tests.support.worlds.embedded import keyed, number_of, numbered, opened, topic_directory

ROOT = Path(__file__).resolve().parents[4]

# Reads a partition to the offset that it is told, and prints how often records were gone before they were read.
FOLLOW = """
import sys
import time
from penstock.storage.log.base import OffsetOutOfRange
from penstock.storage.log.embedded import open_reader

directory, end = sys.argv[1], int(sys.argv[2])
reader = open_reader(directory, "t")
position, resets = 0, 0
deadline = time.monotonic() + 60
while position < end:
    assert time.monotonic() < deadline, position
    try:
        pack = reader.read(0, position, 100)
    except OffsetOutOfRange as error:
        assert error.first > position
        position, resets = error.first, resets + 1
        continue
    for record in pack:
        assert record.offset >= position, (record.offset, position)
        assert int(record.value.rstrip(b".")) == record.offset, record
        position = record.offset + 1
    if not pack.count:
        reader.refresh()
        time.sleep(0.001)
print(resets)
"""


def follow(directory: Path, end: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FOLLOW, str(directory), str(end)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("properties", "is_overtaken"),
    [({}, False), ({"retention.bytes": "30000"}, True)],
    ids=["everything", "with retention"],
)
def test_a_process_reads_what_another_writes(tmp_path: Path, properties: dict[str, str], is_overtaken: bool) -> None:
    async def run() -> None:
        async with opened(tmp_path, maintenance_interval=0.02) as log:
            await log.admin.create("t", 2, {"segment.bytes": "20000", **properties})
            with follow(tmp_path, 20_000) as process:
                for number in range(0, 20_000, 20):
                    await log.producer.send("t", 0, numbered(number, 20, 50))
                    await log.producer.send("t", 1, numbered(number, 1))
                output, _ = await asyncio.to_thread(process.communicate)
            assert process.returncode == 0
            assert is_overtaken or int(output) == 0
            assert (log.counters()["segments_removed"] > 0) == is_overtaken

    uvloop.run(run())


def test_what_is_not_on_the_disk_yet_is_not_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 5))
            reader = open_reader(tmp_path, "t")
            assert reader.watermarks(0) == Watermarks(0, 5)
            (path,) = topic_directory(tmp_path, "t").glob("*.seg")
            ahead = numbered(5, 5)
            ahead.place(5)
            with path.open("ab") as file:
                file.write(ahead.encode(0))
            reader.refresh()
            assert reader.watermarks(0).end == 5
            assert reader.read(0, 5).count == 0

    uvloop.run(run())


def test_reader_after_compaction_and_truncation(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path, maintenance_interval=3_600) as log:
            await log.admin.create("t", 1, {"cleanup.policy": "compact", "segment.bytes": "4096"})
            for number in range(1_000):
                await log.producer.send("t", 0, keyed((b"key%d" % (number % 10), b"%d" % number)))
            reader = open_reader(tmp_path, "t")
            assert reader.read(0, 0).base_offset == 0
            await log.maintenance.tidy()
            reader.refresh()
            position, state = 0, {}
            while position < reader.watermarks(0).end:
                pack = reader.read(0, position)
                state |= {record.key: number_of(record) for record in pack}
                position = pack.next_offset
            assert state == {b"key%d" % key: 990 + key for key in range(10)}
            await log.admin.truncate(TopicPartition("t", 0), 995)
            reader.refresh()
            assert reader.watermarks(0) == Watermarks(995, 1_000)

    uvloop.run(run())


@pytest.mark.parametrize("partitions", [1, 2])
def test_a_topic_that_is_made_anew_is_another_one(tmp_path: Path, partitions: int) -> None:
    """Before, what was truncated of the old one hid records of the new, and another number of partitions was an error
    of the program."""

    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1)
            await log.producer.send("t", 0, numbered(0, 100))
            await log.admin.truncate(TopicPartition("t", 0), 80)
            reader = open_reader(tmp_path, "t")
            await log.admin.delete("t")
            with pytest.raises(TopicNotFound, match="was deleted"):
                reader.refresh()
            await log.admin.create("t", partitions)
            await log.producer.send("t", 0, numbered(0, 50))
            with pytest.raises(TopicNotFound, match="there is a new one of that name"):
                reader.refresh()
            assert open_reader(tmp_path, "t").watermarks(0) == Watermarks(0, 50)

    uvloop.run(run())


def test_find_time_and_limits(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1, {"segment.bytes": "2048", "retention.ms": "-1"})
            for number in range(0, 400, 20):
                await log.producer.send("t", 0, numbered(number, 20, timestamp=1_000 + number))
        reader = open_reader(tmp_path, "t")
        assert reader.find_time(0, 0) == 0
        assert reader.find_time(0, 1_161) == 180
        assert reader.find_time(0, 9_999) == 400
        with pytest.raises(OffsetOutOfRange):
            reader.read(0, 401)
        with pytest.raises(TopicNotFound):
            reader.read(1, 0)
        with pytest.raises(TopicNotFound):
            open_reader(tmp_path, "unknown")
        assert reader.read(0, 7, max_records=3).offsets().tolist() == [7, 8, 9]
        reader.close()

    uvloop.run(run())
