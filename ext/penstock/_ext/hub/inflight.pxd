# What is under way between the broker and one client: the window of messages sent and not yet acknowledged, the queue
# behind it, and the QoS 2 packet ids received and not yet released. C arrays, allocated on first use, never dicts.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from penstock._ext.hub.message cimport Message


cdef enum SlotState:
    AWAIT_PUBACK = 1
    AWAIT_PUBREC = 2
    AWAIT_PUBCOMP = 3
    SLOT_RESERVED = 4       # its outlet is not there yet


cdef enum:
    DELIVERY_RETAIN = 1     # the RETAIN bit of the copy sent to this subscriber
    DELIVERY_SHARED = 2     # it came through a shared subscription
    DELIVERY_BACKLOG = 4    # a retained message sent because of a new subscription
    SLOT_COUNTED = 8        # sent on the present connection: it takes part of the client's receive maximum
    SLOT_BORROWED = 16      # `message` and `extras` are whatever the outlet says, and not freed here
    SLOT_OUTLET_1 = 32      # these two mean what the outlet says
    SLOT_OUTLET_2 = 64
    SLOT_RELEASING = 128    # PUBREL waits: the outlet sends it when that is durable
    DELIVERY_NUMBERED = 256     # the source of `message` is the number of an outlet, which has rights of its own


# What a copy has beyond the message: subscription identifiers, and the share group it was chosen from. Most have none.
cdef struct Extras:
    uint32_t group_node
    uint32_t group_via      # for the store of DEVICE clients, 0 = not of a group, or never stored
    uint16_t group_name_size
    uint16_t id_count
    uint32_t ids[1]         # id_count identifiers, then the group's name


# How much of a round of dispatch is neither acknowledged nor stored.
cdef struct Hold:
    int64_t pending


cdef struct Slot:
    Message* message        # NULL once it is never sent again: PUBREC came, or the session ends with its connection
    Extras* extras
    Hold* hold              # borrowed, NULL = nobody waits for it
    uint32_t sequence       # order of first sending, for resuming
    uint32_t sent_at        # monotonic ms, of a slot with a hold
    uint16_t packet_id      # 0 = free
    uint16_t flags
    uint16_t outlet         # place of the outlet that is told of acknowledgements, 0 = the message was sent directly
    uint16_t state


cdef struct Window:
    Slot* slots             # a slot's index is its packet id modulo the capacity
    uint32_t capacity       # power of two, at least twice the count
    uint32_t count
    uint32_t sequence
    uint16_t last_id
    uint32_t laps           # how often the ids began again at 1


# Messages of one origin in a window that several share, see window_parts.pxi.
cdef class WindowPart:
    cdef readonly str name
    cdef uint32_t lanes                 # that it has
    cdef bint is_held                   # there without lanes, too
    cdef readonly uint32_t outstanding  # sent on this connection and not acknowledged
    cdef readonly uint32_t open         # planned and not done


cdef struct Queued:
    Message* message
    Extras* extras
    uint16_t flags
    uint8_t qos


cdef struct Queue:
    Queued* items           # ring
    uint32_t capacity       # power of two
    uint32_t head
    uint32_t count
    uint64_t bytes          # weight of the messages


cdef struct IdSet:
    uint16_t* ids           # open addressing, 0 = free
    uint32_t capacity
    uint32_t count


cdef Extras* extras_new(const uint32_t* ids, uint16_t id_count, uint32_t group_node, const char* name,
                        uint16_t name_size) except NULL
cdef const char* extras_group_name(const Extras* extras) noexcept

# Takes the next packet id that is not in flight and gives it a slot; the caller fills message, extras, state and flags.
cdef Slot* window_add(Window* window) except NULL
# The slot of a given packet id that is not in flight: of a session that is restored.
cdef Slot* window_put(Window* window, uint16_t packet_id) except NULL
cdef inline Slot* window_find(const Window* window, uint16_t packet_id) noexcept:
    cdef Slot* slot
    if window.count == 0:
        return NULL
    slot = &window.slots[packet_id & (window.capacity - 1)]
    return slot if slot.packet_id == packet_id and packet_id != 0 else NULL
# Frees the slot, its reference to the message and its extras.
cdef void window_release(Window* window, Slot* slot) noexcept
# Packet ids in order of first sending; the caller frees the array. NULL only when empty.
cdef uint16_t* window_order(const Window* window) except? NULL
cdef void window_clear(Window* window) noexcept

# Keeps a reference of its own to the message; takes over the extras.
cdef int queue_push(Queue* queue, Message* message, Extras* extras, uint8_t qos, uint16_t flags) except -1
# The oldest item is moved to `item` with its reference; 0 if there is none.
cdef bint queue_pop(Queue* queue, Queued* item) noexcept
cdef void queued_release(Queued* item) noexcept
cdef void queue_clear(Queue* queue) noexcept

# 1 if it is new, 0 if it was there.
cdef int ids_add(IdSet* ids, uint16_t packet_id) except -1
cdef bint ids_has(const IdSet* ids, uint16_t packet_id) noexcept
cdef bint ids_discard(IdSet* ids, uint16_t packet_id) noexcept
cdef void ids_clear(IdSet* ids) noexcept
