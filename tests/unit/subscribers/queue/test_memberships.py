"""Subscriptions to queues by client: found, replaced and forgotten without a look at those of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.subscribers.queue.memberships import MOST_PREFETCH, Membership, Memberships, read_properties
from penstock.subscribers.queue.names import Address
from penstock.subscribers.queue.state import MemberRecord


def membership(client_id: str, topic_filter: str) -> Membership:
    session: Any = SimpleNamespace(client_id=client_id, version=5)
    return Membership(session, topic_filter, Address("q", ""), MemberRecord(), "", [])


def test_by_client() -> None:
    memberships = Memberships()
    one, two, other = membership("a", "$queue/q"), membership("a", "$queue/r"), membership("b", "$queue/q")
    for each in (one, two, other):
        memberships.add(each)
    assert memberships.of("a") == [one, two]
    assert memberships.of("nobody") == []
    assert list(memberships) == [one, two, other]
    newer = membership("a", "$queue/q")
    memberships.add(newer)
    assert not memberships.has(one)
    assert memberships.has(newer)
    assert memberships.remove("a", "$queue/q") is newer
    assert memberships.remove("a", "$queue/q") is None
    assert memberships.remove("nobody", "$queue/q") is None
    assert memberships.of("a") == [two]


def test_those_who_leave_meanwhile_are_no_trouble() -> None:
    memberships = Memberships()
    for number in range(3):
        memberships.add(membership(f"c{number}", "$queue/q"))
    for each in memberships:
        memberships.remove(each.session.client_id, each.topic_filter)
    assert list(memberships) == []


def test_what_a_subscription_asks_for() -> None:
    session: Any = SimpleNamespace(client_id="c", version=5)
    record, position = read_properties(session, [("prefetch", "7"), ("x-stream-offset", "first")], 1, 0, 20)
    assert (record.prefetch, position) == (7, "first")
    assert read_properties(session, [("prefetch", "99999999")], 1, 0, 20)[0].prefetch == MOST_PREFETCH
    for pair in (("prefetch", "0"), ("prefetch", "many"), ("x-auto-commit", "perhaps")):
        with pytest.raises(ValueError, match=pair[0]):
            read_properties(session, [pair], 1, 0, 20)
