"""A log that ends with the process: for tests, and for state that may be lost. Bounded; see base.py for the port."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from penstock._ext.record.segment import PackRun, RecordPack
from penstock.core.clock import now_ms
from penstock.storage.log.base import (
    LATEST,
    Appended,
    Committed,
    Limits,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    OnAllAppended,
    OnAppended,
    Packs,
    TopicDescription,
    TopicNotFound,
    TopicPartition,
    Watermarks,
    of_topics,
)
from penstock.storage.log.groups import GroupCoordinator
from penstock.storage.log.local_consumer import LocalConsumer, Watchers
from penstock.storage.log.sending import append_each, send
from penstock.storage.log.topics import TopicConfig

MIB = 1_048_576
Names = list[str]  # within a class that has a method `list`


class MemoryPartition:
    """The packs that are kept, and the offsets of the first and the next record."""

    def __init__(self) -> None:
        self.run = PackRun()
        self.first = 0
        self.end = 0
        self.held: int | None = None
        self.dirty_bytes = 0

    def add(self, pack: RecordPack) -> None:
        pack.place(self.end)
        self.run.add(pack)
        self.end = pack.next_offset
        self.dirty_bytes += pack.size

    def find_time(self, timestamp_ms: int) -> int:
        for pack in self.run:
            if pack.max_timestamp >= timestamp_ms and pack.next_offset > self.first:
                offset = pack.find_time(timestamp_ms, self.first)
                if offset >= 0:
                    return offset
        return self.end

    def retain(self, config: TopicConfig) -> None:
        """Drops whole packs from the oldest on, as long as a limit says so."""
        oldest = now_ms() - config.retention_ms if config.retention_ms >= 0 else None
        while (pack := self.run.first_pack) is not None:
            is_old = oldest is not None and pack.max_timestamp < oldest
            is_large = 0 <= config.retention_bytes < self.run.bytes
            is_long = 0 <= config.retention_messages <= self.run.records - pack.count
            is_held = self.held is not None and pack.next_offset > self.held
            if is_held or not (is_old or is_large or is_long):
                break
            self.drop_before(pack.next_offset)

    def drop_before(self, offset: int) -> None:
        """The packs that lie before the offset as a whole go; `first` is the offset."""
        while (pack := self.run.first_pack) is not None and pack.next_offset <= offset:
            self.run.drop_first()
        self.first = max(self.first, offset)

    def compact(self, config: TopicConfig) -> None:
        """Keeps the newest record of each key, once enough came since the last time."""
        if self.dirty_bytes < max(MIB, config.dirty_ratio * self.run.bytes):
            return
        newest: dict[bytes, int] = {}
        for pack in self.run:
            pack.note_newest(newest)
        horizon = now_ms() - config.delete_retention_ms
        kept = (pack.keep_newest(newest, horizon, self.end - 1) for pack in self.run)
        self.run = PackRun(pack for pack in kept if pack.count)
        self.dirty_bytes = 0


class MemoryTopic:
    def __init__(self, config: TopicConfig) -> None:
        self.config = config
        self.partitions = [MemoryPartition() for _ in range(config.partitions)]

    def hold(self, held: Mapping[int, int | None]) -> None:
        for number, offset in held.items():
            if 0 <= number < len(self.partitions):
                self.partitions[number].held = offset

    @property
    def bytes(self) -> int:
        return sum(partition.run.bytes for partition in self.partitions)

    def tidy(self, partition: MemoryPartition) -> None:
        if self.config.is_compacted:
            partition.compact(self.config)
        if self.config.is_deleted:
            partition.retain(self.config)


Waiting = tuple[str, int, RecordPack, OnAppended | None]


class MemoryLog:
    """See Log in base.py."""

    is_shared = False
    has_files = False
    is_durable = False
    is_remote = False

    def __init__(
        self, max_topic_bytes: int = 64 * MIB, max_pending_bytes: int = 64 * MIB, max_poll_interval: float = 300.0
    ) -> None:
        self.topics: dict[str, MemoryTopic] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed]] = {}
        self.held: dict[str, dict[int, int | None]] = {}  # by topic, whether it is there or not
        self.max_topic_bytes = max_topic_bytes
        self._max_poll_interval = max_poll_interval
        self._producer = MemoryProducer(self, max_pending_bytes)
        self._admin = MemoryAdmin(self)
        self._consumers: set[LocalConsumer] = set()
        self._watchers = Watchers()
        self._coordinator: GroupCoordinator | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._coordinator = GroupCoordinator(self._partitions_of, loop.time, self._max_poll_interval)

    async def close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.close()
        self._producer.complete()
        self._coordinator = None

    @property
    def producer(self) -> MemoryProducer:
        return self._producer

    @property
    def patient_producer(self) -> MemoryProducer:
        return self._producer

    @property
    def admin(self) -> MemoryAdmin:
        return self._admin

    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str = "earliest"
    ) -> LocalConsumer:
        consumer = LocalConsumer(self, group, instance_id, auto_offset_reset)
        self._consumers.add(consumer)
        return consumer

    def check(self) -> bool | str:
        if self._coordinator is None:
            return "the log is not open"
        full = sorted(name for name, topic in self.topics.items() if topic.bytes >= self.max_topic_bytes)
        return f"topics are full: {', '.join(full)}" if full else True

    def check_readers(self) -> bool | str:
        return True

    def counters(self) -> dict[str, int | float]:
        size = sum(topic.bytes for topic in self.topics.values())
        return {**self._producer.counters, "topics": len(self.topics), "bytes": size}

    # what its consumers ask for

    @property
    def coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise LogError("the log is not open")
        return self._coordinator

    @property
    def watchers(self) -> Watchers:
        return self._watchers

    def find(self, partition: TopicPartition) -> MemoryPartition:
        topic = self.find_topic(partition.topic)
        if not 0 <= partition.partition < topic.config.partitions:
            raise TopicNotFound(f"topic {partition.topic!r} has no partition {partition.partition}")
        return topic.partitions[partition.partition]

    def find_topic(self, topic: str) -> MemoryTopic:
        if topic not in self.topics:
            raise TopicNotFound(f"there is no topic {topic!r}")
        return self.topics[topic]

    def _partitions_of(self, topic: str) -> int | None:
        return self.topics[topic].config.partitions if topic in self.topics else None

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        kept = self.find(partition)
        self.topics[partition.topic].tidy(kept)
        return Watermarks(kept.first, kept.end)

    def try_read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        return self.find(partition).run.read(offset, max_records, max_bytes)

    async def read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        return self.try_read(partition, offset, max_records, max_bytes)

    async def find_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        return self.find(partition).find_time(timestamp_ms)

    def get_committed(self, group: str, partition: TopicPartition) -> Committed | None:
        return self.offsets.get(group, {}).get(partition)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        for partition in offsets:
            self.find(partition)
        self.offsets.setdefault(group, {}).update(offsets)

    def forget(self, consumer: LocalConsumer) -> None:
        self._consumers.discard(consumer)


class MemoryProducer:
    """Stores what one iteration of the loop appended, at its end."""

    def __init__(self, log: MemoryLog, max_pending_bytes: int) -> None:
        self._log = log
        self._max_pending_bytes = max_pending_bytes
        self._waiting: list[Waiting] = []
        self._pending = 0
        self.counters = {"appended_records": 0, "appended_bytes": 0, "failed_appends": 0}

    def append(
        self,
        topic: str,
        partition: int,
        pack: RecordPack,
        on_done: OnAppended | None = None,
        *,
        can_wait: bool = False,
        is_lasting: bool = False,
    ) -> None:
        if pack.count == 0 or not pack.is_dense:
            raise ValueError("a pack that is appended has records, and no gaps between their offsets")
        pack.seal()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.complete)
        self._waiting.append((topic, partition, pack, on_done))
        self._pending += pack.size

    def collect(self) -> None:
        """Nothing to do: every append is reported by itself."""

    def append_packs(
        self, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False, is_quiet: bool = False
    ) -> None:
        append_each(self, topic, packs, on_done)

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        return await send(self, topic, partition, pack)

    @property
    def gathers(self) -> bool:
        return False

    @property
    def pending_bytes(self) -> int:
        return self._pending

    @property
    def largest_record(self) -> int:
        return 0

    def complete(self) -> None:
        waiting, self._waiting = self._waiting, []
        grown: set[TopicPartition] = set()
        is_over = self._pending > self._max_pending_bytes
        for topic, partition, pack, on_done in waiting:
            result: Appended | LogError
            try:
                if is_over and self._pending > self._max_pending_bytes:
                    raise LogUnavailable(f"more than {self._max_pending_bytes} bytes wait to be appended")
                result = self._store(TopicPartition(topic, partition), pack)
                grown.add(TopicPartition(topic, partition))
            except LogError as error:
                self.counters["failed_appends"] += 1
                result = error
            self._pending -= pack.size
            if on_done is not None:
                on_done(result)
        for topic, partition in grown:
            self._log.watchers.wake(topic, (partition,))

    def _store(self, partition: TopicPartition, pack: RecordPack) -> Appended:
        kept = self._log.find(partition)
        topic = self._log.topics[partition.topic]
        if topic.bytes + pack.size > self._log.max_topic_bytes:
            raise LogUnavailable(f"topic {partition.topic!r} is full: {self._log.max_topic_bytes} bytes in memory")
        kept.add(pack)
        topic.tidy(kept)
        self.counters["appended_records"] += pack.count
        self.counters["appended_bytes"] += pack.size
        return Appended(partition.topic, partition.partition, pack.base_offset, pack.count)


class MemoryAdmin:
    """See Admin in base.py."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None:
        config = TopicConfig.of(topic, partitions, properties)
        if topic in self._log.topics:
            if not exist_ok:
                raise LogError(f"topic {topic!r} exists already")
            return
        created = self._log.topics[topic] = MemoryTopic(config)
        created.hold(self._log.held.get(topic, {}))
        self._log.coordinator.topics_changed(topic)

    async def describe(self, topic: str) -> TopicDescription:
        config = self._log.find_topic(topic).config
        return TopicDescription(topic, config.partitions, dict(config.properties))

    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        found = self._log.find_topic(topic)
        found.config = TopicConfig.of(topic, found.config.partitions, properties)

    async def delete(self, topic: str) -> None:
        deleted = self._log.find_topic(topic)
        del self._log.topics[topic]
        for group, offsets in list(self._log.offsets.items()):
            for number in range(deleted.config.partitions):
                offsets.pop(TopicPartition(topic, number), None)
            if not offsets:
                del self._log.offsets[group]
        self._log.coordinator.topics_changed(topic)
        self._log.watchers.wake(topic, range(deleted.config.partitions))

    async def list(self) -> Names:
        return sorted(self._log.topics)

    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        kept = self._log.find(partition)
        before_offset = kept.end if before_offset == LATEST else before_offset
        if not 0 <= before_offset <= kept.end:
            raise OffsetOutOfRange(f"{before_offset} is behind the last record", kept.first, kept.end)
        kept.drop_before(before_offset)

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        self._log.held.setdefault(partition.topic, {})[partition.partition] = offset
        if partition.topic in self._log.topics:
            self._log.topics[partition.topic].hold({partition.partition: offset})
        return True

    async def limits(self, topic: str) -> Limits | None:
        return None  # nobody removes anything here but this log itself, and it can hold

    async def set_limits(self, topic: str, limits: Limits) -> None:
        raise LogError(f"topic {topic!r}: hold() decides what this log keeps")

    def size(self, topic: str) -> int | None:
        kept = self._log.topics.get(topic)
        return 0 if kept is None else kept.bytes

    async def groups(self) -> Names:
        return sorted({*self._log.offsets, *self._log.coordinator.names})

    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        return of_topics(self._log.offsets.get(group, {}), topics)

    async def delete_group(self, group: str) -> None:
        if self._log.coordinator.members_of(group):
            raise LogError(f"group {group!r} has members")
        self._log.offsets.pop(group, None)
