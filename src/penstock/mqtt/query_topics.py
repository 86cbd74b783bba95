"""Query topics for MQTT clients: which subscriptions are to one, and who has them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from penstock._ext.hub.connection import Session
from penstock._ext.wire.packets import split_share
from penstock.access.base import Subject
from penstock.access.identities import identity_of
from penstock.core.logging import get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.core.tasks import TaskSet
from penstock.mqtt.query_rows import MqttRows
from penstock.storage.state.base import StateStore
from penstock.subscribers.query.consumer import QueryConsumer, QueryTerms
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.service import DataService
from penstock_client import wire
from penstock_client.errors import DataError, NotAllowed

log = get_logger("penstock.mqtt")

TABLE = "tbmq.datasub.members"
OFFSET = "sub-offset"
WORDS = ("earliest", "latest", "none")
LARGEST_OFFSET = (1 << 63) - 1
MOST_OF_A_CLIENT = 100


class Terms(msgspec.Struct, frozen=True):
    """A SUBSCRIBE to a query topic, as stored for a persistent session. `offset` is earliest, latest, none or a
    number."""

    qos: int
    identifier: int
    offset: str


class Member(NamedTuple):
    session: Session
    consumer: QueryConsumer


class QueryTopics:
    """The catalogue wins under `$share/`, and nowhere else: a name that is not in it is an ordinary topic."""

    def __init__(self, service: DataService, store: StateStore) -> None:
        self._service = service
        self._store = store
        self._members: dict[str, dict[bytes, Member]] = {}
        self._tasks = TaskSet()
        self._restoring: asyncio.Task[None] | None = None

    def has(self, topic_filter: bytes) -> bool:
        return self._split(topic_filter) is not None

    def _split(self, topic_filter: bytes) -> tuple[str, str] | None:
        if not topic_filter.startswith(b"$share/"):
            return None
        group, plain = split_share(topic_filter)
        if group is None or self._service.topic(plain.decode()) is None:
            return None
        return group.decode(), plain.decode()

    async def subscribe(
        self,
        session: Session,
        topic_filter: bytes,
        *,
        qos: int,
        identifier: int,
        properties: Iterable[tuple[str, str]] = (),
    ) -> int:
        """Make the client a consumer and return the QoS granted; raises Refused."""
        found = self._split(topic_filter)
        if found is None:
            raise Refused(Refusal.UNAVAILABLE, "the topic is gone")
        group, topic = found
        offset = dict(properties).get(OFFSET, "latest")
        if offset not in WORDS and not (offset.isascii() and offset.isdigit() and int(offset) <= LARGEST_OFFSET):
            words = f"{OFFSET} is {', '.join(WORDS)} or a number, not {offset[:40]!r}"
            raise Refused(Refusal.NOT_SUPPORTED, words)
        of_client = self._members.get(session.client_id, {})
        if topic_filter not in of_client and len(of_client) >= MOST_OF_A_CLIENT:
            raise Refused(Refusal.QUOTA_EXCEEDED, f"a client may subscribe to {MOST_OF_A_CLIENT} query topics")
        terms = Terms(qos, identifier, offset)
        try:
            if offset == "none":
                await self._check_committed(session, group, topic)
            await self._join(session, topic_filter, group, topic, terms)
        except NotAllowed as error:
            raise Refused(Refusal.NOT_AUTHORISED, str(error)) from None
        except DataError as error:
            raise Refused(Refusal.IN_USE, str(error)) from None
        if session.expiry_interval:
            self._store.store([(TABLE, _key(session.client_id, topic_filter), msgspec.json.encode(terms))])
        return qos

    async def _check_committed(self, session: Session, group: str, topic: str) -> None:
        who = Identity.of(Subject(identity_of(session), session.client_id[:255]), "mqtt")
        rows = await self._service.coordinator.subscriptions()
        known = [row for row in rows if row[:2] == [topic, group]]
        places = wire.Positions(group, [(topic, int(str(row[2]))) for row in known])
        committed = await self._service.handle(who, "committed", places) if known else []
        if not any(one is not None for one in committed):
            raise DataError(f"group {group} has committed nothing in {topic}, and {OFFSET} is none")

    async def _join(self, session: Session, topic_filter: bytes, group: str, topic: str, terms: Terms) -> None:
        old = self._members.get(session.client_id, {}).pop(topic_filter, None)
        if old is not None:
            await old.consumer.end(leaves=False)
        member = self._make_member(session, group, topic, terms)
        try:
            await member.consumer.join()
        except DataError:
            await member.consumer.end(leaves=False)
            raise
        self._members.setdefault(session.client_id, {})[topic_filter] = member
        member.consumer.start()
        member.consumer.identify(_identity_of(session))  # it may have authenticated again since

    def _make_member(self, session: Session, group: str, topic: str, terms: Terms) -> Member:
        digest = hashlib.sha256(f"{session.client_id}\0{topic}".encode()).hexdigest()[:32]
        parameters = {OFFSET: terms.offset, "qos": str(terms.qos)}
        consumer = QueryConsumer(
            self._service,
            _identity_of(session),
            f"mqtt:{digest}",
            terms=QueryTerms(group, topic, terms.offset, parameters),
            outlet=partial(MqttRows, session, qos=terms.qos, identifier=terms.identifier),
            on_refused=partial(self._on_refused, session),
        )
        return Member(session, consumer)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """Whether there was such a subscription."""
        of_client = self._members.get(session.client_id)
        member = None if of_client is None else of_client.pop(topic_filter, None)
        if of_client is None or member is None:
            return False
        if not of_client:
            del self._members[session.client_id]
        self._store.store([(TABLE, _key(session.client_id, topic_filter), None)])
        self._tasks.spawn(member.consumer.end(leaves=True))
        return True

    def ended(self, session: Session) -> None:
        if session.client_id not in self._members:
            return
        for topic_filter, member in list(self._members[session.client_id].items()):
            if member.session is session:
                self.unsubscribe(session, topic_filter)

    def attached(self, session: Session) -> None:
        """The client is back, perhaps with other rights."""
        self.rights_changed(session)
        for member in self._members.get(session.client_id, {}).values():
            member.consumer.wake()

    def rights_changed(self, session: Session) -> None:
        for member in self._members.get(session.client_id, {}).values():
            member.consumer.identify(_identity_of(session))

    def _on_refused(self, session: Session, consumer: QueryConsumer) -> None:
        """End the subscription: the topic was dropped, or the right to read it."""
        for topic_filter, known in list(self._members.get(session.client_id, {}).items()):
            if known.consumer is consumer:
                self.unsubscribe(session, topic_filter)

    def restore_when(self, ready: Coroutine[Any, Any, None], find_session: Callable[[str], Session | None]) -> None:
        """Subscriptions of persistent sessions, as soon as the catalogue is known; who is connected by then joins."""

        async def restore() -> None:
            await ready
            await self._restore(find_session)

        self._restoring = asyncio.get_running_loop().create_task(restore())

    async def _restore(self, find_session: Callable[[str], Session | None]) -> None:
        found: list[tuple[str, bytes, Terms]] = []

        def on_record(key: bytes, value: bytes | None) -> None:
            if value is not None:
                client_id, _, topic_filter = key.partition(b"\0")
                found.append((client_id.decode(), topic_filter, msgspec.json.decode(value, type=Terms)))

        await self._store.load(TABLE, on_record)
        for client_id, topic_filter, terms in found:
            session = find_session(client_id)
            group, plain = split_share(topic_filter)
            if session is None or group is None:
                self._store.store([(TABLE, _key(client_id, topic_filter), None)])
                continue
            member = self._make_member(session, group.decode(), plain.decode(), terms)
            self._members.setdefault(client_id, {})[topic_filter] = member
            member.consumer.start()

    async def close(self) -> None:
        """The groups hear nothing of it: who comes back finds its place."""
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
        members = [member for of_client in self._members.values() for member in of_client.values()]
        self._members.clear()
        for member in members:
            await member.consumer.end(leaves=False)
        await self._tasks.wait()


def _identity_of(session: Session) -> Identity:
    return Identity.of(Subject(identity_of(session), session.client_id), "mqtt")


def _key(client_id: str, topic_filter: bytes) -> bytes:
    return client_id.encode() + b"\0" + topic_filter
