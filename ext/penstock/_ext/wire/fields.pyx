"""Fields and properties of the rarer packets; see fields.pxd."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.string cimport memcpy, memset

from penstock._ext.wire.buffer cimport buffer_free, buffer_reserve, buffer_size
from penstock._ext.wire.codec cimport (AUTH, CONNACK, CONNECT, DISCONNECT, MALFORMED_PACKET, PROTOCOL_ERROR, PUBACK,
                                       PUBCOMP, PUBLISH, PUBREC, PUBREL, QUOTA_EXCEEDED, SUBACK, SUBSCRIBE,
                                       TOPIC_ALIAS_INVALID, UNSUBACK, UNSUBSCRIBE, check_topic_name)
from penstock._ext.wire.numbers cimport (get_be16, get_be32, get_varint, is_mqtt_utf8, put_be16, put_be32, put_varint,
                                         varint_size)

cdef enum:
    LARGEST_VARINT = 268_435_455

cdef enum Kind:
    KIND_NONE
    KIND_BOOL
    KIND_U16
    KIND_U32
    KIND_VARINT
    KIND_STR
    KIND_BINARY
    KIND_PAIR

cdef enum Property:
    RESPONSE_TOPIC = 0x08
    SUBSCRIPTION_IDENTIFIER = 0x0B
    RECEIVE_MAXIMUM = 0x21
    TOPIC_ALIAS = 0x23
    USER_PROPERTY = 0x26
    MAXIMUM_PACKET_SIZE = 0x27
    PROPERTY_COUNT = 0x2B

cdef Kind KIND_OF[PROPERTY_COUNT]
cdef uint32_t PACKETS_OF[PROPERTY_COUNT]        # one bit for each packet type that may carry it
cdef list NAME_OF = [None] * PROPERTY_COUNT
cdef dict IDENTIFIER_OF = {}


cdef object define(uint8_t identifier, str name, Kind kind, tuple packets):
    KIND_OF[identifier] = kind
    PACKETS_OF[identifier] = 0
    for packet in packets:
        PACKETS_OF[identifier] |= <uint32_t> 1 << <int> packet
    NAME_OF[identifier] = name
    IDENTIFIER_OF[name] = identifier


# Table 2-4 of MQTT 5.0
cdef object define_all():
    memset(KIND_OF, 0, sizeof(KIND_OF))
    define(0x01, "payload_format", KIND_BOOL, (PUBLISH, WILL))
    define(0x02, "message_expiry", KIND_U32, (PUBLISH, WILL))
    define(0x03, "content_type", KIND_STR, (PUBLISH, WILL))
    define(0x08, "response_topic", KIND_STR, (PUBLISH, WILL))
    define(0x09, "correlation_data", KIND_BINARY, (PUBLISH, WILL))
    define(0x0B, "subscription_identifiers", KIND_VARINT, (PUBLISH, SUBSCRIBE))
    define(0x11, "session_expiry", KIND_U32, (CONNECT, CONNACK, DISCONNECT))
    define(0x12, "assigned_client_identifier", KIND_STR, (CONNACK,))
    define(0x13, "server_keep_alive", KIND_U16, (CONNACK,))
    define(0x15, "authentication_method", KIND_STR, (CONNECT, CONNACK, AUTH))
    define(0x16, "authentication_data", KIND_BINARY, (CONNECT, CONNACK, AUTH))
    define(0x17, "request_problem_information", KIND_BOOL, (CONNECT,))
    define(0x18, "will_delay", KIND_U32, (WILL,))
    define(0x19, "request_response_information", KIND_BOOL, (CONNECT,))
    define(0x1A, "response_information", KIND_STR, (CONNACK,))
    define(0x1C, "server_reference", KIND_STR, (CONNACK, DISCONNECT))
    define(0x1F, "reason_string", KIND_STR,
           (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH))
    define(0x21, "receive_maximum", KIND_U16, (CONNECT, CONNACK))
    define(0x22, "topic_alias_maximum", KIND_U16, (CONNECT, CONNACK))
    define(0x23, "topic_alias", KIND_U16, (PUBLISH,))
    define(0x24, "maximum_qos", KIND_BOOL, (CONNACK,))
    define(0x25, "retain_available", KIND_BOOL, (CONNACK,))
    define(0x26, "user_properties", KIND_PAIR,
           (CONNECT, CONNACK, PUBLISH, WILL, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK,
            DISCONNECT, AUTH))
    define(0x27, "maximum_packet_size", KIND_U32, (CONNECT, CONNACK))
    define(0x28, "wildcard_subscription_available", KIND_BOOL, (CONNACK,))
    define(0x29, "subscription_identifiers_available", KIND_BOOL, (CONNACK,))
    define(0x2A, "shared_subscription_available", KIND_BOOL, (CONNACK,))


define_all()


class Reason:
    """The reason codes of MQTT 5.0 (2.4)."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    RE_AUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


cdef dict REASON_NAMES = {
    code: name.lower().replace("_", " ") for name, code in vars(Reason).items() if name.isupper() and name[0] != "_"
}


def reason_name(int code):
    """What a reason code means, for people."""
    return REASON_NAMES.get(code) or f"reason 0x{code:02x}"


class ProtocolViolation(ValueError):
    """A packet that breaks the protocol, with the reason code that says how.

    `version` is set for CONNECT only: 3, 4 or 5 is how the CONNACK must be written, 0 means that the peer does not
    speak MQTT and gets no answer. `limit`, for CONNECT too, is the Maximum Packet Size of the client (0: unlimited), or
    None while it is unknown.
    """

    def __init__(self, reason_code, message, version=None):
        super().__init__(message)
        self.reason_code = reason_code
        self.message = message
        self.version = version
        self.limit = None


cdef int cut_off(str what) except -1:
    raise ProtocolViolation(MALFORMED_PACKET, f"{what} is cut off")


cdef int take_byte(Cursor* c, str what) except -1:
    if c.at == c.end:
        cut_off(what)
    c.at += 1
    return (c.at - 1)[0]


cdef int take_u16(Cursor* c, str what) except -1:
    if c.end - c.at < 2:
        cut_off(what)
    c.at += 2
    return get_be16(c.at - 2)


cdef int64_t take_u32(Cursor* c, str what) except -1:
    if c.end - c.at < 4:
        cut_off(what)
    c.at += 4
    return get_be32(c.at - 4)


cdef int64_t take_varint(Cursor* c, str what) except -1:
    cdef uint32_t value = 0
    cdef int width = get_varint(c.at, c.end, &value)
    if width == 0:
        cut_off(what)
    if width < 0:                           # [MQTT-1.5.5-1]
        raise ProtocolViolation(MALFORMED_PACKET, f"{what} is not a variable byte integer")
    c.at += width
    return value


# The start of the Binary Data at the cursor, which moves behind it.
cdef const uint8_t* take_span(Cursor* c, uint32_t* size, str what) except NULL:
    cdef const uint8_t* start
    size[0] = <uint32_t> take_u16(c, what)
    if c.end - c.at < <ptrdiff_t> size[0]:
        cut_off(what)
    start = c.at
    c.at += size[0]
    return start


cdef const uint8_t* take_utf8_span(Cursor* c, uint32_t* size, str what) except NULL:
    cdef const uint8_t* start = take_span(c, size, what)
    # [MQTT-1.5.4-1] [MQTT-1.5.4-2] [MQTT3-1.5.3-1] [MQTT3-1.5.3-2]; a BOM stays [MQTT-1.5.4-3] [MQTT3-1.5.3-3]
    if not is_mqtt_utf8(start, size[0]):
        raise ProtocolViolation(MALFORMED_PACKET, f"{what} is not well-formed UTF-8")
    return start


cdef bytes take_binary(Cursor* c, str what):
    cdef uint32_t size
    cdef const uint8_t* start = take_span(c, &size, what)
    return PyBytes_FromStringAndSize(<const char*> start, size)


cdef bytes take_utf8(Cursor* c, str what):
    cdef uint32_t size
    cdef const uint8_t* start = take_utf8_span(c, &size, what)
    return PyBytes_FromStringAndSize(<const char*> start, size)


cdef str take_str(Cursor* c, str what):
    cdef uint32_t size
    cdef const uint8_t* start = take_utf8_span(c, &size, what)
    return PyUnicode_DecodeUTF8(<const char*> start, size, NULL)


cdef int take_packet_id(Cursor* c) except -1:
    cdef int packet_id = take_u16(c, "packet identifier")
    if packet_id == 0:                      # [MQTT-2.2.1-3] [MQTT3-2.3.1-1]
        raise ProtocolViolation(PROTOCOL_ERROR, "packet identifier 0")
    return packet_id


cdef int take_end(Cursor* c) except -1:
    if c.at != c.end:
        raise ProtocolViolation(MALFORMED_PACKET, "bytes behind the end of the packet")
    return 0


cdef dict take_properties(Cursor* c, int packet, uint32_t max_user_properties):
    cdef int64_t length = take_varint(c, "property length")
    cdef Cursor inner
    if length == 0:                         # [MQTT-2.2.2-1]
        return None
    if c.end - c.at < length:
        cut_off("properties")
    inner.at = c.at
    c.at += length
    inner.end = c.at
    return read_properties(&inner, packet, max_user_properties)


cdef dict read_properties(Cursor* c, int packet, uint32_t max_user_properties):
    cdef dict found = {}
    cdef list pairs = None
    cdef list identifiers = None
    cdef int identifier
    cdef str name
    while c.at < c.end:
        identifier = take_byte(c, "property")
        if identifier >= PROPERTY_COUNT or KIND_OF[identifier] == KIND_NONE:
            raise ProtocolViolation(MALFORMED_PACKET, f"unknown property 0x{identifier:02x}")
        name = <str> NAME_OF[identifier]
        if not PACKETS_OF[identifier] >> packet & 1:        # 2.2.2.2
            raise ProtocolViolation(MALFORMED_PACKET, f"property {name} does not belong to this packet")
        if identifier == USER_PROPERTY:
            if pairs is None:
                found[name] = pairs = []
            if <uint32_t> len(pairs) >= max_user_properties:
                raise ProtocolViolation(QUOTA_EXCEEDED, f"more than {max_user_properties} user properties")
            pairs.append((take_str(c, name), take_str(c, name)))        # [MQTT-1.5.7-1]
        elif identifier == SUBSCRIPTION_IDENTIFIER and packet == PUBLISH:
            if identifiers is None:
                found[name] = identifiers = []
            identifiers.append(take_value(c, identifier, name))
        elif name in found:
            raise ProtocolViolation(PROTOCOL_ERROR, f"property {name} appears twice")
        else:
            found[name] = take_value(c, identifier, name)
    return found


cdef object take_value(Cursor* c, int identifier, str name):
    cdef Kind kind = KIND_OF[identifier]
    cdef const uint8_t* start = c.at
    cdef int64_t number
    if kind == KIND_STR:
        text = take_str(c, name)
        if identifier == RESPONSE_TOPIC and check_topic_name(start + 2, <uint32_t> (c.at - start - 2), 0):
            raise ProtocolViolation(PROTOCOL_ERROR, "response topic is not a topic name")      # [MQTT-3.3.2-14]
        return text
    if kind == KIND_BINARY:
        return take_binary(c, name)
    if kind == KIND_BOOL:
        number = take_byte(c, name)
        if number > 1:
            raise ProtocolViolation(PROTOCOL_ERROR, f"property {name} is neither 0 nor 1")
        return number
    if kind == KIND_U16:
        number = take_u16(c, name)
    elif kind == KIND_U32:
        number = take_u32(c, name)
    else:
        number = take_varint(c, name)
    if number == 0:
        if identifier == TOPIC_ALIAS:       # [MQTT-3.3.2-8]
            raise ProtocolViolation(TOPIC_ALIAS_INVALID, "topic alias 0")
        if identifier in (RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_IDENTIFIER):
            raise ProtocolViolation(PROTOCOL_ERROR, f"property {name} is 0")
    return number


cdef int put_raw(Buffer* b, const uint8_t* data, uint32_t size) except -1:
    if size:
        memcpy(buffer_reserve(b, size), data, size)
    return 0


cdef int put_byte(Buffer* b, uint8_t value) except -1:
    buffer_reserve(b, 1)[0] = value
    return 0


cdef int64_t bounded(object value, int64_t largest) except -1:
    cdef int64_t number = value
    if not 0 <= number <= largest:
        raise ValueError(f"{number} is not between 0 and {largest}")
    return number


cdef int put_u16(Buffer* b, object value) except -1:
    cdef int64_t number = bounded(value, 0xFFFF)
    put_be16(buffer_reserve(b, 2), <uint16_t> number)
    return 0


cdef int put_u32(Buffer* b, object value) except -1:
    cdef int64_t number = bounded(value, 0xFFFF_FFFF)
    put_be32(buffer_reserve(b, 4), <uint32_t> number)
    return 0


cdef int put_length(Buffer* b, object value) except -1:
    cdef int64_t number = bounded(value, LARGEST_VARINT)
    put_varint(buffer_reserve(b, varint_size(<uint32_t> number)), <uint32_t> number)
    return 0


cdef int put_binary(Buffer* b, object value) except -1:
    cdef Py_buffer raw
    PyObject_GetBuffer(value, &raw, PyBUF_SIMPLE)
    try:
        if raw.len > 0xFFFF:                # [MQTT-4.7.3-3] [MQTT3-4.7.3-3]
            raise ValueError(f"{raw.len} bytes do not fit in a field of 65,535")
        put_u16(b, raw.len)
        put_raw(b, <const uint8_t*> raw.buf, <uint32_t> raw.len)
    finally:
        PyBuffer_Release(&raw)
    return 0


cdef int put_str(Buffer* b, object value) except -1:
    cdef bytes encoded = (<str> value).encode() if isinstance(value, str) else bytes(value)
    if not is_mqtt_utf8(<const uint8_t*> PyBytes_AS_STRING(encoded), <size_t> len(encoded)):
        raise ValueError("a string may hold neither U+0000 nor ill-formed UTF-8")
    return put_binary(b, encoded)


cdef int put_bare_properties(Buffer* b, int packet, dict properties) except -1:
    for name, value in properties.items():
        if value is None:
            continue
        identifier = IDENTIFIER_OF.get(name)
        if identifier is None or not PACKETS_OF[<int> identifier] >> packet & 1:
            raise ValueError(f"no property {name} in this packet")
        if identifier == USER_PROPERTY:
            for key, text in value:
                put_byte(b, USER_PROPERTY)
                put_str(b, key)
                put_str(b, text)
        elif identifier == SUBSCRIPTION_IDENTIFIER:
            for number in value:
                put_byte(b, SUBSCRIPTION_IDENTIFIER)
                put_length(b, number)
        else:
            put_byte(b, identifier)
            put_value(b, KIND_OF[<int> identifier], value)
    return 0


cdef int put_value(Buffer* b, Kind kind, object value) except -1:
    if kind == KIND_BOOL:
        put_byte(b, <uint8_t> bounded(value, 1))
    elif kind == KIND_U16:
        put_u16(b, value)
    elif kind == KIND_U32:
        put_u32(b, value)
    elif kind == KIND_STR:
        put_str(b, value)
    else:
        put_binary(b, value)
    return 0


cdef int put_properties(Buffer* b, int packet, dict properties) except -1:
    cdef Buffer inner
    if not properties:                      # [MQTT-2.2.2-1]
        return put_byte(b, 0)
    memset(&inner, 0, sizeof(Buffer))
    try:
        put_bare_properties(&inner, packet, properties)
        put_length(b, buffer_size(&inner))
        put_raw(b, inner.data + inner.start, buffer_size(&inner))
    finally:
        buffer_free(&inner)
    return 0


cdef bytes seal_packet(uint8_t first_byte, Buffer* b):
    cdef uint32_t size = buffer_size(b)
    cdef bytes packet
    cdef uint8_t* at
    bounded(size, LARGEST_VARINT)
    packet = PyBytes_FromStringAndSize(NULL, 1 + <Py_ssize_t> varint_size(size) + size)
    at = <uint8_t*> PyBytes_AS_STRING(packet)
    at[0] = first_byte
    at = put_varint(at + 1, size)
    if size:
        memcpy(at, b.data + b.start, size)
    return packet
