"""Records read again by their offsets: of messages that are delivered another time, of dead letters, for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Consumer, Log, LogError, TopicPartition

READERS = 4
AT_ONCE = 500
WAIT_SECONDS = 2.0
# Offsets that lie closer are read in one go: a few records too many cost less than another beginning.
NEAR = 256


class Fetcher:
    """A few consumers without a group, lent out; one that is busy with a queue does not keep the others waiting."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._idle: list[Consumer] = []
        self._turns = asyncio.Semaphore(READERS)

    async def fetch(self, topic: str, offsets: Sequence[int]) -> list[RecordPack]:
        """Packs that have these records (in ascending order) and perhaps others; what is gone from the log is not
        among them. Raises LogError."""
        return await self._read_runs(topic, _runs_of(offsets))

    async def read(self, topic: str, offset: int, count: int) -> list[RecordPack]:
        """From the offset on, at most so many records."""
        return await self._read_runs(topic, [(offset, offset + count - 1)]) if count else []

    async def _read_runs(self, topic: str, runs: Iterable[tuple[int, int]]) -> list[RecordPack]:
        packs: list[RecordPack] = []
        async with self._turns:
            consumer = self._idle.pop() if self._idle else self._log.consumer(group="")
            try:
                for first, last in runs:
                    packs += await _read_run(consumer, TopicPartition(topic, 0), first, last)
            except BaseException:
                await consumer.close()
                raise
            self._idle.append(consumer)
        return packs

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for consumer in idle:
            await consumer.close()


def _runs_of(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First and last of those that lie close to each other."""
    at = 0
    while at < len(offsets):
        end = at + 1
        while end < len(offsets) and offsets[end] - offsets[end - 1] <= NEAR:
            end += 1
        yield offsets[at], offsets[end - 1]
        at = end


async def _read_run(consumer: Consumer, place: TopicPartition, first: int, last: int) -> list[RecordPack]:
    packs: list[RecordPack] = []
    await consumer.add({place: first})
    try:
        end = (await consumer.watermarks(place)).end
        last = min(last, end - 1)
        position = first
        while position <= last:
            fetched = await consumer.poll(min(AT_ONCE, last + 1 - position), WAIT_SECONDS)
            if not fetched:
                raise LogError(f"{place.topic}: the record at offset {position} cannot be read now")
            for item in fetched:
                packs.append(item.pack)
                position = item.next_offset
    finally:
        await consumer.remove([place])
    return packs
