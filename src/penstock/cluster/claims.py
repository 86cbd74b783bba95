"""What brokers of a cluster ask and answer each other about clients and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import msgspec

NOT_KNOWN = -1  # an answer about what is to be removed, beside those of Use
MOST_REMEMBERED = 10_000

K = TypeVar("K")
V = TypeVar("V")


class Ask(msgspec.Struct, array_like=True):
    client_id: str
    at: int
    node: str
    username: str | None = None
    """The user who connects."""
    is_identified: bool = False
    """Whether `username` is set; brokers of earlier releases do not send it."""


class Answer(msgspec.Struct, array_like=True):
    had: bool = False
    positions: dict[int, int] = {}
    """Of each partition of the log of all messages: what is before it was dispatched to the client."""
    yielded: int = 0
    """The time of a claim of its own that it gave up for this one: what it asks for that claim is void."""
    is_removing: bool = False
    """The topic of an earlier session of the client is still being deleted there: ask again."""
    is_foreign: bool = False
    """The broker keeps the session, because it belongs to another user."""


@dataclass(slots=True, eq=False)
class Claim:
    """A client that is about to get its session here."""

    client_id: str
    at: int
    username: str | None = None
    is_lost: bool = False


class Claims:
    """The claims of this node, and what is remembered of those of others. On the loop."""

    def __init__(self) -> None:
        self.current: dict[str, Claim] = {}  # by client id
        self._given: dict[str, dict[int, int]] = {}  # sessions given away lately: how far they were dispatched
        self._void: dict[tuple[str, str], int] = {}  # claims of other nodes that were given up for ours

    def begin(self, claim: Claim) -> None:
        self.current[claim.client_id] = claim

    def settle(self, claim: Claim) -> None:
        """The session is open, or the client is not to have it."""
        if self.current.get(claim.client_id) is claim:
            del self.current[claim.client_id]

    def make_void(self, client_id: str, node: str, at: int) -> None:
        """Claims of that node for the client, up to that time, do not count."""
        _put_bounded(self._void, (client_id, node), at)

    def is_void(self, client_id: str, node: str, at: int) -> bool:
        return self._void.get((client_id, node), 0) >= at

    def gave_away(self, client_id: str, positions: dict[int, int]) -> None:
        _put_bounded(self._given, client_id, positions)

    def take_given(self, client_id: str) -> dict[int, int] | None:
        """Return how far the session was dispatched to when it was given away; None if it was not, lately."""
        return self._given.pop(client_id, None)


def _put_bounded(known: dict[K, V], key: K, value: V) -> None:
    """Those that were put first go when there are too many."""
    known.pop(key, None)
    while len(known) >= MOST_REMEMBERED:
        del known[next(iter(known))]
    known[key] = value
