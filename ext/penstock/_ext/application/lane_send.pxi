# The sending side of lanes: from planned records to the client's socket, and its acknowledgements back.


# The state of an entry as a run has it.
cdef inline uint8_t run_state(const Entry* entry, bint is_last) noexcept:
    if entry.state == ENTRY_SENT or (entry.state == ENTRY_PLANNED and entry.flags & (ENTRY_DUP | ENTRY_UNSURE)
                                     == ENTRY_DUP):
        return RUN_SENT_2 if entry.qos == 2 else ENTRY_SENT
    if entry.state == ENTRY_PLANNED and (not is_last or entry.flags & ENTRY_UNSURE):
        return RUN_READY_2 if entry.qos == 2 else RUN_READY
    return entry.state


# Sends what is ready, as far as the packs in flight, the client's quota and its socket allow.
cdef int pump_lane(Lane lane, Session s, Connection c) except -1:
    cdef Hub hub = s.hub
    cdef PackTracker tracker
    cdef Entry* entry
    while lane.sending < lane.tracker_count and c.writable and not lane.is_stale and may_send(lane):
        tracker = <PackTracker> lane.trackers[lane.sending]
        if tracker.mark > lane.durable:
            break
        if tracker.next_entry == tracker.count:
            lane.sending += 1
            continue
        entry = &tracker.entries[tracker.next_entry]
        if entry.state == ENTRY_PLANNED:
            if entry.qos and not has_place(s, lane.part) and not is_counted(s, entry):
                break
            tracker.next_entry += 1
            lane.ahead += 1
            tracker.touched = hub.now
            send_entry(lane, tracker, tracker.next_entry - 1, s, c)
        else:
            if entry.state == ENTRY_RECEIVED and tracker.touched == 0:
                tracker.touched = hub.now
            tracker.next_entry += 1
            lane.ahead += 1
    if lane.is_paused and c.writable and lane_has_room(lane):
        lane.call()
    if lane.follower is not None:
        free_follower(lane)
    return 0


cdef inline bint is_all_sent(Lane lane) noexcept:
    return lane.is_closed or (lane.position >= lane.until and lane.sending == lane.tracker_count)


cdef int free_follower(Lane lane) except -1:
    if is_all_sent(lane):
        lane.follower.is_waiting = False
        lane.follower.call()
        lane.follower = None
    return 0


# A resend on a live connection is for MQTT 3 only [MQTT-4.4.0-1].
cdef uint32_t send_again(Lane lane, PackTracker tracker, uint32_t place) except? 0xFFFFFFFF:
    cdef Session s = lane.session
    cdef uint32_t i, n = 0
    cdef Entry* entry
    for i in range(tracker.first_open, tracker.count):
        entry = &tracker.entries[i]
        if entry.state == ENTRY_SENT:
            n += 1
            if s.version != 5:
                entry.state = ENTRY_PLANNED
                entry.flags |= ENTRY_DUP
        elif entry.state == ENTRY_RECEIVED and entry.flags & ENTRY_RELEASED and s.version != 5:
            n += 1
            send_ack(s.connection, PUBREL, entry.packet_id, SUCCESS)
    if s.version != 5 and n:
        if tracker.next_entry > tracker.first_open:
            lane.ahead -= tracker.next_entry - tracker.first_open
            tracker.next_entry = tracker.first_open
        lane.sending = min(lane.sending, place)
    return n


# Packs that were read while little came are small: several packs in flight are so many full packs of records, counted
# from the lowest that is not acknowledged. One pack in flight is one, whatever its size: the next waits for all of it.
cdef inline bint may_send(Lane lane) noexcept:
    cdef uint32_t packs = (<ApplicationDesk> lane.desk).packs_in_flight
    if packs == 1:
        return lane.sending == 0
    return lane.ahead - lane.done_ahead() < packs * lane.pack_size


cdef inline bint lane_has_room(Lane lane) noexcept:
    cdef uint32_t packs = (<ApplicationDesk> lane.desk).packs_in_flight
    if lane.session.window.count + lane.pack_size > MOST_PLANNED:
        return False
    if not may_plan(lane.session, lane.part):
        return False
    if packs == 1:
        return lane.tracker_count < 2
    return (lane.planned - lane.done_ahead() < PLANNED_AHEAD * packs * lane.pack_size
            and lane.planned_bytes < 2 * <uint64_t> packs * PACK_BYTES)


# Sent on this connection already, and sent again because its time was up.
cdef inline bint is_counted(Session s, const Entry* entry) noexcept:
    cdef Slot* slot = window_find(&s.window, entry.packet_id)
    return slot != NULL and slot.flags & SLOT_COUNTED


cdef int send_entry(Lane lane, PackTracker tracker, uint32_t index, Session s, Connection c) except -1:
    cdef Hub hub = s.hub
    cdef Entry* entry = &tracker.entries[index]
    cdef RecordView record
    cdef EnvelopeView view
    cdef Copy copy
    cdef uint32_t ids[MOST_IDS]
    cdef size_t position = entry.at
    cdef uint64_t hash = 0
    cdef Slot* slot
    cdef bint dup = entry.flags & ENTRY_DUP
    if (not (<RecordPack> tracker.parts[entry.part]).next(&position, &record)
            or get_envelope(record.value, record.value_size, &view, &hub.record_props)):
        return lane.finish(tracker, index)      # it was read before: only a broken memory gets here
    if not dup and view.expires_at and view.expires_at <= hub.wall:
        lane.expired += 1                       # while it waited for the client [MQTT-3.3.2-5]
        hub.counters.dropped[<int> DROP_EXPIRED] += 1
        return lane.finish(tracker, index)
    if (tracker.rules != hub.trie.version and s.acl is not None
            and not s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE)):
        # The right has gone since the record was planned. With QoS 2, a client that may have the message already is
        # the only one to get it.
        if entry.qos and not (entry.qos == 2 and dup) and has_peer(lane, view.topic, view.topic_size):
            lane.is_stale = True
            return lane.call()
        count_drop(s, DROP_DENIED)
        return give_up_entry(lane, tracker, index)
    copy.topic, copy.topic_size = view.topic, view.topic_size
    copy.payload, copy.payload_size = view.payload, view.payload_size
    copy.v5 = c.version == 5
    copy.props, copy.props_size = view.props, view.props_size if copy.v5 else 0
    copy.alias = 0
    copy.ids, copy.id_count = NULL, 0
    copy.has_expiry = False
    if copy.v5:
        if view.expires_at:
            # what is left of it, in whole seconds [MQTT-3.3.2-6]
            copy.expiry = <uint32_t> max((view.expires_at - hub.wall + 999) // 1000, <int64_t> 0)
            copy.has_expiry = True
        copy.ids, copy.id_count = ids, take_ids(lane, &view, ids)
    copy.first = <uint8_t> (PUBLISH << 4 | entry.qos << 1 | (8 if dup else 0)
                            | (1 if view.delivery_retain or (lane.keeps_retain and view.retain) else 0))
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, hub.trie.seed)
    if not send_copy(c, s, &copy, hash, entry.packet_id, NULL, NULL, 0):
        count_drop(s, DROP_TOO_LARGE)           # as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        return give_up_entry(lane, tracker, index)
    s.delivered += 1
    count_sent(hub, entry.qos, copy.payload_size)
    lane.delivered += 1
    if entry.qos:
        slot = window_find(&s.window, entry.packet_id)
        if not slot.flags & SLOT_COUNTED:
            slot.flags |= SLOT_COUNTED
            take_place(s, lane.part)
            hub.counters.inflight += 1
        entry.state = ENTRY_SENT
        # should it ever go out again [MQTT-3.3.1-1] [MQTT3-3.3.1-1]
        entry.flags = (entry.flags | ENTRY_DUP) & ~ENTRY_UNSURE
    else:
        lane.finish(tracker, index)
    lane.unflushed += 1
    if lane.unflushed >= (<ApplicationDesk> lane.desk).flush_after or buffer_size(&c.out) >= hub.limits.flush_size:
        lane.unflushed = 0
        c.watch_output()
    return 0


# A planned record that is not sent. If it was sent before with QoS 2, the handshake is finished: see give_up_slot.
cdef int give_up_entry(Lane lane, PackTracker tracker, uint32_t index) except -1:
    cdef Entry* entry = &tracker.entries[index]
    if entry.qos != 2 or not entry.flags & ENTRY_DUP:
        return lane.finish(tracker, index)
    entry.state = ENTRY_RECEIVED
    entry.flags = ENTRY_DUP | ENTRY_NEW
    return lane.await_release(entry.packet_id)


# A QoS 2 message is given up: as in give_up_slot, its packet id, which is free, stays reserved until PUBCOMP. PUBREL
# leaves when it is durable that the message is not sent again; `is_received`: such a PUBREL waits already, unless it
# `is_released`. A client that answers none of them must not run out of ids.
cdef int hold_id(Lane lane, uint16_t packet_id, bint is_received, bint is_released) except -1:
    cdef Session s = lane.session
    cdef Slot* slot
    if s.window.count >= MOST_HELD:
        return 0
    slot = window_put(&s.window, packet_id)
    slot.state = AWAIT_PUBCOMP
    slot.flags = 0 if is_released else SLOT_RELEASING
    s.hub.counters.inflight += 1
    return 0 if is_received else lane.await_release(packet_id)


# Whether the slot is such an id; its PUBREL leaves.
cdef bint send_held(Session s, Connection c, Slot* slot) except -1:
    if slot.flags & SLOT_BORROWED or slot.state != AWAIT_PUBCOMP or not slot.flags & SLOT_RELEASING:
        return False
    slot.flags &= ~SLOT_RELEASING
    if c is not None and c.state == CONNECTED:
        send_ack(c, PUBREL, slot.packet_id, SUCCESS)
    return True


# The connection ends before their PUBRELs have left: the session sends them on the next one.
cdef int free_held(Lane lane) except -1:
    cdef Slot* slot
    cdef uint32_t i
    for i in range(lane.release_at, lane.release_at + lane.release_count):
        slot = window_find(&lane.session.window, lane.releases[i].packet_id)
        if slot != NULL:
            send_held(lane.session, None, slot)
    return 0


# The subscription identifiers of the copy: those of the record, or the one of a shared subscription.
cdef inline uint16_t take_ids(Lane lane, const EnvelopeView* view, uint32_t* ids) noexcept:
    if lane.identifier:
        ids[0] = lane.identifier
        return 1
    return read_ids(view.ids, view.ids_size, ids)


# PUBACK, PUBREC or PUBCOMP for a record of a pack.
cdef int ack_entry(Connection c, Session s, Slot* slot, uint8_t packet_type, const AckView* ack) except -1:
    cdef PackTracker tracker
    cdef Lane lane
    cdef Entry* entry
    cdef uint32_t index
    cdef bint was_full
    if slot.message == NULL:
        return ack_kept(c, s, slot, packet_type, ack)
    tracker = <PackTracker> <void*> slot.message
    lane = <Lane> PyList_GET_ITEM(s.outlets, slot.outlet - 1)
    index = <uint32_t> <size_t> slot.extras
    entry = &tracker.entries[index]
    tracker.touched = s.hub.now
    if packet_type == PUBREC:
        if entry.qos == 2 and entry.state == ENTRY_PLANNED:
            return 0                    # it answers the message when that is sent again
        if entry.qos != 2 or entry.state not in (ENTRY_SENT, ENTRY_RECEIVED):
            return send_ack(c, PUBREL, ack.packet_id, PACKET_IDENTIFIER_NOT_FOUND)
        if ack.reason < 0x80:
            if entry.state == ENTRY_SENT:
                # PUBREL leaves when it is durable that PUBREC came: a broker that does not know it would send the
                # message again, to a client that has forgotten the packet id
                entry.state = ENTRY_RECEIVED
                entry.flags |= ENTRY_NEW
                return lane.await_release(entry.packet_id)
            if entry.flags & ENTRY_RELEASED:
                return send_ack(c, PUBREL, ack.packet_id, SUCCESS)
            return 0
    elif entry.state != (ENTRY_SENT if packet_type == PUBACK else ENTRY_RECEIVED) or (
            packet_type == PUBACK and entry.qos != 1):
        return 0                        # late or unknown
    lane.acknowledged += 1
    was_full = s.outstanding + s.kept_free >= s.limit       # then others may wait for the place
    lane.finish(tracker, index)
    if was_full or lane.sending < lane.tracker_count:
        s.pump()
    return 0


# For a record that was in flight on an earlier connection and was not read again yet.
cdef int ack_kept(Connection c, Session s, Slot* slot, uint8_t packet_type, const AckView* ack) except -1:
    cdef Lane lane = <Lane> PyList_GET_ITEM(s.outlets, slot.outlet - 1)
    cdef Saved* kept
    cdef uint32_t i
    for i in range(lane.kept_at, lane.kept_count):
        kept = &lane.kept[i]
        if kept.packet_id != ack.packet_id:
            continue
        if packet_type == PUBREC and ack.reason < 0x80:
            if kept.state == ENTRY_RECEIVED:
                return send_ack(c, PUBREL, ack.packet_id, SUCCESS) if lane.is_resumed and not kept.is_new else 0
            kept.state = ENTRY_RECEIVED     # it has it, and need not get it again
            kept.is_new = True
            return lane.await_release(ack.packet_id)
        if packet_type == PUBCOMP and kept.state != ENTRY_RECEIVED:
            return 0
        kept.state = ENTRY_DONE
        kept.packet_id = 0
        window_release(&s.window, slot)
        lane.acknowledged += 1
        return lane.change()
    return 0


# Of a record of a shared topic that the client may not have: whether another one of the share may. Then the lane waits
# at it. What the client was sent on this connection, or with QoS 2, is its own all the same.
cdef bint leave_to_peer(Lane lane, int64_t offset, const uint8_t* topic, uint32_t topic_size) except -1:
    if lane.peers is None:
        return False
    if offset < lane.kept_end:
        lane.drop_kept(offset)
        if lane.kept_at == lane.kept_count or lane.kept[lane.kept_at].offset != offset or is_own(lane, lane.kept_at):
            return False
    if not has_peer(lane, topic, topic_size):
        return False
    lane.denied_topic = PyBytes_FromStringAndSize(<const char*> topic, topic_size)
    return True


cdef bint is_own(Lane lane, uint32_t index) except -1:
    cdef const Saved* kept = &lane.kept[index]
    if kept.state == ENTRY_PLANNED:
        return False                    # it was never sent
    if kept.state == ENTRY_SENT or kept.state == RUN_READY:
        return lane.is_live and is_sent_here(lane, kept.packet_id)
    return True


# Whether another member of the share may have a message that this one may not.
cdef bint has_peer(Lane lane, const uint8_t* topic, uint32_t topic_size) except -1:
    cdef Session peer
    if lane.peers is not None:
        for item in lane.peers:
            peer = <Session?> item
            if peer is not lane.session and (peer.acl is None or peer.acl.allows(topic, topic_size, ACL_RECEIVE)):
                return True
    return False


cdef inline bint may_plan(Session s, WindowPart part) noexcept:
    return part is None or part.open < s.plan_each


cdef inline void add_open(Lane lane, uint32_t count) noexcept:
    if lane.part is not None:
        lane.part.open += count


cdef inline void remove_open(Lane lane, uint32_t count) noexcept:
    if lane.part is not None:
        lane.part.open -= count


# The lane has room, and so do lanes of its part that waited for it.
cdef int call_part(Lane lane) except -1:
    cdef Lane other
    lane.call()
    for item in lane.session.outlets or ():
        if (<Outlet> item).desk is lane.desk:
            other = <Lane> item
            if other.part is lane.part and other.is_paused:
                other.call()
    return 0


cdef bint is_sent_here(Lane lane, uint16_t packet_id) except -1:
    return lane.unsent is None or packet_id not in lane.unsent


# Packet ids of an earlier connection whose messages were not sent again on this one yet.
cdef set find_unsent(Lane lane):
    cdef set found = set()
    cdef PackTracker tracker
    cdef Entry* entry
    cdef uint32_t i, k
    for i in range(lane.tracker_count):
        tracker = <PackTracker> lane.trackers[i]
        for k in range(tracker.first_open, tracker.count):
            entry = &tracker.entries[k]
            if entry.state == ENTRY_PLANNED and entry.packet_id and entry.flags & ENTRY_DUP:
                found.add(entry.packet_id)
    for i in range(lane.kept_at, lane.kept_count):
        if lane.kept[i].packet_id and lane.kept[i].state != ENTRY_RECEIVED and is_unsent_kept(lane, i):
            found.add(lane.kept[i].packet_id)
    return found


cdef inline bint is_unsent_kept(Lane lane, uint32_t index) except -1:
    return not lane.is_live or not is_sent_here(lane, lane.kept[index].packet_id)
