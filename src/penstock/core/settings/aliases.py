"""Environment names of the documents the broker was designed from, accepted for the settings they mean here."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.core.settings.kafka import ENVIRONMENT_ALIASES


class Alias(NamedTuple):
    """What an alias sets, and how its text becomes the text of ours."""

    key: str
    translate: Callable[[str], str]


def _same(text: str) -> str:
    return text


def _kilobytes(text: str) -> str:
    # A bare number is in KB there; with a unit it already says what it is.
    return f"{text.strip()}KB" if text.strip().isdigit() else text


def _strategy(text: str) -> str:
    return text.strip().lower().replace("_", "-")


# Our own PENSTOCK_ names win over these.
ALIASES = {
    **{name: Alias(f"kafka.{setting}", _same) for name, setting in ENVIRONMENT_ALIASES.items()},
    "NETTY_WRITE_BUFFER_HIGH_WATER_MARK": Alias("limits.write_high_watermark", _kilobytes),
    "NETTY_WRITE_BUFFER_LOW_WATER_MARK": Alias("limits.write_low_watermark", _kilobytes),
    "TB_KAFKA_MSG_ALL_TOPIC": Alias("ingest.topic", _same),
    "TB_KAFKA_MSG_ALL_TOPIC_PROPERTIES": Alias("ingest.properties", _same),
    "MQTT_MAX_IN_FLIGHT_MSGS": Alias("limits.max_inflight", _same),
    "MQTT_KEEP_ALIVE_MAX_KEEP_ALIVE_SEC": Alias("limits.max_keep_alive", _same),
    "MQTT_TOPIC_ALIAS_MAX": Alias("limits.topic_alias_maximum", _same),
    "MQTT_CLIENT_SESSION_EXPIRY_MAX_EXPIRY_INTERVAL": Alias("limits.max_session_expiry", _same),
    "MQTT_SHARED_SUBSCRIPTIONS_PROCESSING_TYPE": Alias("mqtt.shared_strategy", _strategy),
}
