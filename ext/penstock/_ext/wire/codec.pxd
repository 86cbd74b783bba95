# The hot half of the MQTT codec: PUBLISH and the acknowledgements, parsed in place, without a Python object.
# The rarer packets are in packets.pyx and become Python objects there. Both validate strictly: every violation has
# its reason code. Nothing here keeps a pointer longer than the call.
from libc.stdint cimport uint8_t, uint16_t, uint32_t

from penstock._ext.wire.buffer cimport Buffer


cdef enum PacketType:
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


# Reason codes a parser can answer with (MQTT 5, 2.4); 3.x connections are closed without one.
cdef enum Reason:
    SUCCESS = 0x00
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    QUOTA_EXCEEDED = 0x97
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B


# A PUBLISH as it lies in the read buffer. WARNING: every pointer is borrowed from the body or from the scratch buffer
# given to parse_publish and dies with the next parse.
cdef struct PublishView:
    const uint8_t* topic        # not yet checked for UTF-8 and wildcards, see check_topic_name; size 0 with an alias
    const uint8_t* payload
    # What goes on to subscribers: payload format, content type, response topic, correlation data and user properties in
    # their order; encoded, without the length. Topic alias and message expiry are taken out: the broker writes its own.
    const uint8_t* props
    uint32_t topic_size
    uint32_t payload_size
    uint32_t props_size
    uint32_t expiry             # Message Expiry Interval in seconds, valid if has_expiry
    uint16_t packet_id          # 0 for QoS 0
    uint16_t alias              # 0 = none
    uint8_t qos
    uint8_t retain
    uint8_t dup
    uint8_t has_expiry


# The properties of a message, as they lie in a PUBLISH or in the will of a CONNECT. `props` as in PublishView.
cdef struct MessageProperties:
    const uint8_t* props
    uint32_t props_size
    uint32_t expiry             # valid if has_expiry
    uint32_t delay              # Will Delay Interval, valid if has_delay
    uint16_t alias              # 0 = none
    uint8_t has_expiry
    uint8_t has_delay


# An acknowledgement (PUBACK, PUBREC, PUBREL, PUBCOMP).
cdef struct AckView:
    uint16_t packet_id
    uint8_t reason              # 0 when absent


# Both return 0, or the reason code to close the connection with. `flags` are the low four bits of the first byte,
# `body` is what follows the fixed header. version: 3 (MQIsdp), 4 (3.1.1), 5. `scratch` is used only when properties
# have to be taken out; it is emptied first.
cdef int parse_publish(uint8_t flags, const uint8_t* body, uint32_t size, uint8_t version, uint32_t max_user_properties,
                       PublishView* view, Buffer* scratch) except -1 nogil
cdef int parse_ack(uint8_t packet_type, uint8_t flags, const uint8_t* body, uint32_t size, uint8_t version,
                   AckView* view) noexcept nogil
# The properties in [at, end), without their length, of a client's PUBLISH or (in_will) of a will: 0, or the code.
cdef int parse_message_properties(const uint8_t* at, const uint8_t* end, bint in_will, uint32_t max_user_properties,
                                  MessageProperties* found, Buffer* scratch) except -1 nogil

# 0, or the reason code: UTF-8, no wildcard, not empty, no more than max_levels levels (0 = no limit).
cdef int check_topic_name(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept nogil
# The same for a filter: + and # stand alone in their level, # is last. The $share/<name>/ prefix is not removed here.
cdef int check_topic_filter(const uint8_t* topic, uint32_t size, uint32_t max_levels) noexcept nogil


# Size of a PUBLISH body for MQTT 3.x: add props_total (with its length) for 5.
cdef inline uint32_t publish_body_size(uint32_t topic_size, uint8_t qos, uint32_t payload_size) noexcept nogil:
    return 2 + topic_size + (2 if qos else 0) + payload_size
