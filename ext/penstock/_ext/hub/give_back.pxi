# Messages that a client does not get after all: another member of the share group gets them, or they are dropped.


# Whether the rules deny a client a message that has waited for it. Queues and query topics have rights of their own.
cdef inline bint is_denied(Session s, const Message* m, uint16_t flags) noexcept:
    return not flags & DELIVERY_NUMBERED and not s.acl.allows(message_topic(m), m.topic_size, ACL_RECEIVE)


# Whether a message of an outlet that waits in a session must not be sent: the client's rules have changed meanwhile.
cdef bint is_revoked(Session s, Outlet outlet, const Queued* item) except -1:
    if s.acl is None or s.acl.allows(message_topic(item.message), item.message.topic_size, ACL_RECEIVE):
        return False
    if outlet is not None:
        outlet.take_back(item.message)
    return True


# The client has lost the right to the message since it was matched: another member of its share group gets it, or it is
# dropped.
cdef int pass_denied(Session s, Message* m, uint8_t qos, uint16_t flags, Extras* extras) except -1:
    if not flags & DELIVERY_SHARED or not redeliver(s.hub, m, qos, extras, True):
        count_drop(s, DROP_DENIED)
    return 0


# A message that was sent on an earlier connection is not sent again. With QoS 2 the client may hold its packet id: the
# handshake is finished, and the id stays reserved until PUBCOMP. Otherwise the client would take the next message with
# this id for a repetition. A client that never received the message answers PUBCOMP, too.
cdef int give_up_slot(Session s, Connection c, Slot* slot) except -1:
    if slot.state == AWAIT_PUBREC:
        return release_slot(s, c, slot)
    if slot.outlet:
        (<Outlet> PyList_GET_ITEM(s.outlets, slot.outlet - 1)).on_dropped(s, slot)
    window_release(&s.window, slot)
    s.hub.counters.inflight -= 1
    return 0


# Send PUBREL, or leave it to the outlet: of a stored message as soon as the store knows it [MQTT-4.3.3-4]
# [MQTT3-4.3.3-1].
cdef int release_slot(Session s, Connection c, Slot* slot) except -1:
    slot.state = AWAIT_PUBCOMP                  # [MQTT-4.3.3-5]
    if slot.message != NULL and not slot.flags & DELIVERY_NUMBERED:
        message_unref(slot.message)             # it is never sent again [MQTT-4.3.3-6]
        slot.message = NULL
    if slot.outlet and (<Outlet> PyList_GET_ITEM(s.outlets, slot.outlet - 1)).on_received(s, slot):
        slot.flags |= SLOT_RELEASING
        return 0
    if slot.flags & SLOT_RELEASING:
        return 0                                # a lane sends it, see hold_id
    return send_ack(c, PUBREL, slot.packet_id, SUCCESS)


# Give a message that a member of a share group gave back to another member of the group; 0 if there is none.
# `is_later`: send it in the next iteration of the loop, because the caller is sending.
cdef int redeliver(Hub hub, Message* m, uint8_t qos, Extras* extras, bint is_later=False) except -1:
    cdef uint64_t hash
    cdef Match* match
    cdef uint32_t i
    cdef ShareGroup* group
    cdef Member* member
    cdef Session s
    cdef int given = 0
    if extras == NULL:
        return 0
    hash = hash_bytes(message_topic(m), m.topic_size, hub.trie.seed)
    match = hub.trie.match(message_topic(m), m.topic_size, hash)
    try:
        for i in range(match.group_count):
            group = match.groups[i]
            if (group.node != extras.group_node or group.name_size != extras.group_name_size
                    or memcmp(group.name, extras_group_name(extras), group.name_size) != 0):
                continue
            member = choose_member(hub, group, hash, 0, message_topic(m), m.topic_size, qos, False)
            if member == NULL:
                continue
            s = <Session> member.owner
            s.enqueue(m, extras_new(&member.identifier, 1 if member.identifier else 0, group.node, group.name,
                                    group.name_size), min(qos, member.qos), DELIVERY_SHARED)
            given = 1
            if is_later:
                hub.loop.call_soon(s.resume)
            else:
                s.pump()
    finally:
        match_unref(match)
    return given
