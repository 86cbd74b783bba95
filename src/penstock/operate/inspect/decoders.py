"""Records that the broker writes for itself, as fields: events of clients, their sessions, subscriptions and wills."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from penstock._ext.application.context import read_context
from penstock._ext.record.segment import Record
from penstock.core.errors import PenstockError
from penstock.core.logging import escape
from penstock.ingest.received import TABLE as RECEIVED
from penstock.ingest.received import decode_received
from penstock.operate.inspect.records import as_text, describe_headers, format_time, put_bytes, render_headers
from penstock.services.log_names import LogNames
from penstock.sessions.records import (
    SESSIONS,
    SUBSCRIPTIONS,
    WILLS,
    SessionRecord,
    WillRecord,
    decode_session,
    decode_subscriptions,
    decode_will,
)
from penstock.settings import Settings
from penstock.storage.state.topic import MARKER
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, OWN, SHARED, split_key
from penstock.subscribers.application.contexts import TABLE as CONTEXTS
from penstock_schema.decode import SchemaError
from penstock_schema.event import TOPIC as EVENTS
from penstock_schema.event import EventKind, decode_event

Fields = dict[str, Any]
Decoder = Callable[[Record], Fields | None]
"""The fields of a record; None when it is something else, which is shown as it is."""
TABLES = ("tbmq.client.", "tbmq.queue.", "tbmq.datasub.")
"""What the topics begin with that are read as tables at a start, each behind a marker."""
_TOLD = (EventKind.DELIVERED, EventKind.EXPIRED, EventKind.DROPPED, EventKind.DEAD_LETTERED)


def find_decoder(settings: Settings, topic: str) -> Decoder | None:
    """None for a topic whose records are not the broker's own."""
    names = LogNames(settings)
    decode = {names.of(own): decoder for own, decoder in _DECODERS.items()}.get(topic)
    if decode is None and not topic.startswith(tuple(map(names.of, TABLES))):
        return None

    def try_to(record: Record) -> Fields | None:
        if record.key == MARKER:
            return {"kind": "marker", "by": as_text(record.value or b"") or None}
        if decode is None or not record.value:
            return None
        try:
            return decode(record.key or b"", record.value)
        except (SchemaError, PenstockError, ValueError, LookupError, msgspec.DecodeError):
            return None  # of another release, or somebody else's

    return try_to


def describe_own(partition: int, record: Record, fields: Mapping[str, Any]) -> Fields:
    """A record as JSON can say it."""
    place = {"partition": partition, "offset": record.offset, "time": format_time(record.timestamp)}
    return {**place, **fields, **describe_headers(record)}


def render_own(partition: int, record: Record, fields: Mapping[str, Any]) -> str:
    """A record as one line, with nothing in it that a terminal would act upon: clients choose their names."""
    # as of a publish, the time is when it happened: it was logged a little later
    words = [f"{partition}:{record.offset}", fields.get("at") or format_time(record.timestamp)]
    for name, value in fields.items():
        if name in ("kind", "client_id"):
            words.append(escape(value))
        elif name != "at" and value is not None:
            words.append(f"{name}={_show(value)}")
    return "  ".join([*words, *render_headers(record)])


def _show(value: object) -> str:
    if isinstance(value, dict):
        return f"({', '.join(f'{name}={_show(one)}' for name, one in value.items() if one is not None)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escape(str(value))


def _describe_event(_: bytes, value: bytes) -> Fields:
    event = decode_event(value)
    try:
        kind = EventKind(event.kind).name.lower()
    except ValueError:
        kind = f"kind {event.kind}"  # of a later release
    fields: Fields = {"kind": kind, "client_id": event.client_id, "username": event.username}
    fields |= {name: getattr(event, name) for name in ("topic", "cause", "address", "node") if getattr(event, name)}
    if event.kind in (EventKind.CONNECTED, EventKind.DISCONNECTED):
        fields["protocol"] = event.protocol
    if event.kind == EventKind.SUBSCRIBED or event.qos:
        fields["qos"] = event.qos
    if event.reason:
        fields["reason"] = event.reason
    if event.kind in _TOLD or event.count:
        fields["count"] = max(1, event.count)
    return {**fields, "at": format_time(event.at)}


def _describe_session(key: bytes, value: bytes) -> Fields:
    return _fields_of_session(decode_session(key.decode(errors="replace"), value))


def _describe_will_of_client(key: bytes, value: bytes) -> Fields:
    return _fields_of_session(decode_will(key, value))


def _fields_of_session(session: SessionRecord) -> Fields:
    gone = session.disconnected_at
    return {
        "client_id": session.client_id,
        "username": session.username,
        "client_type": session.client_type,
        "protocol": session.version,
        "expiry_interval": session.expiry_interval,
        "created_at": format_time(session.created_at),
        "disconnected_at": format_time(gone) if gone else None,
        "node": session.node or None,
        "will": None if session.will is None else _describe_will(session.will),
    }


def _describe_will(will: WillRecord) -> Fields:
    described: Fields = {"topic": will.topic}
    put_bytes(described, "payload", will.payload)
    return {**described, "qos": will.qos, "retain": will.retain, "delay": will.delay, "expiry": will.expiry}


def _describe_subscriptions(key: bytes, value: bytes) -> Fields:
    client_id = key.decode(errors="replace")
    found = [
        {"filter": name.decode(errors="replace"), "qos": options & 3, "identifier": identifier or None}
        for name, options, identifier in decode_subscriptions(client_id, value)
    ]
    return {"client_id": client_id, "subscriptions": found}


def _describe_received(key: bytes, value: bytes) -> Fields:
    """Of QoS 2: what clients have not released yet, and how far a broker has stored these ids."""
    record = decode_received(key, value)
    if record.node is None:
        return {
            "client_id": record.client_id,
            "sequence": record.sequence,
            "packet_ids": sorted(record.packet_ids),
        }
    if record.topic:
        return {"kind": "mark", "node": record.node, "topic": record.topic, "stored_to": record.ends[0]}
    ends = {str(partition): end for partition, end in sorted(record.ends.items())}
    return {"kind": "mark", "node": record.node, "stored_to": ends, "at": format_time(record.at)}


def _describe_context(key: bytes, value: bytes) -> Fields:
    """What of a topic is committed and in flight on its way to an APPLICATION client."""
    kind, owner, topic, partition = split_key(key)
    fields: Fields = {"kind": _CONTEXTS[kind], "group" if kind == SHARED else "client_id": owner}
    if kind == SHARED:
        holder, _, value = value.partition(b"\0")
        fields["client_id"] = holder.decode()
    context = read_context(value)
    runs = [
        {"offset": offset, "packet_id": packet_id or None, "count": count, "state": state}
        for offset, packet_id, count, state in context["in_flight"]
    ]
    return {
        **fields,
        "topic": topic,
        "of_partition": partition,
        "committed": context["committed"],
        "end": context["end"],
        "in_flight": runs,
    }


_CONTEXTS = {OWN: "own", SHARED: "shared", CLAIMED: "claimed", OFFERED: "offered"}
_DECODERS: dict[str, Callable[[bytes, bytes], Fields]] = {
    EVENTS: _describe_event,
    SESSIONS: _describe_session,
    SUBSCRIPTIONS: _describe_subscriptions,
    WILLS: _describe_will_of_client,
    RECEIVED: _describe_received,
    CONTEXTS: _describe_context,
}
