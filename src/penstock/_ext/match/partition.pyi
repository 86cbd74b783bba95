from typing import Any, Literal, TypeAlias
from uuid import UUID

import numpy as np
import numpy.typing as npt

HashName: TypeAlias = Literal["murmur3_128", "murmur3_32", "sha256", "murmur2"]
Bytes: TypeAlias = bytes | bytearray | memoryview
Keys: TypeAlias = npt.NDArray[np.bytes_] | npt.NDArray[np.uint8] | tuple[Any, npt.NDArray[np.int64]]
"""Fixed-width bytes (numpy's zero padding is no part of a key), rows of a 2-D array (whole rows are keys), or a buffer
with offsets: key i lies at offsets[i] … offsets[i + 1]."""

FUNCTIONS: tuple[str, ...]

def hash_key(data: Bytes, function: str = "murmur3_128") -> int:
    """The signed 32-bit hash of the bytes of a key."""

def hash_text(text: str, function: str = "murmur3_128") -> int:
    """The hash of a text: of its UTF-8, but for murmur3_32 as the compatible original does it, which differs from the
    hash of the bytes where the text has characters outside the basic plane."""

def partition_of(data: Bytes, count: int, function: str = "murmur3_128") -> int:
    """The partition of a key among `count`."""

def partition_of_number(hash: int, count: int) -> int:
    """|hash| modulo count, for who has the hash already; -2**31 included."""

def uuid_input(uuid: UUID) -> bytes:
    """The 16 bytes of a UUID that are hashed: each half little-endian, the most significant one first."""

def hash_keys(keys: Keys, function: str = "murmur3_128") -> npt.NDArray[np.int32]:
    """The hashes of many keys."""

def partitions_of(keys: Keys, count: int, function: str = "murmur3_128") -> npt.NDArray[np.int32]:
    """The partitions of many keys."""
