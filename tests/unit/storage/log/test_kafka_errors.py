"""What an error of Kafka means to who uses the log."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from penstock.storage.log.base import LogUnavailable, TopicNotFound
from penstock.storage.log.kafka.errors import to_log_error


@pytest.mark.parametrize(
    "code",
    [
        KafkaError._TRANSPORT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
    ],
)
def test_what_a_change_of_leaders_causes_passes(code: int) -> None:
    """After a restart a broker may know less of its partitions than who asks it."""
    assert type(to_log_error(KafkaException(KafkaError(code)), "read")) is LogUnavailable


def test_what_does_not_pass() -> None:
    assert type(to_log_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "read")) is TopicNotFound
    for code in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED):
        refused = to_log_error(KafkaError(code), "read")
        assert not refused.is_retryable
        assert "docs/kafka-security.md names the rights" in refused.hint
