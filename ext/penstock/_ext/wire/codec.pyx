"""PUBLISH and the acknowledgements, parsed in place; see codec.pxd.

Which of the two general reason codes a violation gets follows MQTT 5.0, 1.2 and 4.13: what cannot be parsed is a
Malformed Packet (0x81), and so is a property that its packet may not carry (2.2.2.2); what can be parsed but breaks a
rule is a Protocol Error (0x82), unless the rule names a code of its own.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from penstock._ext.wire.buffer cimport buffer_free, buffer_reserve
from penstock._ext.wire.numbers cimport get_be16, get_be32, get_varint, is_mqtt_utf8

cdef enum Property:
    PAYLOAD_FORMAT = 0x01
    MESSAGE_EXPIRY = 0x02
    CONTENT_TYPE = 0x03
    RESPONSE_TOPIC = 0x08
    CORRELATION_DATA = 0x09
    SUBSCRIPTION_IDENTIFIER = 0x0B
    WILL_DELAY = 0x18
    REASON_STRING = 0x1F
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26


cdef int parse_publish(uint8_t flags, const uint8_t* body, uint32_t size, uint8_t version, uint32_t max_user_properties,
                       PublishView* view, Buffer* scratch) except -1 nogil:
    cdef uint8_t qos = (flags >> 1) & 3
    cdef uint32_t topic_size, header
    cdef int reason
    if qos == 3:                            # [MQTT-3.3.1-4] [MQTT3-3.3.1-4]
        return MALFORMED_PACKET
    if qos == 0 and flags & 8:              # [MQTT-3.3.1-2] [MQTT3-3.3.1-2]
        return MALFORMED_PACKET
    if size < 2:
        return MALFORMED_PACKET
    topic_size = get_be16(body)
    header = 2 + topic_size + (2 if qos else 0)     # [MQTT-2.2.1-2] [MQTT3-2.3.1-5]: no identifier with QoS 0
    if size < header:
        return MALFORMED_PACKET
    view.topic = body + 2
    view.topic_size = topic_size
    view.qos = qos
    view.retain = flags & 1
    view.dup = flags >> 3 & 1
    view.packet_id = 0
    if qos:
        view.packet_id = get_be16(body + header - 2)
        if view.packet_id == 0:             # [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
            return PROTOCOL_ERROR
    view.props = NULL
    view.props_size = 0
    view.expiry = 0
    view.alias = 0
    view.has_expiry = 0
    if version >= 5:
        if size == header:
            return MALFORMED_PACKET
        if body[header] == 0:               # likeliest: no properties
            header += 1
        else:
            reason = read_publish_properties(body, size, &header, max_user_properties, view, scratch)
            if reason:
                return reason
        if topic_size == 0 and view.alias == 0:     # 3.3.2.1
            return PROTOCOL_ERROR
    elif topic_size == 0:                   # [MQTT3-4.7.3-1]
        return TOPIC_NAME_INVALID
    view.payload = body + header
    view.payload_size = size - header
    return SUCCESS


# Moves *header behind the properties.
cdef int read_publish_properties(const uint8_t* body, uint32_t size, uint32_t* header, uint32_t max_user_properties,
                                 PublishView* view, Buffer* scratch) except -1 nogil:
    cdef MessageProperties found
    cdef uint32_t length = 0
    cdef int width = get_varint(body + header[0], body + size, &length)
    cdef int reason
    if width <= 0:
        return MALFORMED_PACKET
    header[0] += <uint32_t> width
    if length > size - header[0]:
        return MALFORMED_PACKET
    reason = parse_message_properties(body + header[0], body + header[0] + length, False, max_user_properties, &found,
                                      scratch)
    if reason:
        return reason
    header[0] += length
    view.props = found.props
    view.props_size = found.props_size
    view.expiry = found.expiry
    view.alias = found.alias
    view.has_expiry = found.has_expiry
    return SUCCESS


# Behind the Binary Data at `at`; NULL if it is cut off.
cdef inline const uint8_t* skip_binary(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef uint32_t size
    if end - at < 2:
        return NULL
    size = get_be16(at)
    if end - at - 2 < <ptrdiff_t> size:
        return NULL
    return at + 2 + size


# Behind the UTF-8 Encoded String at `at`; NULL if it is cut off or ill-formed [MQTT-1.5.4-1] [MQTT-1.5.4-2].
cdef inline const uint8_t* skip_string(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* after = skip_binary(at, end)
    if after != NULL and not is_mqtt_utf8(at + 2, <size_t> (after - at - 2)):
        return NULL
    return after


# Behind the name and value at `at` [MQTT-1.5.7-1].
cdef inline const uint8_t* skip_pair(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* after = skip_string(at, end)
    return skip_string(after, end) if after != NULL else NULL


cdef int parse_message_properties(const uint8_t* at, const uint8_t* end, bint in_will, uint32_t max_user_properties,
                                  MessageProperties* found, Buffer* scratch) except -1 nogil:
    cdef const uint8_t* start
    cdef const uint8_t* kept_end = NULL     # what is kept lies in the body as long as it is in one piece
    cdef uint8_t* copy = NULL
    cdef uint32_t total = <uint32_t> (end - at)
    cdef uint32_t user_properties = 0
    cdef uint64_t seen = 0
    cdef uint8_t identifier
    cdef bint keep
    memset(found, 0, sizeof(MessageProperties))
    while at < end:
        start = at
        identifier = at[0]
        at += 1
        keep = True
        if identifier == USER_PROPERTY:
            user_properties += 1
            if user_properties > max_user_properties:
                return QUOTA_EXCEEDED
            at = skip_pair(at, end)
        elif identifier < 64 and seen >> identifier & 1:    # 2.2.2: only a User Property may appear twice
            return PROTOCOL_ERROR
        elif identifier == TOPIC_ALIAS and not in_will:
            if end - at < 2:
                return MALFORMED_PACKET
            found.alias = get_be16(at)
            if found.alias == 0:            # [MQTT-3.3.2-8], with the code 3.3.4 names
                return TOPIC_ALIAS_INVALID
            at += 2
            keep = False
        elif identifier == MESSAGE_EXPIRY:
            if end - at < 4:
                return MALFORMED_PACKET
            found.expiry = get_be32(at)
            found.has_expiry = 1
            at += 4
            keep = False
        elif identifier == PAYLOAD_FORMAT:
            if at == end:
                return MALFORMED_PACKET
            if at[0] > 1:
                return PROTOCOL_ERROR
            at += 1
        elif identifier == CONTENT_TYPE:    # [MQTT-3.3.2-19]
            at = skip_string(at, end)
        elif identifier == RESPONSE_TOPIC:  # [MQTT-3.3.2-13]
            at = skip_string(at, end)
            if at != NULL and check_topic_name(start + 3, <uint32_t> (at - start - 3), 0):
                return PROTOCOL_ERROR       # [MQTT-3.3.2-14]
        elif identifier == CORRELATION_DATA:
            at = skip_binary(at, end)
        elif identifier == WILL_DELAY and in_will:
            if end - at < 4:
                return MALFORMED_PACKET
            found.delay = get_be32(at)
            found.has_delay = 1
            at += 4
            keep = False
        elif identifier == SUBSCRIPTION_IDENTIFIER and not in_will:
            return PROTOCOL_ERROR           # [MQTT-3.3.4-6]
        else:                               # 2.2.2.2: not a property of this packet
            return MALFORMED_PACKET
        if at == NULL:
            return MALFORMED_PACKET
        if identifier < 64:
            seen |= <uint64_t> 1 << identifier
        if not keep:
            continue
        if copy != NULL:
            memcpy(copy + found.props_size, start, <size_t> (at - start))
        elif found.props == NULL:
            found.props = start
        elif kept_end != start:
            scratch.start = scratch.end = 0
            copy = buffer_reserve(scratch, total)
            memcpy(copy, found.props, found.props_size)
            memcpy(copy + found.props_size, start, <size_t> (at - start))
            found.props = copy
        found.props_size += <uint32_t> (at - start)
        kept_end = at
    if copy != NULL:
        scratch.end = found.props_size
    return SUCCESS


cdef int parse_ack(uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t size, uint8_t version,
                   AckView* view) noexcept nogil:
    # [MQTT-2.1.3-1] [MQTT-3.6.1-1] [MQTT3-2.2.2-1] [MQTT3-2.2.2-2] [MQTT3-3.6.1-1]
    # MQTT 3.1 marks a repeated PUBREL with DUP.
    if flags != (2 if packet_type == PUBREL else 0) and not (version == 3 and packet_type == PUBREL and flags == 10):
        return MALFORMED_PACKET
    if size < 2:
        return MALFORMED_PACKET
    view.packet_id = get_be16(body)
    view.reason = SUCCESS
    if view.packet_id == 0:                 # [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
        return PROTOCOL_ERROR
    if size == 2:                           # likeliest
        return SUCCESS
    if version < 5:
        return MALFORMED_PACKET
    view.reason = body[2]
    if not is_ack_reason(packet_type, view.reason):
        return PROTOCOL_ERROR
    return SUCCESS if size == 3 else check_ack_properties(body + 3, body + size)


# [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1] [MQTT-3.7.2-1]
cdef inline bint is_ack_reason(uint8_t packet_type, uint8_t reason) noexcept nogil:
    if reason == 0:
        return True
    if packet_type == PUBREL or packet_type == PUBCOMP:
        return reason == 0x92
    return reason in (0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)


# The property length and all that follows it.
cdef int check_ack_properties(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef uint32_t length = 0
    cdef int width = get_varint(at, end, &length)
    cdef bint has_reason_string = False
    if width <= 0 or <ptrdiff_t> length != end - at - width:
        return MALFORMED_PACKET
    at += width
    while at < end:
        if at[0] == USER_PROPERTY:
            at = skip_pair(at + 1, end)
        elif at[0] == REASON_STRING:
            if has_reason_string:
                return PROTOCOL_ERROR
            has_reason_string = True
            at = skip_string(at + 1, end)
        else:                               # 2.2.2.2: not a property of this packet
            return MALFORMED_PACKET
        if at == NULL:
            return MALFORMED_PACKET
    return SUCCESS


# One character in each byte of a word.
cdef extern from *:
    """
    #define EACH_BYTE 0x0101010101010101ull
    #define PLUSES (EACH_BYTE * '+')
    #define HASHES (EACH_BYTE * '#')
    #define SLASHES (EACH_BYTE * '/')
    #define LOW_BITS (EACH_BYTE * 0x7F)
    """
    const uint64_t EACH_BYTE, PLUSES, HASHES, SLASHES, LOW_BITS


# The top bit of each byte in which the words are equal.
cdef inline uint64_t bytes_equal(uint64_t word, uint64_t pattern) noexcept nogil:
    cdef uint64_t differ = word ^ pattern
    return ~(((differ & LOW_BITS) + LOW_BITS) | differ | LOW_BITS)


cdef int check_topic_name(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept nogil:
    cdef const uint8_t* end = topic + size
    cdef uint32_t levels = 1
    cdef uint64_t word
    if size == 0:                           # [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
        return TOPIC_NAME_INVALID
    # [MQTT-3.3.2-1] [MQTT-4.7.3-2] [MQTT3-3.3.2-1] [MQTT3-4.7.3-2] [MQTT3-1.5.3-1] [MQTT3-1.5.3-2]
    if not is_mqtt_utf8(topic, size):
        return MALFORMED_PACKET
    # [MQTT-3.3.2-2] [MQTT-4.7.0-1] [MQTT3-3.3.2-2] [MQTT3-4.7.1-1]: no wildcard; eight bytes at a time
    while end - topic >= 8:
        memcpy(&word, topic, 8)
        if bytes_equal(word, PLUSES) | bytes_equal(word, HASHES):
            return TOPIC_NAME_INVALID
        levels += <uint32_t> ((bytes_equal(word, SLASHES) >> 7) * EACH_BYTE >> 56)
        topic += 8
    while topic < end:
        if topic[0] == c'+' or topic[0] == c'#':
            return TOPIC_NAME_INVALID
        levels += topic[0] == c'/'
        topic += 1
    return TOPIC_NAME_INVALID if max_levels and levels > max_levels else SUCCESS


cdef int check_topic_filter(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept nogil:
    cdef const uint8_t* at = topic
    cdef const uint8_t* end = topic + size
    cdef uint32_t levels = 1
    cdef bint opens_level = True
    if size == 0:                           # [MQTT-4.7.3-1] [MQTT3-4.7.3-1]
        return TOPIC_FILTER_INVALID
    # [MQTT-3.8.3-1] [MQTT-4.7.3-2] [MQTT3-3.8.3-1] [MQTT3-4.7.3-2]
    if not is_mqtt_utf8(topic, size):
        return MALFORMED_PACKET
    while at < end:
        if at[0] == c'/':
            levels += 1
        elif at[0] == c'#':                 # [MQTT-4.7.1-1] [MQTT3-4.7.1-2]
            if at + 1 != end or not opens_level:
                return TOPIC_FILTER_INVALID
        elif at[0] == c'+':                 # [MQTT-4.7.1-2] [MQTT3-4.7.1-3]
            if not opens_level or (at + 1 != end and at[1] != c'/'):
                return TOPIC_FILTER_INVALID
        opens_level = at[0] == c'/'
        at += 1
    return TOPIC_FILTER_INVALID if max_levels and levels > max_levels else SUCCESS


# What follows lets tests, the fuzzer and the micro-benchmarks drive the C functions above.

def debug_parse_publish(uint8_t flags, body, uint8_t version, uint32_t max_user_properties=64):
    """The parsed PUBLISH as a dict, or the reason code as an int."""
    cdef Py_buffer raw
    cdef PublishView view
    cdef Buffer scratch
    cdef int reason
    memset(&scratch, 0, sizeof(Buffer))
    PyObject_GetBuffer(body, &raw, PyBUF_SIMPLE)
    try:
        reason = parse_publish(flags, <const uint8_t*> raw.buf, <uint32_t> raw.len, version, max_user_properties, &view,
                               &scratch)
        if reason:
            return reason
        return {
            "topic": view.topic[:view.topic_size],
            "payload": view.payload[:view.payload_size],
            "props": view.props[:view.props_size],
            "props_copied": scratch.data != NULL,
            "expiry": view.expiry if view.has_expiry else None,
            "packet_id": view.packet_id,
            "alias": view.alias,
            "qos": view.qos,
            "retain": bool(view.retain),
            "dup": bool(view.dup),
        }
    finally:
        buffer_free(&scratch)
        PyBuffer_Release(&raw)


def debug_parse_ack(uint8_t packet_type, uint8_t flags, body, uint8_t version):
    """(packet id, reason), or the reason code as an int."""
    cdef Py_buffer raw
    cdef AckView view
    cdef int reason
    PyObject_GetBuffer(body, &raw, PyBUF_SIMPLE)
    try:
        reason = parse_ack(packet_type, flags, <const uint8_t*> raw.buf, <uint32_t> raw.len, version, &view)
        if reason:
            return reason
        return view.packet_id, view.reason
    finally:
        PyBuffer_Release(&raw)


def debug_check_topic_name(topic, uint32_t max_levels=0):
    """0, or the reason code."""
    cdef Py_buffer raw
    PyObject_GetBuffer(topic, &raw, PyBUF_SIMPLE)
    try:
        return check_topic_name(<const uint8_t*> raw.buf, <uint32_t> raw.len, max_levels)
    finally:
        PyBuffer_Release(&raw)


def debug_check_topic_filter(topic, uint32_t max_levels=0):
    """0, or the reason code."""
    cdef Py_buffer raw
    PyObject_GetBuffer(topic, &raw, PyBUF_SIMPLE)
    try:
        return check_topic_filter(<const uint8_t*> raw.buf, <uint32_t> raw.len, max_levels)
    finally:
        PyBuffer_Release(&raw)


cdef enum:
    BENCH_COPIES = 64       # packets lying one behind the other, as in a read buffer; also keeps the call in the loop


def bench_parse_publish(uint8_t flags, bytes body, uint8_t version, uint32_t count):
    """Parses `count` packets in C; the sum of their payload sizes."""
    cdef PublishView view
    cdef Buffer scratch
    cdef uint32_t size = <uint32_t> len(body), i
    cdef uint64_t total = 0
    cdef uint8_t* copies = bench_copies(body)
    memset(&scratch, 0, sizeof(Buffer))
    try:
        with nogil:
            for i in range(count):
                if parse_publish(flags, copies + (i % BENCH_COPIES) * size, size, version, 64, &view, &scratch) == 0:
                    total += view.payload_size
        return total
    finally:
        buffer_free(&scratch)
        free(copies)


def bench_parse_ack(uint8_t packet_type, uint8_t flags, bytes body, uint8_t version, uint32_t count):
    """Parses `count` acknowledgements in C; the sum of their packet ids."""
    cdef AckView view
    cdef uint32_t size = <uint32_t> len(body), i
    cdef uint64_t total = 0
    cdef uint8_t* copies = bench_copies(body)
    try:
        with nogil:
            for i in range(count):
                if parse_ack(packet_type, flags, copies + (i % BENCH_COPIES) * size, size, version, &view) == 0:
                    total += view.packet_id
        return total
    finally:
        free(copies)


def bench_check_topic_name(bytes topic, uint32_t count):
    """Checks a topic name `count` times in C; how often it was good."""
    cdef uint32_t size = <uint32_t> len(topic), i, good = 0
    cdef uint8_t* copies = bench_copies(topic)
    try:
        with nogil:
            for i in range(count):
                good += check_topic_name(copies + (i % BENCH_COPIES) * size, size, 128) == 0
        return good
    finally:
        free(copies)


cdef uint8_t* bench_copies(bytes body) except NULL:
    cdef size_t size = <size_t> len(body), i
    cdef uint8_t* copies = <uint8_t*> malloc(size * BENCH_COPIES + 1)
    if copies == NULL:
        raise MemoryError()
    for i in range(<size_t> BENCH_COPIES):
        memcpy(copies + i * size, <const char*> body, size)
    return copies
