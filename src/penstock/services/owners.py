"""Who owns a partition: pure functions of the member list. The same list gives the same answer on every node.

Round robin is the compatible rule. Rendezvous hashing is the one that moves the fewest partitions when a member comes
or goes: a partition belongs to the member with the highest hash of both names.

`core/assign.py` is a different rule: it starts from the present assignment, which one coordinator knows. Here every
node computes the owners from the member list alone, and the results are fixed by compatibility with ThingsBoard
(tests/data/partition-vectors.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from penstock._ext.match.partition import hash_key, partition_of_number, uuid_input
from penstock.services.model import EDGE, HOUSEKEEPER, MAIN, QueueKey, ServiceInfo, ServiceType

Rule = Literal["round-robin", "rendezvous"]
CORE_QUEUES = (MAIN, EDGE, HOUSEKEEPER)

ProfileOf = Callable[[UUID], UUID | None]
Owners = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Ownership:
    """For each key, for each of its partitions, the ids of its owners: one, a whole replica set of EDQS, or none."""

    owners: Mapping[QueueKey, tuple[Owners, ...]]

    def mine(self, key: QueueKey, service_id: str) -> frozenset[int]:
        return frozenset(i for i, owners in enumerate(self.owners.get(key, ())) if service_id in owners)

    def unowned(self) -> dict[QueueKey, list[int]]:
        """Partitions that nobody consumes: their messages wait in the log."""
        found = {key: [i for i, one in enumerate(owners) if not one] for key, owners in self.owners.items()}
        return {key: partitions for key, partitions in found.items() if partitions}

    def changed_keys(self, before: Ownership) -> frozenset[QueueKey]:
        keys = self.owners.keys() | before.owners.keys()
        return frozenset(key for key in keys if self.owners.get(key) != before.owners.get(key))

    def moves(self, before: Ownership) -> int:
        """How many partitions that existed before have other owners now."""
        return sum(
            old != new
            for key, owners in before.owners.items()
            for old, new in zip(owners, self.owners.get(key, ()), strict=False)
        )


def recalculate(
    services: Iterable[ServiceInfo],
    queues: Mapping[QueueKey, int],
    *,
    profile_of: ProfileOf = lambda tenant: None,
    rule: Rule = "round-robin",
    function: str = "murmur3_128",
) -> Ownership:
    """The owners of every partition of every queue (key to number of partitions)."""
    # By id as text, as ThingsBoard does: "re-10" comes before "re-2".
    members = sorted(services, key=lambda service: service.service_id)
    owned: dict[QueueKey, tuple[Owners, ...]] = {}
    for key, count in queues.items():
        able = servers_of(key, members)
        pool = rule_engine_pool(key, able, profile_of) if key.service_type is ServiceType.TB_RULE_ENGINE else able
        if key.service_type is ServiceType.EDQS:
            sets = replica_sets(pool)
            owned[key] = tuple(owner_set(key, i, sets, rule, function) for i in range(count))
        else:
            ids = [service.service_id for service in pool]
            owned[key] = tuple(owner(key, i, ids, rule, function) for i in range(count))
    return Ownership(owned)


def servers_of(key: QueueKey, members: Sequence[ServiceInfo]) -> list[ServiceInfo]:
    """The members that can serve a key, in order. Isolation is for rule engines only."""
    able = [member for member in members if key.service_type in member.service_types]
    if key.service_type is ServiceType.TB_RULE_ENGINE:
        return able
    if key.service_type is ServiceType.TASK_PROCESSOR:
        return [member for member in able if key.queue in member.task_types]
    if key.is_isolated or key.queue not in (CORE_QUEUES if key.service_type is ServiceType.TB_CORE else (MAIN,)):
        return []
    return able


def rule_engine_pool(key: QueueKey, servers: Sequence[ServiceInfo], profile_of: ProfileOf) -> list[ServiceInfo]:
    """Servers dedicated to the tenant's profile, else the undedicated ones. Asked afresh each time: an answer for one
    profile never turns into a claim that servers are dedicated to another."""
    profile = profile_of(key.tenant) if key.is_isolated else None
    dedicated = [server for server in servers if profile is not None and profile in server.tenant_profiles]
    return dedicated or [server for server in servers if not server.is_dedicated]


def replica_sets(servers: Sequence[ServiceInfo]) -> dict[str, Owners]:
    labels = sorted({server.label for server in servers})
    return {label: tuple(server.service_id for server in servers if server.label == label) for label in labels}


def owner(key: QueueKey, partition: int, ids: Sequence[str], rule: Rule, function: str) -> Owners:
    if not ids:
        return ()
    if rule == "rendezvous":
        return (highest(key, partition, ids),)
    if key.service_type is ServiceType.TB_RULE_ENGINE:
        return (ids[rule_engine_index(tenant_hash(key.tenant, function), partition, len(ids))],)
    return (ids[partition % len(ids)],)


def owner_set(key: QueueKey, partition: int, sets: Mapping[str, Owners], rule: Rule, function: str) -> Owners:
    chosen = owner(key, partition, list(sets), rule, function)
    return sets[chosen[0]] if chosen else ()


def tenant_hash(tenant: UUID, function: str = "murmur3_128") -> int:
    return hash_key(uuid_input(tenant), function)


def rule_engine_index(tenant: int, partition: int, servers: int) -> int:
    """|hash + partition| mod servers; the sum wraps as a 32-bit integer, as it does in ThingsBoard."""
    wrapped = (tenant + partition + (1 << 31)) % (1 << 32) - (1 << 31)
    return partition_of_number(wrapped, servers)


def highest(key: QueueKey, partition: int, names: Sequence[str]) -> str:
    """Rendezvous: the name with the highest hash; of two equal ones the later in order."""
    place = f"{key.service_type}\0{key.queue}\0{key.tenant}\0{partition}\0".encode()
    return max(names, key=lambda name: (hash_key(place + name.encode(), "murmur3_128"), name))
