"""Dispatch as persistent clients need it: it begins with the first of them, and continues after a restart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from penstock._ext.hub.connection import Session
from penstock.dispatch.dispatcher import Dispatcher
from penstock.storage.log.waiting import until_available
from penstock.subscribers.base import Arrival, Subscriber


class PersistentDispatch(Subscriber):
    """In the list of kinds after those that are fed from the log."""

    name = "dispatch"

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._is_fresh = True  # no client was to have what is in the log already

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        return arrival.expiry_interval > 0 and not self._dispatcher.is_active

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        await self.join()
        return arrival.client_type

    async def join(self) -> None:
        """Read the log from now on, or from the last commit on if there were clients before. Raises LogError."""
        await self._dispatcher.activate(from_now=self._is_fresh)

    async def start(self) -> None:
        self._dispatcher.start()

    async def restore(self, sessions: Sequence[Session]) -> None:
        if any(session.feed is not None or session.via_log for session in sessions):
            self._is_fresh = False
            await until_available(partial(self._dispatcher.activate, from_now=False), "begin to dispatch")

    async def stop(self) -> None:
        await self._dispatcher.stop()

    def counters(self) -> Mapping[str, int | float]:
        return self._dispatcher.counters()
