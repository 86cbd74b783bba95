"""Sharing out partitions: balanced, complete, with the fewest moves, and the same for the same input."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.subscribers.query.groups.assign import assign

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.mark.parametrize(
    ("consumers", "sizes"), [(1, [4]), (2, [2, 2]), (3, [2, 1, 1]), (4, [1] * 4), (5, [1] * 4 + [0])]
)
def test_four_partitions(consumers: int, sizes: list[int]) -> None:
    """The seed's own numbers."""
    shares = assign(range(4), NAMES[:consumers], {})
    assert [len(shares[name]) for name in NAMES[:consumers]] == sizes


def test_a_consumer_that_comes_takes_only_what_it_must() -> None:
    one = assign(range(4), ["a"], {})
    two = assign(range(4), ["a", "b"], one)
    assert two == {"a": (0, 1), "b": (2, 3)}
    three = assign(range(4), ["a", "b", "c"], two)
    assert three == {"a": (0, 1), "b": (2,), "c": (3,)}
    assert assign(range(4), ["b", "c"], three) == {"b": (0, 2), "c": (1, 3)}


def test_two_that_say_they_have_the_same() -> None:
    assert assign(range(2), ["a", "b"], {"a": [0, 1], "b": [0, 1]}) == {"a": (0,), "b": (1,)}


def test_nobody() -> None:
    assert assign(range(4), [], {"a": [0]}) == {}


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[int], list[str], dict[str, list[int]]]:
    """Partitions and consumers as they are now, and who had what before, some of them gone."""
    before = draw(st.dictionaries(st.integers(0, 9), st.sampled_from(NAMES)))
    held: dict[str, list[int]] = {}
    for partition, name in before.items():
        held.setdefault(name, []).append(partition)
    partitions = draw(st.lists(st.integers(0, 9), unique=True))
    consumers = draw(st.lists(st.sampled_from(NAMES), unique=True, min_size=1, max_size=5))
    return partitions, consumers, held


def most_kept(partitions: list[int], consumers: list[str], held: dict[str, list[int]]) -> int:
    """By trying every way to say who gets one more."""
    lo, extra = divmod(len(partitions), len(consumers))
    have = [len(set(held.get(name, ())) & set(partitions)) for name in consumers]
    quotas = [lo + 1] * extra + [lo] * (len(consumers) - extra)
    return max(sum(map(min, have, each)) for each in set(permutations(quotas)))


@given(changes())
def test_the_properties(change: tuple[list[int], list[str], dict[str, list[int]]]) -> None:
    partitions, consumers, held = change
    shares = assign(partitions, consumers, held)
    assert sorted(partition for share in shares.values() for partition in share) == sorted(partitions)
    assert set(shares) == set(consumers)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    kept = sum(len(set(share) & set(held.get(name, ()))) for name, share in shares.items())
    assert kept == most_kept(partitions, consumers, held)
    # Neither the order of what it is given nor who asks makes a difference.
    again = assign(reversed(partitions), reversed(consumers), {name: held[name][::-1] for name in reversed(list(held))})
    assert again == shares
    assert assign(partitions, consumers, shares) == shares
