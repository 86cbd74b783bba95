"""Every other name of a setting, as data: environment names of TBMQ, and names that settings had before."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

MAX_POLL_RECORDS = "max.poll.records"


class Alias(NamedTuple):
    """The setting that an alias sets, and a function that converts its text; it raises ValueError."""

    key: str
    translate: Callable[[str], str]
    note: str = ""  # how its text differs from that of the setting, for the reference


def _same(text: str) -> str:
    return text


def _kilobytes(text: str) -> str:
    # A bare number is in KB there; with a unit it already says what it is.
    return f"{text.strip()}KB" if text.strip().isdigit() else text


def _milliseconds(text: str) -> str:
    return f"{text.strip()}ms" if text.strip().isdigit() else text


def _strategy(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _max_poll_records(text: str) -> str:
    """Return the number of `max.poll.records:200`; raises ValueError for properties that one client cannot have."""
    found = ""
    for part in filter(None, (piece.strip() for piece in text.split(";"))):
        name, _, value = part.partition(":")
        if name.strip() != MAX_POLL_RECORDS:
            raise ValueError(
                f"{name.strip()} cannot be set for these consumers alone, one consumer serves all clients: "
                f"use {MAX_POLL_RECORDS}:NUMBER here and [kafka.consumer] for the rest"
            )
        found = value.strip()
    if not found:
        raise ValueError(f"use {MAX_POLL_RECORDS}:NUMBER")
    return found


KAFKA_NAMES = {
    "TB_KAFKA_SERVERS": "kafka.bootstrap_servers",
    "TB_KAFKA_ACKS": "kafka.acks",
    "TB_KAFKA_RETRIES": "kafka.retries",
    "TB_KAFKA_BATCH_SIZE": "kafka.batch_size",
    "TB_KAFKA_LINGER_MS": "kafka.linger_ms",
    "TB_BUFFER_MEMORY": "kafka.buffer_memory",
    "TB_KAFKA_COMPRESSION_TYPE": "kafka.compression_type",
    "TB_KAFKA_MAX_REQUEST_SIZE": "kafka.max_request_size",
    "TB_KAFKA_MAX_IN_FLIGHT_REQUESTS_PER_CONNECTION": "kafka.max_in_flight",
    "TB_KAFKA_REQUEST_TIMEOUT_MS": "kafka.request_timeout_ms",
    "TB_QUEUE_KAFKA_AUTO_OFFSET_RESET": "kafka.auto_offset_reset",
    "TB_KAFKA_SESSION_TIMEOUT_MS": "kafka.session_timeout_ms",
    "TB_QUEUE_KAFKA_SESSION_TIMEOUT_MS": "kafka.session_timeout_ms",
    "TB_QUEUE_KAFKA_MAX_POLL_RECORDS": "kafka.max_poll_records",
    "TB_KAFKA_MAX_POLL_RECORDS": "kafka.max_poll_records",
    "TB_QUEUE_KAFKA_MAX_POLL_INTERVAL_MS": "kafka.max_poll_interval_ms",
    "TB_KAFKA_MAX_POLL_INTERVAL_MS": "kafka.max_poll_interval_ms",
    "TB_QUEUE_KAFKA_MAX_PARTITION_FETCH_BYTES": "kafka.max_partition_fetch_bytes",
    "TB_KAFKA_MAX_PARTITION_FETCH_BYTES": "kafka.max_partition_fetch_bytes",
    "TB_QUEUE_KAFKA_FETCH_MAX_BYTES": "kafka.fetch_max_bytes",
    "TB_KAFKA_FETCH_MAX_BYTES": "kafka.fetch_max_bytes",
    "TB_QUEUE_KAFKA_REPLICATION_FACTOR": "kafka.replication_factor",
}
DEVICE_NAMES = {
    "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_LIMIT": "device.messages_limit",
    "MQTT_PERSISTENT_SESSION_DEVICE_PERSISTED_MESSAGES_TTL": "device.messages_ttl",
    "REDIS_CONNECTION_TYPE": "redis.mode",
    "REDIS_HOST": "redis.addresses",
    "REDIS_PORT": "redis.port",
    "REDIS_NODES": "redis.addresses",
    "REDIS_SENTINELS": "redis.addresses",
    "REDIS_MASTER": "redis.master",
    "REDIS_DB": "redis.database",
    "REDIS_USERNAME": "redis.username",
    "REDIS_PASSWORD": "redis.password",
    "REDIS_SENTINEL_PASSWORD": "redis.sentinel_password",
    "REDIS_SSL_ENABLED": "redis.tls",
    "REDIS_SSL_PEM_CERT": "redis.tls_ca",
    "REDIS_SSL_PEM_KEY": "redis.tls_key",
    "REDIS_LETTUCE_COMMAND_TIMEOUT_SEC": "redis.command_timeout",
    "CACHE_PREFIX": "redis.prefix",
}
RATE_NAMES = {
    "MQTT_INCOMING_RATE_LIMITS_ENABLED": "rate_limits.incoming_enabled",
    "MQTT_INCOMING_RATE_LIMITS_CLIENT_CONFIG": "rate_limits.incoming",
    "MQTT_OUTGOING_RATE_LIMITS_ENABLED": "rate_limits.outgoing_enabled",
    "MQTT_OUTGOING_RATE_LIMITS_CLIENT_CONFIG": "rate_limits.outgoing",
    "MQTT_TOTAL_RATE_LIMITS_ENABLED": "rate_limits.total_enabled",
    "MQTT_TOTAL_RATE_LIMITS_CONFIG": "rate_limits.total",
    "MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_ENABLED": "rate_limits.device_enabled",
    "MQTT_DEVICE_PERSISTED_MSGS_RATE_LIMITS_CONFIG": "rate_limits.device",
}

# Our own PENSTOCK_ names win over these.
ALIASES = {
    **{name: Alias(key, _same) for name, key in KAFKA_NAMES.items()},
    "NETTY_WRITE_BUFFER_HIGH_WATER_MARK": Alias("limits.write_high_watermark", _kilobytes, "in KB"),
    "NETTY_WRITE_BUFFER_LOW_WATER_MARK": Alias("limits.write_low_watermark", _kilobytes, "in KB"),
    "TB_KAFKA_PREFIX": Alias("services.prefix", _same),
    "TB_KAFKA_MSG_ALL_TOPIC": Alias("ingest.topic", _same),
    "TB_KAFKA_MSG_ALL_TOPIC_PROPERTIES": Alias("ingest.properties", _same),
    "MQTT_MAX_IN_FLIGHT_MSGS": Alias("limits.receive_maximum", _same),
    "MQTT_FLOW_CONTROL_DELAYED_QUEUE_MAX_SIZE": Alias("limits.max_queued_messages", _same),
    "MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC": Alias("limits.max_keep_alive", _same),
    "MQTT_TOPIC_ALIAS_MAX": Alias("limits.topic_alias_maximum", _same),
    "MQTT_CLIENT_SESSION_EXPIRY_MAX_EXPIRY_INTERVAL": Alias("limits.max_session_expiry", _same),
    "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE": Alias("mqtt.shared_strategy", _strategy),
    "TB_APP_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT": Alias("application.pack_timeout", _milliseconds, "in ms"),
    "TB_APP_PERSISTED_MSG_ACK_STRATEGY_TYPE": Alias("application.ack_strategy", _strategy),
    "TB_APP_PERSISTED_MSG_ACK_STRATEGY_RETRIES": Alias("application.retries", _same),
    "TB_APP_PERSISTED_MSG_CLIENT_ID_VALIDATION": Alias("application.client_id_validation", _same),
    "TB_APP_PERSISTED_MSG_SHARED_TOPIC_VALIDATION": Alias("application.shared_topic_validation", _same),
    "TB_KAFKA_APP_PERSISTED_MSG_TOPIC_PROPERTIES": Alias("application.topic_properties", _same),
    "TB_KAFKA_APP_PERSISTED_MSG_SHARED_TOPIC_PROPERTIES": Alias("application.shared_topic_properties", _same),
    "TB_KAFKA_APP_PERSISTED_MSG_ADDITIONAL_CONSUMER_CONFIG": Alias(
        "application.max_poll_records", _max_poll_records, "max.poll.records:NUMBER and nothing else"
    ),
    "TB_KAFKA_APP_PERSISTED_MSG_SHARED_ADDITIONAL_CONSUMER_CONFIG": Alias(
        "application.shared_max_poll_records", _max_poll_records, "max.poll.records:NUMBER and nothing else"
    ),
    "MQTT_APP_MSG_WRITE_AND_FLUSH": Alias("application.write_and_flush", _same),
    "MQTT_APP_BUFFERED_MSG_COUNT": Alias("application.buffered_messages", _same),
    **{name: Alias(key, _same) for name, key in {**DEVICE_NAMES, **RATE_NAMES}.items()},
}

# Names without effect here, and why. The broker warns about them and starts.
MEANINGLESS = {
    **dict.fromkeys(
        ("MQTT_RATE_LIMITS_THREADS_COUNT", "MQTT_RATE_LIMITS_BATCH_SIZE", "MQTT_RATE_LIMITS_PERIOD_MS"),
        "rate limits are checked for each message when it arrives",
    ),
    "TB_APP_PERSISTED_MSG_POLL_INTERVAL": "consumers are woken by new records, they do not poll at intervals",
    **dict.fromkeys(
        (
            "REDIS_LETTUCE_CMDS_AUTO_FLUSH_ENABLED",
            "REDIS_LETTUCE_BUFFERED_CMDS_COUNT",
            "REDIS_LETTUCE_FLUSH_INTERVAL_MS",
        ),
        "the commands of one loop iteration are always sent together",
    ),
    **dict.fromkeys(
        ("MQTT_PERSISTENT_MSG_WRITE_AND_FLUSH", "MQTT_PERSISTENT_BUFFERED_MSG_COUNT"),
        "all messages for a client in one loop iteration are always written together",
    ),
    **dict.fromkeys(
        ("TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC", "TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC_PROPERTIES"),
        "messages of DEVICE clients have no topic of their own, they are read from ingest.topic",
    ),
    **dict.fromkeys(
        (
            "TB_DEVICE_PERSISTED_MSG_CONSUMERS_COUNT",
            "TB_DEVICE_PERSISTED_MSG_THREADS_COUNT",
            "TB_DEVICE_PERSISTED_MSG_POLL_INTERVAL",
        ),
        "messages go from ingest.topic straight into the store of DEVICE clients",
    ),
    **dict.fromkeys(
        (
            "TB_DEVICE_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_TYPE",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_RETRIES",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_PAUSE_BETWEEN_RETRIES",
        ),
        "an addition to the store of DEVICE clients is retried until it succeeds",
    ),
    "TB_MSG_ALL_CONSUMERS_COUNT": "a broker reads all its partitions with one consumer",
    **dict.fromkeys(
        (
            "TB_MSG_ALL_PACK_PROCESSING_TIMEOUT",
            "TB_MSG_ALL_ACK_STRATEGY_TYPE",
            "TB_MSG_ALL_ACK_STRATEGY_RETRIES",
        ),
        "storing a message for a client is retried until it succeeds",
    ),
    "TB_KAFKA_PERSISTED_DOWNLINK_MSG_TOPIC_PREFIX": "brokers have no downlink topics, each reads ingest.topic itself",
    "MQTT_PRE_CONNECT_QUEUE_MAX_SIZE": "nothing more is read from a client until its CONNECT is answered",
    "MQTT_FLOW_CONTROL_ENABLED": "the Receive Maximum of a client is always obeyed",
    "MQTT_FLOW_CONTROL_TIMEOUT": "a waiting message is sent as soon as an acknowledgement makes room",
    "MQTT_FLOW_CONTROL_TTL": "a waiting message is dropped when it expires or its queue is full, not by age",
    "MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX": "limits.max_inflight is for clients of every version",
    "MQTT_CLIENT_SESSION_EXPIRY_CRON": "a session ends when it expires, without a scheduled job",
    "MQTT_CLIENT_SESSION_EXPIRY_TTL": "limits.max_session_expiry is for sessions of MQTT 3.x, too",
    "MQTT_TOPIC_MIN_LENGTH_FOR_ALIAS_REPLACEMENT": "every topic for which an alias is shorter may get one",
}

# Sections that had another name, and where their keys are now; the longest beginning counts. Old names still work, and
# the broker says at its start what they are called now. Their keys were written with hyphens.
RENAMED = {
    "queue.cluster.changes": "services.changes",
    "queue.cluster": "cluster",
    "queue": "services",
    "queue_manager": "durable_queues",
}
OLD_SECTIONS = ("queue", "queue_manager")
KAFKA_OF_QUEUE = "queue.kafka."
# Below `queue.kafka`, names of Kafka's Java client; any other name there is a property for all clients.
KAFKA_KEYS_OF_QUEUE = {
    "bootstrap.servers": "bootstrap_servers",
    "replication_factor": "replication_factor",
    "acks": "acks",
    "retries": "retries",
    "compression.type": "compression_type",
    "batch.size": "batch_size",
    "linger.ms": "linger_ms",
    "buffer.memory": "buffer_memory",
    "max.request.size": "max_request_size",
    "max.in.flight.requests.per.connection": "max_in_flight",
    "request.timeout.ms": "request_timeout_ms",
    "auto.offset.reset": "auto_offset_reset",
    "session.timeout.ms": "session_timeout_ms",
    "max.poll.records": "max_poll_records",
    "max.poll.interval.ms": "max_poll_interval_ms",
    "max.partition.fetch.bytes": "max_partition_fetch_bytes",
    "fetch.max.bytes": "fetch_max_bytes",
}
SSL_ENABLED = "ssl.enabled"
TEXTS_BY_TOPIC = "queue.topic-properties."  # whose entries are names of topics, which may have hyphens


def current(dotted: str, value: object) -> tuple[str, object]:
    """Return the name that a setting has now, and its value under that name."""
    if dotted.startswith(KAFKA_OF_QUEUE):
        return _from_kafka_of_queue(dotted.removeprefix(KAFKA_OF_QUEUE), value)
    for old, new in RENAMED.items():
        if dotted == old or dotted.startswith(f"{old}."):
            rest = dotted[len(old) :]
            if dotted.startswith(TEXTS_BY_TOPIC):
                return f"services.topic_properties.{dotted.removeprefix(TEXTS_BY_TOPIC)}", value
            return new + rest.replace("-", "_"), _without_hyphens(value)
    return dotted, value


def _from_kafka_of_queue(name: str, value: object) -> tuple[str, object]:
    if name in KAFKA_KEYS_OF_QUEUE:
        return f"kafka.{KAFKA_KEYS_OF_QUEUE[name]}", value
    if name == SSL_ENABLED:
        return "kafka.common.security.protocol", "ssl" if str(value).lower() == "true" else "plaintext"
    return f"kafka.common.{name}", str(value).lower() if isinstance(value, bool) else str(value)


def _without_hyphens(value: object) -> object:
    """Rename the keys of tables in a list, such as the queues of the rule engines."""
    if isinstance(value, list):
        return [_without_hyphens(entry) for entry in value]
    if isinstance(value, dict):
        return {name.replace("-", "_"): _without_hyphens(entry) for name, entry in value.items()}
    return value
