"""MQTT packets as a client writes and reads them, in plain Python.

Properties are keyword arguments by their names in PROPERTIES; None leaves one out. The broker has a codec of its own,
compiled; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK = range(1, 12)
PINGREQ, PINGRESP, DISCONNECT, AUTH = range(12, 16)
LARGEST_LENGTH = 268_435_455
LARGEST_PACKET_ID = 65_535
_LENGTH_BYTES = 4
_U8, _U16, _U32, _VARINT, _TEXT, _BINARY, _PAIR = range(7)

PROPERTIES = {
    0x01: ("payload_format", _U8),
    0x02: ("message_expiry", _U32),
    0x03: ("content_type", _TEXT),
    0x08: ("response_topic", _TEXT),
    0x09: ("correlation_data", _BINARY),
    0x0B: ("subscription_identifiers", _VARINT),
    0x11: ("session_expiry", _U32),
    0x12: ("assigned_client_identifier", _TEXT),
    0x13: ("server_keep_alive", _U16),
    0x15: ("authentication_method", _TEXT),
    0x16: ("authentication_data", _BINARY),
    0x17: ("request_problem_information", _U8),
    0x18: ("will_delay", _U32),
    0x19: ("request_response_information", _U8),
    0x1A: ("response_information", _TEXT),
    0x1C: ("server_reference", _TEXT),
    0x1F: ("reason_string", _TEXT),
    0x21: ("receive_maximum", _U16),
    0x22: ("topic_alias_maximum", _U16),
    0x23: ("topic_alias", _U16),
    0x24: ("maximum_qos", _U8),
    0x25: ("retain_available", _U8),
    0x26: ("user_properties", _PAIR),
    0x27: ("maximum_packet_size", _U32),
    0x28: ("wildcard_subscription_available", _U8),
    0x29: ("subscription_identifiers_available", _U8),
    0x2A: ("shared_subscription_available", _U8),
}
"""Name and kind by identifier: table 2-4 of MQTT 5.0."""

_IDENTIFIERS = {name: (identifier, kind) for identifier, (name, kind) in PROPERTIES.items()}
_WIDTHS = {_U8: 1, _U16: 2, _U32: 4}
_REPEATED = (_VARINT, _PAIR)

Properties = Mapping[str, Any]


class MalformedPacket(ValueError):
    """The broker sent bytes that are not a packet."""


@dataclass(frozen=True)
class Will:
    """The message that the broker publishes when the connection is lost."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = field(default_factory=dict)


class Connack(NamedTuple):
    """The answer to CONNECT."""

    reason: int
    session_present: bool
    properties: dict[str, Any]


class Acknowledgement(NamedTuple):
    """The answer to any other packet: a reason for each filter, or one for a message."""

    packet_id: int
    reasons: list[int]
    properties: dict[str, Any]


class Message(NamedTuple):
    """A message as it was delivered."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    packet_id: int
    properties: dict[str, Any]


# ---- writing ----


def encode_length(value: int) -> bytes:
    """Return a variable byte integer."""
    if not 0 <= value <= LARGEST_LENGTH:
        raise ValueError(f"{value} is not between 0 and {LARGEST_LENGTH}")
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_text(value: str | bytes) -> bytes:
    """Return a string, or binary data, after its length."""
    data = value.encode() if isinstance(value, str) else value
    return _encode_number(len(data), 2) + data


def encode_properties(properties: Properties) -> bytes:
    """Return properties after their length."""
    out = []
    for name, value in properties.items():
        if value is None:
            continue
        identifier, kind = _IDENTIFIERS[name]
        for each in value if kind in _REPEATED else (value,):
            out.append(bytes((identifier,)))
            out.append(_encode_value(kind, each))
    body = b"".join(out)
    return encode_length(len(body)) + body


def _encode_value(kind: int, value: Any) -> bytes:
    if kind in _WIDTHS:
        return _encode_number(int(value), _WIDTHS[kind])
    if kind == _VARINT:
        return encode_length(value)
    if kind == _PAIR:
        return encode_text(value[0]) + encode_text(value[1])
    return encode_text(value)


def _encode_number(value: int, width: int) -> bytes:
    if not 0 <= value < 1 << 8 * width:
        raise ValueError(f"{value} is not between 0 and {(1 << 8 * width) - 1}")
    return value.to_bytes(width)


def build_packet(packet_type: int, flags: int, *parts: bytes) -> bytes:
    """Return a packet of any type; the parts are its body."""
    body = b"".join(parts)
    return bytes((packet_type << 4 | flags,)) + encode_length(len(body)) + body


def build_connect(
    client_id: str,
    *,
    version: int = 5,
    clean_start: bool = True,
    keep_alive: int = 60,
    username: str | None = None,
    password: bytes | str | None = None,
    will: Will | None = None,
    **properties: Any,
) -> bytes:
    flags = 0x02 if clean_start else 0
    payload = [encode_text(client_id)]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        own = [encode_properties(will.properties)] if version >= 5 else []
        payload += [*own, encode_text(will.topic), encode_text(will.payload)]
    for bit, value in ((0x80, username), (0x40, password)):
        if value is not None:
            flags |= bit
            payload.append(encode_text(value))
    head = encode_text("MQIsdp" if version == 3 else "MQTT") + bytes((version, flags)) + _encode_number(keep_alive, 2)
    return build_packet(CONNECT, 0, head, encode_properties(properties) if version >= 5 else b"", *payload)


def build_publish(
    topic: str,
    payload: bytes,
    *,
    qos: int = 0,
    retain: bool = False,
    packet_id: int = 0,
    version: int = 5,
    **properties: Any,
) -> bytes:
    return build_packet(
        PUBLISH,
        qos << 1 | retain,
        encode_text(topic),
        packet_id.to_bytes(2) if qos else b"",
        encode_properties(properties) if version >= 5 else b"",
        payload,
    )


def build_subscribe(
    packet_id: int, entries: Iterable[tuple[str, int]], *, version: int = 5, identifier: int = 0, **properties: Any
) -> bytes:
    """Subscribe to (filter, options) pairs."""
    given = {"subscription_identifiers": [identifier] if identifier else None, **properties}
    filters = b"".join(encode_text(name) + bytes((options,)) for name, options in entries)
    return build_packet(SUBSCRIBE, 2, packet_id.to_bytes(2), encode_properties(given) if version >= 5 else b"", filters)


def build_unsubscribe(packet_id: int, filters: Iterable[str], *, version: int = 5, **properties: Any) -> bytes:
    given = encode_properties(properties) if version >= 5 else b""
    return build_packet(UNSUBSCRIBE, 2, packet_id.to_bytes(2), given, *map(encode_text, filters))


def build_ack(packet_type: int, packet_id: int, reason: int = 0, *, version: int = 5) -> bytes:
    """Build a PUBACK, PUBREC, PUBREL or PUBCOMP."""
    tail = bytes((reason,)) if reason and version >= 5 else b""
    return build_packet(packet_type, 2 if packet_type == PUBREL else 0, packet_id.to_bytes(2), tail)


def build_disconnect(reason: int = 0, *, version: int = 5, **properties: Any) -> bytes:
    if version < 5 or (reason == 0 and not properties):
        return build_packet(DISCONNECT, 0)
    return build_packet(DISCONNECT, 0, bytes((reason,)), encode_properties(properties))


def build_auth(reason: int, **properties: Any) -> bytes:
    return build_packet(AUTH, 0, bytes((reason,)), encode_properties(properties))


def build_pingreq() -> bytes:
    return build_packet(PINGREQ, 0)


# ---- reading ----


def read_header(data: bytes | bytearray, start: int = 0) -> tuple[int, int] | None:
    """Return where the body of the packet at `start` begins and its size; None while the header is incomplete."""
    size = 0
    for index in range(_LENGTH_BYTES):
        at = start + 1 + index
        if at >= len(data):
            return None
        size |= (data[at] & 127) << (7 * index)
        if data[at] < 128:
            return at + 1, size
    raise MalformedPacket("a packet without a length")


class PacketReader:
    """Cuts a stream of bytes into packets."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield type, flags and body of each packet that is complete. Raises MalformedPacket."""
        self._waiting += data
        start = 0
        try:
            while (header := read_header(self._waiting, start)) is not None:
                body, size = header
                if len(self._waiting) - body < size:
                    return
                first = self._waiting[start]
                start = body + size
                yield first >> 4, first & 15, bytes(self._waiting[body:start])
        finally:
            del self._waiting[:start]


class _Cursor:
    """Reads the fields of a body one after the other."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0

    def take(self, size: int) -> bytes:
        found = self._body[self._at : self._at + size]
        if len(found) < size:
            raise MalformedPacket("the packet is cut off")
        self._at += size
        return found

    def rest(self) -> bytes:
        return self._body[self._at :]

    def number(self, width: int) -> int:
        return int.from_bytes(self.take(width))

    def packet_id(self) -> int:
        if number := self.number(2):
            return number
        raise MalformedPacket("packet identifier 0")

    def length(self) -> int:
        header = read_header(self._body, self._at - 1)
        if header is None:
            raise MalformedPacket("the packet is cut off")
        self._at, value = header
        return value

    def binary(self) -> bytes:
        return self.take(self.number(2))

    def text(self) -> str:
        try:
            return self.binary().decode()
        except UnicodeDecodeError:
            raise MalformedPacket("a string is not well-formed UTF-8") from None

    def properties(self) -> dict[str, Any]:
        inner = _Cursor(self.take(self.length()))
        found: dict[str, Any] = {}
        while inner.rest():
            identifier = inner.number(1)
            if identifier not in PROPERTIES:
                raise MalformedPacket(f"unknown property 0x{identifier:02x}")
            name, kind = PROPERTIES[identifier]
            value = inner.value(kind)
            if kind in _REPEATED:
                found.setdefault(name, []).append(value)
            else:
                found[name] = value
        return found

    def value(self, kind: int) -> Any:
        if kind in _WIDTHS:
            return self.number(_WIDTHS[kind])
        if kind == _VARINT:
            return self.length()
        if kind == _PAIR:
            return self.text(), self.text()
        return self.text() if kind == _TEXT else self.binary()


def parse_connack(body: bytes, version: int = 5) -> Connack:
    cursor = _Cursor(body)
    flags, reason = cursor.number(1), cursor.number(1)
    return Connack(reason, bool(flags & 1), cursor.properties() if version >= 5 else {})


def parse_suback(body: bytes, version: int = 5) -> Acknowledgement:
    """Read a SUBACK or an UNSUBACK."""
    cursor = _Cursor(body)
    packet_id = cursor.packet_id()
    properties = cursor.properties() if version >= 5 else {}
    return Acknowledgement(packet_id, list(cursor.rest()), properties)


def parse_ack(body: bytes) -> Acknowledgement:
    """Read a PUBACK, PUBREC, PUBREL or PUBCOMP; reason and properties may be missing."""
    cursor = _Cursor(body)
    packet_id = cursor.packet_id()
    reason = cursor.number(1) if cursor.rest() else 0
    return Acknowledgement(packet_id, [reason], cursor.properties() if cursor.rest() else {})


def parse_publish(flags: int, body: bytes, version: int = 5) -> Message:
    qos = flags >> 1 & 3
    if qos == 3:
        raise MalformedPacket(f"fixed header flags {flags:#06b}")
    cursor = _Cursor(body)
    topic = cursor.text()
    packet_id = cursor.packet_id() if qos else 0
    properties = cursor.properties() if version >= 5 else {}
    return Message(topic, cursor.rest(), qos, bool(flags & 1), packet_id, properties)


def parse_reason(body: bytes) -> tuple[int, dict[str, Any]]:
    """Read reason and properties of a DISCONNECT or an AUTH."""
    cursor = _Cursor(body)
    reason = cursor.number(1) if body else 0
    return reason, cursor.properties() if cursor.rest() else {}


class PacketIds:
    """Packet ids in turn, without those in use."""

    def __init__(self) -> None:
        self._last = 0

    def next(self, used: Mapping[int, object] | set[int]) -> int:
        """Return the next free id [MQTT-2.2.1-3]."""
        for _ in range(LARGEST_PACKET_ID):
            self._last = self._last % LARGEST_PACKET_ID + 1
            if self._last not in used:
                return self._last
        raise ValueError("all packet ids are in use")
