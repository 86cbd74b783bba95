"""Assigning partitions: balanced, complete, with the fewest moves, and the same for the same input."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.assign import assign

NAMES = ["a", "b", "c", "d", "e", "f"]
TOPICS = {"a": 5, "b": 3, "c": 1}


@pytest.mark.parametrize(
    ("consumers", "sizes"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (4, [1] * 4), (5, [1] * 4 + [0])]
)
def test_four_partitions(consumers: int, sizes: list[int]) -> None:
    shares = assign(range(4), NAMES[:consumers], {})
    assert [len(shares[name]) for name in NAMES[:consumers]] == sizes


def test_a_member_that_joins_takes_only_what_it_must() -> None:
    one = assign(range(4), ["a"], {})
    two = assign(range(4), ["a", "b"], one)
    assert two == {"a": [0, 1], "b": [2, 3]}
    three = assign(range(4), ["a", "b", "c"], two)
    assert three == {"a": [0, 1], "b": [2], "c": [3]}
    assert assign(range(4), ["b", "c"], three) == {"b": [0, 2], "c": [1, 3]}


def test_two_members_that_claim_the_same() -> None:
    assert assign(range(2), ["a", "b"], {"a": [0, 1], "b": [0, 1]}) == {"a": [0], "b": [1]}


def test_no_members() -> None:
    assert assign(range(4), [], {"a": [0]}) == {}


def test_no_partitions() -> None:
    assert assign([], ["a"], {"a": [3]}) == {"a": []}


def test_more_members_than_partitions() -> None:
    shares = assign([0, 1], ["a", "b", "c"], {"c": [0]})
    assert shares == {"a": [1], "b": [], "c": [0]}


def test_the_member_with_most_keeps_the_odd_one() -> None:
    held = {"a": [0], "b": [1, 2]}
    assert assign([0, 1, 2], ["a", "b"], held) == held


def test_partitions_of_a_member_that_left_are_spread() -> None:
    held = {"a": [0, 1], "b": [2, 3], "gone": [4, 5]}
    assert assign(range(6), ["a", "b"], held) == {"a": [0, 1, 4], "b": [2, 3, 5]}


def test_partitions_that_no_member_may_have_are_left_out() -> None:
    assert assign(range(4), ["a"], {"a": [1]}, lambda _, partition: partition % 2 == 0) == {"a": [0, 2]}


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[int], list[str], dict[str, list[int]]]:
    """Partitions and members as they are now, and the assignment before, with some that are gone."""
    before = draw(st.dictionaries(st.integers(0, 9), st.sampled_from(NAMES)))
    held: dict[str, list[int]] = {}
    for partition, name in before.items():
        held.setdefault(name, []).append(partition)
    partitions = draw(st.lists(st.integers(0, 9), unique=True))
    members = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=5))
    return partitions, members, held


def most_kept(partitions: list[int], members: list[str], held: dict[str, list[int]]) -> int:
    """By trying every way to choose the members with one more."""
    least, extra = divmod(len(partitions), len(members))
    have = [len(set(held.get(name, ())) & set(partitions)) for name in members]
    quotas = [least + 1] * extra + [least] * (len(members) - extra)
    return max(sum(map(min, have, each)) for each in set(permutations(quotas)))


@given(changes())
def test_the_properties(change: tuple[list[int], list[str], dict[str, list[int]]]) -> None:
    partitions, members, held = change
    shares = assign(partitions, members, held)
    assert sorted(partition for share in shares.values() for partition in share) == sorted(partitions)
    assert set(shares) == set(members)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    kept = sum(len(set(share) & set(held.get(name, ()))) for name, share in shares.items())
    assert kept == most_kept(partitions, members, held)
    # The order of the arguments makes no difference.
    again = assign(reversed(partitions), reversed(members), {name: held[name][::-1] for name in reversed(list(held))})
    assert again == shares
    assert assign(partitions, members, shares) == shares


SUBSCRIPTIONS = st.dictionaries(
    st.integers(0, 6), st.frozensets(st.sampled_from(sorted(TOPICS)), min_size=1), min_size=1, max_size=6
)


@given(SUBSCRIPTIONS, st.data())
def test_members_with_different_topics(topics_of: dict[int, frozenset[str]], data: st.DataObject) -> None:
    everything = [(topic, number) for topic, count in TOPICS.items() for number in range(count)]
    holders = [data.draw(st.integers(0, 6)) for _ in everything]
    held = {n: [p for p, holder in zip(everything, holders, strict=True) if holder == n] for n in range(7)}
    shares = assign(everything, topics_of, held, lambda member, partition: partition[0] in topics_of[member])
    given_out = [partition for share in shares.values() for partition in share]
    wanted = {topic for topics in topics_of.values() for topic in topics}
    assert sorted(given_out) == sorted(p for p in everything if p[0] in wanted)
    for member, share in shares.items():
        assert {topic for topic, _ in share} <= topics_of[member]
        for other, larger in shares.items():
            movable = [p for p in larger if p[0] in topics_of[member]]
            assert not movable or len(larger) - len(share) < 2, (member, other)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(1, 40))
def test_only_what_must_moves(before: int, after: int, count: int) -> None:
    old = assign(range(count), range(before), {})
    new = assign(range(count), range(after), old)
    stayed = sum(len(set(old[n]) & set(new[n])) for n in range(min(before, after)))
    if after >= before:
        assert stayed == sum(len(share) for share in (new[n] for n in range(before)))
    else:
        assert stayed == sum(len(old[n]) for n in range(after))
