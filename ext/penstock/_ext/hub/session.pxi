# it lasts at least as long as its connection [MQTT-4.1.0-1] [MQTT3-4.1.0-1] [MQTT3-4.1.0-2]
# A client's state: subscriptions (from Subscriber), what is in flight to it, what waits for it, and the QoS 2 packet
# ids it still has to release. It may outlive its connection.


@final
cdef class Session(Subscriber):
    """The state of one client. Made and ended by penstock.sessions; everything on the message path happens here."""

    def __init__(self, Hub hub not None, str client_id not None, username=None):
        cdef bytes encoded = client_id.encode()
        cdef Py_ssize_t size = 0
        self.hub = hub
        self.client_id = client_id
        self.username = username
        self.client_type = "device"
        self._client_hash = hash_bytes(encoded, len(encoded), hub.trie.seed)
        self.id_text = <const uint8_t*> PyUnicode_AsUTF8AndSize(client_id, &size)
        self.id_size = <uint32_t> size
        if username is not None:
            self.user_text = <const uint8_t*> PyUnicode_AsUTF8AndSize(username, &size)
            self.user_size = <uint32_t> size
        hub.session_count += 1
        hub.update_clock()
        self.since = hub.wall

    def __dealloc__(self):
        window_clear(&self.window)
        queue_clear(&self.queue)
        ids_clear(&self.received)
        free(self.resend)
        free(self.turns)

    def attach(self, Connection connection not None, *, uint8_t version, bint keeps, uint32_t receive_maximum=65_535,
               uint32_t maximum_packet_size=0, uint32_t topic_alias_maximum=0, double keep_alive=0.0):
        """Gives the session its connection. What is in flight is sent again by resume(), after CONNACK."""
        cdef uint32_t limit = min(receive_maximum, self.hub.limits.max_inflight)
        if self._ended or self.connection is not None:
            raise RuntimeError("a session is attached once, while it lives")
        self.connection = connection
        self.generation += 1
        self.version = version
        self._keeps = keeps
        self.limit = max(limit, 1)  # [MQTT-4.9.0-1]
        self.outstanding = self.in_parts = 0
        start_round(self)
        self._plan_resend()
        self.hub.attached_count += 1
        connection.session = self
        connection.version = version
        connection.max_out_packet = maximum_packet_size if maximum_packet_size else 0xFFFFFFFFu
        connection.aliases_out_max = <uint16_t> min(topic_alias_maximum, self.hub.limits.topic_alias_maximum)
        # silence for one and a half keep-alives ends the connection [MQTT-3.1.2-22] [MQTT3-3.1.2-24]
        connection.keep_alive = <uint32_t> (keep_alive * 1500)

    # What goes out again, in the order it first did [MQTT-4.6.0-1] [MQTT3-4.6.0-1]: PUBRELs before PUBLISHes, since
    # they are never held back by the client's quota [MQTT-3.3.4-10] [MQTT-4.9.0-3].
    cdef int _plan_resend(self) except -1:
        cdef uint16_t* order = window_order(&self.window)
        cdef uint16_t* plan = NULL
        cdef uint32_t i, n = 0
        cdef int turn
        cdef Slot* slot
        free(self.resend)
        self.resend = NULL
        self.resend_at = 0
        self.resend_count = 0
        if order == NULL:
            return 0
        plan = <uint16_t*> malloc(self.window.count * sizeof(uint16_t))
        if plan == NULL:
            free(order)
            raise MemoryError()
        for turn in range(2):
            for i in range(self.window.count):
                slot = window_find(&self.window, order[i])
                slot.flags &= ~SLOT_COUNTED
                if (slot.state == AWAIT_PUBCOMP) == (turn == 0):
                    plan[n] = order[i]
                    n += 1
        free(order)
        self.resend = plan
        self.resend_count = n
        if n == 0:
            free(plan)
            self.resend = NULL
        return 0

    def detach(self):
        """Takes the connection away; a late callback of it finds nothing to touch."""
        cdef Connection c = self.connection
        cdef uint32_t i
        if c is None:
            return
        detach_outlets(self)
        self.parts = None
        self.reserve_each = self.kept_free = 0
        for i in range(self.window.capacity):
            if self.window.slots[i].packet_id and self.window.slots[i].state == SLOT_RESERVED:
                window_release(&self.window, &self.window.slots[i])
        self.connection = None
        self.generation += 1
        self.hub.attached_count -= 1
        c.session = None
        if c.state < CLOSING:
            orphan(c)
        free(self.resend)
        self.resend = NULL
        self.resend_at = self.resend_count = 0
        self.ease()

    def resume(self):
        """Sends what is in flight again, then what waits, as far as the client's quota allows."""
        self.pump()

    # retained messages are not part of it [MQTT-4.1.0-2] [MQTT3-3.1.2-7]
    def end(self, *, bint hand_over=True):
        """Ends the session: subscriptions, window and queue are gone; its unacknowledged share goes to the group,
        unless the client has the session elsewhere from now on."""
        if self._ended:
            return
        self.detach()
        self._ended = True
        self.intake = None
        self.left_shares = self.hub.trie.shares(self)
        self.hub.trie.remove(self)
        self.hub.session_count -= 1
        self.hub.counters.inflight -= self.window.count
        self.hub.counters.queued -= self.queue.count
        self.hub.counters.queued_bytes -= self.queue.bytes
        if hand_over:
            self._hand_over()
        self.left_unreleased = self.received.count
        window_clear(&self.window)
        queue_clear(&self.queue)
        ids_clear(&self.received)
        end_outlets(self)

    def _hand_over(self):
        """QoS 1 messages of shared subscriptions that this client never acknowledged go to another member."""
        cdef uint16_t* order = window_order(&self.window)
        cdef uint32_t i, n = self.window.count
        cdef Slot* slot
        cdef Queued item
        cdef Queue rest
        try:
            for i in range(n):
                slot = window_find(&self.window, order[i])
                # a QoS 2 message under way is never given to another client [MQTT-4.8.2-4] [MQTT-4.8.2-5]
                if slot.flags & DELIVERY_SHARED and slot.state == AWAIT_PUBACK and slot.message != NULL:
                    redeliver(self.hub, slot.message, 1, slot.extras)
        finally:
            free(order)
        rest = self.queue
        memset(&self.queue, 0, sizeof(Queue))
        self.backlog = 0
        self.backlog_bytes = 0
        while queue_pop(&rest, &item):
            if item.flags & DELIVERY_SHARED:
                redeliver(self.hub, item.message, item.qos, item.extras)
            else:
                self.hub.counters.dropped[<int> DROP_SESSION_ENDED] += 1
            queued_release(&item)

    # ---- what waits ----

    # No further PUBLISH with QoS > 0: the client's quota is used up, or too many handshakes are unfinished (a QoS 2
    # message of an earlier connection takes no quota, but it does take a packet id). One place is never reserved.
    cdef inline bint is_full(self) noexcept:
        return (self.outstanding + (self.kept_free if self.outstanding > self.in_parts else 0) >= self.limit
                or self.window.count >= self.hub.limits.max_inflight)

    cdef int enqueue(self, void* message, void* extras, uint8_t qos, uint16_t flags) except -1:
        cdef Hub hub = self.hub
        cdef uint32_t weight = message_weight(<Message*> message)
        cdef Queued oldest
        if flags & DELIVERY_BACKLOG:
            self.backlog += 1
            self.backlog_bytes += weight
        else:
            while (self.queue.count - self.backlog >= hub.limits.max_queued_messages
                   or self.queue.bytes - self.backlog_bytes + weight > hub.limits.max_queued_bytes):
                if not (hub.limits.drop_oldest and self.queue.count and self.backlog == 0):
                    free(extras)
                    count_drop(self, DROP_QUEUE_FULL)
                    return 0
                self.take(&oldest)
                queued_release(&oldest)
                count_drop(self, DROP_QUEUE_FULL)
        queue_push(&self.queue, <Message*> message, <Extras*> extras, qos, flags)
        hub.counters.queued += 1
        hub.counters.queued_bytes += weight
        if self.connection is not None:
            self.watch()
        return 0

    cdef inline bint take(self, Queued* item) noexcept:
        if not queue_pop(&self.queue, item):
            return False
        self.hub.counters.queued -= 1
        self.hub.counters.queued_bytes -= message_weight(item.message)
        return True

    # Sends again what a resumed session has in flight, then what waits, while the connection takes it.
    cdef int pump(self) except -1:
        cdef Connection c = self.connection
        cdef Queued item
        cdef Outlet outlet
        cdef int sent
        if c is None or c.state != CONNECTED:
            return 0
        while self.resend_count and c.writable and self.resend_one(c):
            pass
        while self.queue.count and c.writable:
            if self.queue.items[self.queue.head].qos and (self.is_full() or self.resend_count):
                break
            self.take(&item)
            if item.flags & DELIVERY_BACKLOG:
                if not self.take_retained(&item):
                    continue
            outlet = None
            if item.flags & DELIVERY_NUMBERED:
                outlet = find_numbered(self, item.message.source_partition)
                if is_revoked(self, outlet, &item):
                    queued_release(&item)
                    continue
            if item.message.expires_at and item.message.expires_at <= self.hub.wall:
                queued_release(&item)           # [MQTT-3.3.2-5]
                count_drop(self, DROP_EXPIRED)
                continue
            if self.acl is not None and is_denied(self, item.message, item.flags):
                pass_denied(self, item.message, item.qos, item.flags, item.extras)
                queued_release(&item)
                continue
            sent = send_message(c, self, item.message, item.qos, item.flags, item.extras, 0, False)
            if sent and item.qos:
                item.extras = NULL              # the window has them now
                if outlet is not None:
                    bind_last(self, outlet)
            elif not sent:
                count_drop(self, DROP_TOO_LARGE)
            queued_release(&item)
        if self.outlets is not None:
            pump_outlets(self, c)
        if self.is_contended and self.outstanding + self.kept_free < self.limit:
            end_round_soon(self)
        if self.congested:
            self.maybe_ease()
        return 0

    # expiry is not looked at again [MQTT-4.3.3-7]
    # A retained message waits as its topic alone, so that a client which does not read keeps no old ones alive: what is
    # sent is what the topic has now. False if it has nothing any more.
    cdef bint take_retained(self, Queued* item) noexcept:
        cdef Message* ticket = item.message
        cdef Message* present = self.hub.retained.find(message_topic(ticket), ticket.topic_size)
        self.backlog -= 1
        self.backlog_bytes -= message_weight(ticket)
        if present == NULL:
            queued_release(item)
            return False
        item.message = message_ref(present)
        item.qos = min(item.qos, present.qos)
        message_unref(ticket)
        return True

    # The next message or PUBREL of a resumed session, with its old packet id [MQTT-4.4.0-1] [MQTT3-4.4.0-1]; 0 if the
    # client's quota is used up.
    cdef int resend_one(self, Connection c) except -1:
        cdef uint16_t packet_id = self.resend[self.resend_at]
        cdef Slot* slot = window_find(&self.window, packet_id)
        cdef uint8_t* p
        if slot != NULL and slot.state != AWAIT_PUBCOMP and self.outstanding >= self.limit:
            return 0
        self.resend_at += 1
        self.resend_count -= 1
        if self.resend_count == 0:
            free(self.resend)
            self.resend = NULL
            self.resend_at = 0
        if slot == NULL:
            return 1
        if slot.state == AWAIT_PUBCOMP and slot.flags & SLOT_RELEASING:
            return 1                            # its outlet comes for it
        if slot.state == AWAIT_PUBCOMP:
            p = out_reserve(c, 4)
            p[0], p[1] = PUBREL << 4 | 2, 2
            put_be16(p + 2, packet_id)
            self.hub.counters.packets_sent += 1
        elif self.acl is not None and slot.message != NULL and is_denied(self, slot.message, slot.flags):
            # What was sent with QoS 2 is never given to another client [MQTT-4.8.2-4] [MQTT-4.8.2-5].
            pass_denied(self, slot.message, 1, slot.flags if slot.state == AWAIT_PUBACK else 0, slot.extras)
            give_up_slot(self, c, slot)
        elif slot.message == NULL or not send_message(
                c, self, slot.message, 1 if slot.state == AWAIT_PUBACK else 2, slot.flags, slot.extras, packet_id,
                True):                          # DUP [MQTT-3.3.1-1] [MQTT3-3.3.1-1]
            give_up_slot(self, c, slot)
        else:
            slot.flags |= SLOT_COUNTED
            self.outstanding += 1
        return 1

    # ---- what comes from outlets ----

    @property
    def outlets_now(self):
        """Where else than directly its messages come from."""
        return list(self.outlets or ())

    @property
    def feed(self):
        """Where messages with QoS > 0 for it are written; None: it has no topic of its own."""
        return self.intake if self.intake is not None and self.intake.is_apart else None

    @property
    def via_log(self):
        """Whether messages with QoS > 0 come from the log, and not from a topic of its own."""
        return self.intake is not None and not self.intake.is_apart

    @property
    def live(self):
        """Whether nothing waits in its store: messages are sent as they come."""
        return self.intake is not None and self.intake.live

    def reserve(self, packet_ids):
        """Ids that are in flight by contexts whose lanes come later: nobody else gets them on this connection."""
        cdef Slot* slot
        for packet_id in packet_ids:
            if window_find(&self.window, packet_id) == NULL:
                slot = window_put(&self.window, packet_id)
                slot.flags = SLOT_BORROWED
                slot.state = SLOT_RESERVED

    def continue_after(self, uint16_t packet_id, uint32_t laps):
        """New packet ids follow this one, unless later ones were given already."""
        if (laps, packet_id) > (self.window.laps, self.window.last_id):
            self.window.laps, self.window.last_id = laps, packet_id

    def hold_part(self, str name not None, bint is_held=True):
        """Reserve places of the window for a share that has no lane yet, or no longer."""
        if is_held:
            find_part(self, name).is_held = True
        elif self.parts is not None and name in self.parts:
            (<WindowPart> self.parts[name]).is_held = False
            drop_unused(self, <WindowPart> self.parts[name])

    # ---- what is kept across a restart ----

    def received_ids(self):
        """What is stored of the QoS 2 packet ids that were received and not released: a one, the sequence number of the
        newest message, the ids, all little-endian. The number stays when no id does: what the log has behind it, the
        store does not know. Empty if there was nothing ever."""
        cdef Buffer ids
        cdef uint32_t i
        cdef uint8_t* p
        if self.received_sequence == 0 and self.received.count == 0:
            return b""
        memset(&ids, 0, sizeof(Buffer))
        try:
            p = buffer_reserve(&ids, 5)
            p[0] = 1
            memcpy(p + 1, &self.received_sequence, 4)
            for i in range(self.received.capacity):
                if self.received.ids[i]:
                    memcpy(buffer_reserve(&ids, 2), &self.received.ids[i], 2)
            return PyBytes_FromStringAndSize(<const char*> ids.data, buffer_size(&ids))
        finally:
            buffer_free(&ids)

    def restore_received(self, bytes stored not None):
        """Those of before a restart, as `received_ids` had them; until version 0.1 there was no sequence number."""
        cdef const uint8_t* p = <const uint8_t*> PyBytes_AS_STRING(stored)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(stored)
        cdef Py_ssize_t at = 0
        cdef uint16_t packet_id
        if size % 2:
            if size < 5 or p[0] != 1:
                raise ValueError("these are no packet ids")
            memcpy(&self.received_sequence, p + 1, 4)
            at = 5
        while at < size:
            memcpy(&packet_id, p + at, 2)
            ids_add(&self.received, packet_id)
            at += 2

    def add_received(self, late):
        """(sequence number, packet id, when it came) of messages that the log has: those that were not stored any more
        are received, too. Their senders have not been told so and send them again. What came before this session began
        was another one's of the same client."""
        cdef uint32_t stored = self.received_sequence
        added = 0
        for sequence, packet_id, received_at in late:
            if sequence > stored and received_at >= self.since:
                ids_add(&self.received, packet_id)
                self.received_sequence = max(self.received_sequence, <uint32_t> sequence)
                added += 1
        if added and not self.received_changed:
            note_received(self)
        return added

    def ids_in_flight(self, uint16_t flags=0):
        """Packet ids as array("H") has them; with `flags`, only those of slots that have one of them."""
        cdef Buffer ids
        cdef uint32_t i
        cdef Slot* slot
        memset(&ids, 0, sizeof(Buffer))
        try:
            for i in range(self.window.capacity):
                slot = &self.window.slots[i]
                if slot.packet_id and (flags == 0 or slot.flags & flags):
                    memcpy(buffer_reserve(&ids, 2), &slot.packet_id, 2)
            return PyBytes_FromStringAndSize(<const char*> ids.data, buffer_size(&ids)) if ids.data != NULL else b""
        finally:
            buffer_free(&ids)

    # ---- making publishers wait ----

    # Whether more waits than the given part of what may wait; retained messages do not count.
    cdef inline bint over(self, uint32_t part) noexcept:
        return (self.queue.count - self.backlog > self.hub.limits.max_queued_messages // part
                or self.queue.bytes - self.backlog_bytes > self.hub.limits.max_queued_bytes // part)

    # Called when output or queue have grown: past its bounds the session slows down who publishes to it, for a while.
    cdef int watch(self) except -1:
        cdef Hub hub = self.hub
        cdef Connection c = self.connection
        # what is in a log or a store can wait there
        if self.intake is not None:
            return 0
        if self.congested or c is None or hub.limits.patience == 0 or hub.now < self.forgiven_at:
            return 0
        if not c.writable or self.over(2):
            if hub._impatience and has_lost_patience(hub, self):
                return 0
            self.congested = True
            self.congested_since = hub.now
            hub.congested_count += 1
        return 0

    cdef int maybe_ease(self) except -1:
        cdef Connection c = self.connection
        if c is None or (c.writable and not self.over(4)):
            self.ease()
        return 0

    cdef int ease(self) except -1:
        if self.congested:
            self.congested = False
            self.hub.congested_count -= 1
            self.release_waiters()
        return 0

    # It has had its time: from now on it loses messages instead of slowing others, until it is forgiven. So do other
    # connections of its user: otherwise one slow reader after the other could slow a publisher without an end.
    cdef int give_up(self) except -1:
        self.forgiven_at = self.hub.now + FORGIVEN_AFTER
        lose_patience(self.hub, self)
        return self.ease()

    cdef int release_waiters(self) except -1:
        cdef list waiters = self.waiters
        if waiters is not None:
            self.waiters = None
            for waiter in waiters:
                self.hub.loop.call_soon((<Connection> waiter).unblock)
        return 0

    # ---- for people, metrics and tests ----

    @property
    def connected(self):
        return self.connection is not None

    @property
    def quota(self):
        """Messages with QoS > 0 it may have unacknowledged on its connection."""
        return self.limit

    @property
    def inflight(self):
        return self.window.count

    @property
    def queued_messages(self):
        return self.queue.count

    @property
    def queued_bytes(self):
        return self.queue.bytes

    @property
    def unreleased(self):
        """QoS 2 packet ids received and not released."""
        return self.received.count

    def count_expired(self, uint32_t count):
        """Messages that were stored for it, and whose time was up before it came."""
        self._dropped[<int> DROP_EXPIRED] += count
        self.hub.counters.dropped[<int> DROP_EXPIRED] += count

    def dropped(self):
        """Messages this client did not get, by cause."""
        return {name: self._dropped[i] for i, name in enumerate(DROP_NAMES)}


# A connection in state CONNECTED has a session: receive, ingest and flush rely on it. If a session is detached from a
# connection that was not shut down first, the connection ends before another packet of it is parsed.
cdef int orphan(Connection c) except -1:
    c.close_reason = "its session has ended"
    c.last_packet = c.hub.now
    if c.version == 5 and c.state == CONNECTED:
        send_disconnect(c, SESSION_TAKEN_OVER)
    c.state = CLOSING
    c.hub.loop.call_soon(c._close_orphan)
    return 0
