"""Who consumes what: the subscriptions of clients to queues, and what they asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock._ext.connection import Session
from penstock.queues.group import Group, Member
from penstock.queues.names import Address
from penstock.queues.state import MemberRecord

if TYPE_CHECKING:
    from penstock.queues.relays import Relay

MOST_PREFETCH = 65_535


@dataclass(slots=True)
class Membership:
    """A subscription of a client to a queue, or to all of them. `is_relayed`: the client is another node, for one of
    its own; `relays` are the links to other nodes, by their names, over which this one does the same."""

    session: Session
    topic_filter: str
    address: Address
    record: MemberRecord
    position: str
    members: list[tuple[Group, Member]]
    is_relayed: bool = False
    relays: dict[str, Relay] = field(default_factory=dict)

    @property
    def may_consume(self) -> bool:
        """As the rules are now."""
        acl = self.session.acl
        return acl is None or acl.may_subscribe(self.topic_filter.encode())

    def has_joined(self, queue: object) -> bool:
        return any(group.queue is queue for group, _ in self.members)


class Memberships:
    """By client and filter: what concerns one client costs the same however many others consume."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Membership]] = {}

    def __iter__(self) -> Iterator[Membership]:
        """Those of now, whatever becomes of them meanwhile."""
        return iter([membership for of_client in self._of.values() for membership in of_client.values()])

    def add(self, membership: Membership) -> None:
        self._of.setdefault(membership.session.client_id, {})[membership.topic_filter] = membership

    def has(self, membership: Membership) -> bool:
        return self._of.get(membership.session.client_id, {}).get(membership.topic_filter) is membership

    def of(self, client_id: str) -> list[Membership]:
        return list(self._of.get(client_id, {}).values())

    def remove(self, client_id: str, topic_filter: str) -> Membership | None:
        of_client = self._of.get(client_id)
        if of_client is None:
            return None
        membership = of_client.pop(topic_filter, None)
        if not of_client:
            del self._of[client_id]
        return membership


def read_properties(
    session: Session, properties: Iterable[tuple[str, str]], qos: int, identifier: int, receive_maximum: int
) -> tuple[MemberRecord, str]:
    """What a SUBSCRIBE asks for; raises ValueError."""
    given = dict(properties)
    prefetch = receive_maximum
    if "prefetch" in given:
        if not given["prefetch"].isascii() or not given["prefetch"].isdigit() or not int(given["prefetch"]):
            raise ValueError(f"prefetch {given['prefetch'][:40]!r} is no number from 1 on")
        prefetch = min(int(given["prefetch"]), MOST_PREFETCH)
    for name in ("x-auto-commit", "settle-on-ack"):
        if given.get(name, "true").lower() not in ("true", "false"):
            raise ValueError(f"{name} is true or false, not {given[name][:40]!r}")
    return (
        MemberRecord(
            group=given.get("consumer-group", "") if session.version == 5 else "",
            prefetch=max(prefetch, 1),
            auto_commit=given["x-auto-commit"].lower() == "true" if "x-auto-commit" in given else None,
            settles_by_ack=session.version != 5 or given.get("settle-on-ack", "false").lower() == "true",
            qos=qos,
            identifier=identifier,
        ),
        given.get("x-stream-offset", ""),
    )
