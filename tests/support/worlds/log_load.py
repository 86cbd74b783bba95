"""A load on a log that remembers what was acknowledged, and the check that all of it is there."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import EARLIEST, Appended, Log, LogError, TopicPartition


def pack_of(*values: bytes) -> RecordPack:
    pack = RecordPack()
    pack.extend(values)
    return pack


class Load:
    """Appends numbered records to all partitions, a pack at a time each, until it is stopped."""

    def __init__(self, log: Log, topic: str, partitions: int, records: int = 20, pause: float = 0.002) -> None:
        self._log = log
        self._topic = topic
        self._partitions = partitions
        self._records = records
        self._pause = pause
        self._is_running = True
        self._numbers = [0] * partitions
        self._under_way = 0
        self.acknowledged: dict[int, list[Appended]] = defaultdict(list)
        self.values: dict[tuple[int, int], bytes] = {}
        self.failures: list[LogError] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def count(self) -> int:
        return len(self.values)

    async def stop(self) -> None:
        """Appends no more and waits for every answer."""
        self._is_running = False
        await self._task
        async with asyncio.timeout(60):
            while self._under_way:  # noqa: ASYNC110 - an answer may be one of many hundred callbacks
                await asyncio.sleep(0.01)

    async def reach(self, count: int, seconds: float = 60.0) -> None:
        """Until so many records more are acknowledged."""
        target = self.count + count
        async with asyncio.timeout(seconds):
            while self.count < target:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)

    async def _run(self) -> None:
        while self._is_running:
            for partition in range(self._partitions):
                if self._under_way < 400:
                    self._append(partition)
            await asyncio.sleep(self._pause)

    def _append(self, partition: int) -> None:
        first = self._numbers[partition]
        self._numbers[partition] += self._records
        values = [b"%d-%d" % (partition, number) for number in range(first, first + self._records)]
        self._under_way += 1

        def on_done(result: Appended | LogError) -> None:
            self._under_way -= 1
            if isinstance(result, LogError):
                self.failures.append(result)
                return
            self.acknowledged[partition].append(result)
            for number, value in enumerate(values):
                self.values[partition, result.base_offset + number] = value

        self._log.producer.append(self._topic, partition, pack_of(*values), on_done)


async def read_all(log: Log, topic: str, partitions: int) -> dict[int, list[tuple[int, bytes]]]:
    """Offsets and values of everything in the topic now."""
    consumer = log.consumer("")
    chosen = [TopicPartition(topic, number) for number in range(partitions)]
    ends = {one: (await consumer.watermarks(one)).end for one in chosen}
    consumer.assign(chosen)
    for one in chosen:
        await consumer.seek(one, EARLIEST)
    found: dict[int, list[tuple[int, bytes]]] = {number: [] for number in range(partitions)}
    missing = {one for one in chosen if ends[one] > 0}
    async with asyncio.timeout(60):
        while missing:
            for fetched in await consumer.poll(10_000, 1.0):
                found[fetched.partition] += [(record.offset, record.value or b"") for record in fetched.pack]
                if fetched.next_offset >= ends[TopicPartition(topic, fetched.partition)]:
                    missing.discard(TopicPartition(topic, fetched.partition))
    await consumer.close()
    return found


async def assert_nothing_lost(log: Log, topic: str, partitions: int, load: Load) -> None:
    """Every acknowledged record is at the offset it was acknowledged with, nothing is there twice, all is in order."""
    found = await read_all(log, topic, partitions)
    for partition, records in found.items():
        by_offset = dict(records)
        promised = {offset: value for (number, offset), value in load.values.items() if number == partition}
        assert {offset: by_offset.get(offset) for offset in promised} == promised
        numbers = [int(value.rpartition(b"-")[2]) for _, value in records]
        assert numbers == sorted(set(numbers)), "out of order or twice"
        offsets = [result.base_offset for result in load.acknowledged[partition]]
        assert offsets == sorted(offsets), "acknowledged out of order"
