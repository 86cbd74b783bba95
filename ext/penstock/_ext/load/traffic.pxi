# What the clients of a Load send: settlements of consumers of a queue, messages of publishers.


# A PUBLISH to $queue/NAME/$ack for a delivery, in which two properties are never longer than 127 bytes.
cdef int put_settlement(Worker worker, Client* c, const Settlement* s) except -1 nogil:
    cdef uint32_t size = worker.ack_topic_size + (2 if worker.settle else 0) + 1 + s.size + worker.group_size
    cdef uint8_t* p = buffer_reserve(&c.out, 1 + varint_size(size) + size)
    p[0] = <uint8_t> (PUBLISH << 4 | worker.settle << 1)
    p = put_varint(p + 1, size)
    memcpy(p, worker.ack_topic_at, worker.ack_topic_size)
    p += worker.ack_topic_size
    if worker.settle:
        put_be16(p, next_packet_id(c))
        p += 2
    p[0] = <uint8_t> (s.size + worker.group_size)
    memcpy(p + 1, s.property, s.size)
    memcpy(p + 1 + s.size, worker.group_at, worker.group_size)
    c.sent += 1
    if not worker.settle:
        worker.seat.settlements_open -= 1
    return 0


cdef int settle_waiting(Worker worker, Client* c) except -1 nogil:
    while c.unsettled_count and (not worker.settle or c.sent - c.acked < worker.window):
        put_settlement(worker, c, &c.unsettled[c.unsettled_at])
        c.unsettled_at = (c.unsettled_at + 1) % UNSETTLED_MAX
        c.unsettled_count -= 1
    return 0


# The delivery with the properties in [at, end) is to be settled; 0 if it cannot be.
cdef int settle_delivery(Worker worker, Client* c, const uint8_t* at, const uint8_t* end) except -1 nogil:
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
    worker.seat.settlements_open += 1
    settle_waiting(worker, c)
    return 1

# ---- what is published ----


# What every subscriber has of the one publisher.
cdef uint64_t slowest_of(const Common* common) noexcept nogil:
    cdef uint64_t least = UINT64_MAX, seen
    cdef int i
    for i in range(common.size):
        seen = peek(&common.seats[i].fan_min)
        least = seen if seen < least else least
    return least


# What has arrived of a publisher's messages, or is not waited for any more.
cdef inline uint64_t done_of(Worker worker, const Client* c) noexcept nogil:
    cdef uint64_t seen = slowest_of(worker.common) if worker.scenario == FANOUT else peek(&c.arrivals.next)
    return seen if seen > c.released else c.released


cdef uint64_t room_of(Worker worker, const Client* c) noexcept nogil:
    cdef uint64_t room = UINT64_MAX, other
    if worker.count:
        room = worker.count - c.sent if worker.count > c.sent else 0
    if worker.qos:
        other = remaining(worker.window, c.sent, c.acked)
        room = other if other < room else room
    if worker.e2e and not worker.in_turn:
        other = remaining(worker.e2e, c.sent, done_of(worker, c))
        room = other if other < room else room
    return room


cdef int put_messages(Worker worker, Client* c, uint64_t count, uint64_t now) except -1 nogil:
    # Its fields would be read again after each byte that is written.
    cdef const uint8_t* pattern = c.pattern
    cdef uint32_t size = c.pattern_size, id_at = c.id_at, stamp_at = c.stamp_at, digits_at = c.digits_at
    cdef uint32_t seq = <uint32_t> c.sent, head = stamp_at + (STAMP_SIZE if worker.size else 0)
    cdef bint has_id = worker.qos > 0, has_stamp = worker.size > 0
    cdef uint64_t i, prepared = 0
    cdef uint8_t* p
    if c.out.data == NULL:
        c.out, worker.spare.data, worker.spare.capacity = worker.spare, NULL, 0
        c.prepared = worker.spare_prepared if worker.spare_pattern_size == size else 0
    if c.out.end == 0:
        prepared = c.prepared       # whoever wrote them: behind the stamp all are alike
    p = buffer_reserve(&c.out, <uint32_t> (count * size))
    c.prepared = 0 if p != c.out.data else (prepared if prepared > count else count)
    c.sent += count
    worker.seat.total.published += count
    for i in range(count):
        load_copy(p, pattern, head if i < prepared else size)
        if has_id:
            put_be16(p + id_at, next_packet_id(c))
        if has_stamp:
            memcpy(p + stamp_at, &now, 8)
            memcpy(p + stamp_at + 12, &seq, 4)
        if digits_at:
            put_digits(p + digits_at, seq)
        seq += 1
        p += size
    return 0


# Whether publishers are held back by deliveries before acknowledgements of QoS 1 hold them back, with half of the
# window to spare: then it is enough to read those now and then. (QoS 2 goes on with each answer, so it is read as it
# comes.)
cdef bint waits_for_deliveries(Worker worker) noexcept nogil:
    return worker.qos == 1 and worker.rate == 0 and worker.e2e > 0 and worker.window >= 2 * worker.e2e


# Sends in batches, as a busy client does, rather than one by one as the window opens: of a quarter of it, or of all of
# it when it is small and there are others to send meanwhile.
cdef uint64_t batch_of(Worker worker, uint64_t limit) noexcept nogil:
    if limit == UINT64_MAX or limit < 4:
        return 1
    if worker.common.publisher_count < 4 or limit >= 4 * BATCH:
        return limit // 4
    return limit if limit < BATCH else BATCH


# Of a publisher whose acknowledgements wait in the socket.
cdef int read_acks(Worker worker, Client* c) except -1 nogil:
    if c.reads_late and c.sent - c.acked > worker.window // 2:
        on_readable(worker, c)
        read_late(worker, c, c.sent - c.acked <= worker.window // 2)
    return 0


# The publishers share what all of them may have under way, of large messages less: one after another sends at least a
# quarter of it, unless it has no more or that is more than is written at a time, and at most what there is room for.
cdef int pump_in_turn(Worker worker) except -1 nogil:
    cdef uint64_t limit = worker.e2e * <uint64_t> worker.publisher_count, under_way = 0, left, batch, room, most
    cdef int i, skipped = 0
    cdef Client* c
    if worker.publisher_count == 0:
        return 0
    for i in range(worker.publisher_count):
        c = &worker.publishers[i]
        room = done_of(worker, c)
        under_way += c.sent - room if c.sent > room else 0
    most = TURN_CHUNK // worker.publishers[0].pattern_size or 1
    limit = limit if limit < TURN_CHUNKS * most else TURN_CHUNKS * most
    left = remaining(limit, under_way, 0)
    batch = limit // 4 or 1
    batch = batch if batch < most else most
    if worker.qos and worker.window // 2 < batch:
        batch = worker.window // 2 or 1     # so much read_acks makes room for
    while skipped < worker.publisher_count:
        c = &worker.publishers[worker.turn % <uint32_t> worker.publisher_count]
        read_acks(worker, c)
        room = room_of(worker, c)
        room = left if left < room else room
        room = most if most < room else room
        if room < batch and not (worker.count and room == worker.count - c.sent):
            if left < batch:
                return 0        # its turn comes when more has arrived
            room = 0
        worker.turn += 1
        skipped += 1
        if room and c.state == READY and buffer_size(&c.out) == 0:
            put_messages(worker, c, room, now_ns())
            flush(worker, c)
            left -= room
            skipped = 0
    return 0


cdef int pump(Worker worker, Client* c) except -1 nogil:
    cdef uint64_t limit = worker.window if worker.qos else UINT64_MAX, batch, most, room
    if worker.e2e and worker.e2e < limit:
        limit = worker.e2e
    batch = batch_of(worker, limit)
    most = CHUNK // c.pattern_size if c.pattern_size < CHUNK else 1
    read_acks(worker, c)
    while c.state == READY and buffer_size(&c.out) == 0:
        room = room_of(worker, c)
        if room == 0 or (room < batch and not (worker.count and room == worker.count - c.sent)):
            return 0
        put_messages(worker, c, room if room < most else most, now_ns())
        flush(worker, c)
        if limit == UINT64_MAX:
            return 0        # unlimited: give the reading side its turn
    return 0


# When the message that is next by plan ought to be sent.
cdef inline uint64_t planned_at(Worker worker) noexcept nogil:
    return worker.started_at + <uint64_t> (<double> worker.planned * 1e9 / worker.rate)


cdef void note_lag(Worker worker, uint64_t now) noexcept nogil:
    cdef uint64_t planned = planned_at(worker), lag = now - planned if now > planned else 0
    if worker.is_measuring and lag > worker.seat.lag_max:
        worker.seat.lag_max = lag


# Writes what publishers were given since the turn `began`: one message each, or more at a time where the rate asks for
# more than a call of the kernel for each.
cdef int flush_turns(Worker worker, uint32_t began) except -1 nogil:
    cdef uint32_t i, publishers = <uint32_t> worker.publisher_count, turns = worker.turn - began
    cdef Client* c
    for i in range(turns if turns < publishers else publishers):
        c = &worker.publishers[(began + i) % publishers]
        if buffer_size(&c.out) and not c.wants_out:
            flush(worker, c)
    return 0


# Fixed total rate, round robin over the publishers. Returns the ns until the next message is due.
# A message has the time it was planned for, not that of its sending: who could not send it in time has waited for the
# broker, and a latency without that wait would be best where the broker is worst (coordinated omission).
cdef int64_t pace(Worker worker) except -1 nogil:
    cdef uint64_t now = now_ns(), next_at
    cdef uint64_t due = <uint64_t> (<double> (now - worker.started_at) * (worker.rate / 1e9))
    cdef uint32_t began = worker.turn
    cdef int skipped = 0
    cdef Client* c
    while worker.planned < due and skipped < worker.publisher_count:
        c = &worker.publishers[worker.turn % <uint32_t> worker.publisher_count]
        worker.turn += 1
        if c.state != READY or room_of(worker, c) == 0 or buffer_size(&c.out) >= CHUNK:
            skipped += 1
            continue
        note_lag(worker, now)
        put_messages(worker, c, 1, planned_at(worker))
        worker.planned += 1
        skipped = 0
    flush_turns(worker, began)
    if worker.planned < due:
        return SECOND // 1000       # all windows are full: wait for the broker
    next_at = worker.started_at + <uint64_t> (<double> (worker.planned + 1) * 1e9 / worker.rate)
    now = now_ns()
    return <int64_t> (next_at - now) if next_at > now else 0


cdef int64_t drive_publishers(Worker worker) except -1 nogil:
    cdef int i
    if worker.rate > 0:
        return pace(worker)
    if worker.in_turn:
        pump_in_turn(worker)
        return SECOND // 100
    for i in range(worker.publisher_count):
        pump(worker, &worker.publishers[i])
    if not worker.e2e and not worker.qos:
        for i in range(worker.publisher_count):   # unlimited: do not sleep while some publisher can still write
            if worker.publishers[i].state == READY and buffer_size(&worker.publishers[i].out) == 0:
                return 0
    return SECOND // 100


# Nothing comes any more: what was lost is not waited for.
cdef void release_windows(Worker worker) noexcept nogil:
    cdef int i
    worker.releases = peek(&worker.common.releases)
    for i in range(worker.publisher_count):
        worker.publishers[i].released = worker.publishers[i].sent
