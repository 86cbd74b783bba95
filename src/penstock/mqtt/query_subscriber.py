"""Query topics as a kind of subscriber: a shared filter that names one makes a client a consumer of a query."""

from __future__ import annotations

from penstock._ext.hub.connection import Session
from penstock.mqtt.query_topics import QueryTopics
from penstock.subscribers.base import FindSession, Request, Subscriber
from penstock.subscribers.query.assembly import DataSubscription


class QuerySubscriber(Subscriber):
    """`queries` starts after the sessions are restored, and stops after the topics."""

    name = "query topics"
    is_apart = True

    def __init__(self, queries: DataSubscription, topics: QueryTopics) -> None:
        self._queries = queries
        self._topics = topics

    def returned(self, session: Session) -> None:
        self._topics.attached(session)

    def claims(self, topic_filter: bytes) -> bool:
        return self._topics.has(topic_filter)

    def rule_filter(self, topic_filter: bytes) -> None:
        """Rights on query topics are the catalogue's own."""

    async def subscribe(self, session: Session, request: Request) -> int:
        return await self._topics.subscribe(
            session,
            request.topic_filter,
            qos=request.qos,
            identifier=request.identifier,
            properties=request.properties,
        )

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        return self._topics.unsubscribe(session, topic_filter)

    def ended(self, session: Session) -> None:
        self._topics.ended(session)

    async def restored(self, find_session: FindSession) -> None:
        self._topics.restore_when(self._queries.until_started(), find_session)

    def rules_changed(self, session: Session | None = None) -> None:
        if session is None:
            self._queries.service.access_changed()
        else:
            self._topics.rights_changed(session)

    async def stop(self) -> None:
        await self._topics.close()
