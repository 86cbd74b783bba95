"""APPLICATION clients as a kind of subscriber: persistent clients with a log of their own, and what they share."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol

from penstock._ext.application.feed import Feed
from penstock._ext.hub.connection import Session
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import get_logger
from penstock.core.refusal import Refusal, Refused
from penstock.storage.log.waiting import until_available
from penstock.subscribers.application import contexts
from penstock.subscribers.application.control import ApplicationOverview
from penstock.subscribers.application.delivery import ApplicationDelivery
from penstock.subscribers.base import Arrival, Moved, Subscriber

log = get_logger("penstock.application")

SHARE = b"$share/"

Sharing = Callable[[Sequence[bytes]], AbstractAsyncContextManager[None]]
"""The topics and groups of shared filters are there within the context."""


class Dispatch(Protocol):
    """The part of the dispatcher that the kind has to know."""

    @property
    def dispatched(self) -> dict[int, int]:
        """The newest offset of each partition that was dispatched since the start."""

    def between_rounds(self) -> AbstractAsyncContextManager[None]:
        """Nothing is dispatched within the context."""


class ApplicationSubscriber(Subscriber):
    name = "application"
    tables = (contexts.TABLE,)

    def __init__(
        self,
        delivery: ApplicationDelivery,
        overview: ApplicationOverview,
        dispatch: Dispatch,
        sharing: Sharing,
    ) -> None:
        self._delivery = delivery
        self._overview = overview
        self._dispatch = dispatch
        self._sharing = sharing

    # ---- a client arrives ----

    def check_arrival(self, arrival: Arrival) -> None:
        if self._serves(arrival) and self._delivery.is_full(arrival.client_id):
            raise Refused(Refusal.QUOTA_EXCEEDED, "there are as many APPLICATION clients as the settings allow")

    def _serves(self, arrival: Arrival) -> bool:
        return self._delivery.serves(arrival.client_id, arrival.client_type, arrival.expiry_interval)

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        if not self._serves(arrival):
            return arrival.client_type == "application" and arrival.expiry_interval > 0  # it is served as a DEVICE
        is_new = session is None or arrival.clean_start or session.feed is None
        return is_new or not self._delivery.is_ready(arrival.client_id)

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        if not self._serves(arrival):
            log.warning(
                "the client id has characters no topic can have: the APPLICATION client is served as a DEVICE",
                client_id=arrival.client_id,
                setting="application.client_id_validation",
            )
            return "device"
        is_new = session is None or arrival.clean_start or session.feed is None
        await self._delivery.prepare(arrival.client_id, is_new=is_new)
        return arrival.client_type

    def given_up(self, client_id: str) -> None:
        self._delivery.given_up(client_id)

    def keeps(self, session: Session) -> bool:
        return session.feed is not None

    @contextlib.asynccontextmanager
    async def evicting(self, session: Session) -> AsyncIterator[None]:
        async with self._dispatch.between_rounds():
            yield
        await self._delivery.cleared(session.client_id)

    def opened(self, session: Session, *, is_present: bool) -> None:
        if not self._delivery.serves(session.client_id, session.client_type, session.expiry_interval):
            return
        seen = None
        if is_present and session.feed is None:
            log.info("a DEVICE client is an APPLICATION from now on", client_id=session.client_id)
            seen = self._dispatch.dispatched
        self._delivery.opened(session, is_new=not is_present or session.feed is None, seen=seen)

    def attached(self, session: Session, go_on: Callable[[], None]) -> bool:
        self._delivery.attached(session)
        return True

    # ---- it subscribes ----

    def check(self, session: Session, topic_filter: bytes) -> None:
        if session.feed is not None and self._delivery.retained.is_full:
            # Its retained messages could not be kept: those of others wait for the log.
            raise Refused(Refusal.QUOTA_EXCEEDED)

    def reserve(self, session: Session, topic_filter: bytes) -> bool:
        if not self._delivery.unprepared(session, [topic_filter]):
            return False
        if not self._delivery.shared.reserve(topic_filter):
            raise Refused(Refusal.QUOTA_EXCEEDED)
        return True

    def release(self, topic_filter: bytes) -> None:
        self._delivery.shared.release(topic_filter)

    def prepared(self, filters: Sequence[bytes]) -> AbstractAsyncContextManager[None]:
        return self._sharing(filters)

    def subscribed(self, session: Session, topic_filter: bytes, options: int, identifier: int) -> None:
        self._delivery.subscribed(session, topic_filter, options, identifier)

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        self._delivery.unsubscribed(session, topic_filter)

    def take_retained(self, session: Session, feed: Feed, pack: RecordPack) -> None:
        self._delivery.retained.add(session, feed.topic, pack)

    # ---- it goes, or moves ----

    def ended(self, session: Session) -> None:
        self._delivery.ended(session)

    async def stored(self, session: Session) -> None:
        if session.feed is not None:
            await self._delivery.is_stored(session)

    def moved_away(self, session: Session) -> None:
        self._delivery.moved_away(session)

    def take_up(self, session: Session, moved: Moved) -> None:
        read = partial(moved.read, contexts.TABLE)
        for key in self._delivery.contexts_of(session.client_id):
            if (context := read(key)) is not None:
                self._delivery.contexts.adopt(key, context)
        shares = [name for name in moved.filters if name.startswith(SHARE)]
        self._delivery.shared.adopt(session.client_id, shares, read)
        self._delivery.take(session)

    # ---- life ----

    async def start(self) -> None:
        await self._delivery.start()
        self._overview.start()

    async def restore(self, sessions: Sequence[Session]) -> None:
        await until_available(partial(self._delivery.restore, sessions), "restore APPLICATION clients")

    async def stop(self) -> None:
        await self._overview.stop()
        await self._delivery.stop()

    def counters(self) -> Mapping[str, int | float]:
        return self._overview.counters()
