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
    VERB_RELEASE = 7        # not of MQTT: any consumer may have the message at once

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
        self._confirmations = []
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

    def publish(self, Subscriber client not None, bytes client_id not None, bytes username, list entries not None):
        """Publish (topic, payload, properties, expires_at) tuples for a client of any front-end. Return for each of
        them 0, or the number of the answer that says why it is refused, see `answer_text`."""
        return publish_entries(self, client, client_id, username, entries)

    def when_durable(self, on_done not None):
        """Call `on_done(is_durable)` when everything that was published or settled until now is stored, or when the log
        or the store has refused part of it."""
        cdef Hub hub = self.hub
        cdef bint is_open = has_open(hub) or PyList_GET_SIZE(self._changed) != 0
        cdef Confirmation waiting
        if hub.ingest.ticket == hub.ingest.committed and not is_open:
            hub.loop.call_soon(on_done, True)
        else:
            waiting = Confirmation.__new__(Confirmation)
            waiting.ticket = hub.ingest.ticket + (1 if is_open else 0)
            waiting.on_done = on_done
            self._confirmations.append(waiting)

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

    # The message becomes a record of this iteration's pack; `mark` is the QoS 2 packet id that is kept with it, or 0.
    cdef int take(self, EnvelopeView* message, uint64_t mark) except -1:
        cdef Hub hub = self.hub
        cdef int64_t expires_at = message.expires_at
        cdef uint32_t size
        cdef uint8_t* p
        if self.message_ttl and (expires_at == 0 or hub.wall + self.message_ttl < expires_at):
            message.expires_at = hub.wall + self.message_ttl
        size = envelope_size(message)
        if mark:
            size += received_size(mark)
            self.has_ids = True
        if self.pack is None:
            open_queue_pack(self)
        p = put_envelope(self.pack.reserve(hub.wall, message.topic, message.topic_size, size), message)
        if mark:
            put_received(p, mark)
        message.expires_at = expires_at
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


cdef class QueueConsumer(ConsumerRights):
    """A member of a group."""

    def join(self):
        """From now on it is given messages."""
        self.group.consumers.append(self)
        self.on_member(True)
        enter_rights(self.group, self)
        self.group.note()

    def leave(self):
        """What it has is given to others, at once."""
        if self.is_gone:
            return
        self.is_gone = True
        self.group.consumers.remove(self)
        self.on_member(False)
        change_sets(self.group, self.bit, self.bit)
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

    def settle(self, int64_t offset, uint8_t outcome, int64_t delay=NO_TIME, str reason=None):
        """Settle a delivery; `outcome` is one of penstock.subscribers.queue.settling, `delay` in ms for NACKED and
        EXTENDED. Return 0, 1 if the message is not pending, or 2 if another consumer has it."""
        cdef int result
        self.group.queue.hub.update_clock()
        if outcome == VERB_RELEASE:
            result = release_one(self, offset)
        elif delay != NO_TIME or outcome == VERB_EXTEND:
            result = settle_at(self, offset, outcome, delay if delay != NO_TIME else self.group.visibility)
        else:
            result = self.group.settle_one(self, offset, outcome)
        if result == RESOLVED and reason is not None and outcome == VERB_REJECT and not self.group.queue.is_stream:
            self.group.reasons[offset] = self.group.reason_changes[offset] = reason
        return result

    @property
    def may_move(self):
        """Whether it may move the place of its stream group."""
        return may_move(self)

    cdef bint is_online(self) noexcept:
        return False

    cdef bint has_room(self) noexcept:
        return False

    cdef int send(self, const RecordView* record, const EnvelopeView* view, uint32_t deliveries) except -1:
        return 0

    cdef int64_t unacknowledged(self, int64_t lowest) except? -1:
        return lowest

    cdef int on_member(self, bint is_member) except -1:
        return 0


# The message goes back to the group: any consumer may have it at once. Of a stream there is nothing to give back.
cdef int release_one(QueueConsumer consumer, int64_t offset) except -1:
    cdef const PendingEntry* entry
    if consumer.group.queue.is_stream:
        return consumer.group.settle_stream(consumer, offset, VERB_RELEASE)
    entry = consumer.group.pending.find(offset)
    if entry == NULL or entry.state != ENTRY_CLAIMED:
        return UNKNOWN_MESSAGE
    if entry.consumer != consumer.number:
        return OTHERS_MESSAGE
    give_back(consumer, offset, NULL, 0)
    return RESOLVED
