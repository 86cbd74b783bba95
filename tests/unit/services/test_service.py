"""The partition service: where messages go, what is mine, events in order, a restart within the delay."""

from __future__ import annotations

from uuid import UUID

import numpy as np
import pytest

from penstock.services.events import EventBus, Listener
from penstock.services.model import (
    EDGE,
    HOUSEKEEPER,
    SYSTEM_TENANT,
    ClusterTopologyChange,
    OtherServiceShutdown,
    PartitionChange,
    PartitionEvent,
    Queue,
    QueueKey,
    ServiceInfo,
    ServiceListChanged,
    ServiceType,
    TenantRouting,
    TopicPartitionInfo,
)
from penstock.services.service import HashPartitionService, QueueNotFound
from penstock.services.topics import default_queues, notification_bases
from penstock.settings.services import ServiceSettings
from tests.support.machine.manual_clock import ManualClock

CORE, RULE_ENGINE = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE
ISOLATED, LACKING, SHARED = UUID(int=1), UUID(int=2), UUID(int=3)
ENTITY = UUID("784f394c-42b6-435a-983c-b7beff2784f9")
EVENTS = (PartitionChange, ClusterTopologyChange, ServiceListChanged, OtherServiceShutdown)


def member(name: str, *types: ServiceType) -> ServiceInfo:
    return ServiceInfo(service_id=name, service_types=frozenset(types or (CORE, RULE_ENGINE)))


def routing_of(tenant: UUID) -> TenantRouting:
    return TenantRouting(tenant, None, tenant in (ISOLATED, LACKING))


class Node:
    """A partition service whose events are written down."""

    def __init__(self, name: str = "n1", delay: float = 0.0, prefix: str = "", **options: object) -> None:
        settings = ServiceSettings(prefix=prefix)
        self.clock = ManualClock()
        self.events: list[PartitionEvent] = []
        self.service = HashPartitionService(
            member(name),
            [
                *default_queues(settings),
                Queue(QueueKey(RULE_ENGINE, "Main", ISOLATED), "tb_rule_engine.main", 3),
                Queue(QueueKey(RULE_ENGINE, "All"), "tb_rule_engine.all", 4, duplicate_to_all=True),
            ],
            self.clock,
            prefix=prefix,
            notification_bases=notification_bases(settings),
            routing_of=routing_of,
            recalculate_delay=delay,
            **options,
        )
        for kind in EVENTS:
            self.service.listen(kind, self.events.append)

    def seen(self, kind: type) -> list[PartitionEvent]:
        return [event for event in self.events if type(event) is kind]

    def mine(self, key: QueueKey = QueueKey(CORE)) -> list[int | None]:  # noqa: B008 - a frozen value
        return sorted(info.partition for info in self.service.my_partitions(key))


def test_alone_everything_is_mine() -> None:
    node = Node()
    node.service.start()
    assert node.mine() == list(range(10))
    change = node.seen(PartitionChange)
    assert [event.service_type for event in change] == [CORE, RULE_ENGINE]
    of_core = {QueueKey(CORE), QueueKey(CORE, EDGE), QueueKey(CORE, HOUSEKEEPER)}
    assert change[0].partitions.keys() == of_core
    assert change[0].old_partitions == dict.fromkeys(of_core, frozenset())
    assert [event.sequence for event in node.events] == sorted(event.sequence for event in node.events)


def test_nodes_share_and_agree() -> None:
    nodes = [Node(f"n{i}") for i in range(3)]
    infos = [node.service.me for node in nodes]
    for node in nodes:
        node.service.start([info for info in infos if info is not node.service.me])
    for key in (QueueKey(CORE), QueueKey(RULE_ENGINE), QueueKey(RULE_ENGINE, "Main", ISOLATED)):
        owned = [partition for node in nodes for partition in node.mine(key)]
        assert sorted(owned) == list(range(nodes[0].service.queue(key).partitions))
        assert len({node.service.owners(key) for node in nodes}) == 1
    where = [node.service.resolve(CORE, "", SHARED, ENTITY) for node in nodes]
    assert len(set(where)) == 1
    assert [info.my_partition for info in where].count(True) == 1


def test_resolve_is_by_entity_and_golden() -> None:
    node = Node(prefix="prod")
    node.service.start()
    info = node.service.resolve(CORE, "", SYSTEM_TENANT, ENTITY)
    assert (info.full_topic_name, info.partition) == ("prod.tb_core.8", 8)
    assert node.service.resolve(CORE, "Main", SHARED, "client-0001").partition == 2
    assert node.service.resolve(CORE, "Main", SHARED, b"client-0001").partition == 2
    assert node.service.is_my_partition(CORE, "Main", SHARED, ENTITY)
    infos, partitions = node.service.resolve_many(CORE, "", SHARED, np.array([b"client-0001", b"tb_core"], "S36"))
    assert [infos[i].full_topic_name for i in partitions] == ["prod.tb_core.2", "prod.tb_core.6"]


def test_resolve_before_the_first_calculation_owns_nothing() -> None:
    info = Node().service.resolve(CORE, "", SYSTEM_TENANT, ENTITY)
    assert info.full_topic_name == "tb_core.8"
    assert not info.my_partition


def test_isolation_is_for_rule_engines_and_falls_back() -> None:
    service = Node().service
    assert service.resolve_key(RULE_ENGINE, "", ISOLATED) == QueueKey(RULE_ENGINE, "Main", ISOLATED)
    assert service.resolve(RULE_ENGINE, "", ISOLATED, ENTITY).full_topic_name.startswith(
        f"tb_rule_engine.main.isolated.{ISOLATED}."
    )
    assert service.resolve_key(CORE, "", ISOLATED) == QueueKey(CORE)
    assert service.resolve_key(RULE_ENGINE, "HighPriority", LACKING) == QueueKey(RULE_ENGINE, "HighPriority")
    assert service.resolve_key(RULE_ENGINE, "Nowhere", LACKING) == QueueKey(RULE_ENGINE)
    assert service.resolve_key(RULE_ENGINE, "HighPriority", SHARED) == QueueKey(RULE_ENGINE, "HighPriority")
    with pytest.raises(QueueNotFound, match="JS_EXECUTOR"):
        service.resolve_key(ServiceType.JS_EXECUTOR, "", SHARED)


def test_duplicate_to_all_partitions_begins_with_the_hashed_one() -> None:
    service = Node().service
    infos = service.resolve_all(RULE_ENGINE, "All", SHARED, ENTITY)
    assert infos[0] == service.resolve(RULE_ENGINE, "All", SHARED, ENTITY)
    assert sorted(info.partition for info in infos) == [0, 1, 2, 3]
    assert len(service.resolve_all(RULE_ENGINE, "Main", SHARED, ENTITY)) == 1


def test_notifications() -> None:
    service = Node(prefix="prod").service
    assert service.notifications(CORE, "n1") == TopicPartitionInfo("prod.tb_core.notifications.n1")
    assert service.notifications(CORE, "n1").my_partition
    assert not service.notifications(CORE, "n2").my_partition
    with pytest.raises(QueueNotFound, match="no notifications"):
        service.notifications(ServiceType.JS_EXECUTOR, "n1")


def test_a_member_joins_and_leaves() -> None:
    node = Node()
    node.service.start()
    node.events.clear()
    node.service.members_changed([member("n2")])
    assert node.mine() == [0, 2, 4, 6, 8]
    (change,) = (event for event in node.seen(PartitionChange) if event.service_type is CORE)
    assert {info.partition for info in change.partitions[QueueKey(CORE)]} == {0, 2, 4, 6, 8}
    assert len(change.old_partitions[QueueKey(CORE)]) == 10
    assert node.seen(ServiceListChanged)[0].services == (node.service.me, member("n2"))
    node.events.clear()
    node.service.members_changed([])
    assert node.mine() == list(range(10))
    kinds = [type(event) for event in node.events]
    assert kinds[0] is OtherServiceShutdown
    assert kinds[-2:] == [ClusterTopologyChange, ServiceListChanged]
    assert node.seen(OtherServiceShutdown)[0].service_id == "n2"


def test_no_event_for_what_did_not_change() -> None:
    node = Node()
    node.service.start([member("n2")])
    node.events.clear()
    node.service.recalculate()
    assert [type(event) for event in node.events] == [ServiceListChanged]
    node.service.members_changed([member("n2")])
    assert len(node.events) == 1


def test_change_elsewhere_is_a_change_of_topology_only() -> None:
    node = Node("n1")
    node.service.start([member("n2", RULE_ENGINE), member("js", ServiceType.JS_EXECUTOR)])
    node.events.clear()
    node.service.members_changed([member("n2", RULE_ENGINE)])
    assert [type(event) for event in node.events][1:] == [ServiceListChanged]


def test_restart_within_the_delay_moves_nothing() -> None:
    node = Node(delay=5.0)
    node.service.start([member("n2")])
    node.events.clear()
    node.service.members_changed([])
    assert [type(event) for event in node.events] == [OtherServiceShutdown]
    node.clock.advance(4.9)
    node.service.members_changed([member("n2")])
    node.clock.advance(60)
    assert node.mine() == [0, 2, 4, 6, 8]
    assert len(node.events) == 1


def test_after_the_delay_the_partitions_move() -> None:
    node = Node(delay=5.0)
    node.service.start([member("n2")])
    node.service.members_changed([])
    node.clock.advance(5.1)
    assert node.mine() == list(range(10))


def test_who_joins_during_the_delay_ends_it() -> None:
    node = Node(delay=5.0)
    node.service.start([member("n2")])
    node.service.members_changed([])
    node.service.members_changed([member("n3")])
    assert node.service.owners(QueueKey(CORE))[1] == ("n3",)
    node.events.clear()
    node.clock.advance(60)
    assert node.events == []


def test_return_as_something_else_recalculates() -> None:
    node = Node(delay=5.0)
    node.service.start([member("n2")])
    node.service.members_changed([])
    node.service.members_changed([member("n2", RULE_ENGINE)])
    assert node.mine() == list(range(10))


def test_queues_come_change_and_go() -> None:
    node = Node()
    node.service.start()
    key = QueueKey(RULE_ENGINE, "Main", SHARED)
    node.events.clear()
    node.service.put_queues([Queue(key, "tb_rule_engine.main", 2)])
    assert [event.partitions.keys() for event in node.seen(PartitionChange)] == [{key}]
    node.service.put_queues([Queue(key, "tb_rule_engine.main", 3)])
    assert node.mine(key) == [0, 1, 2]
    node.events.clear()
    node.service.remove_tenant(SHARED)
    (change,) = node.seen(PartitionChange)
    assert change.partitions == {key: frozenset()}
    assert len(change.old_partitions[key]) == 3
    assert node.service.queue(key) is None


def test_queues_that_would_share_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="differ only in the case"):
        Node().service.put_queues([Queue(QueueKey(RULE_ENGINE, "main"), "x", 1)])


def test_unknown_hash_function_is_refused() -> None:
    with pytest.raises(ValueError, match="murmur3_128, murmur3_32, sha256"):
        Node(function="murmur2")


def test_an_event_that_arises_while_another_is_told_waits() -> None:
    """Both listeners see the same order although the first causes a further event."""
    node = Node()
    orders: list[list[int]] = [[], []]

    def first(event: PartitionChange) -> None:
        orders[0].append(event.sequence)
        if len(orders[0]) == 1:
            node.service.members_changed([member("n2")])

    node.service.listen(PartitionChange, first)
    node.service.listen(PartitionChange, lambda event: orders[1].append(event.sequence))
    node.service.start()
    assert orders[0] == orders[1] == sorted(orders[0])
    assert len(orders[0]) == 4


def test_a_listener_ignores_older_events_about_the_same_subject() -> None:
    seen: list[int] = []
    listener = Listener(PartitionChange, lambda event: seen.append(event.sequence))
    for sequence, kind in ((5, CORE), (4, CORE), (5, CORE), (4, RULE_ENGINE), (6, CORE)):
        listener(PartitionChange(sequence, kind, {}))
    assert seen == [5, 4, 6]
    assert listener.ignored == 2


def test_a_failing_listener_does_not_stop_the_others() -> None:
    bus, seen = EventBus(), []

    def fail(event: ServiceListChanged) -> None:
        raise RuntimeError("bug")

    bus.listen(ServiceListChanged, fail)
    stop = bus.listen(ServiceListChanged, seen.append)
    bus.publish(ServiceListChanged(bus.next_sequence(), ()))
    stop()
    stop()
    bus.publish(ServiceListChanged(bus.next_sequence(), ()))
    assert [event.sequence for event in seen] == [1]
