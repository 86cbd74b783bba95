"""Lengths of packets as MQTT has them, at their edges."""

import pytest

from penstock.core.fixed_header import encode_length, read_header


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 2_097_151, 2_097_152, 268_435_455])
def test_what_is_written_is_read(size: int) -> None:
    packet = bytearray(b"\0\0\x30" + encode_length(size))
    assert read_header(packet, 2) == (len(packet), size)
    assert read_header(packet[:-1], 2) is None


def test_a_length_of_five_bytes_is_none() -> None:
    with pytest.raises(ValueError, match="without a length"):
        read_header(bytearray(b"\x30\x80\x80\x80\x80\x01"), 0)
