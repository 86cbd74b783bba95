"""Checks of settings that only the parts themselves can make."""

from __future__ import annotations

from importlib import import_module

from penstock.broker import providers
from penstock.cluster.cluster import check_node
from penstock.services.log_names import LogNames
from penstock.settings import Settings
from penstock.settings.providers import log_capabilities
from penstock.subscribers.queue.definitions import configured


def check(settings: Settings) -> None:
    """`penstock check-config` and `penstock doctor` ask it, too. Raises SettingsError."""
    can = log_capabilities(settings)
    configured(settings)
    ingest, application = settings.ingest, settings.application
    providers.check_service_topics(settings.services, is_kafka=can.uses_kafka)
    topic = LogNames(settings).ingest_topic
    providers.check_topic("ingest.properties", ingest.properties, topic, ingest.partitions, is_kafka=can.uses_kafka)
    for name, partitions in (("topic_properties", 1), ("shared_topic_properties", application.shared_partitions)):
        providers.check_topic(
            f"application.{name}",
            getattr(application, name),
            "tbmq.msg.app",
            partitions,
            is_kafka=can.uses_kafka,
            is_queue=True,
            largest=settings.kafka.max_request_size,
        )
    if can.is_shared:
        check_node(settings.server.node_id)
    if can.uses_kafka:
        import_module("penstock.storage.log.kafka.clients").check_clients(settings.kafka)
