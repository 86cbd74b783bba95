# Part of connection.pxd: what modules of subscribers may call.

cdef enum:
    TEMPLATES_KEPT = 65_536     # scratch memory not given back
    MOST_PLANNED = 60_000       # packet ids of a session that its parts may have
    PLANNED_AHEAD = 4           # windows of what may be in flight that are planned: contexts are durable in time


# One publish on its way. The first subscriber of each shape (MQTT 3 or 5, QoS 0, 1, 2) has it written right into its
# output; for the others the shape is encoded once and copied. It becomes a counted message only when somebody must keep
# it.
cdef struct Routing:
    const PublishView* view
    Message* kept
    int64_t expires_at
    uint64_t hash
    uint32_t seen               # shapes that somebody got: a bit for each
    uint32_t offset[6]          # of the encoded shape in hub._templates
    uint32_t size[6]            # 0 = not encoded yet
    uint32_t id_at[6]           # where the packet id goes


# Everything a PUBLISH sent to one client consists of.
cdef struct Copy:
    const uint8_t* topic
    const uint8_t* props
    const uint8_t* payload
    const uint32_t* ids         # subscription identifiers
    uint32_t topic_size
    uint32_t props_size
    uint32_t payload_size
    uint32_t expiry             # seconds left, valid if has_expiry
    uint16_t id_count
    uint16_t alias              # 0 = none
    uint8_t first               # first byte: type, DUP, QoS, RETAIN
    bint has_expiry
    bint v5


cdef inline void count_sent(Hub hub, uint8_t qos, uint32_t payload_size) noexcept:
    hub.counters.sent[qos] += 1
    hub.counters.payload_sent += payload_size
    hub.counters.packets_sent += 1


cdef inline void count_drop(Session s, DropCause cause) noexcept:
    s.hub.counters.dropped[<int> cause] += 1
    s._dropped[<int> cause] += 1


# Extras of a copy that is kept, NULL when it has none.
cdef inline Extras* make_extras(const uint32_t* ids, uint16_t id_count, const ShareGroup* group) except? NULL:
    if group != NULL:
        return extras_new(ids, id_count, group.node, group.name, group.name_size)
    return extras_new(ids, id_count, 0, NULL, 0) if id_count else NULL


# A publish begins its way.
cdef inline void start_routing(Hub hub, Routing* r, const PublishView* view, uint64_t hash,
                               int64_t expires_at) noexcept:
    cdef int i
    r.view = view
    r.kept = NULL
    r.expires_at = expires_at
    r.hash = hash
    r.seen = 0
    for i in range(6):
        r.size[i] = 0
    hub._templates.start = hub._templates.end = 0


cdef inline void end_routing(Hub hub, Routing* r) noexcept:
    if r.kept != NULL:
        message_unref(r.kept)
    if hub._templates.capacity > TEMPLATES_KEPT:
        buffer_free(&hub._templates)


# Outlets that compete for places one by one: all but those that read the log.
cdef inline Py_ssize_t others_of(Session s) noexcept:
    return PyList_GET_SIZE(s.outlets) - <Py_ssize_t> s.log_outlets if s.outlets is not None else 0


cdef inline bint has_rivals(Session s) noexcept:
    cdef Py_ssize_t others = others_of(s)
    return others > 1 or (others == 1 and s.log_outlets != 0)


# The caller took a place; if it was the last one, its turn in this round is over.
cdef inline void end_turn(Session s, uint32_t* turn) noexcept:
    if s.outstanding + s.kept_free >= s.limit and has_rivals(s):
        turn[0] = s.round
        s.is_contended = True


# Whether the part may have another unacknowledged message [MQTT-3.3.4-9] [MQTT-4.9.0-2].
cdef inline bint has_place(Session s, WindowPart part) noexcept:
    if part.outstanding < s.reserve_each:
        return s.outstanding < s.limit
    return s.outstanding + s.kept_free < s.limit and s.log_round != s.round


cdef inline void take_place(Session s, WindowPart part) noexcept:
    s.outstanding += 1
    s.in_parts += 1
    if part.outstanding < s.reserve_each:
        s.kept_free -= 1
    else:
        end_turn(s, &s.log_round)
    part.outstanding += 1


cdef inline void free_place(Session s, WindowPart part) noexcept:
    s.outstanding -= 1
    s.in_parts -= 1
    part.outstanding -= 1
    if part.outstanding < s.reserve_each:
        s.kept_free += 1


# outlet.pxi
cdef int add_outlet(Session s, Outlet outlet) except -1
cdef int remove_outlet(Session s, Outlet outlet) except -1
cdef uint32_t next_number(Hub hub) noexcept

# window_parts.pxi
cdef WindowPart find_part(Session s, str name)
cdef int drop_unused(Session s, WindowPart part) except -1

# route.pxi
cdef int send_copy(Connection c, Session s, Copy* copy, uint64_t hash, uint16_t packet_id, Message* kept,
                   Extras* extras, uint16_t flags) except -1
cdef int send_message(Connection c, Session s, Message* m, uint8_t qos, uint16_t flags, Extras* extras,
                      uint16_t packet_id, bint dup) except -1
cdef int deliver(Hub hub, Session s, Routing* r, uint8_t qos, uint16_t flags, const uint32_t* ids, uint16_t id_count,
                 ShareGroup* group) except -1
cdef int deliver_to_member(Hub hub, ShareGroup* group, Member* member, Routing* r) except -1
cdef Member* choose_member(Hub hub, ShareGroup* group, uint64_t topic_hash, uint64_t client_hash, const uint8_t* topic,
                           uint32_t topic_size, uint8_t qos, bint with_log) except? NULL
cdef bint is_logged_group(const ShareGroup* group) noexcept

# receive.pxi, give_back.pxi, rate.pxi, retain.pxi, topic_counts.pxi
cdef int send_ack(Connection c, uint8_t packet_type, uint16_t packet_id, uint8_t reason) except -1
cdef Session find_congested(Match* match, Session publisher)
cdef int release_slot(Session s, Connection c, Slot* slot) except -1
cdef bint may_pass(const Rates* rates, int64_t* ends, int64_t now) noexcept
cdef int put_retained(Hub hub, const EnvelopeView* view) except -1
cdef bint counts_has(const TopicCounts* t, uint64_t hash) noexcept
cdef void counts_take(TopicCounts* t, uint64_t hash) noexcept
