"""The partitioner as its documents word it, in plain Python: what the compiled one is compared with, and its rival."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

MASK32, MASK64 = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF


def signed32(value: int) -> int:
    value &= MASK32
    return value - (1 << 32) if value >> 31 else value


def _rotl64(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & MASK64


def _mix64(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK64
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK64
    return value ^ value >> 33


def murmur3_128(data: bytes) -> int:
    """The signed low half of h1."""
    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 ^= _rotl64(k1 * c1 & MASK64, 31) * c2 & MASK64
        h1 = ((_rotl64(h1, 27) + h2) * 5 + 0x52DCE729) & MASK64
        h2 ^= _rotl64(k2 * c2 & MASK64, 33) * c1 & MASK64
        h2 = ((_rotl64(h2, 31) + h1) * 5 + 0x38495AB5) & MASK64
    tail = data[whole:]
    h1 ^= _rotl64(int.from_bytes(tail[:8], "little") * c1 & MASK64, 31) * c2 & MASK64
    h2 ^= _rotl64(int.from_bytes(tail[8:], "little") * c2 & MASK64, 33) * c1 & MASK64
    h1, h2 = h1 ^ len(data), h2 ^ len(data)
    h1 = (h1 + h2) & MASK64
    h2 = (h2 + h1) & MASK64
    return signed32(_mix64(h1) + _mix64(h2))


def _rotl32(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & MASK32


def _scramble(k: int) -> int:
    return _rotl32(k * 0xCC9E2D51 & MASK32, 15) * 0x1B873593 & MASK32


def _step(h: int, k: int) -> int:
    return (_rotl32(h ^ _scramble(k), 13) * 5 + 0xE6546B64) & MASK32


def _end(h: int, last: int, size: int) -> int:
    h ^= _scramble(last) ^ size
    h = (h ^ h >> 16) * 0x85EBCA6B & MASK32
    h = (h ^ h >> 13) * 0xC2B2AE35 & MASK32
    return signed32(h ^ h >> 16)


def murmur3_32(data: bytes) -> int:
    h = 0
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        h = _step(h, int.from_bytes(data[at : at + 4], "little"))
    return _end(h, int.from_bytes(data[whole:], "little"), len(data))


def murmur3_32_text(text: str) -> int:
    """Guava's older one: bytes of a character outside the basic plane do not count as filled."""
    h = waiting = filled = 0
    for character in text:
        encoded = character.encode()
        waiting |= int.from_bytes(encoded, "little") << filled
        filled += 0 if len(encoded) == 4 else 8 * len(encoded)
        if filled >= 32:
            h, waiting, filled = _step(h, waiting & MASK32), waiting >> 32, filled - 32
    return _end(h, waiting & MASK32, len(text.encode()))


def sha256(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:4], "little", signed=True)


def murmur2(data: bytes) -> int:
    m = 0x5BD1E995
    h = 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * m & MASK32
        h = (h * m ^ (k ^ k >> 24) * m) & MASK32
    if len(data) > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & MASK32
    h = (h ^ h >> 13) * m & MASK32
    return signed32(h ^ h >> 15)


FUNCTIONS: dict[str, Callable[[bytes], int]] = {
    "murmur3_128": murmur3_128,
    "murmur3_32": murmur3_32,
    "sha256": sha256,
    "murmur2": murmur2,
}


def partition_of(data: bytes, count: int, function: str = "murmur3_128") -> int:
    value = FUNCTIONS[function](data)
    return (value & 0x7FFFFFFF) % count if function == "murmur2" else abs(value) % count
