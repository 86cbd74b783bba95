"""Damage that a reader of the running log meets is told and counted, until it is gone."""

from __future__ import annotations

from pathlib import Path

import pytest
import uvloop

from penstock._ext.record.segment import scan_batches
from penstock.storage.log.base import LogDamaged, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.local_consumer import LocalConsumer
from tests.support.worlds.embedded import numbered, opened, segments_of

PLACE = TopicPartition("t", 0)


def damage(directory: Path) -> tuple[Path, bytes, int]:
    """Writes a topic of several segments and damages a batch in the middle of a closed one; the segment, what it held,
    and the first damaged offset."""

    async def write() -> None:
        async with opened(directory) as log:
            await log.admin.create("t", 1, {"segment.bytes": "2048"})
            for number in range(30):
                await log.producer.send("t", 0, numbered(20 * number, 20))

    uvloop.run(write())
    path = segments_of(directory, "t")[1]
    data = path.read_bytes()
    batch = [batch for batch in scan_batches(data, 0, True)[0] if batch.count][1]
    path.write_bytes(data[: batch.position + 30] + b"?" + data[batch.position + 31 :])
    return path, data, batch.base_offset


async def read_until_damage(log: EmbeddedLog) -> LocalConsumer:
    consumer = log.consumer("")
    consumer.assign([PLACE])
    while True:
        try:
            await consumer.poll(10_000, 5.0)
        except LogDamaged:
            return consumer


def test_it_is_told_and_counted_once_for_a_partition(tmp_path: Path) -> None:
    path, _, first = damage(tmp_path)

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            assert log.check_readers() is True
            assert log.counters()["damaged_partitions"] == 0
            for _ in range(2):
                await read_until_damage(log)
            told = str(log.check_readers())
            assert told.startswith(f"t[0] from offset {first} on: {path} is damaged at byte ")
            assert "`penstock log repair t --data-dir " in told
            assert log.counters()["damaged_partitions"] == 1
            assert log.check() is True  # it still takes records
            behind = log.consumer("")  # and gives those behind the damage
            behind.assign([PLACE])
            await behind.seek(PLACE, 599)
            assert (await behind.poll(10, 5.0))[0].pack.base_offset == 599
            assert log.counters()["damaged_partitions"] == 1

    uvloop.run(run())


def test_it_is_over_when_the_records_can_be_read_again(tmp_path: Path) -> None:
    path, whole, first = damage(tmp_path)

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            consumer = await read_until_damage(log)
            path.write_bytes(whole)  # a copy of the file was put back
            fetched = await consumer.poll(10_000, 5.0)
            assert fetched[0].pack.base_offset == first
            assert log.check_readers() is True
            assert log.counters()["damaged_partitions"] == 0

    uvloop.run(run())


def test_a_topic_of_the_same_name_has_nothing_of_it(tmp_path: Path) -> None:
    """Nobody need look at the log between the end of the one and the beginning of the other."""
    damage(tmp_path)

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            await read_until_damage(log)
            await log.admin.delete("t")
            await log.admin.create("t", 1)
            assert log.check_readers() is True
            assert log.counters()["damaged_partitions"] == 0

    uvloop.run(run())


def test_a_partition_that_is_not_there_has_none(tmp_path: Path) -> None:
    """Else nobody could read any metric."""

    async def run() -> None:
        async with opened(tmp_path) as log:
            await log.admin.create("t", 1)
            log.damage.note(TopicPartition("t", 3), 7, LogDamaged("damaged", "repair it"))
            assert log.counters()["damaged_partitions"] == 0

    uvloop.run(run())


@pytest.mark.parametrize("way", ["truncate", "delete"])
def test_it_is_over_when_the_records_are_gone(tmp_path: Path, way: str) -> None:
    _, _, first = damage(tmp_path)

    async def run() -> None:
        async with opened(tmp_path, cache_bytes=0) as log:
            await read_until_damage(log)
            assert log.counters()["damaged_partitions"] == 1
            if way == "delete":
                await log.admin.delete("t")
            else:
                await log.admin.truncate(PLACE, first + 20)
            assert log.check_readers() is True
            assert log.counters()["damaged_partitions"] == 0

    uvloop.run(run())
