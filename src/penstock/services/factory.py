"""Producers, consumers and request channels for a service, on whatever log it was given.

A role says what a kind of service sends, reads and asks; the factory gives nothing else. A process that is several
kinds of service at once (a monolith) has all their roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from penstock.core.errors import PenstockError
from penstock.services.channels import (
    REQUEST_LIMITS,
    InstanceChannel,
    RequestChannel,
    instance_channel,
    topic_properties,
)
from penstock.services.consumer import OnUndecodable, QueueConsumer
from penstock.services.consumers import ConsumerManager, ConsumerOptions, Handler
from penstock.services.discovery import Claims
from penstock.services.model import MAIN, QueueKey, ServiceType, TopicPartitionInfo
from penstock.services.names import (
    edge_events_topic,
    group_name,
    notifications_group,
    notifications_topic,
    responses_group,
    responses_topic,
    topic_name,
)
from penstock.services.packs.changes import Changes
from penstock.services.packs.processor import Decode, PackProcessor, decode_queue_message
from penstock.services.packs.processor import Handler as PackHandler
from penstock.services.packs.queues import PackQueue
from penstock.services.processing import change_queue, notification_queue, pack_queues
from penstock.services.producer import QueueProducer
from penstock.services.service import HashPartitionService
from penstock.services.topic_creator import TopicCreator
from penstock.services.topics import EDGE_EVENTS, INSTANCE_CHANNELS
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Log

CORE, RULE_ENGINE, TRANSPORT = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE, ServiceType.TB_TRANSPORT
VERSION_CONTROL, TASKS = ServiceType.TB_VC_EXECUTOR, ServiceType.TASK_PROCESSOR
NOTIFICATION_POLL_SECONDS = 5.0
NOTIFICATION_STOP_SECONDS = 1.0
PACK_COUNTS = {
    "totalMsgs": "messages",
    "successfulMsgs": "successful",
    "timeoutMsgs": "timed_out",
    "failedMsgs": "failed",
    "tmpTimeout": "retried_timed_out",
    "tmpFailed": "retried_failed",
    "successfulIterations": "rounds_successful",
    "failedIterations": "rounds_failed",
    "lateMsgs": "late",
    "undecodableMsgs": "undecodable",
    "deadLetterFailures": "dead_letter_failures",
}
"""The names of the compatible original, and what they are called among the broker's counters."""


class NotOfThisService(PenstockError):
    """A service asked its factory for something that its kind has nothing to do with."""


@dataclass(frozen=True, slots=True)
class Role:
    sends_to: frozenset[ServiceType]
    """Queues and notifications of these kinds."""
    asks: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()
    """Request channels: `js`, `transport-api`, `edqs`."""
    calls: frozenset[str] = frozenset()
    """Channels to single instances of the same kind: `sessions`, `data-subscription`."""


ROLES: dict[ServiceType, Role] = {
    CORE: Role(
        frozenset([CORE, RULE_ENGINE, TRANSPORT, VERSION_CONTROL, ServiceType.EDQS, TASKS]),
        asks=frozenset(["js", "edqs"]),
        answers=frozenset(["transport-api"]),
        calls=frozenset(INSTANCE_CHANNELS),
    ),
    RULE_ENGINE: Role(
        frozenset([CORE, RULE_ENGINE, TRANSPORT, ServiceType.EDQS, TASKS]), asks=frozenset(["js", "edqs"])
    ),
    TRANSPORT: Role(frozenset([CORE, RULE_ENGINE]), asks=frozenset(["transport-api"])),
    ServiceType.JS_EXECUTOR: Role(frozenset(), answers=frozenset(["js"])),
    VERSION_CONTROL: Role(frozenset([CORE])),
    ServiceType.EDQS: Role(frozenset([ServiceType.EDQS]), answers=frozenset(["edqs"])),
    TASKS: Role(frozenset([CORE, TASKS])),
}


class QueueFactory:
    def __init__(
        self,
        log: Log,
        settings: ServiceSettings,
        partitions: HashPartitionService,
        *,
        claims: Claims | None = None,
        on_undecodable: OnUndecodable | None = None,
    ) -> None:
        self._log = log
        self._settings = settings
        self.partitions = partitions
        self._claims = claims
        self._on_undecodable = on_undecodable
        self._service_id = partitions.me.service_id
        self._service_types = partitions.me.service_types
        self._roles = [ROLES[service_type] for service_type in sorted(self._service_types)]
        self._ensure_topic = TopicCreator(log, settings)
        self._pack_queues = pack_queues(settings)
        self._processors: dict[str, PackProcessor] = {}

    # Sending

    def producer(self, service_type: ServiceType, queue: str = MAIN) -> QueueProducer:
        """For a queue of a kind of service; where a message goes is `partitions.resolve(…)`."""
        self._check(any(service_type in role.sends_to for role in self._roles), f"send to queues of {service_type}")
        found = self.partitions.queue(QueueKey(service_type, queue))
        self._check(found is not None, f"send to {service_type}/{queue}, which is not configured")
        assert found is not None
        return self._producer(found.topic)

    async def make_topics(self, key: QueueKey) -> None:
        """All partitions of a queue, before the first message: it need not wait for its topic then. Raises LogError."""
        for info in self.partitions.partitions(key):
            if (creation := self._ensure_topic(info)) is not None:
                await creation

    def notifications_producer(self, service_type: ServiceType) -> QueueProducer:
        """Where a message goes is `partitions.notifications(service_type, service_id)`."""
        self._check(any(service_type in role.sends_to for role in self._roles), f"notify {service_type}")
        return self._producer(self.partitions.notifications(service_type, self._service_id).topic)

    def topic_producer(self, base: str) -> QueueProducer:
        """For a topic of the table that is no queue of its own: usage statistics, housekeeping and such."""
        return self._producer(topic_name(base, prefix=self._settings.prefix))

    def _producer(self, topic: str) -> QueueProducer:
        return QueueProducer(
            self._log, topic, self._service_id, self._ensure_topic, max_message_size=self._settings.max_message_size
        )

    # Reading

    def consumer(self, key: QueueKey, partition: int | None = None) -> QueueConsumer:
        """For a queue of this service: all of its partitions that are mine, or one of them."""
        self._check(key.service_type in self._service_types, f"consume {key}")
        queue = self.partitions.queue(key)
        self._check(queue is not None, f"consume {key}, which is not configured")
        assert queue is not None
        mine = self.partitions.my_partitions(key)
        own = mine if partition is None else {info for info in mine if info.partition == partition}
        return self._consumer(queue.topic, self.group(key, partition), own)

    def manager(self, key: QueueKey, handler: Handler, options: ConsumerOptions | None = None) -> ConsumerManager:
        """Consumers that follow the partitions of a queue; connect `update` with PartitionChange."""
        self._check(key.service_type in self._service_types, f"consume {key}")
        return ConsumerManager(
            self._log,
            lambda info: self.group(key, info.partition if info is not None else None),
            handler,
            options,
            claims=self._claims,
            ensure_topic=self._ensure_topic,
        )

    def topic_manager(
        self, base: str, service_type: ServiceType, handler: Handler, options: ConsumerOptions | None = None
    ) -> ConsumerManager:
        """Of a topic of the table that is no queue of its own; from `update` with `topic(base)` on."""
        self._check(service_type in self._service_types, f"consume {base}")
        group = group_name(service_type, base, prefix=self._settings.prefix)
        return ConsumerManager(
            self._log, lambda _: group, handler, options, claims=self._claims, ensure_topic=self._ensure_topic
        )

    def topic(self, base: str) -> TopicPartitionInfo:
        """A topic of the table that has one partition."""
        return TopicPartitionInfo(
            topic_name(base, prefix=self._settings.prefix), partition=0, use_internal_partition=True
        )

    def edge_notifications(self, service_id: str) -> TopicPartitionInfo:
        """What only this core service can do for its edges."""
        topic = notifications_topic(self._settings.edge.topic, service_id, prefix=self._settings.prefix)
        return TopicPartitionInfo(topic, my_partition=service_id == self._service_id)

    def edge_events(self, tenant: UUID, edge: UUID) -> TopicPartitionInfo:
        return TopicPartitionInfo(edge_events_topic(EDGE_EVENTS, tenant, edge, prefix=self._settings.prefix))

    def notifications_consumer(self, service_type: ServiceType) -> QueueConsumer:
        self._check(service_type in self._service_types, f"read notifications of {service_type}")
        info = self.partitions.notifications(service_type, self._service_id)
        group = notifications_group(service_type, self._service_id, prefix=self._settings.prefix)
        return self._consumer(info.topic, group, [info])

    def _consumer(self, topic: str, group: str, partitions: Iterable[TopicPartitionInfo]) -> QueueConsumer:
        return QueueConsumer(
            self._log,
            topic,
            group,
            partitions,
            ensure_topic=self._ensure_topic,
            on_undecodable=self._on_undecodable,
        )

    def group(self, key: QueueKey, partition: int | None = None) -> str:
        tenant: UUID | None = key.tenant if key.is_isolated else None
        return group_name(key.service_type, key.queue, prefix=self._settings.prefix, tenant=tenant, partition=partition)

    # Handling

    def processor(self, key: QueueKey, handler: PackHandler, decode: Decode = decode_queue_message) -> PackProcessor:
        """Hands the messages of a queue of this service to a handler that may fail, as the settings of the queue say;
        its `process` is what `manager` wants."""
        self._check(key.service_type in self._service_types, f"process {key}")
        queue = self._pack_queues.get(key.of_system())
        self._check(queue is not None, f"process {key}, which is not configured")
        assert queue is not None
        return self._processor(queue, handler, decode)

    def notifications_manager(
        self, service_type: ServiceType, handler: PackHandler, decode: Decode = decode_queue_message
    ) -> ConsumerManager:
        """Hands what this instance is told to the handler, as `services.notifications` says, from `update` with
        `partitions.notifications(…)` of this instance on."""
        self._check(service_type in self._service_types, f"read notifications of {service_type}")
        topic = self.partitions.notifications(service_type, self._service_id).topic
        group = notifications_group(service_type, self._service_id, prefix=self._settings.prefix)
        base = topic.removesuffix(f".{self._service_id}")
        processor = self._processor(notification_queue(self._settings, base), handler, decode)
        # Nobody else reads them, so nothing is claimed.
        options = ConsumerOptions(poll_seconds=NOTIFICATION_POLL_SECONDS, stop_seconds=NOTIFICATION_STOP_SECONDS)
        return ConsumerManager(self._log, lambda _: group, processor.process, options, ensure_topic=self._ensure_topic)

    def changes(self, name: str, handler: PackHandler, decode: Decode) -> Changes:
        """Hands what others have changed to the handler, as `services.changes` says."""
        return Changes(self._processor(change_queue(self._settings, name), handler, decode))

    def _processor(self, queue: PackQueue, handler: PackHandler, decode: Decode) -> PackProcessor:
        processor = self._processors[queue.name] = PackProcessor(queue, handler, decode=decode)
        return processor

    def counters(self) -> dict[str, int]:
        """Of every queue that is processed here, under `pack_<count>_<queue>`."""
        return {
            f"pack_{PACK_COUNTS[name]}_{queue}": count
            for queue, processor in self._processors.items()
            for name, count in processor.counters().items()
        }

    # Requests

    def calls(self, channel: str) -> InstanceChannel:
        """For services of one kind that call each other: `sessions` or `data-subscription`."""
        self._check(any(channel in role.calls for role in self._roles), f"call others over {channel}")
        return instance_channel(self._settings, channel, self._service_id)

    def requests(self, channel: str) -> RequestChannel:
        """For a service that asks: `js`, `transport-api` or `edqs`."""
        self._check(any(channel in role.asks for role in self._roles), f"ask over {channel}")
        return self._channel(channel)

    def responder(self, channel: str) -> RequestChannel:
        """For a service that answers."""
        self._check(any(channel in role.answers for role in self._roles), f"answer requests of {channel}")
        return self._channel(channel)

    def _channel(self, channel: str) -> RequestChannel:
        settings = self._settings
        base, partitions, answering = {
            "js": (settings.js.topic, settings.js.partitions, ServiceType.JS_EXECUTOR),
            "transport-api": (settings.transport_api.topic, settings.transport_api.partitions, CORE),
            "edqs": (settings.edqs.topic, settings.edqs.partitions, ServiceType.EDQS),
        }[channel]
        response_topic = responses_topic(base, self._service_id, prefix=settings.prefix)
        return RequestChannel(
            request_topic=topic_name(f"{base}.requests", prefix=settings.prefix),
            request_partitions=partitions,
            request_group=group_name(answering, f"{channel}-requests", prefix=settings.prefix),
            response_topic=response_topic,
            response_group=responses_group(base, self._service_id, prefix=settings.prefix),
            response_properties=topic_properties(settings, response_topic),
            service_id=self._service_id,
            limits=REQUEST_LIMITS[channel],
        )

    def _check(self, is_allowed: bool, what: str) -> None:
        if not is_allowed:
            kinds = ", ".join(sorted(self._service_types))
            raise NotOfThisService(f"a service of type {kinds} cannot {what}")
