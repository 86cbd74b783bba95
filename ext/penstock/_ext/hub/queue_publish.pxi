# PUBLISH to a topic under $queue/: a message for the queues that are bound to it, or the settlement of a delivery.

cdef enum:
    QUEUE_SLOTS = 8
    UNSPECIFIED_ERROR = 0x80
    QUEUE_PREFIX = 7            # of `$queue/`
    RECORD_OVERHEAD = 256       # of a record in a pack, besides what its publisher has sent; more than it is

cdef uint64_t RELAYED = <uint64_t> -1       # no batch ever has this ticket


cdef inline bint is_queue_topic(const uint8_t* topic, uint32_t size) noexcept:
    return size >= QUEUE_PREFIX and topic[0] == c"$" and memcmp(topic, b"$queue/", QUEUE_PREFIX) == 0


# The control word at the end of the topic.
cdef uint8_t verb_of(const uint8_t* topic, uint32_t size) noexcept:
    cdef uint32_t i = QUEUE_PREFIX, start = QUEUE_PREFIX
    cdef bint is_first = True
    while True:
        start = i
        while i < size and topic[i] != c"/":
            i += 1
        if start == i and is_first:
            return VERB_WRONG           # no name
        if start < i and topic[start] == c"$":
            if is_named(topic + start, i - start, "$dlq") and is_first:
                pass
            elif i < size or is_first:
                return VERB_WRONG
            elif is_named(topic + start, i - start, "$ack"):
                return VERB_ACK
            elif is_named(topic + start, i - start, "$nack"):
                return VERB_NACK
            elif is_named(topic + start, i - start, "$reject"):
                return VERB_REJECT
            elif is_named(topic + start, i - start, "$commit"):
                return VERB_COMMIT
            elif is_named(topic + start, i - start, "$extend"):
                return VERB_EXTEND
            else:
                return VERB_WRONG
        if i >= size:
            return VERB_NONE
        is_first = False
        i += 1


# As find_topic, for topics of queues. NULL with the connection closing.
cdef inline QueueSlot* find_queue_topic(Hub hub, Connection c, const PublishView* view) except? NULL:
    cdef uint64_t hash = hash_bytes(view.topic, view.topic_size, hub.queues.bindings.seed)
    cdef QueueSlot* slot
    cdef Match* match
    if c.queue_topics != NULL:
        slot = &c.queue_topics[hash & (QUEUE_SLOTS - 1)]
        match = slot.match
        if (match != NULL and match.hash == hash and match.version == hub.queues.bindings.version
                and match.topic_size == view.topic_size and memcmp(match.topic, view.topic, view.topic_size) == 0):
            return slot
    return look_up_queue_topic(hub.queues, c, view, hash)


# The same for a topic that is not remembered.
cdef QueueSlot* look_up_queue_topic(QueueDesk desk, Connection c, const PublishView* view, uint64_t hash) except? NULL:
    cdef Hub hub = c.hub
    cdef QueueSlot* slot
    cdef Match* match
    cdef int reason
    if c.queue_topics == NULL:
        c.queue_topics = <QueueSlot*> calloc(QUEUE_SLOTS, sizeof(QueueSlot))
        if c.queue_topics == NULL:
            raise MemoryError()
    slot = &c.queue_topics[hash & (QUEUE_SLOTS - 1)]
    reason = check_topic_name(view.topic, view.topic_size, hub.limits.max_topic_levels)
    if reason == 0 and view.topic_size > hub.limits.max_topic_length:
        reason = TOPIC_NAME_INVALID
    if reason:
        c.violation(reason, "invalid topic name")       # [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT3-3.3.2-1] [MQTT3-3.3.2-2]
        return NULL
    slot.verb = verb_of(view.topic, view.topic_size)
    if slot.queue != NULL:
        Py_DECREF(<object> slot.queue)
        slot.queue = NULL
    if slot.verb == VERB_COMMIT:
        # of a group that the client is not in: a right to messages, such as $queue/events/#, is not enough
        slot.allowed = c.session.acl is None or c.session.acl.names_verb(view.topic, view.topic_size)
    else:
        slot.allowed = may_publish(c.session, view.topic, view.topic_size)
    slot.refusal = TEXT_NONE
    match = desk.bindings.match(view.topic, view.topic_size, hash)
    if desk._find_queue is not None and (VERB_ACK <= slot.verb <= VERB_EXTEND
                                         or (slot.verb == VERB_NONE and is_unmatched(match) and slot.allowed)):
        found = desk._find_queue(PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size),
                                 slot.verb != VERB_NONE)
        if isinstance(found, int):
            slot.refusal = found
        elif slot.verb and found is not None:
            Py_INCREF(found)
            slot.queue = <void*> found
        elif found is not None:
            match_unref(match)                          # a queue was made for it
            match = desk.bindings.match(view.topic, view.topic_size, hash)
    if slot.match != NULL:
        match_unref(slot.match)
    slot.match = match
    return slot


cdef void drop_queue_topics(Connection c) noexcept:
    cdef uint32_t i
    if c.queue_topics == NULL:
        return
    for i in range(<uint32_t> QUEUE_SLOTS):
        if c.queue_topics[i].match != NULL:
            match_unref(c.queue_topics[i].match)
        if c.queue_topics[i].queue != NULL:
            Py_DECREF(<object> c.queue_topics[i].queue)
    free(c.queue_topics)
    c.queue_topics = NULL


# The reserved queue only takes what no other queue takes.
cdef inline bint does_without(DurableQueue queue, const Match* match) noexcept:
    return queue.is_spare and match.target_count > 1


# No queue takes it, or only the reserved one does: a queue may be created for it.
cdef inline bint is_unmatched(const Match* match) noexcept:
    return match.target_count == 0 or (match.target_count == 1 and (<DurableQueue> match.targets[0].owner).is_spare)


# The answer to a publisher whose queue was not created; TEXT_NONE if the reserved queue takes the message instead.
cdef inline uint8_t why_not_made(const Match* match, uint8_t refusal) noexcept:
    if refusal == TEXT_LIMIT or match.target_count == 0:
        return refusal if refusal else <uint8_t> TEXT_MANY
    return TEXT_NONE


# The reason code of that answer.
cdef inline uint8_t code_of(uint8_t text) noexcept:
    return TOPIC_NAME_INVALID if text == TEXT_OFF else QUOTA_EXCEEDED


# What the log in memory would refuse, and with it everything else of this iteration.
cdef inline bint is_out_of_memory(DurableQueue queue, const EnvelopeView* message) noexcept:
    cdef uint64_t size
    if queue.max_memory == 0:
        return False
    size = <uint64_t> message.payload_size + message.props_size + 2 * message.topic_size + RECORD_OVERHEAD
    if queue.pack is not None:
        size += buffer_size(&queue.pack._body)
    return queue.memory + size > queue.max_memory


# TEXT_NONE when the queue takes the message.
cdef inline uint8_t refusal_by(DurableQueue queue, const EnvelopeView* message, const Match* match) noexcept:
    cdef uint8_t text
    if queue.is_closed:
        return TEXT_CLOSED
    if does_without(queue, match):
        return TEXT_NONE
    if message.payload_size > queue.max_message_size:
        text = TEXT_TOO_LARGE
    elif is_full_queue(queue):
        text = TEXT_FULL
    elif is_out_of_memory(queue, message):
        text = TEXT_NO_MEMORY
    else:
        return TEXT_NONE
    queue.refused += 1
    return text


# TEXT_NONE when every queue of the match takes the message.
cdef inline uint8_t refusal_of(const EnvelopeView* message, const Match* match) noexcept:
    cdef uint32_t i
    cdef uint8_t text
    for i in range(match.target_count):
        text = refusal_by(<DurableQueue> match.targets[i].owner, message, match)
        if text:
            return text
    return TEXT_NONE


cdef inline int enqueue_all(EnvelopeView* message, const Match* match, uint64_t mark) except -1:
    cdef uint32_t i
    for i in range(match.target_count):
        if not does_without(<DurableQueue> match.targets[i].owner, match):
            (<DurableQueue> match.targets[i].owner).take(message, mark)
    return 0


# The message of a PUBLISH, as the queues keep it: what no message of a publisher is here is retained.
cdef inline void fill_message(Hub hub, EnvelopeView* message, const PublishView* view, Session origin,
                              int64_t expires_at) noexcept:
    fill_envelope(hub, message, view, origin, expires_at)
    message.retain = 0


# The packet id of a QoS 2 message that one queue gets, and no other log: a broker that was killed knows by it whether
# the message came in. Otherwise 0.
cdef inline uint64_t mark_of(Hub hub, const PublishView* view, Session origin, const Match* match) noexcept:
    if (view.qos != 2 or match.target_count != 1 or origin is None or view.packet_id == 0 or not hub.ingest.keeps_state
            or not origin._keeps):
        return 0
    origin.received_sequence += 1
    return <uint64_t> origin.received_sequence << 16 | view.packet_id


# The reason code of a refusal.
cdef inline uint8_t refused_code(uint8_t text) noexcept:
    return NOT_AUTHORIZED if text == TEXT_CLOSED else QUOTA_EXCEEDED


# 0 (done) or 1 (the connection must wait), as handle_publish, which has checked the packet.
cdef int handle_queue_publish(Hub hub, Session s, Connection c, const PublishView* view) except -1:
    cdef QueueSlot* slot
    cdef uint8_t verdict = SUCCESS, text = TEXT_NONE
    cdef uint64_t ticket = 0
    cdef EnvelopeView message
    if view.qos == 2 and ids_has(&s.received, view.packet_id):
        return answer(c, PUBREC, view.packet_id, DUPLICATE, hub.ingest.ticket + (1 if has_open(hub) else 0))
    if view.qos and c.version == 5:
        if s.received.count + c.acks_qos1 >= hub.limits.receive_maximum:  # [MQTT-3.3.4-7]
            return c.violation(RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than the receive maximum")
    slot = find_queue_topic(hub, c, view)
    if slot == NULL:
        return 0
    if hub.queues._find_queue is None:
        verdict, text = UNSPECIFIED_ERROR, TEXT_NO_QUEUES
    elif slot.verb == VERB_WRONG:
        verdict, text = UNSPECIFIED_ERROR, TEXT_WRONG_WORD
    elif slot.verb and is_relayed(c, s, slot):
        return relay_settlement(c, s, view)
    elif slot.verb:
        text = settle_by_publish(c, s, slot, view)
        verdict = UNSPECIFIED_ERROR if text else SUCCESS
        ticket = hub.ingest.ticket + 1 if text == TEXT_NONE and hub.queues._changed else 0
    elif not slot.allowed:
        verdict = NOT_AUTHORIZED
        note_denied(c, view)
    elif hub.ingest.pending > hub.ingest.limit:
        c.wait_for_log()
        return 1
    elif hub.rates.is_on and is_too_fast(hub, s):
        if c.version != 5:
            return leave_too_fast(c)
        verdict = QUOTA_EXCEEDED
    else:
        if slot.match.target_count == 0 and view.topic[QUEUE_PREFIX] == c"$":
            verdict, text = NOT_AUTHORIZED, TEXT_CLOSED
        elif why_not_made(slot.match, slot.refusal):
            text = why_not_made(slot.match, slot.refusal)
            verdict = code_of(text)
        elif is_too_large(hub, view, s):
            verdict, text = QUOTA_EXCEEDED, TEXT_LOG_TOO_LARGE
        else:
            fill_message(hub, &message, view, s, hub.wall + <int64_t> view.expiry * 1000 if view.has_expiry else 0)
            text = refusal_of(&message, slot.match)
            if text:
                verdict = refused_code(text)
            if text == TEXT_FULL:
                text = explain_full(c, slot.match)
        if verdict == SUCCESS:
            enqueue_all(&message, slot.match, mark_of(hub, view, s, slot.match))
            ticket = hub.ingest.ticket + 1
        else:
            hub.counters.dropped[<int> DROP_QUEUE_FULL] += 1
    hub.counters.received[view.qos] += 1
    hub.counters.payload_received += view.payload_size
    if view.qos == 0:
        return 0
    if verdict >= 0x80 and verdict != NOT_AUTHORIZED and c.version != 5:
        return shut_refused(c, text)                 # MQTT 3 has no way to say no
    if view.qos == 1:
        return answer_in_words(c, PUBACK, view.packet_id, verdict, ticket, text)
    if verdict < 0x80 or c.version != 5:
        ids_add(&s.received, view.packet_id)
        if hub.ingest.keeps_state and s._keeps and not s.received_changed:
            note_received(s)
    return answer_in_words(c, PUBREC, view.packet_id, verdict, ticket, text)


# A message that no connection sends: a will. Nobody is told when it is refused.
cdef int publish_to_queues(QueueDesk desk, const PublishView* view, Session origin, int64_t expires_at) except -1:
    cdef Hub hub = desk.hub
    cdef uint64_t hash = hash_bytes(view.topic, view.topic_size, desk.bindings.seed)
    cdef Match* match = desk.bindings.match(view.topic, view.topic_size, hash)
    cdef EnvelopeView message
    cdef uint8_t text = 0
    fill_message(hub, &message, view, origin, expires_at)
    try:
        if verb_of(view.topic, view.topic_size) == VERB_NONE:
            if is_unmatched(match) and desk._find_queue is not None:
                found = desk._find_queue(PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size), False)
                if isinstance(found, int):
                    text = why_not_made(match, found)
                match_unref(match)
                match = desk.bindings.match(view.topic, view.topic_size, hash)
            if (match.target_count and not text and not is_too_large(hub, view, origin)
                    and refusal_of(&message, match) == TEXT_NONE):
                return enqueue_all(&message, match, mark_of(hub, view, origin, match))
        hub.counters.dropped[<int> DROP_QUEUE_FULL] += 1
    finally:
        match_unref(match)
    return 0


cdef int shut_refused(Connection c, uint8_t text) except -1:
    c.shutdown(c.words.decode() if text == TEXT_HELD else ANSWER_TEXTS[text].decode("ascii"))
    return 0


cdef inline const char* words_of(Connection c, uint8_t text) noexcept:
    if text == TEXT_HELD:
        return <const char*> PyBytes_AS_STRING(c.words)
    return ANSWER_TEXTS[text]


# TEXT_HELD, with words that name the group that holds the queue back; Python is asked for them at most once a second.
# Answers that wait for the log share Connection.words, so it holds the words of one queue at a time.
cdef uint8_t explain_full(Connection c, const Match* match) except 0xFF:
    cdef DurableQueue queue
    cdef uint32_t i
    for i in range(match.target_count):
        queue = <DurableQueue> match.targets[i].owner
        if does_without(queue, match) or not is_full_queue(queue):
            continue
        if queue.full_words is None or c.hub.now - queue.explained_at > 1_000:
            queue.full_words = queue.owner.why_full() if queue.owner is not None else b""
            queue.explained_at = c.hub.now
        if not queue.full_words:
            return TEXT_FULL
        if c.acks_count == 0 or c.words is None:
            c.words = queue.full_words
        return TEXT_HELD if c.words == queue.full_words else TEXT_FULL
    return TEXT_FULL


# An ordinary publish that queues take as well: 1 if one of them does not, and then nobody gets it.
cdef int capture(QueueDesk desk, const PublishView* view, Session origin, int64_t expires_at, uint64_t* ticket,
                 uint8_t* text) except -1:
    cdef EnvelopeView message
    cdef Hub hub = desk.hub
    cdef Match* match = desk.bindings.match(view.topic, view.topic_size,
                                            hash_bytes(view.topic, view.topic_size, desk.bindings.seed))
    try:
        if match.target_count == 0:
            return 0
        fill_message(hub, &message, view, origin, expires_at)
        text[0] = refusal_of(&message, match)
        if text[0]:
            return 1
        enqueue_all(&message, match, 0)
        ticket[0] = hub.ingest.ticket + 1
        text[0] = TEXT_CAPTURED
    finally:
        match_unref(match)
    return 0


cdef int refuse_publish(Connection c, const PublishView* view, uint8_t text, DropCause cause) except -1:
    c.hub.counters.dropped[<int> cause] += 1
    c.hub.counters.received[view.qos] += 1
    if view.qos == 0:
        return 0
    if c.version != 5:
        return shut_refused(c, text)
    return answer_in_words(c, PUBACK if view.qos == 1 else PUBREC, view.packet_id, QUOTA_EXCEEDED, 0, text)


# ---- settlement of what another node has delivered ----

# A queue that another node has just made may be unknown here, and its messages be under way already.
cdef inline bint is_relayed(Connection c, Session s, const QueueSlot* slot) noexcept:
    if c.version != 5 or c.hub.queues._on_relay is None:
        return False
    if slot.queue == NULL:
        return has_courier(s)
    return (<DurableQueue> slot.queue).is_elsewhere


cdef int relay_settlement(Connection c, Session s, const PublishView* view) except -1:
    cdef Hub hub = c.hub
    cdef uint8_t packet_type = PUBACK if view.qos == 1 else PUBREC
    topic = PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size)
    properties = PyBytes_FromStringAndSize(<const char*> view.props, view.props_size)
    hub.counters.received[view.qos] += 1
    hub.counters.payload_received += view.payload_size
    if view.qos == 2:
        ids_add(&s.received, view.packet_id)
        if hub.ingest.keeps_state and s._keeps and not s.received_changed:
            note_received(s)
    if view.qos:
        answer(c, packet_type, view.packet_id, SUCCESS, RELAYED)
    hub.queues._on_relay(c, topic, properties, <uint32_t> packet_type << 16 | view.packet_id if view.qos else 0)
    return 0


# The index of what another node said.
cdef uint8_t text_of(bytes words) noexcept:
    cdef uint8_t i
    for i in range(1, <uint8_t> TEXT_COUNT):
        if strcmp(ANSWER_TEXTS[i], PyBytes_AS_STRING(words)) == 0:
            return i
    return TEXT_NONE


# The other node has answered: so does this one, as soon as all answers before it are sent.
cdef int answer_relayed(Connection c, uint32_t token, uint8_t reason, bytes words) except -1:
    cdef PendingAck* ack
    cdef uint32_t i
    for i in range(c.acks_count):
        ack = &c.acks[(c.acks_head + i) & (c.acks_capacity - 1)]
        if (ack.ticket != RELAYED or ack.packet_id != <uint16_t> token or ack.packet_type != <uint8_t> (token >> 16)):
            continue
        ack.ticket = 0
        ack.reason = reason
        ack.text = text_of(words) if reason >= 0x80 else <uint8_t> TEXT_NONE
        if reason >= 0x80 and ack.packet_type == PUBREC:
            forget_received(c, ack.packet_id)
        return release_acks(c, False)
    return 0


# ---- settlement ----

# What a settlement or a commit says.
cdef struct SettleView:
    const uint8_t* message_id
    const uint8_t* group
    const uint8_t* offset
    const uint8_t* reason
    const uint8_t* delay
    const uint8_t* timeout
    uint32_t message_id_size, group_size, offset_size, reason_size, delay_size, timeout_size
    bint is_twice               # one of them, with different values


cdef inline bint is_other(const uint8_t* known, uint32_t known_size, const uint8_t* value, uint32_t size) noexcept:
    return known != NULL and (known_size != size or memcmp(known, value, size) != 0)


cdef void read_settlement(const PublishView* view, SettleView* found) noexcept:
    cdef const uint8_t* p = view.props
    cdef const uint8_t* end = view.props + view.props_size
    cdef const uint8_t* value
    cdef uint32_t n, size
    memset(found, 0, sizeof(SettleView))
    while p < end:
        if p[0] == 0x26:
            n = <uint32_t> p[1] << 8 | p[2]
            value = p + 3 + n
            size = <uint32_t> value[0] << 8 | value[1]
            value += 2
            if is_named(p + 3, n, "message-id"):
                found.is_twice = found.is_twice or is_other(found.message_id, found.message_id_size, value, size)
                found.message_id, found.message_id_size = value, size
            elif is_named(p + 3, n, "group-id") or is_named(p + 3, n, "x-group-id"):
                found.is_twice = found.is_twice or is_other(found.group, found.group_size, value, size)
                found.group, found.group_size = value, size
            elif is_named(p + 3, n, "x-offset"):
                found.is_twice = found.is_twice or is_other(found.offset, found.offset_size, value, size)
                found.offset, found.offset_size = value, size
            elif is_named(p + 3, n, "reason"):
                found.reason, found.reason_size = value, size
            elif is_named(p + 3, n, "delay"):
                found.is_twice = found.is_twice or is_other(found.delay, found.delay_size, value, size)
                found.delay, found.delay_size = value, size
            elif is_named(p + 3, n, "timeout"):
                found.is_twice = found.is_twice or is_other(found.timeout, found.timeout_size, value, size)
                found.timeout, found.timeout_size = value, size
        p += property_size(p)


# -1 if it is no number.
cdef int64_t read_number(const uint8_t* p, uint32_t size) noexcept:
    cdef int64_t value = 0
    cdef uint32_t i
    if size == 0 or size > 18 or (size > 1 and p[0] == c"0"):
        return -1
    for i in range(size):
        if not c"0" <= p[i] <= c"9":
            return -1
        value = value * 10 + (p[i] - c"0")
    return value


cdef inline bint is_group(QueueGroup group, const SettleView* found) noexcept:
    return ((group.name_size == found.group_size and memcmp(group.name_text, found.group, found.group_size) == 0)
            or (group.id_size == found.group_size and memcmp(group.id_text, found.group, found.group_size) == 0))


cdef inline bint is_exactly(QueueGroup group, const SettleView* found) noexcept:
    if group.id_size == found.group_size and memcmp(group.id_text, found.group, found.group_size) == 0:
        return True
    return (group._filter is None and group.name_size == found.group_size
            and memcmp(group.name_text, found.group, found.group_size) == 0)


# TEXT_NONE, or why it is refused.
cdef uint8_t settle_by_publish(Connection c, Session s, QueueSlot* slot, const PublishView* view) except 0xFF:
    cdef DurableQueue queue
    cdef SettleView found
    cdef MqttConsumer consumer
    cdef int64_t offset, wanted
    cdef uint32_t n
    cdef int result
    cdef uint8_t text = TEXT_NOT_A_MEMBER
    if slot.queue == NULL:
        return TEXT_NO_QUEUE
    queue = <DurableQueue> slot.queue
    read_settlement(view, &found)
    if found.is_twice:
        return TEXT_TWICE
    if found.group == NULL:
        return TEXT_NO_GROUP_ID
    if slot.verb == VERB_COMMIT:
        return commit_stream(queue, s, slot.allowed, &found)
    n = queue.name_size
    if (found.message_id_size < n + 2 or memcmp(found.message_id, queue.name_text, n) != 0
            or found.message_id[n] != c":"):
        return TEXT_NO_MESSAGE_ID
    offset = read_number(found.message_id + n + 1, found.message_id_size - n - 1)
    if offset < 0:
        return TEXT_NO_MESSAGE_ID
    if queue.is_stream:
        consumer = find_own(queue, s, &found, &text)
        if consumer is None:
            return text
        result = consumer.group.settle_one(consumer, offset, slot.verb)
        return TEXT_NONE if result == RESOLVED else TEXT_NOT_PENDING
    if s.outlets is None:
        return TEXT_NOT_A_MEMBER
    for item in s.outlets:
        if (<Outlet> item).desk is not s.hub.queues:
            continue
        consumer = <MqttConsumer> item
        if consumer.group.queue is not queue or not is_group(consumer.group, &found):
            continue
        wanted = time_of(&found, slot.verb, consumer.group)
        if wanted == BAD_TIME:
            return TEXT_BAD_TIME
        if wanted == NO_TIME:
            result = consumer.group.settle_one(consumer, offset, slot.verb)
        else:
            result = settle_at(consumer, offset, slot.verb, wanted)
        if result == RESOLVED:
            if found.reason_size and slot.verb == VERB_REJECT:
                note_reason(consumer.group, offset, &found)
            return TEXT_NONE
        text = TEXT_NOT_YOURS if result == OTHERS_MESSAGE else TEXT_NOT_PENDING
    return text


# Rare: a consumer says why it rejects a message.
cdef int note_reason(QueueGroup group, int64_t offset, const SettleView* found) except -1:
    reason = found.reason[:found.reason_size].decode("utf-8", "replace")
    group.reasons[offset] = group.reason_changes[offset] = reason
    return 0


# x-offset: the message and everything before it are done. Only a member may move the group back, to read again.
cdef uint8_t commit_stream(DurableQueue queue, Session s, bint is_allowed, const SettleView* found) except 0xFF:
    cdef QueueGroup group
    cdef QueueConsumer consumer
    cdef uint8_t text = TEXT_NOT_A_MEMBER
    cdef int64_t offset = read_number(found.offset, found.offset_size)
    if not queue.is_stream:
        return TEXT_NOT_A_STREAM
    if offset < 0:
        return TEXT_NO_OFFSET
    consumer = find_own(queue, s, found, &text)
    if consumer is not None and (is_allowed or may_move(consumer)):
        group = consumer.group
    elif consumer is not None:
        return TEXT_NOT_WHOLE
    elif text == TEXT_AMBIGUOUS or not is_allowed:
        return text
    else:
        group = find_group(queue, found)
        if group is None:
            return TEXT_NO_GROUP
    if offset >= group.pending.cursor:
        return TEXT_BEYOND
    if consumer is not None or offset + 1 > group._committed:
        group.commit(offset + 1)
    return TEXT_NONE


# The client's own place in a stream: the group with exactly this id, or the only one of this name.
cdef QueueConsumer find_own(DurableQueue queue, Session s, const SettleView* found, uint8_t* text):
    cdef QueueConsumer consumer
    cdef QueueConsumer named = None
    for item in s.outlets or ():
        if (<Outlet> item).desk is not s.hub.queues:
            continue
        consumer = <QueueConsumer> item
        if consumer.group.queue is not queue or not is_group(consumer.group, found):
            continue
        if is_exactly(consumer.group, found):
            return consumer
        if named is not None and named.group is not consumer.group:
            text[0] = TEXT_AMBIGUOUS
        named = consumer
    return named if text[0] != TEXT_AMBIGUOUS else None


# A group that the client is not in, by name and filter: a name alone is the group without a filter.
cdef QueueGroup find_group(DurableQueue queue, const SettleView* found):
    for item in queue.groups:
        if is_exactly(<QueueGroup> item, found):
            return <QueueGroup> item
    return None
