"""A client's log, or its part of a shared one, on its way to the client: packs are planned (each record gets its packet
id), their context is made durable by the caller, then they are sent, acknowledged and committed from the lowest offset
on. What is sent before is known after a crash, so that it can be sent again under the same packet ids."""

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.list cimport PyList_GET_ITEM
from cpython.ref cimport Py_DECREF, Py_INCREF
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from penstock._ext.application.context cimport (CONTEXT_VERSION, MOST_PARTITIONS, RUN_READY, RUN_READY_2, RUN_SENT_2,
                                                Run, put_number, run_add, run_end)
from penstock._ext.application.pack cimport (ENTRY_DONE, ENTRY_DUP, ENTRY_NEW, ENTRY_PLANNED, ENTRY_RECEIVED,
                                             ENTRY_RELEASED, ENTRY_SENT, ENTRY_UNSURE, Entry, PackTracker)
from penstock._ext.hub.connection cimport (CONNECTED, DROP_DENIED, DROP_EXPIRED, DROP_TOO_LARGE, MOST_PLANNED,
                                           PLANNED_AHEAD, Connection, Copy, Desk, Hub, Outlet, Session, add_outlet,
                                           count_drop, count_sent, drop_unused, find_part, free_place, has_place,
                                           remove_outlet, send_ack, send_copy, take_place)
from penstock._ext.hub.inflight cimport (AWAIT_PUBCOMP, SLOT_BORROWED, SLOT_COUNTED, SLOT_RELEASING, SLOT_RESERVED,
                                         Extras, Slot, WindowPart, window_add, window_find, window_put, window_release)
from penstock._ext.hub.message cimport Message
from penstock._ext.match.acl cimport ACL_RECEIVE
from penstock._ext.record.envelope cimport MOST_IDS, NO_DELIVERY_QOS, EnvelopeView, get_envelope, read_ids
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport (PACKET_IDENTIFIER_NOT_FOUND, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUCCESS,
                                       AckView)
from penstock._ext.wire.numbers cimport hash_bytes

from penstock._ext.application.context import RUN_STATES, read_context

cdef enum:
    MOST_HELD = 30_000          # from so many on, no more are held for messages that were given up
    PACK_BYTES = 1_048_576      # of each pack in flight and of one behind it: large messages are planned less far ahead


@final
cdef class ApplicationDesk(Desk):
    """The lanes of all APPLICATION clients."""

    def __init__(self, Hub hub not None, on_lanes not None, on_detach not None, *, uint32_t packs_in_flight=4,
                 uint32_t flush_after=10):
        """`on_lanes([lane, ...])` is called, once per iteration, with the lanes that can take more or have PUBRELs
        waiting for a context; `on_detach(session)` when the connection of a session with lanes goes."""
        Desk.__init__(self, hub)
        self._on_lanes = on_lanes
        self._on_detach = on_detach
        self._news = []
        self._dirty = []
        self.packs_in_flight = max(packs_in_flight, 1)
        self.flush_after = max(flush_after, 1)

    def open(self, Lane lane not None):
        """From now on the lane's packs are sent, in turn with those of the session's other lanes."""
        cdef Session s = lane.session
        cdef Slot* slot
        cdef uint32_t i
        if lane.is_closed or lane.desk is not None:
            raise ValueError("the lane is open or closed")
        lane.desk = self
        lane.part = find_part(s, lane.part_name)
        lane.part.lanes += 1
        lane.part.open += lane.in_flight
        add_outlet(s, lane)
        for i in range(lane.kept_at, lane.kept_count):
            slot = window_find(&s.window, lane.kept[i].packet_id)
            if slot != NULL:
                slot.outlet = lane.place
        for i in range(lane.tracker_count):
            claim_slots(lane, <PackTracker> lane.trackers[i])
        if lane.is_dirty:
            lane.change()

    def lanes_of(self, Session session not None):
        """The open lanes of a session."""
        return self.outlets_of(session)

    def take_dirty(self):
        """Lanes whose context has changed since their last snapshot; the caller takes one of each."""
        cdef list lanes = self._dirty
        self._dirty = []
        for lane in lanes:
            (<Lane> lane).is_listed = False
        return [lane for lane in lanes if (<Lane> lane).is_dirty and not (<Lane> lane).is_closed]

    cdef int tell(self) except -1:
        cdef list news = self._news
        self.is_waiting = False
        self._news = []
        for lane in news:
            (<Lane> lane).has_news = False
        self._on_lanes(news)
        return 0

    cdef int on_detach(self, Session session) except -1:
        self._on_detach(session)
        return 0


# Packet ids that were given to records before the lane was opened.
cdef void claim_slots(Lane lane, PackTracker tracker) noexcept:
    cdef Slot* slot
    cdef uint32_t i
    for i in range(tracker.first_open, tracker.count):
        slot = window_find(&lane.session.window, tracker.entries[i].packet_id)
        if slot != NULL:
            slot.outlet = lane.place


@final
cdef class Lane(Outlet):
    """One partition of the log on its way to one connected client."""

    def __init__(self, Session session not None, str topic not None, uint32_t partition=0, *, uint8_t qos=2,
                 uint32_t identifier=0, bint keeps_retain=False, bint is_shared=False, uint32_t pack_size=200,
                 str part not None=""):
        self.session = session
        self.from_log = True
        self.topic = topic
        self.partition = partition
        self.qos_limit = qos
        self.identifier = identifier
        self.keeps_retain = keeps_retain
        self.is_shared = is_shared
        self.until = -1
        self.pack_size = pack_size
        self.part_name = part

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self.tracker_count):
            Py_DECREF(<object> self.trackers[i])
        free(self.trackers)
        free(self.kept)
        free(self.seen)
        free(self.releases)

    # ---- the context ----

    def restore(self, bytes context not None):
        """Starts where the context of an earlier connection ended. Its packet ids are in flight from here on."""
        found = read_context(context)       # all of it is read before anything changes
        self.committed = self.position = found["committed"]
        self.kept_end = found["end"]
        self.session.continue_after(found["last_packet_id"], found["laps"])
        for partition, offset in found["seen"].items():
            self.note_seen(partition, offset)
        for offset, packet_id, length, state in found["in_flight"]:
            for i in range(length):
                self.keep(offset + i, packet_id, RUN_STATES.index(state))
                if packet_id:
                    packet_id = packet_id + 1 if packet_id < 65_535 else 1

    cdef int keep(self, int64_t offset, uint16_t packet_id, uint8_t state) except -1:
        cdef Saved* larger
        cdef Slot* slot
        if self.kept_count == self.kept_capacity:
            larger = <Saved*> realloc(self.kept, (self.kept_capacity * 2 + 64) * sizeof(Saved))
            if larger == NULL:
                raise MemoryError()
            self.kept = larger
            self.kept_capacity = self.kept_capacity * 2 + 64
        slot = window_find(&self.session.window, packet_id)
        if slot != NULL and slot.state == SLOT_RESERVED:
            slot.state = 0
        elif slot != NULL:
            packet_id, state = 0, ENTRY_PLANNED     # two contexts claim it: one of them is older than it should be
        elif packet_id:
            slot = window_put(&self.session.window, packet_id)
            slot.flags = SLOT_BORROWED
        self.kept[self.kept_count].offset = offset
        self.kept[self.kept_count].packet_id = packet_id
        self.kept[self.kept_count].state = state
        self.kept[self.kept_count].is_new = False
        self.kept_count += 1
        return 0

    def start_at(self, int64_t offset, dict seen=None):
        """A lane without a context starts here; of each source partition in `seen` behind the offset it has there."""
        self.committed = self.position = offset
        for source, newest in (seen or {}).items():
            self.note_seen(source, newest)

    def snapshot(self):
        """The context as it is now; `saved(mark)` tells that it is durable."""
        self.mark += 1
        self.is_dirty = False
        return self.peek()

    def peek(self):
        """The same, for looking only."""
        cdef Buffer out
        cdef uint32_t i
        cdef uint64_t count = 0
        memset(&out, 0, sizeof(Buffer))
        try:
            put_number(&out, CONTEXT_VERSION)
            put_number(&out, <uint64_t> self.committed)
            put_number(&out, <uint64_t> (max(self.position, self.kept_end) - self.committed))
            put_number(&out, <uint64_t> self.session.window.laps << 16 | self.session.window.last_id)
            for i in range(self.seen_count):
                if self.seen[i] >= 0:
                    count += 1
            put_number(&out, count)
            for i in range(self.seen_count):
                if self.seen[i] >= 0:
                    put_number(&out, i)
                    put_number(&out, <uint64_t> self.seen[i])
            self.put_runs(&out)
            return PyBytes_FromStringAndSize(<const char*> out.data + out.start, buffer_size(&out))
        finally:
            buffer_free(&out)

    # What is in flight, as runs of consecutive offsets with consecutive packet ids in one state.
    cdef int put_runs(self, Buffer* out) except -1:
        cdef Buffer runs
        cdef PackTracker tracker
        cdef Entry* entry
        cdef Run run
        cdef uint32_t i, k
        memset(&runs, 0, sizeof(Buffer))
        memset(&run, 0, sizeof(Run))
        run.last = self.committed
        try:
            for i in range(self.tracker_count):
                tracker = <PackTracker> self.trackers[i]
                for k in range(tracker.first_open, tracker.count):
                    entry = &tracker.entries[k]
                    if entry.state != ENTRY_DONE and entry.packet_id:
                        run_add(&runs, &run, entry.offset, entry.packet_id, run_state(entry, self.is_closed))
            for i in range(self.kept_at, self.kept_count):
                if self.kept[i].state != ENTRY_DONE:
                    run_add(&runs, &run, self.kept[i].offset, self.kept[i].packet_id, self.kept[i].state)
            run_end(&runs, &run)
            put_number(out, run.count)
            if buffer_size(&runs):
                memcpy(buffer_reserve(out, buffer_size(&runs)), runs.data + runs.start, buffer_size(&runs))
        finally:
            buffer_free(&runs)
        return 0

    def saved(self, uint64_t mark):
        """Everything up to this snapshot is durable: its packs may be sent, and the PUBRELs it knows the reason of."""
        cdef Session s = self.session
        cdef Connection c
        cdef Slot* slot
        cdef Entry* entry
        if mark <= self.durable:
            return
        self.durable = mark
        if self.is_closed:
            return
        c = s.connection
        while self.release_count and self.releases[self.release_at].mark <= mark:
            slot = window_find(&s.window, self.releases[self.release_at].packet_id)
            self.release_at += 1
            self.release_count -= 1
            if slot == NULL or send_held(s, c, slot) or slot.outlet != self.place:
                continue
            if slot.message == NULL:
                if c is not None and c.state == CONNECTED:
                    send_ack(c, PUBREL, slot.packet_id, SUCCESS)    # of a record that was not read again yet
                continue
            entry = &(<PackTracker> <void*> slot.message).entries[<size_t> slot.extras]
            if entry.state == ENTRY_RECEIVED and c is not None and c.state == CONNECTED:
                entry.flags = (entry.flags & ~ENTRY_NEW) | ENTRY_RELEASED
                send_ack(c, PUBREL, entry.packet_id, SUCCESS)       # [MQTT-4.3.3-4] [MQTT3-4.3.3-1]
        if self.release_count == 0:
            self.release_at = 0
        s.pump()

    def resume(self):
        """The first thing on a new connection: PUBREL again where PUBREC had come [MQTT-4.4.0-1] [MQTT3-4.4.0-1]."""
        cdef Connection c = self.session.connection
        cdef PackTracker tracker
        cdef Entry* entry
        cdef uint32_t i, k
        if c is None or c.state != CONNECTED or self.is_closed or self.is_resumed:
            return
        self.is_resumed = True
        for i in range(self.tracker_count):
            tracker = <PackTracker> self.trackers[i]
            for k in range(tracker.first_open, tracker.count):
                entry = &tracker.entries[k]
                if entry.state == ENTRY_RECEIVED and not entry.flags & (ENTRY_RELEASED | ENTRY_NEW):
                    entry.flags |= ENTRY_RELEASED
                    send_ack(c, PUBREL, entry.packet_id, SUCCESS)
        for i in range(self.kept_at, self.kept_count):
            if self.kept[i].state == ENTRY_RECEIVED and self.kept[i].packet_id and not self.kept[i].is_new:
                send_ack(c, PUBREL, self.kept[i].packet_id, SUCCESS)

    # ---- packs ----

    def offer(self, list parts not None):
        """Takes the next records of the partition, what was read at once as one pack; a context must be durable before
        the new ones are sent. False: the client has too many packet ids in flight, offer them again later."""
        cdef PackTracker tracker
        cdef uint64_t records = 0, size = 0
        if self.is_closed or not parts or self.denied_topic is not None:
            return True
        if self.is_waiting:
            return False
        for item in parts:
            records += (<RecordPack?> item).count
            size += buffer_size(&(<RecordPack> item)._body)
        if self.session.window.count + records > MOST_PLANNED:
            return False        # other lanes of the client have the packet ids: later
        self.session.hub.update_clock()
        tracker = PackTracker(parts, (<RecordPack> parts[len(parts) - 1]).next_offset)
        tracker.size = size
        tracker.rules = self.session.hub.trie.version
        try:
            if self.plan_parts(tracker):
                self.call()
        finally:
            # packet ids that were given away are those of this pack, whatever comes behind them
            if tracker.count:
                tracker.mark = self.mark + 1
                self.add_tracker(tracker)
        self.drop_kept(self.position)
        if tracker.count:
            return True
        if self.follower is not None:
            free_follower(self)
        if self.tracker_count:
            # nothing of it is sent: it is committed with the pack before it
            (<PackTracker> self.trackers[self.tracker_count - 1]).end_offset = self.position
        else:
            self.committed = self.position
        self.change()
        return True

    # Whether one of the records is for another client of the share: it is the next then.
    cdef bint plan_parts(self, PackTracker tracker) except -1:
        cdef RecordPack pack
        cdef RecordView record
        cdef size_t position, at
        cdef uint16_t part
        for part in range(<uint16_t> len(tracker.parts)):
            pack = <RecordPack?> tracker.parts[part]
            position = at = 0
            while pack.next(&position, &record):
                if record.offset >= self.position and (self.until < 0 or record.offset < self.until):
                    if self.plan(tracker, &record, part, <uint32_t> at):
                        self.position = tracker.end_offset = record.offset
                        return True
                    self.position = record.offset + 1
                at = position
            self.position = max(self.position, pack.next_offset)
        return False

    # 1: the record is not for this client but for another one of the share, and everything behind it waits.
    cdef int plan(self, PackTracker tracker, const RecordView* record, uint16_t part, uint32_t at) except -1:
        cdef Session s = self.session
        cdef Hub hub = s.hub
        cdef EnvelopeView view
        cdef Saved* kept
        cdef uint8_t qos, state = ENTRY_PLANNED, flags = 0
        cdef uint16_t packet_id = 0
        cdef Slot* slot = NULL
        cdef bint is_denied
        if record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &view, &hub.record_props):
            self.damaged += 1           # not ours: somebody else wrote into the topic
            return 0
        qos = min(view.qos if view.delivery_qos == NO_DELIVERY_QOS else view.delivery_qos, self.qos_limit)
        is_denied = s.acl is not None and not s.acl.allows(view.topic, view.topic_size, ACL_RECEIVE)
        if is_denied and leave_to_peer(self, record.offset, view.topic, view.topic_size):
            return 1
        if record.offset < self.kept_end:
            kept = self.take_kept(record.offset)
            if kept == NULL:
                return 0                # the client has it
            if kept.packet_id:
                packet_id, qos = kept.packet_id, max(qos, <uint8_t> 1)
                slot = window_find(&s.window, packet_id)
                if kept.state == ENTRY_RECEIVED:
                    state, qos = ENTRY_RECEIVED, 2
                    flags = ENTRY_DUP
                    if kept.is_new:
                        flags |= ENTRY_NEW
                    elif self.is_resumed:
                        flags |= ENTRY_RELEASED
                elif kept.state != ENTRY_PLANNED:
                    flags = ENTRY_DUP
                    if kept.state == RUN_SENT_2 or kept.state == RUN_READY_2:
                        qos = 2             # whatever QoS the subscription has now: the client may hold its packet id
                    if kept.state == RUN_READY or kept.state == RUN_READY_2:
                        flags |= ENTRY_UNSURE
                    if self.is_live and is_sent_here(self, packet_id):
                        state, flags = ENTRY_SENT, ENTRY_DUP        # on this very connection
        elif view.source_offset >= 0 and not self.note_seen(view.source_partition, view.source_offset):
            self.duplicates += 1        # dispatched twice, around a crash
            return 0
        elif view.expires_at and view.expires_at <= hub.wall:
            self.expired += 1           # takes no packet id [MQTT-3.3.2-5]
            hub.counters.dropped[<int> DROP_EXPIRED] += 1
            return 0
        # The client may have lost the right since it was dispatched. A handshake that has begun is finished.
        if is_denied and state == ENTRY_PLANNED:
            count_drop(s, DROP_DENIED)
            if qos != 2 or not flags & ENTRY_DUP:
                if slot != NULL:
                    window_release(&s.window, slot)
                return 0
            state, flags = ENTRY_RECEIVED, ENTRY_DUP | ENTRY_NEW        # see give_up_slot
            self.await_release(packet_id)
        if qos and slot == NULL:
            slot = window_add(&s.window)
            packet_id = slot.packet_id
        if slot != NULL:
            slot.flags = SLOT_BORROWED
            slot.outlet = self.place
            slot.message = <Message*> <void*> tracker
            slot.extras = <Extras*> <size_t> tracker.count
        tracker.put(record.offset, part, at, qos, packet_id, state, flags)
        return 0

    def pass_over(self, *, bint counts):
        """The record it waits at is not for this client: another one has it or, if it `counts`, nobody. Everything
        before it is done; it goes on when it is read again from `committed` on."""
        if counts:
            count_drop(self.session, DROP_DENIED)
        self.denied_topic = None
        self.position += 1
        self.committed = self.position
        self.drop_kept(self.position)
        if self.follower is not None:
            free_follower(self)
        self.change()

    def precede(self, Lane lane not None):
        """Keep the other lane, which is not open yet, from being read until everything of this one was sent. This one
        has an end."""
        if not is_all_sent(self):
            self.follower = lane
            lane.is_waiting = lane.is_paused = True

    # Whether the source's record is new here; if so it is not the next time.
    cdef bint note_seen(self, uint32_t partition, int64_t offset) except -1:
        cdef int64_t* larger
        cdef uint32_t i
        if partition >= self.seen_count:
            if partition >= MOST_PARTITIONS:
                return True
            larger = <int64_t*> realloc(self.seen, (partition + 1) * sizeof(int64_t))
            if larger == NULL:
                raise MemoryError()
            self.seen = larger
            for i in range(self.seen_count, partition + 1):
                self.seen[i] = -1
            self.seen_count = partition + 1
        if offset <= self.seen[partition]:
            return False
        self.seen[partition] = offset
        return True

    # The saved entry of the offset, NULL if the client has that record already.
    cdef Saved* take_kept(self, int64_t offset) except? NULL:
        cdef Saved* kept
        self.drop_kept(offset)
        if self.kept_at == self.kept_count or self.kept[self.kept_at].offset != offset:
            return NULL
        kept = &self.kept[self.kept_at]
        self.kept_at += 1
        return NULL if kept.state == ENTRY_DONE else kept

    # Saved entries before the offset are of records that are gone (retention): their packet ids are free, of QoS 2
    # after PUBCOMP.
    cdef int drop_kept(self, int64_t offset) except -1:
        cdef Saved* kept
        cdef Slot* slot
        cdef uint16_t packet_id
        while self.kept_at < self.kept_count and self.kept[self.kept_at].offset < offset:
            kept = &self.kept[self.kept_at]
            self.kept_at += 1
            packet_id = kept.packet_id
            slot = window_find(&self.session.window, packet_id)
            if slot == NULL or not slot.flags & SLOT_BORROWED or slot.message != NULL:
                continue
            window_release(&self.session.window, slot)
            if self.is_closed:
                continue
            if kept.state == ENTRY_RECEIVED:
                hold_id(self, packet_id, True, self.is_resumed and not kept.is_new)
            elif kept.state == RUN_SENT_2 or kept.state == RUN_READY_2:
                hold_id(self, packet_id, False, False)
        if self.kept_at == self.kept_count and self.kept != NULL:
            free(self.kept)
            self.kept = NULL
            self.kept_at = self.kept_count = self.kept_capacity = 0
        return 0

    cdef int add_tracker(self, PackTracker tracker) except -1:
        cdef void** larger
        if self.tracker_count == self.tracker_capacity:
            larger = <void**> realloc(self.trackers, (self.tracker_capacity * 2 + 8) * sizeof(void*))
            if larger == NULL:
                raise MemoryError()
            self.trackers = larger
            self.tracker_capacity = self.tracker_capacity * 2 + 8
        Py_INCREF(tracker)
        self.trackers[self.tracker_count] = <void*> tracker
        self.tracker_count += 1
        self.planned += tracker.count
        self.planned_bytes += tracker.size
        add_open(self, tracker.open_count)
        return 0

    # ---- progress ----

    # The context on the disk is no longer right: it is written again soon.
    cdef int change(self) except -1:
        self.is_dirty = True
        if not self.is_listed and self.desk is not None:
            self.is_listed = True
            (<ApplicationDesk> self.desk)._dirty.append(self)
        return 0

    # There is something to do in Python: read more, or make a context durable that PUBRELs wait for.
    cdef int call(self) except -1:
        if not self.has_news and self.desk is not None:
            self.has_news = True
            (<ApplicationDesk> self.desk)._news.append(self)
            self.desk.wake()
        return 0

    # Records at the front of the first pack that are done: they take no part of what may be in flight. Those of an
    # earlier connection may be done before it is their turn.
    cdef inline uint32_t done_ahead(self) noexcept:
        cdef PackTracker first
        if self.tracker_count == 0:
            return 0
        first = <PackTracker> self.trackers[0]
        return min(first.first_open, first.next_entry)

    # After something of the pack was done: commits what is done from the lowest offset on, lets go of whole packs.
    cdef int advance(self) except -1:
        cdef uint32_t i, gone = 0
        cdef PackTracker tracker
        cdef int64_t lowest
        while gone < self.tracker_count:
            tracker = <PackTracker> self.trackers[gone]
            if tracker.open_count:
                break
            gone += 1
        lowest = self.position if gone == self.tracker_count else (<PackTracker> self.trackers[gone]).lowest()
        if lowest > self.committed:
            self.committed = lowest
        self.change()
        if gone:
            for i in range(gone):
                tracker = <PackTracker> self.trackers[i]
                self.planned -= tracker.count
                self.planned_bytes -= tracker.size
                self.ahead -= tracker.next_entry
                Py_DECREF(tracker)
            self.tracker_count -= gone
            memmove(self.trackers, self.trackers + gone, self.tracker_count * sizeof(void*))
            self.sending = self.sending - gone if self.sending > gone else 0
            call_part(self)
        return 0

    # The record is delivered, refused or given up.
    cdef int finish(self, PackTracker tracker, uint32_t index) except -1:
        cdef Session s = self.session
        cdef Entry* entry = &tracker.entries[index]
        cdef Slot* slot
        if entry.packet_id:
            slot = window_find(&s.window, entry.packet_id)
            if slot != NULL and slot.flags & SLOT_BORROWED:
                if slot.flags & SLOT_COUNTED:
                    free_place(s, self.part)
                    s.hub.counters.inflight -= 1
                window_release(&s.window, slot)     # [MQTT-2.2.1-4]
        remove_open(self, entry.state != ENTRY_DONE)
        if tracker.finish(index) or tracker.open_count == 0:
            self.advance()
        return 0

    # A PUBREL that waits for the next snapshot.
    cdef int await_release(self, uint16_t packet_id) except -1:
        cdef Release* larger
        if self.release_at + self.release_count == self.release_capacity:
            if self.release_at:
                memmove(self.releases, self.releases + self.release_at, self.release_count * sizeof(Release))
                self.release_at = 0
            else:
                larger = <Release*> realloc(self.releases, (self.release_capacity * 2 + 16) * sizeof(Release))
                if larger == NULL:
                    raise MemoryError()
                self.releases = larger
                self.release_capacity = self.release_capacity * 2 + 16
        self.releases[self.release_at + self.release_count].mark = self.mark + 1
        self.releases[self.release_at + self.release_count].packet_id = packet_id
        self.release_count += 1
        self.change()
        return self.call()

    def sweep(self, int64_t timeout, int64_t pause, uint32_t retries, bint skips):
        """Packs that were not acknowledged in time (ms): sent again with DUP (MQTT 3), or given up; how many each."""
        cdef Session s = self.session
        cdef Connection c = s.connection
        cdef PackTracker tracker
        cdef uint32_t i = 0, again = 0, skipped = 0
        cdef int64_t now = s.hub.now
        if self.is_closed or c is None or not c.writable:
            return 0, 0
        while i < self.tracker_count and i <= self.sending:
            tracker = <PackTracker> self.trackers[i]
            i += 1
            if (tracker.touched == 0 or tracker.open_count == 0
                    or now - tracker.touched < timeout + (pause if tracker.retries else 0)):
                continue
            if skips or (retries and tracker.retries >= retries):
                skipped += self.give_up(tracker)
                i = 0       # whole packs may be gone
                continue
            tracker.retries += 1
            tracker.touched = now
            again += send_again(self, tracker, i - 1)
        self.retried += again
        self.skipped += skipped
        s.pump()
        return again, skipped

    cdef uint32_t give_up(self, PackTracker tracker) except? 0xFFFFFFFF:
        cdef uint32_t i, n = 0
        cdef Entry entry
        Py_INCREF(tracker)
        try:
            tracker.touched = 0
            for i in range(tracker.first_open, tracker.count):
                entry = tracker.entries[i]
                if entry.state in (ENTRY_SENT, ENTRY_RECEIVED):
                    self.finish(tracker, i)
                    n += 1
                    if entry.qos == 2:
                        hold_id(self, entry.packet_id, entry.state == ENTRY_RECEIVED, entry.flags & ENTRY_RELEASED)
        finally:
            Py_DECREF(tracker)
        return n

    def close(self):
        """Takes the lane from its session; returns the context to be stored."""
        cdef Session s = self.session
        cdef uint32_t i, k
        cdef PackTracker tracker
        cdef Slot* slot
        if self.is_closed:
            return self.context
        self.is_closed = True
        free_held(self)
        self.context = self.snapshot()
        if self.is_shared:
            self.unsent = find_unsent(self)
        for i in range(self.tracker_count):
            tracker = <PackTracker> self.trackers[i]
            for k in range(tracker.first_open, tracker.count):
                slot = window_find(&s.window, tracker.entries[k].packet_id)
                if slot != NULL and slot.message == <Message*> <void*> tracker:
                    if slot.flags & SLOT_COUNTED:
                        s.hub.counters.inflight -= 1
                        free_place(s, self.part)
                    window_release(&s.window, slot)
            remove_open(self, tracker.open_count)
            Py_DECREF(tracker)
        self.tracker_count = self.sending = self.planned = self.ahead = self.planned_bytes = 0
        self.drop_kept(0x7FFFFFFFFFFFFFFF)
        remove_outlet(s, self)
        if self.part is not None:
            self.part.lanes -= 1
            drop_unused(s, self.part)
        if self.follower is not None:
            free_follower(self)
        return self.context

    # ---- as an outlet ----

    cdef bint pump(self, Session s, Connection c) except -1:
        cdef uint64_t delivered = self.delivered
        pump_lane(self, s, c)
        return self.delivered != delivered

    cdef int on_ack(self, Connection c, Slot* slot, uint8_t packet_type, const AckView* ack) except -1:
        return ack_entry(c, c.session, slot, packet_type, ack)

    cdef int on_detach(self, Session s) except -1:
        self.close()
        return 0

    # ---- for the caller, people and tests ----

    @property
    def has_room(self):
        """Whether another pack may be read: as many as are sent at once are made ready behind them."""
        cdef Connection c = self.session.connection
        return (self.desk is not None and not self.is_closed and not self.is_waiting and self.denied_topic is None
                and c is not None and c.writable and lane_has_room(self))

    @property
    def needs_context(self):
        """Whether packs or PUBRELs wait for a context that was not taken yet."""
        if self.release_count and self.releases[self.release_at + self.release_count - 1].mark > self.mark:
            return True
        return self.tracker_count and (<PackTracker> self.trackers[self.tracker_count - 1]).mark > self.mark

    @property
    def last_mark(self):
        return self.mark

    @property
    def packs(self):
        return self.tracker_count

    @property
    def in_flight(self):
        """Records sent or planned and not acknowledged."""
        cdef uint32_t i, n = 0
        for i in range(self.tracker_count):
            n += (<PackTracker> self.trackers[i]).open_count
        return n


include "lane_send.pxi"
