"""What happened in a broker: the records of the topic `tbmq.events` (event.proto), in plain Python."""

from __future__ import annotations

from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

from penstock_schema.decode import SchemaError, walk_fields
from penstock_schema.encode import varint
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
    REFUSED = 10
    TAKEN_OVER = 11
    DENIED = 12


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


# A client that comes and goes is three events: tags and short lengths are ready, and so are the numbers of the last
# events, most of which have the same kinds and times.
_BYTES = 2
_PLAN = tuple(
    (field.number, varint(field.number << 3 | _BYTES) if field.type == "string" else b"", field.label == "optional")
    for field in EVENT_FIELDS
)
_LENGTHS = tuple(varint(length) for length in range(128))


@lru_cache(1_024)
def _number_field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value)


def encode_event(event: Event) -> bytes:
    parts: list[bytes] = []
    value: Any
    for value, (number, tag, is_optional) in zip(event, _PLAN, strict=True):
        if not value and not (is_optional and value is not None):
            continue
        if tag:
            text = value.encode()
            length = len(text)
            parts += (tag, _LENGTHS[length] if length < len(_LENGTHS) else varint(length), text)
        else:
            parts.append(_number_field(number, int(value)))
    return b"".join(parts)


def decode_event(data: bytes) -> Event:
    """SchemaError if the bytes are not an event of a version that is read here."""
    found: dict[str, Any] = dict(walk_fields(data, EVENT_FIELDS))
    event = Event(**{"schema_version": 0, **found})
    if event.schema_version != VERSION:
        raise SchemaError(f"an event of schema version {event.schema_version}; read is {VERSION}", len(data))
    if event.kind == EventKind.UNKNOWN:
        raise SchemaError("an event without a kind", len(data))
    return event
