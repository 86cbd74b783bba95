# One published message that must outlive the read buffer: in flight, queued or retained. It is counted, not copied:
# every subscriber's window and queue holds a reference to the same one.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t
from libc.stdlib cimport free


cdef struct Message:
    uint32_t refs
    uint32_t payload_size
    uint32_t props_size     # MQTT 5 properties that are forwarded, encoded, without their length; see codec.PublishView
    uint16_t topic_size
    uint8_t qos             # as published
    uint8_t retain          # as published
    int64_t expires_at      # wall clock in ms, 0 = never
    int64_t received_at     # wall clock in ms
    int64_t source_offset   # in the log of all messages, where it was dispatched from
    uint32_t source_partition   # of a retained message: the number of its user's share, see retained.pxd
    uint8_t data[1]         # topic, properties, payload


cdef Message* message_new(const uint8_t* topic, uint32_t topic_size, const uint8_t* props, uint32_t props_size,
                          const uint8_t* payload, uint32_t payload_size, uint8_t qos, uint8_t retain,
                          int64_t received_at, int64_t expires_at) except NULL nogil


cdef inline const uint8_t* message_topic(const Message* m) noexcept nogil:
    return m.data


cdef inline const uint8_t* message_props(const Message* m) noexcept nogil:
    return m.data + m.topic_size


cdef inline const uint8_t* message_payload(const Message* m) noexcept nogil:
    return m.data + m.topic_size + m.props_size


# What the message costs in a queue: its bytes and its header.
cdef inline uint32_t message_weight(const Message* m) noexcept nogil:
    return <uint32_t> sizeof(Message) + m.topic_size + m.props_size + m.payload_size


cdef inline Message* message_ref(Message* m) noexcept nogil:
    m.refs += 1
    return m


cdef inline void message_unref(Message* m) noexcept nogil:
    m.refs -= 1
    if m.refs == 0:
        free(m)
