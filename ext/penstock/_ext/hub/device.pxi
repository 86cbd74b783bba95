# Persistent DEVICE clients: messages with QoS > 0 come from the log. A connected client gets them at once, and they are
# stored only if it does not acknowledge them soon; everything else is stored first and sent from the store. The log is
# committed behind a round of dispatch when nothing of the round is neither acknowledged nor stored.

cdef enum:
    SOURCE_SIZE = 26            # subscribers/device/store/base.py, SOURCE: partition, via, offset, expiry, packet id


@final
cdef class Round:
    """What one round of dispatch has sent to devices or given to their store, and is not safe yet."""

    @property
    def pending(self):
        return self.hold.pending

    def settle(self, int64_t count):
        """So many of its messages are stored, or their client is gone."""
        self.hold.pending -= count


# The key of a record for the store.
cdef void put_source(uint8_t* p, uint32_t partition, uint32_t via, int64_t offset, int64_t expires_at,
                     uint16_t packet_id) noexcept:
    cdef int32_t number = <int32_t> partition
    memcpy(p, &number, 4)
    memcpy(p + 4, &via, 4)
    memcpy(p + 8, &offset, 8)
    memcpy(p + 16, &expires_at, 8)
    memcpy(p + 24, &packet_id, 2)


# Which of its subscriptions a client has a copy through. The same in every process, unlike the hashes of the trie: what
# is dispatched again must be recognised, also by who took it over from the group.
cdef uint32_t via_of(Hub hub, const ShareGroup* group) except? 0:
    cdef uint32_t hash = 2166136261u
    cdef const uint8_t[::1] path
    cdef Py_ssize_t i
    if group == NULL:
        return 0
    if group.via == 0:
        path = hub.trie.group_path(group)
        for i in range(path.shape[0]):
            hash = (hash ^ path[i]) * 16777619u
        (<ShareGroup*> group).via = hash | 1
    return group.via


cdef RecordPack open_stash(Hub hub, Session s):
    if s.stash is None:
        s.stash = RecordPack()
        hub._stashed.append(s)
    return s.stash


# A copy of the record for the store of an absent or busy client; it gets its packet id there.
cdef int stash_record(Hub hub, Session s, const RecordView* record, const EnvelopeView* view,
                      const Delivery* d) except -1:
    cdef uint8_t source[SOURCE_SIZE]
    if not may_pass(&hub.stored_rates, hub.stored_turns, hub.now):
        count_drop(s, DROP_STORED_RATE)
        return 0
    if s.is_unsaved and s.stash is None:
        stash_window(hub, s, 0)         # what was sent before it is stored before it
    put_source(source, d.partition, via_of(hub, d.group), record.offset, view.expires_at, 0)
    put_stashed(open_stash(hub, s), record.timestamp, source, record.value, record.value_size, d)
    s.live = False
    d.hold.pending += 1
    return 0


cdef int put_stashed(RecordPack pack, int64_t timestamp, const uint8_t* source, const uint8_t* value,
                     uint32_t value_size, const Delivery* d) except -1:
    cdef uint32_t extra = delivery_size(d.qos, d.retain, d.ids, d.id_count, 0, -1)
    cdef uint8_t* p = pack.reserve(timestamp, source, SOURCE_SIZE, value_size + extra)
    memcpy(p, value, value_size)
    put_delivery(p + value_size, d.qos, d.retain, d.ids, d.id_count, 0, -1)
    return 0


# To one persistent DEVICE client.
cdef int dispatch_to_device(Hub hub, Session s, const RecordView* record, const EnvelopeView* view, Delivery* d,
                            Message** kept) except -1:
    cdef Connection c = s.connection
    if view.expires_at and view.expires_at <= hub.wall:
        count_drop(s, DROP_EXPIRED)     # [MQTT-3.3.2-5]
        return 0
    # Exactly once needs the store: what was sent must be known after a crash.
    if (not s.live or d.qos == 2 or hub.persist_after == 0 or c is None or c.state != CONNECTED or not c.writable
            or s.queue.count or s.resend_count or s.is_full()):
        return stash_record(hub, s, record, view, d)
    return send_live(hub, s, c, record, view, d, kept)


cdef int send_live(Hub hub, Session s, Connection c, const RecordView* record, const EnvelopeView* view, Delivery* d,
                   Message** kept) except -1:
    cdef Copy copy
    cdef Slot* slot
    cdef Extras* extras = NULL
    cdef uint64_t hash = 0
    if kept[0] == NULL:
        kept[0] = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload,
                              view.payload_size, view.qos, view.retain, view.received_at, view.expires_at)
        kept[0].source_partition = d.partition
        kept[0].source_offset = record.offset
    fill_from_envelope(&copy, c, view, d)
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, hub.trie.seed)
    extras = make_extras(d.ids, d.id_count, d.group)
    if d.group != NULL:
        extras.group_via = via_of(hub, d.group)
    slot = window_add(&s.window)        # [MQTT-4.3.2-1] [MQTT3-4.3.2-1]
    slot.message = message_ref(kept[0])
    slot.extras = extras
    slot.state = AWAIT_PUBACK
    slot.flags = SLOT_COUNTED | (DELIVERY_RETAIN if d.retain else 0) | (DELIVERY_SHARED if d.group != NULL else 0)
    slot.hold = d.hold
    slot.sent_at = <uint32_t> hub.now
    d.hold.pending += 1
    s.outstanding += 1                  # [MQTT-4.9.0-2]
    hub.counters.inflight += 1
    if not send_copy(c, s, &copy, hash, slot.packet_id, NULL, NULL, 0):
        drop_slot(s, slot)              # too large: as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        count_drop(s, DROP_TOO_LARGE)
        return 0
    s.delivered += 1
    count_sent(hub, d.qos, copy.payload_size)
    if not s.is_unsaved:
        note_unsaved(s)
    if buffer_size(&c.out) >= hub.flush_size:
        c.watch_output()
    return 0


cdef int note_unsaved(Session s) except -1:
    s.is_unsaved = True
    s.hub._unsaved.append(s)
    return 0


cdef void fill_from_envelope(Copy* copy, Connection c, const EnvelopeView* view, const Delivery* d) noexcept:
    copy.topic, copy.topic_size = view.topic, view.topic_size
    copy.payload, copy.payload_size = view.payload, view.payload_size
    copy.v5 = c.version == 5
    copy.props, copy.props_size = view.props, view.props_size if copy.v5 else 0
    copy.alias = 0
    copy.ids, copy.id_count = d.ids, d.id_count if copy.v5 else 0
    copy.has_expiry = False
    if copy.v5 and view.expires_at:
        # what is left of it, in whole seconds [MQTT-3.3.2-6]
        copy.expiry = <uint32_t> max((view.expires_at - c.hub.wall + 999) // 1000, <int64_t> 0)
        copy.has_expiry = True
    copy.first = <uint8_t> (PUBLISH << 4 | d.qos << 1 | (1 if d.retain else 0))


cdef void drop_slot(Session s, Slot* slot) noexcept:
    if slot.flags & SLOT_COUNTED:
        s.outstanding -= 1
        s.hub.counters.inflight -= 1
    window_release(&s.window, slot)


# Whether a member of the group is served from the log: then the whole group is, so that one of them gets it.
cdef bint is_logged_group(const ShareGroup* group) noexcept:
    cdef uint32_t i
    for i in range(group.count):
        if (<Session> group.members[i].owner).via_log:
            return True
    return False


FOR_CLIENT, FOR_OTHERS, FOR_NOBODY = b"\0\1\2"


def share_stored(Session session not None, bytes share_filter not None, list values not None):
    """Return a byte for each message that is stored for the group of a shared filter: whether this client may have it,
    only other members may, or nobody. Members at other brokers may have everything: their rules are not known here."""
    cdef Hub hub = session.hub
    cdef ShareGroup* group = hub.trie.find_group(share_filter)
    cdef EnvelopeView view
    cdef bytearray found = bytearray(len(values))
    cdef Py_ssize_t i
    cdef bytes value
    for i in range(len(values)):
        value = values[i]
        if (session.acl is None or get_envelope(value, <uint32_t> len(value), &view, &hub._lane_props)
                or session.acl.allows(view.topic, view.topic_size, ACL_RECEIVE)):
            found[i] = FOR_CLIENT
        else:
            found[i] = FOR_OTHERS if may_any_have(group, &view) else FOR_NOBODY
    return bytes(found)


cdef bint may_any_have(const ShareGroup* group, const EnvelopeView* view) except -1:
    cdef Session s
    cdef uint32_t i
    if group == NULL or group.turn_count < group.turns:
        return True
    for i in range(group.count):
        s = <Session> group.members[i].owner
        if (s.via_log and group.members[i].qos
                and (s.acl is None or s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE))):
            return True
    return False


cdef int dispatch_to_group(Hub hub, ShareGroup* group, const RecordView* record, const EnvelopeView* view,
                           uint64_t hash, Delivery* d, Message** kept) except -1:
    cdef uint64_t client_hash = hash_bytes(view.client_id, view.client_id_size, hub.trie.seed)
    cdef Member* member = choose_member(hub, group, hash, client_hash, view.topic, view.topic_size, view.qos)
    cdef Session s
    cdef Routing r
    cdef PublishView published
    if member == NULL:
        return 0
    s = <Session> member.owner
    d.group = group
    d.qos = min(view.qos, member.qos)
    d.retain = view.retain and member.flags & TARGET_RETAIN_AS_PUBLISHED
    d.ids, d.id_count = &member.identifier, 1 if member.identifier else 0
    if s.via_log and d.qos:
        if s.connection is None:
            # everybody is away: it waits for the first that returns
            stash_for_group(hub, group, record, view, d)
            return 0
        return dispatch_to_device(hub, s, record, view, d, kept)
    if not publish_again(hub, view, &published):
        return 0
    start_routing(hub, &r, &published, hash, view.expires_at)
    try:
        deliver_to_member(hub, group, member, &r)
    finally:
        end_routing(hub, &r)
    return 0


cdef int stash_for_group(Hub hub, ShareGroup* group, const RecordView* record, const EnvelopeView* view,
                         const Delivery* d) except -1:
    cdef uint8_t source[SOURCE_SIZE]
    cdef RecordPack pack
    if not may_pass(&hub.stored_rates, hub.stored_turns, hub.now):
        hub.counters.dropped[<int> DROP_STORED_RATE] += 1
        return 0
    name = hub.trie.group_path(group)
    pack = hub._group_stash.get(name)
    if pack is None:
        pack = hub._group_stash[name] = RecordPack()
    put_source(source, d.partition, via_of(hub, group), record.offset, view.expires_at, 0)
    # Who returns first gets it as its own subscription says.
    pack.put(record.timestamp, source, SOURCE_SIZE, record.value, record.value_size, NULL, 0)
    d.hold.pending += 1
    return 0


# ---- from the windows to the store ----

# A message that was sent and is not acknowledged, as a record under its own packet id.
cdef int stash_slot(Hub hub, Session s, Slot* slot) except -1:
    cdef Message* m = slot.message
    cdef RecordPack pack = open_stash(hub, s)
    cdef EnvelopeView view
    cdef Delivery d
    cdef uint8_t source[SOURCE_SIZE]
    cdef uint32_t size, extra, via = 0
    cdef uint8_t* p
    memset(&view, 0, sizeof(EnvelopeView))
    view.topic, view.topic_size = message_topic(m), m.topic_size
    view.payload, view.payload_size = message_payload(m), m.payload_size
    view.props, view.props_size = message_props(m), m.props_size
    view.received_at, view.expires_at = m.received_at, m.expires_at
    view.qos, view.retain = m.qos, m.retain
    d.qos, d.retain = 1, slot.flags & DELIVERY_RETAIN
    d.ids, d.id_count = NULL, 0
    if slot.extras != NULL:
        d.ids, d.id_count = slot.extras.ids, slot.extras.id_count
        via = slot.extras.group_via
    put_source(source, m.source_partition, via, m.source_offset, m.expires_at, slot.packet_id)
    size = envelope_size(&view)
    extra = delivery_size(d.qos, d.retain, d.ids, d.id_count, 0, -1)
    p = pack.reserve(hub.wall, source, SOURCE_SIZE, size + extra)
    put_delivery(put_envelope(p, &view), d.qos, d.retain, d.ids, d.id_count, 0, -1)
    slot.flags |= SLOT_STORING
    s.stash_sent += 1
    return 0


# What of the session's window is not safe and old enough; True if some of it stays.
cdef bint stash_window(Hub hub, Session s, uint32_t age) except -1:
    cdef uint16_t* order = window_order(&s.window)      # they are stored in the order they were sent
    cdef uint32_t i, n = s.window.count
    cdef Slot* slot
    cdef bint stays = False
    try:
        for i in range(n):
            slot = window_find(&s.window, order[i])
            if slot.hold == NULL or slot.flags & SLOT_STORING:
                continue
            if <uint32_t> hub.now - slot.sent_at >= age:
                stash_slot(hub, s, slot)
            else:
                stays = True
    finally:
        free(order)
    return stays


# An id the store may forget: it was acknowledged.
cdef int settle_stored(Session s, uint16_t packet_id, bint is_release) except -1:
    cdef Buffer* ids = &s.released if is_release else &s.settled
    cdef uint8_t* p = buffer_reserve(ids, 2)
    memcpy(p, &packet_id, 2)
    if not s.has_device_news:
        call_for_session(s)
    return 0


# Tells Python, once per iteration, that there is something to do for the session.
cdef int call_for_session(Session s) except -1:
    cdef Hub hub = s.hub
    s.has_device_news = True
    hub._device_news.append(s)
    if not hub._devices_scheduled:
        hub._devices_scheduled = True
        hub.loop.call_soon(hub._devices_soon)
    return 0


# ---- from the store to the client ----

# One stored message or PUBREL. 1 = sent or not needed, 0 = not now.
cdef int send_stored_one(Session s, Connection c, uint16_t packet_id, bytes value, int64_t dup_before) except -1:
    cdef Hub hub = s.hub
    cdef Slot* slot = window_find(&s.window, packet_id)
    cdef EnvelopeView view
    cdef Delivery d
    cdef Copy copy
    cdef uint32_t ids[MOST_IDS]
    cdef uint64_t hash = 0
    cdef bint dup = False
    if slot != NULL:
        # Under way, or sent again with the rest of the window; else a retained message has taken the id, and this one
        # has to wait for its acknowledgement.
        return 1 if slot.flags & (SLOT_STORED | SLOT_STORING) else 0
    if len(value) == 0:
        slot = window_put(&s.window, packet_id)
        slot.flags = SLOT_STORED
        slot.state = AWAIT_PUBCOMP
        hub.counters.inflight += 1
        send_ack(c, PUBREL, packet_id, SUCCESS)         # [MQTT-4.4.0-1] [MQTT3-4.4.0-1]
        return 1
    if s.outstanding >= s.limit or not c.writable or s.log_round == s.round:
        return 0                        # [MQTT-3.3.4-9]
    if get_envelope(value, <uint32_t> len(value), &view, &hub._lane_props):
        return settle_stored(s, packet_id, False) + 1
    dup = view.received_at <= dup_before     # in ms: a client may get a message and leave within one
    if not dup and view.expires_at and view.expires_at <= hub.wall:
        count_drop(s, DROP_EXPIRED)     # [MQTT-3.3.2-5]
        return settle_stored(s, packet_id, False) + 1
    # What was a group's says what its member subscribed with.
    d.qos = min(view.qos, view.delivery_qos)
    if s.acl is not None and not s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE):
        count_drop(s, DROP_DENIED)      # the client has lost the right since it was stored
        return give_up_stored(s, c, packet_id, dup and d.qos == 2)
    d.retain = view.retain and view.delivery_retain
    d.ids, d.id_count = ids, read_ids(view.ids, view.ids_size, ids)
    fill_from_envelope(&copy, c, &view, &d)
    if dup:
        copy.first |= 8                 # [MQTT-3.3.1-1] [MQTT3-3.3.1-1]
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, hub.trie.seed)
    slot = window_put(&s.window, packet_id)
    s.window.last_id = packet_id        # messages that are sent directly go on from the counter of the store
    slot.flags = SLOT_STORED | (DELIVERY_RETAIN if d.retain else 0)
    slot.state = AWAIT_PUBACK if d.qos == 1 else AWAIT_PUBREC
    # It is sent again from here should the client come back: an expiry is not looked at any more [MQTT-4.3.3-7].
    slot.message = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload,
                               view.payload_size, view.qos, view.retain, view.received_at, view.expires_at)
    slot.extras = make_extras(d.ids, d.id_count, NULL)
    if not send_copy(c, s, &copy, hash, packet_id, NULL, NULL, 0):
        count_drop(s, DROP_TOO_LARGE)   # as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        drop_slot(s, slot)
        return give_up_stored(s, c, packet_id, dup and d.qos == 2)
    s.delivered += 1
    count_sent(hub, d.qos, copy.payload_size)
    slot.flags |= SLOT_COUNTED
    s.outstanding += 1
    end_turn(s, &s.log_round)
    hub.counters.inflight += 1
    if buffer_size(&c.out) >= hub.flush_size:
        c.watch_output()
    return 1


# A stored message that is not sent. If an earlier process may have sent it with QoS 2, the handshake is finished: see
# give_up_slot.
cdef int give_up_stored(Session s, Connection c, uint16_t packet_id, bint is_held) except -1:
    cdef Slot* slot
    if not is_held:
        settle_stored(s, packet_id, False)
        return 1
    slot = window_put(&s.window, packet_id)
    slot.flags = SLOT_STORED
    s.hub.counters.inflight += 1
    release_slot(s, c, slot)
    return 1
