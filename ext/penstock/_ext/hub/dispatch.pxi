# From the log of all messages to the logs of APPLICATION clients: each record is matched again, when it is durable, and
# written behind to every client's log that is to have it.


@final
cdef class Feed:
    """A topic of the log that is filled with the messages of one client, or of one filter that clients share."""

    def __init__(self, str topic not None, uint32_t partitions=1):
        self.topic = topic
        self.partitions = partitions
        self._packs = <void**> calloc(partitions, sizeof(void*))
        if self._packs == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint32_t i
        if self._packs != NULL:
            for i in range(self.partitions):
                if self._packs[i] != NULL:
                    Py_DECREF(<object> self._packs[i])
        free(self._packs)

    # The pack of the partition that is being filled.
    cdef RecordPack open(self, Hub hub, uint32_t partition):
        cdef RecordPack pack
        if self._packs[partition] == NULL:
            pack = RecordPack()
            Py_INCREF(pack)
            self._packs[partition] = <void*> pack
            if not self._is_open:
                self._is_open = True
                hub._open_feeds.append(self)
        return <RecordPack> self._packs[partition]


# The packs filled since the last time: [(feed, partition, pack)].
cdef list take_filled(Hub hub):
    cdef list filled = []
    cdef Feed feed
    cdef uint32_t i
    for item in hub._open_feeds:
        feed = <Feed> item
        feed._is_open = False
        for i in range(feed.partitions):
            if feed._packs[i] != NULL:
                pack = <object> feed._packs[i]
                Py_DECREF(pack)
                feed._packs[i] = NULL
                filled.append((feed, i, pack))
    hub._open_feeds = []
    return filled


# A copy of the record, with what the subscriber is to get written behind it.
cdef int feed_record(Hub hub, Feed feed, uint32_t feed_partition, const RecordView* record, uint8_t qos, bint retain,
                     const uint32_t* ids, uint16_t id_count, uint32_t partition) except -1:
    cdef RecordPack pack = feed.open(hub, feed_partition)
    cdef uint32_t extra = delivery_size(qos, retain, ids, id_count, partition, record.offset)
    cdef uint8_t* p = pack.reserve(record.timestamp, record.key, record.key_size, record.value_size + extra)
    memcpy(p, record.value, record.value_size)
    put_delivery(p + record.value_size, qos, retain, ids, id_count, partition, record.offset)
    hub.counters.dispatched += 1
    return 0


cdef int dispatch_record(Hub hub, const RecordView* record, const EnvelopeView* view, Match* match,
                         uint32_t partition, Hold* hold) except -1:
    cdef Message* kept = NULL
    try:
        if view.qos:
            dispatch_copies(hub, record, view, match, partition, hold, &kept)
        if not hub._is_adoption:
            dispatch_to_shares(hub, record, view, match, partition, hold, &kept)
    finally:
        if kept != NULL:
            message_unref(kept)
    return 0


cdef int dispatch_copies(Hub hub, const RecordView* record, const EnvelopeView* view, Match* match,
                         uint32_t partition, Hold* hold, Message** kept) except -1:
    cdef Delivery d
    cdef Target* target
    cdef Session s
    cdef uint32_t i
    cdef uint8_t qos
    cdef uint16_t id_count
    cdef bint retain
    for i in range(match.target_count):
        target = &match.targets[i]
        s = <Session> target.owner
        if (s.feed is None and not s.via_log) or (hub._is_replay and view.received_at < s.since):
            continue
        if hub._is_adoption and not s.is_adopted:
            continue
        qos, id_count, retain = target.qos, target.id_count, False
        if target.flags:
            if (target.flags & TARGET_NO_LOCAL and s.id_size == view.client_id_size
                    and memcmp(s.id_text, view.client_id, s.id_size) == 0):
                if target.own_qos == QOS_NONE:
                    continue            # its own message [MQTT-3.8.3-3]
                qos, id_count = target.own_qos, target.own_id_count
            # [MQTT-3.3.1-12] [MQTT-3.3.1-13] [MQTT3-3.3.1-9]
            retain = view.retain and target.flags & TARGET_RETAIN_AS_PUBLISHED
        qos = min(qos, view.qos)        # [MQTT-3.8.4-8] [MQTT3-3.8.4-6]
        if qos == 0:
            continue
        if s.feed is not None:
            feed_record(hub, s.feed, 0, record, qos, retain, target.ids, id_count, partition)
        else:
            d.hold, d.group, d.partition = hold, NULL, partition
            d.qos, d.retain, d.ids, d.id_count = qos, retain, target.ids, id_count
            dispatch_to_device(hub, s, record, view, &d, kept)
    return 0


# To one member of each share group.
cdef int dispatch_to_shares(Hub hub, const RecordView* record, const EnvelopeView* view, Match* match,
                            uint32_t partition, Hold* hold, Message** kept) except -1:
    cdef Delivery d
    cdef ShareGroup* group
    cdef Feed feed
    cdef uint32_t i
    cdef bint is_kept
    for i in range(match.group_count):
        group = match.groups[i]
        is_kept = view.qos and hub._on_devices is not None and is_logged_group(group)
        if (is_kept or is_left_to_us(hub, group, view)) and is_our_turn(hub, group, record, view, is_kept):
            d.hold, d.partition = hold, partition
            dispatch_to_group(hub, group, record, view, match.hash, &d, kept)
            if view.qos == 0 and group.feed != NULL:
                share_directly(hub, group, view, match.hash)
        if group.feed == NULL or view.qos == 0:
            continue
        feed = <Feed> group.feed
        # several share names on one filter read the same topic
        if feed._last_offset == record.offset and feed._last_partition == partition and feed._round == hub._round:
            continue
        feed._last_offset, feed._last_partition, feed._round = record.offset, partition, hub._round
        # in turn, so that messages of one topic are shared out too; the same one when it comes again
        feed_record(hub, feed, <uint32_t> (<uint64_t> record.offset % feed.partitions), record, NO_DELIVERY_QOS, False,
                    NULL, 0, partition)
    return 0


# Every record of the pack that is for persistent clients, and everything that another broker took. Stops before a
# record whose subscriber cannot take more now, or whose match takes long: hub.dispatch_position is where to go on, -1
# at the end.
cdef uint32_t dispatch_pack(Hub hub, RecordPack pack, uint32_t partition, Hold* hold,
                            size_t position) except? 0xFFFFFFFF:
    cdef size_t here
    cdef uint64_t hash
    cdef bint is_own
    cdef RecordView record
    cdef EnvelopeView view
    cdef Match* match
    cdef uint32_t damaged = 0
    # adoption has few sessions, and its reader does not wait
    cdef uint64_t limit = UINT64_MAX if hub._is_adoption else hub.turns.budget
    cdef uint64_t begun = hub.trie.steps
    hub._round += 1
    hub.update_clock()
    hub.dispatch_position = -1
    while True:
        here = position
        if hub.trie.steps - begun > limit:
            hub.dispatch_position = <int64_t> here      # other clients get their turn
            return damaged
        if not pack.next(&position, &record) or record.offset == hub._dispatch_until:
            return damaged
        if record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &view, &hub._lane_props):
            damaged += 1
            continue
        is_own = view.node == hub.node or view.node == 0
        if view.qos == 0 and is_own and not view.shares_wait and not (view.retain and hub.node):
            continue
        hash = hash_bytes(view.topic, view.topic_size, hub.trie.seed)
        match = hub.trie.match_within(view.topic, view.topic_size, hash, limit)
        if match == NULL:
            if hub.turns.dispatch_must_wait(view.topic, view.topic_size):
                hub.dispatch_position = <int64_t> here
                return damaged
            match = hub.trie.match(view.topic, view.topic_size, hash)
        hub.turns.dispatch_tries = 0
        try:
            if not is_own and hub.congested_count and not hub._is_adoption:
                hub._stalled_by = find_congested(match, None)
                if hub._stalled_by is not None:
                    hub.dispatch_position = <int64_t> here
                    return damaged
            if hub.node and view.retain and not hub._is_adoption:
                take_logged_retained(hub, &view, hash, is_own)
            if match.target_count or match.group_count:
                dispatch_record(hub, &record, &view, match, partition, hold)
                if not is_own and not hub._is_replay:
                    route_foreign(hub, &view, match)
        finally:
            match_unref(match)


def refill(Hub hub not None, RecordPack pack not None, uint32_t partition, list feeds not None, int64_t until):
    """What shared topics are to have of the durable records before the offset `until`: `feeds` are [(filter, feed)].
    The packs are for the caller: [(feed, partition, pack)]."""
    cdef size_t position = 0
    cdef RecordView record
    cdef EnvelopeView view
    cdef Feed feed
    cdef bytes plain
    while pack.next(&position, &record) and record.offset < until:
        if (record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &view, &hub._lane_props)
                or view.qos == 0):
            continue
        for plain, feed in feeds:
            if filter_matches(<const uint8_t*> PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain), view.topic,
                              view.topic_size):
                feed_record(hub, feed, <uint32_t> (<uint64_t> record.offset % feed.partitions), &record,
                            NO_DELIVERY_QOS, False, NULL, 0, partition)
    return take_filled(hub)


# A retained message for a new subscription of an APPLICATION client, through its log like everything else with QoS > 0.
cdef int feed_retained(Hub hub, Feed feed, const Message* m, uint8_t qos, uint32_t identifier) except -1:
    cdef EnvelopeView view
    cdef RecordPack pack = feed.open(hub, 0)
    cdef uint32_t size, extra
    cdef uint8_t* p
    memset(&view, 0, sizeof(EnvelopeView))
    view.topic, view.topic_size = message_topic(m), m.topic_size
    view.payload, view.payload_size = message_payload(m), m.payload_size
    view.props, view.props_size = message_props(m), m.props_size
    view.received_at, view.expires_at = m.received_at, m.expires_at
    view.qos, view.retain = m.qos, 1
    size = envelope_size(&view)
    # RETAIN is set: it was stored before the subscription [MQTT-3.3.1-8] [MQTT3-3.3.1-8]
    extra = delivery_size(qos, True, &identifier, 1 if identifier else 0, 0, -1)
    p = pack.reserve(hub.wall, view.topic, view.topic_size, size + extra)
    put_delivery(put_envelope(p, &view), qos, True, &identifier, 1 if identifier else 0, 0, -1)
    return 0
