"""Record packs into Kafka and out of it through librdkafka, without a Python object per record.

confluent-kafka makes Python objects of every record, and of every delivery report, and takes the GIL for each: more
than librdkafka itself costs. So its library is called directly (ADR 0018). What librdkafka has to say besides (errors,
statistics, lines for the log) is noted when it comes and told when the call that it came with is over.
"""

from cython cimport final, no_gc_clear
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy, strlen
from posix.unistd cimport usleep

from collections.abc import Mapping
from threading import get_ident

from confluent_kafka import KafkaError, KafkaException, cimpl

from penstock._ext.wire.buffer cimport Buffer, buffer_free, buffer_reserve
from penstock._ext.record.segment cimport NO_KEY, NO_VALUE, RecordPack, RecordView

include "declarations.pxi"

cdef enum:
    ERROR_SIZE = 512
    WAIT_STEP = 2_000       # microseconds
    MOST_EVENTS = 10_000    # until somebody hears them; what is more than that says nothing new

# The severities of syslog, as those of Python's logging.
cdef tuple LEVELS = (50, 50, 50, 40, 30, 20, 20, 10)

cdef str PLUGINS = "plugin.library.paths"

cdef char load_error[ERROR_SIZE]
if load_rdkafka(cimpl.__file__.encode(), load_error, ERROR_SIZE) != 0:
    raise ImportError(f"{load_error.decode()}: install confluent-kafka from its wheel, version 2.16 or later")


cdef class Client:
    """What producer and consumer have in common. `properties` are librdkafka's; KafkaException for those that it does
    not take. on_error(KafkaError), on_statistics(text) and on_log(level of Python's logging, line) may be None."""

    cdef rd_kafka_t* _client
    cdef object _on_error
    cdef object _on_statistics
    cdef object _on_log
    cdef list _events       # (function, arguments)

    cdef int _open(self, int kind, properties, tuple listeners) except -1:
        cdef rd_kafka_conf_t* conf = rdkafka.conf_new()
        cdef char error[ERROR_SIZE]
        self._on_error, self._on_statistics, self._on_log = listeners
        self._events = []
        # Plugins come first: only then there are the properties of their own.
        first = {PLUGINS: properties[PLUGINS]} if PLUGINS in properties else {}
        try:
            for name, value in {**first, **properties, "log.queue": True}.items():
                text = str(value).lower() if isinstance(value, bool) else str(value)
                if rdkafka.conf_set(conf, str(name).encode(), text.encode(), error, ERROR_SIZE) != 0:
                    raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text_of(error)))
            rdkafka.conf_set_opaque(conf, <void*> self)
            rdkafka.conf_set_error_cb(conf, take_error)
            rdkafka.conf_set_stats_cb(conf, take_statistics)
            rdkafka.conf_set_log_cb(conf, take_log)
            if kind == RDKAFKA_PRODUCER:
                rdkafka.conf_set_dr_msg_cb(conf, take_report)
            else:
                rdkafka.conf_set_rebalance_cb(conf, take_rebalance)
            self._client = rdkafka.new(kind, conf, error, ERROR_SIZE)
            if self._client == NULL:
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text_of(error)))
            conf = NULL  # it is the client's now
        finally:
            if conf != NULL:
                rdkafka.conf_destroy(conf)
        rdkafka.set_log_queue(self._client, NULL)
        return 0

    def fail_for_good(self, int code, str reason not None):
        """As after an error that an idempotent producer, or a member of a group, cannot get over; for tests."""
        if self._client != NULL:
            rdkafka.test_fatal_error(self._client, code, reason.encode())

    cdef void _note(self, function, tuple arguments):
        if function is not None and len(self._events) < MOST_EVENTS:
            self._events.append((function, arguments))

    cdef int _tell(self) except -1:
        if self._events:
            events, self._events = self._events, []
            for function, arguments in events:
                function(*arguments)
        return 0


cdef str text_of(const char* text):
    return "" if text == NULL else (<bytes> text).decode(errors="replace")


cdef void take_error(rd_kafka_t* client, int code, const char* reason, void* opaque) noexcept with gil:
    cdef Client self = <Client> opaque
    cdef char text[ERROR_SIZE]
    cdef int cause
    if code == RDKAFKA_ERR_FATAL:
        cause = rdkafka.fatal_error(client, text, ERROR_SIZE)
        if cause:
            self._note(self._on_error, (KafkaError(cause, text_of(text), fatal=True),))
            return
    self._note(self._on_error, (KafkaError(code, text_of(reason)),))


cdef int take_statistics(rd_kafka_t* client, char* text, size_t size, void* opaque) noexcept with gil:
    cdef Client self = <Client> opaque
    self._note(self._on_statistics, ((<bytes> text[:size]).decode(errors="replace"),))
    return 0  # the text stays librdkafka's


cdef void take_log(const rd_kafka_t* client, int level, const char* facility, const char* line) noexcept with gil:
    cdef Client self = <Client> rdkafka.opaque(client)
    text = f"{text_of(facility)} [{text_of(rdkafka.name(client))}] {text_of(line)}"
    self._note(self._on_log, (LEVELS[min(max(level, 0), 7)], text))


include "producer.pxi"
include "consumer.pxi"
