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
