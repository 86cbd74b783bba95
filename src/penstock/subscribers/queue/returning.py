"""Persistent clients that consume queues, when they are back: after a restart of this node, or from another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.consumer import Client, ConsumerTerms, LastingConsumers
from penstock.subscribers.queue.memberships import Membership
from penstock.subscribers.queue.state import MemberRecord, member_key

if TYPE_CHECKING:
    from penstock.subscribers.queue.following import Follower
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

CATCH_UP_SECONDS = 30.0

FindClient = Callable[[str], Client | None]


class Returning:
    def __init__(self, manager: QueueManager, follower: Follower | None, lasting: LastingConsumers) -> None:
        """`follower` knows what clients of other nodes consume; None: there are none."""
        self._manager = manager
        self._lasting = lasting
        self._follower = follower
        self.stored: dict[tuple[str, str], MemberRecord] = {}

    async def restore(self, find_client: FindClient) -> None:
        """They are members of their groups before anybody connects."""
        stored, self.stored = self.stored, {}
        for (client_id, name), record in stored.items():
            client = find_client(client_id)
            if client is not None:
                await self._join(client, name, record)
            elif self._follower is None:  # else it is a client of another node
                self._manager.state.store([(names.MEMBERS, member_key(client_id, name), None)])

    async def _join(self, client: Client, name: str, record: MemberRecord) -> None:
        outlet = self._lasting.outlet_of(client, record)
        terms = ConsumerTerms(record.group, record.prefetch, record.qos > 0, "", record.auto_commit)
        await self._manager.resume(Membership(client, name, self._lasting.address_of(name), terms, outlet))

    def _names_of(self, client: Client) -> set[str]:
        return {membership.name for membership in self._manager.memberships_of(client)}

    async def take_up(self, client: Client) -> None:
        """Consume here what the client consumed at another node."""
        if self._follower is None:
            return
        known = self._names_of(client)
        lacking = [name for name in self._lasting.names_of(client) if name not in known]
        if not lacking:
            return
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._follower.catch_up()
        except (LogError, TimeoutError) as error:
            log.warning("what a client consumes cannot be read", client_id=client.client_id, error=str(error))
            return
        for name in lacking:
            record = self._follower.member(client.client_id, name)
            is_wanted = name not in self._names_of(client) and name in self._lasting.names_of(client)
            if record is not None and is_wanted:  # it may have subscribed again meanwhile
                await self._join(client, name, record)
