"""Subscriptions to queues by client: found, replaced and forgotten without a look at those of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.subscribers.queue.consumer import ConsumerTerms
from penstock.subscribers.queue.memberships import Membership, Memberships
from penstock.subscribers.queue.names import Address


def membership(client_id: str, name: str) -> Membership:
    client: Any = SimpleNamespace(client_id=client_id)
    outlet: Any = None
    return Membership(client, name, Address("q", ""), ConsumerTerms(), outlet)


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
        memberships.remove(each.client.client_id, each.name)
    assert list(memberships) == []
