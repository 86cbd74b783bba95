# The stored form of a PUBLISH: protobuf wire format of penstock_schema/publish.proto, written and read in C.
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t


cdef enum:
    MOST_IDS = 64               # subscription identifiers of a copy that are sent


# A record's contents. WARNING: borrowed, from the read buffer when writing, from the record when reading.
cdef struct EnvelopeView:
    const uint8_t* topic
    const uint8_t* payload
    const uint8_t* props        # MQTT 5 properties that are forwarded, in MQTT's own encoding (codec.PublishView.props)
    const uint8_t* client_id
    const uint8_t* username     # NULL = none
    uint32_t topic_size
    uint32_t payload_size
    uint32_t props_size
    uint32_t client_id_size
    uint32_t username_size
    int64_t received_at         # ms since the epoch
    int64_t expires_at          # ms since the epoch, 0 = never
    uint8_t qos
    uint8_t retain
    # Only in records that several brokers write to one log; see `put_origin`.
    uint8_t shares_wait         # the broker that took the message has left its share groups to those who read it
    uint32_t node               # of that broker, 0 = not said
    # Only in QoS 2 messages of persistent sessions; see `put_received`.
    uint64_t received_mark      # the session's sequence number << 16 | packet id, 0 = not said
    # Only in records of the topics of APPLICATION clients; see `delivery_size`.
    uint8_t delivery_qos        # NO_DELIVERY_QOS = not said
    uint8_t delivery_retain
    uint32_t source_partition
    int64_t source_offset       # -1 = not said
    const uint8_t* ids          # subscription identifiers, as varints one after the other
    uint32_t ids_size


cdef enum:
    NO_DELIVERY_QOS = 0xFF

# Exact size of the encoded record; put_envelope writes exactly so many bytes and returns the end.
cdef uint32_t envelope_size(const EnvelopeView* view) noexcept nogil
cdef uint8_t* put_envelope(uint8_t* p, const EnvelopeView* view) noexcept nogil
# What is written behind a record to make it a subscriber's copy; an offset of -1 leaves out the source, a QoS of
# NO_DELIVERY_QOS what only the subscription knows.
cdef uint32_t delivery_size(uint8_t qos, bint retain, const uint32_t* ids, uint16_t id_count, uint32_t partition,
                            int64_t offset) noexcept nogil
cdef uint8_t* put_delivery(uint8_t* p, uint8_t qos, bint retain, const uint32_t* ids, uint16_t id_count,
                           uint32_t partition, int64_t offset) noexcept nogil
# What a broker among several writes behind a record: who took the message. origin_size is the size of it.
cdef uint32_t origin_size(bint shares_wait) noexcept nogil
cdef uint8_t* put_origin(uint8_t* p, uint32_t node, bint shares_wait) noexcept nogil
# What stands behind a QoS 2 message of a persistent session: by it a broker that was killed before it had stored the
# packet id knows, when it is back, that the message is there already. received_size is the size of it.
cdef uint32_t received_size(uint64_t mark) noexcept nogil
cdef uint8_t* put_received(uint8_t* p, uint64_t mark) noexcept nogil
# 0, or -1 if the bytes are not an envelope of a version we read. Unknown fields are skipped. The properties come back
# in MQTT's encoding, through `scratch` (codec's Buffer) because protobuf lays them out differently.
from penstock._ext.wire.buffer cimport Buffer

cdef int get_envelope(const uint8_t* data, uint32_t size, EnvelopeView* view, Buffer* scratch) except -2 nogil
# Subscription identifiers as they lie in a record, MOST_IDS of them at most; how many.
cdef uint16_t read_ids(const uint8_t* p, uint32_t size, uint32_t* ids) noexcept
