"""Sessions, and wills, of nodes that have let go of them or are gone: this node takes them up."""

from __future__ import annotations

from collections.abc import Callable

from penstock._ext.hub.connection import Session
from penstock._ext.match.acl import AclProgram
from penstock.access.base import Subject
from penstock.cluster.owners import Owners
from penstock.cluster.writes import Writes
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.dispatch.moves import SessionMoves
from penstock.ingest import received
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.records import (
    SESSIONS,
    SUBSCRIPTIONS,
    WILLS,
    RecordError,
    SessionRecord,
    decode_subscriptions,
    decode_will,
)
from penstock.sessions.registry import SessionRegistry
from penstock.storage.state.base import StoreError
from penstock.subscribers.application.names import ApplicationNames
from penstock.subscribers.base import Moved
from penstock.subscribers.kinds import Kinds

log = get_logger("penstock.cluster")

TABLES = (SESSIONS, SUBSCRIPTIONS, WILLS, received.TABLE)
WILLS_AT_ONCE = 1_000

FindProgram = Callable[[Subject], AclProgram | None]
"""The rules of a client and its user."""


class Adoption:
    """Takes up sessions that other nodes have had, with what their kinds of subscriber have stored of them."""

    def __init__(
        self,
        registry: SessionRegistry,
        keeper: SessionKeeper,
        kinds: Kinds,
        moves: SessionMoves,
        *,
        names: ApplicationNames,
        owners: Owners,
        program_for: FindProgram,
    ) -> None:
        self._registry = registry
        self._keeper = keeper
        self._kinds = kinds
        self._moves = moves
        self._names = names
        self._owners = owners
        self._program_for = program_for
        self.count = 0

    async def start(self, on_owner: Callable[[str, str], None]) -> None:
        """Read what is stored of sessions, and follow it. Raises LogError."""
        await self._owners.start([*TABLES, *(table for kind in self._kinds for table in kind.tables)], on_owner)

    async def adopt(self, records: list[SessionRecord], starts: dict[int, int]) -> None:
        """`starts`: how far the node that had them has dispatched. Raises LogError."""
        stored = {record.client_id: self._owners.read(SUBSCRIPTIONS, record.client_id.encode()) for record in records}
        filters = {
            client_id: [] if value is None else [name for name, _, _ in decode_subscriptions(client_id, value)]
            for client_id, value in stored.items()
        }
        of_applications = [
            topic_filter
            for record in records
            if self._names.serves(record.client_id, record.client_type, record.expiry_interval)
            for topic_filter in filters[record.client_id]
        ]
        sessions: list[tuple[Session, int]] = []

        def insert() -> None:
            for record in records:
                client_id = record.client_id
                if self._registry.get(client_id) is None:
                    session = self._insert(record, stored[client_id], filters[client_id])
                    sessions.append((session, record.disconnected_at))

        repeated = await self._moves.adopt(of_applications, starts, insert)
        for session, left in sessions:
            session.is_adopted = False
            self._registry.await_return(session, left or self._keeper.now_ms())
        self.count += len(sessions)
        log.info("sessions were taken up from another broker", sessions=len(sessions), messages_looked_at=repeated)

    def _insert(self, record: SessionRecord, subscriptions: bytes | None, filters: list[bytes]) -> Session:
        client_id = record.client_id
        session = self._registry.adopt(record, self._program_for(record.to_subject()), subscriptions)
        session.is_adopted = True
        unreleased = self._owners.read(received.TABLE, client_id.encode())
        if unreleased is not None:
            session.restore_received(unreleased)
        moved = Moved(filters, record.disconnected_at or self._keeper.now_ms(), self._owners.read)
        for kind in self._kinds:
            kind.take_up(session, moved)
        return session


class LeftWills:
    """Wills of sessions that ended with their connection to a node that is gone."""

    def __init__(
        self,
        registry: SessionRegistry,
        keeper: SessionKeeper,
        owners: Owners,
        writes: Writes,
        program_for: FindProgram,
    ) -> None:
        self._registry = registry
        self._keeper = keeper
        self._owners = owners
        self._writes = writes
        self._program_for = program_for
        self._tasks = TaskSet()

    def publish(self, keys: list[bytes]) -> None:
        """They leave their records when they are in the log: if a node is killed in between, they are published rather
        twice than never."""
        for key in keys:
            self._owners.forget_will(key)
            try:
                record = decode_will(key, self._owners.read(WILLS, key) or b"")
            except RecordError as error:
                log.error("a stored will is left alone", error=str(error))
            else:
                self._registry.publish_left_will(record, self._program_for(record.to_subject()))
        self._tasks.spawn(self._forget(keys))

    async def publish_all(self, node: str) -> None:
        """Those of a node that is gone."""
        left = self._owners.wills_of(node)
        for first in range(0, len(left), WILLS_AT_ONCE):
            self.publish(left[first : first + WILLS_AT_ONCE])
            await self._writes.published()

    async def _forget(self, keys: list[bytes]) -> None:
        await self._writes.published()
        try:
            await self._keeper.remove_wills(keys)
        except StoreError as error:
            log.warning("wills that were published are still in their records", wills=len(keys), error=str(error))

    def stop(self) -> None:
        self._tasks.cancel()
