# Packs into librdkafka's producer, and its delivery reports back. Its callbacks come only from poll() and close(),
# which hold the GIL; librdkafka's threads never ask for it.

cdef enum:
    AT_ONCE = 256           # records handed over in one call
    MOST_TOPICS = 4096      # whose handles are kept: librdkafka looks for a topic through all it has


def find_odd(RecordPack pack not None, int64_t oldest, int64_t newest, size_t largest):
    """What speaks against producing the pack as one batch, which has neither headers nor times of its own:
    0 nothing, 1 headers or a time outside the bounds, 2 a record larger than allowed."""
    cdef size_t position = 0, size
    cdef RecordView view
    cdef int odd = 0
    while pack.next(&position, &view):
        size = view.headers_size
        if view.key_size != NO_KEY:
            size += view.key_size
        if view.value_size != NO_VALUE:
            size += view.value_size
        if size > largest:
            return 2
        if view.headers_size or view.timestamp < oldest or view.timestamp > newest:
            odd = 1
    return odd


@final
cdef class Delivery:
    """Counts the delivery reports of a pack. Those that are complete go to `finished`."""

    cdef readonly str topic
    cdef readonly int partition
    cdef readonly RecordPack pack
    cdef readonly object on_done
    cdef readonly bint is_lasting           # it does not time out
    cdef readonly double since              # when it was appended, by the caller's clock
    cdef readonly object error              # the first one
    cdef readonly uint32_t failed
    cdef readonly int64_t base_offset       # of the first record, -1 = not known
    cdef int64_t _last_offset
    cdef uint32_t _waiting
    cdef list _finished

    def __init__(self, str topic, int partition, RecordPack pack, object on_done, list finished, double since=0,
                 bint is_lasting=False):
        self.topic = topic
        self.partition = partition
        self.pack = pack
        self.on_done = on_done
        self.since = since
        self.is_lasting = is_lasting
        self.base_offset = -1
        self._waiting = pack.count
        # What came later would be more reports than are waited for, and the last ones those of an object that is gone.
        pack.is_sealed = True
        self._finished = finished

    cpdef void succeed(self, int64_t offset):
        """The next record is written."""
        if self._waiting == self.pack.count and offset >= 0:
            self.base_offset = offset
        self._last_offset = offset
        self._waiting -= 1
        if self._waiting == 0:
            self._finish()

    cpdef void fail(self, object error, uint32_t count):
        """So many records will not be written."""
        if count == 0:
            return
        if self.error is None:
            self.error = error
        self.failed += count
        self._waiting -= count
        if self._waiting == 0:
            self._finish()

    cdef void _finish(self):
        self._finished.append(self)

    @property
    def is_dense(self):
        """Whether no other producer's records lie among these."""
        cdef int64_t span = self._last_offset - self.base_offset + 1
        return self.failed == 0 and self.base_offset >= 0 and span == self.pack.count

    @property
    def is_complete(self):
        return self._waiting == 0


@no_gc_clear  # librdkafka's handles are given back at the very end
@final
cdef class PackProducer(Client):
    """One thread at a time; close() may be called in another one than the rest."""

    cdef dict _topics       # name: address of librdkafka's handle
    cdef set _under_way     # deliveries that librdkafka has records of, and their addresses with them

    def __init__(self, properties, on_error=None, on_statistics=None, on_log=None):
        self._topics, self._under_way = {}, set()
        self._open(RDKAFKA_PRODUCER, properties, (on_error, on_statistics, on_log))

    def __dealloc__(self):
        self._destroy()

    def __len__(self):
        """Records that are neither written nor given up, and what else waits for a poll."""
        return rdkafka.outq_len(self._client) if self._client != NULL else 0

    def produce(self, Delivery delivery not None):
        """Hands over the whole pack, without headers and times of records. What librdkafka does not take fails."""
        cdef rd_kafka_message_t messages[AT_ONCE]
        cdef rd_kafka_topic_t* topic = self._find_topic(delivery)
        cdef size_t position = 0
        cdef uint32_t left = delivery.pack.count
        cdef int count, taken, i
        if topic == NULL:
            return
        self._under_way.add(delivery)
        while left:
            count = fill_messages(messages, delivery.pack, &position, <void*> delivery)
            taken = rdkafka.produce_batch(topic, delivery.partition, RDKAFKA_F_COPY, messages, count)
            if taken < count:
                # librdkafka goes on behind a record that it does not take; behind this call we do not.
                for i in range(count):
                    if messages[i].err:
                        self._refuse(delivery, messages[i].err, left - taken)
                        return
            left -= count

    def produce_each(self, Delivery delivery not None):
        """Hands over the records one by one, with their headers and times."""
        cdef RecordPack pack = delivery.pack
        cdef rd_kafka_topic_t* topic = self._find_topic(delivery)
        cdef rd_kafka_headers_t* headers
        cdef RecordView view
        cdef size_t position = 0
        cdef uint32_t handed_over = 0
        cdef int error
        if topic == NULL:
            return
        self._under_way.add(delivery)
        while pack.next(&position, &view):
            try:
                headers = new_headers(view.headers, view.headers_size)
            except ValueError as damage:
                delivery.fail(damage, pack.count - handed_over)
                if delivery._waiting == 0:
                    self._let_go(delivery)
                return
            error = rdkafka_produce_one(
                self._client, topic, delivery.partition,
                NULL if view.value_size == NO_VALUE else <void*> view.value,
                0 if view.value_size == NO_VALUE else view.value_size,
                NULL if view.key_size == NO_KEY else <void*> view.key,
                0 if view.key_size == NO_KEY else view.key_size,
                view.timestamp, headers, <void*> delivery)
            if error:
                if headers != NULL:
                    rdkafka.headers_destroy(headers)
                self._refuse(delivery, error, pack.count - handed_over)
                return
            handed_over += 1

    def poll(self):
        """Takes the reports there are, without waiting, and gives what else librdkafka has to say."""
        if self._client == NULL:
            return
        rdkafka.poll(self._client, 0)
        self._tell()

    def purge(self, bint unsent_only=False):
        """Give up records that are not written yet, or only those that were not sent; the next poll has the reports."""
        cdef int flags = RDKAFKA_PURGE_QUEUE if unsent_only else RDKAFKA_PURGE_QUEUE | RDKAFKA_PURGE_INFLIGHT
        if self._client != NULL:
            with nogil:
                rdkafka.purge(self._client, flags)

    def forget_topic(self, str name not None):
        address = self._topics.pop(name, None)
        if address is not None:
            rdkafka.topic_destroy(<rd_kafka_topic_t*> <size_t> address)

    def close(self):
        """Waits until each record is written or given up, which purge() hastens, and ends librdkafka's threads."""
        while self._client != NULL:
            rdkafka.poll(self._client, 0)
            if not self._under_way:
                break
            with nogil:
                usleep(WAIT_STEP)
        self._tell()
        self._destroy()

    cdef void _destroy(self):
        cdef rd_kafka_t* client = self._client
        self._client = NULL
        if client == NULL:
            return
        for address in self._topics.values():
            rdkafka.topic_destroy(<rd_kafka_topic_t*> <size_t> address)
        self._topics.clear()
        with nogil:
            rdkafka.destroy(client)
        self._under_way.clear()

    cdef rd_kafka_topic_t* _find_topic(self, Delivery delivery):
        """Its handle; NULL if there is none, and the delivery has failed."""
        cdef rd_kafka_topic_t* topic = NULL
        if self._client == NULL:
            delivery.fail(KafkaError(KafkaError._DESTROY), delivery.pack.count)
            return NULL
        address = self._topics.get(delivery.topic)
        if address is not None:
            return <rd_kafka_topic_t*> <size_t> address
        topic = rdkafka.topic_new(self._client, delivery.topic.encode(), NULL)
        if topic == NULL:
            delivery.fail(KafkaError(rdkafka.last_error()), delivery.pack.count)
            return NULL
        if len(self._topics) >= MOST_TOPICS:
            self.forget_topic(next(iter(self._topics)))
        self._topics[delivery.topic] = <size_t> topic
        return topic

    cdef void _refuse(self, Delivery delivery, int error, uint32_t count):
        delivery.fail(KafkaError(error), count)
        if delivery._waiting == 0:
            self._let_go(delivery)

    cdef void _let_go(self, Delivery delivery):
        self._under_way.discard(delivery)


cdef int fill_messages(rd_kafka_message_t* messages, RecordPack pack, size_t* position, void* opaque) except -1:
    """The next records, AT_ONCE at most; how many."""
    cdef rd_kafka_message_t* message
    cdef RecordView view
    cdef int count = 0
    while count < AT_ONCE and pack.next(position, &view):
        message = &messages[count]
        message.err = 0
        message.payload = NULL if view.value_size == NO_VALUE else <void*> view.value
        message.len = 0 if view.value_size == NO_VALUE else view.value_size
        message.key = NULL if view.key_size == NO_KEY else <void*> view.key
        message.key_len = 0 if view.key_size == NO_KEY else view.key_size
        message._private = opaque
        count += 1
    return count


cdef rd_kafka_headers_t* new_headers(const uint8_t* p, uint32_t size) except? NULL:
    """Of a record's packed headers, see RecordView; NULL if it has none."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* name
    cdef uint64_t count = 0, name_size = 0, value_size = 0
    cdef rd_kafka_headers_t* headers
    if size == 0:
        return NULL
    p = get_varint64(p, end, &count)
    if p == NULL or count > size:
        raise ValueError("the headers of a record are damaged")
    headers = rdkafka.headers_new(count)
    for _ in range(count):
        name = get_varint64(p, end, &name_size)
        if name != NULL and name_size <= <uint64_t> (end - name):
            p = get_varint64(name + name_size, end, &value_size)
            if p != NULL and value_size <= <uint64_t> (end - p):
                rdkafka.header_add(headers, <const char*> name, <ssize_t> name_size, p, <ssize_t> value_size)
                p += value_size
                continue
        rdkafka.headers_destroy(headers)
        raise ValueError("the headers of a record are damaged")
    return headers


cdef void take_report(rd_kafka_t* client, const rd_kafka_message_t* message, void* opaque) noexcept:
    cdef Delivery delivery = <Delivery> message._private
    if message.err == 0:
        delivery.succeed(message.offset)
        if delivery._waiting == 0:
            (<PackProducer> opaque)._let_go(delivery)
    else:
        (<PackProducer> opaque)._refuse(delivery, message.err, 1)
