"""The way from an HTTP request to an MQTT connection: the opening handshake of RFC 6455, and clear answers to the rest.

The handshake reads one request head, answers it, and hands the transport over to the connection; frames are not its
business. Whatever else comes (a browser, a probe, an MQTT client on the wrong port) gets an answer in plain text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast

LONGEST_HEAD = 8 * 1024
LINGER_SECONDS = 2.0  # for a client to read why it is refused, and to close
SUBPROTOCOLS = ("mqtt", "mqttv3.1")  # the second is what clients of MQTT 3.1 offer; the first is preferred
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_TARGET = re.compile(rb"[\x21-\x7e]+")
# Headers that mean something only once; others may be repeated and are joined, as HTTP says.
_ONLY_ONCE = frozenset({b"host", b"origin", b"sec-websocket-key", b"sec-websocket-version", b"content-length"})


class MqttConnection(Protocol):
    """What a listener needs of the connection object."""

    peer: str

    def start_websocket(self, transport: asyncio.Transport, leftover: bytes) -> None: ...


class HandshakeError(Exception):
    """The request gets this answer instead of an upgrade."""

    def __init__(self, status: HTTPStatus, text: str, *headers: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers


class Request(NamedTuple):
    """A request head, taken apart. Header names are in lower case."""

    method: bytes
    target: bytes
    version: bytes
    headers: dict[bytes, bytes]


def parse_request(head: bytes) -> Request:
    """A whole request head without its empty line; raises HandshakeError for anything HTTP does not allow."""
    request_line, *lines = head.split(b"\r\n")
    words = request_line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _TARGET.fullmatch(words[1]):
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "This is not an HTTP request.")
    headers: dict[bytes, bytes] = {}
    for line in lines:
        name, colon, value = line.partition(b":")
        if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
            raise HandshakeError(HTTPStatus.BAD_REQUEST, "A header line is malformed.")
        name, value = name.lower(), value.strip(b" \t")
        if name not in headers:
            headers[name] = value
        elif name in _ONLY_ONCE:
            raise HandshakeError(HTTPStatus.BAD_REQUEST, f"The header {name.decode()} is there twice.")
        else:
            headers[name] += b", " + value
    return Request(words[0], words[1], words[2], headers)


def _listed(request: Request, name: bytes) -> list[bytes]:
    return [item.strip(b" \t") for item in request.headers.get(name, b"").split(b",")]


def _names(request: Request, name: bytes) -> list[bytes]:
    return [item.lower() for item in _listed(request, name)]


def parse_origins(text: str) -> frozenset[bytes]:
    """The setting `allowed_origins` of a listener, as origins are compared: in lower case."""
    return frozenset(part.strip().rstrip("/").lower().encode() for part in text.split(",") if part.strip())


def build_upgrade(request: Request, path: str, origins: frozenset[bytes] = frozenset()) -> bytes:
    """The 101 response to a request that may speak MQTT here; raises HandshakeError with the answer if it may not."""
    _check_http(request, path)
    _check_origin(request, origins)
    key = _check_websocket(request, path)
    offered = _listed(request, b"sec-websocket-protocol")
    # The client must offer "mqtt" [MQTT-6.0.0-3] [MQTT3-6.0.0-3], and it is what we select if it does
    # [MQTT-6.0.0-4] [MQTT3-6.0.0-4].
    subprotocol = next((name for name in SUBPROTOCOLS if name.encode() in offered), None)
    if subprotocol is None:
        raise HandshakeError(
            HTTPStatus.BAD_REQUEST, "Only MQTT is spoken here: offer it with Sec-WebSocket-Protocol: mqtt."
        )
    accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    ).encode()


def _check_http(request: Request, path: str) -> None:
    if request.version != b"HTTP/1.1":
        raise HandshakeError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1.1 is spoken here.")
    if request.method != b"GET":
        raise HandshakeError(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here.", "Allow: GET")
    if request.target.partition(b"?")[0] != path.encode():
        raise HandshakeError(HTTPStatus.NOT_FOUND, f"Nothing here. MQTT over WebSocket is at {path}.")
    if not request.headers.get(b"host"):
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "The header Host is missing.")
    # A body would be read as frames: refuse it rather than guess where it ends.
    if b"transfer-encoding" in request.headers or request.headers.get(b"content-length", b"0") != b"0":
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "A request to upgrade has no body.")


def _check_origin(request: Request, origins: frozenset[bytes]) -> None:
    """Browsers say which page asks; other clients say nothing, and need not."""
    origin = request.headers.get(b"origin")
    if origins and origin is not None and origin.lower() not in origins:
        raise HandshakeError(HTTPStatus.FORBIDDEN, "Pages of this origin may not connect here (allowed_origins).")


def _check_websocket(request: Request, path: str) -> bytes:
    if b"websocket" not in _names(request, b"upgrade") or b"upgrade" not in _names(request, b"connection"):
        raise HandshakeError(
            HTTPStatus.UPGRADE_REQUIRED,
            f"This is a Penstock MQTT broker. Connect an MQTT client by WebSocket to the path {path}.",
            "Upgrade: websocket",
        )
    if request.headers.get(b"sec-websocket-version") != b"13":
        raise HandshakeError(
            HTTPStatus.UPGRADE_REQUIRED,
            "Only version 13 of WebSocket (RFC 6455) is spoken here.",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
        )
    key = request.headers.get(b"sec-websocket-key", b"")
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        raise HandshakeError(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not 16 bytes in base64.")
    return key


def build_refusal(error: HandshakeError) -> bytes:
    """The whole response that says no."""
    body = f"{error.text}\n".encode()
    # 426 announces what to upgrade to, and an Upgrade header must be named in Connection.
    connection = "close, Upgrade" if error.status == HTTPStatus.UPGRADE_REQUIRED else "close"
    lines = [
        f"HTTP/1.1 {error.status.value} {error.status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        f"Connection: {connection}",
        *error.headers,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class Handshakes:
    """The handshakes of a listener that are under way: bounded, and closed with it."""

    def __init__(
        self,
        path: str,
        seconds: float,
        limit: int,
        on_refused: Callable[[str], None],
        *,
        origins: frozenset[bytes] = frozenset(),
        has_room: Callable[[socket.socket | None], bool] = lambda _: True,
    ) -> None:
        self.path = path
        self.origins = origins
        self.seconds = seconds
        self.on_refused = on_refused
        self.has_room = has_room
        self._limit = limit
        self._open: set[WebSocketHandshake] = set()

    def try_open(self, handshake: WebSocketHandshake) -> bool:
        if len(self._open) >= self._limit:
            return False
        self._open.add(handshake)
        return True

    def leave(self, handshake: WebSocketHandshake) -> None:
        self._open.discard(handshake)

    def abort_all(self) -> None:
        for handshake in list(self._open):
            handshake.abort()


class WebSocketHandshake(asyncio.BufferedProtocol):
    """Reads the request head of one connection and gives its transport to the MQTT connection.

    A BufferedProtocol like the connection that follows it, so that the transport goes on reading the same way.
    """

    def __init__(self, factory: Callable[[], MqttConnection], handshakes: Handshakes, peer: str | None = None) -> None:
        self._factory = factory
        self._handshakes = handshakes
        self._peer = peer
        self._head = bytearray(LONGEST_HEAD)
        self._size = 0
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none by inheritance
        if not self._handshakes.has_room(transport.get_extra_info("socket")):
            self._transport.abort()
            return
        if not self._handshakes.try_open(self):
            self._handshakes.on_refused("handshake_limit")
            self._transport.abort()
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handshakes.seconds, self._on_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None and not self._is_refused:
            self._handshakes.on_refused("websocket_handshake")
        self._leave()

    def get_buffer(self, sizehint: int) -> memoryview:
        # Never empty while it is asked for: a full head is refused as soon as it is full.
        return memoryview(self._head)[self._size :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_refused:  # what still comes is thrown away
            return
        searched = max(0, self._size - 3)
        self._size += nbytes
        end = self._head.find(b"\r\n\r\n", searched, self._size)
        try:
            if not 0x41 <= self._head[0] <= 0x5A:  # no HTTP method begins so; MQTT and TLS clients on the wrong port do
                raise HandshakeError(HTTPStatus.BAD_REQUEST, "This port speaks MQTT over WebSocket: HTTP comes first.")
            if end >= 0:
                self._upgrade(end)
            elif self._size == LONGEST_HEAD:
                raise HandshakeError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request head is too long.")
        except HandshakeError as error:
            self._refuse(error)

    def abort(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _upgrade(self, end: int) -> None:
        request = parse_request(bytes(self._head[:end]))
        response = build_upgrade(request, self._handshakes.path, self._handshakes.origins)
        leftover = bytes(self._head[end + 4 : self._size])
        transport = self._transport
        assert transport is not None
        self._leave()
        connection = self._factory()
        if self._peer is not None:
            connection.peer = self._peer
        transport.write(response)
        # The seam is smaller than a whole protocol: what the transport calls is the connection's own business.
        transport.set_protocol(connection)  # type: ignore[arg-type]  # see above
        connection.start_websocket(transport, leftover)

    def _refuse(self, error: HandshakeError) -> None:
        transport = self._transport
        assert transport is not None
        self._handshakes.on_refused("websocket_handshake")
        self._is_refused = True
        self._size = 0
        transport.write(build_refusal(error))
        if self._timer is not None:
            self._timer.cancel()
        if transport.can_write_eof():
            # Closing with bytes unread would reset the connection and could take the answer with it.
            transport.write_eof()
            self._timer = asyncio.get_running_loop().call_later(LINGER_SECONDS, transport.abort)
        else:
            transport.close()

    def _on_timeout(self) -> None:
        self._refuse(HandshakeError(HTTPStatus.REQUEST_TIMEOUT, "The request did not come in time."))

    def _leave(self) -> None:
        self._handshakes.leave(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
