"""The compiled decoder and the one in plain Python make the same rows, of whatever bytes there are."""

from __future__ import annotations

import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock._ext import record
from penstock._ext.record.columns import Decoder, match_filter
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock_schema import publish_pb2
from penstock_schema.fields import PUBLISH_FIELDS, Field
from penstock_schema.publish_pb2 import build_file, build_messages
from penstock_spark import schema
from penstock_spark.arrow import batch_of_rows, load_decoder, take_batch
from penstock_spark.errors import OptionError
from penstock_spark.topic_filter import Matcher
from penstock_spark.values import Record, records_of, row_of

TEXT = st.text(max_size=8)
LEVELS = st.lists(st.sampled_from(["a", "b", "", "$x", "ä"]), min_size=1, max_size=4).map("/".join)
FILTERS = st.lists(st.sampled_from(["a", "b", "", "+", "$x", "ä"]), min_size=1, max_size=4).flatmap(
    lambda levels: st.sampled_from(["/".join(levels) or "+", "/".join([*levels, "#"]), "#"])
)


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    """Records of Google's library, right and wrong."""
    record = publish_pb2.Publish(
        schema_version=draw(st.sampled_from([1, 1, 1, 1, 0, 2])),
        topic=draw(st.sampled_from(["a/b", "a", "ä/ö", "", "a/+", "x\0"])),
        payload=draw(st.binary(max_size=6) | st.just(b"plain") | st.just("grün".encode())),
        qos=draw(st.sampled_from([0, 1, 2, 2, 3])),
        retain=draw(st.booleans()),
        client_id=draw(TEXT),
        received_at=draw(st.sampled_from([0, 1_790_000_000_000, 1_790_000_000_123, -5, 2**62])),
        expires_at=draw(st.sampled_from([0, 0, 1_790_000_060_000, -(2**62)])),
    )
    for name in ("username", "content_type", "response_topic"):
        if draw(st.booleans()):
            setattr(record, name, draw(TEXT | st.just("r/#")))
    if draw(st.booleans()):
        record.correlation_data = draw(st.binary(max_size=4))
    if draw(st.booleans()):
        record.payload_format = draw(st.sampled_from([0, 1, 2, 300]))
    for name, value in draw(st.lists(st.tuples(st.sampled_from(["k", "l", "", "m\0"]), TEXT), max_size=4)):
        record.user_properties.add(name=name, value=value)
    return bytes(record.SerializeToString())


VALUES = st.lists(st.one_of(publishes(), publishes(), st.binary(max_size=12), st.none()), max_size=12)


def without_reasons(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """The two say differently why a record is bad; that it is bad must be the same."""
    found = batch.to_pylist()
    for row in found:
        row["error"] = row["error"] is not None
    return found


@settings(max_examples=200, deadline=None)
@given(VALUES, st.lists(FILTERS, max_size=2))
def test_the_same_rows(values: list[bytes | None], filters: list[str]) -> None:
    pack = RecordPack()
    for number, value in enumerate(values):
        pack.append(value, timestamp=1_790_000_000_000 + number * 7 - 20)
    pack.place(40)
    batch = pack.encode(3)
    decoder = Decoder(ranges=[(0, 0)] * 3 + [(42, 50)], filters=[one.encode() for one in filters])
    if pack.count:
        assert decoder.add_batches(batch)[:2] == (len(batch), "end")
    matcher = Matcher(tuple(filters))
    rows = [
        row
        for record in records_of(batch)
        if 42 <= record.offset < 50 and (row := row_of(record, "log", matcher)) is not None
    ]
    compiled = take_batch(decoder, (), "log")
    compiled.validate(full=True)
    if rows:
        assert without_reasons(compiled) == without_reasons(batch_of_rows(rows, ()))
    else:
        assert compiled.num_rows == 0


@settings(max_examples=200, deadline=None)
@given(VALUES.filter(bool))
def test_the_values_of_an_array(values: list[bytes | None]) -> None:
    """As they come from Kafka's connector, also from the middle of an array."""
    array = pa.array([b"before", *values], pa.binary())[1:]
    decoder = Decoder()
    valid, offsets, data = array.buffers()
    kept = bytearray(len(array))
    decoder.add_array(offsets, data, valid, array.offset, len(array), kept)
    assert kept == bytes([1]) * len(values)
    place = {
        "log_partition": pa.array([0] * len(values), pa.int32()),
        "log_offset": pa.array(range(len(values)), pa.int64()),
        "log_time": pa.array([0] * len(values), schema.ARROW_TYPES["log_time"]),
    }
    rows = [row_of(Record(0, number, 0, value), "k", Matcher(())) for number, value in enumerate(values)]
    assert without_reasons(take_batch(decoder, (), "k", place)) == without_reasons(batch_of_rows(rows, ()))  # type: ignore[arg-type] # none is None without a filter


@settings(max_examples=500, deadline=None)
@given(FILTERS, LEVELS)
def test_filters_match_alike(wanted: str, topic: str) -> None:
    """[MQTT-4.7.1-1] [MQTT-4.7.1-2] [MQTT-4.7.2-1]"""
    assert match_filter(wanted.encode(), topic.encode()) == Matcher((wanted,))(topic)


def test_which_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for the compiled one and has it not is told so, whichever log is read."""
    assert load_decoder("auto") is load_decoder("compiled") is Decoder
    assert load_decoder("python") is None
    monkeypatch.delattr(record, "columns")
    monkeypatch.setitem(sys.modules, "penstock._ext.record.columns", None)
    assert load_decoder("auto") is None
    with pytest.raises(OptionError, match="compiled modules are not installed"):
        load_decoder("compiled")


def test_rows_are_handed_over_when_there_are_enough() -> None:
    batches = b""
    for number in range(5):
        pack = RecordPack()
        pack.extend([encode("a", b"x")] * 4)
        pack.place(number * 4)
        batches += pack.encode(0)
    decoder = Decoder(ranges=[(0, 100)], max_rows=9)
    position, taken = 0, []
    while True:
        position, why, _ = decoder.add_batches(batches, position)
        taken.append(take_batch(decoder, ("log_offset",), "t").column(0).to_pylist())
        if why == "end":
            break
    assert taken == [[*range(8)], [*range(8, 16)], [*range(16, 20)]]


@pytest.mark.parametrize("at", [3, 30, 70])
def test_damage_is_noticed(at: int) -> None:
    pack = RecordPack()
    pack.extend([encode("a", b"x")] * 4)
    pack.place(0)
    batch = bytearray(pack.encode(0))
    batch[at] ^= 1
    assert Decoder(ranges=[(0, 9)]).add_batches(bytes(batch))[1] == "damaged"
    assert Decoder(ranges=[(0, 9)]).add_batches(pack.encode(0)[:-1])[1] == "torn"


def test_records_of_a_later_release_are_read() -> None:
    """Version rule 2: a field that is not known here is skipped; rule 3: a version above ours is set aside."""
    later = build_messages(build_file([*PUBLISH_FIELDS, Field("region", 21, "string", "optional")], "later.proto"))
    newer = later["Publish"](schema_version=1, topic="a", payload=b"x", region="north").SerializeToString()
    older = encode("a", b"x")
    refused = later["Publish"](schema_version=2, topic="a").SerializeToString()
    decoder = Decoder()
    for offset, value in enumerate((older, newer, refused)):
        decoder.add_value(value, 0, offset, 0)
    found = take_batch(decoder, ("topic", "schema_version", "error"), "t").to_pylist()
    assert [row["topic"] for row in found] == ["a", "a", None]
    assert [row["schema_version"] for row in found] == [1, 1, None]
    assert "version" in found[2]["error"]
