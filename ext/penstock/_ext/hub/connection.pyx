"""Connections, sessions and the hub they share: the path of every message, compiled as one unit.

Longer than other files because a message passes through all of it and calls across units are not inlined; the parts are
in route.pxi (fan-out), receive.pxi (PUBLISH and acknowledgements), turns.pxi (turns of expensive matches),
session.pxi and hub.pxi, among others. This file is the socket's side: bytes in, packets out of them, bytes out,
watermarks.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.buffer cimport PyBUF_WRITE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from cpython.ref cimport Py_DECREF, Py_INCREF
from cython cimport final
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport INT64_MAX, UINT64_MAX, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memmove, memset, strcmp, strlen
from posix.time cimport CLOCK_MONOTONIC, CLOCK_REALTIME, clock_gettime, clockid_t, timespec

from penstock._ext.match.acl cimport ACL_PUBLISH, ACL_RECEIVE
from penstock._ext.wire.buffer cimport buffer_free, buffer_grow, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport (AUTH, CONNECT, DISCONNECT, MALFORMED_PACKET, PACKET_IDENTIFIER_NOT_FOUND,
                                       PACKET_TOO_LARGE, PINGREQ, PINGRESP, PROTOCOL_ERROR, PUBACK, PUBCOMP, PUBLISH,
                                       PUBREC, PUBREL, QOS_NOT_SUPPORTED, QUOTA_EXCEEDED, RECEIVE_MAXIMUM_EXCEEDED,
                                       RETAIN_NOT_SUPPORTED, SUBSCRIBE, SUCCESS, TOPIC_ALIAS_INVALID,
                                       TOPIC_NAME_INVALID, UNSUBSCRIBE, AckView, PublishView, check_topic_name,
                                       parse_ack, parse_publish, publish_body_size)
from penstock._ext.record.envelope cimport (EnvelopeView, envelope_size, get_envelope, origin_size, put_envelope,
                                            put_origin, put_received, received_size)
from penstock._ext.hub.gathering cimport WAIT_ANSWER, WAIT_NONE_LONGER, WAIT_NOTHING
from penstock._ext.hub.inflight cimport (AWAIT_PUBACK, AWAIT_PUBCOMP, AWAIT_PUBREC, DELIVERY_BACKLOG, DELIVERY_RETAIN,
                                         DELIVERY_NUMBERED, DELIVERY_SHARED, SLOT_BORROWED, SLOT_COUNTED,
                                         SLOT_RELEASING, SLOT_RESERVED, Extras, Queue, Queued, Slot, WindowPart,
                                         extras_group_name, extras_new, ids_add, ids_clear, ids_discard,
                                         ids_has, queue_clear, queue_pop, queue_push, queued_release, window_add,
                                         window_clear, window_find, window_order, window_put, window_release)
from penstock._ext.hub.message cimport (Message, message_new, message_payload, message_props, message_ref,
                                        message_topic, message_unref, message_weight)
from penstock._ext.match.partition cimport HashFunction, partition_of
from penstock._ext.queue.pending cimport (ENTRY_CLAIMED, ENTRY_DEAD, ENTRY_READY, NACKS, NOT_PENDING, SETTLED,
                                          PendingEntry, PendingList, Settlement)
from penstock._ext.match.retained cimport MessageList, RetainedTree, Share
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.match.trie cimport (QOS_NONE, TARGET_NO_LOCAL, TARGET_RETAIN_AS_PUBLISHED, Match, Member, ShareGroup,
                                       Subscriber, Target, Trie, match_unref)
from penstock._ext.wire.websocket cimport (WS_CLOSE, WS_DATA, WS_ERROR, WS_MAX_HEADER, WS_PING, WsEvent, WsReader,
                                           ws_next, ws_put_header)
from penstock._ext.wire.numbers cimport hash_bytes, put_be16, put_be32, put_varint, varint_size

from penstock._ext.wire.packets import ProtocolViolation

cdef extern from "segment.h" nogil:
    uint8_t* put_varint64(uint8_t* p, uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)

cdef extern from "topic_filter.h" nogil:
    bint filter_matches(const uint8_t* f, size_t f_size, const uint8_t* t, size_t t_size)

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* data, size_t size, int flags)
    enum:
        MSG_DONTWAIT
        MSG_NOSIGNAL

cdef enum:
    READ_SIZE = 262_144         # the most read from one connection before the others have their turn
    HEADROOM = 65_536           # in front of it, for what a connection kept of an incomplete packet
    FLUSH_SIZE = 131_072        # output that is sent before the end of the iteration
    OUTPUT_GROWN = 2_048        # a connection that usually sends more at once gets room for all of it at once
    ROOM_AT_ONCE = 16_777_216   # so much of it for all connections of an iteration; the buffers of others grow in steps
    PARTIAL_KEPT = 4_096
    TOPIC_SLOTS = 8             # recent topics of a publisher
    LINGER = 5_000              # ms a closing connection has to take its last bytes
    FORGIVEN_AFTER = 60_000     # ms a subscriber that was too slow may not slow its publishers again
    NO_MATCHING_SUBSCRIBERS = 0x10
    NOT_AUTHORIZED = 0x87
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    WS_BINARY_FRAME = 2
    WS_CLOSE_FRAME = 8
    WS_PONG_FRAME = 10
    DUPLICATE = 0x7F            # no reason code of MQTT
    LARGEST_FRAME = 0x7FFFFFFF  # a frame is read as a stream: its size costs nothing, and packets have their own limit

include "answer_texts.pxi"
include "hub.pxi"
include "hub_counters.pxi"
include "outlet.pxi"
include "session.pxi"
include "give_back.pxi"
include "rate.pxi"
include "route.pxi"
include "turns.pxi"
include "topic_counts.pxi"
include "retain.pxi"
include "ingest.pxi"
include "receive.pxi"
include "window_parts.pxi"
include "queue_depth.pxi"
include "queue_times.pxi"
include "queue_publish.pxi"
include "queue_rights.pxi"
include "queue_members.pxi"
include "queues.pxi"
include "queue_turn.pxi"
include "queue_send.pxi"
include "queue_mqtt.pxi"
include "queue_batches.pxi"
include "courier.pxi"


@final
cdef class Connection:
    """One client's socket: an asyncio BufferedProtocol.

    `handler` is told of what is rare: on_open, on_connect, on_subscribe, on_unsubscribe, on_disconnect, on_auth,
    on_closed. An exception in it closes this connection and nothing else.
    """

    def __init__(self, Hub hub not None, handler, listener=None):
        self.hub = hub
        self.handler = handler
        self.listener = listener
        self.fd = -1
        self.writable = True
        self.reading = True
        self.max_out_packet = 0xFFFFFFFFu
        self.explains = True

    def __dealloc__(self):
        self.release()
        self.drop_acks()

    # aliases end with the connection [MQTT-3.3.2-7]
    cdef void release(self) noexcept:
        cdef uint32_t i
        buffer_free(&self.out)
        free(self.partial)
        self.partial = NULL
        self.partial_size = self.partial_capacity = 0
        if self.topics != NULL:
            for i in range(<uint32_t> TOPIC_SLOTS):
                if self.topics[i].match != NULL:
                    match_unref(self.topics[i].match)
            free(self.topics)
            self.topics = NULL
        drop_queue_topics(self)
        if self.aliases_in != NULL:
            for i in range(self.aliases_in_max):
                free(self.aliases_in[i].topic)
            free(self.aliases_in)
            self.aliases_in = NULL
        if self.aliases_out != NULL:
            for i in range(self.aliases_out_count):
                free(self.aliases_out[i].topic)
            free(self.aliases_out)
            self.aliases_out = NULL
        self.aliases_out_count = self.aliases_out_max = 0
        free(self.websocket)
        self.websocket = NULL
        if not self.awaits_log:
            self.drop_acks()

    cdef void drop_acks(self) noexcept:
        free(self.acks)
        self.acks = NULL
        self.acks_count = self.acks_capacity = self.acks_qos1 = 0

    # ---- the transport's side ----

    def connection_made(self, transport):
        self.transport = transport
        # any byte the transport has to hold pauses us: what waits is counted against our own watermarks
        if transport.get_extra_info("sslcontext") is not None:
            transport.set_write_buffer_limits(high=1, low=0)    # uvloop's TLS pauses at the mark, not above it
        else:
            transport.set_write_buffer_limits(high=0, low=0)
            sock = transport.get_extra_info("socket")
            if sock is not None:
                self.fd = sock.fileno()
        self.last_packet = self.hub.now
        self.hub.add_connection(self)
        try:
            self.handler.on_open(self)
        except BaseException as error:
            self.fail_hard(error)

    def start_websocket(self, transport, bytes leftover not None):
        """Takes over a transport after the HTTP upgrade; `leftover` is what was read behind the request."""
        self.websocket = <WsReader*> calloc(1, sizeof(WsReader))
        if self.websocket == NULL:
            raise MemoryError()
        self.connection_made(transport)
        if leftover and self.state == WAITING:
            if len(leftover) > READ_SIZE:
                raise ValueError("more was read behind the upgrade than one read takes")
            memcpy(self.hub._read_buffer + HEADROOM, <const uint8_t*> leftover, len(leftover))
            self.buffer_updated(len(leftover))

    def get_buffer(self, Py_ssize_t hint):
        return self.hub._read_view

    def buffer_updated(self, Py_ssize_t size):
        cdef Hub hub = self.hub
        hub.update_clock()
        hub.counters.reads += 1
        hub.counters.bytes_received += <uint64_t> size
        try:
            if self.websocket == NULL:
                self.feed(hub._read_buffer + HEADROOM, <uint32_t> size)
            else:
                self.feed_websocket(hub._read_buffer + HEADROOM, <uint32_t> size)
        except ProtocolViolation as error:
            self.violation(error.reason_code, error.message)
        except BaseException as error:
            self.fail_hard(error)

    def eof_received(self):
        return False

    def connection_lost(self, error):
        if self.state == CLOSED:
            return
        self.state = CLOSED
        if self.close_reason is None:
            self.close_reason = "closed by the client" if error is None else "connection lost"
        self._end()
        self.hub.remove_connection(self)
        self.release()
        self.fd = -1
        self.transport = None

    def pause_writing(self):
        self.transport_busy = True

    def resume_writing(self):
        self.transport_busy = False
        self.transport_pending = 0
        self.last_packet = max(self.last_packet, self.hub.now - self.keep_alive // 2)
        try:
            self.flush()
            self.settle()
        except BaseException as error:
            self.fail_hard(error)

    # ---- bytes in ----

    # `data` lies HEADROOM bytes or more into the read buffer.
    cdef int feed(self, uint8_t* data, uint32_t size) except -1:
        cdef Py_ssize_t used
        if self.partial_size:
            if self.partial_size > HEADROOM or self.blocked or self.state == DECIDING:
                self.keep_partial(data, size)
                return self.feed_partial()
            data -= self.partial_size
            size += self.partial_size
            memcpy(data, self.partial, self.partial_size)
            self.partial_size = 0
        elif self.blocked or self.state == DECIDING:
            return self.keep_partial(data, size)
        used = self.parse(data, size)
        if self.state >= CLOSING:
            return 0
        if used < size:
            return self.keep_partial(data + used, <uint32_t> (size - used))
        if self.partial != NULL:
            self.drop_partial()
        return 0

    # Memory grows with what has come, never with what was announced.
    cdef int keep_partial(self, const uint8_t* data, uint32_t size) except -1:
        cdef size_t wanted = <size_t> self.partial_size + size
        cdef uint8_t* larger
        if wanted > self.partial_capacity:
            if self.partial_capacity and wanted < 2 * <size_t> self.partial_capacity:
                wanted = 2 * <size_t> self.partial_capacity
            larger = <uint8_t*> realloc(self.partial, wanted)
            if larger == NULL:
                raise MemoryError()
            self.partial = larger
            self.partial_capacity = <uint32_t> wanted
        memcpy(self.partial + self.partial_size, data, size)
        self.partial_size += size
        return 0

    cdef void drop_partial(self) noexcept:
        free(self.partial)
        self.partial = NULL
        self.partial_size = self.partial_capacity = 0

    # What was kept has grown, or the connection may go on: parse it where it lies.
    cdef int feed_partial(self) except -1:
        cdef uint8_t* data
        cdef uint32_t size, capacity
        cdef Py_ssize_t used
        if self.blocked or self.state == DECIDING or self.partial_size == 0:
            return 0
        data, size, capacity = self.partial, self.partial_size, self.partial_capacity
        # a handler may end the connection meanwhile: the bytes are ours until they are parsed
        self.partial = NULL
        self.partial_size = self.partial_capacity = 0
        try:
            used = self.parse(data, size)
            if self.state >= CLOSING or used == size:
                return 0
            if used == 0:
                self.partial, self.partial_size, self.partial_capacity = data, size, capacity
                data = NULL
            else:
                self.keep_partial(data + used, <uint32_t> (size - used))
        finally:
            free(data)
        return 0

    # Handles every whole packet; returns how many bytes that were.
    cdef Py_ssize_t parse(self, uint8_t* data, uint32_t size) except -1:
        cdef uint8_t* p = data
        cdef uint8_t* end = data + size
        cdef uint8_t* q
        cdef uint32_t remaining, limit, shift
        while p < end and self.state < CLOSING and self.state != DECIDING:
            remaining = shift = 0
            q = p + 1
            while q < end and q - p < 5:
                remaining |= <uint32_t> (q[0] & 127) << shift
                shift += 7
                q += 1
                if (q - 1)[0] < 128:
                    break
            if q == p + 1 or (q - 1)[0] >= 128:
                if q - p < 5:
                    break                       # the length has not come whole
                self.violation(MALFORMED_PACKET, "remaining length over four bytes")
                return size
            if self.version == 5 and q - p > 2 and (q - 1)[0] == 0:
                self.violation(MALFORMED_PACKET, "remaining length longer than needed")     # [MQTT-1.5.5-1]
                return size
            limit = self.hub.limits.max_packet_size if self.state == CONNECTED else self.hub.limits.connect_packet_size
            if remaining + <uint32_t> (q - p) > limit:
                self.violation(PACKET_TOO_LARGE, "packet larger than the limit")            # [MQTT-3.2.2-15]
                return size
            if <size_t> (end - q) < remaining:
                break
            if self.dispatch(p[0], q, remaining):
                break                           # waits for a subscriber; this packet comes again
            self.hub.counters.packets_received += 1
            p = q + remaining
        if p != data:
            self.last_packet = self.hub.now
        if buffer_size(&self.out) >= self.hub.limits.flush_size:
            self.watch_output()                 # answers count too
        return p - data

    # The likeliest first.
    cdef int dispatch(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        cdef uint8_t packet_type = first >> 4
        cdef uint8_t* p
        if self.state == CONNECTED:
            if packet_type == PUBLISH:
                return handle_publish(self, first, body, size)
            if PUBACK <= packet_type <= PUBCOMP:
                return handle_ack(self, packet_type, first & 15, body, size)
            if packet_type == PINGREQ:
                if size or first & 15:
                    return self.violation(MALFORMED_PACKET, "PINGREQ with a body or flags")
                p = out_reserve(self, 2)
                p[0], p[1] = PINGRESP << 4, 0   # [MQTT-3.12.4-1] [MQTT3-3.12.4-1]
                self.hub.counters.packets_sent += 1
                return 0
        return self.dispatch_control(first, body, size)

    cdef int dispatch_control(self, uint8_t first, const uint8_t* body, uint32_t size) except -1:
        cdef uint8_t packet_type = first >> 4
        cdef bytes content
        if packet_type == SUBSCRIBE and self.steps > self.hub.turns.budget:
            self.hub.turns.rest(self)           # for the retained messages of those before
            return 1
        content = PyBytes_FromStringAndSize(<const char*> body, size)
        handler = self.handler
        if self.state == WAITING:
            if packet_type != CONNECT or first & 15:
                # [MQTT-3.1.0-1] [MQTT3-3.1.0-1]
                return self.violation(PROTOCOL_ERROR, "the first packet is not a CONNECT")
            self.state = DECIDING
            handler.on_connect(self, content)
        elif packet_type == AUTH and self.version == 5:
            handler.on_auth(self, first & 15, content)
        elif packet_type == DISCONNECT:
            handler.on_disconnect(self, first & 15, content)
        elif self.state == AUTHENTICATING:
            self.violation(PROTOCOL_ERROR, "only AUTH and DISCONNECT are allowed before CONNACK")  # [MQTT-3.1.2-30]
        elif packet_type == SUBSCRIBE:
            handler.on_subscribe(self, first & 15, content)
        elif packet_type == UNSUBSCRIBE:
            handler.on_unsubscribe(self, first & 15, content)
        elif packet_type == CONNECT:
            self.violation(PROTOCOL_ERROR, "a second CONNECT")      # [MQTT-3.1.0-2] [MQTT3-3.1.0-2]
        else:
            self.violation(PROTOCOL_ERROR if packet_type else MALFORMED_PACKET, "a packet that only a server sends")
        return 0

    # Unmasks the frames and moves their payload together, then parses it.
    cdef int feed_websocket(self, uint8_t* data, uint32_t size) except -1:
        cdef uint8_t* cursor = data
        cdef uint8_t* end = data + size
        cdef uint8_t* payload = NULL
        cdef uint32_t payload_size = 0, held = 0
        cdef uint16_t close_code = 0
        cdef WsEvent event
        while True:
            event = ws_next(self.websocket, &cursor, end, LARGEST_FRAME, &payload, &payload_size, &close_code)
            if event == WS_DATA:
                if payload_size == 0:
                    break
                if payload != data + held:
                    memmove(data + held, payload, payload_size)
                held += payload_size
            elif event == WS_PING:
                self.send_frame(WS_PONG_FRAME, PyBytes_FromStringAndSize(<const char*> payload, payload_size))
            elif event == WS_CLOSE or event == WS_ERROR:
                if held:
                    self.feed(data, held)
                if self.state < CLOSING:
                    self.close_reason = "WebSocket closed" if event == WS_CLOSE else "bad WebSocket frame"
                    code = close_code.to_bytes(2, "big")
                    if event == WS_CLOSE:       # the client's own code is sent back
                        code = PyBytes_FromStringAndSize(<const char*> payload, min(payload_size, 2))
                    self.send_frame(WS_CLOSE_FRAME, code)
                    self.shutdown(self.close_reason)
                return 0
        return self.feed(data, held) if held else 0

    def send_frame(self, uint8_t opcode, bytes payload not None):
        """A WebSocket control frame, after what is already in the buffer."""
        cdef uint8_t head[WS_MAX_HEADER]
        cdef uint32_t size
        self.flush()
        if self.transport_busy and opcode == WS_PONG_FRAME:
            return                              # who does not read gets no answer; a later ping may
        size = ws_put_header(head + WS_MAX_HEADER, opcode, len(payload))
        self.transport.write(head[WS_MAX_HEADER - size:WS_MAX_HEADER] + payload)
        if self.transport_busy:
            self.transport_pending += size + <uint32_t> len(payload)

    # Puts the WebSocket header in front of what waits, which has room for it (Hub.open_output).
    cdef inline void frame_output(self) noexcept:
        if self.websocket != NULL:
            self.out.start -= ws_put_header(self.out.data + self.out.start, WS_BINARY_FRAME, buffer_size(&self.out))

    # ---- bytes out ----

    def send(self, bytes packet not None):
        """Append a whole packet to the output of this iteration.

        An empty packet is an answer over the client's Maximum Packet Size: the client cannot be answered, so it is
        disconnected."""
        if self.state < CLOSING and not packet:
            self.disconnect(PACKET_TOO_LARGE, "the answer is larger than the client's Maximum Packet Size")
        elif self.state < CLOSING:
            memcpy(out_reserve(self, <uint32_t> len(packet)), <const uint8_t*> packet, len(packet))
            self.hub.counters.packets_sent += 1

    # How large the next output may be, so that its buffer need not grow in steps: as the largest of the last few.
    cdef inline void note_output(self, uint32_t size) noexcept:
        size = min(size, <uint32_t> FLUSH_SIZE)
        if size >= self.usual_output:
            self.usual_output = size
        else:
            self.usual_output -= (self.usual_output - size + 7) // 8

    # For what is usually sent at once and a quarter more, unless it would be held for a client that does not read.
    cdef int make_room(self) except -1:
        if self.hub._room_given < ROOM_AT_ONCE and not self.transport_busy:
            buffer_grow(&self.out, self.usual_output + self.usual_output // 4)
            self.hub._room_given += self.out.capacity
        return 0

    # One write of all that waits. A plain socket is written to directly; what it does not take goes to the transport,
    # which tells when it is through.
    cdef int flush(self) except -1:
        cdef uint32_t size = buffer_size(&self.out)
        cdef ssize_t sent = 0
        if size == 0 or self.transport_busy:
            return 0
        if self.state == CLOSED or self.broken:
            buffer_free(&self.out)
            return 0
        self.frame_output()
        size = buffer_size(&self.out)
        self.hub.counters.writes += 1
        self.hub.counters.bytes_sent += size
        self.note_output(size)
        if self.fd >= 0:
            sent = send(self.fd, self.out.data + self.out.start, size, MSG_NOSIGNAL | MSG_DONTWAIT)
            if sent < 0:
                if errno != EAGAIN and errno != EINTR:
                    self.broken = True
                    buffer_free(&self.out)
                    self.transport.abort()
                    return 0
                sent = 0
        if <uint32_t> sent < size:
            rest = PyBytes_FromStringAndSize(<const char*> self.out.data + self.out.start + sent, size - sent)
            buffer_free(&self.out)
            self.transport_pending = size - <uint32_t> sent
            self.transport.write(rest)          # calls pause_writing if it has to hold any of it
            if not self.transport_busy:
                self.transport_pending = 0
        else:
            buffer_free(&self.out)
        return 0

    # Called while output grows: sends early, then looks at the high watermark.
    cdef int watch_output(self) except -1:
        self.flush()
        if buffer_size(&self.out) + self.transport_pending > self.hub.limits.high_watermark and self.writable:
            self.writable = False
            if self.session is not None:
                self.session.watch()
            # who does not take what we send is not read either, or its acknowledgements would pile up
            self.pause_reading()
        return 0

    # Called when output has drained: below the low watermark the connection is writable again.
    cdef int settle(self) except -1:
        if not self.writable and buffer_size(&self.out) + self.transport_pending <= self.hub.limits.low_watermark:
            self.writable = True
            if not self.blocked:
                self.resume_reading()
        if self.writable and self.session is not None:
            self.session.pump()
        return 0

    # ---- flow ----

    cdef int wait_for(self, Session subscriber) except -1:
        self.hub.counters.paused += 1
        self.blocked = True
        self.pause_reading()
        if subscriber.waiters is None:
            subscriber.waiters = []
        subscriber.waiters.append(self)
        return 0

    cdef int wait_for_log(self) except -1:
        self.hub.counters.paused += 1
        self.blocked = True
        self.pause_reading()
        self.hub._log_waiters.append(self)
        collect_soon(self.hub)
        return 0

    def unblock(self):
        """The subscriber this publisher waited for has caught up, or lost its patience."""
        if not self.blocked or self.state >= CLOSING:
            return
        self.blocked = False
        self.hub.update_clock()
        self.last_packet = self.hub.now
        self._go_on()

    def _go_on(self):
        try:
            self.feed_partial()
        except ProtocolViolation as error:
            self.violation(error.reason_code, error.message)
        except BaseException as error:
            self.fail_hard(error)
        if not self.blocked and self.state < CLOSING and self.state != DECIDING and self.writable:
            self.resume_reading()

    def pause_reading(self):
        if self.reading and self.state < CLOSING:
            self.reading = False
            self.transport.pause_reading()

    def resume_reading(self):
        if not self.reading and self.state < CLOSING:
            self.reading = True
            self.transport.resume_reading()

    # ---- what the handler decides ----

    def expect_auth(self, uint8_t version):
        """CONNECT was right so far: the AUTH exchange goes on."""
        self.version = version
        self.state = AUTHENTICATING
        self.last_packet = self.hub.now
        self.hub.loop.call_soon(self._go_on)

    def decide(self):
        """An answer to CONNECT or AUTH takes time: nothing more is read until accept() or shutdown()."""
        self.state = DECIDING
        self.pause_reading()

    def accept(self, Session session not None, bytes connack not None):
        """The session is attached: CONNACK first, then what the session has to send, then what the client sent."""
        if self.state >= CLOSING:
            return
        if self.session is not session:
            self.shutdown("its session went before CONNACK")
            return
        self.state = CONNECTED
        self.context = None
        self.last_packet = self.hub.now
        self.send(connack)  # [MQTT-3.1.4-5] [MQTT-3.2.0-1] [MQTT-3.2.0-2] [MQTT3-3.1.4-4] [MQTT3-3.2.0-1]
        session.pump()
        # out of the parse loop's way: it goes on by itself unless the answer came later
        if not self.reading or self.partial_size:
            self.hub.loop.call_soon(self._go_on)

    def answer_relayed(self, uint32_t token, uint8_t reason, bytes words not None):
        """What another node said to the settlement with this token, or why it could not be asked."""
        try:
            answer_relayed(self, token, reason, words)
        except BaseException as error:
            self.fail_hard(error)

    # what the client sent behind CONNECT is never looked at [MQTT-3.1.4-6] [MQTT3-3.1.4-5] [MQTT3-3.2.2-5]
    def refuse(self, bytes connack, str reason not None):
        """CONNACK with a reason, then the end."""
        if connack is not None and self.state < CLOSING:
            self.send(connack)
        self.shutdown(reason)

    # [MQTT-4.13.1-1] [MQTT3-4.8.0-1]
    cdef int violation(self, int reason, str text) except -1:
        """Bad input: the client is told why if its protocol has a word for it, and loses its connection."""
        self.hub.counters.protocol_errors += 1
        self.disconnect(reason, text)
        return 0

    def violation_from_handler(self, int reason, str text not None):
        """The same, for what only a handler can see."""
        self.violation(reason, text)

    def disconnect(self, uint8_t reason, str text not None, bytes packet=None):
        """Ends the connection from our side, with DISCONNECT for MQTT 5 [MQTT-3.14.0-1]."""
        if self.state >= CLOSING:
            return
        if self.version == 5 and self.state == CONNECTED:
            if packet is not None:
                self.send(packet)
            else:
                send_disconnect(self, reason)
        self.shutdown(text)

    # [MQTT-3.14.4-1] [MQTT-3.14.4-2] [MQTT-4.13.2-1]
    def shutdown(self, str reason not None, *, bint clean=False):
        """The connection ends here for its session; what is in the buffer still goes out."""
        if self.state >= CLOSING:
            return
        self.close_reason = reason
        self.clean_close = clean
        self.state = CLOSING
        self.last_packet = self.hub.now
        self._end()
        try:
            self.flush()
            if buffer_size(&self.out) and not self.broken:
                # behind what the transport holds, in order
                self.frame_output()
                self.transport.write(PyBytes_FromStringAndSize(
                    <const char*> self.out.data + self.out.start, buffer_size(&self.out)))
                buffer_free(&self.out)
        finally:
            if self.transport is not None:
                self.transport.close()

    def _end(self):
        cdef Session session = self.session
        if self.ended:
            return
        self.ended = True
        self.blocked = False
        try:
            self.handler.on_closed(self, session)
        finally:
            if self.session is not None:
                self.session.detach()
            self.context = None

    def _close_orphan(self):
        if self.state == CLOSED:
            return
        try:
            self._end()
            self.flush()
        finally:
            if self.transport is not None:
                self.transport.close()

    # [MQTT3-4.8.0-2]
    def fail_hard(self, error):
        """An error of our own: this connection pays for it, the loop goes on."""
        self.close_reason = "internal error"
        try:
            self.handler.on_error(self, error)
        finally:
            if self.transport is not None and self.state < CLOSED:
                self.broken = True
                self.transport.abort()

    def time_out(self):
        if self.state == CONNECTED:
            self.disconnect(KEEP_ALIVE_TIMEOUT, "keep-alive timeout")
        elif self.state == CLOSING:
            self.transport.abort()
        else:
            self.shutdown("no CONNECT in time")

    # ---- for handlers, people and tests ----

    @property
    def is_connected(self):
        return self.state == CONNECTED

    @property
    def is_open(self):
        return self.state < CLOSING

    @property
    def is_clean(self):
        return self.clean_close

    @property
    def pending_bytes(self):
        """Output not taken by the socket yet."""
        return buffer_size(&self.out) + self.transport_pending

    @property
    def maximum_packet_size(self):
        """Of what the client takes; 0 = no limit."""
        return 0 if self.max_out_packet == 0xFFFFFFFFu else self.max_out_packet

    @property
    def is_writable(self):
        return self.writable

    @property
    def is_blocked(self):
        return self.blocked

    @property
    def peer(self):
        """Where the client is, as host:port or a path."""
        if self._peer is None and self.transport is not None:
            name = self.transport.get_extra_info("peername")
            self._peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else str(name or "local")
        return self._peer

    @peer.setter
    def peer(self, value):
        self._peer = value

    def memory(self):
        """Bytes held for input and output, by name."""
        return {"out": self.out.capacity, "partial": self.partial_capacity}
