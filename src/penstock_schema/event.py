"""What happened in a broker: the records of the topic `tbmq.events` (event.proto), in plain Python."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

from penstock_schema.decode import SchemaError, walk_fields
from penstock_schema.encode import encode_fields
from penstock_schema.fields import Field

TOPIC = "tbmq.events"
VERSION = 1


class EventKind(IntEnum):
    """A number that is not here belongs to a later release and is kept as a number."""

    UNKNOWN = 0
    CONNECTED = 1
    DISCONNECTED = 2
    SUBSCRIBED = 3
    UNSUBSCRIBED = 4
    DELIVERED = 5
    EXPIRED = 6
    DROPPED = 7
    DEAD_LETTERED = 8
    SESSION_ENDED = 9


EVENT_FIELDS = (
    Field("schema_version", 1, "uint32"),
    Field("kind", 2, "uint32"),
    Field("at", 3, "int64"),
    Field("client_id", 4, "string"),
    Field("username", 5, "string", "optional"),
    Field("topic", 6, "string"),
    Field("qos", 7, "uint32"),
    Field("reason", 8, "uint32"),
    Field("cause", 9, "string"),
    Field("count", 10, "int64"),
    Field("node", 11, "string"),
    Field("protocol", 12, "uint32"),
    Field("address", 13, "string"),
)


class Event(NamedTuple):
    schema_version: int = VERSION
    kind: int = EventKind.UNKNOWN
    at: int = 0
    client_id: str = ""
    username: str | None = None
    topic: str = ""
    qos: int = 0
    reason: int = 0
    cause: str = ""
    count: int = 0  # type: ignore[assignment] # hides tuple.count, which nobody calls on this
    node: str = ""
    protocol: int = 0
    address: str = ""


def encode_event(event: Event) -> bytes:
    return encode_fields(EVENT_FIELDS, event)


def decode_event(data: bytes) -> Event:
    """SchemaError if the bytes are not an event of a version that is read here."""
    found: dict[str, Any] = dict(walk_fields(data, EVENT_FIELDS))
    event = Event(**{"schema_version": 0, **found})
    if event.schema_version != VERSION:
        raise SchemaError(f"an event of schema version {event.schema_version}; read is {VERSION}", len(data))
    if event.kind == EventKind.UNKNOWN:
        raise SchemaError("an event without a kind", len(data))
    return event
