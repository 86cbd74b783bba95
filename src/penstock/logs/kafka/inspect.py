"""A Kafka looked at for `penstock doctor`: who answers, and how safe the topics of one installation are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType

from penstock.core.settings.kafka import KafkaSettings
from penstock.logs.base import LogUnavailable
from penstock.logs.kafka.admin import SAFE_COPIES, SAFE_IN_SYNC
from penstock.logs.kafka.clients import settings_error
from penstock.logs.kafka.settings import Property, admin_config

SECONDS = 5.0
MOST_TOPICS = 500
# librdkafka takes the first four bytes of anything for the length of an answer.
_LENGTH = re.compile(r"Invalid response size (-?\d+)")
# The name of the connection in front, its state behind: for who looks into librdkafka.
_FRAME = re.compile(r"^\S+/bootstrap: | \(after \d+ms in state .*\)$")


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
    heard: list[KafkaError] = []
    # Its stub says that a property is no function.
    properties = cast(dict[str, Property], {**admin_config(settings), "log_level": 0, "error_cb": heard.append})
    try:
        client = AdminClient(properties)
    except KafkaException as error:
        raise settings_error(error) from None
    try:
        metadata = client.list_topics(timeout=SECONDS)
        names = sorted(name for name in metadata.topics if name.startswith(prefix))
        configs = _configs(client, names[:MOST_TOPICS])
    except KafkaException as error:
        client.poll(0)  # what was heard meanwhile says more than that it failed
        why, advice = explain(error.args[0], heard)
        raise LogUnavailable(f"Kafka at {settings.bootstrap_servers}: {why}", advice) from None
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


def explain(failure: KafkaError, heard: Sequence[KafkaError]) -> tuple[str, str]:
    """Why nobody answered as Kafka does, and what to do. `heard` is what librdkafka has told about connections."""
    told = [each for each in heard if each.code() != KafkaError._ALL_BROKERS_DOWN]
    for each in told:
        if sent := _LENGTH.search(each.str()):
            beginning = int(sent[1]).to_bytes(4, "big", signed=True)
            return f"what answers there is no Kafka: it sent {beginning!r}", (
                "kafka.bootstrap_servers names another service, or another one of its ports: write where Kafka listens "
                "(9092); where that is TLS, set kafka.common security.protocol"
            )
    if told:
        return _FRAME.sub("", told[-1].str()), "is it running, and kafka.bootstrap_servers right?"
    if failure.code() != KafkaError._TRANSPORT:
        return failure.str(), "is it running, and kafka.bootstrap_servers right?"
    if heard:
        return "it closes connections without an answer", (
            "does Kafka listen there? If it wants TLS or a login, set security.protocol and sasl.* in kafka.common"
        )
    return f"no answer in {SECONDS:g} s", (
        "does it hang, does something on the way drop packets, or does another service listen there?"
    )


def _configs(client: AdminClient, names: Sequence[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    if not resources:
        return {}
    answers = client.describe_configs(resources, request_timeout=SECONDS)
    return {
        resource.name: {name: entry.value or "" for name, entry in answer.result(SECONDS).items()}
        for resource, answer in answers.items()
    }
