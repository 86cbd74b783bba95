"""The queues of DEVICE clients as tables of LMDB, inside a transaction that belongs to the caller.

| table    | key                                  | value                                                    |
|----------|--------------------------------------|----------------------------------------------------------|
| queues   | name, or its SHA-256 if it is long   | number, last packet id, highest score                    |
| messages | number, score                        | source with expiry and packet id filled in, the envelope |
| ids      | number, packet id                    | score                                                    |
| marks    | partition, offset, via, number       | score, packet id                                         |

Numbers in keys are big-endian, so a queue's messages lie together and in order, and marks lie in the order of the log.
There are two tables of marks: when one has MARKS_KEPT of them the other is emptied, which costs next to nothing, and
takes the new ones. The row of a queue is written when it is made and when its newest message goes; until then the
newest message knows better.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable
from typing import Any

import lmdb

from penstock._ext.segment import RecordPack
from penstock.stores.device import (
    LONGEST_TTL_MS,
    MOST_PACKET_IDS,
    SOURCE,
    SOURCE_IDENTITY,
    Added,
    Page,
    Queue,
    QueueState,
    StoreFull,
    group_via,
)
from penstock.stores.lmdb_kv import LmdbStore

LONGEST_NAME = 400
MARKS_KEPT = 1_000_000
MOST_CACHED = 65_536
HEADER = SOURCE.size
NEXT_NUMBER = b"\2next"
PROBE = b"\2probe"
MARKS_IN = b"\2marks"

QUEUE_ROW = struct.Struct("<QHQ")
MESSAGE_KEY = struct.Struct(">QQ")
ID_KEY = struct.Struct(">QH")
# The partition is written with its sign turned over, so that negative ones come first.
MARK_KEY = struct.Struct(">IqIQ")
MARK_VALUE = struct.Struct(">QH")
SCORE = struct.Struct(">Q")
TAIL = struct.Struct("<qH")
SIGN = 0x80000000

_message_key, _id_key, _mark_key, _score = MESSAGE_KEY.pack, ID_KEY.pack, MARK_KEY.pack, SCORE.pack
_mark_value, _pack_source, _unpack_source = MARK_VALUE.pack, SOURCE.pack, SOURCE.unpack
NO_IDS: frozenset[int] = frozenset()


class _State:
    """What is known of a queue."""

    __slots__ = ("base", "count", "last_id", "last_score", "next_taken", "number")

    def __init__(self, number: int, last_id: int, last_score: int, base: int) -> None:
        self.number = number
        self.last_id = last_id
        self.last_score = last_score
        self.base = base  # no more messages than last_score - base
        self.count: int | None = None  # exactly, once somebody had to know
        # The first packet id after last_id, and not lower, that is stored.
        self.next_taken = MOST_PACKET_IDS + 1


class QueueTables:
    """Used by one thread. `begin` and `end` enclose everything that is written."""

    def __init__(self, store: LmdbStore, messages_limit: int) -> None:
        self._store = store
        self._limit = messages_limit
        self._queues = store.space("queues").database
        self._messages = store.space("messages").database
        self._ids = store.space("ids").database
        self._marks = [store.space("marks-0").database, store.space("marks-1").database]
        self._marks_in = 0  # which of the two takes new ones
        self._marks_count = 0
        self._states: dict[Queue, _State] = {}
        self._newest: dict[int, int] = {}  # partition to its newest offset in `marks`
        self._newest_now: dict[int, int] = {}  # the same, with what is not written yet
        self._next_number: int | None = None
        self._message_rows: list[tuple[bytes, bytes]] = []
        self._id_rows: dict[bytes, bytes] = {}
        self._mark_rows: dict[bytes, bytes] = {}
        self._queue_rows: dict[bytes, bytes] = {}
        self._transaction: Any = None

    def begin(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        if self._next_number is None:
            self._load()

    def end(self) -> None:
        """Before the commit."""
        self.write_rows()
        if len(self._states) > MOST_CACHED:
            self._states.clear()

    def forget(self) -> None:
        """The transaction failed: nothing that is known can be trusted."""
        self._states.clear()
        self._newest.clear()
        self._newest_now.clear()
        self._next_number = None
        self._forget_rows()

    def _forget_rows(self) -> None:
        # In place: who adds has them in hand.
        self._message_rows.clear()
        self._id_rows.clear()
        self._mark_rows.clear()
        self._queue_rows.clear()

    def _load(self) -> None:
        row = self._transaction.get(NEXT_NUMBER, db=self._queues)
        self._next_number = 1 if row is None else int.from_bytes(row, "big")
        row = self._transaction.get(MARKS_IN, db=self._queues)
        self._marks_in = 0 if row is None else row[0]
        self._marks_count = self._transaction.stat(self._marks[self._marks_in])["entries"]
        for database in self._marks:
            cursor = self._transaction.cursor(db=database)
            found = cursor.last()
            while found:
                order, offset, _, _ = MARK_KEY.unpack(cursor.key())
                self._newest[order - SIGN] = max(offset, self._newest.get(order - SIGN, -1))
                # Before the first mark of this partition is the last one of the partition before.
                found = cursor.set_range(_mark_key(order, 0, 0, 0)) and cursor.prev()

    # Queues.

    @staticmethod
    def _name(queue: Queue) -> bytes:
        name = queue.encode()
        return b"\0" + name if len(name) <= LONGEST_NAME else b"\1" + hashlib.sha256(name).digest()

    def _find(self, queue: Queue, make: bool) -> _State | None:
        state = self._states.get(queue)
        if state is None:
            row = self._transaction.get(self._name(queue), db=self._queues)
            if row is not None:
                state = self._read_state(*QUEUE_ROW.unpack(row))
            elif make:
                assert self._next_number is not None
                state = _State(self._next_number, 0, 0, 0)
                self._next_number += 1
                self._queue_rows[NEXT_NUMBER] = self._next_number.to_bytes(8, "big")
                self._write_state(queue, state)
            else:
                return None
            self._states[queue] = state
        return state

    def _read_state(self, number: int, last_id: int, last_score: int) -> _State:
        """Of a queue to which nothing was added in this transaction: what was is remembered."""
        cursor = self._transaction.cursor(db=self._messages)
        is_before = cursor.prev() if cursor.set_range(_message_key(number + 1, 0)) else cursor.last()
        if is_before:
            owner, score = MESSAGE_KEY.unpack(cursor.key())
            if owner == number and score > last_score:
                last_score = score
                last_id = SOURCE.unpack_from(cursor.value())[4]
        base = last_score
        if cursor.set_range(_message_key(number, 0)):
            owner, score = MESSAGE_KEY.unpack(cursor.key())
            base = score - 1 if owner == number else last_score
        state = _State(number, last_id, last_score, base)
        state.next_taken = self._find_taken(number, last_id + 1)
        return state

    def _write_state(self, queue: Queue, state: _State) -> None:
        self._queue_rows[self._name(queue)] = QUEUE_ROW.pack(state.number, state.last_id, state.last_score)

    def _count(self, state: _State) -> int:
        if state.count is None:
            self.write_rows()
            count, prefix = 0, _score(state.number)
            cursor = self._transaction.cursor(db=self._messages)
            if cursor.set_range(prefix):
                for key in cursor.iternext(keys=True, values=False):
                    if key[:8] != prefix:
                        break
                    count += 1
            state.count = count
        return state.count

    # Adding.

    def add(self, queue: Queue, pack: RecordPack, in_flight: bytes, now: int, default_expiry: int) -> Added:
        """The loop over the messages is written out, because it is what a busy store does all day."""
        state = self._states.get(queue) or self._find(queue, make=True)
        assert state is not None
        sources: list[Any] = pack.keys()
        room, trimmed = self._make_room(state, sources, now)
        taken = frozenset(memoryview(in_flight).cast("H")) if in_flight else NO_IDS
        mark_rows, newest, newest_now = self._mark_rows, self._newest, self._newest_now
        packet_ids = []
        knows_last_id = True  # the newest message has the last packet id that was given
        number, longest = state.number, now + LONGEST_TTL_MS
        for source, value in zip(sources, pack.values(), strict=True):
            partition, via, offset, expires, packet_id = _unpack_source(source)
            mark_key = _mark_key(partition + SIGN, offset, via, number)
            if mark_key in mark_rows or offset <= newest.get(partition, -1):
                mark = self._find_mark(mark_key)
                if mark is not None:
                    packet_ids.append(self._find_marked(state, mark))
                    continue
            if expires == 0:
                expires = default_expiry
            elif expires <= now:
                packet_ids.append(0)
                continue
            elif expires > longest:
                expires = longest
            if room < 0:
                # The newer ones of this pack are all the queue has room for.
                room += 1
                trimmed += 1
                packet_ids.append(0)
                continue
            knows_last_id = packet_id == 0 or self._score_of(state, packet_id) is not None
            if knows_last_id:
                packet_id = self._next_id(state, taken)
            elif state.last_id < packet_id < state.next_taken:
                state.next_taken = packet_id
            score = state.last_score = state.last_score + 1
            message_key = _message_key(number, score)
            row = _pack_source(partition, via, offset, expires, packet_id)
            self._message_rows.append((message_key, row + value if value else row))
            self._id_rows[_id_key(number, packet_id)] = message_key[8:]
            mark_rows[mark_key] = _mark_value(score, packet_id)
            if offset > newest_now.get(partition, -1):
                newest_now[partition] = offset
            if state.count is not None:
                state.count += 1
            packet_ids.append(packet_id)
        if not knows_last_id:
            self._write_state(queue, state)
        return Added(packet_ids, trimmed)

    def _make_room(self, state: _State, sources: list[bytes], now: int) -> tuple[int, int]:
        """How many messages there is room for beside those that come, less than 0 when too many come; how many old ones
        had to go."""
        if state.last_score + len(sources) - state.base <= self._limit:
            return 0, 0
        new = 0
        for source in sources:
            partition, via, offset, expires, _ = _unpack_source(source)
            mark_key = _mark_key(partition + SIGN, offset, via, state.number)
            if (expires == 0 or expires > now) and self._find_mark(mark_key) is None:
                new += 1
        return min(0, self._limit - new), self._trim(state, min(new, self._limit))

    def _find_mark(self, mark_key: bytes) -> bytes | None:
        mark = self._mark_rows.get(mark_key)
        for database in self._marks if mark is None else ():
            mark = mark or self._transaction.get(mark_key, db=database)
        return mark

    def _find_marked(self, state: _State, mark: bytes) -> int:
        """A message that was added before: its packet id while it is stored, 0 when it is gone."""
        score, packet_id = MARK_VALUE.unpack(mark)
        return packet_id if self._score_of(state, packet_id) == _score(score) else 0

    def _score_of(self, state: _State, packet_id: int) -> bytes | None:
        key = _id_key(state.number, packet_id)
        score: bytes | None = self._id_rows.get(key) or self._transaction.get(key, db=self._ids)
        return score

    def _next_id(self, state: _State, taken: frozenset[int]) -> int:
        """The next packet id that is neither stored nor taken."""
        for _ in range(MOST_PACKET_IDS):
            packet_id = state.last_id % MOST_PACKET_IDS + 1
            if packet_id >= state.next_taken or state.last_id == MOST_PACKET_IDS:
                self.write_rows()
                state.next_taken = self._find_taken(state.number, packet_id)
            state.last_id = packet_id
            if packet_id != state.next_taken and packet_id not in taken:
                return packet_id
        raise StoreFull("every packet id of the client is stored or in flight")

    def _find_taken(self, number: int, first: int) -> int:
        """The first stored packet id from `first` on; one that does not exist when there is none."""
        cursor = self._transaction.cursor(db=self._ids)
        if first <= MOST_PACKET_IDS and cursor.set_range(_id_key(number, first)):
            owner, packet_id = ID_KEY.unpack(cursor.key())
            if owner == number:
                return int(packet_id)
        return MOST_PACKET_IDS + 1

    def write_rows(self) -> None:
        """What was added becomes visible to the transaction; in the order of the keys, which is much faster."""
        if not self._message_rows and not self._queue_rows:
            return
        for rows, database in (
            (list(self._queue_rows.items()), self._queues),
            (self._message_rows, self._messages),
            (list(self._id_rows.items()), self._ids),
            (list(self._mark_rows.items()), self._marks[self._marks_in]),
        ):
            rows.sort()
            self._transaction.cursor(db=database).putmulti(rows)
        self._marks_count += len(self._mark_rows)
        self._forget_rows()
        for partition, offset in self._newest_now.items():
            self._newest[partition] = max(offset, self._newest.get(partition, -1))
        self._newest_now.clear()
        if self._marks_count > MARKS_KEPT:
            self._marks_in = 1 - self._marks_in
            self._marks_count = 0
            self._transaction.drop(self._marks[self._marks_in], delete=False)
            self._transaction.put(MARKS_IN, bytes([self._marks_in]), db=self._queues)

    def _trim(self, state: _State, new: int) -> int:
        """Makes room for new messages: the oldest go."""
        surplus = min(self._count(state), self._count(state) + new - self._limit)
        if surplus > 0:
            prefix = _score(state.number)
            self.write_rows()
            cursor = self._transaction.cursor(db=self._messages)
            found = cursor.set_range(prefix)
            for _ in range(surplus):
                if not found or cursor.key()[:8] != prefix:
                    break
                packet_id = SOURCE.unpack_from(cursor.value())[4]
                self._transaction.delete(_id_key(state.number, packet_id), db=self._ids)
                found = cursor.delete()
            assert state.count is not None
            state.count -= surplus
        state.base = state.last_score - self._count(state)
        return max(0, surplus)

    # What is stored.

    def fetch(self, queue: Queue, after_score: int, limit: int, now: int) -> tuple[Page, list[int]]:
        """The page, and the packet ids of messages in between that have expired."""
        packet_ids: list[int] = []
        scores: list[int] = []
        values: list[bytes] = []
        expired: list[int] = []
        next_score, is_last = after_score, True
        state = self._find(queue, make=False)
        self.write_rows()
        if state is not None:
            cursor = self._transaction.cursor(db=self._messages)
            found = cursor.set_range(_message_key(state.number, max(0, after_score + 1)))
            for key, row in cursor if found else ():
                number, score = MESSAGE_KEY.unpack(key)
                if number != state.number:
                    break
                if len(values) == limit:
                    is_last = False
                    break
                next_score = score
                expires, packet_id = TAIL.unpack_from(row, SOURCE_IDENTITY)
                if expires <= now:
                    expired.append(packet_id)
                    continue
                packet_ids.append(packet_id)
                scores.append(score)
                values.append(bytes(row[HEADER:]))
        return Page(packet_ids, scores, values, next_score, is_last), expired

    def remove(self, queue: Queue, packet_ids: Iterable[int]) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        removed = 0
        if state is None:
            return 0
        has_newest = False
        for packet_id in packet_ids:
            id_key = _id_key(state.number, packet_id)
            score = self._transaction.pop(id_key, db=self._ids)
            if score is not None:
                self._transaction.delete(_score(state.number) + score, db=self._messages)
                has_newest |= SCORE.unpack(score)[0] == state.last_score
                removed += 1
        if state.count is not None:
            state.count -= removed
        if has_newest:
            self._write_state(queue, state)
        return removed

    def release(self, queue: Queue, packet_ids: Iterable[int]) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        released = 0
        for packet_id in packet_ids if state is not None else ():
            assert state is not None
            score = self._transaction.get(_id_key(state.number, packet_id), db=self._ids)
            if score is not None:
                key = _score(state.number) + score
                row = self._transaction.get(key, db=self._messages)
                self._transaction.put(key, bytes(row[:HEADER]), db=self._messages)
                released += 1
        return released

    def remove_all(self, queue: Queue) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        if state is None:
            return 0
        removed = self._delete_range(self._messages, _score(state.number))
        self._delete_range(self._ids, _score(state.number))
        self._transaction.delete(self._name(queue), db=self._queues)
        # Marks are of the number, which nobody gets again.
        del self._states[queue]
        return removed

    def _delete_range(self, database: Any, prefix: bytes) -> int:
        cursor = self._transaction.cursor(db=database)
        found, deleted = cursor.set_range(prefix), 0
        while found and cursor.key()[: len(prefix)] == prefix:
            found = cursor.delete()
            deleted += 1
        return deleted

    def reserve(self, queue: Queue, count: int, in_flight: bytes) -> list[int]:
        state = self._find(queue, make=True)
        assert state is not None
        taken = frozenset(memoryview(in_flight).cast("H")) if in_flight else NO_IDS
        packet_ids = [self._next_id(state, taken) for _ in range(count)]
        if len(set(packet_ids)) < count:
            raise StoreFull(f"fewer than {count} packet ids are neither stored nor in flight")
        self._write_state(queue, state)
        return packet_ids

    def move(self, group: Queue, member: Queue, limit: int, now: int, default_expiry: int) -> int:
        page, expired = self.fetch(group, -1, limit, now)
        state = self._find(group, make=False)
        if state is None:
            return 0
        pack, via = RecordPack(), group_via(group)
        for score, value in zip(page.scores, page.values, strict=True):
            row = self._transaction.get(_message_key(state.number, score), db=self._messages)
            partition, _, offset, expires, _ = SOURCE.unpack_from(row)
            pack.append(value, SOURCE.pack(partition, via, offset, expires, 0))
        if pack.count:
            self.add(member, pack, b"", now, default_expiry)
        self.remove(group, [*page.packet_ids, *expired])
        return len(page.packet_ids)

    def probe(self) -> None:
        """Writes something, to see whether that is possible."""
        self._transaction.put(PROBE, time.monotonic_ns().to_bytes(8, "big"), db=self._queues)

    def describe(self, queue: Queue) -> QueueState:
        state = self._find(queue, make=False)
        return QueueState(0, 0) if state is None else QueueState(self._count(state), state.last_id)
