"""What an error of librdkafka means to who uses the log."""

from __future__ import annotations

from confluent_kafka import KafkaError, KafkaException

from penstock.storage.log.base import LogError, LogUnavailable, RecordTooLarge, TopicNotFound

_NOT_FOUND = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION})
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
# They pass: brokers away or changing, queues full, a producer or member that is replaced.
_PASSING = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._QUEUE_FULL,
        KafkaError._WAIT_COORD,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._FATAL,
        KafkaError._RESOLVE,
        KafkaError._NO_OFFSET,
        KafkaError._WAIT_CACHE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.REBALANCE_IN_PROGRESS,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
    }
)
# Kafka knows us, and its ACL does not let us: that does not get better by itself.
_NOT_ALLOWED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
RIGHTS = "Kafka's ACL has to allow it to the user of kafka.common: docs/kafka-security.md names the rights."


def is_missing(error: KafkaError) -> bool:
    """Return whether the topic or partition does not exist."""
    return error.code() in _NOT_FOUND


def is_passing(error: KafkaError) -> bool:
    return error.code() in _PASSING or bool(error.retriable())


def to_log_error(error: KafkaError | BaseException, doing: str) -> LogError:
    """`doing` says what failed: "append to tbmq.msg.all[3]"."""
    if isinstance(error, LogError):
        return error
    if isinstance(error, KafkaException):
        error = error.args[0]
    if not isinstance(error, KafkaError):
        return LogError(f"{doing}: {error}")
    message = f"{doing}: Kafka says {error.name()}, {error.str()}"
    if error.code() in _NOT_FOUND:
        return TopicNotFound(message)
    if error.code() in _TOO_LARGE:
        return RecordTooLarge(message)
    if error.code() in _NOT_ALLOWED:
        return LogError(message, RIGHTS)
    return LogUnavailable(message) if is_passing(error) else LogError(message)
