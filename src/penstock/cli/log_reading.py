"""Reads the partitions of a topic as one stream: what is there now in the order of time, then what comes as it comes."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping

from penstock._ext.segment import Record
from penstock.logs.base import Consumer, TopicPartition

# A partition with so many records at hand is not asked for more until the others have caught up.
ENOUGH = 20_000
POLL_RECORDS = 5_000
POLL_SECONDS = 1.0

Span = Mapping[TopicPartition, tuple[int, int]]


class _Stretch:
    """What is still to come of one partition."""

    def __init__(self, stop: int) -> None:
        self.stop = stop
        self.at_hand: deque[Record] = deque()
        self.is_read = False

    def add(self, records: list[Record], next_offset: int) -> None:
        self.at_hand.extend(record for record in records if record.offset < self.stop)
        self.is_read = next_offset >= self.stop


async def read_span(consumer: Consumer, spans: Span) -> AsyncIterator[tuple[TopicPartition, Record]]:
    """The records of the spans, oldest first, those of a partition always in its own order."""
    stretches = {partition: _Stretch(stop) for partition, (start, stop) in spans.items() if start < stop}
    consumer.assign(sorted(stretches))
    for partition in stretches:
        await consumer.seek(partition, spans[partition][0])
    paused: set[TopicPartition] = set()
    while stretches:
        while any(not stretch.at_hand and not stretch.is_read for stretch in stretches.values()):
            full = {p for p, s in stretches.items() if s.is_read or len(s.at_hand) >= ENOUGH}
            consumer.pause(full - paused)
            consumer.resume((paused - full) & stretches.keys())
            paused = full
            for fetched in await consumer.poll(POLL_RECORDS, POLL_SECONDS):
                stretch = stretches.get(TopicPartition(fetched.topic, fetched.partition))
                if stretch is not None:
                    stretch.add(list(fetched.pack), fetched.next_offset)
        stretches = {partition: stretch for partition, stretch in stretches.items() if stretch.at_hand}
        if stretches:
            oldest = min(stretches, key=lambda partition: (stretches[partition].at_hand[0].timestamp, partition))
            stretch = stretches[oldest]
            yield oldest, stretch.at_hand.popleft()
            if stretch.is_read and not stretch.at_hand:
                del stretches[oldest]


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
