"""Whether Kafka can be reached, from what the clients hear of it."""

from __future__ import annotations

from confluent_kafka import KafkaError

from penstock.core.logging import get_logger

log = get_logger("penstock.logs.kafka")


class Health:
    """Red with a reason, until something succeeds. Written from the loop and from consumers' threads."""

    def __init__(self) -> None:
        self.reason: str | None = "not connected to Kafka yet"
        self.errors = 0

    def on_error(self, error: KafkaError) -> None:
        """librdkafka's error callback. One broker away is its business; all of them away is ours."""
        self.errors += 1
        if error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION, KafkaError._SSL):
            self.mark_down(f"Kafka cannot be reached: {error.str()}")
        else:
            log.debug("kafka client", code=error.name(), reason=error.str())

    def mark_down(self, reason: str) -> None:
        if self.reason is None:
            log.warning("kafka is unavailable", reason=reason)
        self.reason = reason

    def mark_up(self) -> None:
        if self.reason is not None:
            log.info("kafka is available")
        self.reason = None
