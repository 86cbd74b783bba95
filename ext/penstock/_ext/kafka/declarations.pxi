# librdkafka's types and functions, see rdkafka_api.h.

cdef extern from "segment.h":
    uint8_t* put_varint64(uint8_t* p, uint64_t v) nogil
    const uint8_t* get_varint64(const uint8_t* p, const uint8_t* end, uint64_t* value) nogil

cdef extern from "rdkafka_api.h":
    ctypedef struct rd_kafka_t
    ctypedef struct rd_kafka_conf_t
    ctypedef struct rd_kafka_topic_t
    ctypedef struct rd_kafka_headers_t
    ctypedef struct rd_kafka_queue_t
    ctypedef struct rd_kafka_error_t
    ctypedef struct rd_kafka_message_t:
        int err
        rd_kafka_topic_t* rkt
        int32_t partition
        void* payload
        size_t len
        void* key
        size_t key_len
        int64_t offset
        void* _private
    ctypedef struct rdkafka_place:
        char* topic
        int32_t partition
        int64_t offset
        void* metadata
        size_t metadata_size
        int err
    ctypedef struct rdkafka_places:
        int cnt
        rdkafka_place* elems
    enum:
        RDKAFKA_PRODUCER, RDKAFKA_CONSUMER, RDKAFKA_F_COPY, RDKAFKA_PURGE_QUEUE, RDKAFKA_PURGE_INFLIGHT
        RDKAFKA_ERR_FATAL, RDKAFKA_ERR_ASSIGN_PARTITIONS
    ctypedef void (*rdkafka_on_delivery)(rd_kafka_t*, const rd_kafka_message_t*, void*) noexcept
    ctypedef void (*rdkafka_on_error)(rd_kafka_t*, int, const char*, void*) noexcept
    ctypedef int (*rdkafka_on_statistics)(rd_kafka_t*, char*, size_t, void*) noexcept
    ctypedef void (*rdkafka_on_log)(const rd_kafka_t*, int, const char*, const char*) noexcept
    ctypedef void (*rdkafka_on_rebalance)(rd_kafka_t*, int, rdkafka_places*, void*) noexcept
    ctypedef void (*rdkafka_on_commit)(rd_kafka_t*, int, rdkafka_places*, void*) noexcept nogil
    int load_rdkafka(const char* path, char* error, size_t size)
    int rdkafka_produce_one(rd_kafka_t*, rd_kafka_topic_t*, int32_t, void*, size_t, void*, size_t, int64_t,
                            rd_kafka_headers_t*, void*)

    cdef struct Functions "rdkafka":
        rd_kafka_conf_t* (*conf_new)()
        void (*conf_destroy)(rd_kafka_conf_t*)
        int (*conf_set)(rd_kafka_conf_t*, const char*, const char*, char*, size_t)
        void (*conf_set_opaque)(rd_kafka_conf_t*, void*)
        void (*conf_set_dr_msg_cb)(rd_kafka_conf_t*, rdkafka_on_delivery)
        void (*conf_set_error_cb)(rd_kafka_conf_t*, rdkafka_on_error)
        void (*conf_set_stats_cb)(rd_kafka_conf_t*, rdkafka_on_statistics)
        void (*conf_set_log_cb)(rd_kafka_conf_t*, rdkafka_on_log)
        void (*conf_set_rebalance_cb)(rd_kafka_conf_t*, rdkafka_on_rebalance)
        rd_kafka_t* (*new)(int, rd_kafka_conf_t*, char*, size_t)
        int (*set_log_queue)(rd_kafka_t*, void*)
        void* (*opaque)(const rd_kafka_t*)
        const char* (*name)(const rd_kafka_t*)
        int (*fatal_error)(rd_kafka_t*, char*, size_t)
        int (*last_error)()
        int (*poll)(rd_kafka_t*, int)
        int (*outq_len)(rd_kafka_t*)
        int (*purge)(rd_kafka_t*, int) nogil
        void (*destroy)(rd_kafka_t*) nogil
        rd_kafka_topic_t* (*topic_new)(rd_kafka_t*, const char*, void*)
        void (*topic_destroy)(rd_kafka_topic_t*)
        const char* (*topic_name)(const rd_kafka_topic_t*)
        int (*produce_batch)(rd_kafka_topic_t*, int32_t, int, rd_kafka_message_t*, int)
        rd_kafka_headers_t* (*headers_new)(size_t)
        void (*headers_destroy)(rd_kafka_headers_t*)
        int (*header_add)(rd_kafka_headers_t*, const char*, ssize_t, const void*, ssize_t)
        size_t (*header_cnt)(const rd_kafka_headers_t*)
        int (*header_get_all)(const rd_kafka_headers_t*, size_t, const char**, const void**, size_t*)
        int (*poll_set_consumer)(rd_kafka_t*)
        rd_kafka_queue_t* (*queue_get_consumer)(rd_kafka_t*)
        void (*queue_destroy)(rd_kafka_queue_t*)
        rd_kafka_message_t* (*consumer_poll)(rd_kafka_t*, int) nogil
        ssize_t (*consume_batch_queue)(rd_kafka_queue_t*, int, rd_kafka_message_t**, size_t) nogil
        void (*message_destroy)(rd_kafka_message_t*)
        int64_t (*message_timestamp)(const rd_kafka_message_t*, int*)
        const char* (*message_errstr)(const rd_kafka_message_t*)
        int (*message_headers)(const rd_kafka_message_t*, rd_kafka_headers_t**)
        rdkafka_places* (*topic_partition_list_new)(int)
        void (*topic_partition_list_destroy)(rdkafka_places*)
        rdkafka_place* (*topic_partition_list_add)(rdkafka_places*, const char*, int32_t)
        int (*subscribe)(rd_kafka_t*, const rdkafka_places*) nogil
        int (*assign)(rd_kafka_t*, const rdkafka_places*) nogil
        rd_kafka_error_t* (*incremental_assign)(rd_kafka_t*, const rdkafka_places*) nogil
        rd_kafka_error_t* (*incremental_unassign)(rd_kafka_t*, const rdkafka_places*) nogil
        const char* (*rebalance_protocol)(rd_kafka_t*)
        int (*error_code)(const rd_kafka_error_t*)
        const char* (*error_string)(const rd_kafka_error_t*)
        int (*error_is_fatal)(const rd_kafka_error_t*)
        void (*error_destroy)(rd_kafka_error_t*)
        int (*pause_partitions)(rd_kafka_t*, rdkafka_places*) nogil
        int (*resume_partitions)(rd_kafka_t*, rdkafka_places*) nogil
        int (*seek)(rd_kafka_topic_t*, int32_t, int64_t, int) nogil
        int (*commit_queue)(rd_kafka_t*, const rdkafka_places*, rd_kafka_queue_t*, rdkafka_on_commit, void*) nogil
        int (*committed)(rd_kafka_t*, rdkafka_places*, int) nogil
        int (*query_watermark_offsets)(rd_kafka_t*, const char*, int32_t, int64_t*, int64_t*, int) nogil
        int (*offsets_for_times)(rd_kafka_t*, rdkafka_places*, int) nogil
        int (*metadata)(rd_kafka_t*, int, rd_kafka_topic_t*, const void**, int) nogil
        void (*metadata_destroy)(const void*)
        int (*consumer_close)(rd_kafka_t*) nogil
        int (*test_fatal_error)(rd_kafka_t*, int, const char*)
    Functions rdkafka
