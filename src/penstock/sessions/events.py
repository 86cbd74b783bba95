"""Events of sessions for the topic `tbmq.events`: who came, subscribed and went, and what it was sent or not sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from penstock._ext.hub.connection import Connection, Session
from penstock.core.logging import get_logger
from penstock.sessions.event_log import EventKind, EventRecorder
from penstock.storage.log.base import LogError

log = get_logger("penstock.events")

REPORT_SECONDS = 10.0
SESSIONS_AT_ONCE = 1_000
RETRY_SECONDS = 5.0


class SessionEvents:
    """Counts of messages are told when they have changed, every few seconds and when a client goes."""

    def __init__(self, events: EventRecorder, sessions: Mapping[str, Session]) -> None:
        self._events = events
        self._sessions = sessions
        self._told: dict[Session, dict[str, int]] = {}
        self._gone: set[Session] = set()  # since the last report: what the store answers late is theirs as well
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for session in list(self._sessions.values()):
            self.report(session)
        self._events.flush()

    def connected(self, session: Session, connection: Connection) -> None:
        self._events.record(
            EventKind.CONNECTED,
            session.client_id,
            username=session.username,
            protocol=connection.version,
            address=connection.peer or "",
        )

    def disconnected(self, session: Session, connection: Connection) -> None:
        self.report(session)
        self._gone.add(session)
        self._events.record(
            EventKind.DISCONNECTED,
            session.client_id,
            username=session.username,
            cause=connection.close_reason or "",
            protocol=connection.version,
            address=connection.peer or "",
        )

    def refused(self, client_id: str, **details: Any) -> None:
        """Record a refused CONNECT or TLS handshake."""
        self._events.record(EventKind.REFUSED, client_id, **details)

    def taken_over(self, client_id: str, username: str | None, cause: str, connection: Connection) -> None:
        self._events.record(
            EventKind.TAKEN_OVER, client_id, username=username, cause=cause, address=connection.peer or ""
        )

    def denied(self, client_id: str, **details: Any) -> None:
        """Record a publish or a subscription that the rules do not allow."""
        self._events.record(EventKind.DENIED, client_id, **details)

    def subscribed(self, session: Session, topic_filter: bytes, qos: int) -> None:
        self._events.record(EventKind.SUBSCRIBED, session.client_id, topic=topic_filter.decode(), qos=qos)

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        self._events.record(EventKind.UNSUBSCRIBED, session.client_id, topic=topic_filter.decode())

    def detached(self, session: Session) -> None:
        """Nothing is recorded: `disconnected` was called."""

    def ended(self, session: Session) -> None:
        self.report(session)
        self._told.pop(session, None)
        self._gone.discard(session)
        self._events.record(EventKind.SESSION_ENDED, session.client_id)

    def dead_lettered(self, queue: str, topic: str, reason: str) -> None:
        """The client is unknown: several may have had the message."""
        self._events.record(EventKind.DEAD_LETTERED, "", topic=topic, cause=f"{queue}: {reason}", count=1)

    def report(self, session: Session) -> None:
        """What the client was sent and not sent since the last time."""
        now = {"delivered": session.delivered, **session.dropped()}
        if not any(now.values()):
            return  # as of most that only connect
        told = self._told.get(session, {})
        for cause, count in now.items():
            more = count - told.get(cause, 0)
            if more > 0:
                kind = {"delivered": EventKind.DELIVERED, "expired": EventKind.EXPIRED}.get(cause, EventKind.DROPPED)
                self._events.record(kind, session.client_id, cause="" if cause == "delivered" else cause, count=more)
        self._told[session] = now

    async def _run(self) -> None:
        while True:
            try:
                await self._events.start()
                break
            except LogError as error:
                log.warning("the topic of events cannot be made yet", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
        while True:
            await asyncio.sleep(REPORT_SECONDS)
            gone, self._gone = self._gone, set()
            for number, session in enumerate(list(self._sessions.values())):
                if session.connection is not None or session in gone:
                    self.report(session)
                if number % SESSIONS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            await self._forget_moved()

    async def _forget_moved(self) -> None:
        """Other brokers have these sessions now: they have not ended, and are not here any more."""
        for number, session in enumerate(list(self._told)):
            if self._sessions.get(session.client_id) is not session:
                self._told.pop(session, None)
            if number % SESSIONS_AT_ONCE == 0:
                await asyncio.sleep(0)

    def counters(self) -> dict[str, int]:
        return {"events_recorded": self._events.recorded, "events_lost": self._events.lost}


class NoEvents(SessionEvents):
    """Where no events are recorded: clients come, subscribe and go without paying for them."""

    def __init__(self) -> None:
        super().__init__(EventRecorder(), {})

    def connected(self, session: Session, connection: Connection) -> None:
        pass

    def disconnected(self, session: Session, connection: Connection) -> None:
        pass

    def subscribed(self, session: Session, topic_filter: bytes, qos: int) -> None:
        pass

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        pass

    def ended(self, session: Session) -> None:
        pass
