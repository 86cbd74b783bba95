"""The compiled partitioner against the naive one, for any key, count and form of a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.match import partition
from tests.support.checkers import naive_partition

functions = st.sampled_from(partition.FUNCTIONS)
counts = st.integers(1, 2**31 - 1)


@given(st.binary(max_size=200), counts, functions)
def test_one_key(data: bytes, count: int, function: str) -> None:
    assert partition.hash_key(data, function) == naive_partition.FUNCTIONS[function](data)
    assert partition.partition_of(data, count, function) == naive_partition.partition_of(data, count, function)


@given(st.text(max_size=60))
def test_text(text: str) -> None:
    assert partition.hash_text(text, "murmur3_32") == naive_partition.murmur3_32_text(text)
    assert partition.hash_text(text) == naive_partition.murmur3_128(text.encode())


@given(st.lists(st.binary(max_size=50), max_size=20), counts, functions)
def test_slices(keys: list[bytes], count: int, function: str) -> None:
    found = partition.partitions_of((b"".join(keys), np.cumsum([0, *map(len, keys)])), count, function)
    assert found.tolist() == [naive_partition.partition_of(key, count, function) for key in keys]


@given(st.integers(0, 40), st.data(), counts, functions)
def test_rows(width: int, data: st.DataObject, count: int, function: str) -> None:
    keys = data.draw(st.lists(st.binary(min_size=width, max_size=width), max_size=10))
    rows = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), width)
    assert partition.partitions_of(rows, count, function).tolist() == [
        naive_partition.partition_of(key, count, function) for key in keys
    ]


@given(st.lists(st.binary(min_size=1, max_size=36), min_size=1, max_size=10), functions)
def test_fixed_width(keys: list[bytes], function: str) -> None:
    found = partition.hash_keys(np.array(keys, dtype="S36"), function)
    assert found.tolist() == [naive_partition.FUNCTIONS[function](key.rstrip(b"\0")) for key in keys]


@given(st.integers(-(2**31), 2**31 - 1), counts)
def test_absolute_remainder(value: int, count: int) -> None:
    assert partition.partition_of_number(value, count) == abs(value) % count
