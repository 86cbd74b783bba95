"""Files of the embedded log that somebody, or a bad disk, took away or emptied: nothing is ever read or written over
them as if they had never been there."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from penstock.__main__ import main
from penstock.core.clock import now_ms
from penstock.storage.log.base import LogDamaged, TopicPartition
from penstock.storage.log.embedded import files, open_reader, repair_topic
from penstock.storage.log.embedded.recovery import recover_topic
from penstock.storage.log.embedded.verify import verify_topic
from tests.support.worlds.embedded import keyed, number_of, numbered, opened, read_all, segments_of, topic_directory


def write(directory: Path, packs: int, **properties: str) -> None:
    async def run() -> None:
        async with opened(directory) as log:
            await log.admin.create("t", 2, {name.replace("_", "."): value for name, value in properties.items()})
            start = now_ms()
            for number in range(packs):
                await log.producer.send("t", number % 2, numbered(number // 2 * 20, 20, timestamp=start + number))

    uvloop.run(run())


def read(directory: Path) -> list[list[int]]:
    async def run() -> list[list[int]]:
        async with opened(directory, cache_bytes=0) as log:
            return [[number_of(record) for record in await read_all(log, "t", p)] for p in range(2)]

    return uvloop.run(run())


def refused(directory: Path, named: Path) -> None:
    """Where the broker would start, and where others read beside it."""
    for look in (
        lambda: read(directory),
        lambda: verify_topic(topic_directory(directory, "t")),
        lambda: open_reader(directory, "t"),
    ):
        with pytest.raises(LogDamaged) as caught:
            look()
        assert str(named) in str(caught.value)
        assert f"`penstock log repair t --data-dir {directory}`" in str(caught.value)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_segment_that_is_missing_between_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: int
) -> None:
    write(tmp_path, 60, segment_bytes="2048")
    paths = segments_of(tmp_path, "t")
    segments = recover_topic(topic_directory(tmp_path, "t")).segments
    gone = segments[2 : 2 + missing]
    for segment in gone:
        segment.path.unlink()
        segment.index_path.unlink()
    refused(tmp_path, paths[2])
    assert main(["log", "repair", "t", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert f"{missing} segment{'s are' if missing > 1 else ' is'} missing" in printed
    left = []
    for partition in range(2):
        first, end = gone[0].start.ends[partition], gone[-1].end_of(partition)
        assert f"lost: partition {partition}, offsets {first} to {end - 1}" in printed
        left.append([number for number in range(600) if not first <= number < end])
    assert read(tmp_path) == left
    assert verify_topic(topic_directory(tmp_path, "t")).records == sum(map(len, left))
    assert repair_topic(tmp_path, "t").is_sound


def test_what_retention_and_compaction_took_is_not_missing(tmp_path: Path) -> None:
    """Twice, because what is compacted for the second time has had others in it already."""

    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 2, {"cleanup.policy": "compact", "segment.bytes": "1024"})
            for turn in range(2):
                for number in range(200):
                    unique = keyed((b"%d-%d" % (turn, number), b"." * 200))
                    await log.producer.send("t", number % 2, unique if number % 10 == 0 else keyed((b"k", b"." * 200)))
                await log.maintenance.tidy()
            assert log.maintenance.compactions == 2
            await log.admin.truncate(TopicPartition("t", 0), 100)
            await log.admin.truncate(TopicPartition("t", 1), 100)
            await log.maintenance.tidy()

    uvloop.run(run())
    directory = topic_directory(tmp_path, "t")
    sequences = files.list_segments(directory)
    assert sequences[0] > 1
    assert len(sequences) < sequences[-1] - sequences[0] + 1
    recover_topic(directory)
    verify_topic(directory)
    assert repair_topic(tmp_path, "t").is_sound


def test_the_start_of_a_compacted_segment_that_is_damaged(tmp_path: Path) -> None:
    """Repair cannot know which segments it covered; what is left must open all the same."""

    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1, {"cleanup.policy": "compact", "segment.bytes": "1024"})
            for _ in range(50):
                await log.producer.send("t", 0, keyed((b"k", b"." * 200)))
            await log.maintenance.tidy()

    uvloop.run(run())
    path = segments_of(tmp_path, "t")[0]
    data = path.read_bytes()
    path.write_bytes(data[:70] + b"?" + data[71:])
    path.with_suffix(files.INDEX).unlink()
    with pytest.raises(LogDamaged):
        recover_topic(path.parent)
    repair_topic(tmp_path, "t")
    recover_topic(path.parent)
    assert repair_topic(tmp_path, "t").is_sound


@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "missing"])
@pytest.mark.parametrize("packs", [2, 60], ids=["one segment", "many"])
def test_a_description_that_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], packs: int, is_empty: bool
) -> None:
    """It was taken for a topic that was never finished, and the next one of that name was written over its records."""
    write(tmp_path, packs, segment_bytes="2048", retention_ms="1000000000")
    described = topic_directory(tmp_path, "t") / files.TOPIC_FILE
    if is_empty:
        described.write_bytes(b"")
    else:
        described.unlink()
    before = [path.read_bytes() for path in segments_of(tmp_path, "t")]
    refused(tmp_path, described)
    assert main(["log", "topics", "--data-dir", str(tmp_path)]) == 1
    assert "topic.json" in capsys.readouterr().out
    assert main(["log", "repair", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "t: topic.json rebuilt, 2 partitions" in printed
    assert "properties are not known" in printed
    assert [path.read_bytes() for path in segments_of(tmp_path, "t")] == before
    numbers = list(range(packs // 2 * 20))
    assert read(tmp_path) == [numbers, numbers]
    _, config = files.read_topic(described.parent)
    assert config.retention_ms < 0, "nothing may go before somebody has said what may"
    assert repair_topic(tmp_path, "t").is_sound


def test_a_description_that_cannot_be_made_anew(tmp_path: Path) -> None:
    write(tmp_path, 2)
    (path,) = segments_of(tmp_path, "t")
    described = path.parent / files.TOPIC_FILE
    described.unlink()
    data = path.read_bytes()
    path.write_bytes(b"?" + data[1:])
    with pytest.raises(LogDamaged, match=files.TOPIC_FILE.replace(".", r"\.")):
        repair_topic(tmp_path, "t")
    assert not described.exists()


@pytest.mark.parametrize("sound", [0, 5, 30, 1_000])
@pytest.mark.parametrize("fill", [b"", bytes(200)], ids=["short", "zeros"])
def test_a_topic_that_was_being_made_is_none(tmp_path: Path, sound: int, fill: bytes) -> None:
    """A power cut leaves less of its first segment, or zeros."""
    write(tmp_path, 0)
    (path,) = segments_of(tmp_path, "t")
    (path.parent / files.TOPIC_FILE).unlink()
    data = path.read_bytes()
    path.write_bytes((data[:sound] + fill)[: len(data)])

    async def run() -> None:
        async with opened(tmp_path) as log:
            assert await log.admin.list() == []
            await log.admin.create("t", 3)
            await log.producer.send("t", 2, numbered(0, 5))

    uvloop.run(run())


def test_a_segment_that_goes_while_the_log_is_open(tmp_path: Path) -> None:
    """Who reads there is told, instead of asking for it again and again."""
    write(tmp_path, 60, segment_bytes="2048")

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            gone = log.views["t"].segments[2]
            path, first = gone.path, gone.start.ends[0]
            path.unlink()
            consumer = log.consumer("")
            partition = TopicPartition("t", 0)
            consumer.assign([partition])
            found: list[int] = []
            while len(found) < first:
                for fetched in await consumer.poll(10_000, 5.0):
                    found += [number_of(record) for record in fetched.pack]
            assert found == list(range(first))
            for _ in range(2):
                with pytest.raises(LogDamaged, match=path.name):
                    await consumer.poll(10_000, 5.0)
            with pytest.raises(LogDamaged, match=path.name):
                await consumer.seek_to_time(partition, gone.partitions[0].max_timestamp)
            assert log.counters()["damaged_partitions"] == 1
            assert path.name in str(log.check_readers())

    uvloop.run(run())
