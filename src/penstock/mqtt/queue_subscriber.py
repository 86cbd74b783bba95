"""Durable queues as a kind of subscriber: a filter under `$queue/` makes a client a consumer of a queue."""

from __future__ import annotations

from collections.abc import Mapping

from penstock._ext.hub.connection import Session
from penstock.core.refusal import Refusal, Refused
from penstock.mqtt.queue_consumers import subscribe
from penstock.subscribers.base import FindSession, Request, Subscriber
from penstock.subscribers.queue.manager import QueueManager
from penstock.subscribers.queue.rights import asked_filter

QUEUE = b"$queue/"
SHARE = b"$share/"


class QueueSubscriber(Subscriber):
    name = "queues"

    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager

    # ---- a client arrives ----

    def returned(self, session: Session) -> None:
        self._manager.attached(session, session.quota)

    # ---- it subscribes ----

    def claims(self, topic_filter: bytes) -> bool:
        return topic_filter.startswith(QUEUE)

    def rule_filter(self, topic_filter: bytes) -> bytes:
        return asked_filter(topic_filter)

    def check(self, session: Session, topic_filter: bytes) -> None:
        if topic_filter.startswith(SHARE) and topic_filter.split(b"/", 2)[2].startswith(QUEUE):
            # It would never get anything: the consumers of a group share a queue.
            raise Refused(Refusal.INVALID_NAME)

    async def subscribe(self, session: Session, request: Request) -> int:
        return await subscribe(
            self._manager,
            session,
            request.topic_filter.decode(),
            qos=request.qos,
            identifier=request.identifier,
            properties=request.properties,
            receive_maximum=session.quota,
        )

    def withdraw(self, session: Session, topic_filter: bytes) -> None:
        self._manager.withdraw(session, topic_filter.decode())

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        if topic_filter.startswith(QUEUE):
            self._manager.unsubscribe(session, topic_filter.decode())

    # ---- it goes, or moves ----

    def ended(self, session: Session) -> None:
        self._manager.ended(session)

    def moved_away(self, session: Session) -> None:
        self._manager.let_go(session)

    # ---- life ----

    async def start(self) -> None:
        await self._manager.start()

    async def restored(self, find_session: FindSession) -> None:
        await self._manager.restore_members(find_session)

    def rules_changed(self, session: Session | None = None) -> None:
        if session is None:
            self._manager.spawn(self._manager.apply_rights())
            return
        memberships = self._manager.memberships_of(session)
        for membership in memberships:
            self._manager.remote.close(membership)  # opened again with the new identity
        self._manager.spawn(self._manager.apply_rights(memberships))

    async def stop(self) -> None:
        await self._manager.close()

    def counters(self) -> Mapping[str, int | float]:
        return self._manager.counters()
