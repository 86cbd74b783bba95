"""Kafka as the log, through confluent-kafka (librdkafka)."""

from penstock.settings.kafka import ENVIRONMENT_ALIASES, KafkaSettings
from penstock.storage.log.kafka.log import KafkaLog

__all__ = ["ENVIRONMENT_ALIASES", "KafkaLog", "KafkaSettings"]
