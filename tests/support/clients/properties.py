"""MQTT 5 properties as dictionaries: {"session_expiry_interval": 10, "user_property": [("a", "1"), ("a", "2")]}.

Those that may appear more than once (user_property, and subscription_identifier in a PUBLISH) are lists when read;
a list or tuple of values may be given for any when packed, to make duplicates.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from tests.support.clients.wire_types import Cursor, WireError, binary, string, varint

PropertyInput = Mapping[str, Any] | bytes | None

ACKS = {"PUBACK", "PUBREC", "PUBREL", "PUBCOMP", "SUBACK", "UNSUBACK"}
EVERYWHERE = {"CONNACK", "PUBLISH", "DISCONNECT", "AUTH", *ACKS}

# name: (identifier, type, packets in which a server may send it)
PROPERTIES: dict[str, tuple[int, str, set[str]]] = {
    "payload_format_indicator": (0x01, "u8", {"PUBLISH"}),
    "message_expiry_interval": (0x02, "u32", {"PUBLISH"}),
    "content_type": (0x03, "string", {"PUBLISH"}),
    "response_topic": (0x08, "string", {"PUBLISH"}),
    "correlation_data": (0x09, "binary", {"PUBLISH"}),
    "subscription_identifier": (0x0B, "varint", {"PUBLISH"}),
    # Never in a DISCONNECT from the server [MQTT-3.14.2-2]
    "session_expiry_interval": (0x11, "u32", {"CONNACK"}),
    "assigned_client_identifier": (0x12, "string", {"CONNACK"}),
    "server_keep_alive": (0x13, "u16", {"CONNACK"}),
    "authentication_method": (0x15, "string", {"CONNACK", "AUTH"}),
    "authentication_data": (0x16, "binary", {"CONNACK", "AUTH"}),
    "request_problem_information": (0x17, "u8", set()),
    "will_delay_interval": (0x18, "u32", set()),
    "request_response_information": (0x19, "u8", set()),
    "response_information": (0x1A, "string", {"CONNACK"}),
    "server_reference": (0x1C, "string", {"CONNACK", "DISCONNECT"}),
    "reason_string": (0x1F, "string", EVERYWHERE - {"PUBLISH"}),
    "receive_maximum": (0x21, "u16", {"CONNACK"}),
    "topic_alias_maximum": (0x22, "u16", {"CONNACK"}),
    "topic_alias": (0x23, "u16", {"PUBLISH"}),
    "maximum_qos": (0x24, "u8", {"CONNACK"}),
    "retain_available": (0x25, "u8", {"CONNACK"}),
    "user_property": (0x26, "pair", EVERYWHERE),
    "maximum_packet_size": (0x27, "u32", {"CONNACK"}),
    "wildcard_subscription_available": (0x28, "u8", {"CONNACK"}),
    "subscription_identifier_available": (0x29, "u8", {"CONNACK"}),
    "shared_subscription_available": (0x2A, "u8", {"CONNACK"}),
}
BY_IDENTIFIER = {identifier: (name, kind, packets) for name, (identifier, kind, packets) in PROPERTIES.items()}
REPEATABLE = {"user_property", "subscription_identifier"}

PACKERS = {
    "u8": lambda value: bytes([value]),
    "u16": lambda value: struct.pack("!H", value),
    "u32": lambda value: struct.pack("!I", value),
    "varint": varint,
    "string": string,
    "binary": binary,
    "pair": lambda value: string(value[0]) + string(value[1]),
}
READERS = {
    "u8": Cursor.u8,
    "u16": Cursor.u16,
    "u32": Cursor.u32,
    "varint": Cursor.varint,
    "string": Cursor.string,
    "binary": Cursor.binary,
    "pair": lambda cursor: (cursor.string(), cursor.string()),
}


def pack_property(name: str, value: Any) -> bytes:
    identifier, kind, _ = PROPERTIES[name]
    return varint(identifier) + PACKERS[kind](value)


def pack_properties(properties: PropertyInput) -> bytes:
    """Length and properties. Bytes are taken as the property block itself, to send what no dictionary can say."""
    if properties is None:
        return b"\0"
    if isinstance(properties, bytes):
        return varint(len(properties)) + properties
    block = b""
    for name, value in properties.items():
        values = value if isinstance(value, list) else [value]
        block += b"".join(pack_property(name, item) for item in values)
    return varint(len(block)) + block


def read_properties(cursor: Cursor, packet_name: str) -> dict[str, Any]:
    """The properties of a packet from the server, each checked for its place and its number."""
    block = cursor.sub(cursor.varint())
    properties: dict[str, Any] = {}
    while block.left:
        identifier = block.varint()
        if identifier not in BY_IDENTIFIER:
            raise WireError(f"unknown property {identifier:#x} in {packet_name}")
        name, kind, packets = BY_IDENTIFIER[identifier]
        if packet_name not in packets:
            raise WireError(f"property {name} has no place in {packet_name} from the server")
        value = READERS[kind](block)
        if name in REPEATABLE:
            properties.setdefault(name, []).append(value)
        elif name in properties:
            raise WireError(f"property {name} twice in {packet_name}")
        else:
            properties[name] = value
    return properties
