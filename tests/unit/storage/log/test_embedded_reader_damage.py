"""What another process says of files that are damaged, and never says of files that are being written."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from penstock._ext.record.segment import BatchInfo, scan_batches
from penstock.storage.log.base import LogDamaged, TopicPartition, Watermarks
from penstock.storage.log.embedded import files, open_reader
from tests.support.worlds.embedded import keyed, numbered, opened, segments_of, topic_directory

ROOT = Path(__file__).resolve().parents[4]
SECONDS = 60

# Opens a topic again and again, and follows it, until it is told to end; anything but a sound log is an error.
LOOK = """
import os
import select
import sys
from penstock.storage.log.base import OffsetOutOfRange, TopicNotFound
from penstock.storage.log.embedded import open_reader

directory, topic = sys.argv[1:]
looks = 0
follower = None
while not select.select([0], [], [], 0)[0] or looks < 20:
    try:
        reader = open_reader(directory, topic)
        follower = follower or open_reader(directory, topic)
        follower.refresh()
        for number in range(reader.partitions):
            marks = reader.watermarks(number)
            for one in (reader, follower):
                for offset in (marks.first, marks.end - 50):
                    try:
                        one.read(number, max(marks.first, offset))
                    except OffsetOutOfRange:
                        pass
        reader.close()
        looks += 1
    except TopicNotFound:
        follower = None
print(looks)
"""


def write(directory: Path, segment_bytes: int) -> None:
    async def run() -> None:
        async with opened(directory) as log:
            await log.admin.create("t", 1, {"segment.bytes": str(segment_bytes), "retention.ms": "-1"})
            for number in range(60):
                await log.producer.send("t", 0, numbered(10 * number, 10, 20))

    uvloop.run(run())


def batches_of(path: Path) -> list[BatchInfo]:
    return scan_batches(path.read_bytes(), 0, True)[0]


def overwrite(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def zero_magic(path: Path) -> int:
    batches = batches_of(path)
    position = batches[len(batches) // 2].position
    overwrite(path, position, bytes(4))
    return position


def spoil_header(path: Path) -> int:
    batches = batches_of(path)
    position = batches[len(batches) // 2].position
    overwrite(path, position + 20, b"?")
    return position


def spoil_start(path: Path) -> int:
    overwrite(path, 0, bytes(8))
    return 0


def cut_short(path: Path) -> int:
    position = batches_of(path)[-1].position
    os.truncate(path, position)
    return position


@pytest.mark.parametrize("harm", [zero_magic, spoil_header, spoil_start, cut_short])
@pytest.mark.parametrize("is_last", [True, False], ids=["the last segment", "a closed one without its index"])
def test_damage_is_told_with_the_command_that_repairs_it(
    tmp_path: Path, harm: Callable[[Path], int], is_last: bool
) -> None:
    write(tmp_path, 1_000_000 if is_last else 2_048)
    path = segments_of(tmp_path, "t")[-1 if is_last else 1]
    path.with_suffix(".idx").unlink(missing_ok=True)
    if harm is cut_short and not is_last:
        os.truncate(path, batches_of(path)[-1].position + 10)
        position = batches_of(path)[-1].position + batches_of(path)[-1].size
    else:
        position = harm(path)
    with pytest.raises(LogDamaged) as raised:
        open_reader(tmp_path, "t")
    assert raised.value.message.startswith(f"{path} is damaged at byte {position}: ")
    assert "`penstock log repair t --data-dir " in raised.value.hint


def test_damage_in_a_segment_with_its_index_is_met_by_who_reads_there(tmp_path: Path) -> None:
    write(tmp_path, 2_048)
    path = segments_of(tmp_path, "t")[1]
    batches = batches_of(path)
    zero_magic(path)
    reader = open_reader(tmp_path, "t")
    assert reader.watermarks(0) == Watermarks(0, 600)
    with pytest.raises(LogDamaged):
        reader.read(0, batches[len(batches) // 2].base_offset)
    reader.close()


def test_a_newest_segment_that_is_missing(tmp_path: Path) -> None:
    write(tmp_path, 2_048)
    path = segments_of(tmp_path, "t")[-1]
    path.unlink()
    with pytest.raises(LogDamaged, match="the file is missing"):
        open_reader(tmp_path, "t")


def test_damage_that_comes_while_a_topic_is_followed(tmp_path: Path) -> None:
    write(tmp_path, 1_000_000)
    reader = open_reader(tmp_path, "t")
    write(tmp_path, 1_000_000)
    [path] = segments_of(tmp_path, "t")
    overwrite(path, batches_of(path)[-3].position, bytes(4))
    with pytest.raises(LogDamaged):
        reader.refresh()
    with pytest.raises(LogDamaged):
        reader.refresh()
    # what was known before can still be read
    assert reader.read(0, 590, 10).offsets().tolist() == list(range(590, 600))


@pytest.mark.parametrize("torn", [b"", b"PSB", bytes(100)])
def test_a_tail_that_is_being_written_is_no_damage(tmp_path: Path, torn: bytes) -> None:
    write(tmp_path, 1_000_000)
    [path] = segments_of(tmp_path, "t")
    ahead = numbered(600, 5)
    ahead.place(600)
    with path.open("ab") as file:
        file.write(torn or ahead.encode(0)[:70])
    reader = open_reader(tmp_path, "t")
    assert reader.watermarks(0) == Watermarks(0, 600)
    # nor is it without the file that says how far the segment is on the disk
    (topic_directory(tmp_path, "t") / files.TAIL_FILE).unlink()
    assert open_reader(tmp_path, "t").watermarks(0) == Watermarks(0, 600)


def test_what_a_power_cut_took_and_the_journal_has_comes_back_with_the_next_start(tmp_path: Path) -> None:
    live, after = tmp_path / "live", tmp_path / "after"

    async def write_two() -> None:
        async with opened(live) as log:
            for topic in "ab":
                await log.admin.create(topic, 1)
            for number in range(0, 100, 10):
                await asyncio.gather(*(log.producer.send(topic, 0, numbered(number, 10)) for topic in "ab"))
            assert log.counters()["journal_rounds"] > 0
            shutil.copytree(live, after)

    async def start() -> None:
        async with opened(after):
            pass

    uvloop.run(write_two())
    [path] = segments_of(after, "a")
    os.truncate(path, batches_of(path)[5].position)
    with pytest.raises(LogDamaged) as raised:
        open_reader(after, "a")
    assert "the next start of the broker puts it back" in raised.value.hint
    uvloop.run(start())
    assert open_reader(after, "a").watermarks(0) == Watermarks(0, 100)


def look(directory: Path, topic: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", LOOK, str(directory), topic],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("fsync", ["always", "interval"])
def test_nothing_is_called_damaged_while_it_is_written(tmp_path: Path, fsync: str) -> None:
    """Appended to, rolled, compacted, removed, deleted and made anew, in one commit with others (journal)."""

    async def run() -> None:
        options = {"fsync": fsync, "fsync_interval_ms": 5, "maintenance_interval": 0.02}
        async with opened(tmp_path, **options) as log:
            small = {"segment.bytes": "8192"}
            await log.admin.create("kept", 2, {**small, "retention.bytes": "40000"})
            await log.admin.create("compacted", 1, {**small, "cleanup.policy": "compact"})
            await log.admin.create("anew", 1, small)
            processes = [look(tmp_path, topic) for topic in ("kept", "compacted", "anew")]
            for number in range(1_500):
                for _ in range(4):
                    log.producer.append("kept", number % 2, numbered(0, number % 37 + 1, 40))
                    log.producer.append("anew", 0, numbered(0, number % 11 + 1, 100))
                keys = [(b"k%d" % (key % 13), b"." * (number % 50)) for key in range(20)]
                await log.producer.send("compacted", 0, keyed(*keys))
                if number % 50 == 49:
                    await log.admin.delete("anew")
                    await log.admin.create("anew", 1, small)
            for process in processes:
                output, errors = process.communicate("end\n", timeout=SECONDS)
                assert process.returncode == 0, errors
                assert int(output) >= 20

    uvloop.run(run())


@pytest.mark.parametrize("truncated", [0, 993], ids=["whole", "truncated"])
def test_records_of_a_compacted_topic_are_counted(tmp_path: Path, truncated: int) -> None:
    async def run() -> None:
        async with opened(tmp_path, maintenance_interval=3_600) as log:
            await log.admin.create("t", 2, {"cleanup.policy": "compact", "segment.bytes": "4096"})
            for number in range(1_000):
                await log.producer.send("t", 0, keyed((b"key%d" % (number % 10), b"%d" % number)))
            await log.maintenance.tidy()
            if truncated:
                await log.admin.truncate(TopicPartition("t", 0), 500)
        reader = open_reader(tmp_path, "t")
        found, position = 0, reader.watermarks(0).first
        while position < reader.watermarks(0).end:
            pack = reader.read(0, position)
            found += pack.count
            position = pack.next_offset if pack.count else reader.watermarks(0).end
        assert 10 <= reader.count(0) == found < 500
        assert reader.count(1) == 0

    uvloop.run(run())
