"""The stored form of a PUBLISH; see envelope.pxd. What the fields mean is in penstock_schema/publish.proto.

The bytes are those Google's library writes: fields in the order of their numbers, those with their default left out.
Reading takes the fields in any order, the last of a repeated single field counts, unknown ones are skipped. What comes
back is checked as if a client had sent it, because a log can have other writers.

Longer than most: writer and reader share their inline helpers, and the one is read best beside the other.
"""

from collections import namedtuple

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stddef cimport ptrdiff_t
from libc.stdint cimport UINT32_MAX, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from penstock._ext.wire.buffer cimport buffer_free, buffer_reserve
from penstock._ext.wire.codec cimport PUBLISH, MessageProperties, check_topic_name, parse_message_properties
from penstock._ext.wire.fields cimport put_bare_properties
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView
from penstock._ext.wire.numbers cimport get_be16, is_mqtt_utf8, put_be16

cdef extern from "segment.h" nogil:
    uint32_t varint64_size(uint64_t v)
    uint8_t* put_varint64(uint8_t* p, uint64_t v)
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value)

cdef enum:
    OLDEST_READ = 1     # FIRST_VERSION and VERSION of penstock_schema.fields
    WRITTEN = 1
    LONGEST_STRING = 65_535
    LARGEST_TAG = 0xFFFFFFFF
    LARGEST_RECORD = 0x10100000     # an MQTT packet of the largest size, and who sent it
    LARGEST_PROPERTIES = 0x0FFFFFFF

# Field number and wire type, as they lie before the value.
cdef enum Tag:
    SCHEMA_VERSION = 1 << 3
    TOPIC = 2 << 3 | 2
    PAYLOAD = 3 << 3 | 2
    QOS = 4 << 3
    RETAIN = 5 << 3
    CLIENT_ID = 6 << 3 | 2
    USERNAME = 7 << 3 | 2
    RECEIVED_AT = 8 << 3
    EXPIRES_AT = 9 << 3
    # of origin.proto
    NODE = 10 << 3 | 5
    SHARES_WAIT = 11 << 3
    RECEIVED = 26 << 3
    PAYLOAD_FORMAT = 16 << 3
    CONTENT_TYPE = 17 << 3 | 2
    RESPONSE_TOPIC = 18 << 3 | 2
    CORRELATION_DATA = 19 << 3 | 2
    USER_PROPERTY = 20 << 3 | 2
    # of delivery.proto
    DELIVERY_QOS = 21 << 3
    DELIVERY_RETAINED = 22 << 3
    SUBSCRIPTION_IDS = 23 << 3 | 2
    SOURCE_PARTITION = 24 << 3
    SOURCE_OFFSET = 25 << 3
    PAIR_NAME = 1 << 3 | 2
    PAIR_VALUE = 2 << 3 | 2

cdef enum WireType:
    VARINT = 0
    FIXED64 = 1
    BYTES = 2
    FIXED32 = 5

# The same properties in MQTT (2.2.2.2).
cdef enum MqttProperty:
    MQTT_PAYLOAD_FORMAT = 0x01
    MQTT_CONTENT_TYPE = 0x03
    MQTT_RESPONSE_TOPIC = 0x08
    MQTT_CORRELATION_DATA = 0x09
    MQTT_USER_PROPERTY = 0x26

cdef struct Span:
    const uint8_t* at       # NULL = absent
    uint32_t size

# The properties of one message, where they lie; of the user properties only where they begin and end.
cdef struct Properties:
    Span content_type
    Span response_topic
    Span correlation_data
    const uint8_t* users
    const uint8_t* users_end
    uint32_t users_size     # in the encoding that is to be written
    int payload_format      # -1 = absent

# Why bytes are not an envelope, and where it shows.
cdef struct Fault:
    const char* reason
    uint32_t position

Envelope = namedtuple(
    "Envelope",
    ("schema_version", "topic", "payload", "qos", "retain", "client_id", "username", "received_at", "expires_at",
     "payload_format", "content_type", "response_topic", "correlation_data", "user_properties", "props"),
)
FIRST_VERSION = OLDEST_READ
VERSION = WRITTEN


cdef inline void put_le32(uint8_t* p, uint32_t v) noexcept nogil:
    p[0], p[1], p[2], p[3] = <uint8_t> v, <uint8_t> (v >> 8), <uint8_t> (v >> 16), <uint8_t> (v >> 24)


cdef inline uint32_t get_le32(const uint8_t* p) noexcept nogil:
    return p[0] | <uint32_t> p[1] << 8 | <uint32_t> p[2] << 16 | <uint32_t> p[3] << 24


cdef inline uint32_t bytes_field_size(uint32_t tag_size, uint32_t size) noexcept nogil:
    return tag_size + varint64_size(size) + size


cdef inline uint8_t* put_bytes(uint8_t* p, uint32_t tag, const uint8_t* data, uint32_t size) noexcept nogil:
    p = put_varint64(p, tag)
    p = put_varint64(p, size)
    if size:
        memcpy(p, data, size)
    return p + size


cdef inline uint8_t* put_number(uint8_t* p, uint32_t tag, uint64_t number) noexcept nogil:
    return put_varint64(put_varint64(p, tag), number)


# Size of a user property's message, without its own tag and size.
cdef inline uint32_t pair_size(uint32_t name_size, uint32_t value_size) noexcept nogil:
    return ((bytes_field_size(1, name_size) if name_size else 0)
            + (bytes_field_size(1, value_size) if value_size else 0))


# Behind the string or binary at `at`; NULL if it is cut off.
cdef inline const uint8_t* take_span(const uint8_t* at, const uint8_t* end, Span* span) noexcept nogil:
    cdef uint32_t size
    if end - at < 2:
        return NULL
    size = get_be16(at)
    if end - at - 2 < <ptrdiff_t> size:
        return NULL
    span.at = at + 2
    span.size = size
    return span.at + size


# Finds the properties in MQTT's encoding, which codec checked; memory is safe even if it did not.
cdef void scan_mqtt(const uint8_t* at, const uint8_t* end, Properties* found) noexcept nogil:
    cdef const uint8_t* start
    cdef Span name, value
    memset(found, 0, sizeof(Properties))
    found.payload_format = -1
    while at < end:
        start = at
        at += 1
        if start[0] == MQTT_USER_PROPERTY:
            at = take_span(at, end, &name)
            if at != NULL:
                at = take_span(at, end, &value)
            if at == NULL:
                return
            if found.users == NULL:
                found.users = start
            found.users_end = at
            found.users_size += bytes_field_size(2, pair_size(name.size, value.size))
        elif start[0] == MQTT_PAYLOAD_FORMAT and at < end:
            found.payload_format = at[0]
            at += 1
        elif start[0] == MQTT_CONTENT_TYPE:
            at = take_span(at, end, &found.content_type)
        elif start[0] == MQTT_RESPONSE_TOPIC:
            at = take_span(at, end, &found.response_topic)
        elif start[0] == MQTT_CORRELATION_DATA:
            at = take_span(at, end, &found.correlation_data)
        else:
            return
        if at == NULL:
            return


# Behind the property at `at`, which scan_mqtt walked over before.
cdef inline const uint8_t* after_mqtt(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef Span span
    if at[0] == MQTT_PAYLOAD_FORMAT:
        return at + 2
    if at[0] == MQTT_USER_PROPERTY:
        return take_span(take_span(at + 1, end, &span), end, &span)
    return take_span(at + 1, end, &span)


cdef uint32_t properties_size(const EnvelopeView* view) noexcept nogil:
    cdef Properties found
    cdef uint32_t size
    scan_mqtt(view.props, view.props + view.props_size, &found)
    size = found.users_size
    if found.payload_format >= 0:
        size += 2 + varint64_size(found.payload_format)
    if found.content_type.at != NULL:
        size += bytes_field_size(2, found.content_type.size)
    if found.response_topic.at != NULL:
        size += bytes_field_size(2, found.response_topic.size)
    if found.correlation_data.at != NULL:
        size += bytes_field_size(2, found.correlation_data.size)
    return size


cdef uint8_t* put_properties(uint8_t* p, const EnvelopeView* view) noexcept nogil:
    cdef Properties found
    cdef Span name, value
    cdef const uint8_t* at
    cdef const uint8_t* end = view.props + view.props_size
    name.at, name.size, value.at, value.size = NULL, 0, NULL, 0
    scan_mqtt(view.props, end, &found)
    if found.payload_format >= 0:
        p = put_number(p, PAYLOAD_FORMAT, <uint64_t> found.payload_format)
    if found.content_type.at != NULL:
        p = put_bytes(p, CONTENT_TYPE, found.content_type.at, found.content_type.size)
    if found.response_topic.at != NULL:
        p = put_bytes(p, RESPONSE_TOPIC, found.response_topic.at, found.response_topic.size)
    if found.correlation_data.at != NULL:
        p = put_bytes(p, CORRELATION_DATA, found.correlation_data.at, found.correlation_data.size)
    at = found.users
    while at < found.users_end:
        if at[0] == MQTT_USER_PROPERTY:
            take_span(take_span(at + 1, end, &name), end, &value)
            p = put_number(p, USER_PROPERTY, pair_size(name.size, value.size))
            if name.size:
                p = put_bytes(p, PAIR_NAME, name.at, name.size)
            if value.size:
                p = put_bytes(p, PAIR_VALUE, value.at, value.size)
        at = after_mqtt(at, end)
    return p


cdef uint32_t envelope_size(const EnvelopeView* view) noexcept nogil:
    cdef uint32_t size = 2 + bytes_field_size(1, view.topic_size)
    if view.payload_size:
        size += bytes_field_size(1, view.payload_size)
    if view.qos:
        size += 2
    if view.retain:
        size += 2
    if view.client_id_size:
        size += bytes_field_size(1, view.client_id_size)
    if view.username != NULL:
        size += bytes_field_size(1, view.username_size)
    if view.received_at:
        size += 1 + varint64_size(<uint64_t> view.received_at)
    if view.expires_at:
        size += 1 + varint64_size(<uint64_t> view.expires_at)
    if view.props_size:
        size += properties_size(view)
    return size


cdef uint8_t* put_envelope(uint8_t* p, const EnvelopeView* view) noexcept nogil:
    p[0] = SCHEMA_VERSION
    p[1] = WRITTEN
    p = put_bytes(p + 2, TOPIC, view.topic, view.topic_size)
    if view.payload_size:
        p = put_bytes(p, PAYLOAD, view.payload, view.payload_size)
    if view.qos:
        p[0] = QOS
        p[1] = view.qos
        p += 2
    if view.retain:
        p[0] = RETAIN
        p[1] = 1
        p += 2
    if view.client_id_size:
        p = put_bytes(p, CLIENT_ID, view.client_id, view.client_id_size)
    if view.username != NULL:
        p = put_bytes(p, USERNAME, view.username, view.username_size)
    if view.received_at:
        p = put_number(p, RECEIVED_AT, <uint64_t> view.received_at)
    if view.expires_at:
        p = put_number(p, EXPIRES_AT, <uint64_t> view.expires_at)
    if view.props_size:
        p = put_properties(p, view)
    return p


cdef uint32_t delivery_size(uint8_t qos, bint retain, const uint32_t* ids, uint16_t id_count, uint32_t partition,
                            int64_t offset) noexcept nogil:
    cdef uint32_t size = 0, ids_size = 0
    cdef uint16_t i
    if qos != NO_DELIVERY_QOS:
        size += 2 + varint64_size(qos)
    if retain:
        size += 3
    if id_count:
        for i in range(id_count):
            ids_size += varint64_size(ids[i])
        size += bytes_field_size(2, ids_size)
    if offset >= 0:
        size += 2 + varint64_size(partition) + 2 + varint64_size(<uint64_t> offset)
    return size


cdef uint8_t* put_delivery(uint8_t* p, uint8_t qos, bint retain, const uint32_t* ids, uint16_t id_count,
                           uint32_t partition, int64_t offset) noexcept nogil:
    cdef uint32_t ids_size = 0
    cdef uint16_t i
    if qos != NO_DELIVERY_QOS:
        p = put_number(p, DELIVERY_QOS, qos)
    if retain:
        p = put_number(p, DELIVERY_RETAINED, 1)
    if id_count:
        for i in range(id_count):
            ids_size += varint64_size(ids[i])
        p = put_number(p, SUBSCRIPTION_IDS, ids_size)
        for i in range(id_count):
            p = put_varint64(p, ids[i])
    if offset >= 0:
        p = put_number(p, SOURCE_PARTITION, partition)
        p = put_number(p, SOURCE_OFFSET, <uint64_t> offset)
    return p


cdef uint32_t origin_size(bint shares_wait) noexcept nogil:
    return 7 if shares_wait else 5


cdef uint8_t* put_origin(uint8_t* p, uint32_t node, bint shares_wait) noexcept nogil:
    p[0] = NODE
    put_le32(p + 1, node)
    p += 5
    if shares_wait:
        p[0] = SHARES_WAIT
        p[1] = 1
        p += 2
    return p


cdef uint32_t received_size(uint64_t mark) noexcept nogil:
    return 2 + varint64_size(mark)


cdef uint8_t* put_received(uint8_t* p, uint64_t mark) noexcept nogil:
    return put_number(p, RECEIVED, mark)


# One field: its tag and, by wire type, its number or its bytes. Where it ends, or NULL.
cdef inline const uint8_t* take_field(const uint8_t* p, const uint8_t* end, uint64_t* tag, uint64_t* number,
                                      Span* span) noexcept nogil:
    p = get_varint64(p, end, tag)
    if p == NULL or tag[0] < 8 or tag[0] > LARGEST_TAG:
        return NULL
    if tag[0] & 7 == BYTES:
        p = get_varint64(p, end, number)
        if p == NULL or number[0] > <uint64_t> (end - p):
            return NULL
        span.at = p
        span.size = <uint32_t> number[0]
        return p + number[0]
    if tag[0] & 7 == VARINT:
        return get_varint64(p, end, number)
    if tag[0] & 7 == FIXED64 and end - p >= 8:
        return p + 8
    if tag[0] & 7 == FIXED32 and end - p >= 4:
        return p + 4
    return NULL     # cut off, or a group, which proto3 does not have


# A user property's message; the fault's place if it is not one, else NULL.
cdef const uint8_t* read_pair(Span message, Span* name, Span* value) noexcept nogil:
    cdef const uint8_t* p = message.at
    cdef const uint8_t* start
    cdef const uint8_t* end = message.at + message.size
    cdef uint64_t tag = 0, number = 0
    cdef Span span
    name.at, name.size = p, 0
    value.at, value.size = p, 0
    while p < end:
        start = p
        p = take_field(p, end, &tag, &number, &span)
        if p == NULL:
            return start
        if tag == PAIR_NAME:
            name[0] = span
        elif tag == PAIR_VALUE:
            value[0] = span
    return message.at if name.size > LONGEST_STRING or value.size > LONGEST_STRING else NULL


cdef inline int fail(Fault* fault, const char* reason, ptrdiff_t position) noexcept nogil:
    fault.reason = reason
    fault.position = <uint32_t> position
    return -1


cdef inline uint8_t* put_span(uint8_t* p, const Span* span) noexcept nogil:
    put_be16(p, <uint16_t> span.size)
    memcpy(p + 2, span.at, span.size)
    return p + 2 + span.size


cdef inline uint8_t* put_mqtt(uint8_t* p, uint8_t identifier, const Span* span) noexcept nogil:
    if span.at == NULL:
        return p
    p[0] = identifier
    return put_span(p + 1, span)


# Lays the properties out as MQTT has them, in `scratch`, and checks them as those of a client are.
cdef int lay_out(const Properties* found, const uint8_t* data, EnvelopeView* view, Buffer* scratch,
                 Fault* fault) except -2 nogil:
    cdef uint64_t size = found.users_size
    cdef uint64_t tag = 0, number = 0
    cdef uint8_t* p
    cdef const uint8_t* at = found.users
    cdef Span span, name, value
    cdef MessageProperties checked
    span.at, span.size = NULL, 0
    size += 2 if found.payload_format >= 0 else 0
    size += 3 + found.content_type.size if found.content_type.at != NULL else 0
    size += 3 + found.response_topic.size if found.response_topic.at != NULL else 0
    size += 3 + found.correlation_data.size if found.correlation_data.at != NULL else 0
    if size > LARGEST_PROPERTIES:
        return fail(fault, b"more properties than MQTT allows", 0)
    scratch.start = scratch.end = 0
    p = buffer_reserve(scratch, <uint32_t> size)
    view.props = p
    view.props_size = <uint32_t> size
    if found.payload_format >= 0:
        p[0] = MQTT_PAYLOAD_FORMAT
        p[1] = <uint8_t> found.payload_format
        p += 2
    p = put_mqtt(p, MQTT_CONTENT_TYPE, &found.content_type)
    p = put_mqtt(p, MQTT_RESPONSE_TOPIC, &found.response_topic)
    p = put_mqtt(p, MQTT_CORRELATION_DATA, &found.correlation_data)
    while at < found.users_end:
        at = take_field(at, found.users_end, &tag, &number, &span)
        if tag == USER_PROPERTY:
            read_pair(span, &name, &value)
            p[0] = MQTT_USER_PROPERTY
            p = put_span(put_span(p + 1, &name), &value)
    # [MQTT-1.5.4-1] [MQTT-3.3.2-14]: no other rule can be broken here
    if parse_message_properties(view.props, p, False, UINT32_MAX, &checked, scratch):
        return fail(fault, b"the properties are not those of a PUBLISH", 0)
    return 0


cdef int check_view(const EnvelopeView* view, uint32_t version, uint32_t qos, uint32_t size,
                    Fault* fault) noexcept nogil:
    if version < OLDEST_READ or version > WRITTEN:
        return fail(fault, b"not a record of a schema version that is read here", size)
    if qos > 2:
        return fail(fault, b"there is no such QoS", size)
    if view.topic_size > LONGEST_STRING or check_topic_name(view.topic, view.topic_size, 0):
        return fail(fault, b"the topic is not a topic name", size)
    if view.client_id_size > LONGEST_STRING or not is_mqtt_utf8(view.client_id, view.client_id_size):
        return fail(fault, b"the client id is not an MQTT string", size)
    if view.username_size > LONGEST_STRING or not is_mqtt_utf8(view.username, view.username_size):
        return fail(fault, b"the user name is not an MQTT string", size)
    return 0


# Notes the property in the field [start, end); the fault's place if it is damaged, else NULL.
cdef const uint8_t* take_property(Properties* found, uint64_t tag, uint64_t number, const Span* span,
                                  const uint8_t* start, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* broken
    cdef Span name, value
    if tag == PAYLOAD_FORMAT:
        # what does not fit a byte is no more allowed than 255
        found.payload_format = 255 if <uint32_t> number > 255 else <int> <uint32_t> number
        return NULL
    if tag == USER_PROPERTY:
        broken = read_pair(span[0], &name, &value)
        if broken != NULL:
            return broken
        if found.users == NULL:
            found.users = start
        found.users_end = end
        found.users_size += 5 + name.size + value.size
        return NULL
    if tag & 7 == BYTES and span.size > LONGEST_STRING:
        return start
    if tag == CONTENT_TYPE:
        found.content_type = span[0]
    elif tag == RESPONSE_TOPIC:
        found.response_topic = span[0]
    elif tag == CORRELATION_DATA:
        found.correlation_data = span[0]
    return NULL


cdef int read_envelope(const uint8_t* data, uint32_t size, EnvelopeView* view, Buffer* scratch,
                       Fault* fault) except -2 nogil:
    cdef const uint8_t* p = data
    cdef const uint8_t* start
    cdef const uint8_t* broken
    cdef const uint8_t* end = data + size
    cdef uint64_t tag = 0, number = 0
    cdef uint32_t version = 0, qos = 0
    cdef Span span
    cdef Properties found
    cdef bint has_properties = False
    span.at, span.size = NULL, 0
    memset(view, 0, sizeof(EnvelopeView))
    if size > LARGEST_RECORD:
        return fail(fault, b"larger than a record can be", 0)
    view.topic = view.payload = view.client_id = data
    view.delivery_qos = NO_DELIVERY_QOS
    view.source_offset = -1
    while p < end:
        start = p
        p = take_field(p, end, &tag, &number, &span)
        if p == NULL:
            return fail(fault, b"a field is damaged or cut off", start - data)
        # In the order of their numbers, which is the order they are written in.
        if tag == SCHEMA_VERSION:
            version = <uint32_t> number
        elif tag == TOPIC:
            view.topic, view.topic_size = span.at, span.size
        elif tag == PAYLOAD:
            view.payload, view.payload_size = span.at, span.size
        elif tag == QOS:
            qos = <uint32_t> number
        elif tag == RETAIN:
            view.retain = number != 0
        elif tag == CLIENT_ID:
            view.client_id, view.client_id_size = span.at, span.size
        elif tag == USERNAME:
            view.username, view.username_size = span.at, span.size
        elif tag == RECEIVED_AT:
            view.received_at = <int64_t> number
        elif tag == EXPIRES_AT:
            view.expires_at = <int64_t> number
        elif tag == NODE:
            view.node = get_le32(p - 4)
        elif tag == SHARES_WAIT:
            view.shares_wait = number != 0
        elif PAYLOAD_FORMAT <= tag <= USER_PROPERTY:
            if not has_properties:
                has_properties = True
                memset(&found, 0, sizeof(Properties))
                found.payload_format = -1
            broken = take_property(&found, tag, number, &span, start, p)
            if broken != NULL:
                return fail(fault, b"a property is damaged or longer than MQTT allows", broken - data)
        elif tag == DELIVERY_QOS:
            view.delivery_qos = <uint8_t> number if number <= 2 else 2
        elif tag == DELIVERY_RETAINED:
            view.delivery_retain = number != 0
        elif tag == SUBSCRIPTION_IDS:
            view.ids, view.ids_size = span.at, span.size
        elif tag == SOURCE_PARTITION:
            view.source_partition = <uint32_t> number
        elif tag == SOURCE_OFFSET:
            view.source_offset = <int64_t> number
        elif tag == RECEIVED:
            view.received_mark = number
    if check_view(view, version, qos, size, fault):
        return -1
    view.qos = <uint8_t> qos
    return lay_out(&found, data, view, scratch, fault) if has_properties else 0


cdef int get_envelope(const uint8_t* data, uint32_t size, EnvelopeView* view, Buffer* scratch) except -2 nogil:
    cdef Fault fault
    return read_envelope(data, size, view, scratch, &fault)


class EnvelopeError(ValueError):
    """The bytes are not a record of a version that is read here; `position` is the byte where it shows."""

    def __init__(self, reason, position):
        super().__init__(f"{reason} (at byte {position})")
        self.position = position


cdef bytes checked_bytes(object value, str what, bint is_short):
    cdef bytes data = value.encode() if isinstance(value, str) else bytes(value)
    if is_short and (PyBytes_GET_SIZE(data) > LONGEST_STRING
                     or not is_mqtt_utf8(<const uint8_t*> PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))):
        raise ValueError(f"{what} is not UTF-8 of at most {LONGEST_STRING} bytes without U+0000")
    if PyBytes_GET_SIZE(data) > LARGEST_PROPERTIES:
        raise ValueError(f"{what} is larger than an MQTT packet can be")
    return data


cdef int check_props(bytes props) except -1:
    cdef Buffer scratch
    cdef MessageProperties found
    cdef const uint8_t* at = <const uint8_t*> PyBytes_AS_STRING(props)
    cdef int reason
    memset(&scratch, 0, sizeof(Buffer))
    reason = parse_message_properties(at, at + PyBytes_GET_SIZE(props), False, UINT32_MAX, &found, &scratch)
    buffer_free(&scratch)
    if reason:
        raise ValueError(f"the properties are not those of a PUBLISH (reason code 0x{reason:02X})")
    if found.props_size != PyBytes_GET_SIZE(props):
        raise ValueError("Topic Alias and Message Expiry Interval are not kept as properties of a record")
    return 0


cdef uint16_t read_ids(const uint8_t* p, uint32_t size, uint32_t* ids) noexcept:
    cdef const uint8_t* end = p + size
    cdef uint64_t value = 0
    cdef uint16_t n = 0
    while p != NULL and p < end and n < MOST_IDS:
        p = get_varint64(p, end, &value)
        if p != NULL:
            ids[n] = <uint32_t> value
            n += 1
    return n


def encode(topic, payload, int qos=0, bint retain=False, client_id="", username=None, int64_t received_at=0,
           int64_t expires_at=0, bytes props not None=b""):
    """A record; `props` are properties in MQTT's encoding, without their length."""
    cdef EnvelopeView view
    cdef bytes topic_bytes = checked_bytes(topic, "the topic", True)
    cdef bytes payload_bytes = checked_bytes(payload, "the payload", False)
    cdef bytes client_id_bytes = checked_bytes(client_id, "the client id", True)
    cdef bytes username_bytes = None if username is None else checked_bytes(username, "the user name", True)
    cdef bytes record
    memset(&view, 0, sizeof(EnvelopeView))
    view.topic = <const uint8_t*> PyBytes_AS_STRING(topic_bytes)
    view.topic_size = <uint32_t> PyBytes_GET_SIZE(topic_bytes)
    if check_topic_name(view.topic, view.topic_size, 0):
        raise ValueError(f"{topic!r} is not a topic name")
    if not 0 <= qos <= 2:
        raise ValueError(f"there is no QoS {qos}")
    check_props(props)
    view.payload = <const uint8_t*> PyBytes_AS_STRING(payload_bytes)
    view.payload_size = <uint32_t> PyBytes_GET_SIZE(payload_bytes)
    view.client_id = <const uint8_t*> PyBytes_AS_STRING(client_id_bytes)
    view.client_id_size = <uint32_t> PyBytes_GET_SIZE(client_id_bytes)
    if username_bytes is not None:
        view.username = <const uint8_t*> PyBytes_AS_STRING(username_bytes)
        view.username_size = <uint32_t> PyBytes_GET_SIZE(username_bytes)
    view.props = <const uint8_t*> PyBytes_AS_STRING(props)
    view.props_size = <uint32_t> PyBytes_GET_SIZE(props)
    view.received_at, view.expires_at = received_at, expires_at
    view.qos, view.retain = <uint8_t> qos, retain
    record = PyBytes_FromStringAndSize(NULL, envelope_size(&view))
    put_envelope(<uint8_t*> PyBytes_AS_STRING(record), &view)
    return record


def encode_properties(*, payload_format=None, content_type=None, response_topic=None, correlation_data=None,
                      user_properties=None):
    """Properties of a record, for `encode`; ValueError or OverflowError if one of them cannot be written."""
    cdef Buffer block
    memset(&block, 0, sizeof(Buffer))
    try:
        put_bare_properties(&block, PUBLISH, {
            "payload_format": payload_format,
            "content_type": content_type,
            "response_topic": response_topic,
            "correlation_data": correlation_data,
            "user_properties": user_properties,
        })
        return (<const char*> block.data)[block.start:block.end] if block.data != NULL else b""
    finally:
        buffer_free(&block)


def encode_delivery(int qos, bint retain, uint32_t identifier=0):
    """What stands behind a record that is for one subscriber: how it subscribed; see `delivery_size`."""
    cdef uint16_t count = 1 if identifier else 0
    cdef bytes delivery
    if not 0 <= qos <= 2:
        raise ValueError(f"there is no QoS {qos}")
    delivery = PyBytes_FromStringAndSize(NULL, delivery_size(<uint8_t> qos, retain, &identifier, count, 0, -1))
    put_delivery(<uint8_t*> PyBytes_AS_STRING(delivery), <uint8_t> qos, retain, &identifier, count, 0, -1)
    return delivery


cdef inline object text_of(const Span* span):
    return None if span.at == NULL else span.at[:span.size].decode()


cdef inline object bytes_of(const uint8_t* at, uint32_t size):
    return PyBytes_FromStringAndSize(<const char*> at, size)


cdef list user_properties_of(const Properties* found):
    cdef const uint8_t* at = found.users
    cdef Span name, value
    cdef list properties = []
    name.at, name.size, value.at, value.size = NULL, 0, NULL, 0
    while at < found.users_end:
        if at[0] == MQTT_USER_PROPERTY:
            take_span(take_span(at + 1, found.users_end, &name), found.users_end, &value)
            properties.append((text_of(&name), text_of(&value)))
        at = after_mqtt(at, found.users_end)
    return properties


# The fields of Envelope, in their order.
cdef tuple columns_of(const EnvelopeView* view):
    cdef Properties found
    scan_mqtt(view.props, view.props + view.props_size, &found)
    return (
        WRITTEN,
        view.topic[:view.topic_size].decode(),
        bytes_of(view.payload, view.payload_size),
        view.qos,
        view.retain != 0,
        view.client_id[:view.client_id_size].decode(),
        None if view.username == NULL else view.username[:view.username_size].decode(),
        view.received_at,
        view.expires_at,
        None if found.payload_format < 0 else found.payload_format,
        text_of(&found.content_type),
        text_of(&found.response_topic),
        None if found.correlation_data.at == NULL else bytes_of(found.correlation_data.at, found.correlation_data.size),
        user_properties_of(&found),
        bytes_of(view.props, view.props_size),
    )


def decode(bytes data not None):
    """The record in the bytes; EnvelopeError (a ValueError) if they are none."""
    cdef EnvelopeView view
    cdef Buffer scratch
    cdef Fault fault
    memset(&scratch, 0, sizeof(Buffer))
    if PyBytes_GET_SIZE(data) > LARGEST_RECORD:
        raise EnvelopeError("larger than a record can be", 0)
    try:
        if read_envelope(<const uint8_t*> PyBytes_AS_STRING(data), <uint32_t> PyBytes_GET_SIZE(data), &view, &scratch,
                         &fault):
            raise EnvelopeError(fault.reason.decode(), fault.position)
        return Envelope._make(columns_of(&view))
    finally:
        buffer_free(&scratch)


def decode_pack(RecordPack pack not None):
    """The records of a pack as columns: ({name: list}, [(offset, reason)]). The columns are `offset`, `timestamp` and
    the fields of Envelope; what is not an envelope (a tombstone, other bytes) is in the second list only."""
    cdef size_t position = 0
    cdef RecordView record
    cdef EnvelopeView view
    cdef Buffer scratch
    cdef Fault fault
    cdef list rows = [], refused = []
    memset(&scratch, 0, sizeof(Buffer))
    try:
        while pack.next(&position, &record):
            if record.value_size == NO_VALUE:
                refused.append((record.offset, "a tombstone"))
            elif read_envelope(record.value, record.value_size, &view, &scratch, &fault):
                refused.append((record.offset, f"{fault.reason.decode()} (at byte {fault.position})"))
            else:
                rows.append((record.offset, record.timestamp, *columns_of(&view)))
    finally:
        buffer_free(&scratch)
    names = ("offset", "timestamp", *Envelope._fields)
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in names]
    return dict(zip(names, columns, strict=True)), refused


def bench_put(bytes record not None, uint32_t count):
    """For benchmarks: writes the record `count` times in a loop in C; the bytes written."""
    cdef EnvelopeView view
    cdef Buffer scratch
    cdef Fault fault
    cdef uint64_t total = 0
    cdef uint32_t i
    cdef uint8_t* room = <uint8_t*> malloc(PyBytes_GET_SIZE(record))
    memset(&scratch, 0, sizeof(Buffer))
    try:
        if room == NULL:
            raise MemoryError()
        if read_envelope(<const uint8_t*> PyBytes_AS_STRING(record), <uint32_t> PyBytes_GET_SIZE(record), &view,
                         &scratch, &fault):
            raise EnvelopeError(fault.reason.decode(), fault.position)
        if envelope_size(&view) > PyBytes_GET_SIZE(record):
            raise ValueError("only a record as it is written here can be measured")
        with nogil:
            for i in range(count):
                view.received_at ^= i & 1
                total += envelope_size(&view)
                put_envelope(room, &view)
        return total
    finally:
        free(room)
        buffer_free(&scratch)


def bench_get(bytes record not None, uint32_t count):
    """For benchmarks: reads the record `count` times in a loop in C; the sum of the payloads' sizes."""
    cdef EnvelopeView view
    cdef Buffer scratch
    cdef const uint8_t* data = <const uint8_t*> PyBytes_AS_STRING(record)
    cdef uint32_t size = <uint32_t> PyBytes_GET_SIZE(record)
    cdef uint64_t total = 0
    memset(&scratch, 0, sizeof(Buffer))
    try:
        with nogil:
            for _ in range(count):
                if get_envelope(data, size, &view, &scratch):
                    break
                total += view.payload_size
        return total
    finally:
        buffer_free(&scratch)
