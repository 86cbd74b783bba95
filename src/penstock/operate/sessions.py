"""Looking at sessions, disconnecting their clients and ending them, for the admin API."""

from __future__ import annotations

import asyncio
import builtins
import fnmatch
import re
from datetime import UTC, datetime
from typing import Any

from penstock._ext.hub.connection import Session
from penstock._ext.wire.packets import Reason
from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.core.logging import get_logger
from penstock.sessions.registry import SessionRegistry
from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.base import DeviceStore, QueueState, client_queue, result_of

log = get_logger("penstock.sessions")

MOST_LISTED = 10_000
MOST_FILTERS = 1_000
LONGEST_PATTERN = 1_024
# Between so many sessions everybody else has a turn: a list is never on a message's way.
LOOKED_AT_ONCE = 2_000
DESCRIBED_AT_ONCE = 200
ASKED_AT_ONCE = 50
STORE_SECONDS = 2.0

VERSIONS = {3: "3.1", 4: "3.1.1", 5: "5.0"}


class SessionControl:
    """All sessions of this broker. `store` has what waits for persistent DEVICE clients, where there is one."""

    def __init__(self, registry: SessionRegistry, store: DeviceStore | None = None) -> None:
        self._registry = registry
        self._store = store

    async def list(self, pattern: str, limit: int) -> dict[str, Any]:
        """At most `limit` sessions whose client id matches the glob, in the order they were made, and whether there
        are more."""
        if len(pattern) > LONGEST_PATTERN:
            raise UsageError(f"the pattern is longer than {LONGEST_PATTERN} characters")
        found, truncated = await self._match(pattern, limit)
        entries: builtins.list[dict[str, Any]] = []
        for index, session in enumerate(found):
            if index and index % DESCRIBED_AT_ONCE == 0:
                await asyncio.sleep(0)
            entries.append({**self._describe(session), "stored": None})
        await self._add_stored(found, entries)
        return {"sessions": entries, "total": len(self._registry), "truncated": truncated}

    async def _add_stored(self, sessions: builtins.list[Session], entries: builtins.list[dict[str, Any]]) -> None:
        """What waits in the store, of as many sessions as it answers for in time. A few at once: between them it does
        what messages wait for."""
        if self._store is None:
            return
        asked = [(session, entry) for session, entry in zip(sessions, entries, strict=True) if session.via_log]
        end = asyncio.get_running_loop().time() + STORE_SECONDS
        for start in range(0, len(asked), ASKED_AT_ONCE):
            some = asked[start : start + ASKED_AT_ONCE]
            states = await asyncio.gather(*(self._ask_store(session) for session, _ in some))
            for (_, entry), state in zip(some, states, strict=True):
                entry["stored"] = None if state is None else state.messages
            if asyncio.get_running_loop().time() > end:
                return

    async def _match(self, pattern: str, limit: int) -> tuple[builtins.list[Session], bool]:
        matches = re.compile(fnmatch.translate(pattern)).match
        found: builtins.list[Session] = []
        for index, session in enumerate(self._registry.sessions()):
            if index and index % LOOKED_AT_ONCE == 0:
                await asyncio.sleep(0)
            if pattern == "*" or matches(session.client_id):
                if len(found) == limit:
                    return found, True
                found.append(session)
        return found, False

    async def show(self, client_id: str) -> dict[str, Any]:
        """With the subscriptions, and what waits in the store for a persistent DEVICE client."""
        session = self._find(client_id)
        entry = self._describe(session)
        state = await self._ask_store(session)
        filters = session.hub.trie.subscriptions(session)
        return {
            **entry,
            "stored": None if state is None else state.messages,
            "last_packet_id": None if state is None else state.last_packet_id,
            "filters": [_describe_filter(*each) for each in filters[:MOST_FILTERS]],
            "filters_truncated": len(filters) > MOST_FILTERS,
        }

    async def kick(self, client_id: str) -> dict[str, Any]:
        """Disconnects the client; its session stays as long as it was to outlive the connection. The entry as it
        was."""
        session = self._find(client_id)
        connection = session.connection
        if connection is None:
            raise ConflictError(
                f"the client {client_id!r} is not connected", "`penstock session delete` ends the session it has left."
            )
        entry = self._describe(session)
        connection.disconnect(Reason.ADMINISTRATIVE_ACTION, "disconnected by an operator")
        log.info("a client was disconnected by an operator", client_id=client_id)
        return entry

    async def delete(self, client_id: str) -> dict[str, Any]:
        """Disconnects the client and ends its session, with everything that waits for it. The entry as it was."""
        session = self._find(client_id)
        entry = self._describe(session)
        self._registry.kick(session, "deleted by an operator")
        log.info("a session was deleted by an operator", client_id=client_id)
        return entry

    def _find(self, client_id: str) -> Session:
        session = self._registry.get(client_id)
        if session is None:
            raise NotFoundError(
                f"there is no session of the client {client_id!r}", "`penstock session list` shows those there are."
            )
        return session

    async def _ask_store(self, session: Session) -> QueueState | None:
        """Nothing where nothing can be stored, and while the store cannot say."""
        if self._store is None or not session.via_log:
            return None
        try:
            async with asyncio.timeout(STORE_SECONDS):
                state: QueueState = await result_of(self._store.describe, client_queue(session.client_id))
                return state
        except (StoreError, TimeoutError):
            return None

    def _describe(self, session: Session) -> dict[str, Any]:
        connection = session.connection
        created, disconnected = self._times(session)
        return {
            "client_id": session.client_id,
            "username": session.username,
            "client_type": session.client_type,
            "connected": connection is not None,
            "version": VERSIONS.get(session.version),
            "peer": None if connection is None else connection.peer,
            "session_expiry": session.expiry_interval,
            "created": created,
            "disconnected": disconnected,
            "subscriptions": session.hub.trie.count(session),
            "in_flight": session.inflight,
            "queued": session.queued_messages,
            "queued_bytes": session.queued_bytes,
            "unreleased": session.unreleased,
            "dropped": {cause: count for cause, count in session.dropped().items() if count},
            "delivery": _describe_delivery(session),
        }

    def _times(self, session: Session) -> tuple[str | None, str | None]:
        """Since when it is there, and since when its client is away: known of sessions that outlive connections."""
        kept = None if self._registry.keeper is None else self._registry.keeper.get(session.client_id)
        if kept is None or kept.session is not session:
            return None, None
        return _to_text(kept.created_at), _to_text(kept.disconnected_at)


def _describe_delivery(session: Session) -> str | None:
    """Of a persistent DEVICE client: whether it gets messages as they come, or those in the store first."""
    if not session.via_log:
        return None
    return "live" if session.live else "backlog"


def _describe_filter(topic_filter: bytes, options: int, identifier: int) -> dict[str, Any]:
    return {
        "filter": topic_filter.decode(errors="replace"),
        "qos": options & 3,
        "no_local": bool(options & 4),
        "retain_as_published": bool(options & 8),
        "retain_handling": options >> 4 & 3,
        "identifier": identifier or None,
    }


def _to_text(milliseconds: int) -> str | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds") if milliseconds else None
