"""The pending entries of a consumer group; see pending.pxd. Their order is in pending_entries.pxi.

The life of an entry
--------------------
    claim ──► CLAIMED ──settle──────────────────────────────────► gone
              │  ▲  │
              │  │  ├─ nack: WAITING until its back-off is over ──┐
              │  │  ├─ its due time comes (visibility timeout) ───┤ take_due
              │  │  └─ release: its consumer has left ───────┐    │
              │  │                                           ▼    ▼
              │  └── claim_again: one delivery more ──────── READY, or DEAD after too many deliveries
              └─ bury: rejected ──► DEAD ── settle with consumer 0, when the dead letter is stored ──► gone

    hold ──► HELD ── release_held, or it expires ──► READY       hold is also for READY entries

- An entry exists from its claim until it is settled, in every state: the committed offset never passes it.
- Only a CLAIMED entry has an owner, and only the owner settles, nacks or buries it. In the other states nobody has it,
  and every consumer is refused (NOT_YOURS). The broker itself, consumer 0, may do all of it in every state: dead
  letters, messages that expired while pending, administration.
- A claim that was restored with keep_claims has lost its owner's number, unless that is a lasting one: whoever of the
  group settles it may.
- `deliveries` counts claims. Neither a nack nor a release nor a time-out changes it.

What is stored
--------------
A head (cursor, committed) and one value per window of 256 offsets that has entries. They belong into one transaction;
where there is none, the windows are to be written in the order given and the head last: a prefix of that order costs a
second delivery of something settled, never a message. Formats, version 1 (a version byte comes first in both):
    head    cursor, committed: int64, little-endian
    window  per entry, in the order of offsets: offset & 255 (one byte), state (one byte, in its upper five bits how
            often it was nacked, up to 31, where it is not DEAD; 4 is added to CLAIMED and WAITING if a
            consumer has chosen the due time), deliveries (varint), and
            of a DEAD one the reason (one byte), of a CLAIMED or WAITING one how far its due time is from that of the
            entry with a due time before it (zigzag varint; the first: from 0), and of a CLAIMED one its consumer if
            that is a lasting one, else 0 (varint)
"""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyTypeObject
from cpython.type cimport PyType_Modified
from cython cimport final
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

cdef enum:
    NONE = 0xFFFFFFFF               # no entry; also: not in the heap
    SMALLEST_LIST = 64
    KEPT_LIST = 256                 # an empty list keeps arrays up to this size
    LARGEST_LIST = 0x40000000
    SMALLEST_SET = 16
    MOST_DELIVERIES = 0xFFFF
    WINDOW_BITS = 8
    WINDOW_SIZE = 256
    FORMAT = 1
    HEAD_SIZE = 17
    LARGEST_WINDOW = 1 + 256 * 20   # offset, state, deliveries (3), due (10), consumer (5)
    STATE_BITS = 3                  # of the byte with the state in a window; above them is how often it was nacked
    STATE_MASK = 7
    MOST_NACKS = 31
    LONG_STATE = 4                  # added to the state of an entry that IS_LONG
    BY_REJECTION = 1
    BY_DELIVERIES = 2

CLAIMED = ENTRY_CLAIMED
WAITING = ENTRY_WAITING
READY = ENTRY_READY
DEAD = ENTRY_DEAD
HELD = ENTRY_HELD
REJECTED = BY_REJECTION
MAX_DELIVERIES = BY_DELIVERIES


# The C enum takes these names in this file; Python sees them as numbers of the module.
globals().update(SETTLED=<int> SETTLED, NOT_PENDING=<int> NOT_PENDING, NOT_YOURS=<int> NOT_YOURS)

include "pending_entries.pxi"
include "pending_format.pxi"


# The `wanted` lowest entries of a state, which are there, by their indexes; `first` is where to begin, and is moved on.
cdef list lowest(PendingList pending, EntryState state, uint32_t* first, uint32_t wanted):
    cdef list found = []
    cdef uint32_t index
    if not wanted:
        return found
    while pending.entries[first[0]].state != state:
        first[0] = pending.entries[first[0]].next
    index = first[0]
    while <uint32_t> len(found) < wanted:
        if pending.entries[index].state == state:
            found.append(index)
        index = pending.entries[index].next
    return found


cdef tuple describe(const PendingEntry* entry):
    reason = entry.reason if entry.state == ENTRY_DEAD else 0
    return (entry.offset, entry.state, entry.consumer, entry.deliveries, entry.due, reason)


@final
cdef class PendingList:
    """What a consumer group was given and has not settled. Times are milliseconds since the epoch, consumers the
    caller's numbers (0 = none). Methods called py_x have the name x in Python, see the end of the file."""

    def __cinit__(self, uint32_t limit=100_000, int64_t cursor=0):
        if cursor < 0 or limit > LARGEST_LIST:
            raise ValueError("a cursor below 0, or a limit above 2^30")
        self.limit = limit
        self.cursor = cursor
        self.last_marked = -1
        arrays_free(self)

    def __dealloc__(self):
        arrays_free(self)
        free(self.changed)

    def __len__(self):
        return self.count

    cdef int64_t committed_offset(self) noexcept:
        return self.entries[self.first].offset if self.count else self.cursor

    cdef bint is_full(self) noexcept:
        return self.count >= self.limit

    cdef int claim(self, int64_t offset, uint32_t consumer, int64_t due) except -1:
        cdef uint32_t index
        if offset < self.cursor:
            raise ValueError("claims begin at the cursor")
        if self.count >= self.limit:
            raise OverflowError("the pending list is full")
        mark_changed(self, offset)
        index = entry_add(self, offset, self.last)
        self.entries[index].consumer = consumer
        self.entries[index].deliveries = 1
        become_timed(self, index, ENTRY_CLAIMED, due)
        self.cursor = offset + 1
        self.head_changed = True
        return 0

    cdef int skip_to(self, int64_t offset) except -1:
        if offset > self.cursor:
            self.cursor = offset
            self.head_changed = True
        return 0

    cdef int move_to(self, int64_t offset) except -1:
        if offset != self.cursor and (self.last == NONE or self.entries[self.last].offset < offset):
            self.cursor = offset
            self.head_changed = True
        return 0

    cdef uint32_t claim_again(self, int64_t offset, uint32_t consumer, int64_t due) except? 0xFFFFFFFF:
        cdef uint32_t index = find_index(self, offset)
        cdef PendingEntry* entry
        if index == NONE or self.entries[index].state != ENTRY_READY:
            return 0
        mark_changed(self, offset)
        entry = &self.entries[index]
        entry.consumer = consumer
        entry.reason &= NACKS
        if entry.deliveries < MOST_DELIVERIES:
            entry.deliveries += 1
        become_timed(self, index, ENTRY_CLAIMED, due)
        return entry.deliveries

    cdef Settlement settle(self, int64_t offset, uint32_t consumer) except *:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE:
            return NOT_PENDING
        if not may_settle(&self.entries[index], consumer):
            return NOT_YOURS
        mark_changed(self, offset)
        entry_remove(self, index)
        return SETTLED

    cdef Settlement nack(self, int64_t offset, uint32_t consumer, int64_t due, uint32_t* deliveries) except *:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE:
            return NOT_PENDING
        if not may_settle(&self.entries[index], consumer):
            return NOT_YOURS
        mark_changed(self, offset)
        self.entries[index].reason &= NACKS
        if self.entries[index].reason < NACKS:
            self.entries[index].reason += 1
        become_timed(self, index, ENTRY_WAITING, due)
        if deliveries != NULL:
            deliveries[0] = self.entries[index].deliveries
        return SETTLED

    cdef Settlement nack_until(self, int64_t offset, uint32_t consumer, int64_t due) except *:
        cdef Settlement result = self.nack(offset, consumer, due, NULL)
        if result == SETTLED:
            self.entries[find_index(self, offset)].reason |= IS_LONG
        return result

    cdef Settlement extend(self, int64_t offset, uint32_t consumer, int64_t due) except *:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE:
            return NOT_PENDING
        if self.entries[index].state != ENTRY_CLAIMED or not may_settle(&self.entries[index], consumer):
            return NOT_YOURS
        mark_changed(self, offset)
        self.entries[index].reason |= IS_LONG
        become_timed(self, index, ENTRY_CLAIMED, due)
        return SETTLED

    cdef Settlement bury(self, int64_t offset, uint32_t consumer, uint8_t reason) except *:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE:
            return NOT_PENDING
        if not may_settle(&self.entries[index], consumer):
            return NOT_YOURS
        mark_changed(self, offset)
        become_dead(self, index, reason)
        return SETTLED

    cdef int hold(self, int64_t offset, int64_t due) except -1:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE:
            if offset < self.cursor:
                raise ValueError("only messages from the cursor on, or READY entries, are held")
            mark_changed(self, offset)
            index = entry_add(self, offset, self.last)
            self.cursor = offset + 1
            self.head_changed = True
        elif self.entries[index].state != ENTRY_READY:
            return 0
        become_held(self, index, due)
        return 0

    cdef bint release_held(self, int64_t offset) except -1:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE or self.entries[index].state != ENTRY_HELD:
            return False
        become_ready(self, index)
        return True

    cdef uint32_t release_all_held(self) except? 0xFFFFFFFF:
        cdef uint32_t index = self.first
        cdef uint32_t released = 0
        while index != NONE:
            if self.entries[index].state == ENTRY_HELD:
                become_ready(self, index)
                released += 1
            index = self.entries[index].next
        return released

    # Another delivery may come at once, whoever has it now.
    cdef bint give_up(self, int64_t offset) except *:
        cdef uint32_t index = find_index(self, offset)
        if index == NONE or self.entries[index].state == ENTRY_DEAD:
            return False
        mark_changed(self, offset)
        become_ready(self, index)
        return True

    # Walks the whole list, because consumers leave rarely and a list per consumer would cost every claim.
    cdef uint32_t release(self, uint32_t consumer) except? 0xFFFFFFFF:
        cdef uint32_t index = self.first
        cdef uint32_t released = 0
        if consumer == 0:
            return 0
        while index != NONE:
            if self.entries[index].consumer == consumer:
                if self.entries[index].state == ENTRY_CLAIMED:
                    mark_changed(self, self.entries[index].offset)
                    become_ready(self, index)
                    released += 1
                self.entries[index].consumer = 0    # of WAITING ones too: the number may be given to somebody else
            index = self.entries[index].next
        return released

    cdef const PendingEntry* find(self, int64_t offset) noexcept:
        cdef uint32_t index = find_index(self, offset)
        return &self.entries[index] if index != NONE else NULL

    cdef int64_t next_due(self) noexcept:
        return self.entries[self.heap[0]].due if self.heap_count else -1

    def bury_exhausted(self, uint32_t max_deliveries):
        """READY entries that were delivered so often already are DEAD; how many. Walks the whole list."""
        cdef uint32_t index = self.first
        cdef uint32_t buried = 0
        while index != NONE and self.ready_count:
            if self.entries[index].state == ENTRY_READY and self.entries[index].deliveries >= max_deliveries:
                mark_changed(self, self.entries[index].offset)
                become_dead(self, index, BY_DELIVERIES)
                buried += 1
            index = self.entries[index].next
        return buried

    def count_of(self, uint32_t consumer):
        """Entries this consumer has; walks the whole list."""
        cdef uint32_t index = self.first
        cdef uint32_t found = 0
        while index != NONE:
            if self.entries[index].consumer == consumer and self.entries[index].state == ENTRY_CLAIMED:
                found += 1
            index = self.entries[index].next
        return found

    def cap_due(self, int64_t claimed, int64_t waiting, int64_t longest=0):
        """Cap the due times of CLAIMED and WAITING entries, at `longest` if a consumer has chosen the time: the clock
        may have been set back since they were stored."""
        cdef uint32_t index = self.first
        cdef int64_t latest
        while index != NONE:
            latest = claimed if self.entries[index].state == ENTRY_CLAIMED else waiting
            if self.entries[index].reason & IS_LONG and self.entries[index].heap_at != NONE:
                latest = max(latest, longest)
            if self.entries[index].heap_at != NONE and self.entries[index].due > latest:
                self.entries[index].due = latest
                heap_fill(self, self.entries[index].heap_at, index)
            index = self.entries[index].next

    def py_claim(self, int64_t offset, uint32_t consumer, int64_t due):
        """The record at `offset` goes to `consumer` for the first time; OverflowError when the list is full."""
        return self.claim(offset, consumer, due)

    def py_skip_to(self, int64_t offset):
        return self.skip_to(offset)

    def py_claim_again(self, int64_t offset, uint32_t consumer, int64_t due):
        """Deliveries, counting this one; 0 if the entry is not READY."""
        return self.claim_again(offset, consumer, due)

    def py_settle(self, int64_t offset, uint32_t consumer):
        return <int> self.settle(offset, consumer)

    def py_nack(self, int64_t offset, uint32_t consumer, int64_t due):
        """(settlement, how often it was delivered so far)"""
        cdef uint32_t deliveries = 0
        cdef Settlement settlement = self.nack(offset, consumer, due, &deliveries)
        return <int> settlement, deliveries

    def py_nack_until(self, int64_t offset, uint32_t consumer, int64_t due):
        return <int> self.nack_until(offset, consumer, due)

    def py_extend(self, int64_t offset, uint32_t consumer, int64_t due):
        return <int> self.extend(offset, consumer, due)

    def py_bury(self, int64_t offset, uint32_t consumer, uint8_t reason):
        return <int> self.bury(offset, consumer, reason)

    def py_release(self, uint32_t consumer):
        """How many entries became READY."""
        return self.release(consumer)

    def py_hold(self, int64_t offset, int64_t due=0):
        """Hold the message at `offset` until a consumer that may receive it has room."""
        return self.hold(offset, due)

    def py_release_held(self, int64_t offset):
        return self.release_held(offset)

    def py_release_all_held(self):
        """How many entries became READY."""
        return self.release_all_held()

    def py_find(self, int64_t offset):
        """(offset, state, consumer, deliveries, due, reason), or None."""
        cdef uint32_t index = find_index(self, offset)
        return describe(&self.entries[index]) if index != NONE else None

    def py_entries(self, uint32_t limit):
        """(offset, state, consumer, deliveries, due, reason) of the first `limit` entries."""
        cdef uint32_t index = self.first
        cdef list found = []
        while index != NONE and <uint32_t> len(found) < limit:
            found.append(describe(&self.entries[index]))
            index = self.entries[index].next
        return found

    @property
    def py_is_full(self):
        return self.is_full()

    @property
    def py_next_due(self):
        return self.next_due()

    @property
    def committed(self):
        """Everything before it is settled."""
        return self.committed_offset()

    def take_due(self, int64_t now_ms, uint32_t most, uint32_t max_deliveries):
        """(offset, deliveries, what it became, who had it) of at most `most` entries whose time has come, the earliest
        first.

        DEAD is what was delivered `max_deliveries` times or more (0 = there is no limit), READY everything else."""
        cdef list taken = []
        cdef uint32_t index, consumer
        cdef PendingEntry* entry
        while <uint32_t> len(taken) < most and self.heap_count and self.entries[self.heap[0]].due <= now_ms:
            index = self.heap[0]
            entry = &self.entries[index]
            consumer = entry.consumer if entry.state == ENTRY_CLAIMED else 0
            mark_changed(self, entry.offset)
            if max_deliveries and entry.deliveries >= max_deliveries:
                become_dead(self, index, BY_DELIVERIES)
            else:
                become_ready(self, index)
            taken.append((entry.offset, entry.deliveries, entry.state, consumer))
        return taken

    def ready(self, uint32_t most):
        """The lowest READY offsets, `most` of them; walks no further than to the last of these."""
        found = lowest(self, ENTRY_READY, &self.first_ready, min(most, self.ready_count))
        return [self.entries[<uint32_t> index].offset for index in found]

    def unclaimed(self, uint32_t most):
        """The lowest offsets that no consumer has and that are not DEAD, `most` of them."""
        cdef uint32_t index = self.first
        cdef list found = []
        while index != NONE and <uint32_t> len(found) < most:
            if self.entries[index].state in (ENTRY_WAITING, ENTRY_READY, ENTRY_HELD):
                found.append(self.entries[index].offset)
            index = self.entries[index].next
        return found

    def dead(self, uint32_t most):
        """(offset, reason, deliveries) of the lowest DEAD offsets, `most` of them."""
        cdef PendingEntry* entry
        cdef list found = []
        for index in lowest(self, ENTRY_DEAD, &self.first_dead, min(most, self.dead_count)):
            entry = &self.entries[<uint32_t> index]
            found.append((entry.offset, entry.reason, entry.deliveries))
        return found

    def reset(self, int64_t cursor):
        """Forgets every entry and goes on at `cursor`, which may lie before or behind (a seek, a purge)."""
        cdef uint32_t index = self.first
        if cursor < 0:
            raise ValueError("a cursor below 0")
        while index != NONE:
            mark_changed(self, self.entries[index].offset)
            index = self.entries[index].next
        arrays_free(self)
        self.cursor = cursor
        self.head_changed = True

    def take_changes(self):
        """(head or None, [(window, value or None if it has no entries any more), ...]) since the last call; the
        docstring of the module says in which order they are to be stored. Costs what the changed windows hold."""
        cdef uint8_t data[HEAD_SIZE]
        cdef int64_t committed = self.committed_offset()
        cdef list numbers = []
        cdef uint32_t i
        head = None
        if self.changed_count:
            for i in range(self.changed_capacity):
                if self.changed[i] >= 0:
                    numbers.append(self.changed[i])
            numbers.sort()
        windows = [(window, build_window(self, window)) for window in numbers]
        if self.head_changed:
            data[0] = FORMAT
            memcpy(&data[1], &self.cursor, sizeof(int64_t))
            memcpy(&data[9], &committed, sizeof(int64_t))
            head = PyBytes_FromStringAndSize(<char*> data, HEAD_SIZE)
        self.forget_changes()
        return head, windows

    def forget_changes(self):
        """For a group whose state is not stored: the notes of what changed would pile up."""
        marks_clear(self)
        self.head_changed = False

    def load_head(self, bytes data not None):
        """Before, between or after the windows; the committed offset that was stored with the cursor."""
        cdef const uint8_t* stored = data
        cdef int64_t cursor, committed
        if len(data) != HEAD_SIZE or stored[0] != FORMAT:
            raise ValueError("a stored head of an unknown format")
        memcpy(&cursor, stored + 1, sizeof(int64_t))
        memcpy(&committed, stored + 9, sizeof(int64_t))
        if not 0 <= committed <= cursor:
            raise ValueError("a stored head is damaged")
        self.cursor = cursor
        if self.count:
            self.cursor = max(cursor, self.entries[self.last].offset + 1)
        return committed

    def load_window(self, int64_t number, bytes data not None, *, bint keep_claims=False, bint keep_lasting=False):
        """The entries of one window, at most once each. Any order of the windows is right; rising or falling numbers
        are quick. What was claimed becomes READY, or with keep_claims stays claimed until it is due, with keep_lasting
        only what lasting consumers have.
        The limit does not hold here: nothing that was pending is lost when it was lowered."""
        cdef PendingEntry found[WINDOW_SIZE]
        cdef int count, i
        cdef uint32_t index, previous = self.last
        if number < 0 or number > <int64_t> 0x7FFFFFFFFFFFFFFF >> WINDOW_BITS:
            raise ValueError("a window of offsets that cannot be")
        count = parse_window(data, len(data), number, found)
        if window_first(self, number) != NONE:
            raise ValueError("the window was loaded before")
        if self.count and self.entries[self.first].offset > number << WINDOW_BITS:
            previous = NONE
        while previous != NONE and self.entries[previous].offset > number << WINDOW_BITS:
            previous = self.entries[previous].previous
        for i in range(count):
            index = entry_add(self, found[i].offset, previous)
            self.entries[index].deliveries = found[i].deliveries
            self.entries[index].reason = found[i].reason
            if found[i].state == ENTRY_DEAD:
                become_dead(self, index, found[i].reason)
            elif found[i].state == ENTRY_WAITING or (found[i].state == ENTRY_CLAIMED and (
                    keep_claims or (keep_lasting and found[i].consumer))):
                self.entries[index].consumer = found[i].consumer
                become_timed(self, index, <EntryState> found[i].state, found[i].due)
            else:
                become_ready(self, index)
            previous = index
        if self.count:
            self.cursor = max(self.cursor, self.entries[self.last].offset + 1)

    def bench_cycle(self, int rounds, int depth):
        """Claims `depth` entries and settles them in order, `rounds` times, without Python in between."""
        cdef int _round, i
        cdef int64_t base
        for _round in range(rounds):
            base = self.cursor
            for i in range(depth):
                self.claim(base + i, 1, base + i)
            for i in range(depth):
                self.settle(base + i, 1)


# A class cannot have a C method and a Python method of one name when it is compiled, but its dictionary knows only the
# Python ones: so these get the names of the C methods here.
cdef int name_python_methods() except -1:
    cdef dict names = <dict> (<PyTypeObject*> PendingList).tp_dict
    for name in [name for name in names if name.startswith("py_")]:
        names[name.removeprefix("py_")] = names.pop(name)
    PyType_Modified(PendingList)
    return 0


name_python_methods()
