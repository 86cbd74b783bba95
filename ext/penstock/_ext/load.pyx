"""The load generator: many MQTT connections in one thread over epoll, packets built once and written in batches.

Every message carries a monotonic timestamp, its publisher and a sequence number, so one process sees loss, duplicates,
reordering and latency. CONNECT, SUBSCRIBE and their answers go through the project's own packets module; PUBLISH and
its acknowledgements are patched and counted here in C, without a Python object per message. `step` runs a while without
the GIL, so that whoever shows the progress, or stops it, has its turn between the steps.

This file has what Python sees and the phases of a run, load_connection.pxi one connection and what arrives on it,
load_traffic.pxi what is published and settled.
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


include "load_declarations.pxi"

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
                hang_up(self, &self.clients[i])
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
                put_packet(self, &self.clients[i], DISCONNECT << 4)
                flush(self, &self.clients[i])
            else:
                hang_up(self, &self.clients[i])
        try:
            wait_events(self, 20_000_000)
        except LoadError:
            pass                        # it is over; nobody asks any more
        for i in range(self.client_count):
            hang_up(self, &self.clients[i])

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
        for name in ("connects", "unclosed"):
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
            topic, payload, qos=self.qos, retain=self.options.retain, packet_id=1 if self.qos else 0,
            version=self.version)
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
            open_client(self, &self.clients[self.opened_count])
            self.opened_count += 1
        wait_events(self, SECOND // 50)
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
        pause = SECOND // 100 if self.is_published else <uint64_t> drive_publishers(self)
        if pause > SECOND // 100:
            pause = SECOND // 100
        if not self.is_published and self.e2e and now > self.last_progress + SECOND:
            release_stalled(self, now)
        return wait_events(self, pause if now + pause < until else (until - now if until > now else 0))

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
                put_packet(self, c, PINGREQ << 4)
                flush(self, c)
        wait_events(self, SECOND // 100)
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
        return wait_events(self, SECOND // 100)

    cdef int reopen_closed(self, uint64_t now) except -1 nogil:
        cdef int i
        cdef Client* c
        for i in range(self.client_count):
            c = &self.clients[i]
            if c.state == CLOSING and now > c.since + CLOSING_TIME:     # the broker ought to have closed
                self.total.unclosed += 1
                hang_up(self, c)
            if c.state == DEAD:
                c.cycle += 1
                open_client(self, c)
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


include "load_connection.pxi"
include "load_traffic.pxi"
