# Durable queues. A queue is a log topic; what is published to it leaves with the packs of the iteration. Each group of
# consumers has its own way through it: records that were read are given to consumers with room, that is written down,
# and when it is durable they are sent. Streams write nothing down: their groups only remember how far they are.

cdef enum QueueVerb:
    VERB_NONE = 0           # a message
    VERB_ACK = 1
    VERB_NACK = 2
    VERB_REJECT = 3
    VERB_COMMIT = 4
    VERB_EXTEND = 5
    VERB_WRONG = 6          # a control word where none may be, or an unknown one

cdef enum:
    GIVEN_AT_ONCE = 1_000           # messages of one group before others have their turn
    BUFFERED_LOW = 262_144          # bytes of records read ahead below which a group wants more
    BUFFERED_HIGH = 1_048_576
    REASON_REJECTED = 1             # pending.pxd
    REASON_DELIVERIES = 2
    LONGEST_TOPIC = 65_535
    RESOLVED = 0
    UNKNOWN_MESSAGE = 1
    OTHERS_MESSAGE = 2


@final
cdef class QueueDesk(Desk):
    """What all durable queues share."""

    def __init__(self, Hub hub not None, Trie bindings not None):
        Desk.__init__(self, hub)
        self.bindings = bindings
        self._open_queues = []
        self._news = []
        self._changed = []
        self._calls = []
        self.epoch = hub.wall - hub.now

    def __dealloc__(self):
        buffer_free(&self._props)
        buffer_free(&self._topic)

    def serve(self, find_queue, on_queues, on_detach, on_relay=None):
        """`find_queue(topic, is_settlement)` is asked for the queue of a settlement, or to make one for a topic that no
        queue is bound to; `on_queues([group, ...])`, once per iteration, to read records, to read some again, or to see
        to dead letters; `on_detach(session)` is told that the connection of a consumer goes; `on_relay(connection,
        topic, properties, token)` takes the settlement of a queue that is elsewhere, see Connection.answer_relayed."""
        self._find_queue, self._on_queues = find_queue, on_queues
        self._on_detach, self._on_relay = on_detach, on_relay

    def bind(self, DurableQueue queue not None, bytes topic_filter not None):
        """What is published to topics of the filter goes to the queue; filters outside $queue/ capture."""
        if self.bindings.subscribe(queue, topic_filter, 0, 0) and not topic_filter.startswith(b"$queue/"):
            self.capturing += 1

    def unbind(self, DurableQueue queue not None):
        """Nothing goes to the queue any more."""
        for topic_filter, _options, _identifier in self.bindings.subscriptions(queue):
            if not topic_filter.startswith(b"$queue/"):
                self.capturing -= 1
        self.bindings.remove(queue)

    # Everything that was read is given out, as far as it goes.
    cdef int work(self) except -1:
        cdef list news = self._news
        self._news = []
        for group in news:
            try:
                (<QueueGroup> group).work()
            except BaseException as error:
                self.hub.loop.call_exception_handler({"message": "a queue cannot be delivered", "exception": error})
        return 0

    cdef int tell(self) except -1:
        cdef list groups = self._calls
        if groups:
            self._calls = []
            for group in groups:
                (<QueueGroup> group).wants_call = False
            try:
                self._on_queues(groups)
            except BaseException as error:
                self.hub.loop.call_exception_handler({"message": "queues cannot be served", "exception": error})
        self.is_waiting = bool(self._news or self._calls)
        return 0

    cdef int on_detach(self, Session session) except -1:
        if self._on_detach is not None:
            self._on_detach(session)
        return 0


@final
cdef class DurableQueue(Subscriber):
    """Where messages come in. Bound to topics in `hub.queues.bindings`."""

    def __init__(self, Hub hub not None, str name not None, *, bint is_stream=False, int64_t tail=0):
        cdef Py_ssize_t size = 0
        self.hub = hub
        self.name = name
        self._address = b"$queue/" + name.encode()
        self.name_text = <const uint8_t*> PyUnicode_AsUTF8AndSize(name, &size)
        self.name_size = <uint32_t> size
        self.is_stream = is_stream
        self.tail = self.floor = tail
        self.max_message_size = 0xFFFFFFFFu
        self.groups = []
        self.primary_name = b""

    # The message becomes a record of this iteration's pack. `is_alone`: no other log gets a copy, so that a broker that
    # is killed knows by the packet id in this one whether the message came in.
    cdef int take(self, const PublishView* view, Session origin, int64_t expires_at, bint is_alone) except -1:
        cdef Hub hub = self.hub
        cdef EnvelopeView envelope
        cdef uint32_t size
        cdef uint64_t mark = 0
        cdef uint8_t* p
        if self.message_ttl and (expires_at == 0 or hub.wall + self.message_ttl < expires_at):
            expires_at = hub.wall + self.message_ttl
        fill_envelope(hub, &envelope, view, origin, expires_at)
        envelope.retain = 0
        size = envelope_size(&envelope)
        if view.qos == 2 and is_alone and origin is not None and view.packet_id and hub.ingest.keeps_state and origin._keeps:
            origin.received_sequence += 1
            mark = <uint64_t> origin.received_sequence << 16 | view.packet_id
            size += received_size(mark)
            self.has_ids = True
        if self.pack is None:
            open_queue_pack(self)
        p = put_envelope(self.pack.reserve(hub.wall, view.topic, view.topic_size, size), &envelope)
        if mark:
            put_received(p, mark)
        hub.ingest.pending += size
        hub.ingest.open_bytes += size
        hub.counters.logged += 1
        self.tail += 1
        self.published += 1
        return 0

    def appended(self, int64_t end, int64_t count=0):
        """The log has everything up to `end`, with `count` of those that were under way to it; messages of other nodes,
        and those it refused, are counted from here."""
        self.under_way = max(self.under_way - count, 0)
        self.tail = end + self.under_way + (self.pack.count if self.pack is not None else 0)

    def refused_by_log(self, int64_t count):
        """Messages that were under way to the log are not in it."""
        self.under_way = max(self.under_way - count, 0)
        self.tail = max(self.tail - count, self.floor)
        self.refused += <uint64_t> count

    @property
    def depth(self):
        """Messages the slowest group has yet to settle; without a group, all of them (classic queues)."""
        return depth_of(self)


@final
cdef class QueueConsumer(ConsumerRights):
    """One subscription of one client, as a member of a group."""

    def __init__(self, QueueGroup group not None, Session session not None, *, uint8_t qos=1, uint32_t prefetch=100,
                 uint32_t identifier=0, bint settles_by_ack=False, uint32_t number=0):
        """`number` is given to a client whose session outlives the process; see pending.LASTING."""
        self.group = group
        self.session = session
        self.desk = session.hub.queues
        self.number = number if number else next_number(session.hub)
        self.unsettled = group.pending.count_of(self.number) if number else 0
        self.qos = qos
        self.prefetch = max(prefetch, 1)
        self.identifier = identifier
        self.settles_by_ack = settles_by_ack

    def join(self):
        """From now on it is given messages."""
        add_outlet(self.session, self)
        self.group.consumers.append(self)
        name_groups(self.session, self.group)
        enter_rights(self.group, self)
        self.group.note()

    def leave(self):
        """What it has is given to others, at once."""
        if self.is_gone:
            return
        self.is_gone = True
        self.group.consumers.remove(self)
        remove_outlet(self.session, self)
        name_groups(self.session, self.group)
        change_sets(self.group, self.place, self.place)
        self.release()

    def release(self):
        """What it has is given to others, or to itself when it is back; how many messages."""
        cdef uint32_t count = self.group.pending.release(self.number)
        self.unsettled = 0
        self.waiting = 0
        if count:
            self.group.pending.bury_exhausted(self.group.max_deliveries)
            self.group.change()
            self.group.call()
        self.group.note()
        return count

    @property
    def may_move(self):
        """Whether it may move the place of its stream group."""
        return may_move(self)

    cdef bint has_room(self) noexcept:
        cdef Session s = self.session
        cdef Connection c = s.connection
        if c is None or c.state != CONNECTED or not c.writable or s.resend_count:
            return False
        if self.qos == 0:
            return s.queue.count == 0
        if not self.group.queue.is_stream and self.unsettled >= self.prefetch:
            return False
        return (s.outstanding + s.kept_free + s.queue.count + self.waiting < s.limit
                and s.window.count + self.waiting < s.hub.limits.max_inflight and self.turn != s.round)

    # ---- as an outlet ----

    cdef bint pump(self, Session s, Connection c) except -1:
        if c.writable:
            self.group.note()
        return False

    # MQTT 3 settles by acknowledging, MQTT 5 only makes room.
    cdef int on_done(self, Session s, const Slot* slot, bint is_taken) except -1:
        if slot.message != NULL and is_taken and self.settles_by_ack:
            self.group.settle_one(self, slot.message.source_offset, VERB_ACK)
        return self.group.note()

    cdef int take_back(self, const Message* m) except -1:
        return give_back(self, m.source_offset, message_topic(m), m.topic_size)
