"""Environment names of the documents the broker was designed from, accepted for the settings they mean here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.settings.application import max_poll_records
from penstock.settings.kafka import ENVIRONMENT_ALIASES
from penstock.settings.rates import ENVIRONMENT_ALIASES as RATE_ALIASES
from penstock.settings.redis import ENVIRONMENT_ALIASES as DEVICE_ALIASES


class Alias(NamedTuple):
    """What an alias sets, and how its text becomes the text of ours; a text that cannot is a ValueError."""

    key: str
    translate: Callable[[str], str]
    note: str = ""  # how its text differs from ours, for the reference


def _same(text: str) -> str:
    return text


def _kilobytes(text: str) -> str:
    # A bare number is in KB there; with a unit it already says what it is.
    return f"{text.strip()}KB" if text.strip().isdigit() else text


def _milliseconds(text: str) -> str:
    return f"{text.strip()}ms" if text.strip().isdigit() else text


def _strategy(text: str) -> str:
    return text.strip().lower().replace("_", "-")


# Our own PENSTOCK_ names win over these.
ALIASES = {
    **{name: Alias(f"kafka.{setting}", _same) for name, setting in ENVIRONMENT_ALIASES.items()},
    "NETTY_WRITE_BUFFER_HIGH_WATER_MARK": Alias("limits.write_high_watermark", _kilobytes, "in KB"),
    "NETTY_WRITE_BUFFER_LOW_WATER_MARK": Alias("limits.write_low_watermark", _kilobytes, "in KB"),
    "TB_KAFKA_PREFIX": Alias("queue.prefix", _same),
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
        "application.max_poll_records", max_poll_records, "max.poll.records:NUMBER and nothing else"
    ),
    "TB_KAFKA_APP_PERSISTED_MSG_SHARED_ADDITIONAL_CONSUMER_CONFIG": Alias(
        "application.shared_max_poll_records", max_poll_records, "max.poll.records:NUMBER and nothing else"
    ),
    "MQTT_APP_MSG_WRITE_AND_FLUSH": Alias("application.write_and_flush", _same),
    "MQTT_APP_BUFFERED_MSG_COUNT": Alias("application.buffered_messages", _same),
    **{name: Alias(setting, _same) for name, setting in {**DEVICE_ALIASES, **RATE_ALIASES}.items()},
}

# Names that mean nothing here, and why: whoever sets one is told, and the broker starts.
MEANINGLESS = {
    **dict.fromkeys(
        ("MQTT_RATE_LIMITS_THREADS_COUNT", "MQTT_RATE_LIMITS_BATCH_SIZE", "MQTT_RATE_LIMITS_PERIOD_MS"),
        "rate limits are looked at for each message, where it comes in",
    ),
    "TB_APP_PERSISTED_MSG_POLL_INTERVAL": "consumers are woken by new records, they do not poll at intervals",
    **dict.fromkeys(
        (
            "REDIS_LETTUCE_CMDS_AUTO_FLUSH_ENABLED",
            "REDIS_LETTUCE_BUFFERED_CMDS_COUNT",
            "REDIS_LETTUCE_FLUSH_INTERVAL_MS",
        ),
        "the commands of one turn of the loop are always sent together",
    ),
    **dict.fromkeys(
        ("MQTT_PERSISTENT_MSG_WRITE_AND_FLUSH", "MQTT_PERSISTENT_BUFFERED_MSG_COUNT"),
        "what one turn of the loop has for a client is always written together",
    ),
    **dict.fromkeys(
        ("TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC", "TB_KAFKA_DEVICE_PERSISTED_MSG_TOPIC_PROPERTIES"),
        "messages of DEVICE clients have no topic of their own, they are stored out of ingest.topic",
    ),
    **dict.fromkeys(
        (
            "TB_DEVICE_PERSISTED_MSG_CONSUMERS_COUNT",
            "TB_DEVICE_PERSISTED_MSG_THREADS_COUNT",
            "TB_DEVICE_PERSISTED_MSG_POLL_INTERVAL",
        ),
        "no consumer stands between ingest.topic and the store of DEVICE clients",
    ),
    **dict.fromkeys(
        (
            "TB_DEVICE_PERSISTED_MSG_PACK_PROCESSING_TIMEOUT",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_TYPE",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_RETRIES",
            "TB_DEVICE_PERSISTED_MSG_ACK_STRATEGY_PAUSE_BETWEEN_RETRIES",
        ),
        "what the store of DEVICE clients does not take is tried again until it does",
    ),
    "TB_MSG_ALL_CONSUMERS_COUNT": "a broker reads all its partitions with one consumer",
    **dict.fromkeys(
        (
            "TB_MSG_ALL_PACK_PROCESSING_TIMEOUT",
            "TB_MSG_ALL_ACK_STRATEGY_TYPE",
            "TB_MSG_ALL_ACK_STRATEGY_RETRIES",
        ),
        "what cannot be stored for a client is tried again until it can",
    ),
    "TB_KAFKA_PERSISTED_DOWNLINK_MSG_TOPIC_PREFIX": "brokers have no downlink topics, each reads ingest.topic itself",
    "MQTT_PRE_CONNECT_QUEUE_MAX_SIZE": "nothing more is read from a client until its CONNECT is answered",
    "MQTT_FLOW_CONTROL_ENABLED": "the Receive Maximum of a client is always obeyed",
    "MQTT_FLOW_CONTROL_TIMEOUT": "what waits is sent as soon as an acknowledgement makes room",
    "MQTT_FLOW_CONTROL_TTL": "what waits goes when it expires or its queue is full, not by its age",
    "MQTT_FLOW_CONTROL_MQTT_3X_RECEIVE_MAX": "limits.max_inflight is for clients of every version",
    "MQTT_CLIENT_SESSION_EXPIRY_CRON": "a session ends at its time, nobody has to come by",
    "MQTT_CLIENT_SESSION_EXPIRY_TTL": "limits.max_session_expiry is for sessions of MQTT 3.x, too",
    "MQTT_TOPIC_MIN_LENGTH_FOR_ALIAS_REPLACEMENT": "every topic for which an alias is shorter may get one",
}
