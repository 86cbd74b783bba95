"""Reads a stored record in plain Python: for jobs that run where neither the compiled module nor protobuf is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from penstock_schema import fields
from penstock_schema.fields import FIRST_VERSION, VERSION

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST = (1 << 64) - 1


class SchemaError(ValueError):
    """The bytes are not a record of a version that is read here; `position` is the byte where it shows."""

    def __init__(self, message: str, position: int) -> None:
        super().__init__(f"{message} (at byte {position})")
        self.position = position


class Publish(NamedTuple):
    """A record; the fields are those of publish.proto, None where an optional one is absent."""

    schema_version: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    client_id: str
    username: str | None
    received_at: int
    expires_at: int
    payload_format: int | None
    content_type: str | None
    response_topic: str | None
    correlation_data: bytes | None
    user_properties: list[tuple[str, str]]


_DEFAULTS = Publish(0, "", b"", 0, False, "", None, 0, 0, None, None, None, None, [])
_FIELDS = {field.number: field for field in fields.PUBLISH_FIELDS}


def decode(data: bytes) -> Publish:
    """The record in the bytes. Unknown fields are skipped, the last of a repeated single field counts."""
    found: dict[str, Any] = {}
    properties: list[tuple[str, str]] = []
    for number, value, position in _walk(data, 0, len(data)):
        field = _FIELDS.get(number)
        if field is None:
            continue
        if isinstance(value, int):
            if field.type in ("uint32", "int64", "bool"):
                found[field.name] = _number(field.type, value)
        elif field.type == "UserProperty":
            properties.append(_user_property(data, position, position + len(value)))
        elif field.type == "string":
            found[field.name] = _text(value, field.name, position)
        elif field.type == "bytes":
            found[field.name] = value
    record = _DEFAULTS._replace(user_properties=properties, **found)
    if not FIRST_VERSION <= record.schema_version <= VERSION:
        raise SchemaError(
            f"a record of schema version {record.schema_version}; read are {FIRST_VERSION} to {VERSION}", len(data)
        )
    if not record.topic:
        raise SchemaError("a record without a topic", len(data))
    return record


def walk_fields(data: bytes, known: Iterable[fields.Field]) -> Iterator[tuple[str, Any]]:
    """Name and value of each field of another message of numbers, strings and bytes; unknown ones are skipped."""
    by_number = {field.number: field for field in known}
    for number, value, position in _walk(data, 0, len(data)):
        field = by_number.get(number)
        if field is None:
            continue
        if isinstance(value, int):
            if field.type in ("uint32", "int64", "bool"):
                yield field.name, _number(field.type, value)
        elif field.type == "string":
            yield field.name, _text(value, field.name, position)
        elif field.type == "bytes":
            yield field.name, value


def _number(kind: str, value: int) -> int | bool:
    if kind == "bool":
        return value != 0
    if kind == "uint32":
        return value & 0xFFFFFFFF
    return value - (1 << 64) if value >> 63 else value


def _text(value: bytes, name: str, position: int) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise SchemaError(f"{name} is not UTF-8", position + error.start) from None


def _user_property(data: bytes, start: int, end: int) -> tuple[str, str]:
    parts = {fields.USER_PROPERTY_NAME: "", fields.USER_PROPERTY_VALUE: ""}
    for number, value, position in _walk(data, start, end):
        if number in parts and isinstance(value, bytes):
            parts[number] = _text(value, "a user property", position)
    return parts[fields.USER_PROPERTY_NAME], parts[fields.USER_PROPERTY_VALUE]


def _walk(data: bytes, at: int, end: int) -> Iterator[tuple[int, int | bytes, int]]:
    """Field number, value and the position of the value. Fixed-width fields, of which there are none, are skipped."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0 or number >> 29:
            raise SchemaError("no field has this number", at)
        if kind == _VARINT:
            value, after = _varint(data, at, end)
            yield number, value, at
            at = after
        elif kind == _BYTES:
            size, at = _varint(data, at, end)
            if size > end - at:
                raise SchemaError("a field runs over the end", at)
            yield number, data[at : at + size], at
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
            if at > end:
                raise SchemaError("a field runs over the end", end)
        else:
            raise SchemaError(f"wire type {kind} is not used", at)


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            if value > _LARGEST:
                break
            return value, at
        shift += 7
    raise SchemaError("a number is cut off or too long", at)
