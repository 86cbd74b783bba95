"""In-flight windows, queues and packet-id sets; see inflight.pxd. The classes at the end drive them from tests."""

from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcpy

from penstock._ext.hub.message cimport message_new, message_ref, message_unref, message_weight

cdef enum:
    SMALLEST_WINDOW = 16
    LARGEST_WINDOW = 65_536
    SMALLEST_QUEUE = 16
    SMALLEST_SET = 16


cdef Extras* extras_new(const uint32_t* ids, uint16_t id_count, uint32_t group_node, const char* name,
                        uint16_t name_size) except NULL:
    cdef Extras* extras = <Extras*> malloc(sizeof(Extras) + id_count * sizeof(uint32_t) + name_size)
    if extras == NULL:
        raise MemoryError()
    extras.group_node = group_node
    extras.group_via = 0
    extras.group_name_size = name_size
    extras.id_count = id_count
    if id_count:
        memcpy(extras.ids, ids, id_count * sizeof(uint32_t))
    if name_size:
        memcpy(<char*> (extras.ids + id_count), name, name_size)
    return extras


cdef const char* extras_group_name(const Extras* extras) noexcept:
    return <const char*> (extras.ids + extras.id_count)


cdef int window_grow(Window* window) except -1:
    cdef uint32_t capacity = window.capacity * 2 if window.capacity else SMALLEST_WINDOW
    cdef Slot* slots = <Slot*> calloc(capacity, sizeof(Slot))
    cdef uint32_t i
    if slots == NULL:
        raise MemoryError()
    # Two ids that had slots of their own keep them apart under a longer mask.
    for i in range(window.capacity):
        if window.slots[i].packet_id:
            slots[window.slots[i].packet_id & (capacity - 1)] = window.slots[i]
    free(window.slots)
    window.slots = slots
    window.capacity = capacity
    return 0


cdef Slot* window_add(Window* window) except NULL:
    cdef Slot* slot
    cdef int _tried
    if window.count * 2 >= window.capacity and window.capacity < LARGEST_WINDOW:
        window_grow(window)
    # An id whose slot is taken is still in flight (or shares its slot with one that is): never handed out again before
    # it is acknowledged [MQTT-2.2.1-4] [MQTT3-2.3.1-4].
    for _tried in range(LARGEST_WINDOW):
        window.last_id += 1
        if window.last_id == 0:
            window.laps += 1
            continue
        slot = &window.slots[window.last_id & (window.capacity - 1)]
        if slot.packet_id == 0:
            slot.packet_id = window.last_id
            slot.sequence = window.sequence
            window.sequence += 1
            window.count += 1
            return slot
    raise OverflowError("all 65,535 packet ids are in flight")


cdef Slot* window_put(Window* window, uint16_t packet_id) except NULL:
    cdef Slot* slot
    while window.capacity == 0 or window.slots[packet_id & (window.capacity - 1)].packet_id:
        if window.capacity >= LARGEST_WINDOW:
            raise ValueError(f"packet id {packet_id} is in flight")
        window_grow(window)
    slot = &window.slots[packet_id & (window.capacity - 1)]
    slot.packet_id = packet_id
    slot.sequence = window.sequence
    window.sequence += 1
    window.count += 1
    return slot


cdef void window_release(Window* window, Slot* slot) noexcept:
    if not slot.flags & SLOT_BORROWED:
        if slot.message != NULL:
            message_unref(slot.message)
        free(slot.extras)
    if slot.hold != NULL:
        slot.hold.pending -= 1
        slot.hold = NULL
    slot.message = NULL
    slot.extras = NULL
    slot.packet_id = slot.flags = slot.outlet = slot.state = 0      # one store: they lie side by side
    window.count -= 1


cdef struct Ordered:
    uint32_t age
    uint16_t packet_id


cdef int by_age(const void* a, const void* b) noexcept nogil:
    cdef uint32_t x = (<const Ordered*> a).age
    cdef uint32_t y = (<const Ordered*> b).age
    return -1 if x > y else 1 if x < y else 0


cdef uint16_t* window_order(const Window* window) except? NULL:
    cdef Ordered* found
    cdef uint16_t* ids
    cdef uint32_t i, n = 0
    if window.count == 0:
        return NULL
    found = <Ordered*> malloc(window.count * sizeof(Ordered))
    ids = <uint16_t*> malloc(window.count * sizeof(uint16_t))
    if found == NULL or ids == NULL:
        free(found)
        free(ids)
        raise MemoryError()
    for i in range(window.capacity):
        if window.slots[i].packet_id:
            # age, not sequence: the counter may wrap
            found[n].age = window.sequence - window.slots[i].sequence
            found[n].packet_id = window.slots[i].packet_id
            n += 1
    qsort(found, n, sizeof(Ordered), by_age)
    for i in range(n):
        ids[i] = found[i].packet_id
    free(found)
    return ids


cdef void window_clear(Window* window) noexcept:
    cdef uint32_t i
    for i in range(window.capacity):
        if window.slots[i].packet_id:
            window_release(window, &window.slots[i])
    free(window.slots)
    window.slots = NULL
    window.capacity = 0


cdef int queue_grow(Queue* queue) except -1:
    cdef uint32_t capacity = queue.capacity * 2 if queue.capacity else SMALLEST_QUEUE
    cdef Queued* items = <Queued*> malloc(capacity * sizeof(Queued))
    cdef uint32_t i
    if items == NULL:
        raise MemoryError()
    for i in range(queue.count):
        items[i] = queue.items[(queue.head + i) & (queue.capacity - 1)]
    free(queue.items)
    queue.items = items
    queue.capacity = capacity
    queue.head = 0
    return 0


cdef int queue_push(Queue* queue, Message* message, Extras* extras, uint8_t qos, uint16_t flags) except -1:
    cdef Queued* item
    if queue.count == queue.capacity:
        queue_grow(queue)
    item = &queue.items[(queue.head + queue.count) & (queue.capacity - 1)]
    item.message = message_ref(message)
    item.extras = extras
    item.qos = qos
    item.flags = flags
    queue.count += 1
    queue.bytes += message_weight(message)
    return 0


cdef bint queue_pop(Queue* queue, Queued* item) noexcept:
    if queue.count == 0:
        return False
    item[0] = queue.items[queue.head]
    queue.head = (queue.head + 1) & (queue.capacity - 1)
    queue.count -= 1
    queue.bytes -= message_weight(item.message)
    if queue.count == 0:
        free(queue.items)       # a client that keeps up owns no queue
        queue.items = NULL
        queue.capacity = queue.head = 0
    return True


cdef void queued_release(Queued* item) noexcept:
    message_unref(item.message)
    free(item.extras)


cdef void queue_clear(Queue* queue) noexcept:
    cdef Queued item
    while queue_pop(queue, &item):
        queued_release(&item)


cdef inline uint32_t ids_home(const IdSet* ids, uint16_t packet_id) noexcept:
    return (<uint32_t> packet_id * 40_503) & (ids.capacity - 1)


cdef int ids_grow(IdSet* ids) except -1:
    cdef IdSet larger
    cdef uint32_t i
    larger.capacity = ids.capacity * 2 if ids.capacity else SMALLEST_SET
    larger.count = 0
    larger.ids = <uint16_t*> calloc(larger.capacity, sizeof(uint16_t))
    if larger.ids == NULL:
        raise MemoryError()
    for i in range(ids.capacity):
        if ids.ids[i]:
            ids_add(&larger, ids.ids[i])
    free(ids.ids)
    ids[0] = larger
    return 0


cdef int ids_add(IdSet* ids, uint16_t packet_id) except -1:
    cdef uint32_t at
    if ids.count * 2 >= ids.capacity:
        ids_grow(ids)
    at = ids_home(ids, packet_id)
    while ids.ids[at]:
        if ids.ids[at] == packet_id:
            return 0
        at = (at + 1) & (ids.capacity - 1)
    ids.ids[at] = packet_id
    ids.count += 1
    return 1


cdef bint ids_has(const IdSet* ids, uint16_t packet_id) noexcept:
    cdef uint32_t at
    if ids.count == 0:
        return False
    at = ids_home(ids, packet_id)
    while ids.ids[at]:
        if ids.ids[at] == packet_id:
            return True
        at = (at + 1) & (ids.capacity - 1)
    return False


cdef bint ids_discard(IdSet* ids, uint16_t packet_id) noexcept:
    cdef uint32_t mask, hole, at, home
    if ids.count == 0:
        return False
    mask = ids.capacity - 1
    hole = ids_home(ids, packet_id)
    while ids.ids[hole] != packet_id:
        if ids.ids[hole] == 0:
            return False
        hole = (hole + 1) & mask
    # Close the gap: an id behind it moves in unless its home lies between the gap and itself.
    at = hole
    while True:
        at = (at + 1) & mask
        if ids.ids[at] == 0:
            break
        home = ids_home(ids, ids.ids[at])
        if ((at - home) & mask) >= ((at - hole) & mask):
            ids.ids[hole] = ids.ids[at]
            hole = at
    ids.ids[hole] = 0
    ids.count -= 1
    return True


cdef void ids_clear(IdSet* ids) noexcept:
    free(ids.ids)
    ids.ids = NULL
    ids.capacity = ids.count = 0


cdef class WindowPart:
    """Messages of one origin in a window that several share."""

    def __init__(self, str name not None):
        self.name = name


cdef class InflightWindow:
    """The window as an object, for model tests and benchmarks."""
    cdef Window _window

    def __dealloc__(self):
        window_clear(&self._window)

    def __len__(self):
        return self._window.count

    def add(self, int state, bytes payload=b""):
        cdef Slot* slot = window_add(&self._window)
        slot.state = <uint16_t> state
        slot.message = message_new(b"t", 1, NULL, 0, payload, <uint32_t> len(payload), 1, 0, 0, 0)
        return slot.packet_id

    def state(self, uint16_t packet_id):
        cdef Slot* slot = window_find(&self._window, packet_id)
        return None if slot == NULL else slot.state

    def release(self, uint16_t packet_id):
        cdef Slot* slot = window_find(&self._window, packet_id)
        if slot == NULL:
            return False
        window_release(&self._window, slot)
        return True

    def order(self):
        cdef uint16_t* ids = window_order(&self._window)
        cdef uint32_t i
        found = [ids[i] for i in range(self._window.count)]
        free(ids)
        return found

    def bench_cycle(self, int rounds, int depth):
        """Adds `depth` and releases them in order, `rounds` times, without Python in between."""
        cdef int _round, _released, j
        cdef Slot* slot
        cdef uint16_t first
        for _round in range(rounds):
            first = 0
            for j in range(depth):
                slot = window_add(&self._window)
                slot.state = AWAIT_PUBACK
                if j == 0:
                    first = slot.packet_id
            for _released in range(depth):
                slot = window_find(&self._window, first)
                while slot == NULL:
                    first += 1
                    slot = window_find(&self._window, first)
                window_release(&self._window, slot)
                first += 1


cdef class PacketIdSet:
    """The set of received packet ids as an object, for model tests."""
    cdef IdSet _ids

    def __dealloc__(self):
        ids_clear(&self._ids)

    def __len__(self):
        return self._ids.count

    def __contains__(self, uint16_t packet_id):
        return ids_has(&self._ids, packet_id)

    def add(self, uint16_t packet_id):
        return bool(ids_add(&self._ids, packet_id))

    def discard(self, uint16_t packet_id):
        return ids_discard(&self._ids, packet_id)


cdef class MessageQueue:
    """The queue as an object, for model tests."""
    cdef Queue _queue

    def __dealloc__(self):
        queue_clear(&self._queue)

    def __len__(self):
        return self._queue.count

    @property
    def weight(self):
        return self._queue.bytes

    def push(self, bytes payload, uint8_t qos=1):
        cdef Message* message = message_new(b"t", 1, NULL, 0, payload, <uint32_t> len(payload), qos, 0, 0, 0)
        queue_push(&self._queue, message, NULL, qos, 0)
        message_unref(message)

    def pop(self):
        cdef Queued item
        if not queue_pop(&self._queue, &item):
            return None
        payload = item.message.data[1:1 + item.message.payload_size]
        queued_release(&item)
        return payload
