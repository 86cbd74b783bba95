"""Whether Kafka can be reached, from what the clients hear of it."""

from __future__ import annotations

import time

from confluent_kafka import KafkaError

from penstock.core.logging import get_logger
from penstock.storage.log.kafka.reasons import Reasons

log = get_logger("penstock.logs.kafka")
# A client that is refused tries again every second: so long after the last time it is not refused any more.
REFUSED_SECONDS = 3.0
REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL)


class Health:
    """Red with a reason, until something succeeds. Written from the loop and from consumers' threads."""

    def __init__(self, servers: str = "") -> None:
        self.reason: str | None = "not connected to Kafka yet"
        self.errors = 0
        self._reasons = Reasons(servers)
        self._told = ""
        self._refused_at = -REFUSED_SECONDS

    def on_error(self, error: KafkaError) -> None:
        """librdkafka's error callback. One broker away is its business; all of them away is ours."""
        self.errors += 1
        self._reasons.note(error)
        if error.code() in REFUSALS:
            self._refused_at = time.monotonic()
        if error.code() == KafkaError._ALL_BROKERS_DOWN or error.code() in REFUSALS:
            self.mark_unreachable()
        else:
            log.debug("kafka client", code=error.name(), reason=error.str())

    def mark_unreachable(self) -> None:
        """For what the clients have heard. The log hears of it again when it is something else."""
        reason = self._reasons.explain()
        self.reason = str(reason)
        if reason.advice != self._told:
            self._told = reason.advice
            log.warning("kafka is unavailable", reason=reason.what, advice=reason.advice)

    def mark_down(self, reason: str) -> None:
        """Kafka is there, and something does not work."""
        if self.reason is None:
            self.reason = self._told = reason
            log.warning("kafka is unavailable", reason=reason)

    def mark_answering(self) -> None:
        """The administrative client gets answers. Others may have other passwords: not while one of them is refused."""
        if time.monotonic() - self._refused_at > REFUSED_SECONDS:
            self.mark_up()

    def mark_up(self) -> None:
        if self.reason is not None:
            log.info("kafka is available")
        self.reason, self._told = None, ""
        self._reasons.forget()
