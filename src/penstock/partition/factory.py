"""Producers, consumers and request channels for a service, on whatever log it was given.

A role says what a kind of service sends, reads and asks; the factory gives nothing else. A process that is several
kinds of service at once (a monolith) has all their roles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from penstock.core.errors import PenstockError
from penstock.logs.base import Log
from penstock.partition.consumer import OnUndecodable, QueueConsumer
from penstock.partition.consumers import ConsumerManager, ConsumerOptions, Handler
from penstock.partition.discovery import Claims
from penstock.partition.model import MAIN, QueueKey, ServiceType, TopicPartitionInfo
from penstock.partition.names import (
    group_name,
    notifications_group,
    responses_group,
    responses_topic,
    topic_name,
)
from penstock.partition.producer import QueueProducer
from penstock.partition.service import HashPartitionService
from penstock.partition.settings import QueueSettings
from penstock.partition.topic_creator import TopicCreator
from penstock.partition.topics import find_spec, partitions_and_properties

CORE, RULE_ENGINE, TRANSPORT = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE, ServiceType.TB_TRANSPORT
VERSION_CONTROL, TASKS = ServiceType.TB_VC_EXECUTOR, ServiceType.TASK_PROCESSOR


class NotOfThisService(PenstockError):
    """A service asked its factory for something that its kind has nothing to do with."""


@dataclass(frozen=True, slots=True)
class Role:
    sends_to: frozenset[ServiceType]
    """Queues and notifications of these kinds."""
    asks: frozenset[str] = frozenset()
    answers: frozenset[str] = frozenset()
    """Request channels: `js`, `transport-api`, `edqs`."""


ROLES: dict[ServiceType, Role] = {
    CORE: Role(
        frozenset([CORE, RULE_ENGINE, TRANSPORT, VERSION_CONTROL, ServiceType.EDQS, TASKS]),
        asks=frozenset(["js", "edqs"]),
        answers=frozenset(["transport-api"]),
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


@dataclass(frozen=True, slots=True)
class RequestLimits:
    max_pending: int = 10_000
    timeout: float = 60.0
    poll_seconds: float = 0.025
    """Only for providers without a long poll."""


REQUEST_LIMITS = {
    "js": RequestLimits(timeout=10.0),
    "transport-api": RequestLimits(timeout=10.0),
    "edqs": RequestLimits(timeout=20.0),
}


@dataclass(frozen=True, slots=True)
class RequestChannel:
    """All that a request template needs: where requests go, where this instance's answers come, under which groups."""

    request_topic: str
    request_partitions: int
    request_group: str
    response_topic: str
    response_group: str
    response_properties: dict[str, str]
    service_id: str
    limits: RequestLimits


class QueueFactory:
    def __init__(
        self,
        log: Log,
        settings: QueueSettings,
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

    # Sending

    def producer(self, service_type: ServiceType, queue: str = MAIN) -> QueueProducer:
        """For a queue of a kind of service; where a message goes is `partitions.resolve(…)`."""
        self._check(any(service_type in role.sends_to for role in self._roles), f"send to queues of {service_type}")
        found = self.partitions.queue(QueueKey(service_type, queue))
        self._check(found is not None, f"send to {service_type}/{queue}, which is not configured")
        assert found is not None
        return self._producer(found.topic)

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

    # Requests

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
        spec = find_spec(settings, response_topic)
        return RequestChannel(
            request_topic=topic_name(f"{base}.requests", prefix=settings.prefix),
            request_partitions=partitions,
            request_group=group_name(answering, f"{channel}-requests", prefix=settings.prefix),
            response_topic=response_topic,
            response_group=responses_group(base, self._service_id, prefix=settings.prefix),
            response_properties=partitions_and_properties(settings, spec)[1] if spec is not None else {},
            service_id=self._service_id,
            limits=REQUEST_LIMITS[channel],
        )

    def _check(self, is_allowed: bool, what: str) -> None:
        if not is_allowed:
            kinds = ", ".join(sorted(self._service_types))
            raise NotOfThisService(f"a service of type {kinds} cannot {what}")
