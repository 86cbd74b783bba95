"""Who consumes what: the subscriptions of clients to queues, and what they asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Session
from penstock.core.refusal import Refusal, Refused
from penstock.subscribers.queue.abandoned import LIVES, Life
from penstock.subscribers.queue.group import Group, Member
from penstock.subscribers.queue.names import Address, group_id, is_dead_letters
from penstock.subscribers.queue.rights import identity_of, may_consume, may_have_all
from penstock.subscribers.queue.state import MemberRecord

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

MOST_PREFETCH = 65_535
QOS_0 = "a classic queue is consumed with QoS 1 or 2"
NO_POSITION = "x-stream-offset is for streams, and the queue is a classic one"
LIFE_PROPERTY = "x-group-life"  # between nodes: how long the group of a relayed client stays


@dataclass(slots=True, eq=False)
class Membership:
    """A subscription of a client to a queue, or to all of them. `is_relayed`: the client is another node, for one of
    its own."""

    session: Session
    topic_filter: str
    address: Address
    record: MemberRecord
    position: str
    members: list[tuple[Group, Member]]
    is_relayed: bool = False
    relayed_life: Life = "named"
    """Lifetime of the group, as sent by the node of a relayed client."""
    has_lost: bool = False
    """Whether one of its groups has expired while the client was absent; the client joins again when it is back."""
    placed: set[str] = field(default_factory=set)
    """Queues in which its groups were moved to `position`: that is done once, not whenever the client joins again."""

    @property
    def group_name(self) -> str:
        return self.record.group or self.session.client_id

    @property
    def life(self) -> Life:
        """Lifetime of the groups that this subscription creates."""
        if self.is_relayed:
            return self.relayed_life
        if self.record.group:
            return "named"
        return "session" if self.session.expiry_interval else "connection"

    def may_consume(self, queue: str) -> bool:
        """As the rules are now."""
        return may_consume(self.session.acl, queue, self.address)

    def may_move(self, queue: Queue) -> bool:
        """Return whether the client may move the place of its group in a stream: the group is new or created by the
        same user, or the client may receive everything the group reads."""
        group = queue.groups.get(group_id(self.group_name, self.address.filter))
        if group is None or group.made_by == identity_of(self.session):
            return True
        return may_have_all(self.session.acl, queue.name, self.address)

    def waits_for(self, queue: Queue) -> bool:
        """Return whether the client consumes a new queue. Ephemeral queues belong to one node."""
        if self.is_relayed and not queue.definition.durable:
            return False
        name, spans = self.address.queue, self.address.spans_queues
        return name == queue.name or (spans and is_dead_letters(name) == is_dead_letters(queue.name))

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


def read_life(properties: Iterable[tuple[str, str]]) -> Life:
    """Return the lifetime that another node sends for the group of its client; named if it sends none."""
    given = dict(properties).get(LIFE_PROPERTY)
    return next((life for life in LIVES if life == given), "named")


def check_kind(membership: Membership, kinds: set[str]) -> None:
    """Raise Refused if queues of these kinds cannot be consumed as the client asks."""
    if "classic" not in kinds:
        return
    if membership.record.qos == 0:
        raise Refused(Refusal.NOT_SUPPORTED, QOS_0)
    if membership.position and not membership.address.spans_queues:
        raise Refused(Refusal.INVALID_ARGUMENT, NO_POSITION)
