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
        self.bindings = Trie(cache_topics=match_cache)
        self._open_queues = []
        self._queue_news = []
        self._changed_groups = []
        self._queue_calls = []
        self._confirmations = []
        self.retained = RetainedTree()
        self.random_state = self.trie.seed
        self._awaiting = []
        self._log_waiters = []
        self._received = []
        self._open_feeds = []
        self._lane_news = []
        self._dirty_lanes = []
        self._tell_soon = self._tell_lanes
        self._stashed = []
        self._group_stash = {}
        self._unsaved = []
        self._device_news = []
        self._devices_soon = self._tell_devices
        self.packs_in_flight = 4
        self.application_flush = 10
        self._flush_soon = self._flush_all
        self.turns = Turns(self)
        self.configure(**limits)
        self.update_clock()
        self.queue_epoch = self.wall - self.now

    def __dealloc__(self):
        cdef uint32_t i
        for i in range(self._dirty_count):
            Py_DECREF(<object> self._dirty[i])
        for i in range(self._open_count):
            Py_DECREF(<object> self._packs[self._open_packs[i]])
        free(self._packs)
        free(self._open_packs)
        free(self._dirty)
        free(self._connections)
        free(self._read_buffer)
        buffer_free(&self._props)
        buffer_free(&self._templates)
        buffer_free(&self._lane_props)
        buffer_free(&self._queue_props)
        buffer_free(&self._queue_topic)
        free(self._own_retained.items)

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
        self.max_packet_size = max_packet_size
        self.connect_packet_size = connect_packet_size
        self.max_topic_levels = max_topic_levels
        self.max_topic_length = max_topic_length
        self.max_user_properties = max_user_properties
        self.receive_maximum = receive_maximum
        self.max_inflight = max_inflight
        self.max_queued_messages = max_queued_messages
        self.max_queued_bytes = max_queued_bytes
        self.topic_alias_maximum = topic_alias_maximum
        self.max_retained_messages = max_retained_messages
        self.max_retained_bytes = max_retained_bytes
        self.retained_share = max_retained_share
        self.shares_anonymous = shares_anonymous
        self.high_watermark = write_high_watermark
        self.low_watermark = write_low_watermark
        self.flush_size = min(write_high_watermark, <uint32_t> FLUSH_SIZE)
        self.connect_timeout = <int64_t> (connect_timeout * 1000)
        self.patience = <int64_t> (backpressure_seconds * 1000)
        self.drop_oldest = queue_overflow == "drop-oldest"
        self.maximum_qos = maximum_qos
        self.retain_available = retain_available
        self.turns.budget = match_steps
        self.strategy = <ShareStrategy> <int> STRATEGIES.index(shared_strategy)
        self.limit_rates(**(rates or {}))

    def limit_rates(self, *, incoming=(), outgoing=(), total=(), device=()):
        """How many messages may pass: (messages, seconds) each, which all have to hold. From each publisher, with QoS 0
        to each client whose session ends with its connection, both together of everybody, into the store of DEVICE
        clients."""
        read_rates(&self.incoming_rates, incoming)
        read_rates(&self.outgoing_rates, outgoing)
        read_rates(&self.total_rates, total)
        read_rates(&self.stored_rates, device)
        self.limits_rates = bool(incoming or outgoing or total)

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
        if self._queue_news:
            work_queues(self)
        if has_more_open(self):
            submit_due(self)
        if self._queue_calls:
            call_queues(self)
        self._flush_scheduled = False
        self._room_given = 0
        if self._queue_news or self._queue_calls or self._changed_groups:
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
        if self._open_count or self._retained_pack is not None:
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
        self._packs = <void**> calloc(partitions, sizeof(void*))
        self._open_packs = <uint32_t*> calloc(partitions, sizeof(uint32_t))
        if self._packs == NULL or self._open_packs == NULL:
            raise MemoryError()
        self._submit = submit
        self.ingest_mode = <IngestMode> <int> INGEST_MODES.index(mode)
        self.ingest_partitions = partitions
        self.ingest_hash = <HashFunction> <int> HASH_FUNCTIONS.index(hash_function)
        self.ingest_limit, self.largest_record = max_pending, largest_record
        self.keeps_state = keeps_state
        self.gathering.is_on, self.gathering.linger, self.gathering.ack_linger = gathers, linger_ms, ack_linger_ms
        self._collect = collect if gathers else None
        self.gathering.linger_bytes = min(<uint64_t> LINGER_BYTES, max_pending // 2)
        self._submit_soon = self._submit_late

    def stop_gathering(self):
        """Submit the collected publishes now, and all later ones at the end of their iteration."""
        self.gathering.is_on = False
        if self._collect is not None:
            collect(self)
        self._collect = None
        self._submit_late()

    @property
    def is_quiet(self):
        """Whether nothing waits for the batch under way to become durable."""
        return self.gathering.is_quiet

    def _submit_late(self):
        self.gathering.timer_at = 0
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
        self.committed = ticket
        self.ingest_pending -= size
        if ticket == self.ticket:
            self.gathering.is_quiet = False
        if self.gathering.is_on:
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
        if self._confirmations:
            confirm(self, ticket, failures > 0)
        if self._log_waiters and self.ingest_pending <= self.ingest_limit // 2:
            waiters, self._log_waiters = self._log_waiters, []
            for connection in waiters:
                self.loop.call_soon((<Connection> connection).unblock)

    # ---- the logs of APPLICATION clients ----

    def deliver_packs(self, on_lanes, on_detach, *, uint32_t packs_in_flight=4, uint32_t flush_after=10):
        """`on_lanes([lane, ...])` is told, once per iteration, which lanes can take more or have PUBRELs waiting for a
        context; `on_detach(session)` that the connection of a session with lanes goes."""
        self._on_lanes = on_lanes
        self._on_detach = on_detach
        self.packs_in_flight = max(packs_in_flight, 1)
        self.application_flush = max(flush_after, 1)

    def _tell_lanes(self):
        cdef list news = self._lane_news
        self._lanes_scheduled = False
        self._lane_news = []
        for lane in news:
            (<Lane> lane).has_news = False
        if self._on_lanes is not None:
            self._on_lanes(news)

    def take_dirty_lanes(self):
        """Lanes whose context has changed since their last snapshot; the caller takes one of each."""
        cdef list lanes = self._dirty_lanes
        self._dirty_lanes = []
        for lane in lanes:
            (<Lane> lane).is_listed = False
        return [lane for lane in lanes if (<Lane> lane).is_dirty and not (<Lane> lane).is_closed]

    def dispatch(self, RecordPack pack not None, uint32_t partition, Round dispatched not None, bint is_replay=False,
                 size_t position=0, bint is_adoption=False, int64_t until=-1):
        """Writes the durable records of a partition to the packs of the feeds that are to have them, until they are
        taken; how many records could not be read. `is_replay`: they may be older than a session. Where
        `dispatch_position` is not -1, the rest waits for a subscriber: go on from there when `is_stalled` is False.
        `is_adoption`: only for sessions that are marked so, and only records before the offset `until`."""
        self._is_replay = is_replay
        self._dispatch_until = until
        self._is_adoption = is_adoption
        return dispatch_pack(self, pack, partition, &dispatched.hold, position)

    # ---- other brokers ----

    def join(self, uint32_t node):
        """This broker among others on the same log: records say that it was this one that took the message."""
        self.node = node
        self._joined_at = clock_ms(CLOCK_REALTIME)

    def spread(self, bint is_spread):
        """Whether others are there now."""
        self.is_spread = is_spread

    @property
    def is_stalled(self):
        """Whether the subscriber that dispatch() stopped for is still congested, or a long match is not finished."""
        if self.turns.dispatch_waits:
            return True
        if self._stalled_by is not None and not (self._stalled_by.congested and self._stalled_by.connected):
            self._stalled_by = None
        return self._stalled_by is not None

    def not_logged(self, RecordPack pack not None):
        """The log did not take these publishes: retained messages among them are not on their way any more."""
        cdef size_t position = 0
        cdef RecordView record
        cdef EnvelopeView view
        while pack.next(&position, &record):
            if (record.value_size != NO_VALUE and not get_envelope(record.value, record.value_size, &view,
                                                                   &self._lane_props) and view.retain):
                counts_take(&self._own_retained, hash_bytes(view.topic, view.topic_size, self.trie.seed))

    def count_group(self, bytes share_filter not None):
        """(connected, all) members of `$share/<name>/<filter>` here."""
        cdef ShareGroup* group = self.trie.find_group(share_filter)
        cdef uint32_t i, connected = 0
        if group == NULL:
            return 0, 0
        for i in range(group.count):
            connected += (<Session> group.members[i].owner).connection is not None
        return connected, group.count

    def give_turns(self, bytes share_filter not None, uint32_t first, uint32_t count, uint32_t turns):
        """Of so many turns of the group, at all brokers, `count` from `first` on are those of its members here; none
        at all: nobody else has members. Until `forget_turns`, a group with persistent members goes by the numbers
        before, too."""
        cdef ShareGroup* group = self.trie.find_group(share_filter)
        if group == NULL:
            return
        group.old_turns, group.old_from, group.old_count = group.turns, group.turn_from, group.turn_count
        if group.turns == 0:
            group.old_turns, group.old_from, group.old_count = 1, 0, 1      # all of them were
        group.turns, group.turn_from, group.turn_count = turns, first, count

    def forget_turns(self, bytes share_filter not None):
        """Everybody knows the new numbers."""
        cdef ShareGroup* group = self.trie.find_group(share_filter)
        if group != NULL:
            group.old_turns = 0

    def take_filled(self):
        """The packs filled since the last time, one for each feed and partition: [(feed, partition, pack)]."""
        return take_filled(self)

    def feed_group(self, bytes share_filter not None, Feed feed):
        """Messages of `$share/<name>/<filter>` are written to the feed, once; None ends it. False without members."""
        cdef ShareGroup* group = self.trie.find_group(share_filter)
        if group == NULL:
            return False
        group.feed = <void*> feed if feed is not None else NULL
        return True

    # ---- persistent DEVICE clients ----

    def store_devices(self, on_devices, on_detach, *, double persist_after=0.1):
        """`on_devices([session, ...])` is told, once per iteration, whose stored messages were acknowledged or who can
        take more; `on_detach(session)` that a client has gone, with what was not safe in its stash."""
        self._on_devices = on_devices
        self._on_device_detach = on_detach
        self.persist_after = <int64_t> (persist_after * 1000)

    def has_devices(self, bytes share_filter not None):
        """Whether a persistent DEVICE is a member of the group."""
        cdef ShareGroup* group = self.trie.find_group(share_filter)
        return group != NULL and is_logged_group(group)

    def _tell_devices(self):
        cdef list news = self._device_news
        self._devices_scheduled = False
        self._device_news = []
        for session in news:
            (<Session> session).has_device_news = False
        self._on_devices(news)

    def sweep_devices(self, *, bint waits=True):
        """Messages that clients have not acknowledged for a while go to the store: see take_stashed. All of them, if it
        does not wait."""
        cdef list unsaved = self._unsaved
        cdef Session s
        self._unsaved = []
        self.now = clock_ms(CLOCK_MONOTONIC)
        for session in unsaved:
            s = <Session> session
            s.is_unsaved = not s._ended and stash_window(self, s, <uint32_t> self.persist_after if waits else 0)
            if s.is_unsaved:
                self._unsaved.append(s)

    def take_stashed(self):
        """Records for the store: [(session, pack, packet ids in flight, how many at the front were sent already)], one
        each; and {$share/name/filter: pack}."""
        cdef list stashed = self._stashed, taken = []
        cdef dict groups = self._group_stash
        cdef Session s
        self._stashed = []
        if groups:
            self._group_stash = {}
        for session in stashed:
            s = <Session> session
            taken.append((s, s.stash, s.ids_in_flight(), s.stash_sent))
            s.stash = None
            s.stash_sent = 0
        return taken, groups

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
                elif c.session.congested and self.now - c.session.congested_since >= self.patience:
                    c.session.give_up()
            elif c.state == CLOSING:
                if self.now - c.last_packet > LINGER:
                    late.append(c)
            elif self.now - c.last_packet > self.connect_timeout:
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
            return publish_to_queues(self, &view, origin, expires_at)
        match = self.trie.match_within(view.topic, view.topic_size,
                                       hash_bytes(view.topic, view.topic_size, self.trie.seed), self.turns.budget)
        if match == NULL:
            return self.turns.publish_later(name, (topic, payload, qos, retain, properties, expiry, origin))
        try:
            # wills and results of queries; what an operator clears is no message
            if (self.capturing and (origin is not None or qos)
                    and capture(self, &view, origin, expires_at, &ticket, &text)):
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
                            partition_of(view.topic, view.topic_size, self.ingest_partitions, self.ingest_hash), match,
                            True)
                if qos:
                    await_open(self, WAIT_NONE_LONGER)
        finally:
            match_unref(match)

    # ---- durable queues ----

    def serve_queues(self, find_queue, on_queues, on_detach, on_relay=None):
        """`find_queue(topic, is_settlement)` is asked for the queue of a settlement, or to make one for a topic that no
        queue is bound to; `on_queues([group, ...])`, once per iteration, to read records, to read some again, or to see
        to dead letters; `on_detach(session)` is told that the connection of a consumer goes; `on_relay(connection,
        topic, properties, token)` takes the settlement of a queue that is elsewhere, see Connection.answer_relayed."""
        self._find_queue, self._on_queues = find_queue, on_queues
        self._on_queue_detach, self._on_relay = on_detach, on_relay

    def bind_queue(self, DurableQueue queue not None, bytes topic_filter not None):
        """What is published to topics of the filter goes to the queue; filters outside $queue/ capture."""
        if self.bindings.subscribe(queue, topic_filter, 0, 0) and not topic_filter.startswith(b"$queue/"):
            self.capturing += 1

    def publish_to_queues(self, Subscriber client not None, bytes client_id not None, bytes username,
                          list entries not None):
        """Publish (topic, payload, properties, expires_at) tuples for a client of any front-end. Return for each of
        them 0, or the number of the answer that says why it is refused, see `answer_text`."""
        return publish_entries(self, client, client_id, username, entries)

    def when_durable(self, on_done not None):
        """Call `on_done(is_durable)` when everything that was published or settled until now is stored, or when the log
        or the store has refused part of it."""
        if self.ticket == self.committed and not has_open(self) and not self._changed_groups:
            self.loop.call_soon(on_done, True)
        else:
            self._confirmations.append((self.ticket + (1 if has_open(self) or self._changed_groups else 0), on_done))

    def unbind_queue(self, DurableQueue queue not None):
        for topic_filter, _options, _identifier in self.bindings.subscriptions(queue):
            if not topic_filter.startswith(b"$queue/"):
                self.capturing -= 1
        self.bindings.remove(queue)

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
        if self.ingest_pending or self.turns.is_busy:
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
