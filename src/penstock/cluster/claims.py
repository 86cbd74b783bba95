"""What brokers of a cluster ask and answer each other about clients and what they leave behind."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

NOT_KNOWN = -1  # an answer about what is to be removed, beside those of Use


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
