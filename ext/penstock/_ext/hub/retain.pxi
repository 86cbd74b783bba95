# Retained messages: the last one of a topic is stored, and sent to clients that subscribe later.


cdef enum:
    WARN_EVERY = 1_000          # ms between two calls of Hub.on_retained_full

cdef enum RetainedRoom:
    HAS_ROOM = 0
    STORE_FULL = 1
    SHARE_USED = 2


# Whether the store, and the user's share of it, have room for the message in the place of what is there. `user` is NULL
# for messages of the broker's own, which count to no share; `user_size` is 0 for clients without a name.
cdef RetainedRoom retained_room(Hub hub, const uint8_t* topic, uint32_t topic_size, uint64_t size,
                                const uint8_t* user, uint32_t user_size) noexcept:
    cdef RetainedTree tree = hub.retained
    cdef Message* old = tree.find(topic, topic_size)
    cdef uint64_t weight = sizeof(Message) + topic_size + size
    cdef uint64_t bytes = tree.bytes, count = tree.count
    cdef Share* share
    if old != NULL:
        bytes -= message_weight(old)
        count -= 1
    if bytes + weight > hub.limits.max_retained_bytes or count >= hub.limits.max_retained_messages:
        return STORE_FULL
    if user == NULL or (user_size == 0 and not hub.limits.shares_anonymous):
        return HAS_ROOM
    bytes = count = 0
    share = tree.find_share(user, user_size)
    if share != NULL:
        bytes, count = share.bytes, share.count
        if old != NULL and tree._shares + old.source_partition == share:
            bytes -= message_weight(old)
            count -= 1
    # at least one message, however small the store is
    if count and (bytes + weight > hub.limits.max_retained_bytes * hub.limits.retained_share // 100
                  or count >= max(<uint64_t> hub.limits.max_retained_messages * hub.limits.retained_share // 100,
                                  <uint64_t> 1)):
        return SHARE_USED
    return HAS_ROOM


cdef inline const uint8_t* user_of(Session s, uint32_t* size) noexcept:
    size[0] = s.user_size if s is not None and s.user_text != NULL else 0
    if s is None:
        return NULL
    return s.user_text if s.user_text != NULL else <const uint8_t*> b""


# Whether a retained publish may be stored; False is reported at most once a second.
cdef bint may_retain(Hub hub, const PublishView* view, Session origin) except -1:
    cdef uint32_t user_size = 0
    cdef const uint8_t* user = user_of(origin, &user_size)
    cdef RetainedRoom room
    if view.payload_size == 0:
        return True
    room = retained_room(hub, view.topic, view.topic_size, <uint64_t> view.props_size + view.payload_size, user,
                         user_size)
    if room == HAS_ROOM:
        return True
    if hub.now - hub._retained_warned >= WARN_EVERY or hub._retained_warned == 0:
        hub._retained_warned = hub.now
        warn_retained(hub, view, origin, room)
    return False


cdef int warn_retained(Hub hub, const PublishView* view, Session origin, RetainedRoom room) except -1:
    if hub.on_retained_full is not None:
        hub.on_retained_full(origin, PyBytes_FromStringAndSize(<const char*> view.topic, view.topic_size),
                             room == SHARE_USED)
    return 0


# MQTT 5 can refuse the publish, with QoS 1 and 2. Otherwise the message is delivered: see leave_unretained.
cdef int refuse_retained(Connection c, const PublishView* view) except -1:
    return refuse_publish(c, view, TEXT_RETAINED_FULL, DROP_RETAINED_FULL)


# A message that may_retain has refused and that cannot be refused as a whole. With QoS 1 and 2 the topic's old one
# stays; with QoS 0 it goes, as MQTT requires [MQTT3-3.3.1-7].
cdef int leave_unretained(Hub hub, PublishView* view) except -1:
    hub.counters.dropped[<int> DROP_RETAINED_FULL] += 1
    if view.qos:
        view.retain = 0         # for other brokers, too
        return 0
    hub.retained.remove(view.topic, view.topic_size)
    return log_retained(hub, view, 0, False, None) if hub.ingest.keeps_state else 0


# Only after may_retain has returned True.
cdef int store_retained(Hub hub, const PublishView* view, int64_t expires_at, Session origin) except -1:
    cdef Message* m
    cdef uint32_t user_size = 0
    cdef const uint8_t* user
    if view.payload_size == 0:
        # [MQTT-3.3.1-6] [MQTT-3.3.1-7] [MQTT3-3.3.1-10] [MQTT3-3.3.1-11]
        hub.retained.remove(view.topic, view.topic_size)
        return log_retained(hub, view, 0, False, None) if hub.ingest.keeps_state else 0
    m = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload, view.payload_size,
                    view.qos, 1, hub.wall, expires_at)
    try:
        user = user_of(origin, &user_size)
        if user != NULL:
            m.source_partition = hub.retained.take_share(user, user_size)
        hub.retained.store(m)                               # [MQTT-3.3.1-5] [MQTT3-3.3.1-5]
        if hub.ingest.keeps_state:
            log_retained(hub, view, expires_at, True, origin)
    finally:
        message_unref(m)
    return 0


# Send the retained messages that match a new subscription, in the tree's order.
cdef list send_retained_to(Hub hub, Session session, bytes topic_filter, uint8_t options, uint32_t identifier):
    cdef MessageList found
    cdef uint64_t before = hub.retained.steps
    cdef uint32_t i
    cdef Message* m
    cdef Message* ticket
    cdef int64_t now
    if session.backlog >= hub.limits.max_retained_messages:
        count_drop(session, DROP_QUEUE_FULL)
        return []
    memset(&found, 0, sizeof(MessageList))
    hub.update_clock()
    now = hub.wall
    try:
        hub.retained.collect(topic_filter, <uint32_t> len(topic_filter), now, &found)
        if session.connection is not None:
            session.connection.steps += hub.retained.steps - before     # see turns.pxi
        for i in range(found.count):
            m = found.items[i]
            if session.acl is not None and not session.acl.allows(message_topic(m), m.topic_size, ACL_RECEIVE):
                continue
            if session.backlog >= hub.limits.max_retained_messages:
                count_drop(session, DROP_QUEUE_FULL)
                continue
            if (session.intake is not None and min(options & 3, m.qos)
                    and session.intake.accept_retained(hub, m, min(options & 3, m.qos), identifier)):
                continue
            ticket = message_new(message_topic(m), m.topic_size, NULL, 0, NULL, 0, 0, 1, now, 0)
            # RETAIN is set: it was stored before the subscription [MQTT-3.3.1-8] [MQTT3-3.3.1-8]
            session.enqueue(ticket, make_extras(&identifier, 1 if identifier else 0, NULL), options & 3,
                            DELIVERY_RETAIN | DELIVERY_BACKLOG)
            message_unref(ticket)
    finally:
        free(found.items)
    session.pump()
    return session.intake.take_filled(hub) if session.intake is not None else []


# A retained message as it was logged; none, or one that has expired, removes what is there.
cdef int put_retained(Hub hub, const EnvelopeView* view) except -1:
    cdef Message* m
    cdef const uint8_t* user = NULL
    if view.payload_size == 0 or (view.expires_at and view.expires_at <= hub.wall):
        hub.retained.remove(view.topic, view.topic_size)
        return 0
    if view.client_id_size:
        user = view.username if view.username_size else <const uint8_t*> b""
    # its user had room when it was published
    if retained_room(hub, view.topic, view.topic_size, <uint64_t> view.props_size + view.payload_size, NULL, 0):
        hub.counters.dropped[<int> DROP_RETAINED_FULL] += 1
        if view.qos == 0:       # with QoS 1 and 2 the old message stays
            hub.retained.remove(view.topic, view.topic_size)
        return 0
    m = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload, view.payload_size,
                    view.qos, 1, view.received_at, view.expires_at)
    try:
        if user != NULL:
            m.source_partition = hub.retained.take_share(user, view.username_size)
        hub.retained.store(m)
    finally:
        message_unref(m)
    return 0
