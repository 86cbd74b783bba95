"""The fixed header of an MQTT packet, for the Python clients of the broker's own; the hot path has its own in C."""

from __future__ import annotations

LONGEST_LENGTH = 4


def read_header(data: bytearray, start: int) -> tuple[int, int] | None:
    """Where the body of the packet at `start` begins and how long it is; None while the header is not whole. Raises
    ValueError."""
    size = 0
    for index in range(LONGEST_LENGTH):
        at = start + 1 + index
        if at >= len(data):
            return None
        size |= (data[at] & 127) << (7 * index)
        if data[at] < 128:
            return at + 1, size
    raise ValueError("a packet without a length")


def encode_length(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
