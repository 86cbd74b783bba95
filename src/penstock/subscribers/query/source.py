"""The log topic every query topic reads: its partitions, where they begin and end, and readers for who is behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.storage.log.base import (
    EARLIEST,
    Consumer,
    Log,
    LogError,
    OffsetOutOfRange,
    TopicPartition,
    Watermarks,
)
from penstock_client.errors import NotFound, OutOfRange, Unavailable

log = get_logger("penstock.datasub")

# How old the ends of a partition may be in an answer; older ones are asked for again, beside the answer.
FRESH_SECONDS = 0.25
# Partitions may be added to a topic of Kafka.
COUNT_SECONDS = 5.0
# Records of one slice of catching up: others get their turn between slices.
SLICE_RECORDS = 500
# A slice ends early with these many bytes of rows or this time: records may be large, and queries slow.
SLICE_BYTES = 8 << 20
SLICE_NS = 10_000_000
CLOSE_SECONDS = 2.0
# How long one waits for its turn to read the log.
TURN_SECONDS = 30.0


class Source:
    """Everything but the live pass asks here about the log."""

    def __init__(self, provider: Log, topic: str, max_readers: int) -> None:
        self.log = provider
        self.topic = topic
        self.count = 0  # of partitions
        self._counted_at = 0.0
        self._asker: Consumer | None = None
        self._marks: dict[int, tuple[float, Watermarks]] = {}
        self._asking: dict[int, asyncio.Task[Watermarks]] = {}
        self.readers = Readers(provider, max_readers)
        # How far the live pass is: it knows of an end before anybody asks.
        self.evaluated_to: Callable[[int], int] = lambda partition: -1

    async def start(self) -> None:
        """Raises LogError while the log cannot be asked."""
        self._counted_at = asyncio.get_running_loop().time()
        self.count = (await self.log.admin.describe(self.topic)).partitions
        if self._asker is None:
            self._asker = self.log.consumer(group="")

    async def partitions(self) -> list[int]:
        now = asyncio.get_running_loop().time()
        if not self.count or now - self._counted_at > COUNT_SECONDS:
            try:
                await self.start()
            except LogError as error:
                if not self.count:
                    raise Unavailable(f"the log cannot be asked for its partitions: {error}") from None
        return list(range(self.count))

    async def close(self) -> None:
        for task in self._asking.values():
            task.cancel()
        await self.readers.close()
        if self._asker is not None:
            await close_consumer(self._asker)

    def place(self, partition: int) -> TopicPartition:
        if not 0 <= partition < self.count:
            raise NotFound(f"there is no partition {partition}: the source has {self.count}, counted from 0")
        return TopicPartition(self.topic, partition)

    async def watermarks(self, partition: int) -> tuple[int, int]:
        marks = await self.marks(partition)
        return marks.first, marks.end

    def last_seen(self, partition: int) -> tuple[int, int] | None:
        known = self._marks.get(partition)
        return None if known is None else (known[1].first, max(known[1].end, self.evaluated_to(partition)))

    async def marks(self, partition: int) -> Watermarks:
        """Begin and end as they are now."""
        if self._asker is None:
            await self.partitions()
        assert self._asker is not None
        place = self.place(partition)
        task = self._asking.get(partition)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._ask(self._asker, place))
            task.add_done_callback(_forget_failure)
            self._asking[partition] = task
        try:
            return await asyncio.shield(task)
        except LogError as error:
            raise Unavailable(f"the log cannot say where partition {partition} ends: {error}") from None

    async def _ask(self, asker: Consumer, place: TopicPartition) -> Watermarks:
        try:
            marks = await asker.watermarks(place)
            self._marks[place.partition] = (asyncio.get_running_loop().time(), marks)
            return marks
        finally:
            self._asking.pop(place.partition, None)

    async def recent_marks(self, partition: int) -> Watermarks:
        """As they were a moment ago: an answer does not wait for the log because of them."""
        known = self._marks.get(partition)
        if known is None:
            return await self.marks(partition)
        asked_at, marks = known
        marks = Watermarks(marks.first, max(marks.end, self.evaluated_to(partition)))
        loop = asyncio.get_running_loop()
        if loop.time() - asked_at > FRESH_SECONDS and partition not in self._asking and self._asker is not None:
            task = self._asking[partition] = loop.create_task(self._ask(self._asker, self.place(partition)))
            task.add_done_callback(_forget_failure)
        return marks

    async def refresh(self) -> None:
        """So that the views and the metrics know the ends also when nobody fetches."""
        with contextlib.suppress(Unavailable):
            for partition in await self.partitions():
                await self.recent_marks(partition)

    async def offsets_at(self, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        """Of each partition and time in ms, the first offset at or after it; the end when there is none."""
        partitions = {partition: self.place(partition) for partition, _ in places}
        consumer = self.log.consumer(group="")
        try:
            await consumer.add(dict.fromkeys(partitions.values(), EARLIEST))
            return {place: await consumer.seek_to_time(partitions[place[0]], place[1]) for place in places}
        except LogError as error:
            raise Unavailable(f"the log cannot look for times: {error}") from None
        finally:
            await close_consumer(consumer)


class Reader:
    """A consumer of the log that stands at one place."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.place: TopicPartition | None = None
        self.position = -1
        self.idle_since = 0.0

    async def go_to(self, place: TopicPartition, offset: int) -> None:
        if (self.place, self.position) == (place, offset):
            return
        if self.place is not None:
            old, self.place = self.place, None
            await self._consumer.remove([old])
        await self._consumer.add({place: offset})
        self.place, self.position = place, offset

    async def read(self, timeout: float) -> list[RecordPack]:
        """The next slice, empty when the time is over. Raises OutOfRange when it is not in the log any more."""
        try:
            fetched = await self._consumer.poll(SLICE_RECORDS, timeout)
        except OffsetOutOfRange as error:
            raise out_of_range(self.position, error.first, error.end) from None
        except LogError as error:
            raise Unavailable(f"the log cannot be read: {error}") from None
        if fetched:
            self.position = fetched[-1].next_offset
        return [item.pack for item in fetched]

    async def close(self) -> None:
        await close_consumer(self._consumer)


class Readers:
    """As many as a setting allows; who wants one more waits. Those that are free stay where they are for a while: the
    next fetch of the same consumer usually goes on there."""

    IDLE_SECONDS = 10.0

    def __init__(self, provider: Log, most: int) -> None:
        self._log = provider
        self._free: list[Reader] = []
        self._turns = asyncio.Semaphore(most)
        self.in_use = 0

    @asynccontextmanager
    async def at(self, place: TopicPartition, offset: int, seconds: float = TURN_SECONDS) -> AsyncIterator[Reader]:
        """A reader that stands there. Raises Unavailable, also when none is free within the time."""
        try:
            async with asyncio.timeout(seconds):
                await self._turns.acquire()
        except TimeoutError:
            raise Unavailable("too many consumers read the log at once (data_subscription.max_readers)") from None
        self.in_use += 1
        reader = self._choose(place, offset)
        is_usable = False
        try:
            try:
                await reader.go_to(place, offset)
            except LogError as error:
                raise Unavailable(f"the log cannot be read: {error}") from None
            yield reader
            is_usable = True
        finally:
            self.in_use -= 1
            self._turns.release()
            if is_usable:
                reader.idle_since = asyncio.get_running_loop().time()
                self._free.append(reader)
            else:
                await reader.close()

    def _choose(self, place: TopicPartition, offset: int) -> Reader:
        for number, reader in enumerate(self._free):
            if reader.place == place and reader.position == offset:
                return self._free.pop(number)
        return self._free.pop(0) if self._free else Reader(self._log.consumer(group="", auto_offset_reset="none"))

    async def sweep(self, now: float) -> None:
        """Closes those that nobody has used for a while."""
        idle = [reader for reader in self._free if now - reader.idle_since > self.IDLE_SECONDS]
        self._free = [reader for reader in self._free if reader not in idle]
        for reader in idle:
            await reader.close()

    async def close(self) -> None:
        free, self._free = self._free, []
        for reader in free:
            await reader.close()


def out_of_range(offset: int, begin: int, end: int) -> OutOfRange:
    error = OutOfRange(f"offset {offset} is not in the log: it has {begin} to {end}")
    error.begin, error.end = begin, end
    return error


async def close_consumer(consumer: Consumer) -> None:
    with contextlib.suppress(LogError, TimeoutError):
        async with asyncio.timeout(CLOSE_SECONDS):
            await consumer.close()


def _forget_failure(task: asyncio.Task[Watermarks]) -> None:
    """The next answer asks again."""
    if not task.cancelled():
        task.exception()
