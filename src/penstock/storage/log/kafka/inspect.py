"""A Kafka looked at for `penstock doctor`: who answers, and how safe the topics of one installation are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import LogUnavailable
from penstock.storage.log.kafka.admin import SAFE_COPIES, SAFE_IN_SYNC
from penstock.storage.log.kafka.clients import settings_error
from penstock.storage.log.kafka.reasons import Reasons
from penstock.storage.log.kafka.settings import admin_config

SECONDS = 5.0
MOST_TOPICS = 500
_UNREACHABLE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT, KafkaError._ALL_BROKERS_DOWN)


class TopicReport(NamedTuple):
    """`in_sync` and `copies` are those of the worst partition; a retention of -1 is for ever."""

    name: str
    partitions: int
    copies: int
    in_sync: int
    min_in_sync: int
    retention_ms: int
    is_compacted: bool

    @property
    def is_safe(self) -> bool:
        return self.copies >= SAFE_COPIES and self.min_in_sync >= SAFE_IN_SYNC


class KafkaReport(NamedTuple):
    brokers: int
    topics: list[TopicReport]
    left_out: int


def inspect(settings: KafkaSettings, prefix: str) -> KafkaReport:
    """Blocks; changes nothing. Raises LogUnavailable and SettingsError."""
    reasons = Reasons(settings.bootstrap_servers)
    properties: dict[str, Any] = {**admin_config(settings), "log_level": 0, "error_cb": reasons.note}
    try:
        client = AdminClient(properties)
    except KafkaException as error:
        raise settings_error(error) from None
    try:
        metadata = client.list_topics(timeout=SECONDS)
        names = sorted(name for name in metadata.topics if name.startswith(prefix))
        configs = _configs(client, names[:MOST_TOPICS])
    except KafkaException as error:
        raise _explain(error.args[0], client, reasons) from None
    except TimeoutError:
        raise LogUnavailable(f"Kafka at {settings.bootstrap_servers} does not describe its topics in time") from None
    topics = []
    for name in names[:MOST_TOPICS]:
        partitions = metadata.topics[name].partitions.values()
        config = configs[name]
        topics.append(
            TopicReport(
                name,
                len(partitions),
                min((len(each.replicas) for each in partitions), default=0),
                min((len(each.isrs) for each in partitions), default=0),
                int(config.get("min.insync.replicas", "1")),
                int(config.get("retention.ms", "-1")),
                "compact" in config.get("cleanup.policy", ""),
            )
        )
    return KafkaReport(len(metadata.brokers), topics, max(0, len(names) - MOST_TOPICS))


def _explain(error: KafkaError, client: AdminClient, reasons: Reasons) -> LogUnavailable:
    if error.code() not in _UNREACHABLE:
        return LogUnavailable(f"{reasons.at}: {error.str()}", "does its ACL let this user look at topics?")
    client.poll(0)  # what was heard of the brokers meanwhile says more
    reason = reasons.explain()
    return LogUnavailable(reason.what, reason.advice)


def _configs(client: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    answers = client.describe_configs(resources, request_timeout=SECONDS)
    return {
        resource.name: {name: entry.value or "" for name, entry in answer.result(SECONDS).items()}
        for resource, answer in answers.items()
    }
