"""Persistent clients that consume queues, when they are back: after a restart of this node, or from another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock._ext.hub.connection import Session
from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.memberships import Membership
from penstock.subscribers.queue.names import ROOT, parse_subscription
from penstock.subscribers.queue.state import MemberRecord, member_key

if TYPE_CHECKING:
    from penstock.subscribers.queue.following import Follower
    from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.queues")

CATCH_UP_SECONDS = 30.0

FindSession = Callable[[str], Session | None]


class Returning:
    def __init__(self, manager: QueueManager, follower: Follower | None) -> None:
        """`follower` knows what clients of other nodes consume; None: there are none."""
        self._manager = manager
        self._follower = follower
        self.stored: dict[tuple[str, str], MemberRecord] = {}

    async def restore(self, find_session: FindSession) -> None:
        """They are members of their groups before anybody connects."""
        stored, self.stored = self.stored, {}
        for (client_id, topic_filter), record in stored.items():
            session = find_session(client_id)
            if session is not None:
                await self._join(session, topic_filter, record)
            elif self._follower is None:  # else it is a client of another node
                self._manager.state.store([(names.MEMBERS, member_key(client_id, topic_filter), None)])

    async def _join(self, session: Session, topic_filter: str, record: MemberRecord) -> None:
        membership = Membership(session, topic_filter, parse_subscription(topic_filter), record, "", [])
        await self._manager.consume(membership)

    async def take_up(self, session: Session) -> None:
        """What it consumed at another node it consumes here."""
        if self._follower is None:
            return
        known = {membership.topic_filter for membership in self._manager.memberships_of(session)}
        subscriptions = self._manager.hub.trie.subscriptions(session)
        filters = [name.decode() for name, _, _ in subscriptions if name.startswith(f"{ROOT}/".encode())]
        lacking = [topic_filter for topic_filter in filters if topic_filter not in known]
        if not lacking:
            return
        try:
            async with asyncio.timeout(CATCH_UP_SECONDS):
                await self._follower.catch_up()
        except (LogError, TimeoutError) as error:
            log.warning("what a client consumes cannot be read", client_id=session.client_id, error=str(error))
            return
        for topic_filter in lacking:
            record = self._follower.member(session.client_id, topic_filter)
            known = {membership.topic_filter for membership in self._manager.memberships_of(session)}
            is_wanted = topic_filter not in known and self._manager.hub.trie.has(session, topic_filter.encode())
            if record is not None and is_wanted:  # it may have subscribed anew meanwhile
                await self._join(session, topic_filter, record)
