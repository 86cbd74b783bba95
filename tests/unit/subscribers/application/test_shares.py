"""Examples of who gets which partition; tests/model/test_shares.py has the rest."""

from __future__ import annotations

from penstock.subscribers.application.shared.shares import share_out


def test_nobody() -> None:
    assert share_out(range(4), [], {0: "gone"}) == {}


def test_no_partitions() -> None:
    assert share_out([], ["a"], {3: "a"}) == {}


def test_more_members_than_partitions() -> None:
    shared = share_out([0, 1], ["a", "b", "c"], {0: "c"})
    assert shared[0] == "c"
    assert len(set(shared.values())) == 2


def test_the_one_with_most_keeps_the_odd_one() -> None:
    owners = {0: "a", 1: "b", 2: "b"}
    assert share_out([0, 1, 2], ["a", "b"], owners) == owners


def test_what_the_one_who_left_had_is_spread() -> None:
    owners = {0: "a", 1: "a", 2: "b", 3: "b", 4: "gone", 5: "gone"}
    assert share_out(range(6), ["a", "b"], owners) == {0: "a", 1: "a", 2: "b", 3: "b", 4: "a", 5: "b"}
