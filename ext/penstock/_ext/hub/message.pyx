"""Reference-counted messages; see message.pxd."""

from libc.stdlib cimport malloc
from libc.string cimport memcpy


cdef Message* message_new(const uint8_t* topic, uint32_t topic_size, const uint8_t* props, uint32_t props_size,
                          const uint8_t* payload, uint32_t payload_size, uint8_t qos, uint8_t retain,
                          int64_t received_at, int64_t expires_at) except NULL nogil:
    cdef Message* m = <Message*> malloc(sizeof(Message) + <size_t> topic_size + props_size + payload_size)
    if m == NULL:
        with gil:
            raise MemoryError()
    m.refs = 1
    m.topic_size = <uint16_t> topic_size
    m.props_size = props_size
    m.payload_size = payload_size
    m.qos = qos
    m.retain = retain
    m.received_at = received_at
    m.expires_at = expires_at
    m.source_partition = 0
    memcpy(m.data, topic, topic_size)
    if props_size:
        memcpy(m.data + topic_size, props, props_size)
    if payload_size:
        memcpy(m.data + topic_size + props_size, payload, payload_size)
    return m
