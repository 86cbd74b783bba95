"""Makes the providers that the settings name: the logs and the stores, for the composition root."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import cast

from penstock.core.errors import SettingsError
from penstock.core.plugins import load_plugin
from penstock.core.ports import Scheduler
from penstock.services.housekeeper import Housekeeper
from penstock.services.log_names import LogNames
from penstock.services.node import ClusterNode
from penstock.services.topics import check_services
from penstock.settings import Settings
from penstock.settings.providers import LOGS, log_capabilities
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Log, LogError, parse_properties
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.memory import MemoryLog
from penstock.storage.log.topics import TopicConfig, check_properties
from penstock.storage.state.base import StateStore
from penstock.storage.state.lmdb import LmdbStateStore
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.storage.state.memory import MemoryStateStore
from penstock.storage.state.topic import StateLog
from penstock.subscribers.device.store.base import DeviceStore
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore


def check_topic(
    key: str, text: str, topic: str, partitions: int, *, is_kafka: bool, is_queue: bool = False, largest: int = 0
) -> None:
    """Raises SettingsError when no topic can be made of these properties. A queue keeps every record, in a number of
    partitions that is a setting of its own or fixed, and takes all that are not larger than `largest`."""
    try:
        properties = parse_properties(text)
        if not is_kafka:
            check_properties(properties)
            TopicConfig.of(topic, partitions, properties)
        if is_queue and "partitions" in properties:
            raise ValueError("the topic of a client has one partition, those of shared ones are shared_partitions")
        if is_queue and "compact" in properties.get("cleanup.policy", ""):
            raise ValueError("compaction removes messages that nobody has received yet")
        if is_kafka and is_queue and int(properties.get("max.message.bytes", largest)) < largest:
            raise ValueError(
                f"records have up to {largest} bytes, kafka.max_request_size, and larger ones would be lost"
            )
    except (ValueError, LogError) as error:
        raise SettingsError(f"{key} = {text!r} is not allowed: {error}") from None


def check_service_topics(services: ServiceSettings, *, is_kafka: bool) -> None:
    """The same of the topics of the queues between services. Raises SettingsError."""
    check_services(services)
    for base, text in services.topic_properties.items():
        check_topic(f'services.topic_properties."{base}"', text, base, 1, is_kafka=is_kafka)


@dataclass(frozen=True, slots=True)
class OpenedLog:
    """A log, and how to close what it was made with; the log itself is closed before."""

    log: Log
    close_rest: Callable[[], None] = lambda: None


def make_log(settings: Settings) -> OpenedLog:
    """The provider of the settings, whether or not they say that publishes are logged."""
    if settings.log.provider not in LOGS:
        return OpenedLog(cast(Log, load_plugin("log.provider", settings.log.provider)(settings)))
    # Publishers wait at the setting; what they had sent before they were stopped still finds room.
    room = 2 * settings.log.max_pending_bytes
    if settings.log.provider == "memory":
        return OpenedLog(MemoryLog(max_pending_bytes=room))
    if settings.log.provider == "kafka":
        # imported here: a broker without Kafka does not wait for its library
        module = import_module("penstock.storage.log.kafka.log")
        return OpenedLog(cast(Log, module.KafkaLog(settings.kafka, copied_topic=LogNames(settings).ingest_topic)))
    store = LmdbStore(Path(settings.server.data_dir) / "state")
    embedded = EmbeddedLog(
        settings.server.data_dir,
        store.space("groups"),
        fsync=settings.log.fsync,
        fsync_interval_ms=round(settings.log.fsync_interval * 1000),
        max_pending_bytes=room,
        maintenance_interval=settings.log.maintenance_interval,
        linger_ms=settings.log.linger_ms,
    )
    return OpenedLog(embedded, store.close)


def make_local_state(settings: Settings, loop: asyncio.AbstractEventLoop) -> StateStore:
    """Sessions, subscriptions and what else is known of clients: on the disk, or gone with the process."""
    can = log_capabilities(settings)
    if can.is_durable and not can.is_shared:
        return LmdbStateStore(Path(settings.server.data_dir) / "clients", loop)
    return MemoryStateStore()


def make_state_store(settings: Settings, log_provider: Log, loop: asyncio.AbstractEventLoop) -> StateStore:
    """The same where there is a log: in Kafka, if that is the log."""
    if log_provider.is_shared:
        return StateLog(log_provider, topic_of=LogNames(settings).of)
    return make_local_state(settings, loop)


def make_device_store(settings: Settings) -> DeviceStore:
    """Where messages wait for DEVICE clients. Without a durable log they wait in memory, as everything does."""
    if settings.device.store == "redis":
        # imported here: a broker without Redis does not wait for its library
        module = import_module("penstock.subscribers.device.store.redis.store")
        return cast(DeviceStore, module.RedisDeviceStore(settings.redis, settings.device))
    return LmdbDeviceStore(Path(settings.server.data_dir) / "devices", settings.device)


def make_node(settings: Settings, log_provider: Log, scheduler: Scheduler) -> ClusterNode:
    """This process as a member of a cluster: alone unless the log is shared."""
    return ClusterNode(
        log_provider,
        settings.services,
        settings.server.node_id,
        scheduler,
        cluster=settings.cluster if log_provider.is_shared else None,
    )


def make_housekeeper(settings: Settings, log_provider: Log, node: ClusterNode) -> Housekeeper:
    options = settings.services.core.housekeeper
    return Housekeeper(node.queues, log_provider, options, is_alone=not log_provider.is_shared)
