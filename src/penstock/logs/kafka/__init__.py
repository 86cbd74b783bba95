"""Kafka as the log, through confluent-kafka (librdkafka)."""

from penstock.logs.kafka.log import KafkaLog
from penstock.logs.kafka.settings import ENVIRONMENT_ALIASES, KafkaSettings

__all__ = ["ENVIRONMENT_ALIASES", "KafkaLog", "KafkaSettings"]
