"""Who consumes what: the subscriptions of clients to queues, and what they asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from penstock.core.refusal import Refusal, Refused
from penstock.subscribers.queue.abandoned import Life
from penstock.subscribers.queue.consumer import Client, ConsumerTerms, Outlet
from penstock.subscribers.queue.group import Group, Member
from penstock.subscribers.queue.names import Address, group_id, is_dead_letters
from penstock.subscribers.queue.rights import identity_of, may_consume, may_have_all
from penstock.subscribers.queue.state import MemberRecord

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

QOS_0 = "a classic queue is consumed with QoS 1 or 2"
NO_POSITION = "x-stream-offset is for streams, and the queue is a classic one"


@dataclass(slots=True, eq=False)
class Membership:
    """A client that consumes a queue, or all of them; `name` tells its consumers apart (in MQTT, the topic filter)."""

    client: Client
    name: str
    address: Address
    terms: ConsumerTerms
    outlet: Outlet
    relayed_life: Life | None = None
    """If the client is another node, for one of its own: the lifetime of the group, as that node says."""
    position: str = ""
    """Where its groups of streams have yet to be moved."""
    members: list[tuple[Group, Member]] = field(default_factory=list)
    has_lost: bool = False
    """Whether one of its groups has expired while the client was absent; the client joins again when it is back."""
    placed: set[str] = field(default_factory=set)
    """Queues in which its groups were moved to `position`: that is done once, not whenever the client joins again."""

    @property
    def is_relayed(self) -> bool:
        return self.relayed_life is not None

    @property
    def record(self) -> MemberRecord:
        """What is stored of it, for a client whose consumers outlive its connection."""
        terms = self.terms
        return MemberRecord(terms.group, terms.credit, terms.auto_commit, **self.outlet.stored)

    @property
    def group_name(self) -> str:
        return self.terms.group or self.client.client_id

    @property
    def life(self) -> Life:
        """Lifetime of the groups that this subscription creates."""
        if self.relayed_life is not None:
            return self.relayed_life
        if self.terms.group:
            return "named"
        return "session" if self.client.expiry_interval else "connection"

    def may_consume(self, queue: str) -> bool:
        """As the rules are now."""
        return may_consume(self.client.acl, queue, self.address)

    def may_move(self, queue: Queue) -> bool:
        """Return whether the client may move the place of its group in a stream: the group is new or created by the
        same user, or the client may receive everything the group reads."""
        group = queue.groups.get(group_id(self.group_name, self.address.filter))
        if group is None or group.made_by == identity_of(self.client):
            return True
        return may_have_all(self.client.acl, queue.name, self.address)

    def waits_for(self, queue: Queue) -> bool:
        """Return whether the client consumes a new queue. Ephemeral queues belong to one node."""
        if self.is_relayed and not queue.definition.durable:
            return False
        name, spans = self.address.queue, self.address.spans_queues
        return name == queue.name or (spans and is_dead_letters(name) == is_dead_letters(queue.name))

    def has_joined(self, queue: object) -> bool:
        return any(group.queue is queue for group, _ in self.members)


class Memberships:
    """By client and name: what concerns one client costs the same however many others consume."""

    def __init__(self) -> None:
        self._of: dict[str, dict[str, Membership]] = {}

    def __iter__(self) -> Iterator[Membership]:
        """Those of now, whatever becomes of them meanwhile."""
        return iter([membership for of_client in self._of.values() for membership in of_client.values()])

    def add(self, membership: Membership) -> None:
        self._of.setdefault(membership.client.client_id, {})[membership.name] = membership

    def has(self, membership: Membership) -> bool:
        return self._of.get(membership.client.client_id, {}).get(membership.name) is membership

    def of(self, client_id: str) -> list[Membership]:
        return list(self._of.get(client_id, {}).values())

    def remove(self, client_id: str, name: str) -> Membership | None:
        of_client = self._of.get(client_id)
        if of_client is None:
            return None
        membership = of_client.pop(name, None)
        if not of_client:
            del self._of[client_id]
        return membership


def check_kind(membership: Membership, kinds: set[str]) -> None:
    """Raise Refused if queues of these kinds cannot be consumed as the client asks."""
    if "classic" not in kinds:
        return
    if not membership.terms.settles:
        raise Refused(Refusal.NOT_SUPPORTED, QOS_0)
    if membership.position and not membership.address.spans_queues:
        raise Refused(Refusal.INVALID_ARGUMENT, NO_POSITION)
