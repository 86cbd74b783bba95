"""Writes a stored record in plain Python, byte for byte as the broker and Google's library do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock_schema.decode import Publish
from penstock_schema.fields import PUBLISH_FIELDS, USER_PROPERTY_NAME, USER_PROPERTY_VALUE, Field

_BYTES = 2


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _bytes_field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | _BYTES) + varint(len(data)) + data


def encode(record: Publish) -> bytes:
    """The record's bytes: fields in the order of their numbers, those with their default left out."""
    return encode_fields(PUBLISH_FIELDS, record)


def encode_fields(fields: Iterable[Field], record: Any) -> bytes:
    """The same for any message of numbers, strings and bytes whose fields are attributes of the record."""
    parts = []
    for field in fields:
        value = getattr(record, field.name)
        if field.type == "UserProperty":
            parts += [_bytes_field(field.number, _pair(*pair)) for pair in value]
        elif value is None or (not value and field.label != "optional"):
            continue
        elif field.type in ("string", "bytes"):
            parts.append(_bytes_field(field.number, value.encode() if isinstance(value, str) else value))
        else:
            parts.append(varint(field.number << 3) + varint(int(value)))
    return b"".join(parts)


def _pair(name: str, value: str) -> bytes:
    parts = ((USER_PROPERTY_NAME, name), (USER_PROPERTY_VALUE, value))
    return b"".join(_bytes_field(number, text.encode()) for number, text in parts if text)
