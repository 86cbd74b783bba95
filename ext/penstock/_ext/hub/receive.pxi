# Packets of the message path coming in: PUBLISH and the four acknowledgements. Each function returns 0 (done),
# 1 (the connection must wait; the packet is handled again later) or leaves the connection closing.


# no properties, so it always fits [MQTT-2.2.1-5] [MQTT3-2.3.1-6] [MQTT-3.4.2-2] [MQTT-3.4.2-3] [MQTT-3.5.2-2]
# [MQTT-3.5.2-3] [MQTT-3.6.2-2] [MQTT-3.6.2-3] [MQTT-3.7.2-2] [MQTT-3.7.2-3] [MQTT-3.1.2-29]
cdef inline int send_ack(Connection c, uint8_t packet_type, uint16_t packet_id, uint8_t reason) except -1:
    cdef uint8_t* p
    c.hub.counters.packets_sent += 1
    if reason == 0 or c.version != 5:
        p = out_reserve(c, 4)
        p[1] = 2
    else:
        p = out_reserve(c, 5)
        p[1] = 3
        p[4] = reason
    p[0] = <uint8_t> (packet_type << 4 | (2 if packet_type == PUBREL else 0))
    put_be16(p + 2, packet_id)
    return 0


cdef int send_disconnect(Connection c, uint8_t reason) except -1:
    cdef uint8_t* p
    if c.max_out_packet < 4:                    # [MQTT-3.1.2-24]
        return 0
    p = out_reserve(c, 4)
    p[0], p[1], p[2], p[3] = DISCONNECT << 4, 2, reason, 0
    c.hub.counters.packets_sent += 1
    return 0


# A refusal that says why, where the client wants to know and its packets may be so large [MQTT-3.1.2-29]
# [MQTT-3.4.2-2] [MQTT-3.5.2-2].
cdef int send_ack_in_words(Connection c, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
                           uint8_t text) except -1:
    cdef const char* words = words_of(c, text)
    cdef uint32_t n = <uint32_t> strlen(words)
    cdef uint8_t* p
    if c.version != 5 or not c.explains or n > 120 or n + 9 > c.max_out_packet:
        return send_ack(c, packet_type, packet_id, reason)
    c.hub.counters.packets_sent += 1
    p = out_reserve(c, n + 9)
    p[0] = <uint8_t> (packet_type << 4)
    p[1] = <uint8_t> (n + 7)
    put_be16(p + 2, packet_id)
    p[4] = reason
    p[5] = <uint8_t> (n + 3)
    p[6] = 0x1F                                 # Reason String
    put_text(p + 7, words, n)
    return 0


# A client may announce an alias with a topic and then send the alias alone.
cdef int resolve_alias(Connection c, PublishView* view) except -1:
    cdef Hub hub = c.hub
    cdef Alias* alias
    cdef uint8_t* topic
    if view.alias > (hub.limits.topic_alias_maximum if c.aliases_in == NULL else c.aliases_in_max):
        return TOPIC_ALIAS_INVALID              # [MQTT-3.3.2-9] [MQTT-3.2.2-17] [MQTT-3.2.2-18]
    if c.aliases_in == NULL:
        c.aliases_in = <Alias*> calloc(hub.limits.topic_alias_maximum, sizeof(Alias))
        if c.aliases_in == NULL:
            raise MemoryError()
        c.aliases_in_max = <uint16_t> hub.limits.topic_alias_maximum
    alias = &c.aliases_in[view.alias - 1]  # [MQTT-3.3.2-12]
    if view.topic_size == 0:
        if alias.topic == NULL:
            return PROTOCOL_ERROR               # nothing was announced under it
        view.topic = alias.topic
        view.topic_size = alias.size
        return 0
    topic = <uint8_t*> malloc(view.topic_size)
    if topic == NULL:
        raise MemoryError()
    memcpy(topic, view.topic, view.topic_size)
    free(alias.topic)
    alias.topic = topic
    alias.size = view.topic_size
    return 0


# Looks up the topic among the publisher's recent ones; on a miss checks its syntax, asks the rules and matches it.
# The answer is a borrowed slot, or NULL if the connection is closing, or blocked because matching takes long.
cdef TopicSlot* find_topic(Connection c, const PublishView* view) except? NULL:
    cdef Hub hub = c.hub
    cdef uint64_t hash = hash_bytes(view.topic, view.topic_size, hub.trie.seed)
    cdef TopicSlot* slot
    cdef Match* match
    cdef int reason
    if c.topics == NULL:
        c.topics = <TopicSlot*> calloc(TOPIC_SLOTS, sizeof(TopicSlot))
        if c.topics == NULL:
            raise MemoryError()
    slot = &c.topics[hash & (TOPIC_SLOTS - 1)]
    match = slot.match
    if (match != NULL and match.hash == hash and match.version == hub.trie.version
            and match.topic_size == view.topic_size and memcmp(match.topic, view.topic, view.topic_size) == 0):
        return slot
    reason = check_topic_name(view.topic, view.topic_size, hub.limits.max_topic_levels)
    if reason == 0 and view.topic_size > hub.limits.max_topic_length:
        reason = TOPIC_NAME_INVALID
    if reason:
        c.violation(reason, "invalid topic name")       # [MQTT-3.3.2-1] [MQTT-3.3.2-2] [MQTT3-3.3.2-1] [MQTT3-3.3.2-2]
        return NULL
    match = hub.trie.remembered(view.topic, view.topic_size, hash)      # [MQTT-3.3.2-3] [MQTT3-3.3.2-3]
    if match == NULL:
        match = match_in_turn(c, view, hash)
        if match == NULL:
            return NULL
    if slot.match != NULL:
        match_unref(slot.match)
    slot.match = match
    slot.allowed = may_publish(c.session, view.topic, view.topic_size)
    if hub.ingest.mode != INGEST_NONE:
        slot.partition = partition_of(view.topic, view.topic_size, hub.ingest.partitions, hub.ingest.hash)
    return slot


# $SYS belongs to the broker; for the rest the client's rules decide.
cdef bint may_publish(Session s, const uint8_t* topic, uint32_t size) noexcept:
    if size >= 4 and memcmp(topic, b"$SYS", 4) == 0 and (size == 4 or topic[4] == c"/"):
        return False
    return s.acl is None or s.acl.allows(topic, size, ACL_PUBLISH)


# Whether a subscriber of the match makes its publishers wait. Asked only while there is such a subscriber anywhere.
cdef Session find_congested(Match* match, Session publisher):
    cdef uint32_t i
    cdef Session s
    for i in range(match.target_count):
        s = <Session> match.targets[i].owner
        if s.congested and s is not publisher:
            return s
    return None


cdef int handle_publish(Connection c, uint8_t first, const uint8_t* body, uint32_t size) except -1:
    cdef Hub hub = c.hub
    cdef Session s = c.session
    cdef PublishView view
    cdef TopicSlot* topic
    cdef Match* match
    cdef Session busy
    cdef int64_t expires_at = 0
    cdef uint8_t verdict = SUCCESS, text = 0
    cdef bint logged = False, keeps_old = False
    cdef uint64_t ticket = 0
    cdef int reason = parse_publish(first & 15, body, size, c.version, hub.limits.max_user_properties, &view,
                                    &hub._props)
    if reason == 0 and view.alias:
        reason = resolve_alias(c, &view)
    if reason == 0 and view.qos > hub.limits.maximum_qos:
        reason = QOS_NOT_SUPPORTED              # [MQTT-3.2.2-11]
    if reason == 0 and view.retain and not hub.limits.retain_available:
        reason = RETAIN_NOT_SUPPORTED           # [MQTT-3.2.2-14]
    if reason:
        return c.violation(reason, "bad PUBLISH")
    if is_queue_topic(view.topic, view.topic_size):
        return handle_queue_publish(hub, s, c, &view)
    topic = find_topic(c, &view)
    if topic == NULL:
        return c.blocked
    match = topic.match
    if view.qos == 2:
        if ids_has(&s.received, view.packet_id):
            # a message the broker owns already: acknowledged again, not delivered again [MQTT-4.3.3-10] [MQTT3-4.3.3-2]
            # and not before the log has it
            return answer(c, PUBREC, view.packet_id, DUPLICATE, hub.ingest.ticket + (1 if has_open(hub) else 0))
    if view.qos and c.version == 5:
        if s.received.count + c.acks_qos1 >= hub.limits.receive_maximum:  # [MQTT-3.3.4-7]
            return c.violation(RECEIVE_MAXIMUM_EXCEEDED, "more unacknowledged messages than the receive maximum")
    if topic.allowed:
        if hub.congested_count:
            busy = find_congested(match, s)
            if busy is not None:
                c.wait_for(busy)
                return 1
        logged = is_logged(hub, view.qos, view.retain)
        if logged and hub.ingest.pending > hub.ingest.limit:
            c.wait_for_log()
            return 1
        if logged and is_too_large(hub, &view, s):
            return refuse_publish(c, &view, TEXT_LOG_TOO_LARGE, DROP_TOO_LARGE)
        if view.retain:
            keeps_old = not may_retain(hub, &view, s)
            if keeps_old and view.qos and c.version == 5:
                return refuse_retained(c, &view)
    if topic.allowed and hub.rates.is_on and is_too_fast(hub, s):
        verdict = QUOTA_EXCEEDED
        if c.version != 5:
            return leave_too_fast(c)
    elif topic.allowed:
        if logged:
            ticket = hub.ingest.ticket + 1             # of the batch that leaves at the end of this iteration
        if view.has_expiry:
            expires_at = hub.wall + <int64_t> view.expiry * 1000
        if hub.queues.capturing and capture(hub.queues, &view, s, expires_at, &ticket, &text):
            return refuse_publish(c, &view, text, DROP_QUEUE_FULL)
        if match.target_count or match.group_count:
            route(hub, &view, match, s, expires_at, hub.is_spread and logged)  # [MQTT-4.5.0-1] [MQTT3-4.5.0-1]
        else:
            hub.counters.unmatched += 1
            verdict = NO_MATCHING_SUBSCRIBERS if text != TEXT_CAPTURED else SUCCESS
        if keeps_old:
            leave_unretained(hub, &view)
        elif view.retain:  # [MQTT-3.3.1-8] [MQTT3-3.3.1-12]
            store_retained(hub, &view, expires_at, s)
        if logged:
            log_publish(hub, &view, s, expires_at, topic.partition, match, text != TEXT_CAPTURED)
    else:
        # MQTT 3 has no way to say no but to close; it is told yes, and the message goes nowhere [MQTT3-3.3.5-2]
        verdict = NOT_AUTHORIZED
        note_denied(c, &view)
    hub.counters.received[view.qos] += 1
    hub.counters.payload_received += view.payload_size
    if view.qos == 0:  # [MQTT-3.3.4-1] [MQTT3-3.3.4-1]
        return 0
    # the id is not remembered, answers keep the order of arrival [MQTT-4.3.2-5] [MQTT-4.6.0-2] [MQTT3-4.6.0-2]
    if view.qos == 1:
        return answer(c, PUBACK, view.packet_id, verdict, ticket)      # [MQTT-4.3.2-4] [MQTT3-4.3.2-2]
    if verdict < 0x80 or c.version != 5:  # [MQTT-4.3.3-9] [MQTT-4.6.0-3] [MQTT3-4.6.0-3]
        ids_add(&s.received, view.packet_id)
        if hub.ingest.keeps_state and s._keeps and not s.received_changed:
            note_received(s)
    return answer(c, PUBREC, view.packet_id, verdict, ticket)          # [MQTT-4.3.3-8] [MQTT3-4.3.3-2]


cdef int handle_ack(Connection c, uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t size) except -1:
    cdef AckView ack
    cdef Session s = c.session
    cdef Slot* slot
    cdef bint was_full
    cdef int reason = parse_ack(packet_type, flags, body, size, c.version, &ack)
    if reason:
        return c.violation(reason, "bad acknowledgement")
    if packet_type == PUBREL:  # [MQTT-4.3.3-12] [MQTT-4.3.3-13]
        # releasing an id that is not held is answered all the same [MQTT-4.3.3-11] [MQTT3-4.3.3-2]
        if not ids_discard(&s.received, ack.packet_id):
            # Released a moment ago, perhaps, over a connection that is gone: not free before that is stored.
            return answer(c, PUBCOMP, ack.packet_id, PACKET_IDENTIFIER_NOT_FOUND,
                          c.hub.ingest.ticket + (1 if s.received_changed else 0)
                          if c.hub.ingest.keeps_state and s._keeps else 0)
        if not (c.hub.ingest.keeps_state and s._keeps):
            return send_ack(c, PUBCOMP, ack.packet_id, SUCCESS)
        # The client may use the id again as soon as it is told: after a crash it must not count as held.
        if not s.received_changed:
            note_received(s)
        return answer(c, PUBCOMP, ack.packet_id, SUCCESS, c.hub.ingest.ticket + 1)
    slot = window_find(&s.window, ack.packet_id)
    if slot != NULL and slot.outlet:
        return (<Outlet> PyList_GET_ITEM(s.outlets, slot.outlet - 1)).on_ack(c, slot, packet_type, &ack)
    if packet_type == PUBREC:
        if slot == NULL or slot.state == AWAIT_PUBACK:
            return send_ack(c, PUBREL, ack.packet_id, PACKET_IDENTIFIER_NOT_FOUND)
        if slot.flags & SLOT_BORROWED:
            return 0                            # reserved: its outlet is not there yet
        if ack.reason < 0x80:  # [MQTT-4.6.0-4] [MQTT3-4.6.0-4]
            return release_slot(s, c, slot)
    elif slot == NULL or slot.state != (AWAIT_PUBACK if packet_type == PUBACK else AWAIT_PUBCOMP):
        return 0                                # late or unknown: nothing waits for it
    was_full = s.outlets is not None and s.is_full()
    if slot.flags & SLOT_COUNTED:
        s.outstanding -= 1
    c.hub.counters.inflight -= 1
    # also after a refusal, which nobody else gets [MQTT-4.3.2-3] [MQTT-4.3.3-3] [MQTT-4.4.0-2] [MQTT-4.8.2-6]
    window_release(&s.window, slot)             # the id may be used again [MQTT-2.2.1-4]
    # was_full: outlets hear of what is acknowledged to them, not of room that others leave
    if s.queue.count or s.resend_count or s.congested or s.wants_room or s.is_contended or was_full:
        s.pump()
    return 0
