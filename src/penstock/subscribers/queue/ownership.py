"""Which of the queues this node serves: all of them where it is alone; in a cluster each has one node, which follows
from its name and from who is alive.

Who takes a queue over reads first what is stored of its groups. Of the queues of others it knows their groups only as
they once were: it delivers nothing, removes nothing and writes nothing of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from penstock.core.logging import get_logger
from penstock.services.model import ClusterTopologyChange
from penstock.services.node import ClusterNode
from penstock.storage.log.base import LogError
from penstock.storage.state.base import StoreError
from penstock.subscribers.queue.memberships import Membership
from penstock.subscribers.queue.queue import Queue

if TYPE_CHECKING:
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

JOIN_SECONDS = 10.0
RETRY_SECONDS = 1.0
LOOK_SECONDS = 1.0


class Ownership:
    def __init__(self, manager: QueueManager, node: ClusterNode | None) -> None:
        self._manager = manager
        self._node = node
        self._renewing = asyncio.Lock()
        self._is_started = False
        self._has_changed = False
        self._is_following = False
        if node is not None:
            node.partitions.listen(ClusterTopologyChange, self._on_change)

    def start(self) -> None:
        """The queues are there, as they are stored."""
        self._is_started = True
        if self._node is not None:
            self._follow_soon()
            self._manager.spawn(self._look_at_depths())

    # ---- who serves what ----

    def owns(self, queue: Queue) -> bool:
        """Ephemeral queues are each node's own."""
        return self._node is None or not queue.definition.durable or self._node.owns(queue.name)

    def owner_of(self, queue: Queue) -> str | None:
        """The node that serves it; None where there is only one."""
        if self._node is None:
            return None
        return self._node.owner_of(queue.name) if queue.definition.durable else self._node.service_id

    def note(self, queue: Queue) -> None:
        """Of a queue that is new here, or whose owner may be another now."""
        queue.core.is_elsewhere = not self.owns(queue)
        queue.is_current = queue.is_current and not queue.core.is_elsewhere

    async def joined(self) -> bool:
        """Whether that is known at all; waits for it."""
        return self._node is None or await self._node.joined(JOIN_SECONDS)

    async def serve(self, queues: Sequence[Queue]) -> bool:
        """Whether this node owns all of them. What another node did with one before is read first."""
        if not await self.joined() or not all(self.owns(queue) for queue in queues):
            return False
        async with self._renewing:
            if any(not queue.is_current for queue in queues):
                # all that are this node's now, so that the state is read once for them
                every = self._manager.queues.values()
                stale = [queue for queue in every if not queue.is_current and self.owns(queue)]
                _, stored, _ = await self._manager.state.load()
                for queue in stale:
                    await queue.renew(stored.get(queue.name))
        return True

    # ---- when other nodes come or go ----

    def _on_change(self, event: ClusterTopologyChange) -> None:
        for queue in self._manager.queues.values():
            self.note(queue)
        self._follow_soon()

    def _follow_soon(self) -> None:
        self._has_changed = True
        if self._is_started and not self._is_following:
            self._is_following = True
            self._manager.spawn(self._follow_changes())

    async def _follow_changes(self) -> None:
        try:
            while self._has_changed:
                self._has_changed = False
                try:
                    await self._follow_all()
                except (LogError, StoreError) as error:
                    log.warning("queues cannot be taken over yet", error=str(error))
                    self._has_changed = True
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            self._is_following = False

    async def _follow_all(self) -> None:
        """Consumers of queues that are served elsewhere now are served through that node, those of queues that are
        served here now go on here."""
        while not await self.joined():
            log.warning("consumers of queues wait until the cluster is joined")
        for membership in self._manager.memberships():
            for group, member in [pair for pair in membership.members if pair[0].queue.core.is_elsewhere]:
                membership.position = ""  # where it wanted to begin, it has begun
                group.leave(member)
                membership.members.remove((group, member))
                log.info("a queue is served by another node now", queue=group.queue.name, client_id=member.client_id)
        # also those without consumers: what is pending has its time, dead letters are to be buried
        await self.serve([queue for queue in self._manager.queues.values() if self.owns(queue)])
        for membership in self._manager.memberships():
            await self.follow(membership, self._manager.queues_for(membership))

    async def follow(self, membership: Membership, queues: Iterable[Queue]) -> None:
        """The client consumes these queues where they are served."""
        self._manager.remote.follow(membership)
        for queue in queues:
            if not membership.has_joined(queue) and self.owns(queue) and await self.serve([queue]):
                await self._manager.join(membership, queue)
        if membership.is_relayed and not membership.members and not membership.address.spans_queues:
            membership.outlet.moved()

    # ---- limits, where publishers and consumers are at different nodes ----

    async def _look_at_depths(self) -> None:
        """How deep a queue is depends on what others publish, and on what is settled at another node."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self._look_once()
            except (LogError, StoreError) as error:
                log.debug("the depth of queues cannot be looked at", error=str(error))

    async def _look_once(self) -> None:
        limited = [queue for queue in self._manager.queues.values() if queue.core.max_depth and queue.is_made]
        for queue in limited:
            if queue.core.drops_oldest and queue.is_current and queue.groups:
                await queue.look()
                queue.mind_depth()
        full = [queue for queue in limited if queue.core.is_elsewhere and 2 * queue.core.depth >= queue.core.max_depth]
        if full:
            async with self._renewing:
                _, stored, _ = await self._manager.state.load()
                for queue in full:
                    if queue.core.is_elsewhere:
                        await queue.reread(stored.get(queue.name))
