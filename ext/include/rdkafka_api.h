/* The part of librdkafka's C API that is called here, taken at run time from the very library that confluent-kafka
 * has loaded: its wheel brings librdkafka but no headers. Declarations as in rdkafka.h, whose binary interface is kept
 * compatible within a major version; load_rdkafka() refuses another one. */
#ifndef PENSTOCK_RDKAFKA_API_H
#define PENSTOCK_RDKAFKA_API_H

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#define RDKAFKA_MAJOR_VERSION 2

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;

typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *_private;
} rd_kafka_message_t;

typedef struct rd_kafka_topic_partition_s {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *_private;
} rdkafka_place; /* rd_kafka_topic_partition_t */

typedef struct rd_kafka_topic_partition_list_s {
    int cnt;
    int size;
    rdkafka_place *elems;
} rdkafka_places; /* rd_kafka_topic_partition_list_t */

enum {
    RDKAFKA_PRODUCER = 0,
    RDKAFKA_CONSUMER = 1,
    RDKAFKA_F_COPY = 0x2,
    RDKAFKA_PURGE_QUEUE = 0x1,
    RDKAFKA_PURGE_INFLIGHT = 0x2,
    RDKAFKA_ERR_FATAL = -150,
    RDKAFKA_ERR_REVOKE_PARTITIONS = -174,
    RDKAFKA_ERR_ASSIGN_PARTITIONS = -175,
    /* What rd_kafka_producev() is told, each followed by its values. */
    RDKAFKA_V_END = 0,
    RDKAFKA_V_RKT = 2,
    RDKAFKA_V_PARTITION = 3,
    RDKAFKA_V_VALUE = 4,
    RDKAFKA_V_KEY = 5,
    RDKAFKA_V_OPAQUE = 6,
    RDKAFKA_V_MSGFLAGS = 7,
    RDKAFKA_V_TIMESTAMP = 8,
    RDKAFKA_V_HEADERS = 10
};

typedef void (*rdkafka_on_delivery)(rd_kafka_t *, const rd_kafka_message_t *, void *);
typedef void (*rdkafka_on_error)(rd_kafka_t *, int, const char *, void *);
typedef int (*rdkafka_on_statistics)(rd_kafka_t *, char *, size_t, void *);
typedef void (*rdkafka_on_log)(const rd_kafka_t *, int, const char *, const char *);
typedef void (*rdkafka_on_rebalance)(rd_kafka_t *, int, rdkafka_places *, void *);
typedef void (*rdkafka_on_commit)(rd_kafka_t *, int, rdkafka_places *, void *);

#define RDKAFKA_FUNCTIONS(X)                                                                                           \
    X(int, version, (void))                                                                                            \
    X(rd_kafka_conf_t *, conf_new, (void))                                                                             \
    X(void, conf_destroy, (rd_kafka_conf_t *))                                                                         \
    X(int, conf_set, (rd_kafka_conf_t *, const char *, const char *, char *, size_t))                                  \
    X(void, conf_set_opaque, (rd_kafka_conf_t *, void *))                                                              \
    X(void, conf_set_dr_msg_cb, (rd_kafka_conf_t *, rdkafka_on_delivery))                                              \
    X(void, conf_set_error_cb, (rd_kafka_conf_t *, rdkafka_on_error))                                                  \
    X(void, conf_set_stats_cb, (rd_kafka_conf_t *, rdkafka_on_statistics))                                             \
    X(void, conf_set_log_cb, (rd_kafka_conf_t *, rdkafka_on_log))                                                      \
    X(rd_kafka_t *, new, (int, rd_kafka_conf_t *, char *, size_t))                                                     \
    X(int, set_log_queue, (rd_kafka_t *, void *))                                                                      \
    X(void *, opaque, (const rd_kafka_t *))                                                                            \
    X(const char *, name, (const rd_kafka_t *))                                                                        \
    X(int, fatal_error, (rd_kafka_t *, char *, size_t))                                                                \
    X(int, last_error, (void))                                                                                         \
    X(int, poll, (rd_kafka_t *, int))                                                                                  \
    X(int, outq_len, (rd_kafka_t *))                                                                                   \
    X(int, purge, (rd_kafka_t *, int))                                                                                 \
    X(void, destroy, (rd_kafka_t *))                                                                                   \
    X(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *, rd_kafka_topic_conf_t *))                            \
    X(void, topic_destroy, (rd_kafka_topic_t *))                                                                       \
    X(int, produce_batch, (rd_kafka_topic_t *, int32_t, int, rd_kafka_message_t *, int))                               \
    X(int, producev, (rd_kafka_t *, ...))                                                                              \
    X(rd_kafka_headers_t *, headers_new, (size_t))                                                                     \
    X(void, headers_destroy, (rd_kafka_headers_t *))                                                                   \
    X(int, header_add, (rd_kafka_headers_t *, const char *, ssize_t, const void *, ssize_t))                           \
    X(int, poll_set_consumer, (rd_kafka_t *))                                                                          \
    X(void, conf_set_rebalance_cb, (rd_kafka_conf_t *, rdkafka_on_rebalance))                                          \
    X(rd_kafka_queue_t *, queue_get_consumer, (rd_kafka_t *))                                                          \
    X(void, queue_destroy, (rd_kafka_queue_t *))                                                                       \
    X(rd_kafka_message_t *, consumer_poll, (rd_kafka_t *, int))                                                        \
    X(ssize_t, consume_batch_queue, (rd_kafka_queue_t *, int, rd_kafka_message_t **, size_t))                          \
    X(void, message_destroy, (rd_kafka_message_t *))                                                                   \
    X(int64_t, message_timestamp, (const rd_kafka_message_t *, int *))                                                 \
    X(const char *, message_errstr, (const rd_kafka_message_t *))                                                      \
    X(int, message_headers, (const rd_kafka_message_t *, rd_kafka_headers_t **))                                       \
    X(size_t, header_cnt, (const rd_kafka_headers_t *))                                                                \
    X(int, header_get_all, (const rd_kafka_headers_t *, size_t, const char **, const void **, size_t *))               \
    X(const char *, topic_name, (const rd_kafka_topic_t *))                                                            \
    X(rdkafka_places *, topic_partition_list_new, (int))                                                               \
    X(void, topic_partition_list_destroy, (rdkafka_places *))                                                          \
    X(rdkafka_place *, topic_partition_list_add, (rdkafka_places *, const char *, int32_t))                            \
    X(int, subscribe, (rd_kafka_t *, const rdkafka_places *))                                                          \
    X(int, assign, (rd_kafka_t *, const rdkafka_places *))                                                             \
    X(rd_kafka_error_t *, incremental_assign, (rd_kafka_t *, const rdkafka_places *))                                  \
    X(rd_kafka_error_t *, incremental_unassign, (rd_kafka_t *, const rdkafka_places *))                                \
    X(const char *, rebalance_protocol, (rd_kafka_t *))                                                                \
    X(int, error_code, (const rd_kafka_error_t *))                                                                     \
    X(const char *, error_string, (const rd_kafka_error_t *))                                                          \
    X(int, error_is_fatal, (const rd_kafka_error_t *))                                                                 \
    X(void, error_destroy, (rd_kafka_error_t *))                                                                       \
    X(int, pause_partitions, (rd_kafka_t *, rdkafka_places *))                                                         \
    X(int, resume_partitions, (rd_kafka_t *, rdkafka_places *))                                                        \
    X(int, seek, (rd_kafka_topic_t *, int32_t, int64_t, int))                                                          \
    X(int, commit_queue, (rd_kafka_t *, const rdkafka_places *, rd_kafka_queue_t *, rdkafka_on_commit, void *))        \
    X(int, committed, (rd_kafka_t *, rdkafka_places *, int))                                                           \
    X(int, query_watermark_offsets, (rd_kafka_t *, const char *, int32_t, int64_t *, int64_t *, int))                  \
    X(int, offsets_for_times, (rd_kafka_t *, rdkafka_places *, int))                                                   \
    X(int, metadata, (rd_kafka_t *, int, rd_kafka_topic_t *, const void **, int))                                      \
    X(void, metadata_destroy, (const void *))                                                                          \
    X(int, consumer_close, (rd_kafka_t *))                                                                             \
    X(int, test_fatal_error, (rd_kafka_t *, int, const char *))

#define RDKAFKA_POINTER(result, name, arguments) result(*name) arguments;
static struct {
    RDKAFKA_FUNCTIONS(RDKAFKA_POINTER)
} rdkafka;
#undef RDKAFKA_POINTER

/* `path` is confluent-kafka's extension module: names are looked up in what it depends on, wherever that was installed.
 * 0, or -1 with what is wrong in `error`. */
static int load_rdkafka(const char *path, char *error, size_t size) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(error, size, "%s", dlerror());
        return -1;
    }
#define RDKAFKA_FIND(result, name, arguments)                                                                          \
    *(void **)&rdkafka.name = dlsym(library, "rd_kafka_" #name);                                                       \
    if (rdkafka.name == NULL) {                                                                                        \
        snprintf(error, size, "librdkafka has no rd_kafka_" #name);                                                    \
        return -1;                                                                                                     \
    }
    RDKAFKA_FUNCTIONS(RDKAFKA_FIND)
#undef RDKAFKA_FIND
    if (rdkafka.version() >> 24 != RDKAFKA_MAJOR_VERSION) {
        snprintf(error, size, "librdkafka %d is not version %d", rdkafka.version() >> 24, RDKAFKA_MAJOR_VERSION);
        return -1;
    }
    return 0;
}

/* One record with a time, and with headers that librdkafka owns from now on if it takes the record. */
static int rdkafka_produce_one(rd_kafka_t *client, rd_kafka_topic_t *topic, int32_t partition, const void *value,
                               size_t value_size, const void *key, size_t key_size, int64_t timestamp,
                               rd_kafka_headers_t *headers, void *opaque) {
    return rdkafka.producev(client, RDKAFKA_V_RKT, topic, RDKAFKA_V_PARTITION, partition, RDKAFKA_V_MSGFLAGS,
                            (int)RDKAFKA_F_COPY, RDKAFKA_V_VALUE, value, value_size, RDKAFKA_V_KEY, key, key_size,
                            RDKAFKA_V_TIMESTAMP, timestamp, RDKAFKA_V_HEADERS, headers, RDKAFKA_V_OPAQUE, opaque,
                            RDKAFKA_V_END);
}

#endif
