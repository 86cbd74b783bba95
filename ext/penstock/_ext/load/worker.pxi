# The workers of a Load: each a thread with an epoll and connections of its own, which goes through the phases of a run.


@cython.final
cdef class Team:
    """The memory that all workers of a run look at."""

    cdef Common common

    def __cinit__(self, options):
        cdef int i, scenario = SCENARIOS.index(options.scenario), part = PARTS.index(options.part)
        cdef uint64_t bits = SEEN_BITS
        cdef Common* common = &self.common
        if scenario != PUBLISH_ONLY and part != PUBLISH_PART:
            common.subscriber_count = options.subs * options.groups if scenario == FANIN else options.n
        if part != SUBSCRIBE_PART and scenario not in (IDLE, STORM):
            common.publisher_count = 1 if scenario == FANOUT else options.n
            common.stream_count = common.subscriber_count if scenario == FANOUT else common.publisher_count
        while options.retain and bits < options.count and bits < SEEN_BITS_MAX:
            bits *= 2
        common.size = options.threads
        common.seats = <Seat*> calloc(common.size, sizeof(Seat))
        common.streams = <Arrivals**> calloc(max(1, common.stream_count), sizeof(Arrivals*))
        if common.seats == NULL or common.streams == NULL:
            raise MemoryError()
        for i in range(common.size):
            common.seats[i].bell = -1
        for i in range(common.stream_count):
            common.streams[i] = stream_new(bits)
            if common.streams[i] == NULL:
                raise MemoryError()
        for i in range(common.size):
            common.seats[i].latency = <Histogram*> calloc(1, sizeof(Histogram))
            common.seats[i].bell = load_bell()
            if common.seats[i].latency == NULL or common.seats[i].bell < 0:
                raise MemoryError()

    def __dealloc__(self):
        cdef int i
        for i in range(self.common.size if self.common.seats != NULL else 0):
            free(self.common.seats[i].latency)
            if self.common.seats[i].bell >= 0:
                close(self.common.seats[i].bell)
        for i in range(self.common.stream_count if self.common.streams != NULL else 0):
            free(self.common.streams[i])
        free(self.common.streams)
        free(self.common.seats)


cdef Totals sum_of(const Common* common) noexcept nogil:
    cdef Totals total = common.seats[0].total
    cdef uint64_t* sums = <uint64_t*> &total
    cdef const uint64_t* parts
    cdef size_t field
    cdef int i
    for i in range(1, common.size):
        parts = <const uint64_t*> &common.seats[i].total
        for field in range(sizeof(Totals) // sizeof(uint64_t)):
            sums[field] += parts[field]
    return total


@cython.final
cdef class Worker:
    """Some of the connections of a run, in one thread."""

    cdef readonly object options
    cdef Team team
    cdef Common* common             # of the team
    cdef Seat* seat                 # there
    cdef object tls, tls_view
    cdef bytes address, subscriber_address, ack_topic, group_property
    cdef int number, family, epoll_fd, scenario, part, qos, version, settle
    cdef int client_count, publisher_count, subscriber_count, pending_count, opened_count
    cdef uint32_t size, groups      # publisher i is for the subscriber i % groups; 0 = any
    cdef const uint8_t* address_at
    cdef const uint8_t* subscriber_address_at
    cdef const uint8_t* ack_topic_at
    cdef const uint8_t* group_at
    cdef uint32_t address_size, ack_topic_size, group_size
    cdef uint64_t window, e2e, count, options_count, keep_alive, warmup, duration
    cdef double rate
    cdef bint is_measuring, is_published, in_order, subscribes, is_abrupt, has_queue, has_session, keeps_no_buffer
    cdef bint has_news, waits_for_others, in_turn
    cdef Client* clients
    cdef Client* publishers         # behind the subscribers in `clients`
    cdef uint8_t* read_buffer
    cdef Buffer spare               # of the publisher that has written all: the next one fills what is in the caches
    cdef uint64_t spare_prepared    # messages in it
    cdef uint32_t spare_pattern_size
    cdef int* pids
    cdef int pid_count
    cdef uint64_t planned, pings, releases, news
    cdef uint64_t published_first, published_last, publishing_end   # of the measured time
    cdef uint64_t started_at, measure_from, measure_until, drain, connect_until
    cdef uint64_t received_before   # the last rest
    cdef uint32_t turn
    cdef Usage before, opened, first, last

    def __cinit__(self, Team team, int number, options):
        self.epoll_fd = -1
        self.team, self.common, self.seat, self.number = team, &team.common, &team.common.seats[number], number
        self.read_buffer = <uint8_t*> malloc(READ_MAX)
        self.pids = <int*> calloc(max(1, len(options.pids)), sizeof(int))
        if self.read_buffer == NULL or self.pids == NULL:
            raise MemoryError()

    def __init__(self, Team team, int number, options):
        self.options = options
        self.scenario, self.part = SCENARIOS.index(options.scenario), PARTS.index(options.part)
        self.qos, self.version, self.settle = options.qos, options.version, options.settle
        # A retained message is removed by an empty one.
        self.size = 0 if options.retain and options.forget else options.size
        self.window, self.e2e, self.count = options.window, options.e2e, options.count
        self.options_count = self.count
        self.warmup, self.duration = <uint64_t> (options.warmup * 1e9), <uint64_t> (options.secs * 1e9)
        self.keep_alive = options.keepalive
        if self.scenario == P2P:
            self.groups = options.n
        elif options.groups > 1:
            self.groups = options.groups
        self.has_queue, self.has_session = bool(options.queue), bool(options.session)
        self.is_abrupt, self.subscribes = options.abrupt, options.subscribe
        # Members of a shared subscription are not ordered among each other, and retained messages are not at all.
        self.in_order = options.subs == 1 and not options.retain
        self.keeps_no_buffer = self.scenario == IDLE
        self.in_turn = options.in_turn and not options.rate
        self.drain = <uint64_t> (options.drain * 1e9)
        self.tls = options.tls
        self.tls_view = PyMemoryView_FromMemory(<char*> self.read_buffer, READ_MAX, 0x200)
        self.family, self.address = resolve(options.host, options.port)
        self.subscriber_address = resolve(options.host, options.subscriber_port or options.port)[1]
        self.address_at, self.address_size = self.address, len(self.address)
        self.subscriber_address_at = self.subscriber_address
        self.ack_topic = text_field(f"$queue/{options.queue}/$ack")
        self.group_property = bytes((USER_PROPERTY,)) + text_field("group-id") + text_field(QUEUE_GROUP)
        self.ack_topic_at, self.ack_topic_size = self.ack_topic, len(self.ack_topic)
        self.group_at, self.group_size = self.group_property, len(self.group_property)
        for i, pid in enumerate(options.pids):
            self.pids[i] = pid
        self.pid_count = len(options.pids)
        self.make_epoll()
        self.make_clients()
        self.rate = options.rate * self.publisher_count / max(1, self.common.publisher_count)
        self.waits_for_others = (
            self.common.size > 1 and self.publisher_count and self.e2e and self.scenario != P2P)
        self.before = self.opened = self.first = self.last = usage_now(self.pids, self.pid_count)
        self.connect_until = self.before.at + <uint64_t> (options.connect_limit * 1e9)
        if self.part == RECEIVE_PART:
            self.is_measuring = True        # the first message may come right behind the CONNACK

    def __dealloc__(self):
        cdef int i
        for i in range(self.client_count if self.clients != NULL else 0):
            if self.clients[i].fd >= 0 and self.clients[i].state != DEAD:
                hang_up(self, &self.clients[i])
            free(self.clients[i].held)
            free(self.clients[i].pattern)
            free(self.clients[i].unsettled)
            buffer_free(&self.clients[i].out)
        free(self.clients)
        buffer_free(&self.spare)
        free(self.read_buffer)
        free(self.pids)
        if self.epoll_fd >= 0:
            close(self.epoll_fd)

    cdef int make_epoll(self) except -1:
        cdef epoll_event event
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise LoadError("out of open files")
        event.events, event.data.ptr = EPOLLIN, NULL
        epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, self.seat.bell, &event)
        return 0

    # Arrivals of a publisher's messages are noted by one thread only: all who share a subscription are with the lead.
    # That has enough to do then, if there are more than two of them.
    cdef bint is_mine(self, bint is_subscriber, int index) noexcept:
        if self.scenario == FANIN and self.options.groups == 1:
            if is_subscriber:
                return self.number == 0
            if self.common.size > 2 and self.common.subscriber_count:
                return self.number == 1 + index % (self.common.size - 1)
        return self.number == index % self.common.size

    cdef int make_clients(self) except -1:
        cdef int i, subscribers = self.common.subscriber_count, publishers = self.common.publisher_count
        for i in range(subscribers):
            self.subscriber_count += self.is_mine(True, i)
        for i in range(publishers):
            self.publisher_count += self.is_mine(False, i)
        self.client_count = self.subscriber_count + self.publisher_count
        self.clients = <Client*> calloc(max(1, self.client_count), sizeof(Client))
        if self.clients == NULL:
            raise MemoryError()
        self.publishers = self.clients + self.subscriber_count
        cdef Client* c = self.clients
        cdef bint is_subscriber
        for i in range(subscribers + publishers):
            is_subscriber = i < subscribers
            if not self.is_mine(is_subscriber, i if is_subscriber else i - subscribers):
                continue
            c.fd, c.state, c.is_subscriber = -1, DEAD, is_subscriber
            c.index = i if is_subscriber else i - subscribers
            if not c.is_subscriber:
                self.make_pattern(c)
            if publishers and c.is_subscriber == (self.scenario == FANOUT):
                c.arrivals = self.common.streams[c.index]
            c += 1
        return 0

    cdef int make_pattern(self, Client* c) except -1:
        cdef bytes payload = b""
        expiry = {"message_expiry": self.options.expiry} if self.options.expiry else {}
        topic = self.options.topic_of(c.index)
        if self.options.retain:
            topic += "/" + "0" * TOPIC_DIGITS
        if self.size:
            payload = bytes(8) + (<int> c.index).to_bytes(4, "little") + bytes(4) + b"x" * (self.size - STAMP_SIZE)
        cdef bytes packet = packets.build_publish(
            topic, payload, qos=self.qos, retain=self.options.retain, packet_id=1 if self.qos else 0,
            version=self.version, **expiry)
        c.pattern_size = len(packet)
        c.stamp_at = c.pattern_size - self.size
        c.id_at = c.stamp_at - (2 if self.qos else 0) - (1 if self.version == 5 else 0) - (5 if expiry else 0)
        if self.options.retain:
            c.digits_at = c.id_at - TOPIC_DIGITS
        c.pattern = <uint8_t*> malloc(c.pattern_size)
        if c.pattern == NULL:
            raise MemoryError()
        memcpy(c.pattern, <const uint8_t*> packet, c.pattern_size)
        return 0

    # ---- the phases of a run ----

    def step(self, double seconds):
        """Runs for about so long; False when the run is over. Raises LoadError."""
        cdef uint64_t until = now_ns() + <uint64_t> (seconds * 1e9)
        with nogil:
            while self.seat.phase != DONE and now_ns() < until:
                if peek(&self.common.is_over):
                    self.finish()
                elif self.seat.phase == OPENING:
                    self.opening_turn()
                elif self.seat.phase == OPENED:
                    self.opened_turn()
                elif self.scenario == IDLE:
                    self.idle_turn()
                elif self.scenario == STORM:
                    self.storm_turn()
                else:
                    self.traffic_turn(until)
        return self.seat.phase != DONE

    cdef bint all_reached(self, uint64_t phase) noexcept nogil:
        cdef int i
        for i in range(self.common.size):
            if peek(&self.common.seats[i].phase) < phase:
                return False
        return True

    cdef uint64_t expected(self, const Totals* total) noexcept nogil:
        cdef uint64_t each = <uint64_t> self.common.subscriber_count if self.scenario == FANOUT else 1
        if self.part == RECEIVE_PART:
            return self.options_count * <uint64_t> self.common.publisher_count * each
        if self.part == PUBLISH_PART:
            return total.published if self.qos else 0
        return total.published * each

    cdef bint is_complete(self, const Totals* total) noexcept nogil:
        cdef int i
        cdef const Seat* seat
        for i in range(self.common.size):
            seat = &self.common.seats[i]
            if peek(&seat.unsent) or peek(&seat.unacknowledged) or peek(&seat.settlements_open):
                return False
        return total.received - total.twice >= self.expected(total)

    cdef int opening_turn(self) except -1 nogil:
        cdef int wanted = self.subscriber_count if self.part == RECEIVE_PART else self.client_count
        if self.scenario == STORM:
            wanted = 0          # connecting is what is measured
        while self.opened_count < wanted and self.pending_count < PENDING_MAX:
            open_client(self, &self.clients[self.opened_count])
            self.opened_count += 1
        if self.seat.ready_count < wanted:
            wait_events(self, SECOND // 50)
        if self.seat.ready_count == wanted:
            poke(&self.seat.phase, OPENED)
        elif now_ns() > self.connect_until:
            self.fail_to_open(wanted)
        return 0

    cdef int fail_to_open(self, int wanted) except -1 with gil:
        raise LoadError(f"only {self.seat.ready_count} of {wanted} connections were ready in time")

    cdef int opened_turn(self) except -1 nogil:
        if self.number == 0 and not self.common.begin_at and self.all_reached(OPENED):
            self.opened = usage_now(self.pids, self.pid_count)
            poke(&self.common.last_progress, self.opened.at)
            poke(&self.common.begin_at, self.opened.at)
        if peek(&self.common.begin_at):
            self.begin(peek(&self.common.begin_at))
            return 0
        return wait_events(self, SECOND // 1000)

    cdef void begin(self, uint64_t now) noexcept nogil:
        self.started_at = self.measure_from = now
        self.first.thread_cpu = usage_now(NULL, 0).thread_cpu   # it was made by another thread
        self.measure_until = UINT64_MAX
        if not self.count:
            if self.scenario != IDLE:
                self.measure_from += self.warmup
            self.measure_until = self.measure_from + self.duration
        self.is_published = self.part == SUBSCRIBE_PART or self.part == RECEIVE_PART    # there is nothing to publish
        poke(&self.seat.phase, DRAINING if self.is_published else WARMING)

    cdef void begin_measuring(self) noexcept nogil:
        self.first = usage_now(self.pids, self.pid_count)
        self.published_first = self.seat.total.published
        self.is_measuring = True
        poke(&self.seat.phase, MEASURING)

    cdef void end_publishing(self, uint64_t now) noexcept nogil:
        cdef int i
        self.is_published = True
        self.published_last, self.publishing_end = self.seat.total.published, now
        if self.rate > 0 and (not self.count or self.seat.total.published < self.count * self.publisher_count):
            note_lag(self, now)
        self.count_open()
        for i in range(self.publisher_count):
            read_late(self, &self.publishers[i], False)
        poke(&self.common.last_progress, now)
        poke(&self.seat.phase, DRAINING)
        if not self.count:
            self.last = usage_now(self.pids, self.pid_count)
            self.is_measuring = False

    # What publishers still have to write, and what nobody has answered yet. A connection that is lost is told as that.
    cdef void count_open(self) noexcept nogil:
        cdef int i
        cdef uint64_t unsent = 0, unacknowledged = 0
        cdef const Client* c
        for i in range(self.publisher_count):
            c = &self.publishers[i]
            unsent += buffer_size(&c.out) > 0
            if self.qos and c.state == READY and c.sent > c.acked:
                unacknowledged += c.sent - c.acked
        poke(&self.seat.unsent, unsent)
        poke(&self.seat.unacknowledged, unacknowledged)

    cdef void finish(self) noexcept nogil:
        self.count_open()
        if self.is_measuring or self.last.at == self.before.at:
            self.last = usage_now(self.pids, self.pid_count)
        if self.options_count and self.common.last_progress > self.first.at:
            self.last.at = self.common.last_progress
        self.is_measuring = False
        poke(&self.seat.phase, DONE)
        if self.number == 0:
            poke(&self.common.is_over, 1)

    # The lead decides for all whether the run is over, or stands still.
    cdef void watch(self, uint64_t now) noexcept nogil:
        cdef bint is_published = self.all_reached(DRAINING)     # before the sum: then that is of all messages
        cdef Totals total = sum_of(self.common)
        cdef uint64_t last = peek(&self.common.last_progress), silence = now - last if now > last else 0
        cdef uint64_t connections = <uint64_t> (self.common.subscriber_count + self.common.publisher_count)
        if total.disconnects >= connections or (self.count and silence > STANDSTILL) or (
                is_published and (silence > self.drain or self.is_complete(&total))):
            poke(&self.common.is_over, 1)
        elif not is_published and self.e2e and silence > SECOND:
            # Lost messages must not hold the windows for ever.
            self.seat.total.stalls += 1
            increment(&self.common.releases)
            poke(&self.common.last_progress, now)

    cdef int traffic_turn(self, uint64_t until) except -1 nogil:
        cdef uint64_t now = now_ns(), pause = SECOND // 100, wanted
        if peek(&self.common.is_stopped):
            self.measure_until = self.count = 0
        if self.seat.phase == WARMING and now >= self.measure_from:
            self.begin_measuring()
        if not self.is_published and (now >= self.measure_until or (
                self.count and self.seat.total.published >= self.count * <uint64_t> self.publisher_count)):
            self.end_publishing(now)
        if self.number == 0:
            self.watch(now)
            if self.common.is_over:
                return 0
        if self.is_published:
            self.count_open()
        else:
            self.news = peek(&self.common.arrivals)
            if self.releases != peek(&self.common.releases):
                release_windows(self)
            wanted = <uint64_t> drive_publishers(self)
            pause = wanted if wanted < pause else pause
            if self.e2e and self.rate == 0 and self.common.size == 1:
                self.rest()
        return wait_events(self, pause if now + pause < until else (until - now if until > now else 0))

    # A broker that serves one subscriber after another would wake us for each. While most of much is still with it, we
    # sleep a moment and find what it has written to many; it has enough to do meanwhile.
    cdef void rest(self) noexcept nogil:
        cdef uint64_t received = self.seat.total.received, read = received - self.received_before
        cdef uint64_t under_way = remaining(self.expected(&self.seat.total), received, 0)
        self.received_before = received
        if under_way >= MUCH and 4 * read < under_way:
            under_way *= REST_PER_MESSAGE
            load_nap(under_way if under_way < REST_MAX else REST_MAX)

    # PINGREQ is spread evenly over half the keep-alive.
    cdef int idle_turn(self) except -1 nogil:
        cdef uint64_t now = now_ns(), every = self.keep_alive * SECOND // 2, due
        cdef Client* c
        if self.seat.phase == WARMING:
            self.begin_measuring()
        due = (now - self.started_at) * <uint64_t> self.client_count // every if every else 0
        while self.pings < due:
            c = &self.clients[self.pings % <uint64_t> self.client_count]
            self.pings += 1
            if c.state == READY:
                put_packet(self, c, PINGREQ << 4)
                flush(self, c)
        wait_events(self, SECOND // 100)
        if now_ns() >= self.measure_until or (
                sum_of(self.common).disconnects >= <uint64_t> self.common.subscriber_count):
            self.finish()
        return 0

    # Connect, CONNACK, DISCONNECT, close, again: n connections are under way at any time.
    cdef int storm_turn(self) except -1 nogil:
        cdef uint64_t now = now_ns()
        if self.seat.phase == WARMING and now >= self.measure_from:
            self.begin_measuring()
        if now >= self.measure_until or (self.count and sum_of(self.common).connects >= self.count):
            self.finish()
            return 0
        self.reopen_closed(now)
        return wait_events(self, SECOND // 100)

    cdef int reopen_closed(self, uint64_t now) except -1 nogil:
        cdef int i
        cdef Client* c
        for i in range(self.client_count):
            c = &self.clients[i]
            if c.state == CLOSING and now > c.since + CLOSING_TIME:     # the broker ought to have closed
                self.seat.total.unclosed += 1
                hang_up(self, c)
            if c.state == DEAD:
                c.cycle += 1
                open_client(self, c)
        if self.seat.total.disconnects > STORM_FAILURES_MAX:
            fail(b"more than 1,000 connections failed")
        return 0

    # ---- its end ----

    cdef int say_goodbye(self) except -1:
        cdef int i
        poke(&self.seat.phase, DONE)
        for i in range(self.client_count):
            if self.clients[i].state == READY:
                put_packet(self, &self.clients[i], DISCONNECT << 4)
                flush(self, &self.clients[i])
            else:
                hang_up(self, &self.clients[i])
        return 0

    cdef void hang_up_all(self) noexcept:
        cdef int i
        for i in range(self.client_count):
            hang_up(self, &self.clients[i])
