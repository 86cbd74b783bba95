"""Rows in columns: what goes in comes out, in every form."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from penstock._ext.query.block import Block
from penstock._ext.query.evaluator import QuerySet
from tests.support.worlds.queries import (
    BIGINT,
    BLOB,
    BOOLEAN,
    DOUBLE,
    JSON,
    NULL,
    PROPERTIES,
    RECEIVED_AT,
    TIMESTAMP,
    VARCHAR,
    cast,
    make_message,
    make_pack,
    make_plan,
    path,
)

NS = RECEIVED_AT * 1_000_000
COLUMNS = (
    ("nothing", NULL, ("literal", NULL, None)),
    ("flag", BOOLEAN, cast(BOOLEAN, path("flag"))),
    ("number", BIGINT, cast(BIGINT, path("number"))),
    ("real", DOUBLE, cast(DOUBLE, path("real"))),
    ("text", VARCHAR, ("call", VARCHAR, "json_text", path("text"))),
    ("ts", TIMESTAMP, ("field", TIMESTAMP, "ts")),
    ("payload", BLOB, ("field", BLOB, "payload")),
    ("json", JSON, path("json")),
    ("properties", PROPERTIES, ("field", PROPERTIES, "user_properties")),
)
DOCUMENTS: list[dict[str, Any]] = [
    {"flag": True, "number": 1, "real": 0.5, "text": "é\n\"", "json": {"a": [1, None]}},
    {"flag": False, "number": -(2**63), "real": -0.0, "text": "", "json": "s"},
    {},
    {"flag": True, "number": 2**63 - 1, "real": 1e300, "text": "x" * 300, "json": [1.5, "é"]},
    {"number": 7},
]  # fmt: skip
# user properties `k`: `v`, `k`: `ü"` in MQTT's encoding
PROPS = b'\x26\x00\x01k\x00\x01v\x26\x00\x01k\x00\x03\xc3\xbc"'


def make_block(base_offset: int = 10) -> Block:
    queries = QuerySet()
    plan = make_plan([])
    queries.add(type(plan)("all", "#", COLUMNS, None, "skip"))
    records = [make_message("t", json.dumps(document), props=PROPS) for document in DOCUMENTS]
    [(_, block)] = queries.evaluate(make_pack(records, base_offset), 0)
    return block


def expected() -> list[dict[str, Any]]:
    names = ("flag", "number", "real", "text", "json")
    return [
        {
            "nothing": None,
            **{name: document.get(name) for name in names},
            "ts": NS,
            "payload": json.dumps(document).encode(),
            "properties": [("k", "v"), ("k", 'ü"')],
        }
        for document in DOCUMENTS
    ]


def test_values_come_out_as_they_went_in() -> None:
    block = make_block()
    assert (block.rows, len(block), block.first_offset, block.last_offset) == (5, 5, 10, 14)
    assert block.names == tuple(name for name, _, _ in COLUMNS)
    assert block.types == tuple(kind for _, kind, _ in COLUMNS)
    assert block.offsets() == [10, 11, 12, 13, 14]
    assert block.times() == [NS] * 5
    assert block.to_pylist() == expected()
    assert math.copysign(1, block.column(3)[1]) == -1


def test_encode_and_decode() -> None:
    block = make_block()
    data = block.encode()
    assert len(data) == block.size
    for form in (data, memoryview(data), memoryview(b"x" + data)[1:], memoryview(bytearray(data))):
        again = Block.decode(form)
        assert again.to_pylist() == block.to_pylist()
        assert again.encode() == data


@pytest.mark.parametrize(("from_offset", "max_rows"), [(0, 99), (10, 5), (11, 99), (12, 1), (14, 9), (15, 9), (10, 0)])
def test_slice(from_offset: int, max_rows: int) -> None:
    block = make_block()
    chosen = [row for row in range(5) if 10 + row >= from_offset][:max_rows]
    cut = block.slice(from_offset, max_rows)
    assert cut.offsets() == [10 + row for row in chosen]
    assert cut.to_pylist() == [expected()[row] for row in chosen]
    assert Block.decode(cut.encode()).to_pylist() == cut.to_pylist()
    assert (cut is block) == (len(chosen) == 5)


def test_take() -> None:
    block = make_block()
    assert block.take(1, 3).to_pylist() == expected()[1:4]
    assert block.take(5, 0).rows == 0
    with pytest.raises(IndexError, match="2 rows from 4 on"):
        block.take(4, 2)


def test_no_rows() -> None:
    empty = make_block().slice(99)
    assert (empty.rows, empty.first_offset, empty.last_offset) == (0, -1, -1)
    assert empty.to_pylist() == []
    assert empty.to_json() == b"[]"


def test_to_json() -> None:
    rows = json.loads(make_block().to_json())
    assert [row["text"] for row in rows] == [row["text"] for row in expected()]
    assert rows[0] == {
        "nothing": None,
        "flag": True,
        "number": 1,
        "real": 0.5,
        "text": 'é\n"',
        "ts": "2023-11-14T22:13:20.123Z",
        "payload": rows[0]["payload"],
        "json": {"a": [1, None]},
        "properties": [["k", "v"], ["k", 'ü"']],
    }
    import base64  # noqa: PLC0415  # only this test needs it

    assert base64.b64decode(rows[0]["payload"]) == json.dumps(DOCUMENTS[0]).encode()


def test_what_json_has_no_number_for_is_null() -> None:
    queries = QuerySet()
    queries.add(make_plan([("literal", DOUBLE, math.inf), ("literal", DOUBLE, math.nan), ("literal", TIMESTAMP, 1)]))
    [(_, block)] = queries.evaluate(make_pack([make_message()]), 0)
    assert block.to_json() == b'[{"c0":null,"c1":null,"c2":"1970-01-01T00:00:00.000000001Z"}]'


def test_buffers_are_arrows() -> None:
    """validity, values or ends, bytes: bits from the lowest, ends from zero."""
    block = make_block()
    valid, values, text = block.buffers(2)
    assert valid is not None
    assert values is not None
    assert text is None
    assert valid.tobytes() == bytes([0b11011])
    assert values.cast("q").tolist() == [1, -(2**63), 0, 2**63 - 1, 7]
    valid, ends, text = block.buffers(4)
    assert valid is not None
    assert ends is not None
    assert text is not None
    assert valid.tobytes() == bytes([0b01011])
    assert ends.cast("I").tolist() == [0, 4, 4, 4, 304, 304]
    assert text.tobytes() == 'é\n"'.encode() + b"x" * 300
    assert block.buffers(5)[0] is None
    assert block.buffers(0)[1:] == (None, None)
    assert bytes(block.buffers(1)[1] or b"") == bytes([0b01001])
    with pytest.raises(IndexError):
        block.buffers(9)


def test_arrow_reads_the_buffers() -> None:
    pyarrow = pytest.importorskip("pyarrow")
    block = make_block()
    buffers = [None if part is None else pyarrow.py_buffer(part) for part in block.buffers(4)]
    array = pyarrow.Array.from_buffers(pyarrow.string(), block.rows, buffers)
    assert array.to_pylist() == block.column(4)


@pytest.mark.parametrize("cut", [0, 3, 15, 16, 40, 100, -1])
def test_cut_off(cut: int) -> None:
    data = make_block().encode()
    with pytest.raises(ValueError, match="block"):
        Block.decode(data[:cut])
    with pytest.raises(ValueError, match="something else"):
        Block.decode(data + b"\0" * 8)


def test_ends_outside_of_the_bytes() -> None:
    block = make_block()
    data = bytearray(block.encode())
    ends = block.buffers(4)[1]
    assert ends is not None
    at = bytes(data).index(ends.tobytes())
    data[at + 4 : at + 8] = (400).to_bytes(4, "little")
    with pytest.raises(ValueError, match="column 4"):
        Block.decode(bytes(data))


def test_a_text_that_is_no_utf8() -> None:
    block = make_block()
    data = bytearray(block.encode())
    data[bytes(data).index(b"x" * 300)] = 0xFF
    with pytest.raises(ValueError, match="column 4"):
        Block.decode(bytes(data))


def test_a_number_with_more_digits_than_python_likes() -> None:
    """Any client can send one: it must not be the end of those who read."""
    queries = QuerySet()
    queries.add(make_plan([path("a")]))
    payload = b'{"a": [1, -' + b"9" * 5_000 + b"]}"
    ((_, block),) = queries.evaluate(make_pack([make_message(payload=payload)]), 0)
    assert block.to_pylist() == [{"c0": [1, -math.inf]}]
