"""The data types of MQTT section 1.5: packing, and a strict reader of what a server sent."""

from __future__ import annotations

import struct


class WireError(AssertionError):
    """The server sent bytes that a server must not send."""


def varint(value: int) -> bytes:
    """Variable byte integer in the fewest bytes [MQTT-1.5.5-1]."""
    encoded = bytearray()
    while True:
        value, digit = divmod(value, 128)
        encoded.append(digit | 0x80 if value else digit)
        if not value:
            return bytes(encoded)


def binary(data: bytes) -> bytes:
    return struct.pack("!H", len(data)) + data


def string(text: str | bytes) -> bytes:
    """Length-prefixed string; bytes are taken as they are, so that a test can send what is not UTF-8."""
    return binary(text.encode() if isinstance(text, str) else text)


class Cursor:
    """Reads the body of one packet; every short read and every malformed value is a WireError."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if self.left < size:
            raise WireError(f"packet ends early: {size} bytes wanted, {self.left} left in {self._data!r}")
        self._at += size
        return self._data[self._at - size : self._at]

    def rest(self) -> bytes:
        return self.take(self.left)

    def expect_end(self, what: str) -> None:
        if self.left:
            raise WireError(f"{self.left} bytes too many at the end of {what}: {self._data!r}")

    def u8(self) -> int:
        return self.take(1)[0]

    def u16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def packet_id(self) -> int:
        value = self.u16()
        if value == 0:
            raise WireError("packet id 0 [MQTT-2.2.1-4] [MQTT3-2.3.1-4]")
        return value

    def varint(self) -> int:
        value, shift = 0, 0
        for length in range(1, 5):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if length > 1 and byte == 0:
                    raise WireError("variable byte integer longer than needed [MQTT-1.5.5-1]")
                return value
        raise WireError("variable byte integer of more than four bytes")

    def binary(self) -> bytes:
        return self.take(self.u16())

    def string(self) -> str:
        try:
            text = self.binary().decode()
        except UnicodeDecodeError as error:
            raise WireError(f"not UTF-8 [MQTT-1.5.4-1]: {error}") from None
        if "\0" in text:
            raise WireError("U+0000 in a string [MQTT-1.5.4-2]")
        return text

    def sub(self, size: int) -> Cursor:
        return Cursor(self.take(size))
