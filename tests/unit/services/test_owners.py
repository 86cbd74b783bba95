"""Who owns a partition: golden vectors of the compatible rule, dedicated servers, replica sets."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

import pytest

from penstock.services.model import EDGE, QueueKey, ServiceInfo, ServiceType
from penstock.services.owners import Ownership, recalculate, rule_engine_index, tenant_hash

VECTORS = json.loads((Path(__file__).parents[2] / "data/partition-vectors.json").read_text())
CORE, RULE_ENGINE = ServiceType.TB_CORE, ServiceType.TB_RULE_ENGINE
PROFILE_A, PROFILE_B = UUID(int=10), UUID(int=11)
TENANT_A, TENANT_B = UUID(int=1), UUID(int=2)
PROFILES = {TENANT_A: PROFILE_A, TENANT_B: PROFILE_B}


def server(name: str, *types: ServiceType, profiles: tuple[UUID, ...] = (), label: str = "", tasks=()) -> ServiceInfo:
    return ServiceInfo(
        service_id=name,
        service_types=frozenset(types),
        tenant_profiles=frozenset(profiles),
        label=label,
        task_types=frozenset(tasks),
    )


def single(ownership: Ownership, key: QueueKey) -> list[str]:
    return [owners[0] if owners else "" for owners in ownership.owners[key]]


@pytest.mark.parametrize(
    "vector", VECTORS["rule_engine_owner"], ids=lambda v: f"{v['tenant_uuid'][:8]}-{v['server_count']}"
)
def test_golden_rule_engine_owner(vector: dict) -> None:
    tenant, function = UUID(vector["tenant_uuid"]), vector["hash_function"]
    assert tenant_hash(tenant, function) == vector["tenant_hash"]
    key = QueueKey(RULE_ENGINE, "Main", tenant)
    servers = [server(f"re-{i}", RULE_ENGINE) for i in range(vector["server_count"])]
    ownership = recalculate(reversed(servers), {key: 10}, function=function)
    expected = [f"re-{i}" for i in vector["server_index_of_partition_0_to_9"]]
    assert single(ownership, key) == expected


def test_golden_sum_wraps_and_folds() -> None:
    edges = {edge["case"]: edge for edge in VECTORS["arithmetic_edges"]}
    wraps = edges["owner index wraps as int32"]
    assert rule_engine_index(wraps["tenant_hash"], wraps["partition"], wraps["server_count"]) == wraps["server_index"]
    folds = edges["tenant hash just below zero folds"]
    found = [rule_engine_index(folds["tenant_hash"], i, folds["server_count"]) for i in range(5)]
    assert found == folds["server_index_of_partition_0_to_4"]


def test_core_partitions_go_round() -> None:
    key = QueueKey(CORE)
    ownership = recalculate([server("core-2", CORE), server("core-1", CORE)], {key: 10})
    assert ownership.mine(key, "core-1") == {0, 2, 4, 6, 8}
    assert ownership.mine(key, "core-2") == {1, 3, 5, 7, 9}
    three = recalculate([server(f"core-{i}", CORE) for i in range(3)], {key: 10})
    four = recalculate([server(f"core-{i}", CORE) for i in range(4)], {key: 10})
    assert four.moves(three) == 7


def test_ids_are_sorted_as_text() -> None:
    key = QueueKey(CORE)
    ownership = recalculate([server("re-2", CORE), server("re-10", CORE)], {key: 2})
    assert single(ownership, key) == ["re-10", "re-2"]


def test_only_servers_of_the_kind_and_queue() -> None:
    keys = {
        QueueKey(CORE): 2,
        QueueKey(CORE, EDGE): 2,
        QueueKey(CORE, "Other"): 2,
        QueueKey(ServiceType.TB_VC_EXECUTOR): 2,
        QueueKey(ServiceType.TASK_PROCESSOR, "export"): 2,
        QueueKey(ServiceType.TASK_PROCESSOR, "import"): 2,
    }
    members = [
        server("core", CORE),
        server("tasks", ServiceType.TASK_PROCESSOR, tasks=["export"]),
        server("re", RULE_ENGINE),
    ]
    owned = {key: single(recalculate(members, keys), key) for key in keys}
    assert list(owned.values()) == [["core"] * 2, ["core"] * 2, ["", ""], ["", ""], ["tasks"] * 2, ["", ""]]
    assert len(recalculate(members, keys).unowned()) == 3


def test_dedicated_servers() -> None:
    """Dedicated to A only: B and the system use the others, and nothing for A's sake is taken for dedicated to B."""
    members = [
        server("re-a", RULE_ENGINE, profiles=(PROFILE_A,)),
        server("re-b", RULE_ENGINE),
        server("re-c", RULE_ENGINE),
    ]
    system, of_a, of_b = (QueueKey(RULE_ENGINE, "Main", *t) for t in ((), (TENANT_A,), (TENANT_B,)))
    for keys in ([system, of_b, of_a], [of_a, of_b, system]):
        ownership = recalculate(members, dict.fromkeys(keys, 4), profile_of=PROFILES.get)
        assert set(single(ownership, of_a)) == {"re-a"}
        assert set(single(ownership, of_b)) == {"re-b", "re-c"}
        assert set(single(ownership, system)) == {"re-b", "re-c"}


def test_all_servers_dedicated_to_others_leave_partitions_unowned() -> None:
    members = [server("re-a", RULE_ENGINE, profiles=(PROFILE_A,))]
    key = QueueKey(RULE_ENGINE)
    assert recalculate(members, {key: 3}, profile_of=PROFILES.get).unowned() == {key: [0, 1, 2]}


def test_edqs_gives_a_partition_to_a_whole_replica_set() -> None:
    kind = ServiceType.EDQS
    members = [server("e1", kind, label="b"), server("e2", kind, label="a"), server("e3", kind, label="b")]
    key = QueueKey(kind)
    assert recalculate(members, {key: 3}).owners[key] == (("e2",), ("e1", "e3"), ("e2",))
    assert set(recalculate(members, {key: 30}, rule="rendezvous").owners[key]) == {("e2",), ("e1", "e3")}


def test_rendezvous_moves_only_what_the_new_member_takes() -> None:
    key = QueueKey(CORE)
    members = [server(f"core-{i}", CORE) for i in range(4)]
    before = recalculate(members[:3], {key: 1_000}, rule="rendezvous")
    after = recalculate(members, {key: 1_000}, rule="rendezvous")
    assert after.moves(before) == len(after.mine(key, "core-3"))
    assert 180 <= after.moves(before) <= 320  # a quarter of them
