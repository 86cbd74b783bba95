"""Consumers of durable queues, as every front-end presents them.

A front-end brings a client (who consumes), terms (what it asks for) and an outlet (how its deliveries are sent). The
queue gives messages to the consumers that the outlet makes, as far as they have credit, until each is settled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock._ext.hub.connection import QueueConsumer, QueueGroup
from penstock._ext.match.acl import AclProgram

if TYPE_CHECKING:
    from penstock.subscribers.queue.names import Address
    from penstock.subscribers.queue.state import MemberRecord

MOST_CREDIT = 65_535


class Client(Protocol):
    """The owner of consumers: an MQTT session, or a connection of another protocol."""

    @property
    def client_id(self) -> str: ...

    @property
    def username(self) -> str | None: ...

    @property
    def acl(self) -> AclProgram | None:
        """The rules that each delivery is checked against; None: everything is allowed."""

    @property
    def is_assigned(self) -> bool:
        """Whether the broker has made up the client id, so that the client cannot come back."""

    @property
    def expiry_interval(self) -> int:
        """Seconds that its consumers outlive its connection; 0: they end with it."""

    @property
    def connected(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class ConsumerTerms:
    """What a consumer asks for."""

    group: str = ""
    """The group it joins; empty: a group of the client's own."""
    credit: int = MOST_CREDIT
    """Messages it may have unsettled."""
    settles: bool = True
    """False: a message is done when it is sent. Only streams allow that."""
    position: str = ""
    """Where its group of a stream begins, see positions.py; empty: where it was."""
    auto_commit: bool | None = None
    """Of a stream: whether settling commits; None: the client did not say."""


class Outlet(Protocol):
    """Sends the deliveries of a consumer in the words of its protocol."""

    @property
    def stored(self) -> Mapping[str, Any]:
        """Fields of MemberRecord from which the front-end makes the outlet again after a restart."""

    def make_consumer(self, group: QueueGroup, *, credit: int, number: int) -> QueueConsumer:
        """Return a consumer of the group; `number` is its own across restarts, 0: a new one."""

    def attached(self, consumer: QueueConsumer) -> None:
        """The client has a connection again, perhaps with another version of its protocol."""

    def moved(self) -> None:
        """Another node serves the queue now, and this consumer came from a node that has to ask there."""


class LastingConsumers(Protocol):
    """Consumers that outlive their connection, as the front-end of their sessions knows them."""

    def names_of(self, client: Any) -> list[str]:
        """Return the names of the consumers that the session of a client has."""

    def address_of(self, name: str) -> Address:
        """Return the queue and filter of a consumer with this name."""

    def outlet_of(self, client: Any, record: MemberRecord) -> Outlet:
        """Return the outlet of a stored consumer."""
