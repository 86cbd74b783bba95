"""How each queue of the table is processed: the strategies and the time of a pack, from the settings."""

from __future__ import annotations

from penstock.services.model import CALCULATED_FIELDS, EDGE, HOUSEKEEPER, QueueKey, ServiceType
from penstock.services.packs.queues import PackQueue
from penstock.services.topics import default_queues
from penstock.settings.services import (
    ChangeSettings,
    HousekeeperSettings,
    NotificationSettings,
    RuleEngineQueue,
    ServiceSettings,
)

CORE_PACK_SECONDS = 2.0
EDGE_PACK_SECONDS = 10.0
VERSION_CONTROL_PACK_SECONDS = 180.0
CALCULATED_FIELDS_PACK_SECONDS = 60.0


def pack_queues(settings: ServiceSettings) -> dict[QueueKey, PackQueue]:
    """The system's queues; those of an isolated tenant are processed alike."""
    rule_engine = {queue.name: queue for queue in settings.rule_engine.queues}
    found: dict[QueueKey, PackQueue] = {}
    for queue in default_queues(settings):
        if queue.key.service_type is ServiceType.TB_RULE_ENGINE and queue.key.queue in rule_engine:
            options = rule_engine[queue.key.queue]
            found[queue.key] = _of(options, queue.key.queue, queue.topic, queue.partitions)
        elif queue.key.queue == HOUSEKEEPER:
            found[queue.key] = _of(settings.core.housekeeper, queue.topic, queue.topic, queue.partitions)
        else:
            seconds = _pack_seconds(queue.key)
            found[queue.key] = PackQueue(str(queue.key), queue.topic, queue.partitions, pack_seconds=seconds)
    return found


def notification_queue(settings: ServiceSettings, topic: str) -> PackQueue:
    """Of one instance: what it is told comes in one partition."""
    return _of(settings.notifications, topic, topic)


def change_queue(settings: ServiceSettings, name: str) -> PackQueue:
    """Of what others have changed and this instance follows, in memory."""
    return _of(settings.changes, name, name)


def _of(
    options: RuleEngineQueue | NotificationSettings | ChangeSettings | HousekeeperSettings,
    name: str,
    topic: str,
    partitions: int = 1,
) -> PackQueue:
    return PackQueue(
        name,
        topic,
        partitions,
        pack_seconds=options.pack_seconds,
        submit=options.submit_strategy,
        ack=options.processing_strategy,
    )


def _pack_seconds(key: QueueKey) -> float:
    if key.service_type is ServiceType.TB_VC_EXECUTOR:
        return VERSION_CONTROL_PACK_SECONDS
    if key.queue == CALCULATED_FIELDS:
        return CALCULATED_FIELDS_PACK_SECONDS
    return EDGE_PACK_SECONDS if key.queue == EDGE else CORE_PACK_SECONDS
