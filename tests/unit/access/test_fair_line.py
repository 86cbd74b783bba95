"""Does everybody get a turn, whatever others do?"""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from penstock.access.fair_line import FairLine


def test_addresses_take_turns() -> None:
    line: FairLine[str] = FairLine(100)
    for number in range(10):
        line.put("flood", f"user{number}", f"flood{number}")
    line.put("carol's", "carol", "carol")
    assert [line.take(), line.take()] == ["flood0", "carol"]


def test_user_names_of_one_address_take_turns() -> None:
    line: FairLine[str] = FairLine(100)
    for number in range(10):
        line.put("office", "alice", f"alice{number}")
    line.put("office", "carol", "carol")
    assert [line.take(), line.take(), line.take()] == ["alice0", "carol", "alice1"]


def test_a_full_line_gives_up_the_youngest_of_the_largest_place() -> None:
    line: FairLine[str] = FairLine(4)
    for number in range(4):
        assert line.put("flood", "x", f"flood{number}") is None
    assert line.put("carol's", "carol", "carol") == "flood3"
    assert line.put("flood", "x", "one more") == "one more"
    assert line.put("flood", "carol", "another name of the flood's address") == "flood2"
    assert len(line) == 4


def test_the_largest_place_displaces_nobody() -> None:
    """Not even by chance, when all places hold one entry."""
    for seed in range(20):
        line: FairLine[str] = FairLine(1, random.Random(seed))
        line.put("office", "alice", "first")
        assert line.put("office", "alice", "second") == "second"


def test_places_of_the_same_size_leave_it_to_chance() -> None:
    """A client that tries again gets through a flood that looks like it."""
    line: FairLine[int] = FairLine(10, random.Random(1))
    for number in range(10):
        line.put("office", f"user{number}", number)
    left = Counter(line.put("office", f"new{number}", number) == number for number in range(100))
    assert left[True] > 20
    assert left[False] > 20


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.booleans()), max_size=60))
def test_everything_that_came_leaves_once(steps: list[tuple[str, str, bool]]) -> None:
    line: FairLine[int] = FairLine(5)
    came: set[int] = set()
    left: list[int] = []
    for number, (address, username, is_put) in enumerate(steps):
        if is_put:
            came.add(number)
            gone = line.put(address, username, number)
        else:
            gone = line.take()
        left += [] if gone is None else [gone]
        assert len(line) <= 5
    while (rest := line.take()) is not None:
        left.append(rest)
    assert sorted(left) == sorted(came)
    assert len(line) == 0
    assert line._addresses == {}
    assert line._sizes == {}
