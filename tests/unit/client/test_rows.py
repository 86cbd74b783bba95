"""Rows read without compiled code are those that the compiled reader finds, and damage is always a ValueError."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.query.block import Block
from penstock_client.arrow import make_batch
from penstock_client.rows import Rows
from tests.unit.ext.test_block import make_block

DATA = make_block().encode()


def test_the_same_as_the_compiled_reader() -> None:
    block, rows = Block.decode(DATA), Rows.decode(DATA)
    assert (rows.rows, len(rows), rows.size) == (block.rows, len(block), block.size)
    assert (rows.first_offset, rows.last_offset) == (block.first_offset, block.last_offset)
    assert (rows.names, rows.types) == (block.names, block.types)
    assert (rows.offsets(), rows.times()) == (block.offsets(), block.times())
    assert rows.to_pylist() == block.to_pylist()
    assert json.loads(rows.to_json()) == json.loads(block.to_json())
    assert [rows.buffers(n) for n in range(len(rows.names))] == [block.buffers(n) for n in range(len(block.names))]
    assert make_batch(rows).equals(make_batch(block))  # type: ignore[arg-type]


def test_no_rows() -> None:
    empty = make_block().slice(99).encode()
    assert Rows.decode(empty).to_pylist() == []
    assert (Rows.decode(empty).last_offset, Rows.decode(empty).to_json()) == (-1, b"[]")


@given(st.integers(0, len(DATA) - 1), st.binary(min_size=1, max_size=4))
def test_damage_is_a_value_error(at: int, put: bytes) -> None:
    for damaged in (DATA[:at], DATA[:at] + put + DATA[at + len(put) :], DATA + put):
        try:
            Rows.decode(damaged).to_pylist()
        except ValueError:
            continue


@pytest.mark.parametrize("data", [b"", b"PQB1", b"PQB2" + DATA[4:], DATA[:-8], DATA + b"\0" * 8])
def test_not_a_block(data: bytes) -> None:
    with pytest.raises(ValueError, match="block"):
        Rows.decode(data)
