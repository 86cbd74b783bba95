"""CRC32C: the compiled one, or a slow one in Python where the jobs run without compiled code."""

from __future__ import annotations

from collections.abc import Callable

_POLYNOMIAL = 0x82F63B78


def _make_table() -> list[int]:
    table = []
    for number in range(256):
        crc = number
        for _ in range(8):
            crc = crc >> 1 ^ _POLYNOMIAL if crc & 1 else crc >> 1
        table.append(crc)
    return table


_TABLE = _make_table()


def crc32c_in_python(data: bytes | memoryview, value: int = 0) -> int:
    table = _TABLE
    crc = value ^ 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


crc32c: Callable[[bytes | memoryview, int], int] = crc32c_in_python
try:
    from penstock._ext.record import segment
except ImportError:
    pass
else:
    crc32c = segment.crc32c
