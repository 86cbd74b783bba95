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
cdef class DurableQueue(Subscriber):
    """Where messages come in. Bound to topics in `hub.bindings`."""

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
        if view.qos == 2 and is_alone and origin is not None and view.packet_id and hub.keeps_state and origin._keeps:
            origin.received_sequence += 1
            mark = <uint64_t> origin.received_sequence << 16 | view.packet_id
            size += received_size(mark)
            self.has_ids = True
        if self.pack is None:
            open_queue_pack(self)
        p = put_envelope(self.pack.reserve(hub.wall, view.topic, view.topic_size, size), &envelope)
        if mark:
            put_received(p, mark)
        hub.ingest_pending += size
        hub._open_bytes += size
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
        session.hub.consumer_numbers += 1
        self.number = number if number else session.hub.consumer_numbers
        self.unsettled = group.pending.count_of(self.number) if number else 0
        self.qos = qos
        self.prefetch = max(prefetch, 1)
        self.identifier = identifier
        self.settles_by_ack = settles_by_ack

    def join(self):
        """From now on it is given messages."""
        if self.session.consumers is None:
            self.session.consumers = []
        self.session.consumers.append(self)
        divide_window(self.session)
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
        self.session.consumers.remove(self)
        name_groups(self.session, self.group)
        if not self.session.consumers:
            self.session.consumers = None
        divide_window(self.session)
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
                and s.window.count + self.waiting < s.hub.max_inflight and self.round != s.round)
