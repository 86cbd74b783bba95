"""One consumer for many lanes: partitions come and go with connections, packs go to their lanes.

The topics of clients are assigned one by one; of a shared topic the partitions are those the consumer group gives to
this node, and those without a lane wait.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.storage.log.base import (
    Committed,
    Consumer,
    LogError,
    OnPartitions,
    TopicNotFound,
    TopicPartition,
    Watermarks,
)

log = get_logger("penstock.application")

POLL_SECONDS = 5.0
RETRY_SECONDS = 1.0
PACKS_AT_ONCE = 40


class PackTaker(Protocol):
    """Who is read for: a client's lane, or a group of a durable queue."""

    is_paused: bool

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def committed(self) -> int:
        """Where reading begins."""
        ...

    @property
    def position(self) -> int:
        """The next offset it wants."""
        ...

    @property
    def has_room(self) -> bool: ...
    def offer(self, packs: list[RecordPack], /) -> bool: ...


L = TypeVar("L", bound=PackTaker)


class PackReader(Generic[L]):
    """Feeds lanes from the log. A lane is read while it has room; what it has not committed is not lost with it."""

    def __init__(
        self, consumer: Consumer, max_records: int, on_packs: Callable[[list[L]], None], *, has_group: bool = True
    ) -> None:
        """`has_group`: whether the consumer has a group whose offsets follow the lanes."""
        self._consumer = consumer
        self._has_group = has_group
        self._max_records = max_records
        self._on_packs = on_packs
        self._lanes: dict[TopicPartition, L] = {}
        self._wanted: dict[TopicPartition, int] = {}
        self._assigned: set[TopicPartition] = set()  # being read
        self._held: set[TopicPartition] = set()  # this node's part of a shared topic
        self._limits: dict[TopicPartition, int] = {}  # nothing after these offsets is committed
        self._changed = asyncio.Event()
        self._is_shared = False
        self._tasks = TaskSet()
        self._warnings = Throttled(log, interval=10.0)

    def start(self) -> None:
        """The partitions are those of the lanes."""
        self._tasks.spawn(self._follow())
        self._tasks.spawn(self._read())

    def start_shared(self, topic: str, on_assigned: OnPartitions, on_revoked: OnPartitions) -> None:
        """The partitions are this node's part of the topic, told to the caller, who has lanes for them or not."""
        self._is_shared = True

        def assigned(partitions: Sequence[TopicPartition]) -> None:
            self._consumer.pause(partitions)  # until there is a lane that says where it begins
            self._held.update(partitions)
            on_assigned(partitions)

        def revoked(partitions: Sequence[TopicPartition]) -> None:
            on_revoked(partitions)
            self._held.difference_update(partitions)
            self._assigned.difference_update(partitions)

        self._consumer.subscribe([topic], assigned, revoked)
        self.start()

    async def committed(self, partition: TopicPartition) -> int | None:
        """What the group has committed; another node may have been here."""
        found = (await self._consumer.committed([partition]))[partition]
        return None if found is None else found.offset

    async def watermarks(self, partition: TopicPartition) -> Watermarks:
        return await self._consumer.watermarks(partition)

    async def stop(self) -> None:
        await self._tasks.close(timeout=2.0)
        with contextlib.suppress(LogError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._consumer.close()

    def has(self, place: TopicPartition) -> bool:
        return place in self._lanes

    @property
    def is_idle(self) -> bool:
        return not self._lanes

    def add(self, lane: L) -> None:
        """Reads the lane's partition from what it has committed on."""
        place = TopicPartition(lane.topic, lane.partition)
        self._lanes[place] = lane
        self._wanted[place] = lane.committed
        self._changed.set()

    def remove(self, lane: L) -> None:
        place = TopicPartition(lane.topic, lane.partition)
        if self._lanes.get(place) is lane:
            del self._lanes[place]
            self._wanted.pop(place, None)
            self._changed.set()

    def go_on(self, lane: L) -> None:
        """The lane may have room again."""
        if lane.is_paused and lane.has_room:
            lane.is_paused = False
            place = TopicPartition(lane.topic, lane.partition)
            if place in self._assigned and self._lanes.get(place) is lane:
                self._consumer.resume([place])

    def holds(self, place: TopicPartition) -> bool:
        """Return whether the partition of a shared topic is this node's now."""
        return place in self._held

    async def commit_back(self, place: TopicPartition, offset: int) -> None:
        """Commit an offset that is lower than before, and nothing higher until `end_limit`. Raises LogError."""
        self._limits[place] = offset
        await self._consumer.commit({place: Committed(offset)})

    def end_limit(self, place: TopicPartition) -> None:
        self._limits.pop(place, None)

    def _committable(self, lane: L) -> tuple[TopicPartition, Committed]:
        """A closed lane leaves it to the one that has replaced it, which may have been set back."""
        place = TopicPartition(lane.topic, lane.partition)
        offset = self._lanes.get(place, lane).committed
        return place, Committed(min(offset, self._limits.get(place, offset)))

    async def commit(self, lanes: list[L]) -> None:
        """For those who look at the log from outside; the broker itself goes by the contexts."""
        offsets = dict(map(self._committable, lanes))
        if offsets and self._has_group:
            try:
                await self._consumer.commit(offsets)
            except TopicNotFound:
                pass  # of a client that is gone with its topic
            except LogError as error:
                self._warnings.warning("offsets of clients cannot be committed", error=str(error))

    async def _follow(self) -> None:
        """Makes the consumer's partitions those that are wanted; whatever changes meanwhile comes next."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._apply()
            except LogError as error:
                self._warnings.warning("topics of clients cannot be read yet", error=str(error))
                self._changed.set()
                await asyncio.sleep(RETRY_SECONDS)

    async def _apply(self) -> None:
        # A lane that was replaced by a new one starts over: its partition is taken away and given again.
        gone = [place for place in self._assigned if place not in self._lanes or place in self._wanted]
        if gone:
            self._assigned.difference_update(gone)
            if self._is_shared:
                self._consumer.pause([place for place in gone if place in self._held])
            else:
                await self._consumer.remove(gone)
        starts = {place: start for place, start in self._wanted.items() if place in self._lanes}
        self._wanted = {}
        if not starts:
            return
        try:
            if self._is_shared:
                await self._seek(starts)
            else:
                await self._consumer.add(starts)
            self._assigned.update(starts)
        except LogError as error:
            await self._add_each(starts, error)
        paused = [
            place
            for place in starts
            if place in self._assigned and place in self._lanes and self._lanes[place].is_paused
        ]
        if paused:
            self._consumer.pause(paused)

    async def _add_each(self, starts: dict[TopicPartition, int], error: LogError) -> None:
        """One that cannot be read must not keep the others from theirs."""
        failed = False
        for place, start in starts.items():
            if place not in self._lanes or place in self._wanted:
                continue
            try:
                if self._is_shared:
                    await self._seek({place: start})
                else:
                    await self._consumer.add({place: start})
                self._assigned.add(place)
            except LogError:
                failed = True
                if place in self._lanes:
                    self._wanted.setdefault(place, start)
        if failed:
            raise error

    async def _seek(self, starts: dict[TopicPartition, int]) -> None:
        for place, start in starts.items():
            if place in self._held:
                await self._consumer.seek(place, start)
        self._consumer.resume([place for place in starts if place in self._held])

    async def _read(self) -> None:
        most = PACKS_AT_ONCE * self._max_records
        while True:
            try:
                fetched = await self._consumer.poll(most, POLL_SECONDS, self._max_records)
            except LogError as error:
                await self._recover(error)
                continue
            parts: dict[TopicPartition, list[RecordPack]] = {}
            for item in fetched:
                parts.setdefault(TopicPartition(item.topic, item.partition), []).append(item.pack)
            if parts:
                self._offer(parts)

    def _offer(self, parts: dict[TopicPartition, list[RecordPack]]) -> None:
        filled: list[L] = []
        full: list[TopicPartition] = []
        for place, packs in parts.items():
            lane = self._lanes.get(place)
            if lane is None or place in self._wanted:
                continue  # of a lane that is gone, or that a new one has replaced
            try:
                is_taken = lane.offer(packs)
            except Exception as error:  # of one client's records; the others go on
                log.exception("records of a client cannot be planned", topic=place.topic, error=repr(error))
                is_taken = False
            if not is_taken:
                self._wanted[place] = lane.position  # again, when there is room
                lane.is_paused = True
                self._changed.set()
                continue
            filled.append(lane)
            if not lane.has_room and not lane.is_paused:
                lane.is_paused = True
                full.append(place)
        if full:
            self._consumer.pause([place for place in full if place in self._assigned])
        self._on_packs(filled)

    async def _recover(self, error: LogError) -> None:
        """One topic that cannot be read must not keep the others from theirs."""
        self._warnings.warning("a topic of a client cannot be read", error=str(error))
        if error.partition is not None and error.partition in self._lanes:
            lane = self._lanes[error.partition]
            self._wanted[error.partition] = lane.position
            self._changed.set()
        await asyncio.sleep(RETRY_SECONDS)


class ReaderPool(Generic[L]):
    """Readers of lanes of which several may want the same partition, each from its own offset on: as many consumers as
    there are lanes of one partition, not as there are lanes. The consumers have no group."""

    def __init__(
        self, new_consumer: Callable[[], Consumer], max_records: int, on_packs: Callable[[list[L]], None]
    ) -> None:
        self._new_consumer = new_consumer
        self._max_records = max_records
        self._on_packs = on_packs
        self._readers: list[PackReader[L]] = []

    def __len__(self) -> int:
        return len(self._readers)

    def reader_for(self, place: TopicPartition) -> PackReader[L]:
        """To be given a lane of the partition at once."""
        for reader in self._readers:
            if not reader.has(place):
                return reader
        reader = PackReader(self._new_consumer(), self._max_records, self._on_packs, has_group=False)
        reader.start()
        self._readers.append(reader)
        return reader

    async def release(self, reader: PackReader[L]) -> None:
        """A lane was taken from it: with the last one it goes."""
        if reader.is_idle and reader in self._readers:
            self._readers.remove(reader)
            await reader.stop()

    async def stop(self) -> None:
        while self._readers:
            await self._readers.pop().stop()
