"""Queues without delivery, for commands about them: a log in memory, and groups whose numbers a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from penstock._ext.envelope import encode
from penstock._ext.packets import encode_publish_properties
from penstock._ext.segment import RecordPack
from penstock.logs.base import LATEST, TopicPartition
from penstock.logs.memory import MemoryLog
from penstock.queues.definitions import QueueDefinition
from penstock.queues.names import topic_of
from penstock.queues.removed import RemovedOffsets

NOW = 1_700_000_000.0


@dataclass
class MemoryMember:
    client_id: str
    prefetch: int = 100
    unsettled: int = 0
    since: float = NOW


@dataclass
class MemoryGroup:
    queue: MemoryQueue
    name: str
    filter: str = ""
    cursor: int = 0
    entries: dict[int, dict[str, Any]] = field(default_factory=dict)
    consumers: list[MemoryMember] = field(default_factory=list)
    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    rejected: int = 0
    redelivered: int = 0

    @property
    def id(self) -> str:
        return f"{self.name}@{self.filter}" if self.filter else self.name

    @property
    def is_stream(self) -> bool:
        return self.queue.definition.type == "stream"

    @property
    def pending(self) -> int:
        return len(self.entries)

    @property
    def committed(self) -> int:
        return min(self.entries, default=self.cursor)

    @property
    def lag(self) -> int:
        return self.queue.tail - self.cursor + self.pending

    def pending_entries(self, limit: int) -> list[dict[str, Any]]:
        return list(self.entries.values())[:limit]

    def claim(self, count: int, client_id: str) -> None:
        for offset in range(self.cursor, self.cursor + count):
            self.entries[offset] = {
                "offset": offset,
                "consumer": client_id,
                "deliveries": 1,
                "state": "claimed",
                "due_in": 30.0,
            }
        self.cursor += count

    async def seek(self, offset: int) -> None:
        self.cursor = offset

    async def delete(self) -> None:
        del self.queue.groups[self.id]


class MemoryQueue:
    def __init__(self, definition: QueueDefinition, log: MemoryLog) -> None:
        self.definition = definition
        self.topic = topic_of(definition.name)
        self.log = log
        self.groups: dict[str, MemoryGroup] = {}
        self.removed = RemovedOffsets()
        self.last_used = NOW
        self.bytes: int | None = None
        self.dropped = self.rejected = self.expired = self.dead = 0

    @property
    def head(self) -> int:
        return self.log.watermarks(TopicPartition(self.topic, 0)).first

    @property
    def tail(self) -> int:
        return self.log.watermarks(TopicPartition(self.topic, 0)).end

    @property
    def depth(self) -> int:
        floor = min((group.committed for group in self.groups.values()), default=self.head)
        return self.tail - self.removed.first_kept(max(floor, self.head))

    def group(self, name: str, **given: Any) -> MemoryGroup:
        made = MemoryGroup(self, name, **given)
        self.groups[made.id] = made
        return made

    async def append(self, pack: RecordPack) -> int:
        return (await self.log.producer.send(self.topic, 0, pack)).base_offset

    async def read(self, offset: int, count: int) -> list[RecordPack]:
        consumer = self.log.consumer(group="")
        partition = TopicPartition(self.topic, 0)
        await consumer.add({partition: LATEST})
        await consumer.seek(partition, offset)
        fetched = await consumer.poll(count, 0.1)
        await consumer.close()
        return [each.pack for each in fetched]

    def is_removed(self, offset: int) -> bool:
        return offset in self.removed

    async def remove(self, offsets: list[int]) -> None:
        self.removed.add(offsets)
        for group in self.groups.values():
            for offset in offsets:
                group.entries.pop(offset, None)

    async def purge(self) -> int:
        count = self.tail - self.head
        await self.log.admin.truncate(TopicPartition(self.topic, 0), self.tail)
        return count

    async def pause(self, paused: bool) -> None:
        self.definition = replace(self.definition, paused=paused)


class MemoryQueues:
    """The manager."""

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.queues: dict[str, MemoryQueue] = {}
        self.is_open = False

    def find(self, name: str) -> MemoryQueue:
        return self.queues[name]

    async def create(self, definition: QueueDefinition) -> MemoryQueue:
        if not self.is_open:
            await self.log.start()
            self.is_open = True
        made = MemoryQueue(definition, self.log)
        await self.log.admin.create(made.topic, properties={"retention.ms": "-1"})
        self.queues[definition.name] = made
        return made

    async def update(self, definition: QueueDefinition) -> None:
        self.queues[definition.name].definition = definition

    async def delete(self, name: str) -> None:
        await self.log.admin.delete(self.queues.pop(name).topic)


def publish_record(
    topic: str, payload: bytes, *, expires_at: int = 0, pairs: list[tuple[str, str]] | None = None
) -> RecordPack:
    """A message as the broker logs it."""
    pack = RecordPack()
    props = encode_publish_properties(user_properties=pairs) if pairs else b""
    time = int(NOW * 1000)
    pack.append(
        encode(topic, payload, 1, client_id="c", received_at=time, expires_at=expires_at, props=props),
        key=topic.encode(),
        timestamp=time,
    )
    return pack
