"""The port of the queues of DEVICE clients: messages that wait for a client, each under a packet id of its own.

A queue belongs to a client (`client_queue`) or to a group of a shared subscription whose members are all away
(`group_queue`). Messages are added as packs of records: the value is the envelope, kept as it is, and the key is
`build_source(...)`: where the message comes from, when it expires, and its packet id if it has one already. A record
without a value is a PUBREL that waits for its PUBCOMP.

What every provider promises:

- Adding is idempotent: a message is known by the partition, offset and `via` of its source, also after it was removed,
  until at least `messages_limit` newer ones were added to the queue.
- Packet ids go from 65535 to 1. One that is still stored, or that the caller says is in flight, is never given. An id
  that the caller asks for and that another message has is replaced by a free one; if it is further on than the last one
  that was given, the counter goes on from it.
- The score of a message grows for ever, so messages stay in order when packet ids start again.
- Over `messages_limit` and `bytes_limit` the oldest messages of the queue give way and are counted. At
  `total_bytes_limit`, which a cluster of Redis does not have, the oldest messages of the queue that is added to give
  way. A message that would have no room in an empty queue is not stored, and nothing gives way to it.
- Calls for one queue take effect in the order they were made. After an addition that failed, further additions to its
  queue fail, too, until all results are reported: a younger one never succeeds before an older one that is
  retried. Every call ends in one call of its `on_done`, on the loop
  and never before the call returns, with a result or a StoreError. What failed may be repeated as it is.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NewType, Protocol, TypeVar

from penstock._ext.record.segment import RecordPack
from penstock.storage.state.base import StoreError

Queue = NewType("Queue", str)
"""The name of a queue; made by `client_queue` and `group_queue` only."""

MOST_PACKET_IDS = 65_535
# Redis keeps times to live of 31 bits in some versions; no message waits for 68 years.
LONGEST_TTL_MS = 0x7FFFFFFF * 1000

SOURCE = struct.Struct("<iIqqH")
"""Partition, via, offset, expiry (ms since the epoch, 0 = none), packet id (0 = the store gives one)."""
PACKET_ID = 4  # of the fields of a source
SOURCE_IDENTITY = 16
"""The first bytes of a source say which message it is; the rest may differ when it is given again."""

T = TypeVar("T")
OnDone = Callable[["T | StoreError"], None]
OnAllDone = Callable[["list[T | StoreError]"], None]
"""Gets one result for each entry of the batch, in its order."""


class StoreUnavailable(StoreError):
    """The store cannot be reached, or did not answer in time; what was given may have been stored. Give it again."""


class StoreFull(StoreError):
    """There is no room: nothing was stored."""


class NoPacketIdLeft(StoreFull):
    """Every packet id of the queue is stored or in flight: messages that are neither have to go first."""


class Addition(NamedTuple):
    """Messages for a queue, in order."""

    queue: Queue
    pack: RecordPack
    in_flight: bytes = b""
    """Packet ids that must not be given, as array("H") has them."""


class Added(NamedTuple):
    """Packet ids of the messages of an Addition: 0 = not stored, because it has expired, there were more than the limit
    in one pack, or it was stored before and is gone. `trimmed` older messages gave way."""

    packet_ids: list[int]
    trimmed: int


class Page(NamedTuple):
    """Messages in order, in columns; an empty value is a PUBREL. Go on after `next_score` unless `is_last`.
    `expired` messages in between are gone."""

    packet_ids: list[int]
    scores: list[int]
    values: list[bytes]
    next_score: int
    is_last: bool
    expired: int = 0


class QueueState(NamedTuple):
    """`messages` may include some that have expired and were not looked at since."""

    messages: int
    last_packet_id: int


class Moved(NamedTuple):
    """How many messages of a group are a member's now, how many had expired and are gone, and how many older ones of
    the member gave way to them; all 0: none are left."""

    messages: int
    expired: int = 0
    trimmed: int = 0


PacketIds = tuple[Queue, Sequence[int]]
PlacedId = tuple[int, int]
"""The packet id and the score of a message: ids are given again, scores are not."""


@dataclass(slots=True)
class DeviceStatistics:
    """What a store has done since it started."""

    added: int = 0  # messages that were given to it and got a packet id
    trimmed: int = 0  # messages that gave way to newer ones
    fetched: int = 0
    removed: int = 0
    released: int = 0
    failed: int = 0  # entries of calls that ended in an error
    refused: int = 0  # of these, because the backlog was full
    commits: int = 0  # transactions of LMDB, commands to Redis
    retried: int = 0  # commands sent again
    reconnects: int = 0
    stored: int | None = None  # messages in all queues now, expired ones that nobody looked at too; None: not known
    stored_bytes: int | None = None  # their bytes, likewise


class DeviceStore(Protocol):
    """Called on the loop, never blocks it."""

    @property
    def is_shared(self) -> bool:
        """Whether all nodes use the same store, so that a queue need not move with its client."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether the store is a service that can be unreachable while the broker runs."""
        ...

    @property
    def statistics(self) -> DeviceStatistics: ...

    @property
    def pending_bytes(self) -> int:
        """Bytes of calls that are not done."""
        ...

    async def start(self) -> None:
        """Raises StoreError when the store can never work so; an unreachable server is waited for by the calls."""
        ...

    async def close(self) -> None:
        """Ends what is under way, within bounds; calls after it fail."""
        ...

    def check(self) -> bool | str:
        """For readiness: True, or why it cannot store now."""
        ...

    def add(self, batch: Sequence[Addition], on_done: OnAllDone[Added]) -> None: ...

    def fetch(self, queue: Queue, after_score: int, limit: int, on_done: OnDone[Page]) -> None:
        """Messages behind a score (-1 = from the first), at most `limit`; a page that is not the last may be empty."""
        ...

    def remove(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        """PUBACK or PUBCOMP came: how many of the messages were there."""
        ...

    def release(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        """PUBREC came: the messages become PUBRELs that expire when the messages would have. How many were there."""
        ...

    def remove_all(self, queues: Sequence[Queue], on_done: OnAllDone[int]) -> None:
        """The session ended: forgets the queues, their packet ids and what was ever in them; how many messages."""
        ...

    def reserve(self, queue: Queue, count: int, in_flight: bytes, on_done: OnDone[list[int]]) -> None:
        """The next packet ids of the queue, for messages that are delivered without being stored."""
        ...

    def move(self, group: Queue, member: Queue, delivery: bytes, limit: int, on_done: OnDone[Moved]) -> None:
        """Moves the oldest messages of a group to a member, each to one member only, with `delivery` behind each value:
        how the member subscribed."""
        ...

    def move_some(
        self, group: Queue, member: Queue, delivery: bytes, chosen: Sequence[PlacedId], on_done: OnDone[Moved]
    ) -> None:
        """Moves these messages of a group, given in their order, as `move` does; those that have gone are left out."""
        ...

    def describe(self, queue: Queue, on_done: OnDone[QueueState]) -> None: ...


def build_source(partition: int, offset: int, expires_at: int = 0, packet_id: int = 0, via: int = 0) -> bytes:
    """The key of a record that is added. `via` tells copies of one message apart: 0, or a number of the group that the
    client has it through; it stays when the message is moved from the group to a member."""
    return SOURCE.pack(partition, via, offset, expires_at, packet_id)


def client_queue(client_id: str) -> Queue:
    """Ordinary ids stand for themselves. Braces would break the hash tag of a Redis Cluster, and no client may take
    the name of a group."""
    if client_id.startswith("ss_"):
        return Queue(f"%73{_escape(client_id[1:])}")
    # A percent sign is always followed by two digits otherwise.
    return Queue(_escape(client_id) or "%")


def group_queue(share: str, topic_filter: str) -> Queue:
    """The queue of a shared subscription. An underscore in the share name is escaped: `a_b` and `c` are not `a` and
    `b_c`."""
    return Queue(f"ss_{_escape(share).replace('_', '%5F')}_{_escape(topic_filter)}")


def is_group(queue: Queue) -> bool:
    return queue.startswith("ss_")


def group_via(group: Queue) -> int:
    """For messages that came to the group without one. Never 0, so that a member gets its own copy of a message beside
    the group's."""
    return zlib.crc32(group.encode()) | 1


def _escape(text: str) -> str:
    if "%" in text or "{" in text or "}" in text:
        return text.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return text


async def result_of(method: Callable[..., None], *arguments: Any) -> Any:
    """Calls a method of a store and waits; raises its StoreError. A batch gives its list, errors and all."""
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    method(*arguments, lambda result: None if done.done() else done.set_result(result))
    result = await done
    if isinstance(result, StoreError):
        raise result
    return result
