"""Reads the partitions of a topic as one stream: what is there in the order of time, then what comes as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping

from penstock._ext.segment import Record, RecordPack
from penstock.logs.base import Consumer, LogUnavailable, TopicPartition

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
    """The stretches of all partitions, filled until the oldest record of all is known."""

    def __init__(self, consumer: Consumer, spans: Span) -> None:
        self._consumer = consumer
        self._paused: set[TopicPartition] = set()
        self.stretches = {partition: _Stretch(stop) for partition, (start, stop) in spans.items() if start < stop}

    async def fill(self) -> None:
        quiet = 0
        while any(not stretch.at_hand and not stretch.is_read for stretch in self.stretches.values()):
            self._pause_full()
            fetched = await self._consumer.poll(POLL_RECORDS, POLL_SECONDS)
            for one in fetched:
                stretch = self.stretches.get(TopicPartition(one.topic, one.partition))
                if stretch is not None:
                    stretch.add(one.pack)
            self._notice_gaps()
            quiet = 0 if fetched else quiet + 1
            if quiet * POLL_SECONDS >= QUIET_SECONDS:
                raise LogUnavailable(f"no more records came within {QUIET_SECONDS:.0f} s, though there are some")

    def _pause_full(self) -> None:
        full = {p for p, s in self.stretches.items() if s.is_read or len(s.at_hand) >= ENOUGH}
        if full != self._paused:
            self._consumer.pause(full - self._paused)
            self._consumer.resume((self._paused - full) & self.stretches.keys())
            self._paused = full

    def _notice_gaps(self) -> None:
        """What compaction removed at the end of a span never comes: the position tells that it was passed."""
        for partition, stretch in self.stretches.items():
            stretch.is_read = stretch.is_read or self._consumer.position(partition) >= stretch.stop

    def take_oldest(self) -> tuple[TopicPartition, Record] | None:
        self.stretches = {partition: stretch for partition, stretch in self.stretches.items() if stretch.at_hand}
        if not self.stretches:
            return None
        oldest = min(self.stretches, key=lambda partition: (self.stretches[partition].at_hand[0].timestamp, partition))
        return oldest, self.stretches[oldest].at_hand.popleft()


async def read_span(consumer: Consumer, spans: Span) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """The records of the spans, oldest first, those of a partition always in its own order."""
    merge = _Merge(consumer, spans)
    consumer.assign(sorted(merge.stretches))
    for partition in merge.stretches:
        await consumer.seek(partition, spans[partition][0])
    while True:
        await merge.fill()
        found = merge.take_oldest()
        if found is None:
            return
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
