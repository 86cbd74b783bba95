"""The kinds of subscriber of a broker, as one list: who is asked, in which order, and whose answer counts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial

import msgspec

from penstock._ext.application.feed import Feed
from penstock._ext.hub.connection import Session
from penstock._ext.record.segment import RecordPack
from penstock.subscribers.base import Arrival, Subscriber

Having = tuple[Subscriber, ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    """For each method that is called for every client that connects, or for every filter, the kinds that have their
    own: a CONNECT pays for no others."""

    attached: Having
    check: Having
    check_arrival: Having
    check_quota: Having
    claims: Having
    detached: Having
    ended: Having
    keeps: Having
    left: Having
    must_prepare: Having
    opened: Having
    reserve: Having
    returned: Having
    subscribed: Having
    take_retained: Having
    unsubscribe: Having
    unsubscribed: Having

    @classmethod
    def of(cls, kinds: Having) -> Hooks:
        return cls(**{field.name: _having(kinds, field.name) for field in fields(cls)})


def _having(kinds: Having, name: str) -> Having:
    return tuple(kind for kind in kinds if getattr(type(kind), name) is not getattr(Subscriber, name))


def _go_on() -> None:
    """No kind waits for the first in the list."""


class Kinds:
    """Immutable: which kind implements what is found out once."""

    def __init__(self, kinds: Iterable[Subscriber] = ()) -> None:
        self._kinds = tuple(kinds)
        self._hooks = Hooks.of(self._kinds)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._kinds)

    # ---- a client arrives ----

    def check_arrival(self, arrival: Arrival) -> None:
        """Raise Refused if the client can have no session."""
        for kind in self._hooks.check_arrival:
            kind.check_arrival(arrival)

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        for kind in self._hooks.must_prepare:  # noqa: SIM110  # a generator takes four times as long
            if kind.must_prepare(arrival, session):
                return True
        return False

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        """Return the type that the client is served as. Raises LogError."""
        for kind in reversed(self._hooks.must_prepare):
            if kind.must_prepare(arrival, session):
                arrival = msgspec.structs.replace(arrival, client_type=await kind.prepare(arrival, session))
        return arrival.client_type

    def given_up(self, client_id: str) -> None:
        for kind in self._kinds:
            kind.given_up(client_id)

    def keep(self, session: Session) -> bool:
        """Return whether a kind has to evict the session before another user gets the client id."""
        return any(kind.keeps(session) for kind in self._hooks.keeps)

    async def evict(self, session: Session, end: Callable[[], None]) -> None:
        """End the session of another user, by calling `end`, with everything that was kept for it. Raises LogError."""
        async with contextlib.AsyncExitStack() as stack:
            for kind in self._kinds:
                await stack.enter_async_context(kind.evicting(session))
            end()

    def opened(self, session: Session, *, is_present: bool) -> None:
        for kind in self._hooks.opened:
            kind.opened(session, is_present=is_present)

    def returned(self, session: Session) -> None:
        for kind in self._hooks.returned:
            kind.returned(session)

    def attached(self, session: Session, before: int | None = None) -> None:
        """Tell the kinds before that number, the last of them first, until one has something to send first."""
        kinds = self._hooks.attached
        number = len(kinds) if before is None else before
        while number:
            number -= 1
            if not kinds[number].attached(session, partial(self.attached, session, number) if number else _go_on):
                return

    # ---- it subscribes ----

    def find(self, topic_filter: bytes) -> Subscriber | None:
        """Return the kind that claims the filter."""
        for kind in self._hooks.claims:
            if kind.claims(topic_filter):
                return kind
        return None

    def check(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that no session can have, whatever its rights."""
        for kind in self._hooks.check:
            kind.check(session, topic_filter)

    def check_quota(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that the session may have by its rights, but not now."""
        for kind in self._hooks.check_quota:
            kind.check_quota(session, topic_filter)

    def reserve(self, session: Session, topic_filter: bytes) -> list[Subscriber]:
        """Return the kinds that have to prepare the filter. Raises Refused."""
        return [kind for kind in self._hooks.reserve if kind.reserve(session, topic_filter)]

    @contextlib.asynccontextmanager
    async def prepared(self, reserved: Mapping[bytes, Sequence[Subscriber]]) -> AsyncIterator[None]:
        """Within this context the filters may be subscribed to; their places are given up at its end. Raises
        LogError."""
        try:
            async with contextlib.AsyncExitStack() as stack:
                for kind in self._kinds:
                    if filters := [name for name, kinds in reserved.items() if kind in kinds]:
                        await stack.enter_async_context(kind.prepared(filters))
                yield
        finally:
            for name, kinds in reserved.items():
                for kind in kinds:
                    kind.release(name)

    def subscribed(self, session: Session, topic_filter: bytes, options: int, identifier: int) -> None:
        for kind in self._hooks.subscribed:
            kind.subscribed(session, topic_filter, options, identifier)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """End a subscription that is not in the topic tree; return whether there was one."""
        for kind in self._hooks.unsubscribe:  # noqa: SIM110  # see above
            if kind.unsubscribe(session, topic_filter):
                return True
        return False

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        for kind in self._hooks.unsubscribed:
            kind.unsubscribed(session, topic_filter)

    def left(self, entries: Iterable[tuple[bytes, int]]) -> None:
        """It is durable that a session no longer has these filters; those with a reason code were refused."""
        if not self._hooks.left:
            return
        filters = [topic_filter for topic_filter, error in entries if not error]
        for kind in self._hooks.left:
            kind.left(filters)

    def take_retained(self, session: Session, feed: Feed, pack: RecordPack) -> None:
        """Deliver retained messages that reach the session through a log."""
        for kind in self._hooks.take_retained:
            kind.take_retained(session, feed, pack)

    # ---- it goes ----

    def detached(self, session: Session) -> None:
        for kind in self._hooks.detached:
            kind.detached(session)

    def ended(self, session: Session) -> None:
        for kind in self._hooks.ended:
            kind.ended(session)

    # ---- life ----

    async def restore(self, sessions: Sequence[Session]) -> None:
        for kind in self._kinds:
            await kind.restore(sessions)

    def rules_changed(self, session: Session | None = None) -> None:
        for kind in self._kinds:
            kind.rules_changed(session)
