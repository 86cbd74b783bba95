"""How a session and its subscriptions are written down: msgpack arrays that begin with the number of their form.

A reader takes every form up to its own: fields are only ever added at the end, with a default. A higher number, written
by a newer broker, is refused with words.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock._ext.hub.connection import Session
from penstock.access.base import Grant, Identity, Subject
from penstock.access.identities import identity_of
from penstock.core.errors import PenstockError
from penstock.sessions.will import Will

SESSIONS = "tbmq.client.session"
SUBSCRIPTIONS = "tbmq.client.subscriptions"
WILLS = "tbmq.client.will"
FORM = 1

Subscription = tuple[bytes, int, int]
"""Filter, options, subscription identifier."""


class RecordError(PenstockError):
    """A stored record cannot be read."""


class WillRecord(msgspec.Struct, array_like=True, gc=False):
    topic: str
    payload: bytes
    qos: int
    retain: bool
    props: bytes
    delay: int
    expiry: int | None

    @classmethod
    def of(cls, will: Will) -> WillRecord:
        return cls(will.topic, will.payload, will.qos, will.retain, will.props, will.delay, will.expiry)

    def to_will(self) -> Will:
        return Will(self.topic, self.payload, self.qos, self.retain, self.props, self.delay, self.expiry)


class IdentityRecord(msgspec.Struct, frozen=True, array_like=True):
    """What is known of the user beyond the name; absent in records of older brokers."""

    source: str = ""
    groups: tuple[str, ...] = ()
    grants: tuple[Grant, ...] | None = None
    attributes: dict[str, str | int | float] = {}

    @classmethod
    def of(cls, identity: Identity) -> IdentityRecord:
        return cls(identity.source, identity.groups, identity.grants, identity.attributes)


UNKNOWN_IDENTITY = IdentityRecord()


class SessionRecord(msgspec.Struct, array_like=True, gc=False):
    """Times are milliseconds since the epoch; `disconnected_at` is 0 while the client is connected. `node` is the name
    of the broker that has the session, where several share a store."""

    form: int
    client_id: str
    username: str | None
    client_type: str
    version: int
    expiry_interval: int
    created_at: int
    disconnected_at: int
    will: WillRecord | None
    node: str = ""
    identity: IdentityRecord = UNKNOWN_IDENTITY

    def to_identity(self) -> Identity:
        known = self.identity
        return Identity(self.username, known.source, known.groups, known.grants, attributes=known.attributes)

    def to_subject(self) -> Subject:
        return Subject(self.to_identity(), self.client_id)


class SubscriptionsRecord(msgspec.Struct, array_like=True, gc=False):
    form: int
    subscriptions: list[Subscription]


_encoder = msgspec.msgpack.Encoder()
_session_decoder = msgspec.msgpack.Decoder(SessionRecord)
_subscriptions_decoder = msgspec.msgpack.Decoder(SubscriptionsRecord)


def encode_session(
    session: Session,
    client_type: str,
    created_at: int,
    disconnected_at: int,
    will: Will | None,
    *,
    node: str = "",
) -> bytes:
    record = SessionRecord(
        FORM,
        session.client_id,
        session.username,
        client_type,
        session.version,
        session.expiry_interval,
        created_at,
        disconnected_at,
        None if will is None else WillRecord.of(will),
        node,
        IdentityRecord.of(identity_of(session)),
    )
    return _encoder.encode(record)


def will_key(client_id: str, node: str) -> bytes:
    """Brokers that share a store have a will each for a client id; U+0000 is in neither [MQTT-1.5.4-2]."""
    return f"{client_id}\0{node}".encode()


def node_of_will(key: bytes) -> str:
    return key.decode(errors="replace").partition("\0")[2]


def decode_will(key: bytes, value: bytes) -> SessionRecord:
    """The will of a session that ends, or has ended, with its connection."""
    client_id = key.decode(errors="replace").partition("\0")[0]
    record: SessionRecord = _decode(_session_decoder, f"the will of {client_id!r}", value)
    if record.will is None:
        raise RecordError(f"the will of {client_id!r} cannot be read: there is none in its record")
    return record


def encode_subscriptions(subscriptions: list[Subscription]) -> bytes:
    return _encoder.encode(SubscriptionsRecord(FORM, subscriptions))


def decode_session(client_id: str, value: bytes) -> SessionRecord:
    record: SessionRecord = _decode(_session_decoder, f"the session of {client_id!r}", value)
    return record


def decode_subscriptions(client_id: str, value: bytes) -> list[Subscription]:
    record: SubscriptionsRecord = _decode(_subscriptions_decoder, f"the subscriptions of {client_id!r}", value)
    return record.subscriptions


def _decode(decoder: msgspec.msgpack.Decoder[Any], name: str, value: bytes) -> Any:
    try:
        record = decoder.decode(value)
    except msgspec.DecodeError as error:
        form = _form_of(value)
        if form is None or form <= FORM:
            raise RecordError(f"{name} cannot be read: {error}") from None
    else:
        form = record.form
    if form > FORM:
        raise RecordError(f"{name} is in form {form}, written by a newer broker; this one reads forms up to {FORM}")
    return record


def _form_of(value: bytes) -> int | None:
    try:
        parts = msgspec.msgpack.decode(value)
    except msgspec.DecodeError:
        return None
    return parts[0] if isinstance(parts, list) and parts and isinstance(parts[0], int) else None
