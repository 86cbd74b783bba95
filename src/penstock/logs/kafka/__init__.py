"""Kafka as the log, through confluent-kafka (librdkafka)."""

from penstock.core.settings.kafka import ENVIRONMENT_ALIASES, KafkaSettings
from penstock.logs.kafka.log import KafkaLog

__all__ = ["ENVIRONMENT_ALIASES", "KafkaLog", "KafkaSettings"]
