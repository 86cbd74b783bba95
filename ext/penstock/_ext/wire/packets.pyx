"""Parsers of the rarer packets; see packets.pxd. The builders are in packets_build and are offered here as well."""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport UINT32_MAX
from libc.string cimport memcmp, memset

from penstock._ext.wire.buffer cimport Buffer, buffer_free
from penstock._ext.wire.codec cimport (AUTH, CONNACK, CONNECT, DISCONNECT, MALFORMED_PACKET, PROTOCOL_ERROR, PUBLISH,
                                       QUOTA_EXCEEDED, SUBACK, SUBSCRIBE, TOPIC_FILTER_INVALID, UNSUBACK, UNSUBSCRIBE,
                                       MessageProperties, check_topic_filter, check_topic_name,
                                       parse_message_properties)
from penstock._ext.wire.fields cimport (Cursor, read_properties, take_binary, take_byte, take_end, take_packet_id,
                                        take_properties, take_str, take_u16, take_utf8, take_varint)

from penstock._ext.wire.fields import ProtocolViolation, Reason, reason_name
from penstock._ext.wire.packets_build import (
    build_ack,
    build_auth,
    build_connack,
    build_connect,
    build_disconnect,
    build_pingreq,
    build_pingresp,
    build_publish,
    build_suback,
    build_subscribe,
    build_unsuback,
    build_unsubscribe,
    encode_publish_properties,
)

__all__ = [
    "AuthPacket",
    "ConnackPacket",
    "ConnectPacket",
    "DisconnectPacket",
    "ProtocolViolation",
    "PublishPacket",
    "Reason",
    "SubackPacket",
    "SubscribePacket",
    "UnsubscribePacket",
    "WillPacket",
    "build_ack",
    "build_auth",
    "build_connack",
    "build_connect",
    "build_disconnect",
    "build_pingreq",
    "build_pingresp",
    "build_publish",
    "build_suback",
    "build_subscribe",
    "build_unsuback",
    "build_unsubscribe",
    "decode_publish_properties",
    "encode_publish_properties",
    "parse_auth",
    "parse_connack",
    "parse_connect",
    "parse_disconnect",
    "parse_publish_packet",
    "parse_suback",
    "parse_subscribe",
    "parse_unsuback",
    "parse_unsubscribe",
    "reason_name",
    "split_share",
]

cdef enum:
    DEFAULT_USER_PROPERTIES = 64

# MQTT 5.0, 2.4, as far as only CONNECT needs them
cdef enum ConnectReason:
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85

cdef enum ConnectFlag:
    FLAG_RESERVED = 0x01
    FLAG_CLEAN_START = 0x02
    FLAG_WILL = 0x04
    FLAG_WILL_QOS = 0x18
    FLAG_WILL_RETAIN = 0x20
    FLAG_PASSWORD = 0x40
    FLAG_USERNAME = 0x80

cdef enum SubscribeOption:
    OPTION_NO_LOCAL = 0x04
    OPTION_RETAIN_HANDLING = 0x30
    OPTION_RESERVED = 0xC0

# Who may send which code (tables 3-10 and 3-11 of MQTT 5.0) [MQTT-3.14.2-1] [MQTT-3.15.2-1]
cdef frozenset CLIENT_DISCONNECTS = frozenset(
    (0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))
cdef frozenset SERVER_DISCONNECTS = frozenset(
    (0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
     0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xA1, 0xA2))
cdef frozenset CLIENT_AUTHS = frozenset((0x18, 0x19))
cdef frozenset SERVER_AUTHS = frozenset((0x00, 0x18))


cdef class WillPacket:
    """The message to publish for a client that vanishes."""

    def __init__(self, str topic not None, bytes payload not None=b"", uint8_t qos=0, bint retain=False,
                 bytes props not None=b"", uint32_t delay=0, expiry=None):
        self.topic = topic
        self.payload = payload
        self.qos = qos
        self.retain = retain
        self.props = props
        self.delay = delay
        self.expiry = expiry


@cython.freelist(16)
cdef class ConnectPacket:
    """A CONNECT, with the defaults of what it left out."""


cdef class SubscribePacket:
    """A SUBSCRIBE; a filter with a syntax error is marked in its entry, so that the SUBACK can refuse it alone."""


cdef class UnsubscribePacket:
    """An UNSUBSCRIBE, marked as a SUBSCRIBE is."""


cdef class DisconnectPacket:
    """A DISCONNECT of either side."""


cdef class AuthPacket:
    """An AUTH of either side."""


cdef class ConnackPacket:
    """A CONNACK, for clients."""


cdef class SubackPacket:
    """A SUBACK or UNSUBACK, for clients."""


cdef class PublishPacket:
    """A PUBLISH, for clients and tools; the broker uses codec.parse_publish."""


cdef inline int open_cursor(object body, Py_buffer* raw, Cursor* c) except -1:
    PyObject_GetBuffer(body, raw, PyBUF_SIMPLE)
    c.at = <const uint8_t*> raw.buf
    c.end = c.at + raw.len
    return 0


cdef int check_flags(int flags, int expected) except -1:
    # [MQTT-2.1.3-1] [MQTT-3.8.1-1] [MQTT-3.10.1-1] [MQTT-3.14.1-1] [MQTT-3.15.1-1]
    # [MQTT3-2.2.2-1] [MQTT3-2.2.2-2] [MQTT3-3.8.1-1] [MQTT3-3.10.1-1] [MQTT3-3.14.1-1]
    if flags != expected:
        raise ProtocolViolation(MALFORMED_PACKET, f"fixed header flags {flags:#06b}")
    return 0


# MQTT 3.1 marks a repeated SUBSCRIBE or UNSUBSCRIBE with DUP.
cdef inline int check_repeatable_flags(int flags, int version) except -1:
    return check_flags(flags & ~8 if version == 3 else flags, 2)


cdef inline list user_properties_of(dict properties):
    return properties.get("user_properties") or [] if properties is not None else []


def parse_connect(body, uint32_t max_user_properties=DEFAULT_USER_PROPERTIES, uint32_t max_topic_levels=0):
    """The CONNECT in `body`."""
    cdef ConnectPacket packet = ConnectPacket.__new__(ConnectPacket)
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        read_protocol(&c, packet)
        read_connect(&c, packet, max_user_properties, max_topic_levels)
    except ProtocolViolation as violation:
        violation.version = packet.version
        violation.limit = packet.maximum_packet_size if packet.has_properties else None
        raise
    finally:
        PyBuffer_Release(&raw)
    return packet


cdef int read_protocol(Cursor* c, ConnectPacket packet) except -1:
    cdef int level
    # likeliest first; the two names are constants, so that no string is made
    if c.end - c.at >= 7 and memcmp(c.at, b"\x00\x04MQTT", 6) == 0:
        packet.protocol_name = "MQTT"
        c.at += 6
    elif c.end - c.at >= 9 and memcmp(c.at, b"\x00\x06MQIsdp", 8) == 0:
        packet.protocol_name = "MQIsdp"
        c.at += 8
    else:                                   # [MQTT-3.1.2-1] [MQTT3-3.1.2-1]
        name = take_str(c, "protocol name")
        if name in ("MQTT", "MQIsdp"):
            raise ProtocolViolation(MALFORMED_PACKET, "protocol version is cut off")
        raise ProtocolViolation(UNSUPPORTED_PROTOCOL_VERSION, f"protocol name {name[:23]!r}")
    level = take_byte(c, "protocol version")
    if packet.protocol_name == "MQIsdp":
        packet.version = 3
        supported = level == 3
    else:
        # a client newer than 5 is answered as 5 is
        packet.version = 5 if level >= 5 else 4
        supported = level == packet.version
    if not supported:                       # [MQTT-3.1.2-2] [MQTT3-3.1.2-2]
        raise ProtocolViolation(UNSUPPORTED_PROTOCOL_VERSION, f"protocol version {level} of {packet.protocol_name}")
    return 0


cdef int read_connect(Cursor* c, ConnectPacket packet, uint32_t max_user_properties,
                      uint32_t max_topic_levels) except -1:
    cdef int flags = take_byte(c, "connect flags")
    check_connect_flags(flags, packet.version)
    packet.clean_start = flags & FLAG_CLEAN_START != 0
    packet.keep_alive = <uint16_t> take_u16(c, "keep alive")
    packet.receive_maximum = 65535
    packet.request_problem_information = True
    packet.user_properties = []
    if packet.version >= 5:
        # The broker keeps no user property of a CONNECT, so the size of the packet is limit enough.
        read_connect_properties(packet, take_properties(c, CONNECT, UINT32_MAX))
        packet.has_properties = True
    # the order of the fields [MQTT-3.1.3-1] [MQTT3-3.1.3-1], each there if its flag is set
    # [MQTT-3.1.2-9] [MQTT-3.1.2-16] [MQTT-3.1.2-17] [MQTT-3.1.2-18] [MQTT-3.1.2-19]
    # [MQTT3-3.1.2-9] [MQTT3-3.1.2-18] [MQTT3-3.1.2-19] [MQTT3-3.1.2-20] [MQTT3-3.1.2-21]
    # [MQTT-3.1.3-3] [MQTT-3.1.3-4] [MQTT3-3.1.3-3] [MQTT3-3.1.3-4]
    packet.client_id = take_str(c, "client identifier")
    if flags & FLAG_WILL:
        packet.will = read_will(c, packet.version, max_user_properties, max_topic_levels)
        packet.will.qos = <uint8_t> ((flags & FLAG_WILL_QOS) >> 3)
        packet.will.retain = flags & FLAG_WILL_RETAIN != 0
    if flags & FLAG_USERNAME:
        packet.username = take_str(c, "user name")          # [MQTT-3.1.3-12] [MQTT3-3.1.3-11]
    if flags & FLAG_PASSWORD:
        packet.password = take_binary(c, "password")
    take_end(c)
    # 3.1 has no empty identifier, 3.1.1 only with a clean session [MQTT3-3.1.3-7] [MQTT3-3.1.3-8]
    if not packet.client_id and packet.version < 5 and (packet.version == 3 or not packet.clean_start):
        raise ProtocolViolation(CLIENT_IDENTIFIER_NOT_VALID, "empty client identifier")
    return 0


cdef int check_connect_flags(int flags, int version) except -1:
    if flags & FLAG_RESERVED and version != 3:      # [MQTT-3.1.2-3] [MQTT3-3.1.2-3]; 3.1 says nothing of this bit
        raise ProtocolViolation(MALFORMED_PACKET, "reserved connect flag")
    if flags & FLAG_WILL:
        if flags & FLAG_WILL_QOS == FLAG_WILL_QOS:  # [MQTT-3.1.2-12] [MQTT3-3.1.2-14]
            raise ProtocolViolation(MALFORMED_PACKET, "will QoS 3")
    elif flags & (FLAG_WILL_QOS | FLAG_WILL_RETAIN):
        # [MQTT-3.1.2-11] [MQTT-3.1.2-13] [MQTT3-3.1.2-11] [MQTT3-3.1.2-13] [MQTT3-3.1.2-15]
        raise ProtocolViolation(MALFORMED_PACKET, "will QoS or will retain without a will")
    if version < 5 and flags & FLAG_PASSWORD and not flags & FLAG_USERNAME:     # [MQTT3-3.1.2-22]
        raise ProtocolViolation(MALFORMED_PACKET, "password without a user name")
    return 0


cdef int read_connect_properties(ConnectPacket packet, dict properties) except -1:
    if properties is None:
        return 0
    packet.session_expiry = properties.get("session_expiry")
    packet.receive_maximum = properties.get("receive_maximum", 65535)
    packet.maximum_packet_size = properties.get("maximum_packet_size", 0)
    packet.topic_alias_maximum = properties.get("topic_alias_maximum", 0)
    packet.request_response_information = properties.get("request_response_information", 0)
    packet.request_problem_information = properties.get("request_problem_information", 1)
    packet.authentication_method = properties.get("authentication_method")
    packet.authentication_data = properties.get("authentication_data")
    packet.user_properties = user_properties_of(properties)
    if packet.authentication_data is not None and packet.authentication_method is None:     # 3.1.2.11.10
        raise ProtocolViolation(PROTOCOL_ERROR, "authentication data without a method")
    return 0


cdef WillPacket read_will(Cursor* c, int version, uint32_t max_user_properties, uint32_t max_topic_levels):
    cdef WillPacket will = WillPacket.__new__(WillPacket)
    cdef const uint8_t* start
    cdef int reason
    will.props = b""
    if version >= 5:
        read_will_properties(c, will, max_user_properties)
    start = c.at
    will.topic = take_str(c, "will topic")          # [MQTT-3.1.3-11] [MQTT3-3.1.3-10]
    reason = check_topic_name(start + 2, <uint32_t> (c.at - start - 2), max_topic_levels)
    if reason:
        raise ProtocolViolation(reason, "will topic is not a topic name")
    will.payload = take_binary(c, "will payload")
    return will


cdef int read_will_properties(Cursor* c, WillPacket will, uint32_t max_user_properties) except -1:
    cdef uint32_t length = <uint32_t> take_varint(c, "will property length")
    cdef MessageProperties found
    cdef Buffer scratch
    cdef int reason
    if c.end - c.at < <ptrdiff_t> length:
        raise ProtocolViolation(MALFORMED_PACKET, "will properties are cut off")
    memset(&scratch, 0, sizeof(Buffer))
    try:
        reason = parse_message_properties(c.at, c.at + length, True, max_user_properties, &found, &scratch)
        if reason:
            if reason == QUOTA_EXCEEDED:
                raise ProtocolViolation(reason, f"more than {max_user_properties} user properties in the will")
            raise ProtocolViolation(reason, "will properties")
        if found.props_size:                # in their order [MQTT-3.1.3-10]
            will.props = PyBytes_FromStringAndSize(<const char*> found.props, found.props_size)
    finally:
        buffer_free(&scratch)
    will.delay = found.delay
    if found.has_expiry:
        will.expiry = found.expiry
    c.at += length
    return 0


def split_share(bytes filter not None):
    """The group and the filter of `$share/<group>/<filter>`; (None, filter) for any other filter.

    A shared filter without a group or without a filter gives an empty one.
    """
    if not filter.startswith(b"$share/"):
        return None, filter
    group, _, rest = filter[7:].partition(b"/")
    return group, rest


# 0, or why the filter is refused; UTF-8 has been checked.
cdef int check_filter(bytes filter, uint32_t max_levels) except -1:
    cdef bytes group, rest
    group, rest = split_share(filter)
    # [MQTT-4.8.2-1] [MQTT-4.8.2-2]; split_share ends the name at its first slash
    if group is not None and (not group or b"+" in group or b"#" in group):
        return TOPIC_FILTER_INVALID
    return check_topic_filter(rest, <uint32_t> len(rest), max_levels)


def parse_subscribe(int flags, body, int version, uint32_t max_user_properties=DEFAULT_USER_PROPERTIES,
                    uint32_t max_topic_levels=0):
    """The SUBSCRIBE in `body`."""
    cdef SubscribePacket packet = SubscribePacket.__new__(SubscribePacket)
    cdef dict properties = None
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        check_repeatable_flags(flags, version)
        packet.packet_id = <uint16_t> take_packet_id(&c)
        if version >= 5:
            properties = take_properties(&c, SUBSCRIBE, max_user_properties)
        packet.user_properties = user_properties_of(properties)
        if properties is not None:
            packet.identifier = properties.get("subscription_identifiers", 0)
        if c.at == c.end:                   # [MQTT-3.8.3-2] [MQTT3-3.8.3-3]
            raise ProtocolViolation(PROTOCOL_ERROR, "SUBSCRIBE without a filter")
        packet.entries = []
        while c.at < c.end:
            filter = take_utf8(&c, "topic filter")      # [MQTT-3.8.3-1] [MQTT3-3.8.3-1]
            options = take_byte(&c, "subscription options")
            check_options(filter, options, version)
            packet.entries.append((filter, options, check_filter(filter, max_topic_levels)))
    finally:
        PyBuffer_Release(&raw)
    return packet


cdef int check_options(bytes filter, int options, int version) except -1:
    if version < 5:
        if options > 2:                     # [MQTT3-3.8.3-4]
            raise ProtocolViolation(MALFORMED_PACKET, f"requested QoS {options}")
        return 0
    if options & OPTION_RESERVED:           # [MQTT-3.8.3-5]
        raise ProtocolViolation(MALFORMED_PACKET, "reserved subscription options")
    if options & 3 == 3:                    # 3.8.3.1
        raise ProtocolViolation(PROTOCOL_ERROR, "maximum QoS 3")
    if options & OPTION_RETAIN_HANDLING == OPTION_RETAIN_HANDLING:      # 3.8.3.1
        raise ProtocolViolation(PROTOCOL_ERROR, "retain handling 3")
    if options & OPTION_NO_LOCAL and filter.startswith(b"$share/"):     # [MQTT-3.8.3-4]
        raise ProtocolViolation(PROTOCOL_ERROR, "no local on a shared subscription")
    return 0


def parse_unsubscribe(int flags, body, int version, uint32_t max_user_properties=DEFAULT_USER_PROPERTIES,
                      uint32_t max_topic_levels=0):
    """The UNSUBSCRIBE in `body`."""
    cdef UnsubscribePacket packet = UnsubscribePacket.__new__(UnsubscribePacket)
    cdef dict properties = None
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        check_repeatable_flags(flags, version)
        packet.packet_id = <uint16_t> take_packet_id(&c)
        if version >= 5:
            properties = take_properties(&c, UNSUBSCRIBE, max_user_properties)
        packet.user_properties = user_properties_of(properties)
        if c.at == c.end:                   # [MQTT-3.10.3-2] [MQTT3-3.10.3-2]
            raise ProtocolViolation(PROTOCOL_ERROR, "UNSUBSCRIBE without a filter")
        packet.entries = []
        while c.at < c.end:
            filter = take_utf8(&c, "topic filter")      # [MQTT-3.10.3-1] [MQTT3-3.10.3-1]
            packet.entries.append((filter, check_filter(filter, max_topic_levels)))
    finally:
        PyBuffer_Release(&raw)
    return packet


def parse_disconnect(int flags, body, int version, bint from_server=False,
                     uint32_t max_user_properties=DEFAULT_USER_PROPERTIES):
    """The DISCONNECT in `body`, by default as a client may send it."""
    cdef DisconnectPacket packet = DisconnectPacket.__new__(DisconnectPacket)
    cdef dict properties = None
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        check_flags(flags, 0)
        if version >= 5 and c.at < c.end:   # without a reason code: 0x00
            packet.reason = <uint8_t> take_byte(&c, "reason code")
            if packet.reason not in (SERVER_DISCONNECTS if from_server else CLIENT_DISCONNECTS):
                raise ProtocolViolation(PROTOCOL_ERROR, f"DISCONNECT with reason 0x{packet.reason:02x}")
            if c.at < c.end:
                properties = take_properties(&c, DISCONNECT, max_user_properties)
        take_end(&c)
    finally:
        PyBuffer_Release(&raw)
    packet.user_properties = user_properties_of(properties)
    if properties is not None:
        packet.session_expiry = properties.get("session_expiry")
        packet.reason_string = properties.get("reason_string")
        packet.server_reference = properties.get("server_reference")
        if packet.server_reference is not None and not from_server:     # 3.14.2.2.5: sent by the server
            raise ProtocolViolation(PROTOCOL_ERROR, "server reference from a client")
        if packet.session_expiry is not None and from_server:           # [MQTT-3.14.2-2]
            raise ProtocolViolation(PROTOCOL_ERROR, "session expiry from a server")
    return packet


def parse_auth(int flags, body, int version, bint from_server=False,
               uint32_t max_user_properties=DEFAULT_USER_PROPERTIES):
    """The AUTH in `body`, by default as a client may send it."""
    cdef AuthPacket packet = AuthPacket.__new__(AuthPacket)
    cdef dict properties = None
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        check_flags(flags, 0)
        if version < 5:                     # 15 is no packet type there
            raise ProtocolViolation(MALFORMED_PACKET, "AUTH before MQTT 5")
        if c.at < c.end:
            packet.reason = <uint8_t> take_byte(&c, "reason code")
            properties = take_properties(&c, AUTH, max_user_properties)
        take_end(&c)
    finally:
        PyBuffer_Release(&raw)
    if packet.reason not in (SERVER_AUTHS if from_server else CLIENT_AUTHS):
        raise ProtocolViolation(PROTOCOL_ERROR, f"AUTH with reason 0x{packet.reason:02x}")
    packet.user_properties = user_properties_of(properties)
    if properties is not None:
        packet.authentication_method = properties.get("authentication_method")
        packet.authentication_data = properties.get("authentication_data")
        packet.reason_string = properties.get("reason_string")
    if packet.authentication_method is None and not (from_server and packet.reason == 0):      # 3.15.2.2.2
        raise ProtocolViolation(PROTOCOL_ERROR, "AUTH without a method")
    return packet


def parse_connack(body, int version):
    """The CONNACK in `body`."""
    cdef ConnackPacket packet = ConnackPacket.__new__(ConnackPacket)
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        acknowledge = take_byte(&c, "connect acknowledge flags")
        if acknowledge > 1:                 # [MQTT-3.2.2-1]
            raise ProtocolViolation(MALFORMED_PACKET, "reserved connect acknowledge flags")
        packet.session_present = acknowledge
        packet.reason = <uint8_t> take_byte(&c, "reason code")
        packet.properties = (take_properties(&c, CONNACK, DEFAULT_USER_PROPERTIES) if version >= 5 else None) or {}
        take_end(&c)
    finally:
        PyBuffer_Release(&raw)
    return packet


cdef SubackPacket read_suback(int packet_type, object body, int version):
    cdef SubackPacket packet = SubackPacket.__new__(SubackPacket)
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        packet.packet_id = <uint16_t> take_packet_id(&c)
        packet.properties = (take_properties(&c, packet_type, DEFAULT_USER_PROPERTIES) if version >= 5 else None) or {}
        packet.reasons = list(PyBytes_FromStringAndSize(<const char*> c.at, c.end - c.at))
    finally:
        PyBuffer_Release(&raw)
    if bool(packet.reasons) == (packet_type == UNSUBACK and version < 5):
        raise ProtocolViolation(MALFORMED_PACKET, "wrong number of reason codes")
    return packet


def parse_suback(body, int version):
    """The SUBACK in `body`."""
    return read_suback(SUBACK, body, version)


def parse_unsuback(body, int version):
    """The UNSUBACK in `body`."""
    return read_suback(UNSUBACK, body, version)


def parse_publish_packet(int flags, body, int version):
    """The PUBLISH in `body`, as a client may get it."""
    cdef PublishPacket packet = PublishPacket.__new__(PublishPacket)
    cdef Py_buffer raw
    cdef Cursor c
    open_cursor(body, &raw, &c)
    try:
        packet.qos = <uint8_t> (flags >> 1 & 3)
        packet.retain = flags & 1
        packet.dup = flags >> 3 & 1
        if packet.qos == 3 or (packet.dup and packet.qos == 0):     # [MQTT-3.3.1-4] [MQTT-3.3.1-2]
            raise ProtocolViolation(MALFORMED_PACKET, f"fixed header flags {flags:#06b}")
        start = c.at
        packet.topic = take_str(&c, "topic name")
        if packet.topic:
            reason = check_topic_name(start + 2, <uint32_t> (c.at - start - 2), 0)
            if reason:
                raise ProtocolViolation(reason, "not a topic name")
        if packet.qos:
            packet.packet_id = <uint16_t> take_packet_id(&c)
        packet.properties = (take_properties(&c, PUBLISH, DEFAULT_USER_PROPERTIES) if version >= 5 else None) or {}
        if not packet.topic and "topic_alias" not in packet.properties:
            raise ProtocolViolation(PROTOCOL_ERROR, "neither a topic name nor an alias")
        packet.payload = PyBytes_FromStringAndSize(<const char*> c.at, c.end - c.at)
    finally:
        PyBuffer_Release(&raw)
    return packet


def decode_publish_properties(bytes props not None):
    """Name to value of encoded PUBLISH properties without their length (the `props` of a message)."""
    cdef Cursor c
    c.at = <const uint8_t*> PyBytes_AS_STRING(props)
    c.end = c.at + len(props)
    return read_properties(&c, PUBLISH, UINT32_MAX)
