"""What is kept of queues besides their logs: definitions, how far each group is, and who belongs to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from penstock._ext.hub.connection import QueueGroup
from penstock.core.ports import Scheduler
from penstock.storage.state.base import Change, StateStore, StoreError
from penstock.subscribers.queue.ordered_writes import OnSaved, OrderedWrites
from penstock.subscribers.queue.removed import RemovedOffsets

DEFINITIONS = "tbmq.queue.definitions"
STATE = "tbmq.queue.state"
MEMBERS = "tbmq.queue.members"

# Kinds of records in STATE, behind the queue's and the group's name.
GROUP, HEAD, COMMITTED, WINDOW, REMOVED, REASON, DEAD = b"g", b"h", b"c", b"w", b"r", b"x", b"d"
SEPARATOR = b"\0"


class GroupRecord(msgspec.Struct, frozen=True):
    """What a group is."""

    name: str
    filter: str = ""
    auto_commit: bool = True
    made_by: str = ""  # see rights.identity_of; empty: not known
    life: Literal["connection", "session", "named"] = "named"
    idle_since: float = 0.0
    """When its last connected consumer left, in seconds since the epoch; 0: it had one."""


class MemberRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a persistent client asked for when it subscribed."""

    group: str = ""
    prefetch: int = 0
    auto_commit: bool | None = None  # it did not say
    settles_by_ack: bool = False
    qos: int = 1
    identifier: int = 0


@dataclass(slots=True)
class StoredGroup:
    """A group as it was left."""

    record: GroupRecord
    head: bytes | None = None
    committed: int | None = None
    windows: list[tuple[int, bytes]] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class StoredQueue:
    groups: dict[str, StoredGroup] = field(default_factory=dict)
    removed: RemovedOffsets | None = None
    dead: int = 0


def state_key(queue: str, group: str, kind: bytes, number: int = 0) -> bytes:
    key = SEPARATOR.join((queue.encode(), group.encode(), kind))
    return key + number.to_bytes(8, "big") if kind in (WINDOW, REASON) else key


def member_key(client_id: str, topic_filter: str) -> bytes:
    return SEPARATOR.join((client_id.encode(), topic_filter.encode()))


class QueueState:
    """Writes what has changed, and tells the groups when it is durable. What cannot be written is written again, in its
    order, until it can."""

    def __init__(self, store: StateStore, scheduler: Scheduler) -> None:
        self._store = store
        self._writes = OrderedWrites(store, scheduler, comes_last=_is_head)

    def save(self, groups: Iterable[QueueGroup], on_done: OnSaved | None = None) -> None:
        """One commit for all of them; `on_done` hears whether it worked at once, the groups when it has worked."""
        changes: list[Change] = []
        marks: list[tuple[QueueGroup, int]] = []
        for group in groups:
            mark, head, windows = group.take_changes()
            marks.append((group, mark))
            if not group.owner.is_kept:
                continue
            queue, identity = group.queue.name, group.id
            if group.queue.is_stream:
                committed = group.committed.to_bytes(8, "big")
                changes.append((STATE, state_key(queue, identity, COMMITTED), committed))
                continue
            if group.reason_changes:
                reasons, group.reason_changes = group.reason_changes, {}
                for offset, reason in reasons.items():
                    value = None if reason is None else reason.encode()
                    changes.append((STATE, state_key(queue, identity, REASON, offset), value))
            # The head last: a cursor without what is pending before it would lose messages.
            changes += [(STATE, state_key(queue, identity, WINDOW, number), value) for number, value in windows]
            if head is not None:
                changes.append((STATE, state_key(queue, identity, HEAD), head))
        self._write(changes, marks, on_done)

    def _write(
        self, changes: list[Change], marks: Sequence[tuple[QueueGroup, int]], on_done: OnSaved | None = None
    ) -> None:
        if changes or any(group.owner.is_kept for group, _ in marks):
            self._writes.write(changes, marks, on_done)
            return
        for group, mark in marks:  # of ephemeral queues: there is nothing to store
            group.stored(mark)
        if on_done is not None:
            on_done(None)

    def store(self, changes: Iterable[Change]) -> None:
        """Records of definitions, groups and members."""
        self._write(list(changes), ())

    async def store_now(self, changes: Iterable[Change]) -> None:
        """They are durable when this returns. Raises StoreError, and then nothing of it is written later: it might come
        behind what was written since."""
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._writes.write_once(changes, lambda error: None if done.done() else done.set_result(error))
        if (error := await done) is not None:
            raise error

    async def flush(self) -> None:
        """Everything is durable that was given before; raises StoreError, also if some of it is yet to be written
        again."""
        await self._store.flush()
        if self._writes.has_backlog:
            raise StoreError("earlier changes are not stored yet")

    def add_group(self, queue: str, identity: str, record: GroupRecord) -> None:
        self.store([(STATE, state_key(queue, identity, GROUP), msgspec.json.encode(record))])

    def remove_group(self, group: QueueGroup) -> None:
        """With everything that was stored of it."""
        self.store(self.removal_of(group))

    def removal_of(self, group: QueueGroup) -> list[Change]:
        queue, identity = group.queue.name, group.id
        numbers = {entry[0] >> 8 for entry in group.pending.entries(group.pending.count)}
        numbers |= {number for number, _ in group.take_changes()[2]}
        return _removal(queue, identity, numbers, group.reasons)

    async def load(self) -> tuple[dict[str, bytes], dict[str, StoredQueue], dict[tuple[str, str], MemberRecord]]:
        """Definitions, the state of queues by name, and members by (client, filter)."""
        definitions: dict[str, bytes] = {}
        queues: dict[str, StoredQueue] = {}
        members: dict[tuple[str, str], MemberRecord] = {}

        def on_definition(key: bytes, value: bytes | None) -> None:
            if value is not None:
                definitions[key.decode()] = value

        def on_member(key: bytes, value: bytes | None) -> None:
            if value is not None:
                client_id, _, topic_filter = key.partition(SEPARATOR)
                record = msgspec.json.decode(value, type=MemberRecord)
                members[client_id.decode(), topic_filter.decode()] = record

        def on_state(key: bytes, value: bytes | None) -> None:
            if value is not None:
                _read_state(queues, key, value)

        await self._store.load(DEFINITIONS, on_definition)
        await self._store.load(STATE, on_state)
        await self._store.load(MEMBERS, on_member)
        return definitions, queues, members


def _is_head(change: Change) -> bool:
    """A cursor without the messages pending before it would lose them."""
    return change[0] == STATE and change[1].split(SEPARATOR, 2)[2] == HEAD


def removal_of_stored(queue: str, stored: StoredQueue) -> list[Change]:
    """The same for groups that nobody has opened."""
    return [
        change
        for identity, group in stored.groups.items()
        for change in _removal(queue, identity, (number for number, _ in group.windows), group.reasons)
    ]


def _removal(queue: str, identity: str, numbers: Iterable[int], reasons: Iterable[int]) -> list[Change]:
    changes: list[Change] = [(STATE, state_key(queue, identity, kind), None) for kind in (GROUP, HEAD, COMMITTED)]
    changes += [(STATE, state_key(queue, identity, WINDOW, number), None) for number in numbers]
    changes += [(STATE, state_key(queue, identity, REASON, offset), None) for offset in reasons]
    return changes


def _read_state(queues: dict[str, StoredQueue], key: bytes, value: bytes) -> None:
    name, group, kind = key.split(SEPARATOR, 2)
    queue = queues.setdefault(name.decode(), StoredQueue())
    if kind == REMOVED:
        queue.removed = RemovedOffsets.decode(value)
        return
    if kind == DEAD:
        queue.dead = int.from_bytes(value, "big")
        return
    stored = queue.groups.setdefault(group.decode(), StoredGroup(GroupRecord("")))
    if kind == GROUP:
        stored.record = msgspec.json.decode(value, type=GroupRecord)
    elif kind == HEAD:
        stored.head = value
    elif kind == COMMITTED:
        stored.committed = int.from_bytes(value, "big")
    elif kind.startswith(REASON):
        stored.reasons[int.from_bytes(kind[1:], "big")] = value.decode()
    else:
        stored.windows.append((int.from_bytes(kind[1:], "big"), value))
