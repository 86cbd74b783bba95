# From a parsed PUBLISH to the output buffers, windows and queues of its subscribers. Nothing here calls Python or
# changes a subscription.


cdef inline uint8_t* out_reserve(Connection c, uint32_t size) except NULL:
    if c.out.end == 0:
        c.hub.open_output(c)
    return buffer_reserve(&c.out, size)


cdef inline uint32_t copy_props_size(const Copy* copy) noexcept:
    cdef uint32_t size = copy.props_size
    cdef uint16_t i
    if copy.has_expiry:
        size += 5
    if copy.alias:
        size += 3
    for i in range(copy.id_count):
        size += 1 + varint_size(copy.ids[i])
    return size


# Whole packet size; the size of the properties is left in *props.
cdef inline uint32_t copy_size(const Copy* copy, uint32_t* props) noexcept:
    cdef uint32_t body = publish_body_size(copy.topic_size, copy.first & 6, copy.payload_size)
    props[0] = 0
    if copy.v5:
        props[0] = copy_props_size(copy)
        body += varint_size(props[0]) + props[0]
    return 1 + varint_size(body) + body


# Writes the packet to p, which has room for copy_size bytes. Returns the place of the packet id.
cdef inline uint8_t* put_copy(uint8_t* p, const Copy* copy, uint32_t props, uint16_t packet_id) noexcept:
    cdef uint32_t body = publish_body_size(copy.topic_size, copy.first & 6, copy.payload_size)
    cdef uint8_t* id_at
    cdef uint16_t i
    if copy.v5:
        body += varint_size(props) + props
    p[0] = copy.first
    p = put_varint(p + 1, body)
    put_be16(p, <uint16_t> copy.topic_size)
    memcpy(p + 2, copy.topic, copy.topic_size)
    p += 2 + copy.topic_size
    id_at = p
    if copy.first & 6:
        put_be16(p, packet_id)
        p += 2
    if copy.v5:
        p = put_varint(p, props)
        if copy.has_expiry:
            p[0] = 0x02         # Message Expiry Interval
            put_be32(p + 1, copy.expiry)
            p += 5
        if copy.alias:
            p[0] = 0x23         # Topic Alias
            put_be16(p + 1, copy.alias)
            p += 3
        for i in range(copy.id_count):
            p[0] = 0x0B         # Subscription Identifier, one for each matching filter [MQTT-3.3.4-3] [MQTT-3.3.4-4]
            p = put_varint(p + 1, copy.ids[i])
        if copy.props_size:
            memcpy(p, copy.props, copy.props_size)
            p += copy.props_size
    if copy.payload_size:
        memcpy(p, copy.payload, copy.payload_size)
    return id_at


# The alias under which the client knows the topic, or will know it from this packet on. Takes the topic out of the
# copy when the client knows it already. First come, first served: the table is never re-used on one connection.
cdef int use_alias(Connection c, Copy* copy, uint64_t hash) except -1:
    cdef uint16_t i
    cdef uint32_t props = 0
    cdef Alias* alias
    for i in range(c.aliases_out_count):
        alias = &c.aliases_out[i]
        if alias.hash == hash and alias.size == copy.topic_size and memcmp(alias.topic, copy.topic, alias.size) == 0:
            copy.alias = i + 1
            copy.topic_size = 0
            return 0
    if c.aliases_out_count == c.aliases_out_max or copy.topic_size <= 3:
        return 0
    # announcing one makes this packet larger, and it may just fit without
    copy.alias = c.aliases_out_count + 1
    if copy_size(copy, &props) > c.max_out_packet:
        copy.alias = 0
        return 0
    if c.aliases_out == NULL:
        c.aliases_out = <Alias*> calloc(c.aliases_out_max, sizeof(Alias))
        if c.aliases_out == NULL:
            raise MemoryError()
    alias = &c.aliases_out[c.aliases_out_count]
    alias.topic = <uint8_t*> malloc(copy.topic_size)
    if alias.topic == NULL:
        raise MemoryError()
    memcpy(alias.topic, copy.topic, copy.topic_size)
    alias.hash = hash
    alias.size = copy.topic_size
    c.aliases_out_count += 1                # 1 to the client's maximum [MQTT-3.3.2-11] [MQTT-3.1.2-26]
    return 0


cdef inline void fill_copy(Copy* copy, const PublishView* view, uint8_t qos, bint v5) noexcept:
    copy.topic = view.topic
    copy.topic_size = view.topic_size
    copy.payload = view.payload
    copy.payload_size = view.payload_size
    # the bytes as they came, in their order [MQTT-3.3.2-4] [MQTT-3.3.2-15] [MQTT-3.3.2-16] [MQTT-3.3.2-17]
    # [MQTT-3.3.2-18] [MQTT-3.3.2-20]
    copy.props = view.props
    copy.props_size = view.props_size if v5 else 0
    copy.ids = NULL
    copy.id_count = 0
    copy.alias = 0
    copy.expiry = view.expiry               # nothing of it has passed yet
    copy.has_expiry = view.has_expiry and v5
    # DUP is the broker's own [MQTT-3.3.1-3] [MQTT3-3.3.1-3]; RETAIN is patched in per subscriber
    copy.first = <uint8_t> (PUBLISH << 4 | qos << 1)  # [MQTT-4.3.1-1] [MQTT-4.3.2-2] [MQTT-4.3.3-2] [MQTT3-4.3.1-1]
    copy.v5 = v5


cdef int encode_shape(Hub hub, Routing* r, uint32_t shape) except -1:
    cdef Copy copy
    cdef uint32_t props = 0
    cdef uint8_t* p
    cdef uint8_t* id_at
    fill_copy(&copy, r.view, <uint8_t> (shape % 3), shape >= 3)
    r.size[shape] = copy_size(&copy, &props)
    p = buffer_reserve(&hub._templates, r.size[shape])
    r.offset[shape] = <uint32_t> (p - hub._templates.data)
    id_at = put_copy(p, &copy, props, 0)
    r.id_at[shape] = <uint32_t> (id_at - p)
    return 0


# Sends a copy to a connected client. Returns 0 if it is too large for it: the size is known before a packet id is
# taken.
cdef inline int send_shape(Connection c, Session s, Routing* r, uint32_t shape, uint16_t flags, Extras* extras,
                           Message* kept) except -1:
    cdef uint8_t* p
    cdef uint8_t qos = <uint8_t> (shape % 3)
    cdef uint16_t packet_id = 0
    if r.size[shape] == 0:
        encode_shape(c.hub, r, shape)
    if r.size[shape] > c.max_out_packet:
        return 0
    if qos:
        packet_id = take_slot(s, kept, extras, qos, flags)
    p = out_reserve(c, r.size[shape])
    memcpy(p, c.hub._templates.data + r.offset[shape], r.size[shape])
    if flags & DELIVERY_RETAIN:
        p[0] |= 1
    if qos:
        put_be16(p + r.id_at[shape], packet_id)
    return 1


cdef uint16_t take_slot(Session s, Message* kept, Extras* extras, uint8_t qos, uint16_t flags) except 0:
    cdef Slot* slot = window_add(&s.window)  # [MQTT-4.3.2-1] [MQTT-4.3.3-1] [MQTT3-4.3.2-1]
    slot.message = message_ref(kept) if kept != NULL else NULL
    slot.extras = extras
    slot.state = AWAIT_PUBACK if qos == 1 else AWAIT_PUBREC
    slot.flags = flags | SLOT_COUNTED
    s.outstanding += 1                      # [MQTT-4.9.0-2]
    s.hub.counters.inflight += 1
    return slot.packet_id


# The slower way: identifiers, aliases, or a message that has waited. packet_id is given when it is sent again.
cdef int send_copy(Connection c, Session s, Copy* copy, uint64_t hash, uint16_t packet_id, Message* kept,
                   Extras* extras, uint16_t flags) except -1:
    cdef uint32_t props = 0
    cdef uint32_t size
    cdef uint8_t qos = (copy.first >> 1) & 3
    if c.aliases_out_max:
        use_alias(c, copy, hash)
    size = copy_size(copy, &props)
    if size > c.max_out_packet:
        return 0
    if qos and packet_id == 0:
        packet_id = take_slot(s, kept, extras, qos, flags)
    put_copy(out_reserve(c, size), copy, props, packet_id)
    return 1


cdef inline Message* keep(Hub hub, Routing* r) except NULL:
    if r.kept == NULL:
        r.kept = message_new(r.view.topic, r.view.topic_size, r.view.props, r.view.props_size, r.view.payload,
                             r.view.payload_size, r.view.qos, r.view.retain, hub.wall, r.expires_at)
    return r.kept


# One subscriber's share of the publish.
cdef int deliver(Hub hub, Session s, Routing* r, uint8_t qos, uint16_t flags, const uint32_t* ids, uint16_t id_count,
                 ShareGroup* group) except -1:
    cdef Connection c = s.connection
    cdef Copy copy
    cdef Message* kept = NULL
    cdef Extras* extras = NULL
    cdef uint32_t shape
    cdef int sent
    if qos == 0:
        if c is None:
            return 0        # QoS 0 is not kept for a session without a connection
        if hub.rates.is_on and gets_too_much(hub, s):
            return 0
        if s.backlog:
            return s.enqueue(keep(hub, r), make_extras(ids, id_count, NULL), 0, flags)
        if not c.writable:
            count_drop(s, DROP_NOT_WRITABLE)
            return 0
    elif s.intake is not None and (group == NULL or not s.intake.is_apart or group.feed != NULL):
        hub.ingest.gathering.awaited = WAIT_NONE_LONGER
        return 0            # the dispatcher has it from the log
    elif (c is None or not c.writable or s.queue.count or s.resend_count or s.is_full()):
        # its turn comes after what waits, within the quota [MQTT-3.3.4-9] [MQTT-4.6.0-5] [MQTT-4.6.0-6]
        # [MQTT3-4.6.0-5] [MQTT3-4.6.0-6] [MQTT3-3.1.2-5]
        return s.enqueue(keep(hub, r), make_extras(ids, id_count, group), qos,
                         flags | (DELIVERY_SHARED if group != NULL else 0))
    elif s._keeps or group != NULL:
        # it may have to be sent again, to this client or to another of the group
        kept = keep(hub, r)
        extras = make_extras(ids, id_count, group)
        if group != NULL:
            flags |= DELIVERY_SHARED
    shape = qos + (3 if c.version == 5 else 0)
    if r.seen & 1u << shape and id_count == 0 and c.aliases_out_max == 0:  # [MQTT-3.1.2-27]
        sent = send_shape(c, s, r, shape, flags, extras, kept)
    else:
        r.seen |= 1u << shape
        fill_copy(&copy, r.view, qos, c.version == 5)
        if flags & DELIVERY_RETAIN:
            copy.first |= 1
        if c.version == 5:
            copy.ids, copy.id_count = ids, id_count
        sent = send_copy(c, s, &copy, r.hash, 0, kept, extras, flags)
    if sent:
        s.delivered += 1
        count_sent(hub, qos, r.view.payload_size)
        if buffer_size(&c.out) >= hub.limits.flush_size:
            c.watch_output()
    else:
        free(extras)
        count_drop(s, DROP_TOO_LARGE)       # as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
    return 0


# How well it takes what nobody can take now: one that is there waits for room, one that is away needs QoS > 0 for it.
cdef inline int fitness(const Member* member, uint8_t qos) noexcept:
    if (<Session> member.owner).connection is not None:
        return 2
    return 1 if min(member.qos, qos) else 0


# The member of a share group that gets the message: the strategy's choice among those who can take it at once, else
# the strategy's choice among those who keep it, else NULL.
cdef Member* choose_member(Hub hub, ShareGroup* group, uint64_t topic_hash, uint64_t client_hash, const uint8_t* topic,
                           uint32_t topic_size, uint8_t qos, bint with_log) except? NULL:
    cdef uint32_t start, i, n = group.count
    cdef Member* member
    cdef Member* fallback = NULL
    cdef Session s
    if hub.limits.strategy == SHARE_ROUND_ROBIN:
        start = group.cursor
    elif hub.limits.strategy == SHARE_STICKY:
        start = group.cursor
    elif hub.limits.strategy == SHARE_RANDOM:
        hub.random_state = hub.random_state * 6364136223846793005ull + 1442695040888963407ull
        start = <uint32_t> (hub.random_state >> 33)
    elif hub.limits.strategy == SHARE_HASH_CLIENT:
        start = <uint32_t> (client_hash ^ (client_hash >> 32))
    else:
        start = <uint32_t> (topic_hash ^ (topic_hash >> 32))
    for i in range(n):
        member = &group.members[(start + i) % n]
        s = <Session> member.owner
        if (group.feed != NULL and s.intake is not None and s.intake.is_apart) != with_log:
            continue        # clients with a log of their own are a group for themselves
        if s.acl is not None and not s.acl.allows(topic, topic_size, ACL_RECEIVE):
            continue
        if s.connection is not None and s.connection.writable and (qos == 0 or (s.queue.count == 0
                                                                                and not s.is_full())):
            if hub.limits.strategy == SHARE_ROUND_ROBIN:
                group.cursor = (start + i + 1) % n
            elif hub.limits.strategy == SHARE_STICKY:
                group.cursor = (start + i) % n
            return member
        if fallback == NULL or fitness(member, qos) > fitness(fallback, qos):
            fallback = member
    if fallback != NULL and hub.limits.strategy == SHARE_ROUND_ROBIN:
        group.cursor = (start + 1) % n
    return fallback


# Whether a member of the group is served from the log: then the whole group is, so that one of them gets it.
cdef bint is_logged_group(const ShareGroup* group) noexcept:
    cdef uint32_t i
    cdef Session s
    for i in range(group.count):
        s = <Session> group.members[i].owner
        if s.intake is not None and not s.intake.is_apart:
            return True
    return False


cdef int deliver_to_group(Hub hub, ShareGroup* group, Routing* r, Session origin) except -1:
    cdef Member* member = choose_member(hub, group, r.hash, origin._client_hash if origin is not None else 0,
                                        r.view.topic, r.view.topic_size, r.view.qos, False)
    # A group with persistent members gets messages with QoS > 0 from the log.
    if member != NULL and (r.view.qos == 0 or not hub.groups_from_log or not is_logged_group(group)):
        deliver_to_member(hub, group, member, r)
    else:
        hub.ingest.gathering.awaited = WAIT_NONE_LONGER
    # With QoS > 0 it is in the log of the filter, which the members read.
    if group.feed != NULL and r.view.qos == 0:
        member = choose_member(hub, group, r.hash, origin._client_hash if origin is not None else 0,
                               r.view.topic, r.view.topic_size, 0, True)
        if member != NULL:
            deliver_to_member(hub, group, member, r)
    return 0


cdef int deliver_to_member(Hub hub, ShareGroup* group, Member* member, Routing* r) except -1:
    cdef uint8_t flags = 0
    if r.view.retain and member.flags & TARGET_RETAIN_AS_PUBLISHED:
        flags = DELIVERY_RETAIN
    # [MQTT-4.8.2-3]
    return deliver(hub, <Session> member.owner, r, min(r.view.qos, member.qos), flags, &member.identifier,
                   1 if member.identifier else 0, group)


# To every subscriber of the match. `origin` is the publisher's session, None for the broker's own messages.
# `shares_wait`: share groups get it when it is read from the log, where all brokers agree on whose turn it is.
cdef int route(Hub hub, const PublishView* view, Match* match, Session origin, int64_t expires_at,
               bint shares_wait) except -1:
    cdef Routing r
    cdef Target* target
    cdef Session s
    cdef uint32_t i
    cdef uint8_t qos, flags
    cdef uint16_t id_count
    start_routing(hub, &r, view, match.hash, expires_at)
    try:
        for i in range(match.target_count):
            target = &match.targets[i]
            s = <Session> target.owner
            qos, id_count = target.qos, target.id_count
            if target.flags:
                if target.flags & TARGET_NO_LOCAL and s is origin:
                    if target.own_qos == QOS_NONE:
                        continue        # its own message [MQTT-3.8.3-3]
                    qos, id_count = target.own_qos, target.own_id_count
                # RETAIN is kept only where it was asked for [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9]
                flags = DELIVERY_RETAIN if view.retain and target.flags & TARGET_RETAIN_AS_PUBLISHED else 0
            else:
                flags = 0
            if view.qos < qos:
                qos = view.qos          # effective QoS [MQTT-3.8.4-8] [MQTT3-3.8.4-6]
            deliver(hub, s, &r, qos, flags, target.ids, id_count, NULL)
        if not shares_wait:
            for i in range(match.group_count):
                deliver_to_group(hub, match.groups[i], &r, origin)
    finally:
        end_routing(hub, &r)
    return 0


# A message that waited (queue) or was stored (retained), to a connected client. 0 = too large for it.
cdef int send_message(Connection c, Session s, Message* m, uint8_t qos, uint16_t flags, Extras* extras,
                      uint16_t packet_id, bint dup) except -1:
    cdef Copy copy
    cdef Message* kept
    cdef int64_t left
    cdef uint64_t hash = 0
    cdef int sent
    copy.topic = message_topic(m)
    copy.topic_size = m.topic_size
    copy.props = message_props(m)
    copy.v5 = c.version == 5
    copy.props_size = m.props_size if copy.v5 else 0
    copy.payload = message_payload(m)
    copy.payload_size = m.payload_size
    copy.alias = 0
    copy.ids = NULL
    copy.id_count = 0
    copy.has_expiry = False
    if copy.v5:
        if m.expires_at:
            # what is left of it, in whole seconds and never more than was asked for [MQTT-3.3.2-6]
            left = (m.expires_at - c.hub.wall + 999) // 1000
            copy.expiry = <uint32_t> max(left, 0)
            copy.has_expiry = True
        if extras != NULL and extras.id_count:
            copy.ids = extras.ids
            copy.id_count = extras.id_count
    copy.first = <uint8_t> (PUBLISH << 4 | qos << 1 | (8 if dup else 0) | (1 if flags & DELIVERY_RETAIN else 0))
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, c.hub.trie.seed)
    kept = m if s._keeps or flags & (DELIVERY_SHARED | DELIVERY_NUMBERED) else NULL
    sent = send_copy(c, s, &copy, hash, packet_id, kept, extras, flags)
    if sent:
        s.delivered += 1
        count_sent(c.hub, qos, m.payload_size)
        if buffer_size(&c.out) >= c.hub.limits.flush_size:
            c.watch_output()
    return sent
