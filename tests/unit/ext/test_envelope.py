"""The stored record: the same bytes as Google's protobuf library, both ways, and nothing that crashes the reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError
from grpc_tools import protoc
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock_schema
from penstock._ext.record import envelope
from penstock._ext.record.segment import RecordPack
from penstock_schema import decode as plain
from penstock_schema import fields, publish_pb2
from penstock_schema.publish_pb2 import Publish
from tests.support.clients.wire_types import binary, string

SCHEMA = Path(penstock_schema.__file__).parent / "publish.proto"

# As the first release wrote it. Never changed: what is on somebody's disk must stay readable.
GOLDEN = bytes.fromhex(
    "0801"  # schema_version 1
    "1205 612f622f63"  # topic a/b/c
    "1a02 6869"  # payload hi
    "2001 2801"  # qos 1, retain
    "3202 6331"  # client_id c1
    "3a00"  # username, empty
    "40 80f0dae29c33"  # received_at
    "48 80a6c1e29c33"  # expires_at
    "8001 01"  # payload_format 1
    "8a01 0a 746578742f706c61696e"  # content_type text/plain
    "9201 01 72"  # response_topic r
    "9a01 02 00ff"  # correlation_data
    "a201 08 0a016b 1203 763120"  # user property k = "v1 "
    "a201 03 0a016b"  # user property k, empty
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
topics = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=40)
times = st.one_of(st.just(0), st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**42))
properties = st.fixed_dictionaries(
    {},
    optional={
        "payload_format": st.integers(0, 1),
        "content_type": texts,
        "response_topic": topics,
        "correlation_data": st.binary(max_size=40),
        "user_properties": st.lists(st.tuples(texts, texts), max_size=8),
    },
)
records = st.fixed_dictionaries(
    {"topic": topics, "payload": st.one_of(st.binary(max_size=200), st.binary(min_size=16_380, max_size=16_390))},
    optional={
        "qos": st.integers(0, 2),
        "retain": st.booleans(),
        "client_id": texts,
        "username": st.one_of(st.none(), texts),
        "received_at": times,
        "expires_at": times,
    },
)


def mqtt_properties(values: dict, order: list[str] | None = None) -> bytes:
    """The properties in MQTT's encoding, in the order given."""
    out = b""
    for name in order or list(values):
        if name == "user_properties":
            out += b"".join(b"\x26" + string(key) + string(value) for key, value in values[name])
        elif name == "payload_format":
            out += bytes([1, values[name]])
        else:
            out += {"content_type": b"\x03", "response_topic": b"\x08", "correlation_data": b"\x09"}[name]
            out += binary(values[name]) if name == "correlation_data" else string(values[name])
    return out


def by_google(record: dict, props: dict) -> bytes:
    message = Publish(schema_version=1)
    for name, value in {**record, **props}.items():
        if name == "user_properties":
            for key, text in value:
                message.user_properties.add(name=key, value=text)
        elif value is not None:
            setattr(message, name, value)
    return message.SerializeToString(deterministic=True)


def as_google(data: bytes, kind: type = Publish) -> dict:
    """What Google's library reads, in the names and values of our own decoders."""
    message = kind.FromString(data)
    found = {}
    for field in fields.PUBLISH_FIELDS:
        if field.label == "optional" and not message.HasField(field.name):
            found[field.name] = None
        elif field.label == "repeated":
            found[field.name] = [(pair.name, pair.value) for pair in message.user_properties]
        else:
            found[field.name] = getattr(message, field.name)
    return found


def without_props(read: envelope.Envelope) -> dict:
    found = read._asdict()
    del found["props"]
    return found


@settings(max_examples=200, deadline=None)
@given(record=records, props=properties, data=st.data())
def test_same_bytes_as_google_and_read_back(record: dict, props: dict, data: st.DataObject) -> None:
    order = data.draw(st.permutations(list(props)))
    written = envelope.encode(**record, props=mqtt_properties(props, order))
    assert written == by_google(record, props)
    expected = as_google(written)
    read = envelope.decode(written)
    assert without_props(read) == expected
    assert plain.decode(written)._asdict() == expected
    canonical = ["payload_format", "content_type", "response_topic", "correlation_data", "user_properties"]
    assert read.props == mqtt_properties(props, [name for name in canonical if name in props])
    for name, value in {**record, **props}.items():
        assert getattr(read, name) == value


@settings(max_examples=200, deadline=None)
@given(first=properties, second=properties, record=records)
def test_any_order_and_the_last_of_a_field_counts(first: dict, second: dict, record: dict) -> None:
    """Protobuf joins two encoded messages by concatenation; a writer in another language may order fields freely."""
    joined = by_google({}, first) + by_google(record, second) + by_google({"qos": 0}, {})
    expected = as_google(joined)
    assert without_props(envelope.decode(joined)) == expected
    assert plain.decode(joined)._asdict() == expected


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=60))
def test_random_bytes_never_crash(data: bytes) -> None:
    for decode in (envelope.decode, plain.decode):
        try:
            read = decode(data)
        except ValueError as error:
            assert 0 <= error.position <= len(data)  # noqa: PT017 - most of the random bytes are refused, some are not
        else:
            assert read.topic


@settings(max_examples=100, deadline=None)
@given(record=records, props=properties, data=st.data())
def test_changed_bytes_are_refused_or_read_as_google_reads_them(record: dict, props: dict, data: st.DataObject) -> None:
    changed = bytearray(by_google(record, props))
    place = data.draw(st.integers(0, len(changed) - 1))
    changed[place] ^= data.draw(st.integers(1, 255))
    try:
        read = envelope.decode(bytes(changed))
    except envelope.EnvelopeError:
        return
    try:
        expected = as_google(bytes(changed))
    except DecodeError:
        pytest.fail("we read what Google refuses")
    assert without_props(read) == expected


def test_golden() -> None:
    read = envelope.decode(GOLDEN)
    assert without_props(read) == as_google(GOLDEN) == plain.decode(GOLDEN)._asdict()
    assert read.topic == "a/b/c"
    assert read.payload == b"hi"
    assert (read.qos, read.retain, read.client_id, read.username) == (1, True, "c1", "")
    assert (read.payload_format, read.content_type, read.response_topic) == (1, "text/plain", "r")
    assert read.correlation_data == b"\x00\xff"
    assert read.user_properties == [("k", "v1 "), ("k", "")]
    again = envelope.encode(
        "a/b/c",
        b"hi",
        1,
        retain=True,
        client_id="c1",
        username="",
        received_at=read.received_at,
        expires_at=read.expires_at,
        props=read.props,
    )
    assert again == GOLDEN


def test_cut_off_at_every_byte() -> None:
    whole = [position for position in range(len(GOLDEN) + 1) if _is_whole(GOLDEN[:position])]
    for position in range(len(GOLDEN) + 1):
        for decode in (envelope.decode, plain.decode):
            if position in whole:
                assert decode(GOLDEN[:position]).topic == "a/b/c"
            else:
                with pytest.raises(ValueError, match=r"at byte \d+"):
                    decode(GOLDEN[:position])
    assert len(whole) == 14, "the places between two fields, once the topic is there, and no other"


def _is_whole(data: bytes) -> bool:
    try:
        return bool(Publish.FromString(data).topic)
    except DecodeError:
        return False


LATER = (
    *fields.PUBLISH_FIELDS,
    fields.Field("node", 10, "string"),
    fields.Field("tenant", 21, "bytes", "optional"),
    fields.Field("sequence", 1000, "int64"),
)
EARLIER = tuple(field for field in fields.PUBLISH_FIELDS if field.number <= fields.RECEIVED_AT)


def test_a_later_schema_and_an_earlier_one_side_by_side() -> None:
    """A node that was upgraded first writes fields this one does not know, and reads records that lack them."""
    later = publish_pb2.build_messages(publish_pb2.build_file(LATER))["Publish"]
    earlier = publish_pb2.build_messages(publish_pb2.build_file(EARLIER))["Publish"]
    new = later(
        schema_version=1, topic="t", payload=b"new", node="n1", tenant=b"\x00" * 16, sequence=-1, content_type="x"
    ).SerializeToString()
    old = earlier(schema_version=1, topic="t", payload=b"old", received_at=5).SerializeToString()
    ours = envelope.encode("t", b"ours", received_at=5)
    pack = RecordPack()
    pack.extend([new, old, ours])
    columns, refused = envelope.decode_pack(pack)
    assert not refused
    assert columns["payload"] == [b"new", b"old", b"ours"]
    assert columns["content_type"] == ["x", None, None]
    assert columns["received_at"] == [0, 5, 5]
    for record in (new, old, ours):
        assert plain.decode(record)._asdict() == without_props(envelope.decode(record)) == as_google(record, later)
        assert earlier.FromString(record).topic == "t"


@pytest.mark.parametrize("version", [0, fields.VERSION + 1, 2**31])
def test_other_versions_are_refused(version: int) -> None:
    record = Publish(schema_version=version, topic="t").SerializeToString()
    for decode in (envelope.decode, plain.decode):
        with pytest.raises(ValueError, match="version"):
            decode(record)


UNKNOWN = {
    "fixed32": b"\xfd\x7f1234",
    "fixed64": b"\xf9\x7f12345678",
    "varint": b"\xf8\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "known number, other type": b"\x10\x05\x92\x01\x00\x8a\x01\x00\x18\x07",
}


@pytest.mark.parametrize("field", UNKNOWN.values(), ids=UNKNOWN)
def test_unknown_fields_are_skipped(field: bytes) -> None:
    base = Publish(schema_version=1, topic="t", response_topic="", content_type="").SerializeToString()
    record = base + field + Publish(payload=b"p", response_topic="r").SerializeToString()
    assert without_props(envelope.decode(record)) == as_google(record) == plain.decode(record)._asdict()
    with pytest.raises(envelope.EnvelopeError) as cut:
        envelope.decode(base + field[:-1])
    assert len(base) <= cut.value.position < len(base + field)


REFUSED = {
    "nothing": b"",
    "no topic": b"\x08\x01",
    "field number 0": b"\x08\x01\x12\x01t\x00\x00",
    "group": b"\x08\x01\x12\x01t\x53\x54",
    "number of eleven bytes": b"\x08\x01\x12\x01t\x20" + b"\x80" * 10 + b"\x01",
    "length beyond the end": b"\x08\x01\x12\x01t\x1a\xff\xff\xff\xff\x0f",
    "qos 3": b"\x08\x01\x12\x01t\x20\x03",
    "wildcard": b"\x08\x01\x12\x02t#",
    "topic not UTF-8": b"\x08\x01\x12\x01\xff",
    "client id not UTF-8": b"\x08\x01\x12\x01t\x32\x01\xff",
    "user name with U+0000": b"\x08\x01\x12\x01t\x3a\x01\x00",
    "payload format 2": b"\x08\x01\x12\x01t\x80\x01\x02",
    "payload format 256": b"\x08\x01\x12\x01t\x80\x01\x80\x02",
    "response topic with a wildcard": b"\x08\x01\x12\x01t\x92\x01\x01+",
    "user property cut off": b"\x08\x01\x12\x01t\xa2\x01\x02\x0a\x05",
    "correlation data over 65535 bytes": Publish(
        schema_version=1, topic="t", correlation_data=b"x" * 65_536
    ).SerializeToString(),
    "topic over 65535 bytes": Publish(schema_version=1, topic="t" * 65_536).SerializeToString(),
}


@pytest.mark.parametrize("record", REFUSED.values(), ids=REFUSED)
def test_refused_with_the_position(record: bytes) -> None:
    """What could not be sent to a subscriber must not come out of a log, whoever wrote it."""
    with pytest.raises(envelope.EnvelopeError, match=r"\(at byte \d+\)$") as refused:
        envelope.decode(record)
    assert 0 <= refused.value.position <= len(record)


WRONG = {
    "empty topic": ({"topic": ""}, "topic name"),
    "wildcard": ({"topic": "a/+"}, "topic name"),
    "qos": ({"qos": 3}, "QoS 3"),
    "long client id": ({"client_id": "c" * 65_536}, "client id"),
    "zero in the user name": ({"username": "a\0"}, "user name"),
    "cut off property": ({"props": b"\x03\x00"}, "0x81"),
    "property twice": ({"props": b"\x01\x00\x01\x00"}, "0x82"),
    "expiry": ({"props": b"\x02\x00\x00\x00\x01"}, "Expiry"),
    "alias": ({"props": b"\x01\x00\x23\x00\x01"}, "Alias"),
}


@pytest.mark.parametrize(("arguments", "reason"), WRONG.values(), ids=WRONG)
def test_encode_refuses(arguments: dict, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        envelope.encode(**{"topic": "t", "payload": b"", **arguments})


def test_what_is_no_record_is_set_aside() -> None:
    pack = RecordPack()
    pack.append(envelope.encode("t", b"1"), timestamp=7)
    pack.append(b"\xff")
    pack.append(None, key=b"k")
    pack.append(envelope.encode("t", b"2"), timestamp=9)
    pack.place(100)
    columns, refused = envelope.decode_pack(pack)
    assert columns["offset"] == [100, 103]
    assert columns["timestamp"] == [7, 9]
    assert columns["payload"] == [b"1", b"2"]
    assert [offset for offset, _ in refused] == [101, 102]
    assert "at byte 0" in refused[0][1]
    assert set(columns) == {"offset", "timestamp", *envelope.Envelope._fields}
    assert envelope.decode_pack(RecordPack())[0]["topic"] == []


def test_the_table_of_fields_is_the_proto_file(tmp_path: Path) -> None:
    compiled = tmp_path / "publish.pb"
    assert protoc.main(["protoc", f"-I{SCHEMA.parent}", f"--descriptor_set_out={compiled}", SCHEMA.name]) == 0
    (file,) = descriptor_pb2.FileDescriptorSet.FromString(compiled.read_bytes()).file
    assert publish_pb2.build_file() == file


def test_the_readers_agree_on_names_and_versions() -> None:
    names = tuple(field.name for field in fields.PUBLISH_FIELDS)
    assert plain.Publish._fields == names
    assert envelope.Envelope._fields == (*names, "props")
    assert (envelope.FIRST_VERSION, envelope.VERSION) == (fields.FIRST_VERSION, fields.VERSION)
