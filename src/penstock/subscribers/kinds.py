"""The kinds of subscriber of a broker, as one list: who is asked, in which order, and whose answer counts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from penstock._ext.hub.connection import Session
from penstock.subscribers.base import Arrival, Subscriber

# Asked for every client that connects, or for every filter: only of kinds that have their own answer.
HOOKS = (
    "attached",
    "check",
    "check_arrival",
    "claims",
    "detached",
    "ended",
    "keeps",
    "must_prepare",
    "opened",
    "reserve",
    "returned",
    "subscribed",
    "unsubscribe",
    "unsubscribed",
)


class Kinds:
    """Immutable: which kind implements what is found out once."""

    def __init__(self, kinds: Iterable[Subscriber] = ()) -> None:
        self._kinds = tuple(kinds)
        self._having: dict[str, list[Any]] = {
            name: [kind for kind in self._kinds if getattr(type(kind), name) is not getattr(Subscriber, name)]
            for name in HOOKS
        }

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._kinds)

    # ---- a client arrives ----

    def check_arrival(self, arrival: Arrival) -> None:
        """Raise Refused if the client can have no session."""
        for kind in self._having["check_arrival"]:
            kind.check_arrival(arrival)

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        return any(kind.must_prepare(arrival, session) for kind in self._having["must_prepare"])

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        """Return the type that the client is served as. Raises LogError."""
        for kind in reversed(self._having["must_prepare"]):
            if kind.must_prepare(arrival, session):
                arrival = msgspec.structs.replace(arrival, client_type=await kind.prepare(arrival, session))
        return arrival.client_type

    def given_up(self, client_id: str) -> None:
        for kind in self._kinds:
            kind.given_up(client_id)

    def keep(self, session: Session) -> bool:
        """Return whether a kind has to evict the session before another user gets the client id."""
        return any(kind.keeps(session) for kind in self._having["keeps"])

    async def evict(self, session: Session, end: Callable[[], None]) -> None:
        """End the session of another user, by calling `end`, with everything that was kept for it. Raises LogError."""
        async with contextlib.AsyncExitStack() as stack:
            for kind in self._kinds:
                await stack.enter_async_context(kind.evicting(session))
            end()

    def opened(self, session: Session, *, is_present: bool) -> None:
        for kind in self._having["opened"]:
            kind.opened(session, is_present=is_present)

    def returned(self, session: Session) -> None:
        for kind in self._having["returned"]:
            kind.returned(session)

    def attached(self, session: Session, before: int | None = None) -> None:
        """Tell the kinds before that number, the last of them first, until one has something to send first."""
        kinds = self._having["attached"]
        for number in reversed(range(len(kinds) if before is None else before)):
            if not kinds[number].attached(session, partial(self.attached, session, number)):
                return

    # ---- it subscribes ----

    def find(self, topic_filter: bytes) -> Subscriber | None:
        """Return the kind that claims the filter."""
        for kind in self._having["claims"]:
            if kind.claims(topic_filter):
                found: Subscriber = kind
                return found
        return None

    def check(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that the session cannot have now."""
        for kind in self._having["check"]:
            kind.check(session, topic_filter)

    def reserve(self, session: Session, topic_filter: bytes) -> list[Subscriber]:
        """Return the kinds that have to prepare the filter. Raises Refused."""
        return [kind for kind in self._having["reserve"] if kind.reserve(session, topic_filter)]

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
        for kind in self._having["subscribed"]:
            kind.subscribed(session, topic_filter, options, identifier)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """End a subscription that is not in the topic tree; return whether there was one."""
        return any(kind.unsubscribe(session, topic_filter) for kind in self._having["unsubscribe"])

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        for kind in self._having["unsubscribed"]:
            kind.unsubscribed(session, topic_filter)

    def left(self, filters: Sequence[bytes]) -> None:
        """It is durable that a session no longer has these filters."""
        for kind in self._kinds:
            kind.left(filters)

    # ---- it goes ----

    def detached(self, session: Session) -> None:
        for kind in self._having["detached"]:
            kind.detached(session)

    def ended(self, session: Session) -> None:
        for kind in self._having["ended"]:
            kind.ended(session)

    # ---- life ----

    async def restore(self, sessions: Sequence[Session]) -> None:
        for kind in self._kinds:
            await kind.restore(sessions)

    def rules_changed(self) -> None:
        for kind in self._kinds:
            kind.rules_changed()
