"""Persistent DEVICE clients: messages with QoS > 0 come from the log. A connected client gets them at once, and they
are stored only if it does not acknowledge them soon; everything else is stored first and sent from the store. The
log is committed after a round of dispatch when everything of the round is acknowledged or stored."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cython cimport final
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from penstock._ext.hub.connection cimport (CONNECTED, DROP_DENIED, DROP_EXPIRED, DROP_STORED_RATE, DROP_TOO_LARGE,
                                           Connection, Copy, Delivery, Desk, Hub, Outlet, Session, add_outlet,
                                           count_drop, count_sent, end_turn, is_logged_group, make_extras, may_pass,
                                           release_slot, send_ack, send_copy)
from penstock._ext.hub.inflight cimport (AWAIT_PUBACK, AWAIT_PUBCOMP, AWAIT_PUBREC, DELIVERY_RETAIN, DELIVERY_SHARED,
                                         SLOT_COUNTED, SLOT_RELEASING, Extras, Slot, window_add, window_find,
                                         window_order, window_put, window_release)
from penstock._ext.hub.message cimport (Message, message_new, message_payload, message_props, message_ref,
                                        message_topic)
from penstock._ext.match.acl cimport ACL_RECEIVE
from penstock._ext.match.trie cimport ShareGroup
from penstock._ext.record.envelope cimport (MOST_IDS, EnvelopeView, delivery_size, envelope_size, get_envelope,
                                            put_delivery, put_envelope, read_ids)
from penstock._ext.record.segment cimport RecordPack
from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport PUBLISH, PUBREL, SUCCESS
from penstock._ext.wire.numbers cimport hash_bytes

cdef enum:
    SOURCE_SIZE = 26            # subscribers/device/store/base.py, SOURCE: partition, via, offset, expiry, packet id


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


@final
cdef class DeviceDesk(Desk):
    """The outlets of all persistent DEVICE clients."""

    def __init__(self, Hub hub not None, on_devices not None, on_detach not None, *, double persist_after=0.1):
        """`on_devices([outlet, ...])` is called, once per iteration, with outlets whose stored messages were
        acknowledged or whose client can take more; `on_detach(session)` when a client has gone, with what was not safe
        in its stash."""
        Desk.__init__(self, hub)
        self._stashed = []
        self._group_stash = {}
        self._unsaved = []
        self._news = []
        self._on_devices = on_devices
        self._on_detach = on_detach
        self.persist_after = <int64_t> (persist_after * 1000)
        hub.groups_from_log = True

    def of(self, Session session not None):
        """The outlet of the session, which is made at the first call. That of a session that has ended does nothing:
        what was under way to the store may be done only now."""
        for outlet in session.outlets or ():
            if (<Outlet> outlet).desk is self:
                return outlet
        return DeviceOutlet(self, session)

    def is_in(self, bytes share_filter not None):
        """Whether a persistent DEVICE is a member of the group `$share/<name>/<filter>`."""
        cdef ShareGroup* group = self.hub.trie.find_group(share_filter)
        return group != NULL and is_logged_group(group)

    def sweep(self, *, bint waits=True):
        """Messages that clients have not acknowledged for a while go to the store: see take_stashed. All of them, if it
        does not wait."""
        cdef list unsaved = self._unsaved
        cdef DeviceOutlet outlet
        cdef uint32_t age = <uint32_t> self.persist_after if waits else 0
        self._unsaved = []
        self.hub.update_clock()
        for item in unsaved:
            outlet = <DeviceOutlet> item
            outlet.is_unsaved = not outlet.session._ended and stash_window(outlet, age)
            if outlet.is_unsaved:
                self._unsaved.append(outlet)

    def take_stashed(self):
        """Records for the store: [(session, pack, packet ids in flight, how many at the front were sent already)], one
        each; and {$share/name/filter: pack}."""
        cdef list stashed = self._stashed, taken = []
        cdef dict groups = self._group_stash
        cdef DeviceOutlet outlet
        self._stashed = []
        if groups:
            self._group_stash = {}
        for item in stashed:
            outlet = <DeviceOutlet> item
            taken.append((outlet.session, outlet.stash, outlet.session.ids_in_flight(), outlet.stash_sent))
            outlet.stash = None
            outlet.stash_sent = 0
        return taken, groups

    cdef int tell(self) except -1:
        cdef list news = self._news
        self.is_waiting = False
        self._news = []
        for outlet in news:
            (<DeviceOutlet> outlet).has_news = False
        self._on_devices(news)
        return 0

    # A record for a group of which everybody is away: it waits for the first that returns.
    cdef int stash_for_group(self, const Delivery* d) except -1:
        cdef Hub hub = self.hub
        cdef uint8_t source[SOURCE_SIZE]
        cdef RecordPack pack
        if not may_pass(&hub.rates.stored, hub.rates.stored_turns, hub.now):
            hub.counters.dropped[<int> DROP_STORED_RATE] += 1
            return 0
        name = hub.trie.group_path(d.group)
        pack = self._group_stash.get(name)
        if pack is None:
            pack = self._group_stash[name] = RecordPack()
        put_source(source, d.partition, via_of(hub, d.group), d.record.offset, d.view.expires_at, 0)
        # Who returns first gets it as its own subscription says.
        pack.put(d.record.timestamp, source, SOURCE_SIZE, d.record.value, d.record.value_size, NULL, 0)
        d.hold.pending += 1
        return 0


@final
cdef class DeviceOutlet(Outlet):
    """Messages of one persistent DEVICE client: live, or through its store."""

    def __init__(self, DeviceDesk desk not None, Session session not None):
        self.desk = desk
        self.session = session
        self.from_log = True
        add_outlet(session, self)

    def __dealloc__(self):
        buffer_free(&self.settled)
        buffer_free(&self.released)

    @property
    def is_open(self):
        """Whether the messages of the session with QoS > 0 come from the log through this outlet."""
        return self.session.intake is self

    def open(self):
        """From now on they do."""
        if not self.session._ended:
            self.session.intake = self

    def close(self):
        """From now on only what is stored comes this way."""
        if self.session.intake is self:
            self.session.intake = None
        self.live = False

    def stored_ids(self):
        """Packet ids in flight of messages that are stored, or about to be, as array("H") has them."""
        return self.session.ids_in_flight(SLOT_STORED | SLOT_STORING)

    def stored(self, list packet_ids not None):
        """Messages that were sent under these ids are in the store now."""
        cdef Slot* slot
        for packet_id in packet_ids:
            slot = window_find(&self.session.window, packet_id)
            if slot == NULL or not slot.flags & SLOT_STORING:
                continue
            slot.flags = (slot.flags & ~SLOT_STORING) | SLOT_STORED
            if slot.hold != NULL:
                slot.hold.pending -= 1
                slot.hold = NULL

    def send_stored(self, list packet_ids not None, list values not None, uint32_t start, int64_t dup_before=0):
        """Sends stored messages from `start` on, as far as the client takes them; where it stopped. Those received
        until `dup_before` (ms since the epoch) may have been sent by an earlier process."""
        cdef Session s = self.session
        cdef Connection c = s.connection
        cdef uint32_t i, n = <uint32_t> len(packet_ids)
        if c is None or c.state != CONNECTED:
            return start
        s.hub.update_clock()
        self.wants_more = s.wants_room = False
        for i in range(start, n):
            if not send_stored_one(self, c, packet_ids[i], values[i], dup_before):
                self.wants_more = s.wants_room = True
                return i
        return n

    def take_settled(self):
        """(packet ids acknowledged, packet ids of QoS 2 messages whose PUBREC came), as bytes of array("H")."""
        settled = PyBytes_FromStringAndSize(<const char*> self.settled.data, buffer_size(&self.settled)) \
            if self.settled.data != NULL else b""
        released = PyBytes_FromStringAndSize(<const char*> self.released.data, buffer_size(&self.released)) \
            if self.released.data != NULL else b""
        buffer_free(&self.settled)
        buffer_free(&self.released)
        return settled, released

    def send_pubrels(self, packet_ids):
        """It is durable that PUBREC came for these."""
        cdef Connection c = self.session.connection
        cdef Slot* slot
        for packet_id in packet_ids:
            slot = window_find(&self.session.window, packet_id)
            if slot == NULL or slot.state != AWAIT_PUBCOMP:
                continue
            slot.flags &= ~SLOT_RELEASING
            if c is not None and c.state == CONNECTED:
                send_ack(c, PUBREL, packet_id, SUCCESS)     # [MQTT-4.3.3-4] [MQTT3-4.3.3-1]

    # ---- as an outlet ----

    cdef int accept(self, Hub hub, Delivery* d) except -1:
        cdef Session s = self.session
        cdef Connection c = s.connection
        if d.group != NULL and c is None:
            return (<DeviceDesk> self.desk).stash_for_group(d)
        if d.view.expires_at and d.view.expires_at <= hub.wall:
            count_drop(s, DROP_EXPIRED)     # [MQTT-3.3.2-5]
            return 0
        # Exactly once needs the store: what was sent must be known after a crash.
        if (not self.live or d.qos == 2 or (<DeviceDesk> self.desk).persist_after == 0 or c is None
                or c.state != CONNECTED or not c.writable or s.queue.count or s.resend_count or s.is_full()):
            return stash_record(self, d)
        return send_live(self, s, c, d)

    cdef bint pump(self, Session s, Connection c) except -1:
        if self.wants_more and c.writable and not self.has_news and s.log_round != s.round:
            self.call()
        return False

    cdef bint on_received(self, Session s, Slot* slot) except -1:
        if not slot.flags & SLOT_STORED:
            return False
        self.settle(slot.packet_id, True)
        return True

    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1:
        if slot.flags & (SLOT_STORED | SLOT_STORING):
            self.settle(slot.packet_id, False)      # behind the call that stores it
        return 0

    cdef int on_dropped(self, Session s, const Slot* slot) except -1:
        if slot.flags & SLOT_STORED:
            self.settle(slot.packet_id, False)
        return 0

    # What is under way now, comes from the store when the client is back.
    cdef int on_detach(self, Session s) except -1:
        if s.intake is self:
            self.live = False
            stash_window(self, 0)
            (<DeviceDesk> self.desk)._on_detach(s)
        return 0

    # ---- to the store ----

    cdef RecordPack open_stash(self):
        if self.stash is None:
            self.stash = RecordPack()
            (<DeviceDesk> self.desk)._stashed.append(self)
        return self.stash

    # An id the store may forget: it was acknowledged; or, if `is_release`, PUBREC came.
    cdef int settle(self, uint16_t packet_id, bint is_release) except -1:
        cdef Buffer* ids = &self.released if is_release else &self.settled
        cdef uint8_t* p = buffer_reserve(ids, 2)
        memcpy(p, &packet_id, 2)
        if not self.has_news:
            self.call()
        return 0

    # Python is told, once per iteration, that there is something to do for the client.
    cdef int call(self) except -1:
        self.has_news = True
        (<DeviceDesk> self.desk)._news.append(self)
        return self.desk.wake()


# A copy of the record for the store of an absent or busy client; it gets its packet id there.
cdef int stash_record(DeviceOutlet outlet, const Delivery* d) except -1:
    cdef Session s = outlet.session
    cdef Hub hub = s.hub
    cdef uint8_t source[SOURCE_SIZE]
    if not may_pass(&hub.rates.stored, hub.rates.stored_turns, hub.now):
        count_drop(s, DROP_STORED_RATE)
        return 0
    if outlet.is_unsaved and outlet.stash is None:
        stash_window(outlet, 0)         # what was sent before it is stored before it
    put_source(source, d.partition, via_of(hub, d.group), d.record.offset, d.view.expires_at, 0)
    put_stashed(outlet.open_stash(), d.record.timestamp, source, d.record.value, d.record.value_size, d)
    outlet.live = False
    d.hold.pending += 1
    return 0


cdef int put_stashed(RecordPack pack, int64_t timestamp, const uint8_t* source, const uint8_t* value,
                     uint32_t value_size, const Delivery* d) except -1:
    cdef uint32_t extra = delivery_size(d.qos, d.retain, d.ids, d.id_count, 0, -1)
    cdef uint8_t* p = pack.reserve(timestamp, source, SOURCE_SIZE, value_size + extra)
    memcpy(p, value, value_size)
    put_delivery(p + value_size, d.qos, d.retain, d.ids, d.id_count, 0, -1)
    return 0


cdef int send_live(DeviceOutlet outlet, Session s, Connection c, Delivery* d) except -1:
    cdef Hub hub = s.hub
    cdef const EnvelopeView* view = d.view
    cdef Copy copy
    cdef Slot* slot
    cdef Extras* extras = NULL
    cdef uint64_t hash = 0
    if d.kept == NULL:
        d.kept = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload,
                             view.payload_size, view.qos, view.retain, view.received_at, view.expires_at)
        d.kept.source_partition = d.partition
        d.kept.source_offset = d.record.offset
    fill_from_envelope(&copy, c, view, d)
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, hub.trie.seed)
    extras = make_extras(d.ids, d.id_count, d.group)
    if d.group != NULL:
        extras.group_via = via_of(hub, d.group)
    slot = window_add(&s.window)        # [MQTT-4.3.2-1] [MQTT3-4.3.2-1]
    slot.message = message_ref(d.kept)      # as a direct message, until it goes to the store
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
    if not outlet.is_unsaved:
        note_unsaved(outlet)
    if buffer_size(&c.out) >= hub.limits.flush_size:
        c.watch_output()
    return 0


cdef int note_unsaved(DeviceOutlet outlet) except -1:
    outlet.is_unsaved = True
    (<DeviceDesk> outlet.desk)._unsaved.append(outlet)
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
        if (session.acl is None or get_envelope(value, <uint32_t> len(value), &view, &hub.record_props)
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
        if (s.intake is not None and not s.intake.is_apart and group.members[i].qos
                and (s.acl is None or s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE))):
            return True
    return False


# ---- from the windows to the store ----

# A message that was sent and is not acknowledged, as a record under its own packet id.
cdef int stash_slot(DeviceOutlet outlet, Slot* slot) except -1:
    cdef Message* m = slot.message
    cdef RecordPack pack = outlet.open_stash()
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
    p = pack.reserve(outlet.session.hub.wall, source, SOURCE_SIZE, size + extra)
    put_delivery(put_envelope(p, &view), d.qos, d.retain, d.ids, d.id_count, 0, -1)
    slot.outlet = outlet.place
    slot.flags |= SLOT_STORING
    outlet.stash_sent += 1
    return 0


# What of the session's window is not safe and old enough; True if some of it stays.
cdef bint stash_window(DeviceOutlet outlet, uint32_t age) except -1:
    cdef Session s = outlet.session
    cdef uint16_t* order = window_order(&s.window)      # they are stored in the order they were sent
    cdef uint32_t i, n = s.window.count
    cdef Slot* slot
    cdef bint stays = False
    try:
        for i in range(n):
            slot = window_find(&s.window, order[i])
            if slot.hold == NULL or slot.flags & SLOT_STORING:
                continue
            if <uint32_t> s.hub.now - slot.sent_at >= age:
                stash_slot(outlet, slot)
            else:
                stays = True
    finally:
        free(order)
    return stays


# ---- from the store to the client ----

# One stored message or PUBREL. 1 = sent or not needed, 0 = not now.
cdef int send_stored_one(DeviceOutlet outlet, Connection c, uint16_t packet_id, bytes value,
                         int64_t dup_before) except -1:
    cdef Session s = outlet.session
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
        slot.outlet = outlet.place
        slot.flags = SLOT_STORED
        slot.state = AWAIT_PUBCOMP
        hub.counters.inflight += 1
        send_ack(c, PUBREL, packet_id, SUCCESS)         # [MQTT-4.4.0-1] [MQTT3-4.4.0-1]
        return 1
    if s.outstanding >= s.limit or not c.writable or s.log_round == s.round:
        return 0                        # [MQTT-3.3.4-9]
    if get_envelope(value, <uint32_t> len(value), &view, &hub.record_props):
        return outlet.settle(packet_id, False) + 1
    dup = view.received_at <= dup_before     # in ms: a client may get a message and leave within one
    if not dup and view.expires_at and view.expires_at <= hub.wall:
        count_drop(s, DROP_EXPIRED)     # [MQTT-3.3.2-5]
        return outlet.settle(packet_id, False) + 1
    # What was a group's says what its member subscribed with.
    d.qos = min(view.qos, view.delivery_qos)
    if s.acl is not None and not s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE):
        count_drop(s, DROP_DENIED)      # the client has lost the right since it was stored
        return give_up_stored(outlet, c, packet_id, dup and d.qos == 2)
    d.retain = view.retain and view.delivery_retain
    d.ids, d.id_count = ids, read_ids(view.ids, view.ids_size, ids)
    fill_from_envelope(&copy, c, &view, &d)
    if dup:
        copy.first |= 8                 # [MQTT-3.3.1-1] [MQTT3-3.3.1-1]
    if c.aliases_out_max:
        hash = hash_bytes(copy.topic, copy.topic_size, hub.trie.seed)
    slot = window_put(&s.window, packet_id)
    s.window.last_id = packet_id        # messages that are sent directly go on from the counter of the store
    slot.outlet = outlet.place
    slot.flags = SLOT_STORED | (DELIVERY_RETAIN if d.retain else 0)
    slot.state = AWAIT_PUBACK if d.qos == 1 else AWAIT_PUBREC
    # It is sent again from here should the client come back: an expiry is not looked at any more [MQTT-4.3.3-7].
    slot.message = message_new(view.topic, view.topic_size, view.props, view.props_size, view.payload,
                               view.payload_size, view.qos, view.retain, view.received_at, view.expires_at)
    slot.extras = make_extras(d.ids, d.id_count, NULL)
    if not send_copy(c, s, &copy, hash, packet_id, NULL, NULL, 0):
        count_drop(s, DROP_TOO_LARGE)   # as if it had been sent [MQTT-3.1.2-24] [MQTT-3.1.2-25]
        drop_slot(s, slot)
        return give_up_stored(outlet, c, packet_id, dup and d.qos == 2)
    s.delivered += 1
    count_sent(hub, d.qos, copy.payload_size)
    slot.flags |= SLOT_COUNTED
    s.outstanding += 1
    end_turn(s, &s.log_round)
    hub.counters.inflight += 1
    if buffer_size(&c.out) >= hub.limits.flush_size:
        c.watch_output()
    return 1


# A stored message that is not sent. If an earlier process may have sent it with QoS 2, the handshake is finished: see
# give_up_slot.
cdef int give_up_stored(DeviceOutlet outlet, Connection c, uint16_t packet_id, bint is_held) except -1:
    cdef Session s = outlet.session
    cdef Slot* slot
    if not is_held:
        outlet.settle(packet_id, False)
        return 1
    slot = window_put(&s.window, packet_id)
    slot.outlet = outlet.place
    slot.flags = SLOT_STORED
    s.hub.counters.inflight += 1
    release_slot(s, c, slot)
    return 1
