"""Byte streams under the raw client: TCP, TLS, Unix and a minimal WebSocket, all with the few methods a socket has."""

from __future__ import annotations

import base64
import hashlib
import os
import socket
import ssl
import struct
from typing import Protocol

WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
BINARY, TEXT, CLOSE, PING, PONG = 0x2, 0x1, 0x8, 0x9, 0xA
SECONDS = 60.0


class Stream(Protocol):
    """What the raw client needs of a socket."""

    def sendall(self, data: bytes, /) -> None: ...
    def recv(self, size: int, /) -> bytes: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


def open_tcp(address: tuple[str, int], timeout: float = SECONDS) -> socket.socket:
    connection = socket.create_connection(address, timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def open_tls(address: tuple[str, int], context: ssl.SSLContext, timeout: float = SECONDS) -> ssl.SSLSocket:
    return context.wrap_socket(open_tcp(address, timeout), server_hostname="localhost")


def open_unix(path: str, timeout: float = SECONDS) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout)
    connection.connect(path)
    return connection


class WebSocketRefused(AssertionError):
    """The server did not switch to the WebSocket protocol; `status` is its HTTP status line."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class WebSocketStream:
    """Client side of a WebSocket (RFC 6455) over a connected socket; MQTT bytes travel in binary frames."""

    def __init__(self, connection: socket.socket, path: str = "/mqtt", subprotocol: str | None = "mqtt") -> None:
        self._connection = connection
        self._raw = bytearray()
        self._payload = bytearray()
        self.received_opcodes: list[int] = []
        self.headers = self._shake_hands(path, subprotocol)

    def _shake_hands(self, path: str, subprotocol: str | None) -> dict[str, str]:
        key = base64.b64encode(os.urandom(16))
        lines = [
            f"GET {path} HTTP/1.1",
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {key.decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        if subprotocol is not None:
            lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
        self._connection.sendall("\r\n".join([*lines, "", ""]).encode())
        while b"\r\n\r\n" not in self._raw:
            data = self._connection.recv(4096)
            if not data:
                raise WebSocketRefused(self._raw.decode(errors="replace"))
            self._raw += data
        head, _, rest = bytes(self._raw).partition(b"\r\n\r\n")
        self._raw = bytearray(rest)
        status, *fields = head.decode().split("\r\n")
        if " 101 " not in f"{status} ":
            raise WebSocketRefused(status)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in fields)}
        expected = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest()).decode()
        assert headers.get("sec-websocket-accept") == expected
        return headers

    def send_frame(self, opcode: int, payload: bytes, *, final: bool = True, masked: bool = True) -> None:
        mask = os.urandom(4) if masked else b""
        size = len(payload)
        head = bytes([final << 7 | opcode])
        if size < 126:
            head += bytes([masked << 7 | size])
        elif size < 65_536:
            head += bytes([masked << 7 | 126]) + struct.pack("!H", size)
        else:
            head += bytes([masked << 7 | 127]) + struct.pack("!Q", size)
        if masked:
            payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
        self._connection.sendall(head + mask + payload)

    def sendall(self, data: bytes) -> None:
        self.send_frame(BINARY, data)

    def recv(self, size: int) -> bytes:
        """MQTT bytes of the next binary frame; empty at a close frame or the end of the stream."""
        while not self._payload:
            frame = self.read_frame()
            if frame is None or frame[0] == CLOSE:
                return b""
            if frame[0] == BINARY:
                self._payload += frame[1]
        data = bytes(self._payload[:size])
        del self._payload[:size]
        return data

    def read_frame(self) -> tuple[int, bytes] | None:
        """Opcode and payload of the next frame, None at the end of the stream."""
        while (frame := self._parse_frame()) is None:
            data = self._connection.recv(65_536)
            if not data:
                return None
            self._raw += data
        self.received_opcodes.append(frame[0])
        return frame

    def _parse_frame(self) -> tuple[int, bytes] | None:
        if len(self._raw) < 2:
            return None
        opcode, size, start = self._raw[0] & 0x0F, self._raw[1] & 0x7F, 2
        assert not self._raw[1] & 0x80, "a server must not mask its frames"
        if size >= 126:
            width = 2 if size == 126 else 8
            if len(self._raw) < 2 + width:
                return None
            size, start = int.from_bytes(self._raw[2 : 2 + width], "big"), 2 + width
        if len(self._raw) < start + size:
            return None
        payload = bytes(self._raw[start : start + size])
        del self._raw[: start + size]
        return opcode, payload

    def settimeout(self, seconds: float | None) -> None:
        self._connection.settimeout(seconds)

    def close(self) -> None:
        self._connection.close()
