# PUBLISH to a topic under $queue/: a message for the queues that are bound to it, or the settlement of a delivery.

cdef enum AnswerText:
    TEXT_NONE = 0
    TEXT_NO_QUEUES = 1
    TEXT_FULL = 2
    TEXT_TOO_LARGE = 3
    TEXT_NO_QUEUE = 4
    TEXT_WRONG_WORD = 5
    TEXT_NO_MESSAGE_ID = 6
    TEXT_NO_GROUP_ID = 7
    TEXT_NOT_A_MEMBER = 8
    TEXT_NOT_PENDING = 9
    TEXT_NOT_YOURS = 10
    TEXT_NOT_A_STREAM = 11
    TEXT_NO_GROUP = 12
    TEXT_BEYOND = 13
    TEXT_NO_OFFSET = 14
    TEXT_CLOSED = 15
    TEXT_MANY = 16
    TEXT_AWAY = 17
    TEXT_NO_MEMORY = 18
    TEXT_LOG_TOO_LARGE = 19
    TEXT_COUNT = 20
    TEXT_CAPTURED = 0xFE        # no text: a queue has taken the message

cdef const char* ANSWER_TEXTS[20]
ANSWER_TEXTS[:] = [
    "",
    "durable queues need a log: ingest.log is none",
    "the queue has reached limits.max_depth",
    "the message is larger than limits.max_message_size of the queue",
    "there is no such queue",
    "not an address of a queue: $queue/<name>/<key>, with $ack, $nack, $reject or $commit at its end only",
    "the user property message-id is missing or not <queue>:<offset>",
    "the user property group-id is missing",
    "this client does not consume that queue in that group",
    "the message is not pending: settled before, or never delivered",
    "the message is with another consumer",
    "only streams are committed",
    "there is no such group",
    "the offset is beyond what the group has read",
    "the user property x-offset is missing or no number",
    "only the broker publishes dead letters",
    "there is no such queue, and one cannot be made for this topic",
    "the node that serves the queue cannot be reached now",
    "the queue has no more room in memory: queue_manager.ephemeral_bytes",
    "the message is larger than the log takes: kafka.max_request_size",
]

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
            else:
                return VERB_WRONG
        if i >= size:
            return VERB_NONE
        is_first = False
        i += 1


# As find_topic, for topics of queues. NULL with the connection closing.
cdef QueueSlot* find_queue_topic(Connection c, const PublishView* view) except? NULL:
    cdef Hub hub = c.hub
    cdef uint64_t hash = hash_bytes(view.topic, view.topic_size, hub.bindings.seed)
    cdef QueueSlot* slot
    cdef Match* match
    cdef int reason
    if c.queue_topics == NULL:
        c.queue_topics = <QueueSlot*> calloc(QUEUE_SLOTS, sizeof(QueueSlot))
        if c.queue_topics == NULL:
            raise MemoryError()
    slot = &c.queue_topics[hash & (QUEUE_SLOTS - 1)]
    match = slot.match
    if (match != NULL and match.hash == hash and match.version == hub.bindings.version
            and match.topic_size == view.topic_size and memcmp(match.topic, view.topic, view.topic_size) == 0):
        return slot
    reason = check_topic_name(view.topic, view.topic_size, hub.max_topic_levels)
    if reason == 0 and view.topic_size > hub.max_topic_length:
        reason = TOPIC_NAME_INVALID
    if reason:
        c.violation(reason, "invalid topic name")       # [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT3-3.3.2-1] [MQTT3-3.3.2-2]
        return NULL
    slot.verb = verb_of(view.topic, view.topic_size)
    if slot.queue != NULL:
        Py_DECREF(<object> slot.queue)
        slot.queue = NULL
    slot.allowed = may_publish(c.session, view.topic, view.topic_size)
    match = hub.bindings.match(view.topic, view.topic_size, hash)
    if hub._find_queue is not None and (VERB_ACK <= slot.verb <= VERB_COMMIT
                                        or (slot.verb == VERB_NONE and match.target_count == 0 and slot.allowed)):
        found = hub._find_queue(PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size),
                                slot.verb != VERB_NONE)
        if slot.verb and found is not None:
            Py_INCREF(found)
            slot.queue = <void*> found
        elif found is not None:
            match_unref(match)                          # a queue was made for it
            match = hub.bindings.match(view.topic, view.topic_size, hash)
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


# The answer is 0 and *text TEXT_NONE when every queue of the match takes the message.
# Nobody may read the reserved queue, which takes a copy of everything: it must not stop the others when it is full.
cdef inline bint does_without(DurableQueue queue, const Match* match) noexcept:
    return queue.is_spare and match.target_count > 1 and is_full_queue(queue)


cdef inline bint is_full_queue(DurableQueue queue) noexcept:
    return queue.max_depth and not queue.drops_oldest and queue.tail - queue.floor >= <int64_t> queue.max_depth


# What the log in memory would refuse, and with it everything else of this iteration.
cdef inline bint is_out_of_memory(DurableQueue queue, const PublishView* view) noexcept:
    cdef uint64_t size
    if queue.max_memory == 0:
        return False
    size = <uint64_t> view.payload_size + view.props_size + 2 * view.topic_size + RECORD_OVERHEAD
    if queue.pack is not None:
        size += buffer_size(&queue.pack._body)
    return queue.memory + size > queue.max_memory


cdef uint8_t refusal_of(const PublishView* view, const Match* match, uint8_t* text) noexcept:
    cdef DurableQueue queue
    cdef uint32_t i
    for i in range(match.target_count):
        queue = <DurableQueue> match.targets[i].owner
        if queue.is_closed:
            text[0] = TEXT_CLOSED
            return NOT_AUTHORIZED
        if does_without(queue, match):
            queue.refused += 1
            continue
        if view.payload_size > queue.max_message_size:
            text[0] = TEXT_TOO_LARGE
        elif is_full_queue(queue):
            text[0] = TEXT_FULL
        elif is_out_of_memory(queue, view):
            text[0] = TEXT_NO_MEMORY
        else:
            continue
        queue.refused += 1
        return QUOTA_EXCEEDED
    return SUCCESS


cdef int enqueue_all(const PublishView* view, const Match* match, Session origin, int64_t expires_at,
                     bint is_captured) except -1:
    cdef uint32_t i
    cdef DurableQueue queue
    for i in range(match.target_count):
        queue = <DurableQueue> match.targets[i].owner
        if not does_without(queue, match):
            queue.take(view, origin, expires_at, match.target_count == 1 and not is_captured)
    return 0


# 0 (done) or 1 (the connection must wait), as handle_publish, which has checked the packet.
cdef int handle_queue_publish(Connection c, const PublishView* view) except -1:
    cdef Hub hub = c.hub
    cdef Session s = c.session
    cdef QueueSlot* slot
    cdef uint8_t verdict = SUCCESS, text = TEXT_NONE
    cdef uint64_t ticket = 0
    cdef int64_t expires_at = 0
    if view.qos == 2 and ids_has(&s.received, view.packet_id):
        return answer(c, PUBREC, view.packet_id, DUPLICATE, hub.ticket + (1 if has_open(hub) else 0))
    if view.qos and c.version == 5:
        if s.received.count + c.acks_qos1 >= hub.receive_maximum:  # [MQTT-3.3.4-7]
            return c.violation(RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than the receive maximum")
    slot = find_queue_topic(c, view)
    if slot == NULL:
        return 0
    if hub._find_queue is None:
        verdict, text = UNSPECIFIED_ERROR, TEXT_NO_QUEUES
    elif slot.verb == VERB_WRONG:
        verdict, text = UNSPECIFIED_ERROR, TEXT_WRONG_WORD
    elif slot.verb and is_relayed(c, s, slot):
        return relay_settlement(c, s, view)
    elif slot.verb:
        text = settle_by_publish(c, s, slot, view)
        verdict = UNSPECIFIED_ERROR if text else SUCCESS
        ticket = hub.ticket + 1 if text == TEXT_NONE and hub._changed_groups else 0
    elif not slot.allowed:
        verdict = NOT_AUTHORIZED
        hub.counters.dropped[<int> DROP_DENIED] += 1
    elif hub.ingest_pending > hub.ingest_limit:
        c.wait_for_log()
        return 1
    elif hub.limits_rates and is_too_fast(hub, s):
        if c.version != 5:
            return leave_too_fast(c)
        verdict = QUOTA_EXCEEDED
    else:
        if slot.match.target_count == 0 and view.topic[QUEUE_PREFIX] == c"$":
            verdict, text = NOT_AUTHORIZED, TEXT_CLOSED
        elif slot.match.target_count == 0:
            verdict, text = QUOTA_EXCEEDED, TEXT_MANY
        elif is_too_large(hub, view, s):
            verdict, text = QUOTA_EXCEEDED, TEXT_LOG_TOO_LARGE
        else:
            verdict = refusal_of(view, slot.match, &text)
        if verdict == SUCCESS:
            if view.has_expiry:
                expires_at = hub.wall + <int64_t> view.expiry * 1000
            enqueue_all(view, slot.match, s, expires_at, False)
            ticket = hub.ticket + 1
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
        if hub.keeps_state and s._keeps and not s.received_changed:
            note_received(s)
    return answer_in_words(c, PUBREC, view.packet_id, verdict, ticket, text)


# A message that no connection sends: a will. Nobody is told when it is refused.
cdef int publish_to_queues(Hub hub, const PublishView* view, Session origin, int64_t expires_at) except -1:
    cdef uint64_t hash = hash_bytes(view.topic, view.topic_size, hub.bindings.seed)
    cdef Match* match = hub.bindings.match(view.topic, view.topic_size, hash)
    cdef uint8_t text = 0
    try:
        if verb_of(view.topic, view.topic_size) == VERB_NONE:
            if match.target_count == 0 and hub._find_queue is not None:
                hub._find_queue(PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size), False)
                match_unref(match)
                match = hub.bindings.match(view.topic, view.topic_size, hash)
            if match.target_count and not is_too_large(hub, view, origin) and refusal_of(view, match, &text) == SUCCESS:
                return enqueue_all(view, match, origin, expires_at, False)
        hub.counters.dropped[<int> DROP_QUEUE_FULL] += 1
    finally:
        match_unref(match)
    return 0


cdef int shut_refused(Connection c, uint8_t text) except -1:
    c.shutdown(ANSWER_TEXTS[text].decode("ascii"))
    return 0


# An ordinary publish that queues take as well: 1 if one of them does not, and then nobody gets it.
cdef int capture(Hub hub, const PublishView* view, Session origin, int64_t expires_at, uint64_t* ticket,
                 uint8_t* text) except -1:
    cdef Match* match = hub.bindings.match(view.topic, view.topic_size,
                                           hash_bytes(view.topic, view.topic_size, hub.bindings.seed))
    try:
        if match.target_count == 0:
            return 0
        if refusal_of(view, match, text):
            return 1
        enqueue_all(view, match, origin, expires_at, True)
        ticket[0] = hub.ticket + 1
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
    if c.version != 5 or c.hub._on_relay is None:
        return False
    if slot.queue == NULL:
        return s.couriers is not None
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
        if hub.keeps_state and s._keeps and not s.received_changed:
            note_received(s)
    if view.qos:
        answer(c, packet_type, view.packet_id, SUCCESS, RELAYED)
    hub._on_relay(c, topic, properties, <uint32_t> packet_type << 16 | view.packet_id if view.qos else 0)
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
    uint32_t message_id_size, group_size, offset_size, reason_size


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
                found.message_id, found.message_id_size = value, size
            elif is_named(p + 3, n, "group-id") or is_named(p + 3, n, "x-group-id"):
                found.group, found.group_size = value, size
            elif is_named(p + 3, n, "x-offset"):
                found.offset, found.offset_size = value, size
            elif is_named(p + 3, n, "reason"):
                found.reason, found.reason_size = value, size
        p += property_size(p)


# -1 if it is no number.
cdef int64_t read_number(const uint8_t* p, uint32_t size) noexcept:
    cdef int64_t value = 0
    cdef uint32_t i
    if size == 0 or size > 18:
        return -1
    for i in range(size):
        if not c"0" <= p[i] <= c"9":
            return -1
        value = value * 10 + (p[i] - c"0")
    return value


cdef inline bint is_group(QueueGroup group, const SettleView* found) noexcept:
    return ((group.name_size == found.group_size and memcmp(group.name_text, found.group, found.group_size) == 0)
            or (group.id_size == found.group_size and memcmp(group.id_text, found.group, found.group_size) == 0))


# TEXT_NONE, or why it is refused.
cdef uint8_t settle_by_publish(Connection c, Session s, QueueSlot* slot, const PublishView* view) except 0xFF:
    cdef DurableQueue queue
    cdef SettleView found
    cdef QueueConsumer consumer
    cdef int64_t offset
    cdef uint32_t n
    cdef int result
    cdef uint8_t text = TEXT_NOT_A_MEMBER
    if slot.queue == NULL:
        return TEXT_NO_QUEUE
    queue = <DurableQueue> slot.queue
    read_settlement(view, &found)
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
    if s.consumers is None:
        return TEXT_NOT_A_MEMBER
    for item in s.consumers:
        consumer = <QueueConsumer> item
        if consumer.group.queue is not queue or not is_group(consumer.group, &found):
            continue
        result = consumer.group.settle_one(consumer, offset, slot.verb)
        if result == RESOLVED:
            if found.reason_size and slot.verb == VERB_REJECT and not queue.is_stream:
                note_reason(consumer.group, offset, &found)
            return TEXT_NONE
        text = TEXT_NOT_YOURS if result == OTHERS_MESSAGE else TEXT_NOT_PENDING
    return text


# Rare: a consumer says why it rejects a message.
cdef int note_reason(QueueGroup group, int64_t offset, const SettleView* found) except -1:
    reason = found.reason[:found.reason_size].decode("utf-8", "replace")
    group.reasons[offset] = group.reason_changes[offset] = reason
    return 0


# x-offset: that message is done, and what is before it. Of a group that the client is not in only if it may publish
# here.
cdef uint8_t commit_stream(DurableQueue queue, Session s, bint is_allowed, const SettleView* found) except 0xFF:
    cdef QueueGroup group
    cdef int64_t offset = read_number(found.offset, found.offset_size)
    if not queue.is_stream:
        return TEXT_NOT_A_STREAM
    if offset < 0:
        return TEXT_NO_OFFSET
    group = find_group(queue, s, is_allowed, found)
    if group is None:
        return TEXT_NO_GROUP if is_allowed else TEXT_NOT_A_MEMBER
    if offset >= group.pending.cursor:
        return TEXT_BEYOND
    group.commit(offset + 1)
    return TEXT_NONE


# The client's own group comes first: another filter may be used with the same name.
cdef QueueGroup find_group(DurableQueue queue, Session s, bint is_allowed, const SettleView* found):
    cdef QueueGroup group
    for item in s.consumers or ():
        group = (<QueueConsumer> item).group
        if group.queue is queue and is_group(group, found):
            return group
    for item in queue.groups if is_allowed else ():
        if is_group(<QueueGroup> item, found):
            return <QueueGroup> item
    return None
