"""Topics of shared filters that other nodes write, too.

A reader of such a topic takes for a repeat what comes after a later record of the log of all messages. So a node may
begin to write only when everything before is there: what another node has not surely written, which is what it has not
committed, is written by this one first.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

from penstock.dispatch.dispatcher import Dispatcher
from penstock.storage.log.base import Log
from penstock.subscribers.application.elsewhere import Elsewhere
from penstock.subscribers.application.shared.delivery import SharedDelivery


class ShareFeeds:
    def __init__(
        self, dispatcher: Dispatcher, shared: SharedDelivery, log_provider: Log, ingest_topic: str, elsewhere: Elsewhere
    ) -> None:
        self._dispatcher = dispatcher
        self._shared = shared
        self._log = log_provider
        self._ingest_topic = ingest_topic
        self._elsewhere = elsewhere

    @contextlib.asynccontextmanager
    async def sharing(self, filters: Sequence[bytes]) -> AsyncIterator[None]:
        """The topics and groups of the filters are there. Clients become members within the context; nothing that the
        groups are to have is missing then. Raises LogError."""
        await self._shared.kept(filters)
        for name in filters:
            await self._shared.make(name)
        # Not for groups that are new, which begin after it.
        filled_to = await self.fill(filters, {})
        for name in filters:
            await self._shared.begin(name)
        if not filled_to:
            yield
            return
        async with self._dispatcher.filling(self._shared.unfed(filters), filled_to):
            yield

    async def fill(self, filters: Iterable[bytes], starts: Mapping[int, int]) -> dict[int, int]:
        """Write to the topics that this node has not written to yet, from where the slowest node is; return how far.
        Raises LogError."""
        feeds = self._shared.unfed(filters)
        if not feeds:
            return {}
        lowest = dict(starts)
        for offsets in await asyncio.gather(*map(self.dispatched_by, self._elsewhere.dispatch_groups())):
            for partition, offset in offsets.items():
                lowest[partition] = min(lowest.get(partition, offset), offset)
        return await self._dispatcher.refill(feeds, lowest) if lowest else {}

    async def dispatched_by(self, group: str) -> dict[int, int]:
        """Return how far a node has dispatched each partition of the log of all messages. Raises LogError."""
        committed = await self._log.admin.group_offsets(group, [self._ingest_topic])
        return {place.partition: offset.offset for place, offset in committed.items()}
