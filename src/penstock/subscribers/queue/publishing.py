"""Publishing to queues from a front-end of any protocol."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from penstock._ext.hub.connection import (
    QUEUE_BAD_TOPIC,
    QUEUE_BUSY,
    QUEUE_CLOSED,
    QUEUE_DENIED,
    QUEUE_LOG_TOO_LARGE,
    QUEUE_NONE,
    QUEUE_OFF,
    QUEUE_TOO_LARGE,
    QUEUE_WRONG_WORD,
    QueueDesk,
    answer_text,
)
from penstock._ext.match.trie import Subscriber
from penstock.core.refusal import Refusal, Refused

REFUSALS = {
    QUEUE_BAD_TOPIC: Refusal.INVALID_NAME,
    QUEUE_BUSY: Refusal.UNAVAILABLE,
    QUEUE_CLOSED: Refusal.NOT_AUTHORISED,
    QUEUE_DENIED: Refusal.NOT_AUTHORISED,
    QUEUE_LOG_TOO_LARGE: Refusal.TOO_LARGE,
    QUEUE_NONE: Refusal.NOT_SUPPORTED,
    QUEUE_OFF: Refusal.NOT_FOUND,
    QUEUE_TOO_LARGE: Refusal.TOO_LARGE,
    QUEUE_WRONG_WORD: Refusal.INVALID_NAME,
}


class Entry(NamedTuple):
    """A message for the queues that are bound to its topic."""

    topic: str
    payload: bytes
    properties: bytes = b""
    """As record.envelope.encode_properties makes them."""
    expires_at: int = 0
    """Milliseconds since 1970; 0: never."""


class Publisher(Subscriber):
    """Who publishes; `acl` are its rules."""

    client_id: str
    username: str | None


def publish(desk: QueueDesk, publisher: Publisher, entries: Iterable[Entry]) -> list[Refused | None]:
    """Hand messages to their queues. Return for each None, or why it is refused; the others are durable when
    `QueueDesk.when_durable` says so."""
    username = None if publisher.username is None else publisher.username.encode()
    answers = desk.publish(
        publisher,
        publisher.client_id.encode(),
        username,
        [(entry.topic.encode(), entry.payload, entry.properties, entry.expires_at) for entry in entries],
    )
    return [_refused(answer) if answer else None for answer in answers]


def _refused(answer: int) -> Refused:
    return Refused(REFUSALS.get(answer, Refusal.QUOTA_EXCEEDED), answer_text(answer))
