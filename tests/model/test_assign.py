"""Assignment of partitions against a naive model: even, deterministic, and never with more moves than needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.assign import assign


def share_out(partitions: Iterable[int], members: Iterable[str], owners: Mapping[int, str]) -> dict[int, str]:
    """The owner of each partition."""
    held: dict[str, list[int]] = {}
    for partition, owner in owners.items():
        held.setdefault(owner, []).append(partition)
    return {partition: name for name, own in assign(partitions, members, held).items() for partition in own}


NAMES = st.sets(st.sampled_from("abcdefgh"), max_size=6)


@st.composite
def situations(draw: st.DrawFn) -> tuple[set[int], set[str], dict[int, str]]:
    partitions = draw(st.sets(st.integers(0, 40), max_size=20))
    members = draw(NAMES)
    # some partitions belonged to members who are gone, some to nobody, and some that had an owner are gone
    owners = draw(st.dictionaries(st.integers(0, 40), st.sampled_from("abcdefghxy"), max_size=25))
    return partitions, members, owners


def fewest_moves(partitions: set[int], members: set[str], owners: dict[int, str]) -> int:
    """The naive way: try every choice of members that get one partition more."""
    least, extra = divmod(len(partitions), len(members))
    has = {name: sum(owners.get(number) == name for number in partitions) for name in members}
    best = len(partitions)
    for chosen in combinations(sorted(members), extra):
        kept = sum(min(has[name], least + (name in chosen)) for name in members)
        best = min(best, len(partitions) - kept)
    return best


@given(situations())
@settings(max_examples=100, deadline=None)
def test_even_and_with_the_fewest_moves(situation: tuple[set[int], set[str], dict[int, str]]) -> None:
    partitions, members, owners = situation
    shared = share_out(partitions, members, owners)
    if not members:
        assert shared == {}
        return
    assert set(shared) == partitions
    assert set(shared.values()) <= members
    counts = [sum(owner == name for owner in shared.values()) for name in members]
    assert max(counts) - min(counts) <= 1
    moved = sum(owners.get(number) != owner for number, owner in shared.items())
    assert moved == fewest_moves(partitions, members, owners)


@given(situations(), st.randoms())
@settings(max_examples=60, deadline=None)
def test_the_order_of_what_it_is_given_does_not_matter(
    situation: tuple[set[int], set[str], dict[int, str]], random: object
) -> None:
    partitions, members, owners = situation
    expected = share_out(sorted(partitions), sorted(members), owners)
    mixed, names, items = list(partitions), list(members), list(owners.items())
    for values in (mixed, names, items):
        random.shuffle(values)  # hypothesis gives a random.Random
    assert share_out(mixed, names, dict(items)) == expected


@given(situations())
@settings(max_examples=60, deadline=None)
def test_nothing_moves_when_nothing_changes(situation: tuple[set[int], set[str], dict[int, str]]) -> None:
    partitions, members, owners = situation
    shared = share_out(partitions, members, owners)
    assert share_out(partitions, members, shared) == shared


def test_a_member_joins_and_leaves() -> None:
    alone = share_out(range(16), ["a"], {})
    assert set(alone.values()) == {"a"}
    both = share_out(range(16), ["a", "b"], alone)
    assert sum(owner == "a" for owner in both.values()) == 8
    three = share_out(range(16), ["a", "b", "c"], both)
    assert sum(both[n] != three[n] for n in range(16)) == 5
    assert share_out(range(16), ["a"], three) == alone
