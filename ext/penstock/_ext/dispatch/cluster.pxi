# Several brokers on one log: what another broker took is delivered here when it is read from the log of all messages.
# Each record says who took it. Share groups are served from the log by all brokers, each in its turns.

cdef enum:
    RETAINED_OVERLAP = 10_000   # ms before this broker's start: what was retained then may not be in its topic yet


# The publish in a record. False if it has expired [MQTT-3.3.2-5].
cdef bint publish_again(Hub hub, const EnvelopeView* view, PublishView* published) noexcept:
    memset(published, 0, sizeof(PublishView))
    published.topic, published.topic_size = view.topic, view.topic_size
    published.payload, published.payload_size = view.payload, view.payload_size
    published.props, published.props_size = view.props, view.props_size
    published.qos, published.retain = view.qos, view.retain
    if view.expires_at:
        if view.expires_at <= hub.wall:
            return False
        # what is left of it, in whole seconds [MQTT-3.3.2-6]
        published.expiry = <uint32_t> ((view.expires_at - hub.wall + 999) // 1000)
        published.has_expiry = True
    return True


# What another broker took, to the subscribers here that do not get it as persistent clients.
cdef int route_foreign(Hub hub, const EnvelopeView* view, Match* match) except -1:
    cdef PublishView published
    cdef Routing r
    cdef Target* target
    cdef Session s
    cdef uint32_t i
    cdef uint8_t qos, flags
    cdef uint16_t id_count
    if match.target_count == 0 or not publish_again(hub, view, &published):
        return 0
    hub.counters.foreign += 1
    start_routing(hub, &r, &published, match.hash, view.expires_at)
    try:
        for i in range(match.target_count):
            target = &match.targets[i]
            s = <Session> target.owner
            qos, id_count, flags = target.qos, target.id_count, 0
            if target.flags:
                # its own message, from before it came here [MQTT-3.8.3-3]
                if (target.flags & TARGET_NO_LOCAL and s.id_size == view.client_id_size
                        and memcmp(s.id_text, view.client_id, s.id_size) == 0):
                    if target.own_qos == QOS_NONE:
                        continue
                    qos, id_count = target.own_qos, target.own_id_count
                # [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9]
                flags = DELIVERY_RETAIN if view.retain and target.flags & TARGET_RETAIN_AS_PUBLISHED else 0
            deliver(hub, s, &r, min(qos, view.qos), flags, target.ids, id_count, NULL)  # [MQTT-3.8.4-8]
    finally:
        end_routing(hub, &r)
    return 0


# ---- share groups ----

# Whether the group gets this record from the log at all: the broker that took it has left it to its readers, or did not
# know of any other broker yet and nobody but us has members.
cdef inline bint is_left_to_us(DispatchDesk desk, const ShareGroup* group, const EnvelopeView* view) noexcept:
    if desk._is_replay:
        return False
    return view.shares_wait or (view.node != desk.hub.node and view.node != 0 and group.turns == 0)


def count_group(Hub hub not None, bytes share_filter not None):
    """(connected, all) members of `$share/<name>/<filter>` here."""
    cdef ShareGroup* group = hub.trie.find_group(share_filter)
    cdef uint32_t i, connected = 0
    if group == NULL:
        return 0, 0
    for i in range(group.count):
        connected += (<Session> group.members[i].owner).connection is not None
    return connected, group.count


def give_turns(Hub hub not None, bytes share_filter not None, uint32_t first, uint32_t count, uint32_t turns):
    """Of so many turns of the group, at all brokers, `count` from `first` on are those of its members here; none at
    all: nobody else has members. Until `forget_turns`, a group with persistent members goes by the numbers before,
    too."""
    cdef ShareGroup* group = hub.trie.find_group(share_filter)
    if group == NULL:
        return
    group.old_turns, group.old_from, group.old_count = group.turns, group.turn_from, group.turn_count
    if group.turns == 0:
        group.old_turns, group.old_from, group.old_count = 1, 0, 1      # all of them were
    group.turns, group.turn_from, group.turn_count = turns, first, count


def forget_turns(Hub hub not None, bytes share_filter not None):
    """Everybody knows the new numbers."""
    cdef ShareGroup* group = hub.trie.find_group(share_filter)
    if group != NULL:
        group.old_turns = 0


# The same in every process.
cdef uint32_t stable_hash(const uint8_t* text, uint32_t size) noexcept:
    cdef uint32_t hash = 2166136261u
    cdef uint32_t i
    for i in range(size):
        hash = (hash ^ text[i]) * 16777619u
    return hash ^ (hash >> 16)


# Every broker calculates it from the record alone and the members all have told each other. While numbers are new,
# a group with persistent members (`is_kept`) goes by the old ones too: rather twice than never.
cdef bint is_our_turn(Hub hub, const ShareGroup* group, const RecordView* record, const EnvelopeView* view,
                      bint is_kept) noexcept:
    cdef uint64_t turn
    cdef uint32_t at
    if group.turns == 0:
        return True
    if hub.limits.strategy == SHARE_HASH_CLIENT:
        turn = stable_hash(view.client_id, view.client_id_size)
    elif hub.limits.strategy == SHARE_HASH_TOPIC:
        turn = stable_hash(view.topic, view.topic_size)
    elif hub.limits.strategy == SHARE_STICKY:
        turn = 0
    else:
        turn = <uint64_t> record.offset
    at = <uint32_t> (turn % group.turns)
    if group.turn_from <= at < group.turn_from + group.turn_count:
        return True
    if group.old_turns == 0 or not is_kept:
        return False
    at = <uint32_t> (turn % group.old_turns)
    return group.old_from <= at < group.old_from + group.old_count


# QoS 0 to one of the members with a log of their own, who are a group for themselves.
cdef int share_directly(Hub hub, ShareGroup* group, const EnvelopeView* view, uint64_t hash) except -1:
    cdef PublishView published
    cdef Routing r
    cdef Member* member = choose_member(hub, group, hash, hash_bytes(view.client_id, view.client_id_size,
                                                                     hub.trie.seed),
                                        view.topic, view.topic_size, 0, True)
    if member == NULL or not publish_again(hub, view, &published):
        return 0
    start_routing(hub, &r, &published, hash, view.expires_at)
    try:
        deliver_to_member(hub, group, member, &r)
    finally:
        end_routing(hub, &r)
    return 0


# ---- retained messages ----

# All brokers agree on the order of the log. A message of our own that was retained when it came and is not read yet
# comes later in it than this one, so it stands.
cdef int take_logged_retained(DispatchDesk desk, const EnvelopeView* view, uint64_t hash, bint is_own) except -1:
    cdef Hub hub = desk.hub
    if desk._is_replay:
        if view.received_at < hub.joined_at - RETAINED_OVERLAP:
            return 0                        # the topic of retained messages had it
    elif is_own:
        counts_take(&hub.own_retained, hash)
        return 0
    elif counts_has(&hub.own_retained, hash):
        return 0
    return put_retained(hub, view)
