"""Sessions that move between nodes on the same log: what was dispatched to them there, and what is left to do here."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping

from penstock._ext.hub.connection import Session
from penstock.dispatch.dispatcher import Dispatcher
from penstock.dispatch.persistent import PersistentDispatch
from penstock.dispatch.share_feeds import ShareFeeds
from penstock.storage.log.base import LogError
from penstock.subscribers.application.shared.delivery import SharedDelivery
from penstock.subscribers.kinds import Kinds


class SessionMoves:
    def __init__(
        self,
        kinds: Kinds,
        dispatcher: Dispatcher,
        persistent: PersistentDispatch,
        feeds: ShareFeeds,
        shared: SharedDelivery,
    ) -> None:
        self._kinds = kinds
        self._dispatcher = dispatcher
        self._persistent = persistent
        self._feeds = feeds
        self._shared = shared

    async def mark(self) -> None:
        """Dispatch begins here, should it begin later."""
        with contextlib.suppress(LogError):
            await self._dispatcher.mark()

    async def join(self) -> None:
        """Read the log: messages from other nodes are for clients here, persistent or not. Raises LogError."""
        await self._persistent.join()

    async def adopt(self, filters: Iterable[bytes], starts: Mapping[int, int], insert: Callable[[], None]) -> int:
        """Take up sessions of another node, which has dispatched to them as far as `starts`; `filters` are those of
        APPLICATION clients. `insert` puts the sessions into the topic tree and hands them to the kinds. Return how many
        records were read again. Raises LogError."""
        await self.join()
        shared = [name for name in filters if name.startswith(b"$share/")]
        async with self._shared.held(shared):
            await self._shared.learn(shared)
            filled_to = await self._feeds.fill(shared, starts)
            return await self._dispatcher.adopt(starts, insert, self._shared.unfed(shared), filled_to)

    async def give_away(self, session: Session, remove: Callable[[], None]) -> dict[int, int]:
        """Let another node go on with the session, when everything is stored; return how far it was dispatched to
        here. Raises LogError."""

        def leave() -> None:
            for kind in self._kinds:
                kind.moved_away(session)
            remove()

        for kind in self._kinds:
            await kind.stored(session)
        positions = await self._dispatcher.leave(leave)
        for kind in self._kinds:
            await kind.released(session)
        return positions

    async def dispatched_by(self, group: str) -> dict[int, int]:
        """Return how far a node has dispatched each partition of the log of all messages. Raises LogError."""
        return await self._feeds.dispatched_by(group)
