"""The load generator: many MQTT connections in one thread over epoll, packets built once and written in batches.

Every message carries a monotonic timestamp, its publisher and a sequence number, so one process sees loss, duplicates,
reordering and latency. CONNECT, SUBSCRIBE and their answers go through the project's own packets module; PUBLISH and its
acknowledgements are patched and counted here in C, without a Python object per message. `step` runs a while without the
GIL, so that whoever shows the progress, or stops it, has its turn between the steps.

Longer than other files because the connection, the traffic and the phases of a run share one state, which a nogil method
reaches only in its own class.
"""

cimport cython
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy

import os
import socket
import ssl

from penstock._ext.buffer cimport Buffer, buffer_free, buffer_reserve, buffer_size
from penstock._ext.codec cimport (
    CONNACK, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK,
)
from penstock._ext.wire cimport get_be16, get_varint, put_be16, put_varint, varint_size

from penstock._ext import packets


cdef extern from "load_histogram.h" nogil:
    enum:
        HIST_BINS
    ctypedef struct Histogram "struct histogram":
        uint64_t* bins
        uint64_t count
        uint64_t max
    void histogram_record(Histogram* h, uint64_t ns)
    uint64_t histogram_ns(uint64_t bin)
    double histogram_quantile_us(const Histogram* h, double q)
    void histogram_since(const Histogram* h, Histogram* last, Histogram* part)

cdef extern from "load_sequence.h" nogil:
    enum:
        ARRIVED_LATE
        ARRIVED_TWICE
    ctypedef struct Arrivals "struct stream":
        uint64_t next
    Arrivals* stream_new(uint64_t bits)
    int stream_arrive(Arrivals* s, uint64_t seq)

cdef extern from "load_resources.h" nogil:
    ctypedef struct Usage "struct usage":
        uint64_t at
        double broker_cpu
        double own_cpu
        long rss_kb
        long peak_kb
    uint64_t now_ns()
    Usage usage_now(const int* pids, int count)

cdef extern from "sys/epoll.h" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLL_CTL_ADD
        EPOLL_CTL_MOD
        EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        void* ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)

cdef extern from * nogil:
    """
    #include <errno.h>
    #include <netinet/tcp.h>
    #include <netinet/in.h>
    #include <sys/epoll.h>
    #include <sys/prctl.h>
    #include <sys/socket.h>
    #include <unistd.h>

    /* A socket on its way to the address, or -1. */
    static int load_connect(const void *address, unsigned size, int family) {
        int one = 1, fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0) return -1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connect(fd, (const struct sockaddr *)address, size) && errno != EINPROGRESS) {
            int error = errno;
            close(fd);
            errno = error;
            return -1;
        }
        return fd;
    }

    static int load_socket_error(int fd) {
        int error = 0;
        socklen_t size = sizeof error;
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
        return error;
    }

    static void load_reset(int fd) {
        struct linger reset = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
    }

    static int load_wait(int epoll_fd, struct epoll_event *events, int room, uint64_t ns) {
        struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
        return epoll_pwait2(epoll_fd, events, room, &t, NULL);
    }

    static void load_fine_timers(void) { prctl(PR_SET_TIMERSLACK, 1); }
    """
    int load_connect(const void* address, unsigned size, int family)
    int load_socket_error(int fd)
    void load_reset(int fd)
    int load_wait(int epoll_fd, epoll_event* events, int room, uint64_t ns)
    void load_fine_timers()
    ssize_t send(int fd, const void* data, size_t size, int flags)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    int close(int fd)
    enum:
        MSG_NOSIGNAL

cdef enum Scenario:
    P2P
    FANOUT
    FANIN
    PUBLISH_ONLY
    IDLE
    STORM

cdef enum Part:
    WHOLE
    SUBSCRIBE_PART
    PUBLISH_PART
    RECEIVE_PART

cdef enum State:
    CONNECTING
    HANDSHAKE
    WAIT_CONNACK
    WAIT_SUBACK
    READY
    CLOSING
    DEAD

cdef enum Phase:
    OPENING
    WARMING
    MEASURING
    DRAINING
    DONE

cdef enum:
    STAMP_SIZE = 16             # nanoseconds, publisher, sequence number
    SEEN_BITS = 4096
    SEEN_BITS_MAX = 1 << 24
    CHUNK = 64 << 10            # written at a time
    READ_MAX = 1 << 20
    PENDING_MAX = 64            # connections being opened at a time
    EVENTS = 512
    STORM_FAILURES_MAX = 1000
    FIRST_ERROR_CODE = 0x80
    SETTLEMENT_MAX = 63
    UNSETTLED_MAX = 1 << 16
    TOPIC_DIGITS = 8            # of the number at the end of a retained message's topic
    USER_PROPERTY = 0x26
    TLS_AGAIN = -2
    TLS_BROKEN = -3

cdef uint64_t SECOND = 1000000000
cdef uint64_t STANDSTILL = 10 * SECOND

SCENARIOS = ("p2p", "fanout", "fanin", "publish", "idle", "storm")
PARTS = ("all", "subscribe", "publish", "receive")
PHASES = ("opening", "warming up", "measuring", "draining", "done")
QUEUE_GROUP = "load"
SESSION_SECONDS = 3600
cdef tuple STATE_NAMES = (
    "it was being opened", "TLS was being agreed on", "CONNACK was awaited", "SUBACK was awaited", "it was in use",
    "it was being closed", "",
)


class LoadError(Exception):
    """The run cannot be made: the broker is not there, goes away or does not do what the scenario needs."""


class LoadRefused(LoadError):
    """CONNACK said no."""

    def __init__(self, connack):
        super().__init__(f"CONNACK with code {connack.reason}")
        self.connack = connack


# The message-id of a delivery from a queue, as the property it came with.
cdef struct Settlement:
    uint8_t size
    uint8_t[SETTLEMENT_MAX] property

cdef struct Client:
    int fd
    int state
    bint is_subscriber
    bint wants_out              # EPOLLOUT is armed
    uint32_t index              # number among its role, part of its topic
    uint32_t cycle              # storm: how often it has connected
    PyObject* tls               # the SSLSocket that owns fd, or NULL
    uint8_t* held               # an incomplete packet
    uint32_t held_size
    Buffer out                  # bytes not yet written
    uint64_t since              # when the current connection was begun, or its closing
    uint64_t sent               # messages written; of a consumer of a queue: settlements
    uint64_t acked
    uint64_t received           # subscriber: arrivals in the measured time
    uint64_t released           # messages no longer waited for after a stall
    uint16_t packet_id
    uint8_t* pattern            # publisher: a whole PUBLISH, patched per message
    uint32_t pattern_size
    uint32_t id_at
    uint32_t stamp_at
    uint32_t digits_at          # where the topic ends with the sequence number, 0 = it does not
    Arrivals* arrivals          # of this publisher's messages, or in fanout at this subscriber
    Settlement* unsettled       # consumer of a queue: a ring of deliveries yet to be settled
    uint32_t unsettled_at
    uint32_t unsettled_count

cdef struct Totals:
    uint64_t published
    uint64_t received
    uint64_t measured
    uint64_t late
    uint64_t twice
    uint64_t downgraded
    uint64_t refused
    uint64_t corrupt
    uint64_t stalls
    uint64_t connects
    uint64_t unclosed
    uint64_t disconnects


# A function that can raise takes the GIL only in here: one with objects of its own would take it on each return.
cdef int fail(const char* message) except -1 with gil:
    raise LoadError(message.decode())


# How many messages a publisher may still send under one limit.
cdef inline uint64_t remaining(uint64_t limit, uint64_t sent, uint64_t done) noexcept nogil:
    cdef uint64_t open = sent - done if sent > done else 0
    return limit - open if open < limit else 0


# Length of the value of a property of a PUBLISH, or -1 for one that is not allowed there.
cdef int64_t property_size(uint8_t kind, const uint8_t* value, const uint8_t* end) noexcept nogil:
    cdef uint32_t number
    cdef int64_t first
    if kind == 0x01:
        return 1
    if kind == 0x23:
        return 2
    if kind == 0x02:
        return 4
    if kind == 0x0B:
        return get_varint(value, end, &number) or -1
    if kind not in (0x03, 0x08, 0x09, USER_PROPERTY) or end - value < 2:
        return -1
    first = 2 + <int64_t> get_be16(value)
    if kind != USER_PROPERTY:
        return first
    return -1 if end - value < first + 2 else first + 2 + get_be16(value + first)


# The user property message-id in [at, end), with its size; NULL if there is none.
cdef const uint8_t* find_message_id(const uint8_t* at, const uint8_t* end, int64_t* size) noexcept nogil:
    while at < end:
        size[0] = property_size(at[0], at + 1, end)
        if size[0] < 0 or size[0] > end - at - 1:
            return NULL
        if at[0] == USER_PROPERTY and get_be16(at + 1) == 10 and memcmp(at + 3, b"message-id", 10) == 0:
            return at + 1
        at += 1 + size[0]
    return NULL


@cython.final
cdef class Load:
    """One run. `options` has the attributes of penstock.bench.options.LoadOptions."""

    cdef readonly object options
    cdef object tls, tls_view
    cdef bytes address, subscriber_address, ack_topic, group_property
    cdef int family, epoll_fd, scenario, part, qos, version, settle, phase
    cdef int client_count, publisher_count, subscriber_count, ready_count, pending_count, opened_count
    cdef uint32_t size
    cdef const uint8_t* address_at
    cdef const uint8_t* subscriber_address_at
    cdef const uint8_t* ack_topic_at
    cdef const uint8_t* group_at
    cdef uint32_t address_size, ack_topic_size, group_size
    cdef uint64_t window, e2e, count, options_count, keep_alive, warmup, duration
    cdef double rate
    cdef bint is_measuring, is_published, in_order, subscribes, is_abrupt, has_queue, has_session, keeps_no_buffer
    cdef Client* clients
    cdef Client* publishers         # behind the subscribers in `clients`
    cdef uint8_t* read_buffer
    cdef Histogram* latency
    cdef Histogram* shown           # what `take_recent` has told of it; behind it is room for the difference
    cdef Totals total
    cdef int* pids
    cdef int pid_count
    cdef uint64_t fan_min, last_progress, lag_max, settlements_open, planned, pings
    cdef uint64_t started_at, measure_from, measure_until, drain, connect_until
    cdef uint32_t turn
    cdef Usage before, opened, first, last

    def __cinit__(self, options):
        self.epoll_fd = -1
        self.latency = <Histogram*> calloc(3, sizeof(Histogram))
        self.shown = self.latency + 1
        self.read_buffer = <uint8_t*> malloc(READ_MAX)
        self.pids = <int*> calloc(max(1, len(options.pids)), sizeof(int))
        if self.latency == NULL or self.read_buffer == NULL or self.pids == NULL:
            raise MemoryError()

    def __init__(self, options):
        self.options = options
        self.scenario, self.part = SCENARIOS.index(options.scenario), PARTS.index(options.part)
        self.qos, self.version, self.settle = options.qos, options.version, options.settle
        # A retained message is removed by an empty one.
        self.size = 0 if options.retain and options.forget else options.size
        self.window, self.e2e, self.count = options.window, options.e2e, options.count
        self.options_count = self.count
        self.warmup, self.duration = <uint64_t> (options.warmup * 1e9), <uint64_t> (options.secs * 1e9)
        self.rate, self.keep_alive = options.rate, options.keepalive
        self.has_queue, self.has_session = bool(options.queue), bool(options.session)
        self.is_abrupt, self.subscribes = options.abrupt, options.subscribe
        # Members of a shared subscription are not ordered among each other, and retained messages are not at all.
        self.in_order = options.subs == 1 and not options.retain
        self.keeps_no_buffer = self.scenario == IDLE
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
        self.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if self.epoll_fd < 0:
            raise LoadError("out of open files")
        load_fine_timers()
        self.make_clients()
        self.before = self.opened = self.first = self.last = usage_now(self.pids, self.pid_count)
        self.connect_until = self.before.at + <uint64_t> (options.connect_limit * 1e9)
        if self.part == RECEIVE_PART:
            self.is_measuring = True        # the first message may come right behind the CONNACK
        if self.scenario == STORM:
            self.begin()

    def __dealloc__(self):
        cdef int i
        for i in range(self.client_count if self.clients != NULL else 0):
            if self.clients[i].fd >= 0 and self.clients[i].state != DEAD:
                self.hang_up(&self.clients[i])
            free(self.clients[i].held)
            free(self.clients[i].pattern)
            free(self.clients[i].arrivals)
            free(self.clients[i].unsettled)
            buffer_free(&self.clients[i].out)
        free(self.clients)
        free(self.latency)
        free(self.read_buffer)
        free(self.pids)
        if self.epoll_fd >= 0:
            close(self.epoll_fd)

    def step(self, double seconds):
        """Runs for about so long; False when the run is over. Raises LoadError."""
        cdef uint64_t until = now_ns() + <uint64_t> (seconds * 1e9)
        with nogil:
            while self.phase != DONE and now_ns() < until:
                if self.phase == OPENING:
                    self.opening_turn()
                elif self.scenario == IDLE:
                    self.idle_turn()
                elif self.scenario == STORM:
                    self.storm_turn()
                else:
                    self.traffic_turn(until)
        return self.phase != DONE

    def stop(self):
        """No more is published; what is under way is waited for."""
        if self.phase in (OPENING, DONE) or self.scenario in (IDLE, STORM):
            self.finish()
        else:
            self.measure_until = 0
            self.count = 0

    def close(self):
        """Says goodbye on all connections. The broker has a moment to read it: a close with unread input would reset
        the connection before DISCONNECT is read."""
        cdef int i
        self.phase = DONE
        for i in range(self.client_count):
            if self.clients[i].state == READY:
                self.put_packet(&self.clients[i], DISCONNECT << 4)
                self.flush(&self.clients[i])
            else:
                self.hang_up(&self.clients[i])
        try:
            self.wait_events(20_000_000)
        except LoadError:
            pass                        # it is over; nobody asks any more
        for i in range(self.client_count):
            self.hang_up(&self.clients[i])

    @property
    def phase_name(self):
        return PHASES[self.phase]

    @property
    def ready(self):
        return self.ready_count

    def counters(self):
        """What has been counted so far."""
        expected, once = self.expected(), self.total.received - self.total.twice
        return {
            "published": self.total.published, "expected": expected, "received": self.total.received,
            "lost": expected - once if expected > once else 0, "duplicates": self.total.twice,
            "disordered": self.total.late, "downgraded": self.total.downgraded, "refused": self.total.refused,
            "corrupt": self.total.corrupt, "stalls": self.total.stalls, "connects": self.total.connects,
            "unclosed": self.total.unclosed, "disconnects": self.total.disconnects, "measured": self.total.measured,
        }

    def take_recent(self):
        """Count and latencies (µs) of what was measured since the last call."""
        cdef Histogram* part = self.shown + 1
        histogram_since(self.latency, self.shown, part)
        return {"count": part.count, **quantiles(part)}

    def resources(self):
        """Clock (s), CPU-seconds of the broker and of this process, resident KiB of the broker."""
        cdef Usage u = usage_now(self.pids, self.pid_count)
        return u.at / 1e9, u.broker_cpu, u.own_cpu, u.rss_kb

    def latencies(self):
        """The histogram: (µs, count) of the bins that are not empty."""
        return [(histogram_ns(i) / 1e3, self.latency.bins[i]) for i in range(HIST_BINS) if self.latency.bins[i]]

    def result(self):
        """The figures of the measured time."""
        cdef double secs = (self.last.at - self.first.at) / 1e9
        cdef double cpu = self.last.broker_cpu - self.first.broker_cpu, own = self.last.own_cpu - self.first.own_cpu
        options = self.options
        result = {name: getattr(options, name) for name in ("scenario", "n", "subs", "qos", "size", "e2e", "version")}
        result |= {"window": self.window, "target_rate": round(self.rate), "secs": round(secs, 3)}
        per_second = self.total.measured / secs if secs > 0 else 0
        per_cpu = self.total.measured / cpu if cpu > 0 else 0
        if self.scenario == STORM:
            result |= {
                "connects": self.total.connects, "unclosed": self.total.unclosed, "connects_per_s": round(per_second),
                "connects_per_cpu_s": round(per_cpu),
                "cpu_us_per_connect": round(cpu / self.total.measured * 1e6, 2) if self.total.measured else 0,
            }
        else:
            result |= self.opening_result()
        if self.publisher_count:
            result |= self.traffic_result(secs)
            result |= {"rate": round(per_second), "msgs_per_cpu_s": round(per_cpu)}
        if self.scenario != IDLE:
            result |= quantiles(self.latency) | {"max_us": round(self.latency.max / 1e3, 1)}
        return result | {
            "disconnects": self.total.disconnects, "broker_cpu_s": round(cpu, 3),
            "broker_cores": round(cpu / secs, 3) if secs > 0 else 0, "rss_kb_before": self.before.rss_kb,
            "rss_kb": self.last.rss_kb, "rss_kb_peak": self.last.peak_kb, "load_cpu_s": round(own, 3),
            "load_cores": round(own / secs, 3) if secs > 0 else 0,
        }

    def opening_result(self):
        cdef double secs = (self.opened.at - self.before.at) / 1e9
        cdef double cpu = self.opened.broker_cpu - self.before.broker_cpu
        result = {
            "connect_s": round(secs, 3), "connects_per_s": round(self.client_count / secs) if secs > 0 else 0,
            "connects_per_cpu_s": round(self.client_count / cpu) if cpu > 0 else 0,
        }
        if self.scenario == IDLE:
            result["bytes_per_conn"] = round((self.last.rss_kb - self.before.rss_kb) * 1024 / self.client_count)
        return result

    def traffic_result(self, double secs):
        cdef int i
        result = self.counters()
        for name in ("connects", "unclosed", "measured"):
            del result[name]
        rates = [self.clients[i].received / secs for i in range(self.subscriber_count)] if secs > 0 else []
        if rates:
            result |= {"slowest_rate": round(min(rates)), "fastest_rate": round(max(rates))}
        return result | {"send_lag_max_us": round(self.lag_max / 1e3, 1)}

    cdef int make_clients(self) except -1:
        cdef int i
        cdef Client* c
        cdef uint64_t bits = SEEN_BITS
        options = self.options
        self.subscriber_count = options.subs * options.groups if self.scenario == FANIN else options.n
        if self.scenario == PUBLISH_ONLY or self.part == PUBLISH_PART:
            self.subscriber_count = 0
        self.publisher_count = 1 if self.scenario == FANOUT else options.n
        if self.part == SUBSCRIBE_PART or self.scenario in (IDLE, STORM):
            self.publisher_count = 0
        while options.retain and bits < self.count and bits < SEEN_BITS_MAX:
            bits *= 2
        self.clients = <Client*> calloc(max(1, self.subscriber_count + self.publisher_count), sizeof(Client))
        if self.clients == NULL:
            raise MemoryError()
        self.client_count = self.subscriber_count + self.publisher_count
        self.publishers = self.clients + self.subscriber_count
        for i in range(self.client_count):
            c = &self.clients[i]
            c.fd, c.state = -1, DEAD
            c.is_subscriber = i < self.subscriber_count
            c.index = i if c.is_subscriber else i - self.subscriber_count
            if not c.is_subscriber:
                self.make_pattern(c)
            if self.publisher_count and (not c.is_subscriber or self.scenario == FANOUT):
                c.arrivals = stream_new(bits)
                if c.arrivals == NULL:
                    raise MemoryError()
        return 0

    cdef int make_pattern(self, Client* c) except -1:
        cdef bytes payload = b""
        topic = self.options.topic_of(c.index)
        if self.options.retain:
            topic += "/" + "0" * TOPIC_DIGITS
        if self.size:
            payload = bytes(8) + (<int> c.index).to_bytes(4, "little") + bytes(4) + b"x" * (self.size - STAMP_SIZE)
        cdef bytes packet = packets.build_publish(
            topic, payload, qos=self.qos, retain=self.options.retain, packet_id=1 if self.qos else 0, version=self.version)
        c.pattern_size = len(packet)
        c.stamp_at = c.pattern_size - self.size
        c.id_at = c.stamp_at - (2 if self.qos else 0) - (1 if self.version == 5 else 0)
        if self.options.retain:
            c.digits_at = c.id_at - TOPIC_DIGITS
        c.pattern = <uint8_t*> malloc(c.pattern_size)
        if c.pattern == NULL:
            raise MemoryError()
        memcpy(c.pattern, <const uint8_t*> packet, c.pattern_size)
        return 0

    # ---- one connection ----

    cdef int open(self, Client* c) except -1 nogil:
        cdef epoll_event event
        c.state = CONNECTING
        c.held_size = c.out.start = c.out.end = 0
        c.since = now_ns()
        c.fd = load_connect(
            self.subscriber_address_at if c.is_subscriber else self.address_at, self.address_size, self.family)
        if c.fd < 0:
            c.state = DEAD
            self.fail_to_connect(errno)
        event.events, event.data.ptr = EPOLLIN | EPOLLOUT, c
        c.wants_out = True
        if epoll_ctl(self.epoll_fd, EPOLL_CTL_ADD, c.fd, &event):
            fail(b"epoll takes no more connections")
        self.pending_count += 1
        return 0

    cdef int fail_to_connect(self, int error) except -1 with gil:
        raise LoadError(f"cannot connect to {self.options.host}:{self.options.port}: {os.strerror(error).lower()}")

    cdef int connected(self, Client* c) except -1 with gil:
        cdef int error = load_socket_error(c.fd)
        if error:
            self.fail_to_connect(error)
        if self.tls is None:
            return self.send_connect(c)
        plain = socket.socket(fileno=c.fd)
        plain.setblocking(False)        # the descriptor is, but the object does not know
        try:
            wrapped = self.tls.wrap_socket(plain, server_hostname=self.options.host, do_handshake_on_connect=False)
        except OSError:
            plain.detach()
            return self.lose(c)
        Py_INCREF(wrapped)
        c.tls = <PyObject*> wrapped
        c.state = HANDSHAKE
        return self.shake_hands(c)

    cdef int shake_hands(self, Client* c) except -1 with gil:
        try:
            (<object> c.tls).do_handshake()
        except ssl.SSLWantReadError:
            return self.want_out(c, False)
        except ssl.SSLWantWriteError:
            return self.want_out(c, True)
        except ssl.SSLCertVerificationError as error:
            raise LoadError(f"the broker's certificate is not trusted: {error.verify_message}") from None
        except OSError as error:
            raise LoadError(f"no TLS at {self.options.host}:{self.options.port}: {error}") from None
        self.send_connect(c)
        return 0

    cdef int send_connect(self, Client* c) except -1:
        options = self.options
        stays = self.has_session and c.is_subscriber
        properties = {"session_expiry": SESSION_SECONDS} if stays and self.version == 5 and not options.forget else {}
        self.put_bytes(c, packets.build_connect(
            f"{options.session}{c.index}" if stays
            else f"{options.prefix}-{options.name}-{'s' if c.is_subscriber else 'p'}{c.index}-{c.cycle}",
            version=self.version, clean_start=not stays or options.forget, keep_alive=options.keepalive,
            username=options.username, password=options.password, **properties))
        c.state = WAIT_CONNACK
        self.flush(c)
        return 0

    cdef int send_subscribe(self, Client* c) except -1:
        options = self.options
        asked = []
        if self.has_queue:
            asked = [("consumer-group", QUEUE_GROUP)]
            if options.start:
                asked.append(("x-stream-offset", options.start))
            if options.prefetch:
                asked.append(("prefetch", str(options.prefetch)))
        self.put_bytes(c, packets.build_subscribe(
            1, [(options.filter_of(c.index), self.qos)], version=self.version, user_properties=asked or None))
        c.state = WAIT_SUBACK
        self.flush(c)
        return 0

    cdef int put_bytes(self, Client* c, bytes packet) except -1:
        memcpy(buffer_reserve(&c.out, len(packet)), <const uint8_t*> packet, len(packet))
        return 0

    cdef int put_packet(self, Client* c, int first) except -1 nogil:
        cdef uint8_t* p = buffer_reserve(&c.out, 2)
        p[0], p[1] = <uint8_t> first, 0
        return 0

    cdef inline int put_ack(self, Client* c, int packet_type, const uint8_t* packet_id) except -1 nogil:
        cdef uint8_t* p = buffer_reserve(&c.out, 4)
        p[0] = <uint8_t> (packet_type << 4 | (2 if packet_type == PUBREL else 0))
        p[1], p[2], p[3] = 2, packet_id[0], packet_id[1]
        return 0

    cdef int want_out(self, Client* c, bint wanted) noexcept nogil:
        cdef epoll_event event
        if wanted == c.wants_out:
            return 0
        event.events, event.data.ptr = EPOLLIN | (EPOLLOUT if wanted else 0), c
        epoll_ctl(self.epoll_fd, EPOLL_CTL_MOD, c.fd, &event)
        c.wants_out = wanted
        return 0

    cdef int flush(self, Client* c) except -1 nogil:
        cdef ssize_t k
        while buffer_size(&c.out):
            if c.tls == NULL:
                k = send(c.fd, c.out.data + c.out.start, buffer_size(&c.out), MSG_NOSIGNAL)
            else:
                k = self.tls_send(c)
            if k == -1 and errno == EINTR:
                continue
            if k == TLS_AGAIN or (k == -1 and errno == EAGAIN):
                break
            if k < 0:
                return self.lose(c)
            c.out.start += <uint32_t> k
        if buffer_size(&c.out):
            return self.want_out(c, True)
        c.out.start = c.out.end = 0
        if self.keeps_no_buffer:
            buffer_free(&c.out)
        return self.want_out(c, False)

    cdef ssize_t tls_send(self, Client* c) except? -4 with gil:
        try:
            return (<object> c.tls).send(
                PyMemoryView_FromMemory(<char*> c.out.data + c.out.start, buffer_size(&c.out), 0x100))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return TLS_AGAIN
        except OSError:
            return TLS_BROKEN

    # As recv, as much as there is: what OpenSSL has decrypted already is not announced by epoll.
    cdef ssize_t tls_receive(self, Client* c, uint32_t at) except? -4 with gil:
        cdef ssize_t total = 0, k
        try:
            while at + total < READ_MAX:
                k = (<object> c.tls).recv_into(self.tls_view[at + total:])
                if k <= 0:
                    break
                total += k
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return total or TLS_AGAIN
        except OSError:
            return total
        return total

    cdef void hang_up(self, Client* c) noexcept with gil:
        if c.fd < 0 or c.state == DEAD:
            return
        c.state = DEAD
        if c.tls != NULL:
            try:
                (<object> c.tls).close()
            except OSError:
                pass
            Py_DECREF(<object> c.tls)
            c.tls = NULL
        else:
            close(c.fd)
        c.fd = -1

    cdef int lose(self, Client* c) except -1 nogil:
        if c.state == DEAD or self.phase == DONE:
            return 0
        if self.scenario != STORM and c.state != READY:
            self.fail_by_close(c)
        self.hang_up(c)
        self.total.disconnects += 1
        return 0

    cdef int fail_by_close(self, Client* c) except -1 with gil:
        raise LoadError(f"the broker closed a connection while {STATE_NAMES[c.state]}")

    cdef int become_ready(self, Client* c, uint64_t now) except -1 nogil:
        c.state = READY
        self.pending_count -= 1
        self.ready_count += 1
        self.total.connects += 1
        if self.scenario != STORM:
            return 0
        if self.is_measuring:
            self.total.measured += 1
            histogram_record(self.latency, now - c.since)
        if self.is_abrupt and c.tls == NULL:
            load_reset(c.fd)
            c.state = DEAD
            return 0
        # The broker closes first, so no port of ours is left in TIME_WAIT and the whole cycle is in the measurement.
        self.put_packet(c, DISCONNECT << 4)
        c.since = now
        c.state = CLOSING
        return 0

    # ---- what arrives ----

    cdef int on_connack(self, Client* c, bytes body, uint64_t now) except -1:
        connack = packets.parse_connack(body, self.version)
        options = self.options
        if connack.reason:
            raise LoadRefused(connack)
        limits = connack.properties
        if self.qos > limits.get("maximum_qos", 2):
            raise LoadError(f"the broker takes QoS {int(limits['maximum_qos'])} at most, not {self.qos}")
        if self.publisher_count and self.publishers[0].pattern_size > limits.get("maximum_packet_size", UINT32_MAX):
            raise LoadError(f"the broker takes packets of {limits['maximum_packet_size']} bytes at most")
        self.window = min(self.window, limits.get("receive_maximum", 65535))
        self.keep_alive = min(self.keep_alive, limits.get("server_keep_alive", 65535))
        subscribes = self.subscribes if self.scenario in (IDLE, STORM) else c.is_subscriber
        if self.part == RECEIVE_PART and self.has_session:
            if not connack.session_present:
                raise LoadError(f"the session of {options.session}{c.index} is gone")
            subscribes = False
        if subscribes and not options.forget:
            self.send_subscribe(c)
        else:
            self.become_ready(c, now)
        return 0

    cdef int on_suback(self, Client* c, bytes body, uint64_t now) except -1:
        (code,) = packets.parse_suback(body, self.version).reasons
        if code >= FIRST_ERROR_CODE:
            raise LoadError(f"the broker refuses the subscription to {self.options.filter_of(c.index)} (code {code})")
        if code < self.qos:
            raise LoadError(f"the broker grants QoS {code} instead of {self.qos}")
        self.become_ready(c, now)
        return 0

    cdef int on_publish(self, Client* c, int first, const uint8_t* p, const uint8_t* end, uint64_t now) except -1 nogil:
        cdef int qos = first >> 1 & 3, k
        cdef uint32_t properties = 0
        p += 2 + get_be16(p)
        if qos:
            self.put_ack(c, PUBACK if qos == 1 else PUBREC, p)
            p += 2
        if self.version == 5:
            k = get_varint(p, end, &properties)
            p += k
            if k <= 0 or end - p < <int64_t> properties:
                self.total.corrupt += 1
                return 0
            if self.settle >= 0 and not self.settle_delivery(c, p, p + properties):
                self.total.corrupt += 1
            p += properties
        self.total.downgraded += qos < self.qos
        if end - p == <int64_t> self.size:
            self.count_arrival(c, p, now)
        else:
            self.total.corrupt += 1
        return 0

    cdef inline void count_arrival(self, Client* subscriber, const uint8_t* payload, uint64_t now) noexcept nogil:
        cdef uint64_t stamp
        cdef uint32_t publisher, seq
        cdef int how
        memcpy(&stamp, payload, 8)
        memcpy(&publisher, payload + 8, 4)
        memcpy(&seq, payload + 12, 4)
        if publisher >= <uint32_t> self.publisher_count or (
                self.size > STAMP_SIZE and payload[self.size - 1] != c"x"):
            self.total.corrupt += 1
            return
        how = stream_arrive(
            subscriber.arrivals if self.scenario == FANOUT else self.publishers[publisher].arrivals, seq)
        self.total.received += 1
        self.last_progress = now
        if how == ARRIVED_TWICE:
            self.total.twice += 1
        elif how == ARRIVED_LATE and self.in_order:
            self.total.late += 1
        if self.is_measuring:
            self.total.measured += 1
            subscriber.received += 1
            histogram_record(self.latency, now - stamp if now > stamp else 0)

    cdef int count_ack(self, Client* c, uint64_t now) except -1 nogil:
        c.acked += 1
        if c.is_subscriber:
            self.settlements_open -= 1
            return self.settle_waiting(c)
        if self.scenario == PUBLISH_ONLY or self.part == PUBLISH_PART:
            self.total.received += 1
            self.total.measured += self.is_measuring
            self.last_progress = now
        return 0

    cdef int on_packet(self, Client* c, int first, const uint8_t* body, const uint8_t* end, uint64_t now) except -1 nogil:
        cdef int kind = first >> 4
        cdef bint is_refused = end - body > 2 and body[2] >= FIRST_ERROR_CODE
        if kind == PUBLISH:
            return self.on_publish(c, first, body, end, now)
        if kind == PUBACK or kind == PUBCOMP:
            self.total.refused += is_refused
            return self.count_ack(c, now)
        if kind == PUBREC:
            if not is_refused:
                return self.put_ack(c, PUBREL, body)
            c.acked += 1
            self.total.refused += 1
        elif kind == PUBREL:
            return self.put_ack(c, PUBCOMP, body)
        elif kind == DISCONNECT:
            return self.lose(c)
        elif kind == CONNACK or kind == SUBACK:
            return self.on_answer(c, kind, body, <uint32_t> (end - body), now)
        return 0

    cdef int on_answer(self, Client* c, int kind, const uint8_t* body, uint32_t size, uint64_t now) except -1 with gil:
        try:
            if kind == CONNACK:
                return self.on_connack(c, body[:size], now)
            return self.on_suback(c, body[:size], now)
        except (packets.ProtocolViolation, ValueError) as error:
            raise LoadError(f"what answers there does not speak MQTT as expected: {error}") from None

    cdef int keep_incomplete(self, Client* c, const uint8_t* rest, uint32_t size) except -1 nogil:
        cdef uint8_t* held
        if size == READ_MAX:
            fail(b"the broker sent a packet larger than 1 MiB")
        if size:
            held = <uint8_t*> realloc(c.held, size)
            if held == NULL:
                fail(b"out of memory")
            c.held = held
            memcpy(held, rest, size)
        c.held_size = size
        return 0

    cdef int on_readable(self, Client* c) except -1 nogil:
        cdef ssize_t k
        cdef uint64_t now
        cdef uint32_t size = 0
        cdef int head
        cdef const uint8_t* p = self.read_buffer
        cdef const uint8_t* end
        if c.held_size:
            memcpy(self.read_buffer, c.held, c.held_size)
        if c.tls == NULL:
            k = recv(c.fd, self.read_buffer + c.held_size, READ_MAX - c.held_size, 0)
        else:
            k = self.tls_receive(c, c.held_size)
        if k == TLS_AGAIN or (k == -1 and (errno == EAGAIN or errno == EINTR)):
            return 0
        if k <= 0:
            if c.state != CLOSING:
                return self.lose(c)
            self.hang_up(c)
            return 0
        now = now_ns()
        end = p + c.held_size + k
        while c.state != DEAD and end - p >= 2:
            head = get_varint(p + 1, end, &size)
            if head < 0:
                fail(b"what answers there does not speak MQTT")
            if head == 0 or end - p - 1 - head < <int64_t> size:
                break
            self.on_packet(c, p[0], p + 1 + head, p + 1 + head + size, now)
            p += 1 + head + size
        if c.state == DEAD:
            return 0
        self.keep_incomplete(c, p, <uint32_t> (end - p))
        if buffer_size(&c.out) and not c.wants_out:
            self.flush(c)
        return 0

    cdef int wait_events(self, uint64_t ns) except -1 nogil:
        cdef epoll_event[EVENTS] events
        cdef int i, count = load_wait(self.epoll_fd, events, EVENTS, ns)
        cdef Client* c
        for i in range(count):
            c = <Client*> events[i].data.ptr
            if c.state == HANDSHAKE:
                self.shake_hands(c)
                continue
            if c.state != DEAD and events[i].events & EPOLLOUT:
                if c.state == CONNECTING:
                    self.connected(c)
                else:
                    self.flush(c)
            if c.state not in (DEAD, CONNECTING, HANDSHAKE) and events[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                self.on_readable(c)
        if self.scenario == FANOUT:
            self.find_slowest_subscriber()
        return 0

    cdef void find_slowest_subscriber(self) noexcept nogil:
        cdef int i
        self.fan_min = UINT64_MAX
        for i in range(self.subscriber_count):
            if self.clients[i].state == READY and self.clients[i].arrivals.next < self.fan_min:
                self.fan_min = self.clients[i].arrivals.next

    # ---- consumers of a queue ----

    # A PUBLISH to $queue/NAME/$ack for a delivery, in which two properties are never longer than 127 bytes.
    cdef int put_settlement(self, Client* c, const Settlement* s) except -1 nogil:
        cdef uint32_t size = self.ack_topic_size + (2 if self.settle else 0) + 1 + s.size + self.group_size
        cdef uint8_t* p = buffer_reserve(&c.out, 1 + varint_size(size) + size)
        p[0] = <uint8_t> (PUBLISH << 4 | self.settle << 1)
        p = put_varint(p + 1, size)
        memcpy(p, self.ack_topic_at, self.ack_topic_size)
        p += self.ack_topic_size
        if self.settle:
            put_be16(p, next_packet_id(c))
            p += 2
        p[0] = <uint8_t> (s.size + self.group_size)
        memcpy(p + 1, s.property, s.size)
        memcpy(p + 1 + s.size, self.group_at, self.group_size)
        c.sent += 1
        if not self.settle:
            self.settlements_open -= 1
        return 0

    cdef int settle_waiting(self, Client* c) except -1 nogil:
        while c.unsettled_count and (not self.settle or c.sent - c.acked < self.window):
            self.put_settlement(c, &c.unsettled[c.unsettled_at])
            c.unsettled_at = (c.unsettled_at + 1) % UNSETTLED_MAX
            c.unsettled_count -= 1
        return 0

    # The delivery with the properties in [at, end) is to be settled; 0 if it cannot be.
    cdef int settle_delivery(self, Client* c, const uint8_t* at, const uint8_t* end) except -1 nogil:
        cdef int64_t size
        cdef Settlement* s
        cdef const uint8_t* value = find_message_id(at, end, &size)
        if value == NULL or size + 1 > SETTLEMENT_MAX or c.unsettled_count == UNSETTLED_MAX:
            return 0
        if c.unsettled == NULL:
            c.unsettled = <Settlement*> malloc(UNSETTLED_MAX * sizeof(Settlement))
            if c.unsettled == NULL:
                fail(b"out of memory")
        s = &c.unsettled[(c.unsettled_at + c.unsettled_count) % UNSETTLED_MAX]
        c.unsettled_count += 1
        s.size = <uint8_t> (size + 1)
        s.property[0] = USER_PROPERTY
        memcpy(s.property + 1, value, size)
        self.settlements_open += 1
        self.settle_waiting(c)
        return 1

    # ---- what is published ----

    cdef uint64_t room(self, const Client* c) noexcept nogil:
        cdef uint64_t room = UINT64_MAX, other, seen
        if self.count:
            room = self.count - c.sent if self.count > c.sent else 0
        if self.qos:
            other = remaining(self.window, c.sent, c.acked)
            room = other if other < room else room
        if self.e2e:
            seen = self.fan_min if self.scenario == FANOUT else c.arrivals.next
            other = remaining(self.e2e, c.sent, seen if seen > c.released else c.released)
            room = other if other < room else room
        return room

    cdef int put_messages(self, Client* c, uint64_t count, uint64_t now) except -1 nogil:
        cdef uint8_t* p = buffer_reserve(&c.out, <uint32_t> (count * c.pattern_size))
        cdef uint32_t seq
        self.total.published += count
        for _ in range(count):
            memcpy(p, c.pattern, c.pattern_size)
            if self.qos:
                put_be16(p + c.id_at, next_packet_id(c))
            seq = <uint32_t> c.sent
            c.sent += 1
            if self.size:
                memcpy(p + c.stamp_at, &now, 8)
                memcpy(p + c.stamp_at + 12, &seq, 4)
            if c.digits_at:
                put_digits(p + c.digits_at, seq)
            p += c.pattern_size
        return 0

    # Sends in batches of at least a quarter of the window, as a busy client does, rather than one by one as it opens.
    cdef int pump(self, Client* c) except -1 nogil:
        cdef uint64_t limit = self.window if self.qos else UINT64_MAX, batch, most, room
        if self.e2e and self.e2e < limit:
            limit = self.e2e
        batch = 1 if limit == UINT64_MAX or limit < 4 else limit // 4
        most = CHUNK // c.pattern_size if c.pattern_size < CHUNK else 1
        while c.state == READY and buffer_size(&c.out) == 0:
            room = self.room(c)
            if room == 0 or (room < batch and not (self.count and room == self.count - c.sent)):
                return 0
            self.put_messages(c, room if room < most else most, now_ns())
            self.flush(c)
            if limit == UINT64_MAX:
                return 0        # unlimited: give the reading side its turn
        return 0

    # Fixed total rate, round robin over the publishers. Returns the ns until the next message is due.
    cdef int64_t pace(self) except -1 nogil:
        cdef uint64_t now = now_ns(), lag, next_at
        cdef uint64_t due = <uint64_t> (<double> (now - self.started_at) * (self.rate / 1e9))
        cdef int skipped = 0
        cdef Client* c
        while self.planned < due and skipped < self.publisher_count:
            c = &self.publishers[self.turn % <uint32_t> self.publisher_count]
            self.turn += 1
            if c.state != READY or self.room(c) == 0:
                skipped += 1
                continue
            lag = now - self.started_at - <uint64_t> (<double> self.planned * 1e9 / self.rate)
            if self.is_measuring and lag > self.lag_max:
                self.lag_max = lag
            self.put_messages(c, 1, now_ns())
            if not c.wants_out:
                self.flush(c)
            self.planned += 1
            skipped = 0
        if self.planned < due:
            return SECOND // 1000       # all windows are full: wait for the broker
        next_at = self.started_at + <uint64_t> (<double> (self.planned + 1) * 1e9 / self.rate)
        now = now_ns()
        return <int64_t> (next_at - now) if next_at > now else 0

    cdef int64_t drive_publishers(self) except -1 nogil:
        cdef int i
        if self.rate > 0:
            return self.pace()
        for i in range(self.publisher_count):
            self.pump(&self.publishers[i])
        if not self.e2e and not self.qos:
            for i in range(self.publisher_count):   # unlimited: do not sleep while some publisher can still write
                if self.publishers[i].state == READY and buffer_size(&self.publishers[i].out) == 0:
                    return 0
        return SECOND // 100

    # Lost messages must not hold the end-to-end window for ever.
    cdef void release_stalled(self, uint64_t now) noexcept nogil:
        cdef int i
        for i in range(self.publisher_count):
            self.publishers[i].released = self.publishers[i].sent
        self.total.stalls += 1
        self.last_progress = now

    # ---- the phases of a run ----

    cdef uint64_t expected(self) noexcept nogil:
        cdef uint64_t each = <uint64_t> self.subscriber_count if self.scenario == FANOUT else 1
        if self.part == RECEIVE_PART:
            return self.options_count * <uint64_t> self.publisher_count * each
        if self.part == PUBLISH_PART:
            return self.total.published if self.qos else 0
        return self.total.published * each

    cdef bint is_complete(self) noexcept nogil:
        cdef int i
        for i in range(self.publisher_count):
            if buffer_size(&self.publishers[i].out):
                return False
        return self.total.received - self.total.twice >= self.expected() and not self.settlements_open

    cdef int opening_turn(self) except -1 nogil:
        cdef int wanted = self.subscriber_count if self.part == RECEIVE_PART else self.client_count
        while self.opened_count < wanted and self.pending_count < PENDING_MAX:
            self.open(&self.clients[self.opened_count])
            self.opened_count += 1
        self.wait_events(SECOND // 50)
        if self.ready_count == wanted:
            self.opened = usage_now(self.pids, self.pid_count)
            self.begin()
        elif now_ns() > self.connect_until:
            self.fail_to_open(wanted)
        return 0

    cdef int fail_to_open(self, int wanted) except -1 with gil:
        raise LoadError(f"only {self.ready_count} of {wanted} connections were ready in time")

    cdef void begin(self) noexcept nogil:
        cdef uint64_t now = now_ns()
        self.started_at = self.last_progress = self.measure_from = now
        self.phase = WARMING
        self.measure_until = UINT64_MAX
        if not self.count:
            if self.scenario != IDLE:
                self.measure_from += self.warmup
            self.measure_until = self.measure_from + self.duration
        self.is_published = self.part == SUBSCRIBE_PART or self.part == RECEIVE_PART    # there is nothing to publish
        if self.is_published:
            self.phase = DRAINING

    cdef void begin_measuring(self) noexcept nogil:
        self.first = usage_now(self.pids, self.pid_count)
        self.is_measuring = True
        self.phase = MEASURING

    cdef void finish(self) noexcept nogil:
        if self.is_measuring or self.last.at == self.before.at:
            self.last = usage_now(self.pids, self.pid_count)
        self.is_measuring = False
        self.phase = DONE

    cdef int traffic_turn(self, uint64_t until) except -1 nogil:
        cdef uint64_t now = now_ns(), pause
        if self.total.disconnects >= <uint64_t> self.client_count:
            self.finish()
            return 0
        if self.phase == WARMING and now >= self.measure_from:
            self.begin_measuring()
        if not self.is_published and (now >= self.measure_until or (
                self.count and self.total.published >= self.count * <uint64_t> self.publisher_count)):
            self.is_published = True
            self.last_progress = now
            self.phase = DRAINING
            if not self.count:
                self.last = usage_now(self.pids, self.pid_count)
                self.is_measuring = False
        if self.is_published and (self.is_complete() or now > self.last_progress + self.drain) or (
                self.count and now > self.last_progress + STANDSTILL):
            self.finish()
            if self.options_count and self.last_progress > self.first.at:
                self.last.at = self.last_progress
            return 0
        pause = SECOND // 100 if self.is_published else <uint64_t> self.drive_publishers()
        if pause > SECOND // 100:
            pause = SECOND // 100
        if not self.is_published and self.e2e and now > self.last_progress + SECOND:
            self.release_stalled(now)
        return self.wait_events(pause if now + pause < until else (until - now if until > now else 0))

    # PINGREQ is spread evenly over half the keep-alive.
    cdef int idle_turn(self) except -1 nogil:
        cdef uint64_t now = now_ns(), every = self.keep_alive * SECOND // 2, due
        cdef Client* c
        if self.phase == WARMING:
            self.begin_measuring()
        due = (now - self.started_at) * <uint64_t> self.client_count // every if every else 0
        while self.pings < due:
            c = &self.clients[self.pings % <uint64_t> self.client_count]
            self.pings += 1
            if c.state == READY:
                self.put_packet(c, PINGREQ << 4)
                self.flush(c)
        self.wait_events(SECOND // 100)
        if now_ns() >= self.measure_until or self.total.disconnects >= <uint64_t> self.client_count:
            self.finish()
        return 0

    # Connect, CONNACK, DISCONNECT, close, again: n connections are under way at any time.
    cdef int storm_turn(self) except -1 nogil:
        cdef uint64_t now = now_ns()
        if self.phase == WARMING and now >= self.measure_from:
            self.begin_measuring()
        if now >= self.measure_until or (self.count and self.total.connects >= self.count):
            self.finish()
            return 0
        self.reopen_closed(now)
        return self.wait_events(SECOND // 100)

    cdef int reopen_closed(self, uint64_t now) except -1 nogil:
        cdef int i
        cdef Client* c
        for i in range(self.client_count):
            c = &self.clients[i]
            if c.state == CLOSING and now > c.since + SECOND:     # the broker ought to have closed
                self.total.unclosed += 1
                self.hang_up(c)
            if c.state == DEAD:
                c.cycle += 1
                self.open(c)
        if self.total.disconnects > STORM_FAILURES_MAX:
            fail(b"more than 1,000 connections failed")
        return 0


cdef inline uint16_t next_packet_id(Client* c) noexcept nogil:
    c.packet_id = c.packet_id + 1 if c.packet_id != 0xFFFF else 1
    return c.packet_id


cdef inline void put_digits(uint8_t* to, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(TOPIC_DIGITS - 1, -1, -1):
        to[i] = <uint8_t> (c"0" + number % 10)
        number //= 10


cdef dict quantiles(const Histogram* h):
    return {
        name: round(histogram_quantile_us(h, q), 1)
        for name, q in (("p50_us", 0.5), ("p90_us", 0.9), ("p99_us", 0.99), ("p999_us", 0.999))
    }


cdef bytes text_field(str text):
    cdef bytes data = text.encode()
    return len(data).to_bytes(2, "big") + data


def resolve(host, port):
    """Address family and sockaddr of the broker."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        raise LoadError(f"cannot find {host}: {error.strerror}") from None
    # A name that has both is tried with IPv4: a broker on every interface answers there.
    family, _, _, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    head = int(family).to_bytes(2, "little") + port.to_bytes(2, "big")
    if family == socket.AF_INET:
        return int(family), head + socket.inet_pton(family, where[0]) + bytes(8)
    return int(family), head + bytes(4) + socket.inet_pton(family, where[0]) + int(where[3]).to_bytes(4, "little")
