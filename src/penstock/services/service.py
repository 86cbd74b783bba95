"""Where a message goes and which partitions are mine, kept up to date as members and queues come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from penstock._ext.match.partition import (
    FUNCTIONS,
    hash_key,
    hash_text,
    partition_of_number,
    partitions_of,
    uuid_input,
)
from penstock.core.errors import PenstockError
from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler, Timer
from penstock.services.events import E, EventBus
from penstock.services.model import (
    MAIN,
    SYSTEM_TENANT,
    ClusterTopologyChange,
    OtherServiceShutdown,
    PartitionChange,
    Queue,
    QueueKey,
    ServiceInfo,
    ServiceListChanged,
    ServiceType,
    TenantRouting,
    TopicPartitionInfo,
)
from penstock.services.names import group_name, notifications_topic
from penstock.services.owners import Ownership, Rule, recalculate

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from penstock._ext.match.partition import Keys

RoutingOf = Callable[[UUID], TenantRouting]
_MOST_WARNINGS = 1_000
_log = get_logger("penstock.partition")


class QueueNotFound(PenstockError):
    """Nobody has configured such a queue."""


class HashPartitionService:
    """The same calculation on every node from the same member list; nobody coordinates."""

    def __init__(
        self,
        me: ServiceInfo,
        queues: Iterable[Queue],
        scheduler: Scheduler,
        *,
        prefix: str = "",
        notification_bases: Mapping[ServiceType, str] | None = None,
        routing_of: RoutingOf = TenantRouting,
        rule: Rule = "round-robin",
        function: str = "murmur3_128",
        recalculate_delay: float = 0.0,
    ) -> None:
        if function not in FUNCTIONS or function == "murmur2":
            raise ValueError(f"{function!r} is not a hash function for partitions: use {', '.join(FUNCTIONS[:3])}")
        self.me = me
        self._scheduler = scheduler
        self._prefix = prefix
        self._notification_bases = dict(notification_bases or {})
        self._routing_of = routing_of
        self._rule: Rule = rule
        self._function = function
        self._delay = recalculate_delay
        self._bus = EventBus()
        self._queues: dict[QueueKey, Queue] = {}
        self._others: dict[str, ServiceInfo] = {}
        self._departed: dict[str, tuple[ServiceInfo, Timer]] = {}
        self._ownership = Ownership({})
        self._infos: dict[QueueKey, tuple[TopicPartitionInfo, ...]] = {}
        self._mine: dict[QueueKey, frozenset[TopicPartitionInfo]] = {}
        self._warned: set[tuple[UUID, str]] = set()
        self._is_started = False
        self._put_queues(queues)

    # Members and queues

    def start(self, others: Iterable[ServiceInfo] = ()) -> None:
        """The first calculation, with whoever is known by now."""
        self._is_started = True
        self._others = {other.service_id: other for other in others}
        self.recalculate()

    def listen(self, kind: type[E], callback: Callable[[E], None]) -> Callable[[], None]:
        """Calls back on events of a kind, on the loop, in order; returns what ends that."""
        return self._bus.listen(kind, callback)

    def members_changed(self, others: Iterable[ServiceInfo]) -> None:
        """The whole list of the other members. One that left may return within the delay as if nothing had been. Any
        other change recalculates at once, without the missing ones: who has just joined knows nothing of them."""
        before, self._others = self._others, {other.service_id: other for other in others}
        left = [service for service in before.values() if service.service_id not in self._others]
        is_new = False
        for service in self._others.values():
            departed = self._departed.pop(service.service_id, None)
            if departed is not None:
                departed[1].cancel()
            if (departed[0] if departed else before.get(service.service_id)) != service:
                is_new = True
        for service in left:
            event = OtherServiceShutdown(self._bus.next_sequence(), service.service_id, service.service_types)
            self._bus.publish(event)
            timer = self._scheduler.call_later(self._delay, self._give_up, service.service_id)
            self._departed[service.service_id] = (service, timer)
        if is_new or (left and self._delay <= 0):
            self.recalculate()

    def _give_up(self, service_id: str) -> None:
        if self._departed.pop(service_id, None) is not None:
            self.recalculate()

    def put_queues(self, queues: Iterable[Queue]) -> None:
        """New queues, or queues with another topic or number of partitions."""
        self._put_queues(queues)
        if self._is_started:
            self.recalculate()

    def remove_queues(self, keys: Iterable[QueueKey]) -> None:
        for key in keys:
            self._queues.pop(key, None)
        if self._is_started:
            self.recalculate()

    def remove_tenant(self, tenant: UUID) -> None:
        """All queues of an isolated tenant that is no more, or no longer isolated."""
        self.remove_queues([key for key in self._queues if key.tenant == tenant and key.is_isolated])

    def _put_queues(self, queues: Iterable[Queue]) -> None:
        for queue in queues:
            for known in self._queues:
                # Names of groups are in small letters: two such queues would share one group.
                if known != queue.key and _group(known) == _group(queue.key):
                    raise ValueError(f"the queues {known} and {queue.key} differ only in the case of their names")
            self._queues[queue.key] = queue

    # The calculation

    def recalculate(self) -> None:
        for _, timer in self._departed.values():
            timer.cancel()
        self._departed.clear()
        before, self._ownership = self._ownership, self._calculate()
        mine_before, self._mine = self._mine, {}
        self._infos = {}
        for key, queue in self._queues.items():
            mine = self._ownership.mine(key, self.me.service_id)
            self._infos[key] = tuple(_info(queue, i, i in mine) for i in range(queue.partitions))
            self._mine[key] = frozenset(self._infos[key][i] for i in mine)
        for key, partitions in self._ownership.unowned().items():
            if key.service_type in self.me.service_types:
                _log.warning("partitions without an owner", queue=str(key), partitions=partitions)
        self._publish_changes(before, mine_before)

    def _calculate(self) -> Ownership:
        return recalculate(
            [self.me, *self._others.values()],
            {key: queue.partitions for key, queue in self._queues.items()},
            profile_of=lambda tenant: self._routing_of(tenant).profile,
            rule=self._rule,
            function=self._function,
        )

    def _publish_changes(
        self, before: Ownership, mine_before: Mapping[QueueKey, frozenset[TopicPartitionInfo]]
    ) -> None:
        nothing: frozenset[TopicPartitionInfo] = frozenset()
        changes: dict[ServiceType, dict[QueueKey, frozenset[TopicPartitionInfo]]] = {}
        for key in sorted(self._mine.keys() | mine_before.keys()):
            new = self._mine.get(key, nothing)
            if new != mine_before.get(key, nothing):
                changes.setdefault(key.service_type, {})[key] = new
        for service_type, new_sets in changes.items():
            old_sets = {key: mine_before.get(key, nothing) for key in new_sets}
            self._bus.publish(PartitionChange(self._bus.next_sequence(), service_type, new_sets, old_sets))
        changed = self._ownership.changed_keys(before)
        if changed:
            self._bus.publish(ClusterTopologyChange(self._bus.next_sequence(), changed))
        self._bus.publish(ServiceListChanged(self._bus.next_sequence(), self.services()))

    # Questions

    def services(self) -> tuple[ServiceInfo, ...]:
        return tuple(sorted([self.me, *self._others.values()], key=lambda service: service.service_id))

    def service_ids(self, service_type: ServiceType) -> list[str]:
        return [service.service_id for service in self.services() if service_type in service.service_types]

    def queue(self, key: QueueKey) -> Queue | None:
        return self._queues.get(key)

    def my_partitions(self, key: QueueKey) -> frozenset[TopicPartitionInfo]:
        return self._mine.get(key, frozenset())

    def partitions(self, key: QueueKey) -> tuple[TopicPartitionInfo, ...]:
        """All of a queue, whoever owns them."""
        return self._partitions(key)

    def owners(self, key: QueueKey) -> tuple[tuple[str, ...], ...]:
        """For each partition the ids of its owners."""
        return self._ownership.owners.get(key, ())

    def resolve(
        self, service_type: ServiceType, queue: str, tenant: UUID, entity: UUID | str | bytes
    ) -> TopicPartitionInfo:
        """Where an entity's messages go: always the same partition as long as the queue keeps its number of them."""
        infos = self._partitions(self.resolve_key(service_type, queue, tenant))
        return infos[partition_of_number(self.hash(entity), len(infos))]

    def resolve_all(
        self, service_type: ServiceType, queue: str, tenant: UUID, entity: UUID | str | bytes
    ) -> list[TopicPartitionInfo]:
        """The same, and for a queue that duplicates to all partitions the others behind it."""
        key = self.resolve_key(service_type, queue, tenant)
        first = self.resolve(service_type, queue, tenant, entity)
        if not self._queues[key].duplicate_to_all:
            return [first]
        return [first, *(info for info in self._partitions(key) if info != first)]

    def resolve_many(
        self, service_type: ServiceType, queue: str, tenant: UUID, keys: Keys
    ) -> tuple[tuple[TopicPartitionInfo, ...], npt.NDArray[np.int32]]:
        """The partitions of a queue and, for each key of a batch, which of them."""
        infos = self._partitions(self.resolve_key(service_type, queue, tenant))
        return infos, partitions_of(keys, len(infos), self._function)

    def is_my_partition(self, service_type: ServiceType, queue: str, tenant: UUID, entity: UUID | str | bytes) -> bool:
        return self.resolve(service_type, queue, tenant, entity).my_partition

    def hash(self, entity: UUID | str | bytes) -> int:
        if isinstance(entity, UUID):
            return hash_key(uuid_input(entity), self._function)
        if isinstance(entity, str):
            return hash_text(entity, self._function)
        return hash_key(entity, self._function)

    def notifications(self, service_type: ServiceType, service_id: str) -> TopicPartitionInfo:
        """The topic only this instance reads."""
        base = self._notification_bases.get(service_type)
        if base is None:
            raise QueueNotFound(f"services of type {service_type} have no notifications")
        topic = notifications_topic(base, service_id, prefix=self._prefix)
        return TopicPartitionInfo(topic, my_partition=service_id == self.me.service_id)

    def resolve_key(self, service_type: ServiceType, queue: str, tenant: UUID) -> QueueKey:
        """An isolated tenant's own queue, else the system's of that name, else the system's Main."""
        name = queue or MAIN
        is_isolated = (
            service_type is ServiceType.TB_RULE_ENGINE
            and tenant != SYSTEM_TENANT
            and self._routing_of(tenant).is_isolated
        )
        if is_isolated:
            key = QueueKey(service_type, name, tenant)
            if key in self._queues:
                return key
            self._warn_once(tenant, name)
        key = QueueKey(service_type, name)
        if key in self._queues:
            return key
        self._warn_once(tenant, name)
        key = QueueKey(service_type)
        if key in self._queues:
            return key
        raise QueueNotFound(f"there is no queue {name} for {service_type}")

    def _partitions(self, key: QueueKey) -> tuple[TopicPartitionInfo, ...]:
        infos = self._infos.get(key)
        if infos is None:
            queue = self._queues[key]
            infos = self._infos[key] = tuple(_info(queue, i, False) for i in range(queue.partitions))
        return infos

    def _warn_once(self, tenant: UUID, queue: str) -> None:
        if (tenant, queue) not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add((tenant, queue))
            _log.warning("queue not found, another one is used", tenant=str(tenant), queue=queue)


def _group(key: QueueKey) -> str:
    return group_name(key.service_type, key.queue, tenant=key.tenant if key.is_isolated else None)


def _info(queue: Queue, partition: int, is_mine: bool) -> TopicPartitionInfo:
    tenant = queue.key.tenant if queue.key.is_isolated else None
    return TopicPartitionInfo(queue.topic, tenant, partition, queue.use_internal_partition, is_mine)
