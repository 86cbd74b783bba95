"""Builders of the packets that are not on the hot path, for the server and for clients.

Properties are keyword arguments with the names of fields.pyx; None leaves one out. `limit` is the Maximum Packet Size
of the receiver (0 = none): the dispensable properties are dropped, one after the other, to keep it, and when the packet
is still too large the answer is b"", because it must not be sent [MQTT-3.1.2-24].
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memset

from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport (AUTH, CONNACK, CONNECT, DISCONNECT, PINGREQ, PINGRESP, PUBACK, PUBCOMP, PUBLISH,
                                       PUBREL, SUBACK, SUBSCRIBE, UNSUBACK, UNSUBSCRIBE)
from penstock._ext.wire.fields cimport (WILL, put_bare_properties, put_binary, put_byte, put_properties, put_raw,
                                        put_str, put_u16, seal_packet)
from penstock._ext.wire.numbers cimport put_varint, varint_size

# MQTT 3.1.1, table 3.1. What has no return code closes the connection without an answer [MQTT3-3.2.2-6].
cdef dict RETURN_CODES = {
    0x00: 0,
    0x84: 1,    # unacceptable protocol level
    0x85: 2,    # identifier rejected
    0x88: 3,    # server unavailable
    0x89: 3,
    0x97: 3,
    0x9F: 3,
    0x86: 4,    # bad user name or password
    0x87: 5,    # not authorized
    0x8A: 5,
    0x8C: 5,
}

# In the order in which a packet that is too large does without them; a client that has no alias maximum uses none.
cdef tuple DISPENSABLE = ("user_properties", "reason_string", "response_information", "topic_alias_maximum")


# A packet of the form head, properties, tail, with what fits of the dispensable properties
# [MQTT-3.2.2-19] [MQTT-3.2.2-20] [MQTT-3.9.2-1] [MQTT-3.9.2-2] [MQTT-3.11.2-1] [MQTT-3.11.2-2]
# [MQTT-3.14.2-3] [MQTT-3.14.2-4] [MQTT-3.15.2-2] [MQTT-3.15.2-3].
cdef bytes build_answer(int packet_type, bytes head, dict properties, bytes tail, uint32_t limit):
    cdef bytes packet = join_answer(packet_type, head, properties, tail)
    for name in DISPENSABLE:
        if limit == 0 or <uint32_t> len(packet) <= limit:
            return packet
        if properties.pop(name, None) is not None:
            packet = join_answer(packet_type, head, properties, tail)
    return packet if limit == 0 or <uint32_t> len(packet) <= limit else b""


cdef bytes join_answer(int packet_type, bytes head, dict properties, bytes tail):
    cdef Buffer b
    memset(&b, 0, sizeof(Buffer))
    try:
        put_raw(&b, head, <uint32_t> len(head))
        put_properties(&b, packet_type, properties)
        put_raw(&b, tail, <uint32_t> len(tail))
        return seal_packet(<uint8_t> (packet_type << 4), &b)
    finally:
        buffer_free(&b)


def build_connack(int version, bint session_present, uint8_t reason=0, *, uint32_t limit=0, **properties):
    """A CONNACK; for 3.x the reason becomes a return code, and b"" when there is none for it."""
    # [MQTT-3.2.2-6] [MQTT3-3.2.2-4]; the byte is reserved in 3.1
    cdef uint8_t present = session_present and reason == 0 and version != 3
    if version >= 5:
        return build_answer(CONNACK, bytes((present, reason)), properties, b"", limit)
    code = RETURN_CODES.get(reason)
    return b"" if code is None else bytes((CONNACK << 4, 2, present, code))


# [MQTT-2.2.1-6] [MQTT3-2.3.1-7]
def build_suback(int version, int packet_id, reasons, *, uint32_t limit=0, **properties):
    """A SUBACK with a reason for each filter in its order [MQTT-3.9.3-1] [MQTT3-3.9.3-1]."""
    if version >= 5:
        return build_answer(SUBACK, packet_id.to_bytes(2, "big"), properties, bytes(reasons), limit)
    # [MQTT3-3.9.3-2]
    codes = bytes([reason if reason <= 2 else 0x80 for reason in reasons])
    return build_plain(SUBACK << 4, packet_id, codes)


def build_unsuback(int version, int packet_id, reasons=(), *, uint32_t limit=0, **properties):
    """An UNSUBACK; 3.x has no reasons in it."""
    if version >= 5:
        return build_answer(UNSUBACK, packet_id.to_bytes(2, "big"), properties, bytes(reasons), limit)
    return build_plain(UNSUBACK << 4, packet_id, b"")


# Fixed header, packet id and bytes: the shape of most packets of 3.x.
cdef bytes build_plain(int first_byte, int packet_id, bytes tail):
    cdef Buffer b
    memset(&b, 0, sizeof(Buffer))
    try:
        put_u16(&b, packet_id)
        put_raw(&b, tail, <uint32_t> len(tail))
        return seal_packet(<uint8_t> first_byte, &b)
    finally:
        buffer_free(&b)


def build_disconnect(uint8_t reason=0, *, int version=5, uint32_t limit=0, **properties):
    """A DISCONNECT; 3.x knows only the client's, which has neither reason nor properties."""
    if version < 5 or (reason == 0 and not properties):
        return bytes((DISCONNECT << 4, 0))
    packet = build_answer(DISCONNECT, bytes((reason,)), properties, b"", limit)
    # the shortest form, for a client that takes next to nothing
    return packet or (bytes((DISCONNECT << 4, 1, reason)) if limit >= 3 else b"")


def build_auth(uint8_t reason, *, uint32_t limit=0, **properties):
    """An AUTH."""
    return build_answer(AUTH, bytes((reason,)), properties, b"", limit)


def build_pingreq():
    """A PINGREQ."""
    return bytes((PINGREQ << 4, 0))


def build_pingresp():
    """A PINGRESP."""
    return bytes((PINGRESP << 4, 0))


def build_ack(int packet_type, int packet_id, uint8_t reason=0, *, int version=5):
    """A PUBACK, PUBREC, PUBREL or PUBCOMP."""
    if not PUBACK <= packet_type <= PUBCOMP:
        raise ValueError(f"packet type {packet_type} is no acknowledgement")
    tail = bytes((reason,)) if reason and version >= 5 else b""
    return build_plain(packet_type << 4 | (2 if packet_type == PUBREL else 0), packet_id, tail)


def build_connect(client_id, *, int version=5, bint clean_start=True, int keep_alive=60, username=None, password=None,
                  will=None, **properties):
    """A CONNECT; `will` is a packets.WillPacket."""
    cdef Buffer b
    cdef int flags = 0x02 if clean_start else 0
    if will is not None:
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
    if password is not None:
        flags |= 0x40
    if username is not None:
        flags |= 0x80
    memset(&b, 0, sizeof(Buffer))
    try:
        put_str(&b, "MQIsdp" if version == 3 else "MQTT")
        put_byte(&b, <uint8_t> version)
        put_byte(&b, <uint8_t> flags)
        put_u16(&b, keep_alive)
        if version >= 5:
            put_properties(&b, CONNECT, properties)
        put_str(&b, client_id)
        if will is not None:
            put_will(&b, will, version)
        if username is not None:
            put_str(&b, username)
        if password is not None:
            put_binary(&b, password)
        return seal_packet(CONNECT << 4, &b)
    finally:
        buffer_free(&b)


cdef int put_will(Buffer* b, object will, int version) except -1:
    cdef Buffer inner
    cdef bytes props = will.props
    if version >= 5:
        memset(&inner, 0, sizeof(Buffer))
        try:
            put_bare_properties(&inner, WILL, {"will_delay": will.delay or None, "message_expiry": will.expiry})
            put_raw(&inner, props, <uint32_t> len(props))
            put_span(b, &inner)
        finally:
            buffer_free(&inner)
    put_str(b, will.topic)
    return put_binary(b, will.payload)


# The bytes of `inner` with their length as a variable byte integer before them.
cdef int put_span(Buffer* b, Buffer* inner) except -1:
    cdef uint32_t size = buffer_size(inner)
    put_varint(buffer_reserve(b, varint_size(size)), size)
    return put_raw(b, inner.data + inner.start, size)


def build_subscribe(int packet_id, entries, *, int version=5, int identifier=0, user_properties=None):
    """A SUBSCRIBE of (filter, options) pairs."""
    cdef Buffer b
    memset(&b, 0, sizeof(Buffer))
    try:
        put_u16(&b, packet_id)
        if version >= 5:
            put_properties(&b, SUBSCRIBE, {
                "subscription_identifiers": (identifier,) if identifier else None,
                "user_properties": user_properties,
            })
        for filter, options in entries:
            put_str(&b, filter)
            put_byte(&b, options)
        return seal_packet(SUBSCRIBE << 4 | 2, &b)
    finally:
        buffer_free(&b)


def build_unsubscribe(int packet_id, filters, *, int version=5, user_properties=None):
    """An UNSUBSCRIBE."""
    cdef Buffer b
    memset(&b, 0, sizeof(Buffer))
    try:
        put_u16(&b, packet_id)
        if version >= 5:
            put_properties(&b, UNSUBSCRIBE, {"user_properties": user_properties})
        for filter in filters:
            put_str(&b, filter)
        return seal_packet(UNSUBSCRIBE << 4 | 2, &b)
    finally:
        buffer_free(&b)


def build_publish(topic, payload=b"", *, int qos=0, bint retain=False, bint dup=False, int packet_id=0, int version=5,
                  **properties):
    """A PUBLISH."""
    cdef Buffer b
    cdef Py_buffer raw
    memset(&b, 0, sizeof(Buffer))
    PyObject_GetBuffer(payload, &raw, PyBUF_SIMPLE)
    try:
        put_str(&b, topic)
        if qos:                             # [MQTT-2.2.1-2] [MQTT3-2.3.1-5]
            put_u16(&b, packet_id)
        if version >= 5:
            put_properties(&b, PUBLISH, properties)
        if raw.len > 0xFFFF_FFFF:
            raise ValueError("payload does not fit in a packet")
        put_raw(&b, <const uint8_t*> raw.buf, <uint32_t> raw.len)
        return seal_packet(<uint8_t> (PUBLISH << 4 | dup << 3 | qos << 1 | retain), &b)
    finally:
        PyBuffer_Release(&raw)
        buffer_free(&b)


def encode_publish_properties(**properties):
    """Forwardable PUBLISH properties without their length: what a message and a will carry as `props`."""
    cdef Buffer b
    for name in ("topic_alias", "message_expiry", "subscription_identifiers"):
        if properties.get(name) is not None:
            raise ValueError(f"{name} is written by the broker for each subscriber")
    memset(&b, 0, sizeof(Buffer))
    try:
        put_bare_properties(&b, PUBLISH, properties)
        return (<const char*> b.data)[b.start:b.end] if b.data != NULL else b""
    finally:
        buffer_free(&b)
