"""After a repair no new record gets the offset of one that is lost: whoever remembers that offset as read, stored or
delivered would take the new record for the old one, and drop it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from penstock._ext.record.segment import scan_batches
from penstock.storage.log.base import LogDamaged, TopicPartition
from penstock.storage.log.embedded import open_reader, repair_topic
from penstock.storage.log.embedded.recovery import recover_topic
from tests.support.worlds.embedded import number_of, numbered, opened, read_all, segments_of, topic_directory

PARTITIONS = 3


def write(directory: Path, *packs: tuple[int, int], **properties: str) -> list[int]:
    """Commits packs of (partition, records) one after the other; where each partition ends."""
    ends = [0] * PARTITIONS

    async def run() -> None:
        async with opened(directory) as log:
            await log.admin.create("t", PARTITIONS, {name.replace("_", "."): v for name, v in properties.items()})
            for partition, count in packs:
                await log.producer.send("t", partition, numbered(ends[partition], count))
                ends[partition] += count

    uvloop.run(run())
    return ends


def batches_of(path: Path) -> list[tuple[int, int]]:
    """Position and size of each batch of records."""
    return [(batch.position, batch.size) for batch in scan_batches(path.read_bytes(), 0, True)[0] if batch.count]


def cut_through(path: Path) -> None:
    os.truncate(path, batches_of(path)[-1][0] + 100)


def cut_before(path: Path) -> None:
    os.truncate(path, batches_of(path)[-1][0])


def remove(path: Path) -> None:
    path.unlink()


def change(path: Path, batch: int, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[batches_of(path)[batch][0] + byte] ^= 0xFF
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut through the last batch": cut_through,
    "cut before the last batch": cut_before,
    "last segment gone": remove,
    "last batch changed": lambda path: change(path, -1, 70),
    "header of the last batch changed": lambda path: change(path, -1, 20),
    "last of one partition, others behind it": lambda path: change(path, -3, 70),
    "the same, its header": lambda path: change(path, -3, 20),
    "start changed": lambda path: change(path, 0, -4),
}


@pytest.mark.parametrize("segments", ["one", "many"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_no_offset_is_given_twice(tmp_path: Path, segments: str, damage: Callable[[Path], None]) -> None:
    early = [(number % PARTITIONS, 10) for number in range(60 if segments == "many" else 6)]
    ends = write(tmp_path, *early, (0, 7), (1, 7), (2, 7), segment_bytes="4096" if segments == "many" else "1000000")
    damage(segments_of(tmp_path, "t")[-1])
    with pytest.raises(LogDamaged):
        recover_topic(topic_directory(tmp_path, "t"))
    report = repair_topic(tmp_path, "t")
    assert not report.is_sound
    assert report.lost or damage is DAMAGES["start changed"]

    async def go_on() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            for partition, end in enumerate(ends):
                old = [number_of(record) for record in await read_all(log, "t", partition)]
                assert old == sorted(set(old))
                assert set(old) <= set(range(end))
                appended = await log.producer.send("t", partition, numbered(1_000, 5))
                assert appended.base_offset >= end
                records = await read_all(log, "t", partition)
                assert [number_of(record) for record in records] == [*old, *range(1_000, 1_005)]
                # who had read everything goes on with what is new, from where it was
                consumer = log.consumer("")
                place = TopicPartition("t", partition)
                consumer.assign([place])
                await consumer.seek(place, end)
                found: list[int] = []
                while len(found) < 5:
                    for fetched in await consumer.poll(100, 5.0):
                        found += [number_of(record) for record in fetched.pack]
                assert found == list(range(1_000, 1_005))

    uvloop.run(go_on())
    reader = open_reader(tmp_path, "t")
    for partition, end in enumerate(ends):
        assert len(reader.read(partition, max(end, reader.watermarks(partition).first))) == 5
    assert repair_topic(tmp_path, "t").is_sound


def test_what_was_never_acknowledged_moves_nothing(tmp_path: Path) -> None:
    ends = write(tmp_path, (0, 10), (1, 10))
    (path,) = segments_of(tmp_path, "t")
    with path.open("ab") as file:
        file.write(b"torn off by a power cut" * 10)
    assert repair_topic(tmp_path, "t").lost == []
    assert recover_topic(path.parent).ends == ends
