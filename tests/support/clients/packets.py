"""MQTT packets packed and unpacked by the tests' own hand, independent of Penstock's codec, as a second opinion.

Packing is free (a test may pack nonsense); unpacking is strict: whatever a server must not send fails the test.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tests.support.clients.properties import PropertyInput, pack_properties, read_properties
from tests.support.clients.wire_types import Cursor, WireError, binary, string, varint

V31, V311, V5 = 3, 4, 5


class PacketType(IntEnum):
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


class Reason(IntEnum):
    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED = 0x80
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC = 0x83
    UNSUPPORTED_VERSION = 0x84
    CLIENT_ID_INVALID = 0x85
    BAD_CREDENTIALS = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


PUBLISH_ANSWERS = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}

# The reason codes a server may put in each packet: [MQTT-3.2.2-8] [MQTT-3.4.2-1] [MQTT-3.5.2-1] [MQTT-3.6.2-1]
# [MQTT-3.7.2-1] [MQTT-3.9.3-2] [MQTT-3.11.3-2] [MQTT-3.14.2-1] [MQTT-3.15.2-1]
SERVER_REASONS = {
    PacketType.CONNACK: {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, *range(0x9A, 0x9E), 0x9F},
    PacketType.PUBACK: PUBLISH_ANSWERS,
    PacketType.PUBREC: PUBLISH_ANSWERS,
    PacketType.PUBREL: {0x00, 0x92},
    PacketType.PUBCOMP: {0x00, 0x92},
    PacketType.SUBACK: {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2},
    PacketType.UNSUBACK: {0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91},
    PacketType.DISCONNECT: {
        0x00, 0x80, 0x81, 0x82, 0x83, 0x87, 0x89, 0x8B, 0x8C, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3),
    },
    PacketType.AUTH: {0x00, 0x18},
}  # fmt: skip
V311_CONNACK_CODES = range(6)
V311_SUBACK_CODES = {0x00, 0x01, 0x02, 0x80}

# Fixed header flags a server sends: [MQTT-2.1.3-1] [MQTT3-2.2.2-1]
SERVER_FLAGS = {PacketType.PUBREL: 0x02}


@dataclass
class Packet:
    """One packet from the server; which fields are set depends on its type."""

    type: PacketType
    raw: bytes = field(repr=False)
    packet_id: int | None = None
    reason: int | None = None
    reasons: list[int] | None = None
    session_present: bool | None = None
    topic: str | None = None
    payload: bytes | None = None
    qos: int | None = None
    retain: bool | None = None
    dup: bool | None = None
    properties: dict[str, Any] = field(default_factory=dict)


@dataclass
class Will:
    """The will a client leaves in its CONNECT."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: PropertyInput = None


def pack(packet_type: int, body: bytes = b"", flags: int = 0) -> bytes:
    return bytes([packet_type << 4 | flags]) + varint(len(body)) + body


def pack_connect(
    version: int = V5,
    client_id: str | bytes = "",
    *,
    clean_start: bool = True,
    keep_alive: int = 60,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties: PropertyInput = None,
    flags: int | None = None,
    protocol_name: str | bytes | None = None,
    protocol_level: int | None = None,
) -> bytes:
    """A CONNECT. `flags`, `protocol_name` and `protocol_level` override what the other arguments would give."""
    if protocol_name is None:
        protocol_name = "MQIsdp" if version == V31 else "MQTT"
    honest_flags = clean_start << 1 | (username is not None) << 7 | (password is not None) << 6
    if will is not None:
        honest_flags |= 0x04 | will.qos << 3 | will.retain << 5
    body = string(protocol_name) + bytes([version if protocol_level is None else protocol_level])
    body += bytes([honest_flags if flags is None else flags]) + struct.pack("!H", keep_alive)
    if version == V5:
        body += pack_properties(properties)
    body += string(client_id)
    if will is not None:
        body += pack_properties(will.properties) if version == V5 else b""
        body += string(will.topic) + binary(will.payload)
    if username is not None:
        body += string(username)
    if password is not None:
        body += binary(password)
    return pack(PacketType.CONNECT, body)


def pack_publish(
    version: int,
    topic: str | bytes,
    payload: bytes = b"",
    *,
    qos: int = 0,
    retain: bool = False,
    dup: bool = False,
    packet_id: int | None = None,
    properties: PropertyInput = None,
) -> bytes:
    body = string(topic)
    if packet_id is not None:
        body += struct.pack("!H", packet_id)
    if version == V5:
        body += pack_properties(properties)
    return pack(PacketType.PUBLISH, body + payload, dup << 3 | qos << 1 | retain)


def pack_ack(
    packet_type: PacketType, version: int, packet_id: int, reason: int = 0, properties: PropertyInput = None
) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP, in the short form when there is nothing to say."""
    body = struct.pack("!H", packet_id)
    if version == V5 and (reason or properties is not None):
        body += bytes([reason])
        if properties is not None:
            body += pack_properties(properties)
    return pack(packet_type, body, 0x02 if packet_type == PacketType.PUBREL else 0)


def subscription_options(
    qos: int = 0, *, no_local: bool = False, retain_as_published: bool = False, retain_handling: int = 0
) -> int:
    return qos | no_local << 2 | retain_as_published << 3 | retain_handling << 4


def pack_subscribe(
    version: int, packet_id: int, filters: Iterable[tuple[str | bytes, int]], properties: PropertyInput = None
) -> bytes:
    body = struct.pack("!H", packet_id) + (pack_properties(properties) if version == V5 else b"")
    body += b"".join(string(name) + bytes([options]) for name, options in filters)
    return pack(PacketType.SUBSCRIBE, body, 0x02)


def pack_unsubscribe(
    version: int, packet_id: int, filters: Iterable[str | bytes], properties: PropertyInput = None
) -> bytes:
    body = struct.pack("!H", packet_id) + (pack_properties(properties) if version == V5 else b"")
    return pack(PacketType.UNSUBSCRIBE, body + b"".join(map(string, filters)), 0x02)


def pack_disconnect(version: int, reason: int = 0, properties: PropertyInput = None) -> bytes:
    if version != V5 or (not reason and properties is None):
        return pack(PacketType.DISCONNECT)
    return pack(PacketType.DISCONNECT, bytes([reason]) + (b"" if properties is None else pack_properties(properties)))


def pack_auth(reason: int, properties: PropertyInput = None) -> bytes:
    return pack(PacketType.AUTH, bytes([reason]) + pack_properties(properties))


PINGREQ = pack(PacketType.PINGREQ)
PINGRESP = pack(PacketType.PINGRESP)


def unpack(raw: bytes, header: int, body: bytes, version: int) -> Packet:
    """One packet as a server may send it; `WireError` for anything else."""
    try:
        packet_type = PacketType(header >> 4)
    except ValueError:
        raise WireError(f"packet type 0 from the server: {raw!r}") from None
    if packet_type != PacketType.PUBLISH and header & 0x0F != SERVER_FLAGS.get(packet_type, 0):
        raise WireError(f"reserved flags {header & 0x0F:#x} in {packet_type.name}")
    packet = Packet(packet_type, raw)
    cursor = Cursor(body)
    reader = READERS.get(packet_type)
    if reader is None or (packet_type == PacketType.AUTH and version != V5):
        raise WireError(f"{packet_type.name} is not for a server to send")
    reader(packet, cursor, header, version)
    cursor.expect_end(packet_type.name)
    _check_reasons(packet, version)
    return packet


def _read_connack(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    flags = cursor.u8()
    if flags & 0xFE:
        raise WireError(f"reserved connect acknowledge flags {flags:#x} [MQTT-3.2.2-1]")
    packet.session_present = bool(flags & 1)
    packet.reason = cursor.u8()
    if packet.reason and packet.session_present:
        raise WireError("session present in a refusal [MQTT-3.2.2-6] [MQTT3-3.2.2-4]")
    if version == V5:
        packet.properties = read_properties(cursor, "CONNACK")


def _read_publish(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    packet.dup, packet.qos, packet.retain = bool(header & 8), header >> 1 & 3, bool(header & 1)
    if packet.qos == 3:
        raise WireError("QoS 3 from the server [MQTT-3.3.1-4]")
    if packet.dup and packet.qos == 0:
        raise WireError("DUP with QoS 0 [MQTT-3.3.1-2]")
    packet.topic = cursor.string()
    if any(character in packet.topic for character in "+#"):
        raise WireError(f"wildcard in the topic name {packet.topic!r} [MQTT-3.3.2-2]")
    if packet.qos:
        packet.packet_id = cursor.packet_id()
    if version == V5:
        packet.properties = read_properties(cursor, "PUBLISH")
    if not packet.topic and "topic_alias" not in packet.properties:
        raise WireError("empty topic without a topic alias")
    packet.payload = cursor.rest()


def _read_ack(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    packet.packet_id = cursor.packet_id()
    packet.reason = 0
    if version == V5 and cursor.left:
        packet.reason = cursor.u8()
        if cursor.left:
            packet.properties = read_properties(cursor, packet.type.name)


def _read_suback(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    packet.packet_id = cursor.packet_id()
    if version == V5:
        packet.properties = read_properties(cursor, packet.type.name)
    packet.reasons = list(cursor.rest())
    if packet.type == PacketType.UNSUBACK and version != V5 and packet.reasons:
        raise WireError("an UNSUBACK of MQTT 3.1.1 has no payload")


def _read_end_or_auth(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    if version != V5:
        raise WireError("a server sends no DISCONNECT in MQTT 3.1.1")
    packet.reason = cursor.u8() if cursor.left else 0
    if cursor.left:
        packet.properties = read_properties(cursor, packet.type.name)


def _read_pingresp(packet: Packet, cursor: Cursor, header: int, version: int) -> None:
    pass


READERS = {
    PacketType.CONNACK: _read_connack,
    PacketType.PUBLISH: _read_publish,
    PacketType.PUBACK: _read_ack,
    PacketType.PUBREC: _read_ack,
    PacketType.PUBREL: _read_ack,
    PacketType.PUBCOMP: _read_ack,
    PacketType.SUBACK: _read_suback,
    PacketType.UNSUBACK: _read_suback,
    PacketType.PINGRESP: _read_pingresp,
    PacketType.DISCONNECT: _read_end_or_auth,
    PacketType.AUTH: _read_end_or_auth,
}


def _check_reasons(packet: Packet, version: int) -> None:
    given: Sequence[int] = packet.reasons or ([] if packet.reason is None else [packet.reason])
    allowed: Iterable[int] | None = SERVER_REASONS.get(packet.type)
    if version != V5:
        allowed = {PacketType.CONNACK: V311_CONNACK_CODES, PacketType.SUBACK: V311_SUBACK_CODES}.get(packet.type)
    if allowed is None:
        return
    for reason in given:
        if reason not in allowed:
            raise WireError(f"{packet.type.name} with reason code {reason:#04x}, which it must not carry")
