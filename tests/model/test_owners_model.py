"""Properties of ownership that hold for any cluster."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.services.model import QueueKey, ServiceInfo, ServiceType
from penstock.services.owners import recalculate

profiles = st.sampled_from([UUID(int=i) for i in range(3)])
rules = st.sampled_from(["round-robin", "rendezvous"])
members = st.lists(
    st.builds(
        ServiceInfo,
        service_id=st.text("abc-0123456789", min_size=1, max_size=6),
        service_types=st.frozensets(st.sampled_from(ServiceType), min_size=1),
        tenant_profiles=st.frozensets(profiles, max_size=1),
        label=st.sampled_from(["", "x", "y"]),
        task_types=st.frozensets(st.sampled_from(["export", "import"])),
    ),
    max_size=6,
    unique_by=lambda member: member.service_id,
)
keys = st.builds(
    QueueKey,
    st.sampled_from(ServiceType),
    st.sampled_from(["Main", "Edge", "export"]),
    st.sampled_from([QueueKey(ServiceType.TB_CORE).tenant, UUID(int=100), UUID(int=101)]),
)
queues = st.dictionaries(keys, st.integers(1, 40), max_size=8)


def profile_of(tenant: UUID) -> UUID | None:
    return UUID(int=tenant.int % 3)


@given(members, queues, rules, st.randoms())
def test_every_node_calculates_the_same(cluster, shares, rule, chance) -> None:
    expected = recalculate(cluster, shares, profile_of=profile_of, rule=rule)
    shuffled = list(cluster)
    chance.shuffle(shuffled)
    assert recalculate(shuffled, shares, profile_of=profile_of, rule=rule) == expected


@given(members, queues, rules)
def test_a_partition_has_one_owner_if_anyone_can_serve_it(cluster, shares, rule) -> None:
    ownership = recalculate(cluster, shares, profile_of=profile_of, rule=rule)
    by_id = {member.service_id: member for member in cluster}
    for key, count in shares.items():
        assert len(ownership.owners[key]) == count
        for owners in ownership.owners[key]:
            assert all(key.service_type in by_id[owner].service_types for owner in owners)
            if key.service_type is ServiceType.EDQS:
                assert len({by_id[owner].label for owner in owners}) <= 1
            else:
                assert len(owners) <= 1
        # All partitions of a key are owned, or none.
        assert len({bool(owners) for owners in ownership.owners[key]}) == 1
        mine = Counter(i for member in cluster for i in ownership.mine(key, member.service_id))
        if key.service_type is not ServiceType.EDQS:
            assert all(times == 1 for times in mine.values())


@given(st.integers(1, 8), st.integers(1, 60), rules)
def test_shares_are_even_and_rendezvous_moves_the_least(count, partitions, rule) -> None:
    kind = ServiceType.TB_CORE
    cluster = [ServiceInfo(service_id=f"core-{i}", service_types=frozenset([kind])) for i in range(count + 1)]
    key = QueueKey(kind)
    before = recalculate(cluster[:-1], {key: partitions}, rule=rule)
    after = recalculate(cluster, {key: partitions}, rule=rule)
    if rule == "round-robin":
        shares = [len(after.mine(key, member.service_id)) for member in cluster]
        assert max(shares) - min(shares) <= 1
    else:
        assert after.moves(before) == len(after.mine(key, cluster[-1].service_id))
        assert before.moves(after) == after.moves(before)
