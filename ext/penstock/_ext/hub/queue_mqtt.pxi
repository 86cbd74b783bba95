# MQTT clients as consumers: a delivery becomes a PUBLISH with the properties of the message and of the delivery.


@final
cdef class MqttConsumer(QueueConsumer):
    """One subscription of one client, as a member of a group."""

    def __init__(self, QueueGroup group not None, Session session not None, *, uint8_t qos=1, uint32_t prefetch=100,
                 uint32_t identifier=0, bint settles_by_ack=False, uint32_t number=0):
        """`number` is given to a client whose session outlives the process; see pending.LASTING."""
        self.group = group
        self.client = self.session = session
        self.desk = session.hub.queues
        self.number = number if number else next_number(session.hub)
        self.unsettled = group.pending.count_of(self.number) if number else 0
        self.qos = qos
        self.prefetch = max(prefetch, 1)
        self.identifier = identifier
        self.settles_by_ack = settles_by_ack

    cdef int on_member(self, bint is_member) except -1:
        if is_member:
            add_outlet(self.session, self)
        else:
            remove_outlet(self.session, self)
        return name_groups(self.session, self.group)

    cdef bint is_online(self) noexcept:
        cdef Connection c = self.session.connection
        return c is not None and c.state == CONNECTED

    cdef bint has_room(self) noexcept:
        cdef Session s = self.session
        cdef Connection c = s.connection
        if c is None or c.state != CONNECTED or not c.writable or s.resend_count:
            return False
        if self.qos == 0:
            return s.queue.count == 0
        if not self.group.queue.is_stream and self.unsettled >= self.prefetch:
            return False
        return (s.outstanding + s.kept_free + s.queue.count + self.waiting < s.limit
                and s.window.count + self.waiting < s.hub.limits.max_inflight and self.turn != s.round)

    # To the client, or to what waits before it.
    cdef int send(self, const RecordView* record, const EnvelopeView* view, uint32_t deliveries) except -1:
        cdef QueueGroup group = self.group
        cdef Hub hub = group.queue.hub
        cdef Session s = self.session
        cdef Connection c = s.connection
        cdef const uint8_t* topic
        cdef uint32_t topic_size = 0
        cdef Message* m
        cdef Extras* extras
        cdef Buffer* props = &hub.queues._props
        cdef int sent
        topic = delivered_topic(group.queue, view, &topic_size)
        if s.version == 5:
            build_properties(group, self, record, view, deliveries)
        else:
            props.start = props.end = 0
        m = message_new(topic, topic_size, props.data, buffer_size(props), view.payload, view.payload_size, self.qos,
                        0, view.received_at, view.expires_at)
        m.source_partition = self.number
        m.source_offset = record.offset
        extras = make_extras(&self.identifier, 1 if self.identifier else 0, NULL)
        try:
            group.delivered += 1
            self.delivered += 1
            if c is None or c.state != CONNECTED or not c.writable or s.queue.count or s.resend_count or s.is_full():
                return s.enqueue(m, extras, self.qos, DELIVERY_NUMBERED)
            sent = send_message(c, s, m, self.qos, DELIVERY_NUMBERED, extras, 0, False)
            if sent and self.qos:
                bind_last(s, self)
                end_turn(s, &self.turn)
            else:
                free(extras)
            if not sent:
                count_drop(s, DROP_TOO_LARGE)       # as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
                if not group.queue.is_stream:
                    group.settle_one(self, record.offset, VERB_NACK)
        finally:
            message_unref(m)
        return 0

    cdef int64_t unacknowledged(self, int64_t lowest) except? -1:
        cdef Session s = self.session
        cdef Slot* slot
        cdef uint32_t i
        for i in range(s.window.capacity):
            slot = &s.window.slots[i]
            if (slot.packet_id and slot.outlet == self.place and slot.message != NULL
                    and slot.message.source_offset < lowest):
                lowest = slot.message.source_offset
        for i in range(s.queue.count):
            lowest = min(lowest, queued_offset(&s.queue, i, self.number, lowest))
        return lowest

    # ---- as an outlet ----

    cdef bint pump(self, Session s, Connection c) except -1:
        if c.writable:
            self.group.note()
        return False

    # MQTT 3 settles by acknowledging, MQTT 5 only makes room.
    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1:
        if slot.message != NULL and is_taken and self.settles_by_ack:
            self.group.settle_one(self, slot.message.source_offset, VERB_ACK)
        return self.group.note()

    cdef int take_back(self, const Message* m) except -1:
        return give_back(self, m.source_offset, message_topic(m), m.topic_size)


cdef inline uint8_t* put_text(uint8_t* p, const void* text, uint32_t size) noexcept:
    put_be16(p, <uint16_t> size)
    memcpy(p + 2, text, size)
    return p + 2 + size


# As add_property, to be kept.
cdef bytes user_property(bytes name, bytes value):
    return b"\x26" + len(name).to_bytes(2, "big") + name + len(value).to_bytes(2, "big") + value


cdef inline int add_property(Buffer* out, const char* name, const void* value, uint32_t size) except -1:
    cdef uint32_t n = <uint32_t> strlen(name)
    cdef uint8_t* p
    if size > 65_535:
        return 0
    p = buffer_reserve(out, 5 + n + size)
    p[0] = 0x26                                 # User Property
    put_text(put_text(p + 1, name, n), value, size)
    return 0


# Both digits of each number below 100.
cdef const char* PAIRS = (
    "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849"
    "5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"
)


cdef uint32_t put_decimal(char* p, int64_t value) noexcept:
    cdef char digits[24]
    cdef uint32_t at = sizeof(digits)
    cdef uint64_t rest = <uint64_t> value, hundreds
    while rest >= 100:
        hundreds = rest // 100
        at -= 2
        memcpy(digits + at, PAIRS + 2 * (rest - hundreds * 100), 2)
        rest = hundreds
    if rest >= 10:
        at -= 2
        memcpy(digits + at, PAIRS + 2 * rest, 2)
    else:
        at -= 1
        digits[at] = <char> (c"0" + rest)
    memcpy(p, digits + at, sizeof(digits) - at)
    return sizeof(digits) - at


cdef inline int add_number(Buffer* out, const char* name, int64_t value) except -1:
    cdef char digits[24]
    return add_property(out, name, digits, put_decimal(digits, value))


# Size of the property at p, which was validated when it came in.
cdef inline uint32_t property_size(const uint8_t* p) noexcept:
    cdef uint32_t n
    if p[0] == 0x01:                            # Payload Format Indicator
        return 2
    n = 3 + (<uint32_t> p[1] << 8 | p[2])
    if p[0] == 0x26:
        n += 2 + (<uint32_t> p[n] << 8 | p[n + 1])
    return n


cdef inline bint is_named(const uint8_t* p, uint32_t size, const char* name) noexcept:
    return size == strlen(name) and memcmp(p, name, size) == 0


# Names that say something of the delivery: whatever a publisher puts there is not passed on.
cdef bint is_reserved(const uint8_t* name, uint32_t size, bint is_dead) noexcept:
    if size < 5:
        return False
    if name[0] == c"x" and name[1] == c"-":
        return (is_named(name, size, "x-stream-offset") or is_named(name, size, "x-stream-timestamp")
                or is_named(name, size, "x-work-committed-offset") or is_named(name, size, "x-work-acked")
                or is_named(name, size, "x-work-group") or is_named(name, size, "x-source-topic")
                or is_named(name, size, "x-delivery-count"))
    if name[0] == c"_":
        return not is_dead and memcmp(name, b"_dlq_", 5) == 0
    return (is_named(name, size, "message-id") or is_named(name, size, "group-id") or is_named(name, size, "queue")
            or is_named(name, size, "offset"))


# The properties of the message, then those of the delivery, in hub.queues._props.
cdef int build_properties(QueueGroup group, MqttConsumer consumer, const RecordView* record, const EnvelopeView* view,
                          uint32_t deliveries) except -1:
    cdef DurableQueue queue = group.queue
    cdef bytes group_and_queue = group._exact_names if consumer.has_namesake else group._names
    cdef Buffer* out = &queue.hub.queues._props
    cdef const uint8_t* p = view.props
    cdef const uint8_t* end = view.props + view.props_size
    cdef uint32_t size, names
    cdef uint8_t* id
    cdef char number[24]
    cdef uint32_t digits = put_decimal(number, record.offset)
    cdef int64_t done
    out.start = out.end = 0
    while p < end:
        size = property_size(p)
        if p[0] != 0x26 or not is_reserved(p + 3, <uint32_t> p[1] << 8 | p[2], view.retain):
            memcpy(buffer_reserve(out, size), p, size)
        p += size
    size = queue.name_size + 1 + digits
    names = <uint32_t> PyBytes_GET_SIZE(group_and_queue)
    id = buffer_reserve(out, 3 + 10 + 2 + size + names)
    id[0] = 0x26
    id = put_text(id + 1, b"message-id", 10)
    put_be16(id, <uint16_t> size)
    memcpy(id + 2, queue.name_text, queue.name_size)
    id[2 + queue.name_size] = c":"
    memcpy(id + 3 + queue.name_size, number, digits)
    memcpy(id + 2 + size, PyBytes_AS_STRING(group_and_queue), names)
    add_property(out, "offset", number, digits)
    add_property(out, "x-source-topic", view.topic, view.topic_size)
    if queue.is_stream:
        add_property(out, "x-stream-offset", number, digits)
        add_number(out, "x-stream-timestamp", record.timestamp)
        if queue.primary_name:
            done = queue.primary._committed if queue.primary is not None else 0
            add_number(out, "x-work-committed-offset", done)
            add_property(out, "x-work-acked", b"true" if record.offset < done else b"false",
                         4 if record.offset < done else 5)
            add_property(out, "x-work-group", PyBytes_AS_STRING(queue.primary_name),
                         <uint32_t> PyBytes_GET_SIZE(queue.primary_name))
    elif deliveries > 1:
        add_number(out, "x-delivery-count", deliveries)
    return 0
