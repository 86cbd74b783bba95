# The groups of durable queues: how records find their consumers, and how deliveries are settled.


@final
cdef class QueueGroup(GroupRights):
    """The consumers that share one way through a queue, and how far they are."""

    def __init__(self, DurableQueue queue not None, str name not None, str group_id not None, bytes filter, *,
                 int64_t cursor=0, uint32_t max_pending=100_000):
        cdef Py_ssize_t size = 0
        self.queue = queue
        self.name = name
        self.id = group_id
        self.name_text = <const uint8_t*> PyUnicode_AsUTF8AndSize(name, &size)
        self.name_size = <uint32_t> size
        self.id_text = <const uint8_t*> PyUnicode_AsUTF8AndSize(group_id, &size)
        self.id_size = <uint32_t> size
        self._filter = filter
        self._names = user_property(b"group-id", name.encode()) + user_property(b"queue", queue.name.encode())
        self._exact_names = user_property(b"group-id", group_id.encode()) + user_property(b"queue", queue.name.encode())
        self.pending = PendingList(max_pending, cursor)
        self._committed = cursor
        self.auto_commit = True
        self.consumers = []
        self.packs = []
        self.again = []
        self.reasons = {}
        self.reason_changes = {}
        self.visibility, self.max_delay = 30_000, 43_200_000
        self.max_deliveries = 11
        self.backoff, self.max_backoff, self.multiplier = 5_000.0, 300_000.0, 2.0
        queue.groups.append(self)
        queue.room_to = 0

    def __dealloc__(self):
        while self.planned_count:
            self.drop_planned()
        free(self.planned)

    def close(self):
        """The group is gone: nothing more is given to anybody."""
        for consumer in list(self.consumers):
            (<QueueConsumer> consumer).leave()
        if self in self.queue.groups:
            self.queue.groups.remove(self)
        while self.planned_count:
            self.drop_planned()
        self.forget_records()

    # ---- records ----

    def offer(self, RecordPack pack not None):
        """Records that follow those offered before. False: there is enough for now, and the caller stops reading."""
        self.packs.append(pack)
        self.buffered += pack.size
        self.note()
        return self.buffered < BUFFERED_HIGH

    def offer_again(self, RecordPack pack not None):
        """Records among which are some of those that wait for another delivery."""
        self.again.append(pack)
        self.note()

    def forget_records(self):
        """The group's place has moved: what was read is not what comes next."""
        self.packs = []
        self.again = []
        self.pack_at = self.again_at = 0
        self.buffered = 0

    @property
    def has_again(self):
        return bool(self.again)

    @property
    def wants_records(self):
        return self.buffered < BUFFERED_LOW

    # ---- where it is ----

    @property
    def cursor(self):
        return self.pending.cursor

    @property
    def unsettled(self):
        """Messages the group has yet to settle, read or not (classic queues)."""
        return unsettled_of(self.queue, self)

    @property
    def committed(self):
        return self._committed if self.queue.is_stream else self.pending.committed_offset()

    def commit(self, int64_t offset):
        """Of a stream: everything before the offset is done."""
        offset = before_barrier(self, offset)
        if offset != self._committed:
            self._committed = offset
            self.change()

    def seek(self, int64_t offset):
        """The next message is the one at `offset`; what is pending stays so."""
        self.forget_records()
        self.queue.room_to = 0
        self.pending.move_to(offset)
        self.barrier = NO_BARRIER
        self._committed = offset
        self.change()

    def unacknowledged(self):
        """Of a stream: the lowest offset that was sent and not acknowledged, or the cursor."""
        cdef int64_t lowest = self.pending.cursor
        for item in self.consumers:
            lowest = (<QueueConsumer> item).unacknowledged(lowest)
        return before_barrier(self, lowest)

    def review(self):
        """Apply changed rules, or the rights of a consumer that is connected again. Return the offset to which the
        group of a stream returns because a consumer may receive what was passed over, or None."""
        return review_rights(self)

    # ---- what changes ----

    # Milliseconds that never go back while the process runs, and may be stored.
    cdef int64_t clock(self) noexcept:
        return self.queue.hub.now + self.queue.hub.queues.epoch

    # There may be something to give to somebody: looked at once, at the end of the iteration.
    cdef int note(self) except -1:
        if not self.has_news:
            self.has_news = True
            self.queue.hub.queues._news.append(self)
            self.queue.hub.queues.wake()
        return 0

    # Python has something to do: records to read, messages to read again, dead letters.
    cdef int call(self) except -1:
        if not self.wants_call:
            self.wants_call = True
            self.queue.hub.queues._calls.append(self)
            self.queue.hub.queues.wake()
        return 0

    cdef int change(self) except -1:
        self.is_changed = True
        if not self.is_listed:
            self.is_listed = True
            self.queue.hub.queues._changed.append(self)
            self.queue.hub.ingest.open_changes += 1
            schedule_flush(self.queue.hub)
        return 0

    def take_changes(self):
        """(number of this change, head or None, [(window, value or None)]): what has to be stored."""
        self.mark += 1
        self.is_changed = False
        head, windows = self.pending.take_changes()
        return self.mark, head, windows

    def stored(self, uint64_t mark):
        """The changes up to this number are durable: what was given to consumers by them is sent."""
        cdef Planned* item
        self.queue.hub.update_clock()
        while self.planned_count and self.planned[self.planned_at].mark <= mark:
            item = &self.planned[self.planned_at]
            send_planned(self, item)
            self.drop_planned()
        if self.planned_count == 0:
            self.planned_at = 0
            if self.planned_capacity > 4 * GIVEN_AT_ONCE:
                free(self.planned)
                self.planned = NULL
                self.planned_capacity = 0
        self.note()

    def sweep(self):
        """What is due: messages whose consumer took too long, or whose time to wait is over."""
        cdef QueueConsumer consumer
        self.queue.hub.update_clock()
        due = self.pending.take_due(self.clock(), GIVEN_AT_ONCE, self.max_deliveries)
        for _offset, _deliveries, _became, number in due:
            consumer = self.find_consumer(number)
            if consumer is not None and consumer.unsettled:
                consumer.unsettled -= 1
        if due:
            self.change()
            self.call()
        return len(due)

    @property
    def next_due(self):
        """Seconds until something is due, or None."""
        cdef int64_t due = self.pending.next_due()
        if due < 0:
            return None
        self.queue.hub.update_clock()
        return max(due - self.clock(), 0) / 1000

    # ---- giving messages to consumers ----

    cdef int work(self) except -1:
        self.has_news = False
        if not self.is_paused and self.consumers:
            if self.held_count:
                release_some(self)
            if self.again:
                self.give_again()
            if self.packs:
                self.give()
            if not self.is_reading and self.buffered < BUFFERED_LOW:
                self.call()
        if not self.again and self.pending.ready_count:
            self.call()
        return 0

    # The next messages, as far as there are consumers with room.
    cdef int give(self) except -1:
        cdef RecordPack pack
        cdef RecordView record
        cdef EnvelopeView view
        cdef QueueConsumer consumer
        cdef size_t before
        cdef bint has_room
        cdef uint32_t given = 0
        cdef int64_t due = self.clock() + self.visibility
        cdef int64_t cursor = self.pending.cursor
        while self.packs:
            pack = <RecordPack> self.packs[0]
            while True:
                before = self.pack_at
                if not pack.next(&self.pack_at, &record):
                    break
                if record.offset < self.pending.cursor:
                    continue
                if not self.is_readable(&record, &view):
                    self.pending.skip_to(record.offset + 1)
                    continue
                consumer = self.choose(&view, &has_room)
                if not has_room or given == GIVEN_AT_ONCE or (not self.queue.is_stream and self.pending.is_full()):
                    self.pack_at = before
                    if has_room and given == GIVEN_AT_ONCE:
                        self.note()
                    return self.note_moved(cursor)
                given += 1
                if consumer is None or (self.held_count and comes_later(self, &view)):
                    if not self.queue.is_stream:
                        hold_message(self, record.offset, &view)
                    elif not pass_over(self, record.offset, &view):
                        self.pack_at = before
                        return self.note_moved(cursor)
                    continue
                if self.queue.is_stream:
                    self.pending.skip_to(record.offset + 1)
                    consumer.send(&record, &view, 1)
                else:
                    self.pending.claim(record.offset, consumer.number, due)
                    consumer.unsettled += 1
                    self.plan(pack, &record, &view, consumer, 1)
                    consumer.waiting += 1
            self.drop_pack()
        return self.note_moved(cursor)

    # Of a stream the cursor alone is not worth storing: it goes on from what is committed.
    cdef int note_moved(self, int64_t cursor) except -1:
        return self.change() if self.pending.cursor != cursor and not self.queue.is_stream else 0

    # Whether the record is for this group at all, now.
    cdef bint is_readable(self, const RecordView* record, EnvelopeView* view) except -1:
        cdef Hub hub = self.queue.hub
        if record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, view, &hub.record_props):
            self.damaged += 1
            return False
        if view.expires_at and view.expires_at <= hub.wall:
            self.expired += 1               # it never becomes pending
            hub.counters.dropped[<int> DROP_EXPIRED] += 1
            return False
        if self._filter is not None and not self.is_wanted(view):
            self.filtered += 1
            return False
        return self.queue.removed is None or not is_removed(self.queue, record.offset)

    # Rare: the first pack is used up.
    cdef int drop_pack(self) except -1:
        self.pack_at = 0
        self.buffered -= <uint64_t> self.packs[0].size
        del self.packs[0]
        return 0

    # Messages whose turn it is again.
    cdef int give_again(self) except -1:
        cdef Hub hub = self.queue.hub
        cdef RecordPack pack
        cdef RecordView record
        cdef EnvelopeView view
        cdef QueueConsumer consumer
        cdef const PendingEntry* entry
        cdef size_t before
        cdef bint has_room
        cdef uint32_t deliveries
        cdef int64_t due = self.clock() + self.visibility
        while self.again:
            pack = <RecordPack> self.again[0]
            while True:
                before = self.again_at
                if not pack.next(&self.again_at, &record):
                    break
                entry = self.pending.find(record.offset)
                if entry == NULL or entry.state != ENTRY_READY:
                    continue
                if entry.deliveries >= self.max_deliveries:
                    # its consumer left, or the broker ended, while it had it for the last time
                    self.pending.bury(record.offset, 0, REASON_DELIVERIES)
                    self.change()
                    self.call()
                    continue
                if (record.value_size == NO_VALUE
                        or get_envelope(record.value, record.value_size, &view, &hub.record_props)
                        or (view.expires_at and view.expires_at <= hub.wall)):
                    self.pending.settle(record.offset, 0)       # it has expired while it waited
                    self.expired += 1
                    hub.counters.dropped[<int> DROP_EXPIRED] += 1
                    self.change()
                    continue
                consumer = self.choose(&view, &has_room)
                if not has_room:
                    self.again_at = before
                    return 0
                if self.released:
                    take_up(self, record.offset)
                if consumer is None:
                    hold_message(self, record.offset, &view)
                    continue
                deliveries = self.pending.claim_again(record.offset, consumer.number, due)
                consumer.unsettled += 1
                self.plan(pack, &record, &view, consumer, deliveries)
                consumer.waiting += 1
                self.redelivered += 1 if deliveries > 1 else 0
                self.change()
            self.again_at = 0
            del self.again[0]
        return 0

    # By the topic under which it is delivered.
    cdef bint is_wanted(self, const EnvelopeView* view) except -1:
        cdef const uint8_t* topic
        cdef uint32_t size = 0
        topic = delivered_topic(self.queue, view, &size)
        return filter_matches(<const uint8_t*> PyBytes_AS_STRING(self._filter), PyBytes_GET_SIZE(self._filter),
                              topic, size)

    # In turn, among those with room that may receive the message. None with has_room: no such consumer may.
    cdef QueueConsumer choose(self, const EnvelopeView* view, bint* has_room):
        cdef uint32_t i, n = <uint32_t> len(self.consumers)
        cdef QueueConsumer consumer
        has_room[0] = False
        for i in range(n):
            consumer = <QueueConsumer> PyList_GET_ITEM(self.consumers, (self.turn + i) % n)
            if consumer.has_room():
                has_room[0] = True
                if has_all_rights(consumer) or may_have(consumer, view):
                    self.turn = (self.turn + i + 1) % n
                    return consumer
        return None

    cdef QueueConsumer find_consumer(self, uint32_t number):
        for item in self.consumers:
            if (<QueueConsumer> item).number == number:
                return <QueueConsumer> item
        return None

    cdef int plan(self, RecordPack pack, const RecordView* record, const EnvelopeView* view, QueueConsumer consumer,
                  uint32_t deliveries) except -1:
        cdef Planned* larger
        cdef Planned* item
        cdef uint32_t capacity
        if self.planned_at + self.planned_count == self.planned_capacity:
            if self.planned_at >= self.planned_count and self.planned_at:
                memmove(self.planned, self.planned + self.planned_at, self.planned_count * sizeof(Planned))
                self.planned_at = 0
            else:
                capacity = self.planned_capacity * 2 + 32
                larger = <Planned*> realloc(self.planned, capacity * sizeof(Planned))
                if larger == NULL:
                    raise MemoryError()
                self.planned = larger
                self.planned_capacity = capacity
        item = &self.planned[self.planned_at + self.planned_count]
        self.planned_count += 1
        Py_INCREF(pack)
        Py_INCREF(consumer)
        item.pack = <void*> pack
        item.consumer = <void*> consumer
        item.record = record[0]
        item.view = view[0]
        item.mark = self.mark + 1
        item.deliveries = deliveries
        return 0

    # The first of those that are planned.
    cdef void drop_planned(self) noexcept:
        cdef Planned* item = &self.planned[self.planned_at]
        self.planned_at += 1
        self.planned_count -= 1
        Py_DECREF(<object> item.pack)
        Py_DECREF(<object> item.consumer)

    # ---- settlement ----

    # RESOLVED, UNKNOWN_MESSAGE or OTHERS_MESSAGE.
    cdef int settle_one(self, QueueConsumer consumer, int64_t offset, uint8_t verb) except -1:
        cdef Settlement result
        cdef const PendingEntry* entry
        cdef int64_t delay
        if self.queue.is_stream:
            return self.settle_stream(consumer, offset, verb)
        if verb == VERB_ACK:
            result = self.pending.settle(offset, consumer.number)
        elif verb == VERB_REJECT:
            result = self.pending.bury(offset, consumer.number, REASON_REJECTED)
        else:
            entry = self.pending.find(offset)
            if entry != NULL and entry.state == ENTRY_CLAIMED and entry.consumer == consumer.number \
                    and entry.deliveries >= self.max_deliveries:
                result = self.pending.bury(offset, consumer.number, REASON_DELIVERIES)
                self.call()
            else:
                delay = self.delay_after((entry.reason & NACKS) + 1 if entry != NULL else 1)
                result = self.pending.nack(offset, consumer.number, self.clock() + delay, NULL)
        if result != SETTLED:
            return UNKNOWN_MESSAGE if result == NOT_PENDING else OTHERS_MESSAGE
        if consumer.unsettled:
            consumer.unsettled -= 1
        if verb == VERB_ACK:
            self.acknowledged += 1
        elif verb == VERB_REJECT:
            self.rejected += 1
            self.call()
        else:
            self.nacked += 1
            self.call()                     # its timer may have to ring sooner
        self.change()
        self.note()
        return RESOLVED

    # Milliseconds a message waits after its n-th nack.
    cdef int64_t delay_after(self, uint32_t nacks) noexcept:
        cdef double delay = self.backoff
        cdef uint32_t i
        for i in range(1, nacks):
            delay *= self.multiplier
            if delay >= self.max_backoff:
                break
        return <int64_t> min(delay, self.max_backoff)

    cdef int settle_stream(self, QueueConsumer consumer, int64_t offset, uint8_t verb) except -1:
        if offset < 0 or offset >= self.pending.cursor:
            return UNKNOWN_MESSAGE
        if (verb == VERB_REJECT or (verb == VERB_ACK and self.auto_commit)) and may_move(consumer):
            if before_barrier(self, offset + 1) > self._committed:
                self._committed = before_barrier(self, offset + 1)
                self.change()
        if verb == VERB_ACK:
            self.acknowledged += 1
        return RESOLVED

    def settle(self, int64_t offset):
        """Whoever has it: it is done. Of dead letters, and of operators."""
        cdef const PendingEntry* entry = self.pending.find(offset)
        cdef QueueConsumer consumer
        if entry == NULL:
            return False
        consumer = self.find_consumer(entry.consumer) if entry.consumer else None
        self.pending.settle(offset, 0)
        if self.released:
            take_up(self, offset)
        if consumer is not None and consumer.unsettled:
            consumer.unsettled -= 1
        if self.reasons.pop(offset, None) is not None:
            self.reason_changes[offset] = None
        self.change()
        self.note()
        return True

    def decide(self, int64_t offset, str verb not None):
        """What an operator says of a message that is pending, whoever has it: `ack`, `nack`, `reject`, or `claim`: any
        consumer may have it at once. False: it is not pending, or on its way to the dead letters."""
        cdef const PendingEntry* entry = self.pending.find(offset)
        cdef QueueConsumer consumer
        cdef int64_t due
        if entry == NULL or entry.state == ENTRY_DEAD:
            return False
        self.queue.hub.update_clock()
        consumer = self.find_consumer(entry.consumer) if entry.state == ENTRY_CLAIMED else None
        if verb == "ack":
            self.pending.settle(offset, 0)
            self.acknowledged += 1
        elif verb == "reject":
            self.pending.bury(offset, 0, REASON_REJECTED)
            self.rejected += 1
        elif entry.deliveries >= self.max_deliveries:
            self.pending.bury(offset, 0, REASON_DELIVERIES)
        elif verb == "nack":
            due = self.clock() + self.delay_after((entry.reason & NACKS) + 1)
            self.pending.nack(offset, 0, due, NULL)
            self.nacked += 1
        else:
            self.pending.give_up(offset)
        if consumer is not None and consumer.unsettled:
            consumer.unsettled -= 1
        self.change()
        self.call()
        self.note()
        return True

    def skip_to(self, int64_t offset):
        """What is before the offset and was not given to anybody is not any more."""
        if offset > self.pending.cursor:
            self.pending.skip_to(offset)
            self.change()

    def wake(self):
        """Something outside has changed: it is not paused any more."""
        self.note()

    @property
    def clock_ms(self):
        self.queue.hub.update_clock()
        return self.clock()
