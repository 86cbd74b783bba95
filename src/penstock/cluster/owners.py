"""Which node has which session, and whose wills wait, as far as is written down in the shared state."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from penstock.core.tasks import TaskSet
from penstock.sessions.records import SESSIONS, WILLS, RecordError, decode_session, node_of_will, will_key
from penstock.storage.log.base import Log
from penstock.storage.state.topic_tail import StateTail

CATCH_UP_SECONDS = 3.0

K = TypeVar("K")

OnOwner = Callable[[str, str], None]
"""Called with a client id and the node that has its session by a record that was read."""


class Holders(Generic[K]):
    """Which node has what, and which nodes have anything: both are asked often, and there are very many."""

    def __init__(self) -> None:
        self.by_key: dict[K, str] = {}
        self.counts: Counter[str] = Counter()

    def put(self, key: K, node: str | None) -> None:
        """That node has it or, with None, no node has."""
        before = self.by_key.pop(key, None)
        if before is not None:
            self.counts[before] -= 1
            if not self.counts[before]:
                del self.counts[before]
        if node is not None:
            self.by_key[key] = node
            self.counts[node] += 1


class Owners:
    """Follows the records of sessions and wills. On the loop."""

    def __init__(self, log_provider: Log, node: str, prefix: str) -> None:
        self._log = log_provider
        self._node = node
        self._prefix = prefix
        self._sessions: Holders[str] = Holders()
        self._wills: Holders[bytes] = Holders()
        self._tail = self._follow((), lambda client_id, node: None)
        self._catching_up: asyncio.Task[None] | None = None
        self._next_catch_up: asyncio.Task[None] | None = None
        self._tasks = TaskSet()

    def _follow(self, tables: Iterable[str], on_owner: OnOwner) -> StateTail:
        def on_change(table: str, key: bytes, value: bytes | None) -> None:
            if table == WILLS:
                self._wills.put(key, None if value is None else node_of_will(key))
            elif table == SESSIONS:
                self._on_session(key.decode(errors="replace"), value, on_owner)

        return StateTail(self._log, list(tables), f"sessions of {self._node}", on_change, prefix=self._prefix)

    async def start(self, tables: Iterable[str], on_owner: OnOwner) -> None:
        """Return when everything in these tables was read. Raises LogError."""
        await self._tail.stop()  # of a start that failed
        self._tail = self._follow(tables, on_owner)
        await self._tail.start()

    async def stop(self) -> None:
        self._tasks.cancel()
        await self._tail.stop()

    def _on_session(self, client_id: str, value: bytes | None, on_owner: OnOwner) -> None:
        if value is None:
            self._sessions.put(client_id, None)
            return
        try:
            owner = decode_session(client_id, value).node
        except RecordError:
            return  # of a newer broker, and logged at the start
        self._sessions.put(client_id, owner)
        on_owner(client_id, owner)

    # ---- records ----

    def read(self, table: str, key: bytes) -> bytes | None:
        """Return what the newest record that was read says."""
        return self._tail.get(table, key)

    async def catch_up(self) -> None:
        """Return when everything that was durable before the call is read. Raises LogError."""
        await self._tail.catch_up()

    async def catch_up_together(self) -> None:
        """As `catch_up`, once for all that come while another one is under way. Raises LogError and TimeoutError."""
        if self._next_catch_up is None:
            self._next_catch_up = self._tasks.spawn(self._catch_up_after(self._catching_up), is_awaited=True)
        await asyncio.shield(self._next_catch_up)

    async def _catch_up_after(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._catching_up, self._next_catch_up = self._next_catch_up, None
        async with asyncio.timeout(CATCH_UP_SECONDS):  # all that come later wait for it
            await self._tail.catch_up()

    # ---- sessions ----

    def owner_of(self, client_id: str) -> str | None:
        return self._sessions.by_key.get(client_id)

    def sessions_of(self, node: str) -> list[str]:
        """Return the client ids of the sessions that a node has."""
        return [client_id for client_id, owner in self._sessions.by_key.items() if owner == node]

    def has_session(self, client_id: str) -> bool:
        """Return whether another node has stored a session of the client."""
        return self._sessions.by_key.get(client_id, "") not in ("", self._node)

    def has_sessions(self, node: str) -> bool:
        return node in self._sessions.counts

    def nodes_with_sessions(self) -> set[str]:
        return set(self._sessions.counts)

    def nodes(self) -> set[str]:
        """Return the nodes that have sessions or wills."""
        return {*self._sessions.counts, *self._wills.counts}

    # ---- wills of sessions that ended with their connection to a node that is gone ----

    def wills_of_client(self, client_id: str, alive: set[str]) -> list[bytes]:
        """Return the keys of the wills that other nodes have of the client, without those that are alive."""
        keys = [will_key(client_id, node) for node in self._wills.counts if node != self._node and node not in alive]
        return [key for key in keys if key in self._wills.by_key]

    def wills_of(self, node: str) -> list[bytes]:
        return [key for key, owner in self._wills.by_key.items() if owner == node]

    def forget_will(self, key: bytes) -> None:
        self._wills.put(key, None)
