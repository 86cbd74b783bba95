"""The load generator: many MQTT connections over epoll in a thread or several, packets built once, written in batches.

Every message carries a monotonic timestamp, its publisher and a sequence number, so one process sees loss, duplicates,
reordering and latency. CONNECT, SUBSCRIBE and their answers go through the project's own packets module; PUBLISH and
its acknowledgements are patched and counted here in C, without a Python object per message. `step` runs a while without
the GIL, so that whoever shows the progress, or stops it, has its turn between the steps.

This file has what Python sees, load_worker.pxi a thread and the phases of a run, load_connection.pxi one connection and
what arrives on it, load_traffic.pxi what is published and settled.
"""

cimport cython
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport UINT32_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

import os
import socket
import ssl
import threading

from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport CONNACK, DISCONNECT, PINGREQ, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, SUBACK
from penstock._ext.wire.numbers cimport get_be16, get_varint, put_be16, put_varint, varint_size

from penstock._ext.wire import packets


include "declarations.pxi"

SCENARIOS = ("p2p", "fanout", "fanin", "publish", "idle", "storm")
PARTS = ("all", "subscribe", "publish", "receive")
PHASES = ("opening", "opening", "warming up", "measuring", "draining", "done")
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


include "worker.pxi"


@cython.final
cdef class Load:
    """One run. `options` has the attributes of penstock_bench.options.LoadOptions.

    The first of the workers, the lead, works in the thread that calls `step`, the others in threads of their own.
    """

    cdef readonly object options
    cdef Team team
    cdef Worker lead
    cdef list workers, threads, failures
    cdef Histogram* latency         # of all workers, put together when somebody asks
    cdef Histogram* shown           # what `take_recent` has told of it; behind it is room for the difference

    def __cinit__(self, options):
        self.latency = <Histogram*> calloc(3, sizeof(Histogram))
        if self.latency == NULL:
            raise MemoryError()
        self.shown = self.latency + 1

    def __init__(self, options):
        load_fine_timers()
        self.options, self.threads, self.failures = options, [], []
        self.team = Team(options)
        self.workers = [Worker(self.team, number, options) for number in range(options.threads)]
        self.lead = self.workers[0]

    def __dealloc__(self):
        free(self.latency)

    def step(self, double seconds):
        """Runs for about so long; False when the run is over. Raises LoadError."""
        if len(self.threads) < len(self.workers) - 1:
            self.threads = [
                threading.Thread(target=run_worker, args=(worker, self.failures), daemon=True)
                for worker in self.workers[1:]
            ]
            for thread in self.threads:
                thread.start()
        goes_on = self.lead.step(seconds)
        if not goes_on:
            self.join()
        if self.failures:
            raise self.failures[0]
        return goes_on

    def stop(self):
        """No more is published; what is under way is waited for."""
        if self.lead.seat.phase in (OPENING, OPENED, DONE) or self.lead.scenario in (IDLE, STORM):
            self.lead.finish()
        else:
            poke(&self.team.common.is_stopped, 1)

    def join(self):
        poke(&self.team.common.is_over, 1)
        for thread in self.threads:
            thread.join()

    def close(self):
        """Says goodbye on all connections. The broker has a moment to read it: a close with unread input would reset
        the connection before DISCONNECT is read."""
        cdef Worker worker
        self.join()
        for worker in self.workers:
            worker.say_goodbye()
        try:
            wait_events(self.lead, 20_000_000)
        except LoadError:
            pass                        # it is over; nobody asks any more
        for worker in self.workers:
            worker.hang_up_all()

    @property
    def phase_name(self):
        return PHASES[self.lead.seat.phase]

    @property
    def ready(self):
        """Connections that are open now."""
        cdef int i, count = 0
        cdef Worker worker
        for worker in self.workers:
            for i in range(worker.client_count):
                count += WAIT_CONNACK <= worker.clients[i].state <= CLOSING
        return count

    def counters(self):
        """What has been counted so far."""
        cdef Totals total = sum_of(&self.team.common)
        cdef int i
        expected, once = self.lead.expected(&total), total.received - total.twice
        unacknowledged = 0
        for i in range(self.team.common.size):
            unacknowledged += peek(&self.team.common.seats[i].unacknowledged)
        return {
            "published": total.published, "expected": expected, "received": total.received,
            "lost": expected - once if expected > once else 0, "unacknowledged": unacknowledged,
            "duplicates": total.twice,
            "disordered": total.late, "downgraded": total.downgraded, "refused": total.refused,
            "corrupt": total.corrupt, "stalls": total.stalls, "connects": total.connects,
            "unclosed": total.unclosed, "disconnects": total.disconnects, "measured": total.measured,
        }

    cdef void add_latencies(self) noexcept:
        cdef int i
        memset(self.latency, 0, sizeof(Histogram))
        for i in range(self.team.common.size):
            histogram_add(self.latency, self.team.common.seats[i].latency)

    def take_recent(self):
        """Count and latencies (µs) of what was measured since the last call."""
        cdef Histogram* part = self.shown + 1
        self.add_latencies()
        histogram_since(self.latency, self.shown, part)
        return {"count": part.count, **quantiles(part)}

    def resources(self):
        """Clock (s), CPU-seconds of the broker and of this process, resident KiB of the broker."""
        cdef Usage u = usage_now(self.lead.pids, self.lead.pid_count)
        return u.at / 1e9, u.broker_cpu, u.own_cpu, u.rss_kb

    def latencies(self):
        """The histogram: (µs, count) of the bins that are not empty."""
        self.add_latencies()
        return [(histogram_ns(i) / 1e3, self.latency.bins[i]) for i in range(HIST_BINS) if self.latency.bins[i]]

    def result(self):
        """The figures of the measured time."""
        cdef const Usage* first = &self.lead.first
        cdef const Usage* last = &self.lead.last
        cdef double secs = (last.at - first.at) / 1e9
        cdef double cpu = last.broker_cpu - first.broker_cpu, own = last.own_cpu - first.own_cpu
        cdef Totals total = sum_of(&self.team.common)
        options = self.options
        self.add_latencies()
        names = ("scenario", "n", "subs", "qos", "size", "e2e", "version", "threads")
        result = {name: getattr(options, name) for name in names}
        result |= {"window": self.lead.window, "target_rate": round(options.rate), "secs": round(secs, 3)}
        per_second = total.measured / secs if secs > 0 else 0
        per_cpu = total.measured / cpu if cpu > 0 else 0
        if self.lead.scenario == STORM:
            result |= {
                "connects": total.connects, "unclosed": total.unclosed, "connects_per_s": round(per_second),
                "connects_per_cpu_s": round(per_cpu),
                "cpu_us_per_connect": round(cpu / total.measured * 1e6, 2) if total.measured else 0,
            }
        else:
            result |= self.opening_result()
        if self.team.common.publisher_count:
            result |= self.traffic_result(secs)
            result |= {"rate": round(per_second), "msgs_per_cpu_s": round(per_cpu)}
        if self.lead.scenario != IDLE:
            result |= quantiles(self.latency) | {"max_us": round(self.latency.max / 1e3, 1)}
        return result | {
            "disconnects": total.disconnects, "broker_cpu_s": round(cpu, 3),
            "broker_cores": round(cpu / secs, 3) if secs > 0 else 0, "rss_kb_before": self.lead.before.rss_kb,
            "rss_kb": last.rss_kb, "rss_kb_peak": last.peak_kb,
            "rss_kb_peak_before": self.lead.before.peak_kb, "load_cpu_s": round(own, 3),
            "load_cores": round(own / secs, 3) if secs > 0 else 0,
            "load_busiest_thread": round(self.busiest_thread() / secs, 3) if secs > 0 else 0,
        }

    cdef double busiest_thread(self) noexcept:
        """CPU-seconds of the thread that had the most."""
        cdef double most = 0, used
        cdef Worker worker
        for worker in self.workers:
            used = worker.last.thread_cpu - worker.first.thread_cpu
            most = used if used > most else most
        return most

    def opening_result(self):
        cdef double secs = (self.lead.opened.at - self.lead.before.at) / 1e9
        cdef double cpu = self.lead.opened.broker_cpu - self.lead.before.broker_cpu
        cdef int count = self.team.common.subscriber_count + self.team.common.publisher_count
        result = {
            "connect_s": round(secs, 3), "connects_per_s": round(count / secs) if secs > 0 else 0,
            "connects_per_cpu_s": round(count / cpu) if cpu > 0 else 0,
        }
        if self.lead.scenario == IDLE:
            result["bytes_per_conn"] = round((self.lead.last.rss_kb - self.lead.before.rss_kb) * 1024 / count)
        return result

    def traffic_result(self, double secs):
        cdef int i
        cdef Worker worker
        result, rates, lag = self.counters(), [], 0
        for name in ("connects", "unclosed"):
            del result[name]
        for worker in self.workers:
            lag = max(lag, worker.seat.lag_max)
            if secs > 0:
                rates += [worker.clients[i].received / secs for i in range(worker.subscriber_count)]
        if rates:
            result |= {"slowest_rate": round(min(rates)), "fastest_rate": round(max(rates))}
        return result | {"send_lag_max_us": round(lag / 1e3, 1), **self.sending_result()}

    def sending_result(self):
        """What the publishers have sent in the measured time, which ends with the last of them."""
        cdef uint64_t sent = 0, end = 0
        cdef double secs
        cdef Worker worker
        for worker in self.workers:
            if worker.publishing_end:
                sent += worker.published_last - worker.published_first
                end = max(end, worker.publishing_end)
        secs = (end - self.lead.first.at) / 1e9 if end > self.lead.first.at else 0
        return {"sent": sent, "sent_secs": round(secs, 3), "sent_rate": round(sent / secs) if secs > 0 else 0}


def run_worker(Worker worker, failures):
    """What a thread does until the run is over."""
    try:
        while worker.step(0.2):
            pass
    except BaseException as error:      # told by whoever runs the lead
        failures.append(error)
        poke(&worker.common.is_over, 1)


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


include "connection.pxi"
include "traffic.pxi"
