# What the clients of a Load send: settlements of consumers of a queue, messages of publishers.


# A PUBLISH to $queue/NAME/$ack for a delivery, in which two properties are never longer than 127 bytes.
cdef int put_settlement(Load load, Client* c, const Settlement* s) except -1 nogil:
    cdef uint32_t size = load.ack_topic_size + (2 if load.settle else 0) + 1 + s.size + load.group_size
    cdef uint8_t* p = buffer_reserve(&c.out, 1 + varint_size(size) + size)
    p[0] = <uint8_t> (PUBLISH << 4 | load.settle << 1)
    p = put_varint(p + 1, size)
    memcpy(p, load.ack_topic_at, load.ack_topic_size)
    p += load.ack_topic_size
    if load.settle:
        put_be16(p, next_packet_id(c))
        p += 2
    p[0] = <uint8_t> (s.size + load.group_size)
    memcpy(p + 1, s.property, s.size)
    memcpy(p + 1 + s.size, load.group_at, load.group_size)
    c.sent += 1
    if not load.settle:
        load.settlements_open -= 1
    return 0


cdef int settle_waiting(Load load, Client* c) except -1 nogil:
    while c.unsettled_count and (not load.settle or c.sent - c.acked < load.window):
        put_settlement(load, c, &c.unsettled[c.unsettled_at])
        c.unsettled_at = (c.unsettled_at + 1) % UNSETTLED_MAX
        c.unsettled_count -= 1
    return 0


# The delivery with the properties in [at, end) is to be settled; 0 if it cannot be.
cdef int settle_delivery(Load load, Client* c, const uint8_t* at, const uint8_t* end) except -1 nogil:
    cdef int64_t size
    cdef Settlement* s
    cdef const uint8_t* value = find_message_id(at, end, &size)
    if value == NULL or size + 1 > SETTLEMENT_MAX or c.unsettled_count == UNSETTLED_MAX:
        return 0
    if c.unsettled == NULL:
        c.unsettled = <Settlement*> malloc(UNSETTLED_MAX * sizeof(Settlement))
        if c.unsettled == NULL:
            fail(b"out of memory")
    s = &c.unsettled[(c.unsettled_at + c.unsettled_count) % UNSETTLED_MAX]
    c.unsettled_count += 1
    s.size = <uint8_t> (size + 1)
    s.property[0] = USER_PROPERTY
    memcpy(s.property + 1, value, size)
    load.settlements_open += 1
    settle_waiting(load, c)
    return 1

# ---- what is published ----


cdef uint64_t room_of(Load load, const Client* c) noexcept nogil:
    cdef uint64_t room = UINT64_MAX, other, seen
    if load.count:
        room = load.count - c.sent if load.count > c.sent else 0
    if load.qos:
        other = remaining(load.window, c.sent, c.acked)
        room = other if other < room else room
    if load.e2e:
        seen = load.fan_min if load.scenario == FANOUT else c.arrivals.next
        other = remaining(load.e2e, c.sent, seen if seen > c.released else c.released)
        room = other if other < room else room
    return room


cdef int put_messages(Load load, Client* c, uint64_t count, uint64_t now) except -1 nogil:
    cdef uint8_t* p = buffer_reserve(&c.out, <uint32_t> (count * c.pattern_size))
    cdef uint32_t seq
    load.total.published += count
    for _ in range(count):
        memcpy(p, c.pattern, c.pattern_size)
        if load.qos:
            put_be16(p + c.id_at, next_packet_id(c))
        seq = <uint32_t> c.sent
        c.sent += 1
        if load.size:
            memcpy(p + c.stamp_at, &now, 8)
            memcpy(p + c.stamp_at + 12, &seq, 4)
        if c.digits_at:
            put_digits(p + c.digits_at, seq)
        p += c.pattern_size
    return 0


# Sends in batches of at least a quarter of the window, as a busy client does, rather than one by one as it opens.
cdef int pump(Load load, Client* c) except -1 nogil:
    cdef uint64_t limit = load.window if load.qos else UINT64_MAX, batch, most, room
    if load.e2e and load.e2e < limit:
        limit = load.e2e
    batch = 1 if limit == UINT64_MAX or limit < 4 else limit // 4
    most = CHUNK // c.pattern_size if c.pattern_size < CHUNK else 1
    while c.state == READY and buffer_size(&c.out) == 0:
        room = room_of(load, c)
        if room == 0 or (room < batch and not (load.count and room == load.count - c.sent)):
            return 0
        put_messages(load, c, room if room < most else most, now_ns())
        flush(load, c)
        if limit == UINT64_MAX:
            return 0        # unlimited: give the reading side its turn
    return 0


# Fixed total rate, round robin over the publishers. Returns the ns until the next message is due.
cdef int64_t pace(Load load) except -1 nogil:
    cdef uint64_t now = now_ns(), lag, next_at
    cdef uint64_t due = <uint64_t> (<double> (now - load.started_at) * (load.rate / 1e9))
    cdef int skipped = 0
    cdef Client* c
    while load.planned < due and skipped < load.publisher_count:
        c = &load.publishers[load.turn % <uint32_t> load.publisher_count]
        load.turn += 1
        if c.state != READY or room_of(load, c) == 0:
            skipped += 1
            continue
        lag = now - load.started_at - <uint64_t> (<double> load.planned * 1e9 / load.rate)
        if load.is_measuring and lag > load.lag_max:
            load.lag_max = lag
        put_messages(load, c, 1, now_ns())
        if not c.wants_out:
            flush(load, c)
        load.planned += 1
        skipped = 0
    if load.planned < due:
        return SECOND // 1000       # all windows are full: wait for the broker
    next_at = load.started_at + <uint64_t> (<double> (load.planned + 1) * 1e9 / load.rate)
    now = now_ns()
    return <int64_t> (next_at - now) if next_at > now else 0


cdef int64_t drive_publishers(Load load) except -1 nogil:
    cdef int i
    if load.rate > 0:
        return pace(load)
    for i in range(load.publisher_count):
        pump(load, &load.publishers[i])
    if not load.e2e and not load.qos:
        for i in range(load.publisher_count):   # unlimited: do not sleep while some publisher can still write
            if load.publishers[i].state == READY and buffer_size(&load.publishers[i].out) == 0:
                return 0
    return SECOND // 100


# Lost messages must not hold the end-to-end window for ever.
cdef void release_stalled(Load load, uint64_t now) noexcept nogil:
    cdef int i
    for i in range(load.publisher_count):
        load.publishers[i].released = load.publishers[i].sent
    load.total.stalls += 1
    load.last_progress = now
