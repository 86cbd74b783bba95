"""The client's side of MQTT over WebSocket (RFC 6455): the opening handshake, masked frames out, frames in."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import struct

from penstock.core.errors import PenstockError

_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_LARGEST_FRAME = 268_435_461 + 14
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA


async def open_websocket(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, path: str
) -> WebSocketReader:
    """Shake hands; raises PenstockError when the other side does not speak MQTT over WebSocket."""
    key = base64.b64encode(os.urandom(16))
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key.decode()}\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n".encode()
    )
    try:
        answer = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        raise PenstockError("the WebSocket handshake was not answered: is this a WebSocket listener?") from None
    status, *lines = answer.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if status.split(" ")[1:2] != ["101"]:
        raise PenstockError(f"the WebSocket handshake was refused: {status[:80]}")
    expected = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
    if headers.get("sec-websocket-accept") != expected or headers.get("sec-websocket-protocol") != "mqtt":
        raise PenstockError("the WebSocket handshake was answered without the subprotocol mqtt")
    return WebSocketReader(reader, writer)


def build_frame(payload: bytes, opcode: int = _BINARY) -> bytes:
    """One masked frame, as clients must send them."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
    elif size < 65_536:
        head = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
    mask = os.urandom(4)
    # XOR of two long integers is the quickest way without compiled code.
    repeated = (mask * (size // 4 + 1))[:size]
    masked = (int.from_bytes(payload) ^ int.from_bytes(repeated)).to_bytes(size) if size else b""
    return head + mask + masked


class WebSocketReader:
    """Gives the bytes of the MQTT stream, whatever frames they came in; answers pings."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        """The payload of the next data frame; b"" at the end."""
        while True:
            try:
                opcode, payload = await self._read_frame()
            except asyncio.IncompleteReadError:
                return b""
            if opcode == _CLOSE:
                self._writer.write(build_frame(payload[:2], _CLOSE))
                return b""
            if opcode == _PING:
                self._writer.write(build_frame(payload, _PONG))
            elif opcode in (_BINARY, _CONTINUATION) and payload:
                return payload
            elif opcode not in (_BINARY, _CONTINUATION, _PONG):
                raise PenstockError("the broker sent a WebSocket frame that does not carry MQTT")

    async def _read_frame(self) -> tuple[int, bytes]:
        first, second = await self._reader.readexactly(2)
        size = second & 0x7F
        if second & 0x80 or first & 0x70:
            raise PenstockError("the broker sent a bad WebSocket frame")
        if size == 126:
            (size,) = struct.unpack("!H", await self._reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self._reader.readexactly(8))
        if size > _LARGEST_FRAME:
            raise PenstockError("the broker sent a WebSocket frame larger than any MQTT packet")
        return first & 0x0F, await self._reader.readexactly(size)
