"""The port of the logs: what every provider (embedded, kafka, memory) does in the same way.

Everything is called on the event loop's thread and never blocks it. Records travel packed: many of them in one
`RecordPack` (penstock._ext.record.segment), appended and read as a whole, opened only where one record is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

from penstock._ext.record.segment import RecordPack
from penstock.core.errors import PenstockError

EARLIEST = -2
LATEST = -1


class TopicPartition(NamedTuple):
    """A tuple, because everything that is kept per partition has it as its key: it is hashed all the time."""

    topic: str
    partition: int


class LogError(PenstockError):
    """An operation of a log failed; `is_retryable` says whether the same call may succeed later. When a poll failed
    because of one partition, `partition` says which: remove it, and the others go on."""

    is_retryable = False
    partition: TopicPartition | None = None


class LogUnavailable(LogError):
    """The log cannot take or give anything now: Kafka is away, the disk is full. It comes back by itself."""

    is_retryable = True


class TopicNotFound(LogError):
    """There is no such topic, or it has fewer partitions."""


class RecordTooLarge(LogError):
    """A record of the pack is larger than the topic takes, and always will be."""


class OffsetOutOfRange(LogError):
    """The offset is before the first record kept or behind the last."""

    def __init__(self, message: str, first: int, end: int) -> None:
        super().__init__(message)
        self.first = first
        self.end = end


class LogDamaged(LogError):
    """The files are damaged where they must not be; the message names the command that repairs them."""


class Appended(NamedTuple):
    """A pack is durable: its records have the offsets base_offset … base_offset + count - 1. Of Kafka it may be -1, not
    known: when a retry found that the records were there already. A tuple, because one is made for every pack."""

    topic: str
    partition: int
    base_offset: int
    count: int  # type: ignore[assignment] # hides tuple.count, which has no use here


@dataclass(frozen=True, slots=True)
class Fetched:
    """Consecutive records of one partition. With gaps (compaction) `offsets` of the pack tell the real ones."""

    topic: str
    partition: int
    pack: RecordPack

    @property
    def next_offset(self) -> int:
        return self.pack.next_offset


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The first offset kept and the offset the next record will get."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicDescription:
    name: str
    partitions: int
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """What retention keeps of each partition of a topic, -1 for no limit, and which of the two the topic does not state
    itself: it has them from its cluster."""

    ms: int
    bytes: int
    inherited: tuple[str, ...] = ()

    @property
    def are_none(self) -> bool:
        return self.ms < 0 and self.bytes < 0


NO_LIMITS = Limits(-1, -1)


def parse_properties(text: str) -> dict[str, str]:
    """`retention.ms:604800000;segment.bytes:26214400` as ThingsBoard's settings have it."""
    properties: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, colon, value = part.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise ValueError(f"{part!r} is not name:value in the topic properties {text!r}")
        properties[name.strip()] = value.strip()
    return properties


def check_new(starts: Mapping[TopicPartition, int], assigned: Container[TopicPartition]) -> None:
    """Raises for a partition that a consumer has already and for an offset that is none."""
    for partition, start in starts.items():
        if partition in assigned:
            raise LogError(f"{partition.topic}[{partition.partition}] is assigned to this consumer already")
        if start < 0 and start not in {EARLIEST, LATEST}:
            raise ValueError(f"{start} is not an offset")


def of_topics(offsets: Mapping[TopicPartition, Committed], topics: Collection[str]) -> dict[TopicPartition, Committed]:
    """Return the offsets of these topics, or of all topics if none are given."""
    return {place: committed for place, committed in offsets.items() if not topics or place.topic in topics}


OnAppended = Callable[[Appended | LogError], None]
OnAllAppended = Callable[[Sequence[Appended | LogError] | None], None]
Packs = Sequence[tuple[int, RecordPack]]  # partition and pack
OnPartitions = Callable[[Sequence[TopicPartition]], None]


class Producer(Protocol):
    """Appends packs. Packs of one partition become durable in the order they were appended."""

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
        """Takes the pack over: nothing can be added to it from now on. `on_done` is called on the loop, once, with the
        offsets when they are durable (or with the error). Never blocks and never raises for what the log itself cannot
        do. `can_wait`: the caller does not need it to be durable soon, so it may wait a few milliseconds for others.
        `is_lasting`, for the patient producer: the append does not fail while the log is unavailable, and later ones
        wait with it."""
        ...

    def append_packs(
        self, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False, is_quiet: bool = False
    ) -> None:
        """Append one pack to each of several partitions now, not at the end of the iteration; `on_done` gets all
        results, in the order of the packs, or None if all packs are durable and have their offsets themselves.
        `is_quiet`: the caller does not wait for them; `on_done` may come a little late unless `collect` is called."""
        ...

    def collect(self) -> None:
        """Report what was appended with `is_quiet` and is durable, now, and the rest as soon as it is durable."""
        ...

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        """The same as a coroutine; raises LogError."""
        ...

    @property
    def gathers(self) -> bool:
        """Whether commits run one at a time, so that publishes are better collected while one is under way."""
        ...

    @property
    def pending_bytes(self) -> int:
        """Appended and not yet durable: who appends more than it can bear should wait."""
        ...

    @property
    def largest_record(self) -> int:
        """Bytes of key and value that every topic takes, with what is added to copies; 0 = any."""
        ...


class Consumer(Protocol):
    """Reads packs of the partitions it has. `group` shares the partitions of subscribed topics among its members."""

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Exactly these partitions, without a group's say. Position: committed, else `auto.offset.reset`."""
        ...

    def subscribe(
        self, topics: Iterable[str], on_assigned: OnPartitions | None = None, on_revoked: OnPartitions | None = None
    ) -> None:
        """Its share of the topics' partitions, changing with the members of the group (sticky, cooperative)."""
        ...

    async def add(self, starts: Mapping[TopicPartition, int]) -> None:
        """More partitions without a group's say, at these offsets (an offset, EARLIEST or LATEST). The others are not
        disturbed, and a poll that waits goes on and gives records of the new ones, too. Raises LogError, and adds none,
        when one of them is assigned already; a position without records moves as `auto.offset.reset` says."""
        ...

    async def remove(self, partitions: Iterable[TopicPartition]) -> None:
        """The reverse: from the call on no poll gives a record of them. Those it does not have are passed over."""
        ...

    async def poll(
        self, max_records: int = 500, timeout: float = 1.0, max_per_partition: int | None = None
    ) -> list[Fetched]:
        """At most max_records records, and at most max_per_partition of one partition, which take turns; waits up to
        `timeout` for the first, without spinning. Raises LogError."""
        ...

    def assignment(self) -> list[TopicPartition]: ...
    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """No poll gives their records from now on; those that were read ahead come after `resume`."""
        ...

    def resume(self, partitions: Iterable[TopicPartition]) -> None: ...
    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """An offset, EARLIEST or LATEST."""
        ...

    async def seek_to_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        """To the first record at or after the time (or the end); returns the offset."""
        ...

    def position(self, partition: TopicPartition) -> int: ...
    async def commit(self, offsets: Mapping[TopicPartition, Committed] | None = None) -> None:
        """The group's offsets (None: the positions of everything assigned), durable when it returns."""
        ...

    async def committed(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Committed | None]: ...
    async def watermarks(self, partition: TopicPartition) -> Watermarks: ...
    async def lag(self) -> dict[TopicPartition, int]:
        """Records between the position and the end, for each assigned partition."""
        ...

    async def close(self) -> None: ...


class Admin(Protocol):
    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None: ...
    async def describe(self, topic: str) -> TopicDescription: ...
    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        """The topic has these properties from now on, instead of those it was made with. How many partitions it has
        stays; raises LogError where something else cannot be changed."""
        ...

    async def delete(self, topic: str) -> None: ...
    async def list(self) -> list[str]: ...
    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        """Records before the offset may go (whole segments at the least); `first` moves to it at once."""
        ...

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        """Retention by age, size and number keeps what is at the offset and after it, until it is given another one;
        None: everything may go again. The topic need not be there yet; a restart forgets it. False: this log cannot,
        because somebody else decides what it keeps."""
        ...

    async def limits(self, topic: str) -> Limits | None:
        """By which somebody else removes records of the topic; None where `hold` can be used."""
        ...

    async def set_limits(self, topic: str, limits: Limits) -> None:
        """Others from now on. Raises LogError, also where there are none of somebody else."""
        ...

    def size(self, topic: str) -> int | None:
        """Bytes that the topic takes, 0 when there is none; None: this log does not say."""
        ...

    async def groups(self) -> Sequence[str]: ...
    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        """Return what a group has committed of these topics, or of all topics if none are given."""
        ...

    async def delete_group(self, group: str) -> None: ...


class TopicCut(NamedTuple):
    """How far a topic is written: up to this position of this segment, with all segments before it."""

    directory: str
    sequence: int
    position: int


@runtime_checkable
class FileLog(Protocol):
    """What a log with files (`has_files`) can do beyond the port."""

    async def cut(self) -> Sequence[TopicCut]:
        """Return how far every topic is written, all of them at one moment between two commits."""
        ...


class Log(Protocol):
    """A provider. Made by the composition root, started before anything else and closed after everything else.

    Its capabilities are asked for instead of its name; settings/providers.py has the same ones by name, for code that
    has no open log.
    """

    @property
    def is_shared(self) -> bool:
        """Whether several nodes use the same topics, so that each of them needs a name and knows the others."""
        ...

    @property
    def has_files(self) -> bool:
        """Whether the records are in segment files of the data directory; such a log is a FileLog."""
        ...

    @property
    def is_durable(self) -> bool:
        """Whether records are still there after a restart."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the log is a service that can be unreachable while the broker runs."""
        ...

    @property
    def producer(self) -> Producer: ...
    @property
    def patient_producer(self) -> Producer:
        """The one for topics that have lasting appends: all appends to such a topic go through it, or their order is
        not kept."""
        ...

    @property
    def admin(self) -> Admin: ...
    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str = "earliest"
    ) -> Consumer: ...
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    def check(self) -> bool | str:
        """For readiness: True, or why it cannot take records now."""
        ...

    def check_readers(self) -> bool | str:
        """True, or which records cannot be read although the log has them: whoever reads there waits for somebody to
        act, everybody else goes on."""
        ...

    def counters(self) -> dict[str, int | float]: ...


async def read_state(log: Log, topic: str, on_record: Callable[[bytes | None, bytes | None], None]) -> int:
    """Reads a (compacted) state topic from its beginning to where it ends now and stops; records read."""
    description = await log.admin.describe(topic)
    partitions = [TopicPartition(topic, number) for number in range(description.partitions)]
    consumer = log.consumer(group="")
    count = 0
    try:
        marks = {partition: await consumer.watermarks(partition) for partition in partitions}
        waiting = {partition for partition in partitions if marks[partition].first < marks[partition].end}
        consumer.assign(sorted(waiting))
        for partition in waiting:
            await consumer.seek(partition, EARLIEST)
        while waiting:
            for fetched in await consumer.poll(max_records=10_000, timeout=5.0):
                for record in fetched.pack:
                    on_record(record.key, record.value)
                    count += 1
                partition = TopicPartition(fetched.topic, fetched.partition)
                if fetched.next_offset >= marks[partition].end:
                    waiting.discard(partition)
    finally:
        await consumer.close()
    return count
