"""Waiting for what this node has written before another node relies on it."""

from __future__ import annotations

import asyncio
import time

from penstock._ext.hub.connection import Hub
from penstock.sessions.keeper import SessionKeeper
from penstock.storage.state.base import StoreError

STORE_SECONDS = 5.0
POLL_SECONDS = 0.005


class Writes:
    def __init__(self, hub: Hub, keeper: SessionKeeper) -> None:
        self._hub = hub
        self._keeper = keeper

    async def published(self) -> None:
        """Return when what clients have published is in the log, with the wills of those that left."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        ticket = self._hub.ticket
        deadline = time.monotonic() + STORE_SECONDS
        while self._hub.committed < ticket and time.monotonic() < deadline:  # noqa: ASYNC110  # no events there
            await asyncio.sleep(POLL_SECONDS)

    async def stored(self) -> None:
        """Return when the records of sessions are durable. Raises StoreError."""
        stored: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self._keeper.wait(stored.set_result)
        error = await stored
        if error is not None:
            raise error
