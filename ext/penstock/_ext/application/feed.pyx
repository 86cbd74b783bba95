"""The topics of APPLICATION clients, and of filters that they share: each record that is to be in one is written there
when it is dispatched, with what the subscriber is to get of it."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.ref cimport Py_DECREF, Py_INCREF
from cython cimport final
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from penstock._ext.hub.connection cimport Delivery, Hub, Outlet
from penstock._ext.hub.message cimport Message, message_payload, message_props, message_topic
from penstock._ext.match.trie cimport ShareGroup
from penstock._ext.record.envelope cimport (NO_DELIVERY_QOS, EnvelopeView, delivery_size, envelope_size, get_envelope,
                                            put_delivery, put_envelope)
from penstock._ext.record.segment cimport NO_VALUE, RecordPack, RecordView

cdef extern from "topic_filter.h" nogil:
    bint filter_matches(const uint8_t* f, size_t f_size, const uint8_t* t, size_t t_size)


@final
cdef class Feed(Outlet):
    """A topic of the log that is filled with the messages of one client, or of one filter that clients share."""

    def __init__(self, str topic not None, uint32_t partitions=1):
        self.is_apart = True
        self.topic = topic
        self.partitions = partitions
        self._packs = <void**> calloc(partitions, sizeof(void*))
        if self._packs == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef uint32_t i
        if self._packs != NULL:
            for i in range(self.partitions):
                if self._packs[i] != NULL:
                    Py_DECREF(<object> self._packs[i])
        free(self._packs)

    cdef int accept(self, Hub hub, Delivery* d) except -1:
        if d.group == NULL:
            return feed_record(hub, self, 0, d.record, d.qos, d.retain, d.ids, d.id_count, d.partition)
        # several share names on one filter read the same topic
        if self._last_offset == d.record.offset and self._last_partition == d.partition and self._round == d.round:
            return 0
        self._last_offset, self._last_partition, self._round = d.record.offset, d.partition, d.round
        # in turn, so that messages of one topic are shared out too; the same one when it comes again
        return feed_record(hub, self, <uint32_t> (<uint64_t> d.record.offset % self.partitions), d.record,
                           NO_DELIVERY_QOS, False, NULL, 0, d.partition)

    cdef bint accept_retained(self, Hub hub, const Message* m, uint8_t qos, uint32_t identifier) except -1:
        feed_retained(hub, self, m, qos, identifier)
        return True

    cdef list take_filled(self, Hub hub):
        return take_filled(hub) if hub.open_feeds else []

    # The pack of the partition that is being filled.
    cdef RecordPack open(self, Hub hub, uint32_t partition):
        cdef RecordPack pack
        if self._packs[partition] == NULL:
            pack = RecordPack()
            Py_INCREF(pack)
            self._packs[partition] = <void*> pack
            if not self._is_open:
                self._is_open = True
                hub.open_feeds.append(self)
        return <RecordPack> self._packs[partition]


def feed_group(Hub hub not None, bytes share_filter not None, Feed feed):
    """Messages of `$share/<name>/<filter>` are written to the feed, once; None ends it. False without members."""
    cdef ShareGroup* group = hub.trie.find_group(share_filter)
    if group == NULL:
        return False
    group.feed = <void*> feed if feed is not None else NULL
    return True


cpdef list take_filled(Hub hub):
    """The packs filled since the last time, one for each feed and partition: [(feed, partition, pack)]."""
    cdef list filled = []
    cdef Feed feed
    cdef uint32_t i
    for item in hub.open_feeds:
        feed = <Feed> item
        feed._is_open = False
        for i in range(feed.partitions):
            if feed._packs[i] != NULL:
                pack = <object> feed._packs[i]
                Py_DECREF(pack)
                feed._packs[i] = NULL
                filled.append((feed, i, pack))
    hub.open_feeds = []
    return filled


# A copy of the record, with what the subscriber is to get written behind it.
cdef int feed_record(Hub hub, Feed feed, uint32_t feed_partition, const RecordView* record, uint8_t qos, bint retain,
                     const uint32_t* ids, uint16_t id_count, uint32_t partition) except -1:
    cdef RecordPack pack = feed.open(hub, feed_partition)
    cdef uint32_t extra = delivery_size(qos, retain, ids, id_count, partition, record.offset)
    cdef uint8_t* p = pack.reserve(record.timestamp, record.key, record.key_size, record.value_size + extra)
    memcpy(p, record.value, record.value_size)
    put_delivery(p + record.value_size, qos, retain, ids, id_count, partition, record.offset)
    hub.counters.dispatched += 1
    return 0


# A retained message for a new subscription of an APPLICATION client, through its log like everything else with QoS > 0.
cdef int feed_retained(Hub hub, Feed feed, const Message* m, uint8_t qos, uint32_t identifier) except -1:
    cdef EnvelopeView view
    cdef RecordPack pack = feed.open(hub, 0)
    cdef uint32_t size, extra
    cdef uint8_t* p
    memset(&view, 0, sizeof(EnvelopeView))
    view.topic, view.topic_size = message_topic(m), m.topic_size
    view.payload, view.payload_size = message_payload(m), m.payload_size
    view.props, view.props_size = message_props(m), m.props_size
    view.received_at, view.expires_at = m.received_at, m.expires_at
    view.qos, view.retain = m.qos, 1
    size = envelope_size(&view)
    # RETAIN is set: it was stored before the subscription [MQTT-3.3.1-8] [MQTT3-3.3.1-8]
    extra = delivery_size(qos, True, &identifier, 1 if identifier else 0, 0, -1)
    p = pack.reserve(hub.wall, view.topic, view.topic_size, size + extra)
    put_delivery(put_envelope(p, &view), qos, True, &identifier, 1 if identifier else 0, 0, -1)
    return 0


def refill(Hub hub not None, RecordPack pack not None, uint32_t partition, list feeds not None, int64_t until):
    """What shared topics are to have of the durable records before the offset `until`: `feeds` are [(filter, feed)].
    The packs are for the caller: [(feed, partition, pack)]."""
    cdef size_t position = 0
    cdef RecordView record
    cdef EnvelopeView view
    cdef Feed feed
    cdef bytes plain
    while pack.next(&position, &record) and record.offset < until:
        if (record.value_size == NO_VALUE or get_envelope(record.value, record.value_size, &view, &hub.record_props)
                or view.qos == 0):
            continue
        for plain, feed in feeds:
            if filter_matches(<const uint8_t*> PyBytes_AS_STRING(plain), PyBytes_GET_SIZE(plain), view.topic,
                              view.topic_size):
                feed_record(hub, feed, <uint32_t> (<uint64_t> record.offset % feed.partitions), &record,
                            NO_DELIVERY_QOS, False, NULL, 0, partition)
    return take_filled(hub)
