"""What the memory provider has of its own: its bounds."""

from __future__ import annotations

import time

import pytest
import uvloop

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import LogUnavailable, TopicPartition, Watermarks, read_state
from penstock.storage.log.memory import MemoryLog
from tests.support.worlds.embedded import keyed, numbered

PARTITION = TopicPartition("t", 0)


def test_a_full_topic_refuses() -> None:
    async def run() -> None:
        log = MemoryLog(max_topic_bytes=10_000)
        await log.start()
        await log.admin.create("t", 1)
        await log.producer.send("t", 0, numbered(0, 9, 1_000))
        with pytest.raises(LogUnavailable, match="full"):
            await log.producer.send("t", 0, numbered(0, 1, 2_000))
        assert log.watermarks(PARTITION) == Watermarks(0, 9)
        await log.admin.truncate(PARTITION, 9)
        assert (await log.producer.send("t", 0, numbered(0, 1, 2_000))).base_offset == 9
        await log.close()

    uvloop.run(run())


@pytest.mark.parametrize(
    ("properties", "first"),
    [({"retention.bytes": "2500"}, 16), ({"retention.messages": "5"}, 14), ({"retention.ms": "1000"}, 10)],
)
def test_the_oldest_go(properties: dict[str, str], first: int) -> None:
    async def run() -> None:
        log = MemoryLog(max_topic_bytes=100_000)
        await log.start()
        await log.admin.create("t", 1, properties)
        now = int(time.time() * 1000)
        for number in range(10):
            await log.producer.send("t", 0, numbered(2 * number, 2, 500, now - (10_000 if number < 5 else 0)))
        assert log.watermarks(PARTITION) == Watermarks(first, 20)
        await log.close()

    uvloop.run(run())


def test_compaction_makes_room() -> None:
    async def run() -> None:
        log = MemoryLog(max_topic_bytes=3_000_000)
        await log.start()
        await log.admin.create("t", 1, {"cleanup.policy": "compact"})
        for number in range(10_000):
            await log.producer.send("t", 0, keyed((b"key%d" % (number % 10), b"%d" % number + b"." * 1_000)))
        state: dict[bytes | None, bytes | None] = {}
        assert await read_state(log, "t", state.__setitem__) < 3_000
        assert len(state) == 10
        assert log.counters()["bytes"] < 3_000_000
        await log.close()

    uvloop.run(run())


class ColdLog(MemoryLog):
    """Records of partition 1 are never at hand, as those of a log on a disk that is not in the page cache."""

    def try_read(
        self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int
    ) -> list[RecordPack] | None:
        if partition.partition == 1:
            return None
        return super().try_read(partition, offset, max_records, max_bytes)

    async def read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        return super().try_read(partition, offset, max_records, max_bytes)


def test_a_partition_that_has_to_be_waited_for_has_its_turn() -> None:
    """Before, it had none while the others had something at hand, however long: one busy client made another wait."""

    async def run() -> None:
        log = ColdLog()
        await log.start()
        await log.admin.create("t", 3)
        for partition in range(3):
            await log.producer.send("t", partition, numbered(0, 1_000, 10))
        consumer = log.consumer("")
        await consumer.add({TopicPartition("t", partition): 0 for partition in range(3)})
        read = [0, 0, 0]
        for _ in range(30):
            for fetched in await consumer.poll(20, 5.0, 10):
                read[fetched.partition] += fetched.pack.count
        assert sum(read) == 600
        assert min(read) >= 150
        await consumer.close()
        await log.close()

    uvloop.run(run())
