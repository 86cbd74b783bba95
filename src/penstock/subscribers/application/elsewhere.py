"""The port to other nodes on the same log, for APPLICATION clients, and the answers of a node that is alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock.services.housekeeper import Task, Use


class Elsewhere:
    """Asked before something is removed or begun that other nodes may use. As it is here, the node is alone."""

    is_alone = True

    def has_session(self, client_id: str) -> bool:
        """Return whether another node has a session of the client."""
        return False

    def has_members(self, share_filter: bytes) -> bool:
        """Return whether other nodes have members of a share group."""
        return False

    def dispatch_groups(self) -> Iterable[str]:
        """Return the consumer groups of the nodes that may write to the topics of shared filters."""
        return ()

    def joined(self, share_filter: bytes) -> None:
        """A client of this node has subscribed to a shared filter."""

    async def use_of(self, task: Task) -> Use:
        """Return what other nodes use of something that is to be removed. Raises PenstockError if that is not known."""
        return Use.NONE

    async def before_joining(self, topics: Sequence[str]) -> None:
        """Return when no other node removes these topics of shared filters."""
