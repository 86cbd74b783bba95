"""A stand-in for the broker's connection object: sends back what it gets, over any transport a listener has."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock._ext.wire.websocket import WsDecoder, build_frame

BINARY, CLOSE, PONG = 2, 8, 10


class EchoConnection(asyncio.BufferedProtocol):
    def __init__(self, made: list[EchoConnection]) -> None:
        self.peer: str | None = None
        self.transport: Any = None
        self.lost = False
        self._decoder: WsDecoder | None = None
        self._buffer = bytearray(64 * 1024)
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._made.append(self)

    def start_websocket(self, transport: asyncio.Transport, leftover: bytes) -> None:
        self.transport = transport
        self._made.append(self)
        self._decoder = WsDecoder()
        if leftover:
            self._echo(leftover)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._echo(bytes(self._buffer[:nbytes]))

    def _echo(self, data: bytes) -> None:
        if self._decoder is None:
            self.transport.write(data)
            return
        for name, payload in self._decoder.feed(data):
            if name == "data":
                self.transport.write(build_frame(BINARY, payload))
            elif name == "ping":
                self.transport.write(build_frame(PONG, payload))
            else:
                code = payload.to_bytes(2, "big") if isinstance(payload, int) else payload
                self.transport.write(build_frame(CLOSE, code))
                self.transport.close()
