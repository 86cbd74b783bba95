# Packs out of librdkafka's consumer, and what a consumer asks and tells the brokers. Calls that may wait release the
# GIL; callbacks come from them, in the same thread, and take it again.
#
# A place is (topic, partition).

cdef enum:
    TAKEN_AT_ONCE = 512     # messages taken out of librdkafka's queue in one call


@no_gc_clear  # librdkafka's client is given back at the very end
@final
cdef class PackConsumer(Client):
    """`on_assigned(consumer, places)` and `on_revoked(consumer, places)` are called in the middle of read() and close()
    and have to assign or unassign them; if they do not, that is done for them. They must not close it. Methods raise
    KafkaException, and RuntimeError when it is closed."""

    cdef rd_kafka_queue_t* _queue
    cdef object _on_assigned
    cdef object _on_revoked
    cdef bint _has_answered     # the rebalance that is going on
    cdef object _raised         # by a callback, told after the call it came from
    cdef int _users             # threads that are in a call
    cdef bint _is_closing
    cdef object _listening      # the thread that is in a callback of a rebalance
    cdef Buffer _headers        # of the message that is being read
    # The pack that is added to, while it is of this place.
    cdef RecordPack _pack
    cdef rd_kafka_topic_t* _topic
    cdef int32_t _partition

    def __init__(self, properties, on_error=None, on_statistics=None, on_log=None):
        self._open(RDKAFKA_CONSUMER, properties, (on_error, on_statistics, on_log))
        rdkafka.poll_set_consumer(self._client)
        self._queue = rdkafka.queue_get_consumer(self._client)

    def __dealloc__(self):
        cdef rd_kafka_t* client = self._client
        buffer_free(&self._headers)
        if client == NULL:
            return
        # Nobody is told of its end any more: who wants to be calls close(). But it leaves the group in order, since
        # librdkafka waits for ever for the answer to a rebalance that nobody has heard of.
        self._on_assigned = self._on_revoked = None
        self._on_error = self._on_statistics = self._on_log = None
        with nogil:
            rdkafka.consumer_close(client)
        rdkafka.queue_destroy(self._queue)
        with nogil:
            rdkafka.destroy(client)
        self._client = NULL

    # ---- reading

    def read(self, int most, double seconds, size_t largest):
        """Waits for the first record, and takes what else is there: ([(topic, partition, RecordPack)], errors), an
        error being (KafkaError, topic or None, partition). A pack that has reached the size `largest` is not added to.
        """
        cdef rd_kafka_message_t* messages[TAKEN_AT_ONCE]
        cdef rd_kafka_t* client
        cdef int wanted, count = 0, timeout = milliseconds(seconds)
        cdef list packs = [], errors = []
        self._tell_all()  # before there is something to lose
        client = self._enter()
        try:
            with nogil:
                messages[0] = rdkafka.consumer_poll(client, timeout)
            if messages[0] != NULL:
                count = 1
            while messages[0] != NULL:
                wanted = min(most, TAKEN_AT_ONCE)
                count += self._take_waiting(messages + count, wanted - count)
                self._take(messages, count, packs, errors, largest)
                most -= count
                if count < wanted or most == 0:
                    break
                count = 0
        finally:
            self._pack = None
            self._users -= 1
        for _, _, pack in packs:
            (<RecordPack> pack).is_sealed = True
        return packs, errors

    cdef int _take_waiting(self, rd_kafka_message_t** messages, int most) except -1:
        """What is in the queue now; how many. -1 of librdkafka's is an error that the next poll has too."""
        cdef ssize_t count = 0
        if most > 0:
            with nogil:
                count = rdkafka.consume_batch_queue(self._queue, 0, messages, most)
        return <int> count if count > 0 else 0

    cdef int _take(self, rd_kafka_message_t** messages, int count, list packs, list errors, size_t largest) except -1:
        cdef rd_kafka_message_t* message
        cdef int i = 0
        try:
            while i < count:
                message = messages[i]
                if message.err:
                    errors.append(error_of(message))
                else:
                    if not self._goes_on(message, largest):
                        self._begin_pack(message, packs)
                    self._put(message)
                i += 1
        finally:
            for i in range(count):
                rdkafka.message_destroy(messages[i])
        return 0

    cdef bint _goes_on(self, const rd_kafka_message_t* message, size_t largest) noexcept:
        """Whether a message belongs behind those of the pack."""
        cdef int64_t distance
        if self._pack is None or message.rkt != self._topic or message.partition != self._partition:
            return False
        distance = message.offset - self._pack.base_offset
        return self._pack._body.end < largest and self._pack._span < distance <= 0x7FFFFFFF

    cdef int _begin_pack(self, const rd_kafka_message_t* message, list packs) except -1:
        self._topic, self._partition = message.rkt, message.partition
        self._pack = RecordPack()
        self._pack.base_offset = message.offset
        packs.append((text_of(rdkafka.topic_name(message.rkt)), message.partition, self._pack))
        return 0

    cdef int _put(self, const rd_kafka_message_t* message) except -1:
        cdef rd_kafka_headers_t* headers = NULL
        cdef uint32_t key_size = NO_KEY if message.key == NULL else <uint32_t> message.key_len
        cdef uint32_t value_size = NO_VALUE if message.payload == NULL else <uint32_t> message.len
        cdef uint8_t* place
        self._headers.end = 0
        if rdkafka.message_headers(message, &headers) == 0:
            self._put_headers(headers)
        place = self._pack.open_record(
            rdkafka.message_timestamp(message, NULL), <uint32_t> (message.offset - self._pack.base_offset),
            <const uint8_t*> message.key, key_size, self._headers.data, self._headers.end, value_size)
        if value_size != NO_VALUE:
            memcpy(place, message.payload, value_size)
        return 0

    cdef int _put_headers(self, const rd_kafka_headers_t* headers) except -1:
        """As RecordView has them."""
        cdef const char* name = NULL
        cdef const void* value = NULL
        cdef size_t name_size, size = 0, count = rdkafka.header_cnt(headers), i
        cdef uint8_t* start = buffer_reserve(&self._headers, 10)
        self._headers.end = <uint32_t> (put_varint64(start, count) - self._headers.data)
        for i in range(count):
            rdkafka.header_get_all(headers, i, &name, &value, &size)
            name_size = strlen(name)
            start = buffer_reserve(&self._headers, <uint32_t> (20 + name_size + size))
            start = put_varint64(start, name_size)
            memcpy(start, name, name_size)
            start = put_varint64(start + name_size, size)
            if size:
                memcpy(start, value, size)
            self._headers.end = <uint32_t> (start + size - self._headers.data)
        return 0

    # ---- partitions

    def subscribe(self, topics, on_assigned, on_revoked):
        cdef rd_kafka_t* client = self._enter()
        cdef rdkafka_places* places = NULL
        cdef int error
        try:
            self._on_assigned, self._on_revoked = on_assigned, on_revoked
            places = new_places([(topic, -1) for topic in topics])
            with nogil:
                error = rdkafka.subscribe(client, places)
            check_code(error)
        finally:
            free_places(places)
            self._leave()

    def assign(self, starts):
        """Exactly these places from now on; `starts` has their offsets."""
        self._call(ASSIGN, starts)

    def unassign(self):
        self._call(ASSIGN, None)

    def incremental_assign(self, starts):
        self._call(ASSIGN_MORE, starts)

    def incremental_unassign(self, places):
        self._call(ASSIGN_LESS, dict.fromkeys(places))

    def pause(self, places):
        self._call(PAUSE, dict.fromkeys(places))

    def resume(self, places):
        self._call(RESUME, dict.fromkeys(places))

    def seek(self, str topic not None, int32_t partition, int64_t offset):
        cdef rd_kafka_t* client = self._enter()
        cdef rd_kafka_topic_t* handle
        cdef int error
        try:
            handle = find_topic(client, topic)
            with nogil:
                error = rdkafka.seek(handle, partition, offset, -1)
            rdkafka.topic_destroy(handle)
            check_code(error)
        finally:
            self._leave()

    cdef int _call(self, Change what, starts) except -1:
        cdef rd_kafka_t* client = self._enter()
        cdef rdkafka_places* places = NULL
        cdef rd_kafka_error_t* failure = NULL
        cdef int error = 0
        try:
            if starts is not None:
                places = new_places(starts)
            with nogil:
                if what == ASSIGN:
                    error = rdkafka.assign(client, places)
                elif what == ASSIGN_MORE:
                    failure = rdkafka.incremental_assign(client, places)
                elif what == ASSIGN_LESS:
                    failure = rdkafka.incremental_unassign(client, places)
                elif what == PAUSE:
                    error = rdkafka.pause_partitions(client, places)
                else:
                    error = rdkafka.resume_partitions(client, places)
            if what <= ASSIGN_LESS:
                self._has_answered = True
            check_failure(failure)
            check_code(error)
        finally:
            free_places(places)
            self._leave()
        return 0

    cdef void _rebalance(self, int code, rdkafka_places* places) noexcept:
        cdef bint is_given = code == RDKAFKA_ERR_ASSIGN_PARTITIONS
        listener = self._on_assigned if is_given else self._on_revoked
        self._has_answered = False
        self._listening = get_ident()
        try:
            if listener is not None:
                listener(self, [(text_of(places.elems[i].topic), places.elems[i].partition) for i in range(places.cnt)])
        except BaseException as error:
            self._raised = error
        self._listening = None
        if not self._has_answered:
            self._answer(is_given, places)

    cdef void _answer(self, bint is_given, rdkafka_places* places) noexcept:
        """The group waits for it; an error of it comes again with the next read."""
        cdef rd_kafka_error_t* failure
        if text_of(rdkafka.rebalance_protocol(self._client)) != "COOPERATIVE":
            rdkafka.assign(self._client, places if is_given else NULL)
            return
        if is_given:
            failure = rdkafka.incremental_assign(self._client, places)
        else:
            failure = rdkafka.incremental_unassign(self._client, places)
        if failure != NULL:
            rdkafka.error_destroy(failure)

    # ---- offsets

    def commit(self, offsets):
        """{place: (offset, metadata)}; returns when Kafka has them."""
        cdef rd_kafka_t* client = self._enter()
        cdef rdkafka_places* places = NULL
        cdef int error, of_a_place = 0
        try:
            places = new_places(offsets)
            with nogil:
                error = rdkafka.commit_queue(client, places, NULL, take_commit, &of_a_place)
            check_code(error or of_a_place)
        finally:
            free_places(places)
            self._leave()

    def committed(self, places, double seconds):
        """{place: (offset, metadata)} of those that have one."""
        return {place: (offset, metadata)
                for place, offset, metadata in self._ask(dict.fromkeys(places), False, seconds) if offset >= 0}

    def offsets_for_times(self, times, double seconds):
        """{place: offset of the first record at or after the time (ms), -1 if there is none}; with -1 and -2 for a time
        the end and the beginning."""
        return {place: offset for place, offset, _ in self._ask(times, True, seconds)}

    def watermarks(self, str topic not None, int32_t partition, double seconds):
        cdef rd_kafka_t* client = self._enter()
        cdef bytes name = topic.encode()
        cdef const char* text = name
        cdef int64_t low = 0, high = 0
        cdef int error, timeout = milliseconds(seconds)
        try:
            with nogil:
                error = rdkafka.query_watermark_offsets(client, text, partition, &low, &high, timeout)
            check_code(error)
        finally:
            self._leave()
        return low, high

    def look_up(self, str topic not None, double seconds):
        """librdkafka knows the leaders of the topic from then on."""
        cdef rd_kafka_t* client = self._enter()
        cdef rd_kafka_topic_t* handle
        cdef const void* found = NULL
        cdef int error, timeout = milliseconds(seconds)
        try:
            handle = find_topic(client, topic)
            with nogil:
                error = rdkafka.metadata(client, 0, handle, &found, timeout)
            rdkafka.topic_destroy(handle)
            if found != NULL:
                rdkafka.metadata_destroy(found)
            check_code(error)
        finally:
            self._leave()

    cdef list _ask(self, asked, bint for_times, double seconds):
        cdef rd_kafka_t* client = self._enter()
        cdef rdkafka_places* places = NULL
        cdef rdkafka_place* place
        cdef int i, error, timeout = milliseconds(seconds)
        cdef list answers = []
        try:
            places = new_places(asked)
            with nogil:
                if for_times:
                    error = rdkafka.offsets_for_times(client, places, timeout)
                else:
                    error = rdkafka.committed(client, places, timeout)
            check_code(error)
            for i in range(places.cnt):
                place = &places.elems[i]
                check_code(place.err)
                metadata = b"" if place.metadata == NULL else (<char*> place.metadata)[:place.metadata_size]
                text = metadata.rstrip(b"\0").decode(errors="replace")
                answers.append(((text_of(place.topic), place.partition), place.offset, text))
        finally:
            free_places(places)
            self._leave()
        return answers

    # ---- its end

    def close(self):
        """Leaves the group, which is told of it, and ends librdkafka's threads."""
        cdef rd_kafka_t* client = self._client
        if self._listening == get_ident():
            # librdkafka is still in the call that this comes from, and would be gone when that goes on.
            raise RuntimeError("a consumer cannot be closed in the middle of a rebalance")
        if client == NULL or self._is_closing:
            return
        self._is_closing = True
        with nogil:
            rdkafka.consumer_close(client)
        self._client = NULL
        while self._users:
            with nogil:
                usleep(WAIT_STEP)
        rdkafka.queue_destroy(self._queue)
        with nogil:
            rdkafka.destroy(client)
        self._tell_all()

    cdef rd_kafka_t* _enter(self) except NULL:
        if self._client == NULL:
            raise RuntimeError("the consumer is closed")
        self._users += 1
        return self._client

    cdef int _leave(self) except -1:
        self._users -= 1
        return self._tell_all()

    cdef int _tell_all(self) except -1:
        if self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised
        return self._tell()


cdef enum Change:
    ASSIGN, ASSIGN_MORE, ASSIGN_LESS, PAUSE, RESUME


cdef int milliseconds(double seconds) noexcept:
    return <int> (seconds * 1000) if seconds > 0 else 0


cdef int check_code(int code) except -1:
    if code:
        raise KafkaException(KafkaError(code))
    return 0


cdef int check_failure(rd_kafka_error_t* failure) except -1:
    if failure == NULL:
        return 0
    error = KafkaError(rdkafka.error_code(failure), text_of(rdkafka.error_string(failure)),
                       fatal=bool(rdkafka.error_is_fatal(failure)))
    rdkafka.error_destroy(failure)
    raise KafkaException(error)


cdef tuple error_of(const rd_kafka_message_t* message):
    topic = None if message.rkt == NULL else text_of(rdkafka.topic_name(message.rkt))
    return KafkaError(message.err, text_of(rdkafka.message_errstr(message))), topic, message.partition


cdef rd_kafka_topic_t* find_topic(rd_kafka_t* client, str topic) except NULL:
    cdef rd_kafka_topic_t* handle = rdkafka.topic_new(client, topic.encode(), NULL)
    if handle == NULL:
        raise KafkaException(KafkaError(rdkafka.last_error()))
    return handle


cdef rdkafka_places* new_places(asked) except NULL:
    """Of places, or of {place: offset, None, or (offset, metadata)}."""
    cdef rdkafka_places* places = rdkafka.topic_partition_list_new(<int> len(asked))
    cdef rdkafka_place* place
    cdef bytes metadata
    try:
        for topic, partition in asked:
            place = rdkafka.topic_partition_list_add(places, (<str> topic).encode(), partition)
            start = asked[topic, partition] if isinstance(asked, Mapping) else None
            if isinstance(start, tuple):
                start, text = start
                # With its NUL, as confluent-kafka writes it: its admin client reads on until there is one.
                metadata = text.encode() + b"\0"
                place.metadata = malloc(len(metadata))
                if place.metadata == NULL:
                    raise MemoryError()
                memcpy(place.metadata, <const char*> metadata, len(metadata))
                place.metadata_size = len(metadata)
            if start is not None:
                place.offset = start
    except BaseException:
        rdkafka.topic_partition_list_destroy(places)
        raise
    return places


cdef void free_places(rdkafka_places* places) noexcept:
    if places != NULL:
        rdkafka.topic_partition_list_destroy(places)


cdef void take_rebalance(rd_kafka_t* client, int code, rdkafka_places* places, void* opaque) noexcept with gil:
    (<PackConsumer> opaque)._rebalance(code, places)


cdef void take_commit(rd_kafka_t* client, int code, rdkafka_places* places, void* opaque) noexcept nogil:
    """Notes the first error of a single place."""
    cdef int i
    if places != NULL:
        for i in range(places.cnt):
            if places.elems[i].err:
                (<int*> opaque)[0] = places.elems[i].err
                return
