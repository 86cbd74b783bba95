# Where the entries of a pending list are: hash table, list by offset, heap by due time, marks of changed windows, and
# what a change of state means for each of them. Part of pending.pyx.
#
# Memory is asked for in entry_add and mark_changed only; nothing else here can fail.

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
    entry.reason &= NACKS
    entry.consumer = 0
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


# Hold the entry until `due`; 0 = without an end.
cdef void become_held(PendingList pending, uint32_t index, int64_t due) noexcept:
    if due:
        become_timed(pending, index, ENTRY_HELD, due)
    else:
        leave_state(pending, index)
        pending.entries[index].state = ENTRY_HELD
        pending.entries[index].due = 0
    pending.entries[index].consumer = 0


# May `consumer` decide about this entry?
cdef inline bint may_settle(const PendingEntry* entry, uint32_t consumer) noexcept:
    if consumer == 0:
        return True
    return entry.state == ENTRY_CLAIMED and (entry.consumer == consumer or entry.consumer == 0)
