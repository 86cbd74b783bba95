"""Durable state for tests and for brokers that keep nothing: it outlives whoever uses it, not the process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from penstock.storage.state.base import Change, OnRecord, OnStored, StoreError


class MemoryStateStore:
    """See StateStore in base.py. A test says in `failure` why nothing can be stored now."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {}
        self.failure = ""
        self._waiting: list[tuple[list[Change], OnStored | None]] = []

    async def load(self, table: str, on_record: OnRecord) -> int:
        records = list(self.tables.get(table, {}).items())
        for key, value in records:
            on_record(key, value)
        return len(records)

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._commit)
        self._waiting.append((list(changes), on_done))

    def _commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        error = StoreError(self.failure) if self.failure else None
        if error is None:
            for changes, _ in waiting:
                self._apply(changes)
        for _, on_done in waiting:
            if on_done is not None:
                on_done(error)

    def _apply(self, changes: Iterable[Change]) -> None:
        for table, key, value in changes:
            records = self.tables.setdefault(table, {})
            if value is None:
                records.pop(key, None)
            else:
                records[key] = value

    async def flush(self) -> None:
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store((), done.set_result)
        error = await done
        if error is not None:
            raise error

    @property
    def pending(self) -> int:
        return sum(len(changes) for changes, _ in self._waiting)

    def check(self) -> bool | str:
        return self.failure or True

    async def close(self) -> None:
        if self._waiting:
            self._commit()
