"""The compiled partitioner: golden vectors of the compatible original, of Kafka, and the forms of a batch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from uuid import UUID

import numpy as np
import pytest

from penstock._ext.match import partition
from tests.support.checkers import naive_partition

VECTORS = json.loads((Path(__file__).parents[2] / "data/partition-vectors.json").read_text())

# Of Kafka's own UtilsTest.testMurmur2.
KAFKA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def names(vectors: list[dict]) -> list[str]:
    return [f"{vector['hash_function']}-{vector.get('uuid', vector.get('string'))}" for vector in vectors]


@pytest.mark.parametrize("vector", VECTORS["uuid_keys"], ids=names(VECTORS["uuid_keys"]))
def test_golden_uuid(vector: dict) -> None:
    data = partition.uuid_input(UUID(vector["uuid"]))
    function = vector["hash_function"]
    assert partition.hash_key(data, function) == vector["hash"]
    rows = np.frombuffer(data, np.uint8).reshape(1, 16)
    assert partition.hash_keys(rows, function).tolist() == [vector["hash"]]
    for count, expected in vector["partition_by_count"].items():
        assert partition.partition_of(data, int(count), function) == expected
        assert partition.partitions_of(rows, int(count), function).tolist() == [expected]


@pytest.mark.parametrize("vector", VECTORS["string_keys"], ids=names(VECTORS["string_keys"]))
def test_golden_text(vector: dict) -> None:
    data, function = vector["string"].encode(), vector["hash_function"]
    assert partition.hash_key(data, function) == vector["hash"]
    assert partition.hash_text(vector["string"], function) == vector["hash"]
    for count, expected in vector["partition_by_count"].items():
        assert partition.partition_of(data, int(count), function) == expected


def test_golden_smallest_hash() -> None:
    (edge,) = [edge for edge in VECTORS["arithmetic_edges"] if edge["case"] == "smallest int32 hash"]
    assert partition.partition_of_number(edge["hash"], edge["partition_count"]) == edge["partition"]


@pytest.mark.parametrize(("data", "expected"), KAFKA_MURMUR2.items())
def test_kafka_murmur2(data: bytes, expected: int) -> None:
    assert partition.hash_key(data, "murmur2") == expected
    assert partition.partition_of(data, 1_000, "murmur2") == (expected & 0x7FFFFFFF) % 1_000


def test_uuid_input_is_not_the_network_order() -> None:
    uuid = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
    assert partition.uuid_input(uuid) == bytes([7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8])


@pytest.mark.parametrize("size", [*range(70), 119, 120, 121, 127, 128, 1_000])
def test_sha256_of_every_size_of_the_last_block(size: int) -> None:
    data = bytes(i * 7 & 255 for i in range(size))
    expected = int.from_bytes(hashlib.sha256(data).digest()[:4], "little", signed=True)
    assert partition.hash_key(data, "sha256") == expected


@pytest.mark.parametrize("text", ["", "a", "датчик-7", "abc😀", "😀", "😀abc", "a😀bc😀d-and-more", "日本😀語"])
def test_old_murmur3_32_of_text(text: str) -> None:
    assert partition.hash_text(text, "murmur3_32") == naive_partition.murmur3_32_text(text)
    is_plain = all(ord(character) <= 0xFFFF for character in text)
    assert is_plain == (partition.hash_text(text, "murmur3_32") == partition.hash_key(text.encode(), "murmur3_32"))


def test_padding_of_fixed_width_bytes_is_no_part_of_the_key() -> None:
    keys = [b"", b"a", b"client-0001", b"a" * 36]
    expected = [partition.hash_key(key) for key in keys]
    assert partition.hash_keys(np.array(keys, dtype="S36")).tolist() == expected
    assert partition.hash_keys(np.array(keys, dtype="S40")).tolist() == expected
    assert partition.hash_keys(np.array(keys, dtype="S36")[::2]).tolist() == expected[::2]


def test_rows_are_whole_keys() -> None:
    rows = np.zeros((2, 5), np.uint8)
    rows[1, 0] = 9
    assert partition.hash_keys(rows).tolist() == [partition.hash_key(bytes(row)) for row in rows]
    assert partition.hash_keys(np.zeros((3, 0), np.uint8)).tolist() == [0, 0, 0]
    assert partition.hash_keys(np.zeros((0, 4), np.uint8)).tolist() == []


def test_buffer_with_offsets() -> None:
    keys = [b"tb_core", b"", b"x" * 100, b"client-0001"]
    offsets = np.cumsum([0, *map(len, keys)])
    for buffer in (b"".join(keys), np.frombuffer(b"".join(keys), np.uint8), bytearray(b"".join(keys))):
        found = partition.partitions_of((buffer, offsets), 12)
        assert found.dtype == np.int32
        assert found.tolist() == [partition.partition_of(key, 12) for key in keys]
    assert partition.hash_keys((b"", np.array([0]))).tolist() == []
    assert partition.hash_keys((b"", np.array([0, 0]))).tolist() == [0]


@pytest.mark.parametrize("offsets", [[], [0, 5, 3], [-1, 2], [0, 9], [9]])
def test_bad_offsets_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        partition.hash_keys((b"12345678", np.array(offsets, dtype=np.int64)))


@pytest.mark.parametrize("keys", [np.array(["text"]), np.zeros(4, np.uint8), np.zeros((2, 2), np.int32), [1, 2]])
def test_other_arrays_are_refused(keys: object) -> None:
    with pytest.raises(TypeError, match="fixed-width bytes"):
        partition.hash_keys(keys)


@pytest.mark.parametrize("count", [0, -1, 1 << 31])
def test_bad_count_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match="partitions"):
        partition.partition_of(b"key", count)


def test_unknown_function_is_refused() -> None:
    with pytest.raises(ValueError, match="murmur3_128, murmur3_32, sha256, murmur2"):
        partition.hash_key(b"key", "md5")
