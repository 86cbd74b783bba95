"""Reads the partitions of a topic as one stream: what is there in the order of time, then what comes as it comes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import AsyncIterator, Mapping

from penstock._ext.record.segment import Record, RecordPack
from penstock.storage.log.base import Consumer, LogUnavailable, TopicPartition

# A partition with so many records at hand is not asked for more until the others have caught up.
ENOUGH = 20_000
POLL_RECORDS = 5_000
POLL_SECONDS = 1.0
# Kafka may take its time; without an end to it a read of what is gone would never end.
QUIET_SECONDS = 20.0

Span = Mapping[TopicPartition, tuple[int, int]]


class _Stretch:
    """What is still to come of one partition."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.at_hand: deque[Record] = deque()
        self.is_read = False

    def add(self, pack: RecordPack) -> None:
        self.at_hand.extend(record for record in pack if record.offset < self.stop)
        self.is_read = pack.next_offset >= self.stop


class _Merge:
    """The stretches of all partitions: the one whose next record is the oldest is first in a heap."""

    def __init__(self, consumer: Consumer, spans: Span) -> None:
        self._consumer = consumer
        self._paused: set[TopicPartition] = set()
        self.stretches = {partition: _Stretch(stop) for partition, (start, stop) in spans.items() if start < stop}
        self._empty = set(self.stretches)
        self._heap: list[tuple[int, TopicPartition]] = []

    async def take_oldest(self) -> tuple[TopicPartition, Record] | None:
        if self._empty:
            await self._fill()
        if not self._heap:
            return None
        partition = heapq.heappop(self._heap)[1]
        stretch = self.stretches[partition]
        record = stretch.at_hand.popleft()
        if stretch.at_hand:
            self._queue(partition)
        elif not stretch.is_read:
            self._empty.add(partition)
        return partition, record

    def _queue(self, partition: TopicPartition) -> None:
        heapq.heappush(self._heap, (self.stretches[partition].at_hand[0].timestamp, partition))

    async def _fill(self) -> None:
        """Until it is known of each partition which record is its next, or that there is none."""
        quiet = 0
        while self._empty:
            self._pause_full()
            fetched = await self._consumer.poll(POLL_RECORDS, POLL_SECONDS)
            for one in fetched:
                self.stretches[TopicPartition(one.topic, one.partition)].add(one.pack)
            for partition in list(self._empty):
                stretch = self.stretches[partition]
                # what compaction removed at the end of a span never comes: the position tells that it was passed
                stretch.is_read = stretch.is_read or self._consumer.position(partition) >= stretch.stop
                if stretch.at_hand or stretch.is_read:
                    self._empty.remove(partition)
                if stretch.at_hand:
                    self._queue(partition)
            quiet = 0 if fetched else quiet + 1
            if quiet * POLL_SECONDS >= QUIET_SECONDS:
                raise LogUnavailable(f"no more records came within {QUIET_SECONDS:.0f} s, though there are some")

    def _pause_full(self) -> None:
        full = {p for p, s in self.stretches.items() if s.is_read or len(s.at_hand) >= ENOUGH}
        if full != self._paused:
            self._consumer.pause(full - self._paused)
            self._consumer.resume(self._paused - full)
            self._paused = full


async def read_span(consumer: Consumer, spans: Span) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """The records of the spans, oldest first, those of a partition always in its own order."""
    merge = _Merge(consumer, spans)
    consumer.assign(sorted(merge.stretches))
    for partition in merge.stretches:
        await consumer.seek(partition, spans[partition][0])
    while (found := await merge.take_oldest()) is not None:
        yield found


async def read_on(consumer: Consumer, spans: Span) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """What comes behind the spans, for ever."""
    consumer.assign(sorted(spans))
    consumer.resume(spans)
    for partition, (_, stop) in spans.items():
        await consumer.seek(partition, stop)
    while True:
        for fetched in await consumer.poll(POLL_RECORDS, POLL_SECONDS):
            for record in fetched.pack:
                yield TopicPartition(fetched.topic, fetched.partition), record
