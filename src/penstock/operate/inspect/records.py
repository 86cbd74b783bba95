"""Records as text for a person or as JSON for a program."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal
from uuid import UUID

import msgspec

from penstock._ext.record.envelope import Envelope, EnvelopeError, decode
from penstock._ext.record.segment import Record
from penstock.core.errors import PenstockError
from penstock.core.logging import escape
from penstock.services.messages import CORRELATION_ID, EXPIRE_TS, REQUEST_ID, TS

Decode = Literal["publish", "raw", "auto"]


def decode_publish(value: bytes | None, how: Decode) -> Envelope | None:
    """The publish in a record; None when it is not to be decoded, or (auto) is something else."""
    if how == "raw" or value is None:
        return None
    try:
        return decode(value)
    except EnvelopeError as error:
        if how == "auto":
            return None
        raise PenstockError(
            f"a record is not a publish: {error}", "`--decode raw` shows it as it is, `--decode auto` decides itself."
        ) from None


def format_time(milliseconds: int) -> str:
    seconds, thousandths = divmod(milliseconds, 1000)
    head, zone = _format_second(seconds)
    return f"{head}.{thousandths:03}{zone}"


@lru_cache(maxsize=64)
def _format_second(seconds: int) -> tuple[str, str]:
    """Records that follow each other share their second far more often than not."""
    try:
        text = datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return f"@{seconds}", ""  # a log can have other writers, with other ideas of time
    return text[:19], text[19:]


def as_text(data: bytes) -> str | None:
    """None when the bytes are not text."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def put_bytes(described: dict[str, Any], name: str, data: bytes | None) -> None:
    """Text as it is, other bytes in base64 under the name with `_base64`; none as null."""
    text = None if data is None else as_text(data)
    if data is not None and text is None:
        described[f"{name}_base64"] = base64.b64encode(data).decode()
    else:
        described[name] = text


def describe_properties(publish: Envelope) -> dict[str, Any]:
    """The MQTT 5 properties that the publish has."""
    properties: dict[str, Any] = {}
    for name in ("payload_format", "content_type", "response_topic"):
        value = getattr(publish, name)
        if value is not None:
            properties[name] = value
    if publish.correlation_data is not None:
        put_bytes(properties, "correlation_data", publish.correlation_data)
    if publish.user_properties:
        properties["user_properties"] = [list(pair) for pair in publish.user_properties]
    return properties


def describe(partition: int, record: Record, publish: Envelope | None) -> dict[str, Any]:
    """A record as JSON can say it."""
    described: dict[str, Any] = {"partition": partition, "offset": record.offset, "time": format_time(record.timestamp)}
    if publish is None:
        put_bytes(described, "key", record.key)
        put_bytes(described, "value", record.value)
    else:
        described["topic"] = publish.topic
        put_bytes(described, "payload", publish.payload)
        described |= {
            "qos": publish.qos,
            "retain": publish.retain,
            "client_id": publish.client_id,
            "username": publish.username,
            "received_at": format_time(publish.received_at),
            "expires_at": format_time(publish.expires_at) if publish.expires_at else None,
            "properties": describe_properties(publish),
        }
    return {**described, **describe_headers(record)}


def describe_headers(record: Record) -> dict[str, Any]:
    """Nothing of a record that has none."""
    return {"headers": [_describe_header(name, value) for name, value in record.headers]} if record.headers else {}


def _describe_header(name: str, value: bytes) -> dict[str, Any]:
    described: dict[str, Any] = {"name": name}
    known = _show_known(name, value)
    if known is None:
        put_bytes(described, "value", value)
    else:
        described["value"] = known
    return described


def _show_known(name: str, value: bytes) -> str | None:
    """Times and ids that messages of queues carry as bytes; None: it is something else, or text."""
    if (text := as_text(value)) is not None and text.isprintable():
        return None
    if name in (TS, EXPIRE_TS) and len(value) == 8:
        return format_time(int.from_bytes(value, "big", signed=True))
    if name in (REQUEST_ID, CORRELATION_ID) and len(value) == 16:
        return str(UUID(bytes=value))
    return None


def to_json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def show_bytes(data: bytes | None) -> str:
    if data is None:
        return "(none)"
    text = as_text(data)
    return escape(text) if text is not None else f"base64:{base64.b64encode(data).decode()}"


def render(partition: int, record: Record, publish: Envelope | None) -> str:
    """A record as one line, with nothing in it that a terminal would act upon: anyone may publish."""
    place = f"{partition}:{record.offset}"
    extra: list[str] = []
    if publish is None:
        words = [place, format_time(record.timestamp), f"key={show_bytes(record.key)}", show_bytes(record.value)]
    else:
        sender = publish.client_id if publish.username is None else f"{publish.client_id} ({publish.username})"
        flags = f"q{publish.qos}{' retain' if publish.retain else ''}"
        words = [place, format_time(publish.received_at), flags, escape(sender), escape(publish.topic)]
        words.append(show_bytes(publish.payload))
        if publish.expires_at:
            extra.append(f"expires={format_time(publish.expires_at)}")
        for name, value in describe_properties(publish).items():
            if name == "user_properties":
                extra += [f"{escape(key)}={escape(text)}" for key, text in value]
            else:
                extra.append(f"{name}={escape(str(value))}")
    return "  ".join([*words, *render_headers(record, extra)])


def render_headers(record: Record, others: Sequence[str] = ()) -> list[str]:
    """`[name=value, …]`, others first; nothing where there are none."""
    shown = [f"{escape(name)}={_show_known(name, data) or show_bytes(data)}" for name, data in record.headers]
    return [f"[{', '.join([*others, *shown])}]"] if others or shown else []
