"""The port to queues that another node serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from penstock._ext.hub.connection import Connection

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager
    from penstock.subscribers.queue.memberships import Membership

OnSettlement = Callable[[Connection, bytes, bytes, int], None]
"""Takes a settlement for another node: connection, topic, properties and the token of its answer."""


class RemoteQueues(Protocol):
    """Consumes queues at other nodes in the place of clients of this one."""

    @property
    def on_settlement(self) -> OnSettlement | None:
        """Takes settlements of deliveries from other nodes; None if there are none."""

    async def open(self, membership: Membership) -> None:
        """Consume at each node that serves queues of a new subscription; raises Refused if one cannot be reached."""

    def follow(self, membership: Membership) -> None:
        """Consume at each node that serves queues of the subscription now, and at no other."""

    def close(self, membership: Membership, *, has_left: bool = False) -> None:
        """Stop consuming elsewhere; `has_left`: the client has unsubscribed, or its session has ended."""

    def close_all(self) -> None: ...

    def counters(self) -> dict[str, int | float]: ...


MakeRemote = Callable[["QueueManager"], RemoteQueues]


class NoRemoteQueues:
    """For a node without others: it serves every queue itself."""

    on_settlement = None

    def __init__(self, manager: QueueManager) -> None: ...

    async def open(self, membership: Membership) -> None: ...

    def follow(self, membership: Membership) -> None: ...

    def close(self, membership: Membership, *, has_left: bool = False) -> None: ...

    def close_all(self) -> None: ...

    def counters(self) -> dict[str, int | float]:
        return {}
