# Publishes on their way into the log. They leave in batches, one pack for each partition they touched, under one
# ticket; a QoS 1 or 2 publish is acknowledged, in the order of arrival, when its ticket is durable.


cdef enum:
    LINGER_BYTES = 65_536       # an open batch of this size does not linger
    MOST_OPEN_BYTES = 1_048_576     # an open batch of this size does not wait for a commit: packs are read whole
    EAGER_MS = 2                # a publisher that sends this soon after an acknowledgement was waiting for it
    FIELDS_ROOM = 262_144       # more than topic (as key, too), client id, user name and the smaller fields can be


# Retained messages reach other brokers through the log, whatever their QoS.
cdef inline bint is_logged(Hub hub, uint8_t qos, bint retain) noexcept:
    return hub.ingest.mode == INGEST_ALL or (hub.ingest.mode == INGEST_PERSISTENT
                                             and (qos > 0 or (retain and hub.node)))


# Appends the publish to the pack of its topic's partition. `is_alone`: no durable queue has a copy, which might be
# missing after a kill though this one is there; then the message has to come again.
cdef int log_publish(Hub hub, const PublishView* view, Session origin, int64_t expires_at, uint32_t partition,
                     const Match* match, bint is_alone) except -1:
    cdef EnvelopeView envelope
    cdef RecordPack pack
    cdef uint8_t* p
    cdef uint32_t size
    cdef uint64_t mark = 0
    cdef bint shares_wait = hub.is_spread and match.group_count
    fill_envelope(hub, &envelope, view, origin, expires_at)
    size = envelope_size(&envelope)
    if hub.node:
        size += origin_size(shares_wait)
    if (view.qos == 2 and is_alone and view.packet_id and origin is not None and hub.ingest.keeps_state
            and origin._keeps):
        origin.received_sequence += 1
        mark = <uint64_t> origin.received_sequence << 16 | view.packet_id
        size += received_size(mark)
    if hub.ingest.packs[partition] == NULL:
        open_pack(hub, partition)
    pack = <RecordPack> hub.ingest.packs[partition]
    # the record's key is the topic: compaction and Kafka's tools see it without opening the record
    p = pack.reserve(hub.wall, view.topic, view.topic_size, size)
    p = put_envelope(p, &envelope)
    if mark:
        p = put_received(p, mark)
    if hub.node:
        put_origin(p, hub.node, shares_wait)
        if view.retain and hub.is_spread:
            counts_add(&hub.own_retained, match.hash)
    hub.ingest.pending += size
    hub.ingest.open_bytes += size
    hub.counters.logged += 1
    if hub.ingest.open_bytes >= hub.ingest.gathering.linger_bytes:
        return schedule_flush(hub)          # the packs may have been opened in an earlier iteration
    return 0


cdef inline void fill_envelope(Hub hub, EnvelopeView* envelope, const PublishView* view, Session origin,
                               int64_t expires_at) noexcept:
    envelope.topic, envelope.topic_size = view.topic, view.topic_size
    envelope.payload, envelope.payload_size = view.payload, view.payload_size
    envelope.props, envelope.props_size = view.props, view.props_size
    envelope.client_id, envelope.client_id_size = NULL, 0
    envelope.username, envelope.username_size = NULL, 0
    if origin is not None:
        envelope.client_id, envelope.client_id_size = origin.id_text, origin.id_size
        envelope.username, envelope.username_size = origin.user_text, origin.user_size
    envelope.received_at = hub.wall
    envelope.expires_at = expires_at
    envelope.qos = view.qos
    envelope.retain = view.retain


# What the log would refuse, and with it everything else of this iteration: it is refused alone.
cdef inline bint is_too_large(Hub hub, const PublishView* view, Session origin) noexcept:
    if hub.ingest.largest_record == 0 or view.payload_size + view.props_size + FIELDS_ROOM <= hub.ingest.largest_record:
        return False
    return logged_size(hub, view, origin) > hub.ingest.largest_record


# At most, with the record's key.
cdef uint64_t logged_size(Hub hub, const PublishView* view, Session origin) noexcept:
    cdef EnvelopeView envelope
    fill_envelope(hub, &envelope, view, origin, INT64_MAX)
    return <uint64_t> view.topic_size + envelope_size(&envelope) + origin_size(True) + received_size(UINT64_MAX)


# Whether something of this iteration waits to be submitted.
cdef inline bint has_open(Hub hub) noexcept:
    return hub.ingest.open_count != 0 or hub.ingest.open_desks != 0


# Whether it has more than publishes: packs and state of desks, QoS 2 packet ids.
cdef inline bint has_more_open(Hub hub) noexcept:
    return hub.ingest.open_desks != 0 or hub.ingest.open_changes != 0


# Retained messages are kept in a topic of their own, which has the last of each topic; none is a tombstone.
cdef int log_retained(Hub hub, const PublishView* view, int64_t expires_at, bint is_kept, Session origin) except -1:
    cdef EnvelopeView envelope
    cdef uint8_t* p
    cdef uint32_t size
    if view.topic_size >= 4 and memcmp(view.topic, b"$SYS", 4) == 0:
        return 0                        # made anew all the time
    if hub._retained_pack is None:
        if hub.ingest.open_count == 0:
            hub.ingest.gathering.opened_at = hub.now
        hub._retained_pack = RecordPack()
        schedule_flush(hub)
    if not is_kept:
        hub._retained_pack.put(hub.wall, view.topic, view.topic_size, NULL, NO_VALUE, NULL, 0)
        return 0
    memset(&envelope, 0, sizeof(EnvelopeView))
    envelope.topic, envelope.topic_size = view.topic, view.topic_size
    envelope.payload, envelope.payload_size = view.payload, view.payload_size
    envelope.props, envelope.props_size = view.props, view.props_size
    envelope.received_at, envelope.expires_at = hub.wall, expires_at
    envelope.qos, envelope.retain = view.qos, 1
    if origin is not None:      # the user whose share it takes; the broker's own messages name no client
        envelope.client_id, envelope.client_id_size = origin.id_text, origin.id_size
        envelope.username, envelope.username_size = origin.user_text, origin.user_size
    size = envelope_size(&envelope)
    p = hub._retained_pack.reserve(hub.wall, view.topic, view.topic_size, size)
    put_envelope(p, &envelope)
    hub.ingest.pending += size
    hub.ingest.open_bytes += size
    return 0


# A QoS 2 packet id was taken or released: durable before the answer.
cdef int note_received(Session s) except -1:
    s.received_changed = True
    s.hub._received.append(s)
    s.hub.ingest.open_changes += 1
    return schedule_flush(s.hub)


cdef int schedule_flush(Hub hub) except -1:
    if not hub._flush_scheduled:
        hub._flush_scheduled = True
        hub.loop.call_soon(hub._flush_soon)
    return 0


# Rare: once per partition and iteration.
cdef int open_pack(Hub hub, uint32_t partition) except -1:
    pack = RecordPack()
    Py_INCREF(pack)
    hub.ingest.packs[partition] = <void*> pack
    hub.ingest.open_packs[hub.ingest.open_count] = partition
    if hub.ingest.open_count == 0 and hub._retained_pack is None:
        hub.ingest.gathering.opened_at = hub.now
    hub.ingest.open_count += 1
    return schedule_flush(hub)


# Whether the open batch leaves now. A log that gathers runs one commit at a time, and a commit costs the same however
# little is in it. So publishes that arrive during a commit leave together when it is done; QoS 0 publishes, which have
# no acknowledgement, leave `linger` ms after the first of them; and two commits that only acknowledgements wait for are
# at least `ack_linger` ms apart, except for publishers that wait for each acknowledgement and for messages that a
# persistent subscriber gets once they are durable.
cdef bint is_due(Hub hub) noexcept:
    cdef bint has_others = has_more_open(hub)
    if hub.ingest.open_count == 0 and hub._retained_pack is None and not has_others:
        return False
    if not hub.ingest.gathering.is_on or has_others or hub.ingest.open_bytes >= MOST_OPEN_BYTES:
        return True
    if hub.ingest.ticket > hub.ingest.committed and not hub.ingest.gathering.is_quiet:
        return False                        # log_committed() asks again
    if hub.ingest.gathering.awaited == WAIT_NONE_LONGER or hub.ingest.open_bytes >= hub.ingest.gathering.linger_bytes:
        return True
    if hub.ingest.gathering.awaited == WAIT_ANSWER:
        return hub.now - hub.ingest.gathering.submitted_at >= hub.ingest.gathering.ack_linger
    return hub.now - hub.ingest.gathering.opened_at >= hub.ingest.gathering.linger


# Submit the open batch if it is due; otherwise the commit under way, the next publish or a timer asks again. The timer
# is a millisecond late: under steady traffic the next publish submits the batch, without an extra wake-up.
cdef int submit_due(Hub hub) except -1:
    cdef int64_t at
    if is_due(hub):
        if hub.ingest.gathering.is_quiet:
            collect(hub)                    # log_committed() may submit the batch, or is still to come
            if not is_due(hub):
                return 0
        return submit_packs(hub)
    if hub.ingest.open_count == 0 and hub._retained_pack is None:
        return 0
    if hub.ingest.ticket > hub.ingest.committed and not hub.ingest.gathering.is_quiet:
        return 0
    if hub.ingest.gathering.awaited:
        at = max(hub.ingest.gathering.submitted_at + hub.ingest.gathering.ack_linger, hub.now) + 1
    else:
        at = hub.ingest.gathering.opened_at + hub.ingest.gathering.linger + 1
    if hub.ingest.gathering.timer_at == 0 or at < hub.ingest.gathering.timer_at:
        stop_timer(hub)
        hub.ingest.gathering.timer_at = at
        hub._submit_timer = hub.loop.call_later((at - hub.now) / 1000.0, hub._submit_soon)
    return 0


# Call log_committed() for the batch under way: now, or when it is durable.
cdef int collect(Hub hub) except -1:
    hub.ingest.gathering.is_quiet = False
    if hub.ingest.ticket > hub.ingest.committed:
        hub._collect()
    return 0


# The same in the next iteration, for callers that must not be called back.
cdef int collect_soon(Hub hub) except -1:
    if hub.ingest.gathering.is_quiet:
        hub.ingest.gathering.is_quiet = False
        hub.loop.call_soon(hub._collect)
    return 0


cdef inline int stop_timer(Hub hub) except -1:
    if hub.ingest.gathering.timer_at:
        hub.ingest.gathering.timer_at = 0
        hub._submit_timer.cancel()
    return 0


# Raise the urgency of the open batch and look at it at the end of this iteration.
cdef inline int await_open(Hub hub, uint8_t wait) except -1:
    if wait > hub.ingest.gathering.awaited:
        hub.ingest.gathering.awaited = wait
    return schedule_flush(hub)


# Everything of the open batch that is not a publish: (retained, received, queued, changed), see log_to.
cdef tuple take_beside(Hub hub):
    cdef list received = []
    retained, hub._retained_pack = hub._retained_pack, None
    for session in hub._received:
        (<Session> session).received_changed = False
        received.append((session, session.received_ids()))
    hub._received = []
    hub.ingest.open_desks = hub.ingest.open_changes = 0
    return retained, received, take_queue_packs(hub.queues), take_changed(hub.queues)


# Submit the open batch.
cdef int submit_packs(Hub hub) except -1:
    cdef uint32_t i, partition
    cdef list batch = []
    cdef RecordPack pack
    cdef uint64_t size = hub.ingest.open_bytes
    cdef object beside = None
    if hub._retained_pack is not None or has_more_open(hub):
        beside = take_beside(hub)
    for i in range(hub.ingest.open_count):
        partition = hub.ingest.open_packs[i]
        pack = <RecordPack> hub.ingest.packs[partition]
        Py_DECREF(pack)
        hub.ingest.packs[partition] = NULL
        batch.append((partition, pack))
    hub.ingest.open_count = 0
    hub.ingest.open_bytes = 0
    hub.ingest.gathering.is_quiet = (hub._collect is not None and hub.ingest.gathering.awaited == WAIT_NOTHING
                                     and beside is None and not hub._log_waiters)
    hub.ingest.gathering.awaited = WAIT_NOTHING
    hub.ingest.gathering.submitted_at = hub.now
    stop_timer(hub)
    hub.ingest.ticket += 1
    try:
        hub._submit(hub.ingest.ticket, batch, size, beside)
    except BaseException as error:
        # nothing of it is logged; the output of this iteration still goes out
        hub.loop.call_exception_handler({"message": "the ingest log failed", "exception": error})
        hub.log_committed(hub.ingest.ticket, size, max(len(batch), 1))     # or only what is beside them
    return 0


# Answers a publish now, or when the log is as far as `ticket`. Answers never overtake each other [MQTT-4.6.0-2].
cdef inline int answer(Connection c, uint8_t packet_type, uint16_t packet_id, uint8_t reason,
                       uint64_t ticket) except -1:
    return answer_in_words(c, packet_type, packet_id, reason, ticket, 0)


# The same with a reason string for MQTT 5.
cdef int answer_in_words(Connection c, uint8_t packet_type, uint16_t packet_id, uint8_t reason, uint64_t ticket,
                         uint8_t text) except -1:
    cdef PendingAck* pending
    if c.acks_count == 0 and ticket <= c.hub.ingest.committed:
        if text:
            return send_ack_in_words(c, packet_type, packet_id, reason, text)
        return send_ack(c, packet_type, packet_id, SUCCESS if reason == DUPLICATE else reason)
    if c.acks_count == c.acks_capacity:
        grow_acks(c)
    pending = &c.acks[(c.acks_head + c.acks_count) & (c.acks_capacity - 1)]
    pending.ticket = ticket
    pending.packet_id = packet_id
    pending.packet_type = packet_type
    pending.reason = reason
    pending.text = text
    c.acks_count += 1
    if packet_type == PUBACK:
        c.acks_qos1 += 1
    if c.acks_count == 1:
        c.acks_session = c.session
    if not c.awaits_log:
        c.hub.await_log(c)
    if ticket <= c.hub.ingest.ticket:
        return collect_soon(c.hub)
    if c.hub.ingest.gathering.is_on:
        return await_open(c.hub, WAIT_NONE_LONGER if <uint32_t> c.hub.now - c.acked_at <= EAGER_MS else WAIT_ANSWER)
    return 0


cdef int grow_acks(Connection c) except -1:
    cdef uint32_t capacity = c.acks_capacity * 2 if c.acks_capacity else 16
    cdef PendingAck* larger = <PendingAck*> malloc(capacity * sizeof(PendingAck))
    cdef uint32_t i
    if larger == NULL:
        raise MemoryError()
    for i in range(c.acks_count):
        larger[i] = c.acks[(c.acks_head + i) & (c.acks_capacity - 1)]
    free(c.acks)
    c.acks = larger
    c.acks_capacity = capacity
    c.acks_head = 0
    return 0


# Sends the answers that waited for tickets up to ingest.committed. A publish the log did not take is refused: MQTT 5
# has a reason code for it, a 3.x client loses its connection without an acknowledgement and will send again. Its QoS 2
# packet id is forgotten, also when the connection is gone, or the message would count as received when it comes again.
cdef int release_acks(Connection c, bint failed) except -1:
    cdef PendingAck ack
    cdef bint refused, is_shut = False
    c.acked_at = <uint32_t> c.hub.now
    while c.acks_count:
        ack = c.acks[c.acks_head]
        if ack.ticket > c.hub.ingest.committed:
            if failed:
                refuse_blocked(c)
            break
        c.acks_head = (c.acks_head + 1) & (c.acks_capacity - 1)
        c.acks_count -= 1
        if ack.packet_type == PUBACK:
            c.acks_qos1 -= 1
        refused = failed and ack.ticket == c.hub.ingest.committed and ack.reason < 0x80 and ack.packet_type != PUBCOMP
        if ack.reason == DUPLICATE:
            refused = not ids_has(&c.acks_session.received, ack.packet_id)
            ack.reason = SUCCESS
        if refused:
            ack.reason = QUOTA_EXCEEDED
            ack.text = TEXT_LOG_AWAY
            if ack.packet_type == PUBREC:
                forget_received(c, ack.packet_id)
            is_shut = is_shut or c.version != 5
        if c.state == CONNECTED and not is_shut and ack.text:
            send_ack_in_words(c, ack.packet_type, ack.packet_id, ack.reason, ack.text)
        elif c.state == CONNECTED and not is_shut:
            send_ack(c, ack.packet_type, ack.packet_id, ack.reason)
    if c.acks_count == 0:
        free(c.acks)
        c.acks = NULL
        c.acks_capacity = c.acks_head = 0
        c.acks_session = None
    if is_shut:
        c.shutdown("the log does not take messages now")
    return 0


# Answers of the batch that has just failed stand behind one that waits for another node: that they failed is known now
# only. (MQTT 3 waits for no other node.)
cdef int refuse_blocked(Connection c) except -1:
    cdef PendingAck* ack
    cdef uint32_t i
    for i in range(c.acks_count):
        ack = &c.acks[(c.acks_head + i) & (c.acks_capacity - 1)]
        if (ack.ticket != c.hub.ingest.committed or ack.reason >= 0x80 or ack.reason == DUPLICATE
                or ack.packet_type == PUBCOMP):
            continue
        ack.reason = QUOTA_EXCEEDED
        ack.text = TEXT_LOG_AWAY
        if ack.packet_type == PUBREC:
            forget_received(c, ack.packet_id)
    return 0


# What the log may have of it counts as unknown, and not as received, after a restart.
cdef int forget_received(Connection c, uint16_t packet_id) except -1:
    ids_discard(&c.acks_session.received, packet_id)
    if c.hub.ingest.keeps_state and c.acks_session._keeps and not c.acks_session.received_changed:
        note_received(c.acks_session)
    return 0


# The QoS 2 messages of persistent sessions in a pack: (client id, sequence number, packet id, when it came) of each.
cdef list received_of(Hub hub, RecordPack pack):
    cdef size_t position = 0
    cdef RecordView record
    cdef EnvelopeView view
    cdef list found = []
    while pack.next(&position, &record):
        if (record.value_size != NO_VALUE
                and not get_envelope(record.value, record.value_size, &view, &hub.record_props) and view.received_mark):
            found.append(((<const char*> view.client_id)[:view.client_id_size].decode("utf-8"),
                          <uint32_t> (view.received_mark >> 16), <uint16_t> (view.received_mark & 0xFFFF),
                          view.received_at))
    return found


# Retained messages as they were logged, in that order; how many could not be read.
cdef uint32_t restore_retained_of(Hub hub, RecordPack pack) except? 0xFFFFFFFF:
    cdef size_t position = 0
    cdef RecordView record
    cdef EnvelopeView view
    cdef uint32_t damaged = 0
    hub.update_clock()
    while pack.next(&position, &record):
        if record.value_size == NO_VALUE:
            hub.retained.remove(record.key, record.key_size)
            continue
        if get_envelope(record.value, record.value_size, &view, &hub.record_props):
            damaged += 1
        else:
            put_retained(hub, &view)
    return damaged
