"""Is a session read as it was written, is its record small, and what of a record that nobody can read?"""

from __future__ import annotations

import msgspec
import pytest

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.match.acl import PUBLISH, SUBSCRIBE
from penstock.access.base import Grant, Identity, Subject
from penstock.sessions.records import (
    FORM,
    RecordError,
    decode_session,
    decode_subscriptions,
    encode_session,
    encode_subscriptions,
)
from penstock.sessions.will import Will
from tests.support.machine.manual_clock import ManualClock

WILL = Will("wills/a", b"\x00gone", 2, True, b"\x01\x01", 30, 60)


def make_session(client_id: str = "a", username: str | None = None) -> Session:
    session = Session(Hub(ManualClock()), client_id, username)
    session.version = 5
    session.expiry_interval = 3_600
    return session


def test_a_session_is_read_as_it_was_written() -> None:
    session = make_session("Gerät/7", "alice")
    value = encode_session(session, "application", 1_700_000_000_000, 1_700_000_000_123, WILL)
    record = decode_session("Gerät/7", value)
    assert (record.form, record.client_id, record.username) == (FORM, "Gerät/7", "alice")
    assert (record.client_type, record.version, record.expiry_interval) == ("application", 5, 3_600)
    assert (record.created_at, record.disconnected_at) == (1_700_000_000_000, 1_700_000_000_123)
    assert record.will is not None
    will = record.will.to_will()
    for name in ("topic", "payload", "qos", "retain", "props", "delay", "expiry"):
        assert getattr(will, name) == getattr(WILL, name), name


def test_a_session_without_name_or_will() -> None:
    record = decode_session("a", encode_session(make_session(), "device", 1, 0, None))
    assert record.username is None
    assert record.will is None
    assert record.disconnected_at == 0


def test_the_identity_is_read_as_it_was_written() -> None:
    session = make_session("a", "alice")
    grants = (Grant(True, PUBLISH | SUBSCRIBE, "own/%u/#"),)
    session.identity = Identity("alice", "password_file", ("staff", "lab"), grants, attributes={"rate": 10, "cn": "a"})
    record = decode_session("a", encode_session(session, "device", 1, 0, None, node="n1"))
    assert record.to_identity() == session.identity
    assert record.to_subject() == Subject(session.identity, "a")
    session.identity = Identity("alice", expires_at=5.0)  # belongs to the connection
    assert decode_session("a", encode_session(session, "device", 1, 0, None)).to_identity() == Identity("alice")


# As brokers wrote them before they recorded identities: without, and with the name of a node.
OLD = bytes.fromhex("9901a161a5616c696365a6646576696365 05cd0e10 cf0000018bcfe56800 00 c0".replace(" ", ""))
OLD_WITH_NODE = b"\x9a" + OLD[1:] + b"\xa2n1"


@pytest.mark.parametrize(("value", "node"), [(OLD, ""), (OLD_WITH_NODE, "n1")])
def test_a_record_of_an_older_broker(value: bytes, node: str) -> None:
    """The user is known, who has confirmed it is not, and there are no groups."""
    record = decode_session("a", value)
    assert (record.client_id, record.username, record.expiry_interval, record.node) == ("a", "alice", 3_600, node)
    assert record.to_identity() == Identity("alice", source="", groups=(), grants=None)


def test_an_older_broker_reads_the_record() -> None:
    """It takes the fields it knows, and leaves out the rest."""

    class Older(msgspec.Struct, array_like=True):
        form: int
        client_id: str
        username: str | None

    session = make_session("a", "alice")
    session.identity = Identity("alice", "password_file", ("staff",))
    value = encode_session(session, "device", 1, 0, None)
    assert msgspec.msgpack.decode(value, type=Older) == Older(FORM, "a", "alice")
    fields = msgspec.msgpack.decode(value)
    assert fields[:-1] == [FORM, "a", "alice", "device", 5, 3_600, 1, 0, None, ""]


def test_subscriptions_are_read_as_they_were_written() -> None:
    subscriptions = [(b"a/+", 1, 0), (b"$share/g/\xc3\xa4/#", 0x2E, 268_435_455)]
    assert decode_subscriptions("a", encode_subscriptions(subscriptions)) == subscriptions


def test_a_typical_record_is_small() -> None:
    """At most 2 KB for a session with ten subscriptions."""
    client_id = "sensor-3f2a77b0-7b1c-4f0e-9d57-0123456789ab"
    topics = [f"plant/hall-7/line-12/{client_id}/measurements/{n}/+".encode() for n in range(10)]
    size = len(encode_session(make_session(client_id, "plant-user"), "device", 1_700_000_000_000, 0, WILL))
    size += len(encode_subscriptions([(topic, 1, 1_000) for topic in topics])) + 2 * len(client_id)
    assert size <= 2_048


@pytest.mark.parametrize("decode", [decode_session, decode_subscriptions])
@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x91\x01", b"\x80", msgspec.msgpack.encode([1, 2, 3])])
def test_damage_is_told_with_the_name_of_the_record(decode: object, value: bytes) -> None:
    with pytest.raises(RecordError, match="of 'c/1' cannot be read: "):
        decode("c/1", value)  # type: ignore[operator]


@pytest.mark.parametrize("decode", [decode_session, decode_subscriptions])
def test_a_newer_form_is_refused_with_words(decode: object) -> None:
    """Whether or not it still looks like ours."""
    longer = msgspec.msgpack.decode(encode_session(make_session(), "device", 1, 0, None))
    assert isinstance(longer, list)
    for value in ([FORM + 1, {"all": "new"}], [FORM + 1, *longer[1:], "more"], [FORM + 1, []]):
        with pytest.raises(RecordError, match=f"of 'c' is in form {FORM + 1}, written by a newer broker"):
            decode("c", msgspec.msgpack.encode(value))  # type: ignore[operator]


def test_fields_added_later_do_not_disturb() -> None:
    longer = msgspec.msgpack.decode(encode_session(make_session(), "device", 1, 0, None))
    assert decode_session("a", msgspec.msgpack.encode([*longer, "more"])).client_id == "a"
