"""The consumer of the providers that keep the records in this process: embedded and memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container, Iterable, Mapping
from typing import Literal, Protocol

from penstock._ext.record.segment import RecordPack, find_active
from penstock.core.logging import get_logger
from penstock.storage.log.base import (
    EARLIEST,
    LATEST,
    Committed,
    Fetched,
    LogError,
    OffsetOutOfRange,
    OnPartitions,
    TopicPartition,
    Watermarks,
    check_new,
)
from penstock.storage.log.groups import GroupCoordinator, Member

log = get_logger("penstock.logs")

# A poll gives no more than this of one partition, so that large records do not fill the memory.
LARGEST_FETCH = 1_048_576


class Place:
    """A partition that a consumer has."""

    __slots__ = ("consumer", "is_gone", "is_paused", "is_queued", "partition", "position")

    def __init__(self, consumer: LocalConsumer, partition: TopicPartition, position: int | None) -> None:
        self.consumer = consumer
        self.partition = partition
        self.position = position  # None until it is asked for
        self.is_paused = False
        self.is_queued = False
        self.is_gone = False


class Watchers:
    """Who is woken when records of a partition become readable, or when it goes."""

    def __init__(self) -> None:
        self._of: dict[str, dict[int, set[Place]]] = {}

    def add(self, place: Place) -> None:
        topic, number = place.partition
        self._of.setdefault(topic, {}).setdefault(number, set()).add(place)

    def discard(self, place: Place) -> None:
        topic, number = place.partition
        of_topic = self._of.get(topic, {})
        places = of_topic.get(number)
        if places is not None:
            places.discard(place)
            if not places:
                del of_topic[number]
                if not of_topic:
                    del self._of[topic]

    def has_active(self, topic: str, partitions: Iterable[int]) -> bool:
        """Whether `wake` would wake anybody."""
        of_topic = self._of.get(topic)
        if of_topic is None:
            return False
        return bool(find_active(of_topic, partitions))

    def wake(self, topic: str, partitions: Iterable[int]) -> None:
        of_topic = self._of.get(topic)
        if of_topic is None:
            return
        for place in find_active(of_topic, partitions):
            place.consumer.look_at(place)


class LocalSource(Protocol):
    """What the consumer needs of its provider. On the loop only."""

    @property
    def coordinator(self) -> GroupCoordinator: ...
    def watermarks(self, partition: TopicPartition) -> Watermarks:
        """Raises TopicNotFound."""
        ...

    def try_read(
        self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int
    ) -> list[RecordPack] | None:
        """Records from the offset on that are at hand; None = they must be fetched with `read`."""
        ...

    async def read(
        self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int
    ) -> list[RecordPack]: ...

    async def find_time(self, partition: TopicPartition, timestamp_ms: int) -> int: ...
    @property
    def watchers(self) -> Watchers: ...
    def get_committed(self, group: str, partition: TopicPartition) -> Committed | None: ...
    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None: ...
    def forget(self, consumer: LocalConsumer) -> None: ...


class LocalConsumer:
    """See Consumer in base.py. A poll looks only at the partitions in the queue: those of which something may have
    come since they were read to their end, however many others there are."""

    def __init__(
        self,
        source: LocalSource,
        group: str,
        instance_id: str | None,
        auto_offset_reset: str,
    ) -> None:
        if auto_offset_reset not in {"earliest", "latest", "none"}:
            raise ValueError(f"auto.offset.reset {auto_offset_reset!r} is not earliest, latest or none")
        self._source = source
        self._group = group
        self._instance_id = instance_id
        self._reset = auto_offset_reset
        self._places: dict[TopicPartition, Place] = {}
        self._queue: deque[Place] = deque()
        self._member: Member | None = None
        self._on_assigned: OnPartitions | None = None
        self._on_revoked: OnPartitions | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._has_news = False
        self._is_polling = False
        self._is_closed = False
        self._failure: LogError | None = None
        self.resets = 0

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        if self._member is not None:
            raise LogError("the consumer has subscribed: its group decides what it has")
        wanted = set(partitions)
        self._drop([partition for partition in self._places if partition not in wanted])
        self._add(dict.fromkeys(partition for partition in sorted(wanted) if partition not in self._places))

    async def add(self, starts: Mapping[TopicPartition, int]) -> None:
        self._check_open()
        if self._member is not None:
            raise LogError("the consumer has subscribed: its group decides what it has")
        check_new(starts, self._places)
        self._add({partition: self._resolve(partition, start) for partition, start in starts.items()})
        self.wake()

    async def remove(self, partitions: Iterable[TopicPartition]) -> None:
        self._check_open()
        if self._member is not None:
            raise LogError("the consumer has subscribed: its group decides what it has")
        self._drop(partitions)

    def subscribe(
        self, topics: Iterable[str], on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None
    ) -> None:
        self._check_open()
        if not self._group:
            raise LogError("a consumer without a group cannot subscribe, only be assigned partitions")
        if self._member is None and self._places:
            raise LogError("the consumer has partitions assigned to it: it cannot subscribe as well")
        self._leave()
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._member = self._source.coordinator.join(self._group, frozenset(topics), self.wake, self._instance_id)

    async def poll(
        self, max_records: int = 500, timeout: float = 1.0, max_per_partition: int | None = None
    ) -> list[Fetched]:
        if max_records < 1 or (max_per_partition is not None and max_per_partition < 1):
            raise ValueError("a poll of no records makes no sense")
        if self._is_polling:
            raise LogError("the consumer is polled already")
        self._is_polling = True
        try:
            return await self._poll(max_records, timeout, max_per_partition or max_records)
        finally:
            self._is_polling = False

    async def _poll(self, max_records: int, timeout: float, max_per_partition: int) -> list[Fetched]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        # who polls in a loop and always finds something must not keep the others from their turn; before the records
        # are taken, because a cancellation here must not lose any
        await asyncio.sleep(0)
        while True:
            self._check_open()
            self._has_news = False
            self._rebalance()
            fetched = await self._fetch(max_records, max_per_partition)
            if fetched:
                return fetched
            remaining = deadline - loop.time()
            if remaining <= 0:
                return []
            await self._wait(loop, remaining)

    def wake(self) -> None:
        """Something may have changed: records, partitions, or the end."""
        self._has_news = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def look_at(self, place: Place) -> None:
        """The place may have records now, or is gone from the log. A paused place does not wake a waiting poll;
        `resume` looks at it again."""
        self._enqueue(place)
        if not place.is_paused:
            self.wake()

    def _enqueue(self, place: Place) -> None:
        if not place.is_queued:
            place.is_queued = True
            self._queue.append(place)

    async def _wait(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        if self._has_news:
            return
        self._waiter = loop.create_future()
        timer = loop.call_later(seconds, self.wake)
        if self._member is not None:
            self._member.is_waiting = True
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None
            if self._member is not None:
                self._member.is_waiting = False

    async def _fetch(self, max_records: int, max_per_partition: int) -> list[Fetched]:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        fetched: list[Fetched] = []
        late: list[Place] = []
        left = max_records
        # one turn for each: who may have more goes to the end of the queue before it is read
        for _ in range(len(self._queue)):
            if left <= 0 or not self._queue:
                break
            place = self._queue.popleft()
            place.is_queued = False
            if place.is_paused or place.is_gone:
                continue
            try:
                packs = await self._read(place, min(left, max_per_partition), can_wait=not fetched)
            except LogError as error:
                self._enqueue(place)
                error.partition = place.partition
                if not fetched:
                    raise
                # the positions of what was fetched have moved on, so it must be given; the error comes next time
                self._failure = error
                break
            if packs is None:
                late.append(place)
                continue
            for pack in packs:
                place.position = pack.next_offset
                self._has_news = True  # an empty pack moves on over a gap, and records may follow
                if pack.count:
                    left -= pack.count
                    fetched.append(Fetched(*place.partition, pack))
        # Who was passed over is the first of the next poll: else it waits as long as others always have something.
        for place in reversed(late):
            if not place.is_queued:
                place.is_queued = True
                self._queue.appendleft(place)
        return fetched

    async def _read(self, place: Place, max_records: int, *, can_wait: bool) -> list[RecordPack] | None:
        """None: they are on the disk, and what is at hand of others need not wait for it."""
        position, end = self._locate(place)
        if position >= end:
            return []
        partition = place.partition
        packs = self._source.try_read(partition, position, max_records, LARGEST_FETCH)
        if packs is None and not can_wait:
            return None
        self._enqueue(place)
        if packs is None:
            packs = await self._source.read(partition, position, max_records, LARGEST_FETCH)
            if place.position != position or place.is_paused or place.is_gone or self._must_yield():
                return []
        return packs

    def _must_yield(self) -> bool:
        """Whether a rebalance or the end came while the disk was read: then the loop of poll starts over."""
        member = self._member
        return self._is_closed or (member is not None and (bool(member.owned - member.target) or bool(member.lost)))

    def _locate(self, place: Place) -> tuple[int, int]:
        """The position, moved to where `auto.offset.reset` says if there are no records there (any more); the end."""
        partition = place.partition
        marks = self._source.watermarks(partition)
        position = place.position
        if position is None:
            committed = self._source.get_committed(self._group, partition) if self._group else None
            position = committed.offset if committed else self._start_of(partition, marks)
        if not marks.first <= position <= marks.end:
            if self._reset == "none":
                raise OffsetOutOfRange(
                    f"offset {position} of {partition.topic}[{partition.partition}] is not within "
                    f"{marks.first} to {marks.end}",
                    marks.first,
                    marks.end,
                )
            moved = self._start_of(partition, marks)
            log.warning(
                "position out of range",
                group=self._group,
                topic=partition.topic,
                partition=partition.partition,
                position=position,
                moved_to=moved,
            )
            self.resets += 1
            position = moved
        place.position = position
        return position, marks.end

    def _start_of(self, partition: TopicPartition, marks: Watermarks) -> int:
        if self._reset == "none":
            raise OffsetOutOfRange(
                f"group {self._group!r} has no offset for {partition.topic}[{partition.partition}]",
                marks.first,
                marks.end,
            )
        return marks.first if self._reset == "earliest" else marks.end

    def _rebalance(self) -> None:
        member = self._member
        if member is None:
            return
        if member.is_fenced:
            self._lose(list(self._places))
            raise self._fenced()
        groups = self._source.coordinator
        revoked = groups.to_revoke(member)
        if revoked:
            self._lose(revoked)
            groups.revoked(self._group, member, revoked)
        assigned = groups.take(self._group, member)
        if assigned:
            self._add(dict.fromkeys(assigned))
            if self._on_assigned is not None:
                self._on_assigned(assigned)

    def _lose(self, partitions: list[TopicPartition]) -> None:
        partitions = [partition for partition in partitions if partition in self._places]
        try:
            if partitions and self._on_revoked is not None:
                self._on_revoked(partitions)
        finally:
            self._drop(partitions)

    def _leave(self) -> None:
        member, self._member = self._member, None
        if member is not None:
            try:
                self._lose(list(self._places))
            finally:
                self._source.coordinator.leave(self._group, member)

    def _add(self, starts: Mapping[TopicPartition, int | None]) -> None:
        for partition, start in starts.items():
            place = self._places[partition] = Place(self, partition, start)
            self._source.watchers.add(place)
            self._enqueue(place)
        self._has_news = True

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            place = self._places.pop(partition, None)
            if place is not None:
                place.is_gone = True
                self._source.watchers.discard(place)

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._places)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        for place in [self._assigned(partition) for partition in partitions]:
            place.is_paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            place = self._places.get(partition)
            if place is not None and place.is_paused:
                place.is_paused = False
                self.look_at(place)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        place = self._assigned(partition)
        place.position = self._resolve(partition, offset)
        self.look_at(place)

    def _resolve(self, partition: TopicPartition, offset: int) -> int:
        """Raises TopicNotFound; where the offset lies is looked at when it is read."""
        marks = self._source.watermarks(partition)
        if offset in {EARLIEST, LATEST}:
            return marks.first if offset == EARLIEST else marks.end
        if offset < 0:
            raise ValueError(f"{offset} is not an offset")
        return offset

    async def seek_to_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        self._assigned(partition)
        offset = await self._source.find_time(partition, timestamp_ms)
        await self.seek(partition, offset)
        return offset

    def position(self, partition: TopicPartition) -> int:
        return self._locate(self._assigned(partition))[0]

    async def commit(self, offsets: Mapping[TopicPartition, Committed] | None = None) -> None:
        self._check_open()
        if not self._group:
            raise LogError("a consumer without a group has nothing to commit to")
        if offsets is None:
            offsets = {partition: Committed(self._locate(place)[0]) for partition, place in self._places.items()}
        for partition, committed in offsets.items():
            if committed.offset < 0:
                raise ValueError(f"{committed.offset} of {partition} is not an offset")
        self._check_held(offsets)
        if offsets:
            await self._source.commit(self._group, offsets)

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]:
        return {
            partition: self._source.get_committed(self._group, partition) if self._group else None
            for partition in partitions
        }

    async def watermarks(self, partition: TopicPartition) -> Watermarks:
        return self._source.watermarks(partition)

    async def lag(self) -> dict[TopicPartition, int]:
        located = {partition: self._locate(place) for partition, place in self._places.items()}
        return {partition: end - position for partition, (position, end) in located.items()}

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._leave()
        self._drop(list(self._places))
        self._queue.clear()
        self._source.forget(self)
        self.wake()

    async def __aenter__(self) -> LocalConsumer:
        return self

    async def __aexit__(self, *_: object) -> Literal[False]:
        await self.close()
        return False

    def _assigned(self, partition: TopicPartition) -> Place:
        place = self._places.get(partition)
        if place is None:
            raise LogError(f"{partition.topic}[{partition.partition}] is not assigned to this consumer")
        return place

    def _check_held(self, partitions: Container[TopicPartition]) -> None:
        """Raises LogError for what was taken away without a poll that told so: whoever has it now has gone on."""
        member = self._member
        if member is None:
            return
        if member.is_fenced:
            raise self._fenced()
        lost = next((partition for partition in member.lost if partition in partitions), None)
        if lost is not None:
            raise LogError(f"{lost.topic}[{lost.partition}] went to another consumer: this one did not poll in time")

    def _fenced(self) -> LogError:
        return LogError(f"another consumer has taken the place of instance {self._instance_id!r}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise LogError("the consumer is closed")
