"""The queues of DEVICE clients as tables of LMDB, inside a transaction that belongs to the caller.

| table  | key                                           | value                                          |
|--------|-----------------------------------------------|------------------------------------------------|
| queues | name, or its SHA-256 if it is long            | number, last packet id, highest score          |
| chunks | number, score of the first message            | messages of one addition, half a page of them  |
| marks  | partition, bucket of offsets, a number of its own | queues and scores of messages that were added |

Numbers in keys are big-endian, so a queue's messages lie together and in order, and marks lie in the order of the log.
What is in chunks and marks is described and done in `_ext.queue_rows`. There are two tables of marks: when one has
MARKS_KEPT of them the other is emptied, which costs next to nothing, and takes the new ones. The row of a queue is
written when it is made and when its newest message goes; until then the newest message knows better.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable, Iterator
from typing import Any

import lmdb

from penstock._ext.device.rows import (
    MARKS_SPAN,
    NoPacketId,
    QueueCounters,
    RowWriter,
    chunk_count,
    chunk_scores,
    copy_chunk,
    edit_chunk,
    find_mark,
    mark_prefix,
    packet_id_of,
    read_chunk,
)
from penstock._ext.record.segment import RecordPack
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.subscribers.device.store.base import (
    LONGEST_TTL_MS,
    SOURCE,
    Added,
    Moved,
    NoPacketIdLeft,
    Page,
    Queue,
    QueueState,
    StoreFull,
    group_via,
)
from penstock.subscribers.device.store.sizes import QueueSizes

LONGEST_NAME = 400
MARKS_KEPT = 1_000_000
MOST_CACHED = 65_536
MOST_TAKEN = 1_000
MOST_ROUNDS = 16
NEXT_NUMBER = b"\2next"
PROBE = b"\2probe"
MARKS_IN = b"\2marks"
ADDED = b"\2added"
STORED = b"\2stored"
BYTES = b"\2bytes"

QUEUE_ROW = struct.Struct("<QHQ")
CHUNK_KEY = struct.Struct(">QQ")
# The partition is written with its sign turned over, so that negative ones come first.
MARK_KEY = struct.Struct(">IqQ")
MARK_BUCKET = struct.Struct(">Iq")
MARKS_ROW = struct.Struct("<BQ")
NUMBER = struct.Struct(">Q")
SIGN = 0x80000000

_chunk_key, _number = CHUNK_KEY.pack, NUMBER.pack


class QueueTables:
    """Used by one thread. `begin` and `end` enclose everything that is written."""

    def __init__(self, store: LmdbStore, messages_limit: int, bytes_limit: int = 0, total_bytes: int = 0) -> None:
        """`bytes_limit` is for each queue, `total_bytes` for all of them; 0 = no limit."""
        self._store = store
        self._limit = messages_limit
        self._sizes = QueueSizes(bytes_limit, total_bytes)
        self._queues = store.space("queues").database
        self._chunks = store.space("chunks").database
        self._marks = [store.space("marks-0").database, store.space("marks-1").database]
        self._marks_in = 0  # which of the two takes new ones
        self._marks_from = 0  # so many were added before the first of them
        self._added = 0  # messages that were ever added
        self.stored = 0  # messages that are there now, in all queues; other threads may look
        self._states: dict[Queue, QueueCounters] = {}
        self._taken = 0  # of how many states the taken packet ids are known
        self._next_number: int | None = None
        self._rows = RowWriter(self)
        self._queue_rows: dict[bytes, bytes] = {}
        self._transaction: Any = None

    def begin(self, transaction: lmdb.Transaction) -> None:
        self._transaction = transaction
        if self._next_number is None:
            self._load()

    def end(self) -> None:
        """Before the commit."""
        self.write_rows()
        if len(self._states) > MOST_CACHED or self._taken > MOST_TAKEN:
            self._states.clear()
            self._taken = 0
        self._sizes.shrink()

    def forget(self) -> None:
        """The transaction failed: nothing that is known can be trusted."""
        self._states.clear()
        self._taken = 0
        self._next_number = None
        self._rows.forget()
        self._queue_rows.clear()
        self._sizes.forget()

    def _load(self) -> None:
        row = self._transaction.get(NEXT_NUMBER, db=self._queues)
        self._next_number = 1 if row is None else int.from_bytes(row, "big")
        row = self._transaction.get(ADDED, db=self._queues)
        self._added = 0 if row is None else int.from_bytes(row, "big")
        row = self._transaction.get(STORED, db=self._queues)
        self.stored = self._count_all() if row is None else int.from_bytes(row, "big")
        row = self._transaction.get(BYTES, db=self._queues)
        self._sizes.total = self._weigh_all() if row is None else int.from_bytes(row, "big")
        row = self._transaction.get(MARKS_IN, db=self._queues)
        self._marks_in, self._marks_from = (0, 0) if row is None else MARKS_ROW.unpack(row)
        for database in self._marks:
            cursor = self._transaction.cursor(db=database)
            found = cursor.last()
            while found:
                order, bucket, _ = MARK_KEY.unpack(cursor.key())
                self._rows.note_newest(order - SIGN, (bucket + 1) * MARKS_SPAN - 1)
                # Before the first mark of this partition is the last one of the partition before.
                found = cursor.set_range(MARK_BUCKET.pack(order, 0)) and cursor.prev()

    def _count_all(self) -> int:
        """Of a store that was made before their number was written down, once."""
        return sum(chunk_count(chunk) for _, chunk in self._transaction.cursor(db=self._chunks))

    def _weigh_all(self) -> int:
        """Sum the sizes of all messages, once, for a store that was created before their total was stored."""
        return sum(len(chunk) for _, chunk in self._transaction.cursor(db=self._chunks))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the messages in all queues; other threads may read it."""
        return self._sizes.total

    def _note_bytes(self, number: int, change: int) -> None:
        if change:
            self._sizes.note(number, change)
            self._queue_rows[BYTES] = _number(self._sizes.total)

    def _note_stored(self, change: int) -> None:
        if change:
            self.stored += change
            self._queue_rows[STORED] = _number(self.stored)

    # Queues.

    @staticmethod
    def _name(queue: Queue) -> bytes:
        name = queue.encode()
        return b"\0" + name if len(name) <= LONGEST_NAME else b"\1" + hashlib.sha256(name).digest()

    def _find(self, queue: Queue, make: bool) -> QueueCounters | None:
        state = self._states.get(queue)
        if state is None:
            row = self._transaction.get(self._name(queue), db=self._queues)
            if row is not None:
                state = self._read_state(*QUEUE_ROW.unpack(row))
            elif make:
                assert self._next_number is not None
                state = QueueCounters(self._next_number, 0, 0)
                self._next_number += 1
                self._queue_rows[NEXT_NUMBER] = _number(self._next_number)
                self._write_state(queue, state)
            else:
                return None
            self._states[queue] = state
        return state

    def _read_state(self, number: int, last_id: int, last_score: int) -> QueueCounters:
        """Of a queue to which nothing was added in this transaction: what was is remembered."""
        cursor = self._transaction.cursor(db=self._chunks)
        first = -1
        if cursor.set_range(_chunk_key(number, 0)):
            owner, base = CHUNK_KEY.unpack(cursor.key())
            if owner == number:
                first = base
        if first < 0:
            return QueueCounters(number, last_id, last_score)
        if cursor.set_range(_chunk_key(number + 1, 0)):
            cursor.prev()
        else:
            cursor.last()
        newest = chunk_scores(cursor.value(), CHUNK_KEY.unpack(cursor.key())[1])[-1]
        if newest > last_score:
            last_score, last_id = newest, packet_id_of(newest)
        state = QueueCounters(number, last_id, last_score)
        state.first_score, state.most, state.is_exact = first, newest - first + 1, False
        return state

    def _write_state(self, queue: Queue, state: QueueCounters) -> None:
        self._queue_rows[self._name(queue)] = QUEUE_ROW.pack(state.number, state.last_id, state.last_score)

    def _walk(self, state: QueueCounters) -> Iterator[tuple[int, bytes]]:
        """The chunks of a queue: the score of the key, and what is in it."""
        self.write_rows()
        cursor = self._transaction.cursor(db=self._chunks)
        if cursor.set_range(_chunk_key(state.number, 0)):
            for key, chunk in cursor:
                number, base = CHUNK_KEY.unpack(key)
                if number != state.number:
                    return
                yield base, chunk

    def _count(self, state: QueueCounters) -> int:
        if not state.is_exact:
            state.most = sum(chunk_count(chunk) for _, chunk in self._walk(state))
            state.is_exact = True
        return state.most

    def find_first(self, state: QueueCounters) -> None:
        """For the row writer: packet ids come round to those of messages that may still be stored."""
        first = next(self._walk(state), None)
        state.first_score = state.last_score + 1 if first is None else first[0]

    def load_taken(self, state: QueueCounters) -> None:
        """For the row writer: they are still stored, some of them."""
        state.take(score for base, chunk in self._walk(state) for score in chunk_scores(chunk, base))
        self._taken += 1

    # Adding.

    def add(self, queue: Queue, pack: RecordPack, in_flight: bytes, now: int, default_expiry: int) -> Added:
        state = self._states.get(queue) or self._find(queue, make=True)
        assert state is not None
        passed_over = trimmed = 0
        if state.most + pack.count > self._limit:
            passed_over, trimmed = self._make_room(state, pack, now)
        if self._sizes.is_near(state.number, pack.size):
            without_room, freed = self._make_bytes(state, pack)
            passed_over, trimmed = max(passed_over, without_room), trimmed + freed
            if passed_over >= pack.count:
                return Added([0] * pack.count, trimmed + pack.count)
        self._sizes.pending += pack.size
        try:
            packet_ids, knows_last_id = self._rows.add(
                state, pack, in_flight, now, default_expiry, now + LONGEST_TTL_MS, passed_over
            )
        except NoPacketId as error:
            raise NoPacketIdLeft(str(error)) from None
        if not knows_last_id:
            self._write_state(queue, state)
        return Added(packet_ids, trimmed + passed_over)

    def _make_room(self, state: QueueCounters, pack: RecordPack, now: int) -> tuple[int, int]:
        """How many of the messages that come are more than the queue has room for, and how many old ones had to go."""
        if self._count(state) + pack.count <= self._limit:
            return 0, 0
        self.write_rows()
        new: set[tuple[int, int, int]] = set()
        sources: list[Any] = pack.keys()
        for partition, via, offset, expires, _ in map(SOURCE.unpack, sources):
            if (expires == 0 or expires > now) and self.find_known(state, partition, offset, via) is None:
                new.add((partition, via, offset))
        return max(0, len(new) - self._limit), self._trim(state, min(len(new), self._limit))

    def _make_bytes(self, state: QueueCounters, pack: RecordPack) -> tuple[int, int]:
        """Make room for the bytes of a pack. Return how many of its first messages have no room, and how many old
        messages were removed."""
        self.write_rows()
        surplus, passed_over = self._find_surplus(state, pack.size), 0
        # These would have no room even if every old message went.
        excess = surplus - self._sizes.size_of(state.number)
        if excess > 0:
            for value in pack.values():
                if excess <= 0:
                    break
                excess -= len(value or b"")
                surplus -= len(value or b"")
                passed_over += 1
        return passed_over, self._trim_bytes(state, surplus) if passed_over < pack.count else 0

    def _find_surplus(self, state: QueueCounters, size: int) -> int:
        """Return the bytes to remove from the queue before `size` bytes can be added; may be more than it has."""
        if not self._sizes.is_known(state.number):
            self._sizes.learn(state.number, sum(len(chunk) for _, chunk in self._walk(state)))
        return self._sizes.find_surplus(state.number, size)

    def _trim_bytes(self, state: QueueCounters, surplus: int) -> int:
        """Remove the oldest chunks until `surplus` bytes are free; return how many messages they had."""
        if surplus <= 0:
            return 0
        oldest: list[int] = []
        freed = 0
        for base, chunk in self._walk(state):
            if freed >= surplus:
                break
            oldest += chunk_scores(chunk, base)
            freed += len(chunk)
        else:
            base = state.last_score + 1
        if oldest:
            self._count(state)
            self._edit(state, oldest, empties=False)
            state.first_score = base
        return len(oldest)

    def _find_score(self, state: QueueCounters, partition: int, offset: int, via: int) -> int:
        """The score that a message got when it was added; 0 = it never was."""
        prefix = mark_prefix(partition, offset)
        for database in self._marks:
            cursor = self._transaction.cursor(db=database)
            if cursor.set_range(prefix):
                for key, row in cursor:
                    if not key.startswith(prefix):
                        break
                    score = find_mark(row, offset, via, state.number)
                    if score:
                        return score
        return 0

    def find_known(self, state: QueueCounters, partition: int, offset: int, via: int) -> int | None:
        """A message that was added before: its packet id while it is stored, 0 when it is gone; None = it was not."""
        score = self._find_score(state, partition, offset, via)
        if not score:
            return None
        cursor = self._transaction.cursor(db=self._chunks)
        base = self._seek(cursor, state, score)
        return packet_id_of(score) if base >= 0 and score in chunk_scores(cursor.value(), base) else 0

    def _seek(self, cursor: Any, state: QueueCounters, score: int) -> int:
        """Goes to the only chunk that can have the score; the score of its key, -1 = there is none."""
        key = _chunk_key(state.number, score)
        found = cursor.set_range(key)
        if not found or cursor.key() != key:
            found = cursor.prev() if found else cursor.last()
        if not found:
            return -1
        number, base = CHUNK_KEY.unpack(cursor.key())
        return int(base) if number == state.number else -1

    def write_rows(self) -> None:
        """What was added becomes visible to the transaction; in the order of the keys, which is much faster."""
        if self._rows.mark_count:
            self._rows.chunks.sort()
            self._transaction.cursor(db=self._chunks).putmulti(self._rows.chunks)
            self._sizes.note_rows(self._rows.chunks)
            self._queue_rows[BYTES] = _number(self._sizes.total)
            self._rows.chunks.clear()
            count = self._rows.mark_count
            self._transaction.cursor(db=self._marks[self._marks_in]).putmulti(self._rows.take_marks(self._added))
            self._added += count
            self._queue_rows[ADDED] = _number(self._added)
            self._note_stored(count)
            if self._added - self._marks_from > MARKS_KEPT:
                self._marks_in, self._marks_from = 1 - self._marks_in, self._added
                self._transaction.drop(self._marks[self._marks_in], delete=False)
                self._queue_rows[MARKS_IN] = MARKS_ROW.pack(self._marks_in, self._marks_from)
        if self._queue_rows:
            self._transaction.cursor(db=self._queues).putmulti(sorted(self._queue_rows.items()))
            self._queue_rows.clear()

    def _trim(self, state: QueueCounters, new: int) -> int:
        """Makes room for new messages: the oldest go."""
        surplus = min(self._count(state), self._count(state) + new - self._limit)
        if surplus <= 0:
            return 0
        oldest: list[int] = []
        for base, chunk in self._walk(state):
            oldest += chunk_scores(chunk, base)
            if len(oldest) >= surplus:
                break
        self._edit(state, oldest[:surplus], empties=False)
        if len(oldest) > surplus:
            state.first_score = oldest[surplus]
        return surplus

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
            cursor = self._transaction.cursor(db=self._chunks)
            found = self._seek(cursor, state, max(0, after_score + 1)) >= 0
            found = found or cursor.set_range(_chunk_key(state.number, max(0, after_score + 1)))
            for key, chunk in cursor if found else ():
                number, base = CHUNK_KEY.unpack(key)
                if number != state.number:
                    break
                next_score, is_cut = read_chunk(
                    chunk, base, next_score, limit, now, packet_ids, scores, values, expired
                )
                if is_cut:
                    is_last = False
                    break
        return Page(packet_ids, scores, values, next_score, is_last, len(expired)), expired

    def _find_scores(self, state: QueueCounters, packet_ids: Iterable[int]) -> list[int]:
        """Where messages with these packet ids are, if they are anywhere."""
        if state.rounds <= MOST_ROUNDS:
            return state.scores_of(packet_ids)
        wanted = set(packet_ids)
        stored = (score for base, chunk in self._walk(state) for score in chunk_scores(chunk, base))
        return [score for score in stored if packet_id_of(score) in wanted]

    def _edit(self, state: QueueCounters, wanted: list[int], *, empties: bool) -> list[int]:
        """Removes the messages that have these scores, which are in order, or turns them into PUBRELs; those found."""
        cursor = self._transaction.cursor(db=self._chunks)
        edited: list[int] = []
        at = 0
        while at < len(wanted):
            base = self._seek(cursor, state, wanted[at])
            if base < 0:
                at += 1
                continue
            before = at
            size = len(cursor.value())
            chunk, found, at = edit_chunk(cursor.value(), base, wanted, at, empties)
            at = max(at, before + 1)
            if found:
                self._note_bytes(state.number, (len(chunk) if chunk else 0) - size)
            if found and chunk:
                self._transaction.put(_chunk_key(state.number, base), chunk, db=self._chunks)
            elif found:
                cursor.delete()
            edited += found
        if not empties:
            state.removed(edited)
            self._note_stored(-len(edited))
        return edited

    def remove(self, queue: Queue, packet_ids: Iterable[int]) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        if state is None:
            return 0
        removed = self._edit(state, self._find_scores(state, packet_ids), empties=False)
        if removed and removed[-1] == state.last_score:
            self._write_state(queue, state)
        return len(removed)

    def release(self, queue: Queue, packet_ids: Iterable[int]) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        if state is None:
            return 0
        return len(self._edit(state, self._find_scores(state, packet_ids), empties=True))

    def remove_all(self, queue: Queue) -> int:
        state = self._find(queue, make=False)
        self.write_rows()
        if state is None:
            return 0
        removed, size, prefix = 0, 0, _number(state.number)
        cursor = self._transaction.cursor(db=self._chunks)
        found = cursor.set_range(prefix)
        while found and cursor.key()[:8] == prefix:
            removed += chunk_count(cursor.value())
            size += len(cursor.value())
            found = cursor.delete()
        self._transaction.delete(self._name(queue), db=self._queues)
        self._note_stored(-removed)
        self._note_bytes(state.number, -size)
        self._sizes.drop(state.number)
        # Marks are of the number, which nobody gets again.
        del self._states[queue]
        return removed

    def reserve(self, queue: Queue, count: int, in_flight: bytes) -> list[int]:
        state = self._find(queue, make=True)
        assert state is not None
        try:
            packet_ids = self._rows.reserve(state, count, in_flight)
        except NoPacketId:
            raise StoreFull(f"fewer than {count} packet ids are neither stored nor in flight") from None
        self._write_state(queue, state)
        return packet_ids

    def move(
        self,
        group: Queue,
        member: Queue,
        delivery: bytes,
        *,
        limit: int,
        wanted: set[int] | None,
        now: int,
        default_expiry: int,
    ) -> Moved:
        """The oldest messages, or of these scores."""
        state = self._find(group, make=False)
        if state is None:
            return Moved(0)
        pack, packet_ids = RecordPack(), list[int]()
        last = max(wanted, default=-1) if wanted is not None else None
        for base, chunk in self._walk(state):
            if last is not None and base > last:
                break
            copy_chunk(chunk, base, pack, group_via(group), delivery, limit, now, packet_ids, wanted)
            if pack.count >= limit:
                break
        trimmed = self.add(member, pack, b"", now, default_expiry).trimmed if pack.count else 0
        self.remove(group, packet_ids)
        return Moved(pack.count, len(packet_ids) - pack.count, trimmed)

    def probe(self) -> None:
        """Writes something, to see whether that is possible."""
        self._transaction.put(PROBE, time.monotonic_ns().to_bytes(8, "big"), db=self._queues)

    def describe(self, queue: Queue) -> QueueState:
        state = self._find(queue, make=False)
        return QueueState(0, 0) if state is None else QueueState(self._count(state), state.last_id)
