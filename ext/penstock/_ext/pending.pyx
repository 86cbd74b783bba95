"""The pending entries of a consumer group; see pending.pxd.

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

- An entry exists from its claim until it is settled, in every state: the committed offset never passes it.
- Only a CLAIMED entry has an owner, and only the owner settles, nacks or buries it. In the other states nobody has it,
  and every consumer is refused (NOT_YOURS). The broker itself, consumer 0, may do all of it in every state: dead
  letters, messages that expired while pending, administration.
- A claim that was restored with keep_claims has lost its owner's number: whoever of the group settles it may.
- `deliveries` counts claims. Neither a nack nor a release nor a time-out changes it.

What is stored
--------------
A head (cursor, committed) and one value per window of 256 offsets that has entries. They belong into one transaction;
where there is none, the windows are to be written in the order given and the head last: a prefix of that order costs a
second delivery of something settled, never a message. Formats, version 1 (a version byte comes first in both):
    head    cursor, committed: int64, little-endian
    window  per entry, in the order of offsets: offset & 255 (one byte), state (one byte), deliveries (varint), and
            of a DEAD one the reason (one byte), of a CLAIMED or WAITING one how far its due time is from that of the
            entry with a due time before it (zigzag varint; the first: from 0)
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
    LARGEST_WINDOW = 1 + 256 * 15   # offset, state, deliveries (3), due (10)
    BY_REJECTION = 1
    BY_DELIVERIES = 2

CLAIMED = ENTRY_CLAIMED
WAITING = ENTRY_WAITING
READY = ENTRY_READY
DEAD = ENTRY_DEAD
REJECTED = BY_REJECTION
MAX_DELIVERIES = BY_DELIVERIES


# The C enum takes these names in this file; Python sees them as numbers of the module.
globals().update(SETTLED=<int> SETTLED, NOT_PENDING=<int> NOT_PENDING, NOT_YOURS=<int> NOT_YOURS)


# 2^64 divided by the golden ratio: neighbours and offsets at regular distances (a filter that matches every 1024th
# message) are spread alike.
cdef inline uint32_t slot_of(int64_t key, uint8_t shift) noexcept:
    return <uint32_t> ((<uint64_t> key * 0x9E3779B97F4A7C15ULL) >> shift)


cdef inline uint8_t shift_for(uint32_t size) noexcept:
    """To find a place among `size`, a power of two above 1."""
    cdef uint8_t shift = 64
    while size > 1:
        size >>= 1
        shift -= 1
    return shift


cdef inline bint is_sooner(const PendingEntry* one, const PendingEntry* other) noexcept:
    return one.due < other.due or (one.due == other.due and one.offset < other.offset)


cdef inline void heap_place(PendingList pending, uint32_t at, uint32_t index) noexcept:
    pending.heap[at] = index
    pending.entries[index].heap_at = at


cdef void heap_rise(PendingList pending, uint32_t at, uint32_t index) noexcept:
    """`index` belongs at `at` or nearer to the top."""
    cdef uint32_t parent
    while at > 0:
        parent = (at - 1) >> 1
        if not is_sooner(&pending.entries[index], &pending.entries[pending.heap[parent]]):
            break
        heap_place(pending, at, pending.heap[parent])
        at = parent
    heap_place(pending, at, index)


cdef void heap_fill(PendingList pending, uint32_t at, uint32_t index) noexcept:
    """`index` comes to the empty place `at`, and from there to where it belongs.

    The hole goes to the bottom first and `index` rises from there: it is nearly always one of the latest, so that a
    level costs one comparison instead of two."""
    cdef uint32_t child = 2 * at + 1
    while child < pending.heap_count:
        if child + 1 < pending.heap_count and is_sooner(&pending.entries[pending.heap[child + 1]],
                                                        &pending.entries[pending.heap[child]]):
            child += 1
        heap_place(pending, at, pending.heap[child])
        at = child
        child = 2 * at + 1
    heap_rise(pending, at, index)


cdef inline void heap_put(PendingList pending, uint32_t index) noexcept:
    pending.heap_count += 1
    heap_rise(pending, pending.heap_count - 1, index)


cdef inline void heap_remove(PendingList pending, uint32_t index) noexcept:
    cdef uint32_t at = pending.entries[index].heap_at
    pending.heap_count -= 1
    pending.entries[index].heap_at = NONE
    if at != pending.heap_count:
        heap_fill(pending, at, pending.heap[pending.heap_count])


cdef int mark_grow(PendingList pending) except -1:
    cdef uint32_t capacity = pending.changed_capacity * 2 if pending.changed_capacity else SMALLEST_SET
    cdef uint8_t shift = shift_for(capacity)
    cdef int64_t* windows = <int64_t*> malloc(capacity * sizeof(int64_t))
    cdef uint32_t i, at
    if windows == NULL:
        raise MemoryError()
    memset(windows, 0xFF, capacity * sizeof(int64_t))
    for i in range(pending.changed_capacity):
        if pending.changed[i] >= 0:
            at = slot_of(pending.changed[i], shift)
            while windows[at] >= 0:
                at = (at + 1) & (capacity - 1)
            windows[at] = pending.changed[i]
    free(pending.changed)
    pending.changed = windows
    pending.changed_capacity = capacity
    pending.changed_shift = shift
    return 0


# Comes before the change itself: when there is no memory to note a change, nothing was changed.
cdef int mark_changed(PendingList pending, int64_t offset) except -1:
    cdef int64_t window = offset >> WINDOW_BITS
    cdef uint32_t at
    if window == pending.last_marked:
        return 0
    if pending.changed_count * 2 >= pending.changed_capacity:
        mark_grow(pending)
    at = slot_of(window, pending.changed_shift)
    while pending.changed[at] >= 0 and pending.changed[at] != window:
        at = (at + 1) & (pending.changed_capacity - 1)
    if pending.changed[at] < 0:
        pending.changed[at] = window
        pending.changed_count += 1
    pending.last_marked = window
    return 0


cdef void marks_clear(PendingList pending) noexcept:
    pending.changed_count = 0
    pending.last_marked = -1
    if pending.changed_capacity > SMALLEST_SET:
        free(pending.changed)
        pending.changed = NULL
        pending.changed_capacity = 0
    elif pending.changed != NULL:
        memset(pending.changed, 0xFF, pending.changed_capacity * sizeof(int64_t))


cdef inline uint32_t find_index(PendingList pending, int64_t offset) noexcept:
    cdef uint32_t index
    if pending.count == 0:
        return NONE
    index = pending.buckets[slot_of(offset, pending.bucket_shift)]
    while index != NONE and pending.entries[index].offset != offset:
        index = pending.entries[index].hash_next
    return index


cdef int arrays_grow(PendingList pending) except -1:
    cdef uint32_t capacity = pending.capacity * 2 if pending.capacity else SMALLEST_LIST
    cdef uint32_t* buckets
    cdef uint32_t* heap
    cdef PendingEntry* entries
    cdef uint32_t i, index
    if capacity > LARGEST_LIST:
        raise MemoryError()
    heap = <uint32_t*> realloc(pending.heap, capacity * sizeof(uint32_t))
    if heap == NULL:
        raise MemoryError()
    pending.heap = heap
    entries = <PendingEntry*> realloc(pending.entries, capacity * sizeof(PendingEntry))
    if entries == NULL:
        raise MemoryError()
    pending.entries = entries
    buckets = <uint32_t*> malloc(capacity * sizeof(uint32_t))
    if buckets == NULL:
        raise MemoryError()
    free(pending.buckets)
    pending.buckets = buckets
    pending.bucket_count = capacity
    pending.bucket_shift = shift_for(capacity)
    memset(buckets, 0xFF, capacity * sizeof(uint32_t))
    index = pending.first
    while index != NONE:
        hash_put(pending, index)
        index = entries[index].next
    # Lowest first, so that a list that only grows lies in its array in order.
    for i in range(capacity, pending.capacity, -1):
        entries[i - 1].next = pending.free_head
        pending.free_head = i - 1
    pending.capacity = capacity
    return 0


cdef void arrays_free(PendingList pending) noexcept:
    free(pending.entries)
    free(pending.buckets)
    free(pending.heap)
    pending.entries = NULL
    pending.buckets = NULL
    pending.heap = NULL
    pending.capacity = pending.bucket_count = pending.heap_count = pending.count = 0
    pending.ready_count = pending.dead_count = 0
    pending.free_head = pending.first = pending.last = pending.first_ready = pending.first_dead = NONE


cdef inline void hash_put(PendingList pending, uint32_t index) noexcept:
    cdef uint32_t at = slot_of(pending.entries[index].offset, pending.bucket_shift)
    pending.entries[index].hash_next = pending.buckets[at]
    pending.buckets[at] = index


cdef inline void hash_remove(PendingList pending, uint32_t index) noexcept:
    cdef uint32_t* link = &pending.buckets[slot_of(pending.entries[index].offset, pending.bucket_shift)]
    while link[0] != index:
        link = &pending.entries[link[0]].hash_next
    link[0] = pending.entries[index].hash_next


# A new entry behind `previous` (NONE: before all others). It has no state yet.
cdef uint32_t entry_add(PendingList pending, int64_t offset, uint32_t previous) except? 0xFFFFFFFF:
    cdef PendingEntry* entry
    cdef uint32_t index
    if pending.free_head == NONE:
        arrays_grow(pending)
    index = pending.free_head
    entry = &pending.entries[index]
    pending.free_head = entry.next
    entry.offset = offset
    entry.heap_at = NONE
    entry.consumer = 0
    entry.deliveries = 0
    entry.state = 0
    entry.reason = 0
    entry.due = 0
    hash_put(pending, index)
    entry.previous = previous
    if previous == NONE:
        entry.next = pending.first
        pending.first = index
    else:
        entry.next = pending.entries[previous].next
        pending.entries[previous].next = index
    if entry.next == NONE:
        pending.last = index
    else:
        pending.entries[entry.next].previous = index
    pending.count += 1
    return index


cdef inline void leave_state(PendingList pending, uint32_t index) noexcept:
    if pending.entries[index].heap_at != NONE:
        heap_remove(pending, index)
    elif pending.entries[index].state == ENTRY_READY:
        pending.ready_count -= 1
    elif pending.entries[index].state == ENTRY_DEAD:
        pending.dead_count -= 1


cdef void entry_remove(PendingList pending, uint32_t index) noexcept:
    cdef PendingEntry* entry = &pending.entries[index]
    leave_state(pending, index)
    hash_remove(pending, index)
    if pending.first_ready == index:
        pending.first_ready = entry.next
    if pending.first_dead == index:
        pending.first_dead = entry.next
    if entry.previous == NONE:
        pending.first = entry.next
        pending.head_changed = True
    else:
        pending.entries[entry.previous].next = entry.next
    if entry.next == NONE:
        pending.last = entry.previous
    else:
        pending.entries[entry.next].previous = entry.previous
    entry.next = pending.free_head
    pending.free_head = index
    pending.count -= 1
    if pending.count == 0 and pending.capacity > KEPT_LIST:
        arrays_free(pending)


# CLAIMED or WAITING until `due`.
cdef inline void become_timed(PendingList pending, uint32_t index, EntryState state, int64_t due) noexcept:
    cdef PendingEntry* entry = &pending.entries[index]
    entry.due = due
    entry.reason = 0
    if entry.heap_at != NONE:
        heap_fill(pending, entry.heap_at, index)
    else:
        leave_state(pending, index)
        heap_put(pending, index)
    entry.state = <uint8_t> state


# first_ready and first_dead are where a search begins: nothing READY (DEAD) comes before them.
cdef void become_ready(PendingList pending, uint32_t index) noexcept:
    cdef PendingEntry* entry = &pending.entries[index]
    leave_state(pending, index)
    if pending.ready_count == 0 or entry.offset < pending.entries[pending.first_ready].offset:
        pending.first_ready = index
    pending.ready_count += 1
    entry.state = ENTRY_READY
    entry.consumer = 0
    entry.reason = 0
    entry.due = 0


cdef void become_dead(PendingList pending, uint32_t index, uint8_t reason) noexcept:
    cdef PendingEntry* entry = &pending.entries[index]
    leave_state(pending, index)
    if pending.dead_count == 0 or entry.offset < pending.entries[pending.first_dead].offset:
        pending.first_dead = index
    pending.dead_count += 1
    entry.state = ENTRY_DEAD
    entry.consumer = 0
    entry.reason = reason
    entry.due = 0


# May `consumer` decide about this entry?
cdef inline bint may_settle(const PendingEntry* entry, uint32_t consumer) noexcept:
    if consumer == 0:
        return True
    return entry.state == ENTRY_CLAIMED and (entry.consumer == consumer or entry.consumer == 0)


cdef inline uint8_t* put_varint(uint8_t* out, uint64_t value) noexcept:
    while value >= 0x80:
        out[0] = <uint8_t> (value | 0x80)
        value >>= 7
        out += 1
    out[0] = <uint8_t> value
    return out + 1


cdef const uint8_t* get_varint(const uint8_t* data, const uint8_t* end, uint64_t* value) except NULL:
    cdef int shift = 0
    value[0] = 0
    while data < end and shift < 64:
        value[0] |= <uint64_t> (data[0] & 0x7F) << shift
        if not data[0] & 0x80:
            return data + 1
        data += 1
        shift += 7
    raise ValueError("a number in the stored window does not end")


# The first entry of a window: by its offsets in turn. Windows outside of the list are told at once.
cdef uint32_t window_first(PendingList pending, int64_t window) noexcept:
    cdef int64_t offset = window << WINDOW_BITS
    cdef uint32_t index
    cdef int _tried
    if pending.count == 0 or pending.entries[pending.last].offset < offset:
        return NONE
    if pending.entries[pending.first].offset >= offset:
        index = pending.first
        return index if pending.entries[index].offset >> WINDOW_BITS == window else <uint32_t> NONE
    for _tried in range(WINDOW_SIZE):
        index = find_index(pending, offset)
        if index != NONE:
            return index
        offset += 1
    return NONE


cdef bytes build_window(PendingList pending, int64_t window):
    cdef uint8_t data[LARGEST_WINDOW]
    cdef uint8_t* out = data
    cdef uint32_t index = window_first(pending, window)
    cdef PendingEntry* entry
    cdef int64_t before = 0, distance
    if index == NONE:
        return None
    out[0] = FORMAT
    out += 1
    while index != NONE and pending.entries[index].offset >> WINDOW_BITS == window:
        entry = &pending.entries[index]
        out[0] = <uint8_t> (entry.offset & (WINDOW_SIZE - 1))
        out[1] = entry.state
        out = put_varint(out + 2, entry.deliveries)
        if entry.state == ENTRY_DEAD:
            out[0] = entry.reason
            out += 1
        elif entry.state != ENTRY_READY:
            # Unsigned, because the distance between any two numbers has to come out right.
            distance = <int64_t> (<uint64_t> entry.due - <uint64_t> before)
            out = put_varint(out, (<uint64_t> distance << 1) ^ <uint64_t> (distance >> 63))
            before = entry.due
        index = entry.next
    return PyBytes_FromStringAndSize(<char*> data, out - data)


# The entries of a stored window in `found` (256 of them fit); how many.
cdef int parse_window(const uint8_t* data, Py_ssize_t size, int64_t window, PendingEntry* found) except -1:
    cdef const uint8_t* end = data + size
    cdef PendingEntry* entry
    cdef uint64_t value
    cdef int64_t before = 0
    cdef int count = 0, place = -1
    if size == 0 or data[0] != FORMAT:
        raise ValueError("a stored window of an unknown format")
    data += 1
    while data < end:
        if end - data < 3:
            raise ValueError("a stored window is cut short")
        # Places that rise: so there are no more than `found` has room for.
        if data[0] <= place or not ENTRY_CLAIMED <= data[1] <= ENTRY_DEAD:
            raise ValueError("a stored window is damaged")
        place = data[0]
        entry = &found[count]
        entry.offset = (window << WINDOW_BITS) + place
        entry.state = data[1]
        data = get_varint(data + 2, end, &value)
        entry.deliveries = <uint16_t> min(value, <uint64_t> MOST_DELIVERIES)
        entry.reason = 0
        entry.due = 0
        if entry.state == ENTRY_DEAD:
            if data == end:
                raise ValueError("a stored window is cut short")
            entry.reason = data[0]
            data += 1
        elif entry.state != ENTRY_READY:
            data = get_varint(data, end, &value)
            before = <int64_t> (<uint64_t> before + ((value >> 1) ^ (0 - (value & 1))))
            entry.due = before
        count += 1
    return count


cdef tuple describe(const PendingEntry* entry):
    return (entry.offset, entry.state, entry.consumer, entry.deliveries, entry.due, entry.reason)


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
        become_timed(self, index, ENTRY_WAITING, due)
        if deliveries != NULL:
            deliveries[0] = self.entries[index].deliveries
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

    def py_bury(self, int64_t offset, uint32_t consumer, uint8_t reason):
        return <int> self.bury(offset, consumer, reason)

    def py_release(self, uint32_t consumer):
        """How many entries became READY."""
        return self.release(consumer)

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
        """(offset, deliveries, what it became, whose it was) of at most `most` entries whose time has come, the earliest first.

        DEAD is what was delivered `max_deliveries` times or more (0 = there is no limit), READY everything else."""
        cdef list taken = []
        cdef uint32_t index, consumer
        cdef PendingEntry* entry
        while <uint32_t> len(taken) < most and self.heap_count and self.entries[self.heap[0]].due <= now_ms:
            index = self.heap[0]
            entry = &self.entries[index]
            consumer = entry.consumer
            mark_changed(self, entry.offset)
            if max_deliveries and entry.deliveries >= max_deliveries:
                become_dead(self, index, BY_DELIVERIES)
            else:
                become_ready(self, index)
            taken.append((entry.offset, entry.deliveries, entry.state, consumer))
        return taken

    def ready(self, uint32_t most):
        """The lowest READY offsets, `most` of them; walks no further than to the last of these."""
        cdef list found = []
        cdef uint32_t index
        cdef uint32_t wanted = min(most, self.ready_count)
        if not wanted:
            return found
        while self.entries[self.first_ready].state != ENTRY_READY:
            self.first_ready = self.entries[self.first_ready].next
        index = self.first_ready
        while <uint32_t> len(found) < wanted:
            if self.entries[index].state == ENTRY_READY:
                found.append(self.entries[index].offset)
            index = self.entries[index].next
        return found

    def dead(self, uint32_t most):
        """(offset, reason, deliveries) of the lowest DEAD offsets, `most` of them."""
        cdef list found = []
        cdef uint32_t index
        cdef uint32_t wanted = min(most, self.dead_count)
        if not wanted:
            return found
        while self.entries[self.first_dead].state != ENTRY_DEAD:
            self.first_dead = self.entries[self.first_dead].next
        index = self.first_dead
        while <uint32_t> len(found) < wanted:
            if self.entries[index].state == ENTRY_DEAD:
                found.append((self.entries[index].offset, self.entries[index].reason, self.entries[index].deliveries))
            index = self.entries[index].next
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

    def load_window(self, int64_t number, bytes data not None, *, bint keep_claims=False):
        """The entries of one window, at most once each. Any order of the windows is right; rising or falling numbers
        are quick. What was claimed becomes READY, or with keep_claims stays claimed, by nobody known, until it is due.
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
            if found[i].state == ENTRY_DEAD:
                become_dead(self, index, found[i].reason)
            elif found[i].state == ENTRY_WAITING or (found[i].state == ENTRY_CLAIMED and keep_claims):
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
