"""Kafka as the log, through confluent-kafka (librdkafka)."""

from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.kafka.log import KafkaLog

__all__ = ["KafkaLog", "KafkaSettings"]
