"""The port of a kind of subscriber.

DEVICE clients, APPLICATION clients, durable queues and query topics are kinds of subscriber. Front-ends, the session
registry, the take-over of sessions between nodes, reload and shutdown know them only through this port, as a list: to
add a kind is to add an object to that list.

    a client arrives     check_arrival, must_prepare, prepare → opened → returned → attached
                         given_up: it was prepared, and the client does not come after all
    it subscribes        check, claims → subscribe (or reserve → prepared) → subscribed
    it unsubscribes      unsubscribed → left, when that is durable
    it goes              detached, ended
    its session moves    stored → moved_away → released here; take_up there

Every method has a default that does nothing, so that a kind implements only what concerns it. None of them knows a
protocol: a request is refused with `penstock.core.refusal.Refused`, and each front-end translates that.

The list goes from what others build on to what builds on it: kinds start, restore, open and end sessions from the first
to the last; they prepare a session, send to a client that is back, and stop from the last to the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import msgspec

from penstock._ext.application.feed import Feed
from penstock._ext.hub.connection import Session
from penstock._ext.record.segment import RecordPack

FindSession = Callable[[str], Session | None]
ReadRow = Callable[[str, bytes], bytes | None]
"""Reads a row of a table of the shared state."""


class Arrival(msgspec.Struct, frozen=True):  # a dataclass takes three times as long to make
    """A client that is about to get a session."""

    client_id: str
    client_type: str
    expiry_interval: int
    clean_start: bool


class Request(msgspec.Struct, frozen=True):
    """A subscription that a client asks for. `qos` is the highest that may be granted."""

    topic_filter: bytes
    qos: int
    identifier: int = 0
    properties: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Moved:
    """A session that comes from another node, and what its kinds can read of it there."""

    filters: Sequence[bytes]
    left_at: int  # until when (ms since 1970) its client was connected
    read: ReadRow = field(repr=False)


class Arrivals:
    """What a kind does when a client connects."""

    def check_arrival(self, arrival: Arrival) -> None:
        """Raise Refused if the client can have no session of this kind."""

    def must_prepare(self, arrival: Arrival, session: Session | None) -> bool:
        """Return whether `prepare` has something to do; `session` is the one the client has until now."""
        return False

    async def prepare(self, arrival: Arrival, session: Session | None) -> str:
        """Make what the session needs before it is opened; return the type that the client is served as. The caller
        then opens the session or calls `given_up`. Raises LogError."""
        return arrival.client_type

    def given_up(self, client_id: str) -> None:
        """The client that was prepared for does not get a session."""

    def keeps(self, session: Session) -> bool:
        """Return whether a session holds something that `evicting` has to remove before another user gets the
        client id."""
        return False

    def evicting(self, session: Session) -> AbstractAsyncContextManager[None]:
        """The session ends within this context, so that the next session with the same client id cannot read what was
        kept for this one. Raises LogError."""
        return contextlib.nullcontext()

    def opened(self, session: Session, *, is_present: bool) -> None:
        """The session is open; the client is not answered yet. `is_present`: it was there before."""

    def returned(self, session: Session) -> None:
        """The client of a session that was there before has a connection again; it is not answered yet."""

    def attached(self, session: Session, go_on: Callable[[], None]) -> bool:
        """The client is answered. Return False if the kinds that come before in the list have to wait for something
        that is sent first, and call `go_on` then."""
        return True


class Subscriptions:
    """What a kind does with the filters of a client."""

    # Whether filters that this kind claims are its own: they are not in the topic tree, and no event tells of them.
    is_apart = False

    def rule_filter(self, topic_filter: bytes) -> bytes | None:
        """Return the filter to look up in the access rules for one that this kind claims; None if `subscribe` checks
        the client's rights itself."""
        return topic_filter

    def check(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that no session can have, whatever its rights and whichever kind serves it."""

    def check_quota(self, session: Session, topic_filter: bytes) -> None:
        """Raise Refused for a filter that the session may have by its rights, but not now."""

    def claims(self, topic_filter: bytes) -> bool:
        """Return whether this kind serves the filter, instead of the topic tree."""
        return False

    async def subscribe(self, session: Session, request: Request) -> int:
        """Make the client a consumer of what a claimed filter names; return the QoS granted. Raises Refused."""
        return request.qos

    def withdraw(self, session: Session, topic_filter: bytes) -> None:
        """Undo `subscribe` for this session: the client does not have the subscription after all."""

    def reserve(self, session: Session, topic_filter: bytes) -> bool:
        """Return whether a filter in the topic tree needs `prepared` before the session can have it, and hold a place
        for it until `release`. Raises Refused."""
        return False

    def release(self, topic_filter: bytes) -> None:
        """Give up the place that `reserve` held."""

    def prepared(self, filters: Sequence[bytes]) -> AbstractAsyncContextManager[None]:
        """Within this context reserved filters may be subscribed to. Raises LogError."""
        return contextlib.nullcontext()

    def subscribed(self, session: Session, topic_filter: bytes, options: int, identifier: int) -> None:
        """The session has the filter now, with these options."""

    def unsubscribe(self, session: Session, topic_filter: bytes) -> bool:
        """End a subscription that is not in the topic tree; return whether there was one."""
        return False

    def unsubscribed(self, session: Session, topic_filter: bytes) -> None:
        """The session no longer has the filter."""

    def left(self, filters: Iterable[bytes]) -> None:
        """It is durable that a session no longer has these filters."""

    def take_retained(self, session: Session, feed: Feed, pack: RecordPack) -> None:
        """Deliver retained messages that reach the session through a log."""


class Departures:
    """What a kind does when a client leaves, for good, for a while, or to another node."""

    # Tables of the shared state in which `take_up` reads.
    tables: Sequence[str] = ()

    def detached(self, session: Session) -> None:
        """The connection has ended, and the session stays."""

    def ended(self, session: Session) -> None:
        """The session has ended."""

    async def stored(self, session: Session) -> None:
        """Return when what is known of the session's deliveries is durable."""

    def moved_away(self, session: Session) -> None:
        """Another node has the session now; nothing of it ends."""

    async def released(self, session: Session) -> None:
        """Return when nothing is being written for a session that has moved away."""

    def take_up(self, session: Session, moved: Moved) -> None:
        """The session has come from another node; it is in the topic tree, and its client is not connected."""


class Life:
    """How a kind starts, what it knows of itself, and how it ends."""

    # Whether it depends on a service that others run, and that may be away when the broker ends.
    is_remote = False

    async def start(self) -> None:
        """Before any session is there. Raises StoreError and LogError."""

    async def restore(self, sessions: Sequence[Session]) -> None:
        """The sessions of before the restart are there. Raises LogError and StoreError."""

    async def restored(self, find_session: FindSession) -> None:
        """Everything about the sessions is restored."""

    def rules_changed(self, session: Session | None = None) -> None:
        """Every session has its new access rules, or only this one: its client has authenticated again."""

    async def stop(self) -> None:
        """Store what has to be stored, and stop."""

    def health(self) -> bool | str:
        """Return True, or why this kind does not work now."""
        return True

    def counters(self) -> Mapping[str, int | float]:
        return {}


class Subscriber(Arrivals, Subscriptions, Departures, Life):
    """A kind of subscriber. All methods are called on the loop."""

    name = ""
