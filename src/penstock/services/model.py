"""The words of the partition service: kinds of service, queues, partitions as topics, members of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Self
from uuid import UUID

import msgspec

from penstock.services.names import topic_name
from penstock.storage.log.base import TopicPartition

SYSTEM_TENANT = UUID("13814000-1dd2-11b2-8080-808080808080")
MAIN = "Main"
EDGE = "Edge"
CALCULATED_FIELDS = "CalculatedFields"
HOUSEKEEPER = "Housekeeper"


class ServiceType(StrEnum):
    TB_CORE = "TB_CORE"
    TB_RULE_ENGINE = "TB_RULE_ENGINE"
    TB_TRANSPORT = "TB_TRANSPORT"
    JS_EXECUTOR = "JS_EXECUTOR"
    TB_VC_EXECUTOR = "TB_VC_EXECUTOR"
    EDQS = "EDQS"
    TASK_PROCESSOR = "TASK_PROCESSOR"

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    ServiceType.TB_CORE: "TB Core",
    ServiceType.TB_RULE_ENGINE: "TB Rule Engine",
    ServiceType.TB_TRANSPORT: "TB Transport",
    ServiceType.JS_EXECUTOR: "JS Executor",
    ServiceType.TB_VC_EXECUTOR: "TB VC Executor",
    ServiceType.EDQS: "TB Entity Data Query",
    ServiceType.TASK_PROCESSOR: "Task Processor",
}


@dataclass(frozen=True, slots=True, order=True)
class QueueKey:
    """A queue of a kind of service. Those of all tenants but the isolated ones belong to the system tenant."""

    service_type: ServiceType
    queue: str = MAIN
    tenant: UUID = SYSTEM_TENANT

    @property
    def is_isolated(self) -> bool:
        return self.tenant != SYSTEM_TENANT

    def of_system(self) -> Self:
        return type(self)(self.service_type, self.queue)

    def __str__(self) -> str:
        return f"{self.service_type}/{self.queue}" + (f"/{self.tenant}" if self.is_isolated else "")


@dataclass(frozen=True, slots=True)
class Queue:
    """What is behind a key: the base topic (with the prefix of the installation) and how many partitions."""

    key: QueueKey
    topic: str
    partitions: int
    use_internal_partition: bool = False
    duplicate_to_all: bool = False

    def __post_init__(self) -> None:
        if self.partitions < 1:
            raise ValueError(f"{self.key} has {self.partitions} partitions: use 1 or more")


@dataclass(frozen=True, eq=False)
class TopicPartitionInfo:
    """Where a message goes. Equal to another one with the same full name and partition, whoever owns it now."""

    topic: str
    tenant: UUID | None = None
    partition: int | None = None
    use_internal_partition: bool = False
    my_partition: bool = False

    @cached_property
    def full_topic_name(self) -> str:
        """`[prefix.]base[.isolated.<tenant>][.<partition>]`; an internal partition is no part of the name."""
        return topic_name(
            self.topic, tenant=self.tenant, partition=None if self.use_internal_partition else self.partition
        )

    @cached_property
    def log_partition(self) -> TopicPartition:
        """The same for the log: a partition is a topic with one partition, unless it is an internal one."""
        return TopicPartition(self.full_topic_name, (self.partition or 0) if self.use_internal_partition else 0)

    def with_topic(self, topic: str) -> TopicPartitionInfo:
        """The same partition of another topic: housekeeping follows the partitions of the core, for example."""
        return TopicPartitionInfo(topic, self.tenant, self.partition, self.use_internal_partition, self.my_partition)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartitionInfo):
            return NotImplemented
        return self.partition == other.partition and self.full_topic_name == other.full_topic_name

    def __hash__(self) -> int:
        return hash((self.full_topic_name, self.partition))

    def __lt__(self, other: TopicPartitionInfo) -> bool:
        return (self.full_topic_name, self.partition or 0) < (other.full_topic_name, other.partition or 0)

    def __str__(self) -> str:
        return f"{self.full_topic_name}#{self.partition}" if self.use_internal_partition else self.full_topic_name


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """A member of the cluster as it announces itself. Unknown fields of newer versions are skipped."""

    service_id: str
    service_types: frozenset[ServiceType]
    tenant_profiles: frozenset[UUID] = frozenset()
    """Rule engines: the tenant profiles this one is dedicated to; empty = serves everybody."""
    label: str = ""
    """EDQS: the replica set it belongs to."""
    task_types: frozenset[str] = frozenset()

    @property
    def is_dedicated(self) -> bool:
        return bool(self.tenant_profiles)


@dataclass(frozen=True, slots=True)
class TenantRouting:
    """How a tenant's messages are routed: queues of its own or not, and the profile dedicated servers serve."""

    tenant: UUID
    profile: UUID | None = None
    is_isolated: bool = False


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """Sequence numbers rise over all events of a service; a listener ignores what is older than what it has seen."""

    sequence: int


@dataclass(frozen=True, slots=True)
class PartitionChange(PartitionEvent):
    """My partitions of a service type changed. Every changed key with its new set (empty = lost) and the old one."""

    service_type: ServiceType
    partitions: dict[QueueKey, frozenset[TopicPartitionInfo]]
    old_partitions: dict[QueueKey, frozenset[TopicPartitionInfo]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterTopologyChange(PartitionEvent):
    """Owners of some partitions changed, here or elsewhere."""

    keys: frozenset[QueueKey]


@dataclass(frozen=True, slots=True)
class ServiceListChanged(PartitionEvent):
    """The members after a recalculation, sorted by id."""

    services: tuple[ServiceInfo, ...]


@dataclass(frozen=True, slots=True)
class OtherServiceShutdown(PartitionEvent):
    """A member left. Told at once, before any delay of the recalculation."""

    service_id: str
    service_types: frozenset[ServiceType]
