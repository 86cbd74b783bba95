"""From the log of all messages to the outlets of persistent clients: each record is matched again, when it is durable,
and handed to every session that takes its messages from there. What another broker took is routed to all others,
too."""

from cython cimport final
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memset

from penstock._ext.hub.connection cimport (SHARE_HASH_CLIENT, SHARE_HASH_TOPIC, SHARE_STICKY, Delivery, Desk, Hub,
                                           Outlet, Routing, Session, choose_member, counts_has, counts_take, deliver,
                                           deliver_to_member, end_routing, find_congested, is_logged_group,
                                           put_retained, start_routing)
from penstock._ext.hub.inflight cimport DELIVERY_RETAIN, Hold
from penstock._ext.hub.message cimport message_unref
from penstock._ext.match.trie cimport (QOS_NONE, TARGET_NO_LOCAL, TARGET_RETAIN_AS_PUBLISHED, Match, Member, ShareGroup,
                                       Target, match_unref)
from penstock._ext.record.envelope cimport EnvelopeView, get_envelope
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.wire.codec cimport PublishView
from penstock._ext.wire.numbers cimport hash_bytes


@final
cdef class Round:
    """What one round of dispatch has sent to devices or given to their store, and is not safe yet."""

    @property
    def pending(self):
        return self.hold.pending

    def settle(self, int64_t count):
        """So many of its messages are stored, or their client is gone."""
        self.hold.pending -= count


@final
cdef class DispatchDesk(Desk):
    """Reads the log of all messages for the persistent clients of this broker, and what other brokers took for all."""

    def dispatch(self, RecordPack pack not None, uint32_t partition, Round dispatched not None, bint is_replay=False,
                 size_t position=0, bint is_adoption=False, int64_t until=-1):
        """Hands the durable records of a partition to the outlets that are to have them; returns how many records could
        not be read. `is_replay`: they may be older than a session. Where `position` is not -1 afterwards, the rest
        waits for a subscriber: go on from there when `is_stalled` is False. `is_adoption`: only for sessions that are
        marked so, and only records before the offset `until`."""
        self._is_replay = is_replay
        self._until = until
        self._is_adoption = is_adoption
        return dispatch_pack(self, pack, partition, &dispatched.hold, position)

    @property
    def is_stalled(self):
        """Whether the subscriber that dispatch() stopped for is still congested, or a long match is not finished."""
        if self.hub.turns.dispatch_waits:
            return True
        if self._stalled_by is not None and not (self._stalled_by.congested and self._stalled_by.connected):
            self._stalled_by = None
        return self._stalled_by is not None


cdef int dispatch_record(DispatchDesk desk, const RecordView* record, const EnvelopeView* view, Match* match,
                         uint32_t partition, Hold* hold) except -1:
    cdef Delivery d
    d.record, d.view, d.kept = record, view, NULL
    d.hold, d.partition, d.round = hold, partition, desk._round
    try:
        if view.qos:
            dispatch_copies(desk, match, &d)
        if match.group_count and not desk._is_adoption:
            dispatch_to_shares(desk, match, &d)
    finally:
        if d.kept != NULL:
            message_unref(d.kept)
    return 0


cdef int dispatch_copies(DispatchDesk desk, Match* match, Delivery* d) except -1:
    cdef const EnvelopeView* view = d.view
    cdef Target* target
    cdef Session s
    cdef uint32_t i
    cdef uint8_t qos
    cdef uint16_t id_count
    cdef bint retain
    d.group = NULL
    for i in range(match.target_count):
        target = &match.targets[i]
        s = <Session> target.owner
        if s.intake is None or (desk._is_replay and view.received_at < s.since):
            continue
        if desk._is_adoption and not s.is_adopted:
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
        if view.qos < qos:
            qos = view.qos              # [MQTT-3.8.4-8] [MQTT3-3.8.4-6]
        if qos == 0:
            continue
        d.qos, d.retain, d.ids, d.id_count = qos, retain, target.ids, id_count
        s.intake.accept(desk.hub, d)
    return 0


# To one member of each share group.
cdef int dispatch_to_shares(DispatchDesk desk, Match* match, Delivery* d) except -1:
    cdef Hub hub = desk.hub
    cdef const EnvelopeView* view = d.view
    cdef ShareGroup* group
    cdef uint32_t i
    cdef bint is_kept
    for i in range(match.group_count):
        group = match.groups[i]
        d.group = group
        is_kept = view.qos and hub.groups_from_log and is_logged_group(group)
        if (is_kept or is_left_to_us(desk, group, view)) and is_our_turn(hub, group, d.record, view, is_kept):
            dispatch_to_group(hub, group, match.hash, d)
            if view.qos == 0 and group.feed != NULL:
                share_directly(hub, group, view, match.hash)
        if group.feed != NULL and view.qos:
            (<Outlet> group.feed).accept(hub, d)
    return 0


cdef int dispatch_to_group(Hub hub, ShareGroup* group, uint64_t hash, Delivery* d) except -1:
    cdef const EnvelopeView* view = d.view
    cdef uint64_t client_hash = hash_bytes(view.client_id, view.client_id_size, hub.trie.seed)
    cdef Member* member = choose_member(hub, group, hash, client_hash, view.topic, view.topic_size, view.qos, False)
    cdef Session s
    cdef Routing r
    cdef PublishView published
    if member == NULL:
        return 0
    s = <Session> member.owner
    d.qos = min(view.qos, member.qos)
    if s.intake is not None and not s.intake.is_apart and d.qos:
        d.retain = view.retain and member.flags & TARGET_RETAIN_AS_PUBLISHED
        d.ids, d.id_count = &member.identifier, 1 if member.identifier else 0
        return s.intake.accept(hub, d)
    if not publish_again(hub, view, &published):
        return 0
    start_routing(hub, &r, &published, hash, view.expires_at)
    try:
        deliver_to_member(hub, group, member, &r)
    finally:
        end_routing(hub, &r)
    return 0


# Every record of the pack that is for persistent clients, and everything that another broker took. Stops before a
# record whose subscriber cannot take more now, or whose match takes long: desk.position is where to go on, -1 at the
# end.
cdef uint32_t dispatch_pack(DispatchDesk desk, RecordPack pack, uint32_t partition, Hold* hold,
                            size_t position) except? 0xFFFFFFFF:
    cdef Hub hub = desk.hub
    cdef size_t here
    cdef uint64_t hash
    cdef bint is_own
    cdef RecordView record
    cdef EnvelopeView view
    cdef Match* match
    cdef uint32_t damaged = 0
    # adoption has few sessions, and its reader does not wait
    cdef uint64_t limit = UINT64_MAX if desk._is_adoption else hub.turns.budget
    cdef uint64_t begun = hub.trie.steps
    desk._round += 1
    hub.update_clock()
    desk.position = -1
    while True:
        here = position
        if hub.trie.steps - begun > limit:
            desk.position = <int64_t> here      # other clients get their turn
            return damaged
        if not pack.next(&position, &record) or record.offset == desk._until:
            return damaged
        if record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &view, &hub.record_props):
            damaged += 1
            continue
        is_own = view.node == hub.node or view.node == 0
        if view.qos == 0 and is_own and not view.shares_wait and not (view.retain and hub.node):
            continue
        hash = hash_bytes(view.topic, view.topic_size, hub.trie.seed)
        match = hub.trie.match_within(view.topic, view.topic_size, hash, limit)
        if match == NULL:
            if hub.turns.dispatch_must_wait(view.topic, view.topic_size):
                desk.position = <int64_t> here
                return damaged
            match = hub.trie.match(view.topic, view.topic_size, hash)
        hub.turns.dispatch_tries = 0
        try:
            if not is_own and hub.congested_count and not desk._is_adoption:
                desk._stalled_by = find_congested(match, None)
                if desk._stalled_by is not None:
                    desk.position = <int64_t> here
                    return damaged
            if hub.node and view.retain and not desk._is_adoption:
                take_logged_retained(desk, &view, hash, is_own)
            if match.target_count or match.group_count:
                dispatch_record(desk, &record, &view, match, partition, hold)
                if not is_own and not desk._is_replay:
                    route_foreign(hub, &view, match)
        finally:
            match_unref(match)


include "cluster.pxi"
