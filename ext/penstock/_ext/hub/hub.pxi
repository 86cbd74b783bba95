# What all connections of the process share.

DROP_NAMES = ("not_writable", "queue_full", "expired", "too_large", "denied", "retained_full", "session_ended",
              "rate_incoming", "rate_outgoing", "rate_all", "rate_stored", "store_full")
INGEST_MODES = ("none", "persistent", "all")
HASH_FUNCTIONS = ("murmur3_128", "murmur3_32", "sha256", "murmur2")
STRATEGIES = ("round-robin", "random", "sticky", "hash-client", "hash-topic")


cdef inline int64_t clock_ms(clockid_t clock) noexcept:
    cdef timespec t
    clock_gettime(clock, &t)
    return <int64_t> t.tv_sec * 1000 + t.tv_nsec // 1_000_000


@final
cdef class Hub:
    """The trie, the retained messages, the counters, the limits and the output of this loop iteration."""

    def __cinit__(self, loop, **limits):
        self._read_buffer = <uint8_t*> malloc(HEADROOM + READ_SIZE)
        if self._read_buffer == NULL:
            raise MemoryError()
        self._read_view = PyMemoryView_FromMemory(<char*> self._read_buffer + HEADROOM, READ_SIZE, PyBUF_WRITE)

    def __init__(self, loop, *, uint32_t match_cache=100_000, **limits):
        """`loop` is where output is flushed; limits are named as in the settings and checked there."""
        self.loop = loop
        self.trie = Trie(cache_topics=match_cache)
        self.retained = RetainedTree()
        self.random_state = self.trie.seed
        self._awaiting = []
        self._log_waiters = []
        self._received = []
        self.open_feeds = []
        self.desks = []
        self._flush_soon = self._flush_all
        self.turns = Turns(self)
        self.configure(**limits)
        self.update_clock()
        self.queues = QueueDesk(self, Trie(cache_topics=match_cache))

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._dirty_count):
            Py_DECREF(<object> self._dirty[i])
        for i in range(self.ingest.open_count):
            Py_DECREF(<object> self.ingest.packs[self.ingest.open_packs[i]])
        free(self.ingest.packs)
        free(self.ingest.open_packs)
        free(self._dirty)
        free(self._connections)
        free(self._read_buffer)
        buffer_free(&self._props)
        buffer_free(&self._templates)
        buffer_free(&self.record_props)
        free(self.own_retained.items)

    def configure(self, *, uint32_t max_packet_size=1_048_576, uint32_t connect_packet_size=65_536,
                  uint32_t max_topic_levels=32, uint32_t max_topic_length=65_535, uint32_t max_user_properties=64,
                  uint32_t receive_maximum=100, uint32_t max_inflight=1_000, uint32_t max_queued_messages=1_000,
                  uint32_t max_queued_bytes=8_388_608, uint32_t topic_alias_maximum=16,
                  uint64_t max_retained_messages=100_000, uint64_t max_retained_bytes=1_073_741_824,
                  uint32_t write_high_watermark=1_310_720, uint32_t write_low_watermark=655_360,
                  double connect_timeout=10.0, double backpressure_seconds=1.0, str queue_overflow="drop-newest",
                  uint8_t maximum_qos=2, bint retain_available=True, str shared_strategy="round-robin",
                  dict rates=None, uint64_t match_steps=10_000, uint32_t max_retained_share=50,
                  bint shares_anonymous=False):
        """Sets every limit; may be called again while the broker runs."""
        self.limits.max_packet_size = max_packet_size
        self.limits.connect_packet_size = connect_packet_size
        self.limits.max_topic_levels = max_topic_levels
        self.limits.max_topic_length = max_topic_length
        self.limits.max_user_properties = max_user_properties
        self.limits.receive_maximum = receive_maximum
        self.limits.max_inflight = max_inflight
        self.limits.max_queued_messages = max_queued_messages
        self.limits.max_queued_bytes = max_queued_bytes
        self.limits.topic_alias_maximum = topic_alias_maximum
        self.limits.max_retained_messages = max_retained_messages
        self.limits.max_retained_bytes = max_retained_bytes
        self.limits.retained_share = max_retained_share
        self.limits.shares_anonymous = shares_anonymous
        self.limits.high_watermark = write_high_watermark
        self.limits.low_watermark = write_low_watermark
        self.limits.flush_size = min(write_high_watermark, <uint32_t> FLUSH_SIZE)
        self.limits.connect_timeout = <int64_t> (connect_timeout * 1000)
        self.limits.patience = <int64_t> (backpressure_seconds * 1000)
        self.limits.drop_oldest = queue_overflow == "drop-oldest"
        self.limits.maximum_qos = maximum_qos
        self.limits.retain_available = retain_available
        self.turns.budget = match_steps
        self.limits.strategy = <ShareStrategy> <int> STRATEGIES.index(shared_strategy)
        self.limit_rates(**(rates or {}))

    def limit_rates(self, *, incoming=(), outgoing=(), total=(), device=()):
        """How many messages may pass: (messages, seconds) each, which all have to hold. From each publisher, with QoS 0
        to each client whose session ends with its connection, both together of everybody, into the store of DEVICE
        clients."""
        read_rates(&self.rates.incoming, incoming)
        read_rates(&self.rates.outgoing, outgoing)
        read_rates(&self.rates.total, total)
        read_rates(&self.rates.stored, device)
        self.rates.is_on = bool(incoming or outgoing or total)

    cdef void update_clock(self) noexcept:
        self.now = clock_ms(CLOCK_MONOTONIC)
        self.wall = clock_ms(CLOCK_REALTIME)

    # ---- output ----

    # The first output of a connection since its buffer was given away: it is flushed at the end of this iteration.
    cdef int open_output(self, Connection c) except -1:
        cdef void** larger
        if c.usual_output > OUTPUT_GROWN:
            c.make_room()
        if c.websocket != NULL:
            buffer_reserve(&c.out, WS_MAX_HEADER)       # the frame's header is written here when it is sent
            c.out.start = WS_MAX_HEADER
        if c.dirty:
            return 0
        if self._dirty_count == self._dirty_capacity:
            larger = <void**> realloc(self._dirty, (self._dirty_capacity * 2 + 64) * sizeof(void*))
            if larger == NULL:
                raise MemoryError()
            self._dirty = larger
            self._dirty_capacity = self._dirty_capacity * 2 + 64
        Py_INCREF(c)
        self._dirty[self._dirty_count] = <void*> c
        self._dirty_count += 1
        c.dirty = True
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self.loop.call_soon(self._flush_soon)
        return 0

    def _flush_all(self):
        """Once per loop iteration: one write for each connection that has output."""
        cdef uint32_t i, n
        cdef Connection c
        cdef void** batch
        self.counters.flushes += 1
        self.turns.used = 0
        work_desks(self, False)
        if has_more_open(self):
            submit_due(self)
        work_desks(self, True)
        self._flush_scheduled = False
        self._room_given = 0
        if has_waiting(self) or has_more_open(self):
            schedule_flush(self)
        batch = self._dirty
        n = self._dirty_count
        # what becomes dirty meanwhile is flushed in the next iteration
        self._dirty = NULL
        self._dirty_count = self._dirty_capacity = 0
        for i in range(n):
            c = <Connection> batch[i]
            Py_DECREF(c)
            c.dirty = False
            try:
                c.flush()
                if not c.writable:
                    c.settle()
            except BaseException as error:
                c.fail_hard(error)
        if self._dirty == NULL:
            self._dirty = batch
            self._dirty_capacity = n
        else:
            free(batch)
        if self.ingest.open_count or self._retained_pack is not None:
            submit_due(self)        # after the output, which need not wait for it

    # ---- the ingest log ----

    def log_to(self, submit, *, str mode not None, uint32_t partitions, str hash_function="murmur3_128",
               uint64_t max_pending=67_108_864, bint keeps_state=False, uint64_t largest_record=0,
               bint gathers=False, uint32_t linger_ms=0, uint32_t ack_linger_ms=0, collect=None):
        """From now on `submit(ticket, [(partition, pack)], bytes, (retained, received, queued, changed))` gets the
        publishes of each iteration, the pack of retained messages that changed (or None), [(session, its QoS 2 packet
        ids)], [(durable queue, pack)] and the groups of queues whose state changed, or None instead of these four if
        there is nothing of them. `gathers`: the log runs one commit at a time, so publishes stay in the hub until it
        can begin; `is_due` explains the two times. While `is_quiet`, nothing waits for the batch that is submitted: the
        log need not report it before the hub calls `collect()`."""
        self.ingest.packs = <void**> calloc(partitions, sizeof(void*))
        self.ingest.open_packs = <uint32_t*> calloc(partitions, sizeof(uint32_t))
        if self.ingest.packs == NULL or self.ingest.open_packs == NULL:
            raise MemoryError()
        self._submit = submit
        self.ingest.mode = <IngestMode> <int> INGEST_MODES.index(mode)
        self.ingest.partitions = partitions
        self.ingest.hash = <HashFunction> <int> HASH_FUNCTIONS.index(hash_function)
        self.ingest.limit, self.ingest.largest_record = max_pending, largest_record
        self.ingest.keeps_state = keeps_state
        self.ingest.gathering.is_on = gathers
        self.ingest.gathering.linger, self.ingest.gathering.ack_linger = linger_ms, ack_linger_ms
        self._collect = collect if gathers else None
        self.ingest.gathering.linger_bytes = min(<uint64_t> LINGER_BYTES, max_pending // 2)
        self._submit_soon = self._submit_late

    def stop_gathering(self):
        """Submit the collected publishes now, and all later ones at the end of their iteration."""
        self.ingest.gathering.is_on = False
        if self._collect is not None:
            collect(self)
        self._collect = None
        self._submit_late()

    @property
    def ingest_pending(self):
        """Bytes handed over to the log and not yet durable."""
        return self.ingest.pending

    @property
    def ticket(self):
        """Number of the last batch submitted."""
        return self.ingest.ticket

    @property
    def committed(self):
        """Every batch up to this one is durable, or has failed."""
        return self.ingest.committed

    @property
    def is_quiet(self):
        """Whether nothing waits for the batch under way to become durable."""
        return self.ingest.gathering.is_quiet

    def _submit_late(self):
        self.ingest.gathering.timer_at = 0
        self.update_clock()
        submit_due(self)

    def find_received(self, RecordPack pack not None):
        """The QoS 2 messages of persistent sessions in it: (client id, sequence number, packet id, ms) of each."""
        return received_of(self, pack)

    cdef int await_log(self, Connection c) except -1:
        c.awaits_log = True
        self._awaiting.append(c)
        return 0

    def log_committed(self, uint64_t ticket, uint64_t size, uint64_t failures=0):
        """The batch is durable, or failed as a whole. Called in the order of tickets."""
        cdef Connection c
        cdef list awaiting = self._awaiting
        self.ingest.committed = ticket
        self.ingest.pending -= size
        if ticket == self.ingest.ticket:
            self.ingest.gathering.is_quiet = False
        if failures:
            note_failed(self.queues, ticket)
        if self.ingest.gathering.is_on:
            self.update_clock()
            submit_due(self)                # the disk is busy while acknowledgements are sent
        self.counters.log_failures += failures
        self._awaiting = []
        for connection in awaiting:
            c = <Connection> connection
            c.awaits_log = False
            try:
                release_acks(c, failures > 0)
                if c.acks_count:
                    self.await_log(c)
            except BaseException as error:
                c.fail_hard(error)
        if PyList_GET_SIZE(self.queues._confirmations):
            confirm(self.queues, ticket)
        if self._log_waiters and self.ingest.pending <= self.ingest.limit // 2:
            waiters, self._log_waiters = self._log_waiters, []
            for connection in waiters:
                self.loop.call_soon((<Connection> connection).unblock)

    # ---- other brokers ----

    def join(self, uint32_t node):
        """This broker among others on the same log: records say that it was this one that took the message."""
        self.node = node
        self.joined_at = clock_ms(CLOCK_REALTIME)

    def spread(self, bint is_spread):
        """Whether others are there now."""
        self.is_spread = is_spread

    def not_logged(self, RecordPack pack not None):
        """The log did not take these publishes: retained messages among them are not on their way any more."""
        cdef size_t position = 0
        cdef RecordView record
        cdef EnvelopeView view
        while pack.next(&position, &record):
            if (record.value_size != NO_VALUE and not get_envelope(record.value, record.value_size, &view,
                                                                   &self.record_props) and view.retain):
                counts_take(&self.own_retained, hash_bytes(view.topic, view.topic_size, self.trie.seed))

    # ---- connections ----

    cdef int add_connection(self, Connection c) except -1:
        cdef void** larger
        if self.connection_count == self._connection_capacity:
            larger = <void**> realloc(self._connections, (self._connection_capacity * 2 + 64) * sizeof(void*))
            if larger == NULL:
                raise MemoryError()
            self._connections = larger
            self._connection_capacity = self._connection_capacity * 2 + 64
        c.index = self.connection_count
        self._connections[self.connection_count] = <void*> c
        self.connection_count += 1
        self.counters.connects += 1
        return 0

    cdef void remove_connection(self, Connection c) noexcept:
        cdef Connection last
        self.connection_count -= 1
        last = <Connection> self._connections[self.connection_count]
        self._connections[c.index] = <void*> last
        last.index = c.index

    def connections(self):
        """All connections, for administration and draining."""
        cdef uint32_t i
        return [<object> self._connections[i] for i in range(self.connection_count)]

    def tick(self):
        """Twice a second: ends connections that are silent, late or stuck, and the patience with slow subscribers."""
        cdef uint32_t i = 0
        cdef Connection c
        cdef list late = []
        self.update_clock()
        for i in range(self.connection_count):
            c = <Connection> self._connections[i]
            if c.state == CONNECTED:
                if c.keep_alive and not c.blocked and self.now - c.last_packet > c.keep_alive:
                    late.append(c)
                elif c.session.congested and self.now - c.session.congested_since >= self.limits.patience:
                    c.session.give_up()
            elif c.state == CLOSING:
                if self.now - c.last_packet > LINGER:
                    late.append(c)
            elif self.now - c.last_packet > self.limits.connect_timeout:
                late.append(c)
        for connection in late:
            (<Connection> connection).time_out()

    # ---- publishing from Python, rarely: wills, $SYS, administration ----

    def publish(self, str topic not None, bytes payload not None, *, uint8_t qos=0, bint retain=False,
                bytes properties=b"", expiry=None, Session origin=None):
        """Publishes a message of the broker's own, or a will in the name of `origin`. The topic must be valid."""
        cdef bytes name = topic.encode()
        cdef PublishView view
        cdef Match* match
        cdef bint logged
        cdef int64_t expires_at = 0
        cdef uint64_t ticket = 0
        cdef uint8_t text = 0
        if check_topic_name(name, <uint32_t> len(name), 0):
            raise ValueError(f"not a topic name: {topic!r}")
        memset(&view, 0, sizeof(PublishView))
        view.topic, view.topic_size = name, <uint32_t> len(name)
        view.payload, view.payload_size = payload, <uint32_t> len(payload)
        view.props, view.props_size = properties, <uint32_t> len(properties)
        view.qos, view.retain = qos, retain
        self.update_clock()
        if expiry is not None:
            view.expiry, view.has_expiry = expiry, True
            expires_at = self.wall + <int64_t> view.expiry * 1000
        if is_queue_topic(view.topic, view.topic_size):
            return publish_to_queues(self.queues, &view, origin, expires_at)
        match = self.trie.match_within(view.topic, view.topic_size,
                                       hash_bytes(view.topic, view.topic_size, self.trie.seed), self.turns.budget)
        if match == NULL:
            return self.turns.publish_later(name, (topic, payload, qos, retain, properties, expiry, origin))
        try:
            # wills and results of queries; what an operator clears is no message
            if (self.queues.capturing and (origin is not None or qos)
                    and capture(self.queues, &view, origin, expires_at, &ticket, &text)):
                self.counters.dropped[<int> DROP_QUEUE_FULL] += 1
            logged = is_logged(self, qos, retain) and not topic.startswith("$SYS")
            if logged and is_too_large(self, &view, origin):
                self.counters.dropped[<int> DROP_TOO_LARGE] += 1
                return
            route(self, &view, match, origin, expires_at, self.is_spread and logged)
            if retain and may_retain(self, &view, origin):
                store_retained(self, &view, expires_at, origin)
            elif retain:
                leave_unretained(self, &view)
            if logged:
                log_publish(self, &view, origin, expires_at,
                            partition_of(view.topic, view.topic_size, self.ingest.partitions, self.ingest.hash), match,
                            True)
                if qos:
                    await_open(self, WAIT_NONE_LONGER)
        finally:
            match_unref(match)

    # ---- retained messages ----

    def send_retained(self, Session session not None, bytes topic_filter not None, uint8_t options,
                      uint32_t identifier):
        """Queues the retained messages that match a new subscription, in the tree's order, and sends. Those for the log
        of an APPLICATION client are returned: [(feed, partition, pack)]."""
        return send_retained_to(self, session, topic_filter, options, identifier)

    def restore_retained(self, RecordPack pack not None):
        """Retained messages as they were logged, in that order; how many could not be read."""
        return restore_retained_of(self, pack)

    def has_work(self):
        """Whether a connected client still has something to acknowledge or to read, or the log to write."""
        cdef uint32_t i
        cdef Connection c
        if self.ingest.pending or self.turns.is_busy:
            return True
        for i in range(self.connection_count):
            c = <Connection> self._connections[i]
            if c.state == CONNECTED and (c.session.outstanding or c.session.received.count
                                         or buffer_size(&c.out) or c.transport_pending):
                return True
        return False

    def sweep_retained(self, uint32_t limit):
        """Lets go of expired retained messages, a bounded number of looks a call."""
        return self.retained.sweep(self.wall, limit)

    def count_protocol_error(self):
        self.counters.protocol_errors += 1

    def counters_now(self):
        """Every counter and gauge, by name."""
        return counters_of(self)

    @property
    def monotonic_ms(self):
        return self.now


# The end of an iteration at the desks that have something to do: first their work, then what Python is told.
cdef int work_desks(Hub hub, bint is_telling) except -1:
    cdef Py_ssize_t i
    cdef Desk desk
    for i in range(PyList_GET_SIZE(hub.desks)):
        desk = <Desk> PyList_GET_ITEM(hub.desks, i)
        if not desk.is_waiting:
            continue
        try:
            if is_telling:
                desk.tell()
            else:
                desk.work()
        except BaseException as error:
            hub.loop.call_exception_handler({"message": f"{type(desk).__name__} failed", "exception": error})
    return 0


cdef bint has_waiting(Hub hub) noexcept:
    cdef Py_ssize_t i
    for i in range(PyList_GET_SIZE(hub.desks)):
        if (<Desk> PyList_GET_ITEM(hub.desks, i)).is_waiting:
            return True
    return False
