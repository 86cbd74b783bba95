"""The kinds of subscriber of a broker, as one list: who is asked, in which order, and whose answer counts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from penstock._ext.hub.connection import Session
from penstock.subscribers.base import Arrival, Subscriber


class Kinds:
    """Immutable. What every kind is only informed of, callers tell in a loop."""

    def __init__(self, kinds: Iterable[Subscriber] = ()) -> None:
        self._kinds = tuple(kinds)

    def __iter__(self) -> Iterator[Subscriber]:
        return iter(self._kinds)

    def __len__(self) -> int:
        return len(self._kinds)

    # ---- a client arrives ----

    def check_arrival(self, arrival: Arrival) -> None:
        """Raise Refused if the client can have no session."""
        for kind in self._kinds:
            kind.check_arrival(arrival)

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        return any(kind.must_prepare(arrival, session) for kind in self._kinds)

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        """Return the type that the client is served as. Raises LogError."""
        for kind in self._kinds:
            if kind.must_prepare(arrival, session):
                arrival = replace(arrival, client_type=await kind.prepare(arrival, session))
        return arrival.client_type

    def keep(self, session: Session) -> bool:
        """Return whether a kind has to evict the session before another user gets the client id."""
        return any(kind.keeps(session) for kind in self._kinds)

    async def evict(self, session: Session, end: Callable[[], None]) -> None:
        """End the session of another user, by calling `end`, with everything that was kept for it. Raises LogError."""
        async with contextlib.AsyncExitStack() as stack:
            for kind in self._kinds:
                await stack.enter_async_context(kind.evicting(session))
            end()

    def attached(self, session: Session, at: int = 0) -> None:
        """Tell the kinds from number `at` on, until one of them has something to send first."""
        for number in range(at, len(self._kinds)):
            if not self._kinds[number].attached(session, partial(self.attached, session, number + 1)):
                return

    # ---- it subscribes ----

    def find(self, topic_filter: bytes) -> Subscriber | None:
        """Return the kind that claims the filter."""
        return next((kind for kind in self._kinds if kind.claims(topic_filter)), None)

    def check(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that the session cannot have now."""
        for kind in self._kinds:
            kind.check(session, topic_filter)

    def reserve(self, session: Session, topic_filter: bytes) -> list[Subscriber]:
        """Return the kinds that have to prepare the filter. Raises Refused."""
        return [kind for kind in self._kinds if kind.reserve(session, topic_filter)]

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
        for kind in self._kinds:
            kind.subscribed(session, topic_filter, options, identifier)

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """End a subscription that is not in the topic tree; return whether there was one."""
        return any(kind.unsubscribe(session, topic_filter) for kind in self._kinds)

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        for kind in self._kinds:
            kind.unsubscribed(session, topic_filter)
