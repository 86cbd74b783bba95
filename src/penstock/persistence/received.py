"""The QoS 2 packet ids that publishers have not released yet, kept for sessions that outlive their connection."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from penstock._ext.connection import Session
from penstock.stores.base import Change, OnStored, StateStore

TABLE = "tbmq.client.received"


class ReceivedIds:
    """`is_shared`: other brokers keep theirs in the same store, which are left alone."""

    def __init__(self, store: StateStore, *, is_shared: bool = False) -> None:
        self._store = store
        self._is_shared = is_shared

    def store(self, changes: list[tuple[Session, bytes]], on_done: OnStored) -> None:
        """All ids of each session, as they were; none removes the record."""
        stored: list[Change] = [(TABLE, session.client_id.encode(), ids or None) for session, ids in changes]
        self._store.store(stored, on_done)

    def forget(self, client_id: str) -> None:
        self._store.store([(TABLE, client_id.encode(), None)])

    async def restore(self, find: Callable[[str], Session | None]) -> None:
        """Gives the sessions that were restored their ids back."""

        def on_record(key: bytes, value: bytes | None) -> None:
            session = find(key.decode())
            if value is None:
                return
            if session is not None:
                session.restore_received(array("H", value))
            elif not self._is_shared:
                self._store.store([(TABLE, key, None)])

        await self._store.load(TABLE, on_record)
