r"""The header a load balancer puts in front of a connection to say who it is for (PROXY protocol, versions 1 and 2).

Version 1 is a line of text, version 2 a signature, a length and binary addresses:

    PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n
    \r\n\r\n\0\r\nQUIT\n  21 11 000C  source(4) destination(4) source port(2) destination port(2)  TLVs

A connection the balancer opens for itself (`LOCAL`, `UNKNOWN`) names nobody: its own address stands.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import NamedTuple

V1_PREFIX = b"PROXY "
V1_LONGEST = 107  # with its CRLF, as the specification counts it
V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V2_FIXED = 16
# Unix addresses take 216 bytes; the rest is room for TLVs, of which a balancer sends a few (ALPN, SNI, a client's CN).
V2_LONGEST_BODY = 1024

_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED, _TCP4, _TCP6, _UNIX = 0x00, 0x11, 0x21, 0x31
_BODY_SIZES = {_TCP4: 12, _TCP6: 36, _UNIX: 216}


class ProxyProtocolError(Exception):
    """What came first is no PROXY protocol header."""


class Source(NamedTuple):
    """Who the connection is for, as the balancer says."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def header_size(data: bytes) -> int | None:
    """The size of the header `data` begins with; None when all of `data` belongs to it and more must come to tell."""
    if data[:12] == V2_SIGNATURE[: len(data)]:
        if len(data) < V2_FIXED:
            return None
        size = int.from_bytes(data[14:16], "big")
        if size > V2_LONGEST_BODY:
            raise ProxyProtocolError("the version 2 header is too long")
        return V2_FIXED + size
    if data[:6] != V1_PREFIX[: len(data)]:
        raise ProxyProtocolError("no PROXY protocol header")
    end = data.find(b"\r\n")
    if end < 0 and len(data) < V1_LONGEST and b"\n" not in data:
        return None
    if end < 0 or end + 2 > V1_LONGEST:
        raise ProxyProtocolError("the version 1 header does not end where it must")
    return end + 2


def parse_header(header: bytes) -> Source | None:
    """Who a whole header names; None when it names nobody (LOCAL, UNKNOWN)."""
    return _parse_v2(header) if header.startswith(V2_SIGNATURE) else _parse_v1(header)


def _parse_v1(header: bytes) -> Source | None:
    try:
        words = header[:-2].decode("ascii").split(" ")
    except UnicodeDecodeError:
        raise ProxyProtocolError("the version 1 header is not ASCII") from None
    if words[1] == "UNKNOWN":
        return None  # whatever else the line says is to be ignored
    if words[1] not in ("TCP4", "TCP6") or len(words) != 6:
        raise ProxyProtocolError("the version 1 header names no TCP connection")
    read_address = ipaddress.IPv4Address if words[1] == "TCP4" else ipaddress.IPv6Address
    try:
        source, _ = read_address(words[2]), read_address(words[3])
    except ValueError:
        raise ProxyProtocolError("the version 1 header has a bad address") from None
    port, _ = _parse_port(words[4]), _parse_port(words[5])
    return Source(str(source), port)


def _parse_port(text: str) -> int:
    if not text.isdigit() or len(text) > 5 or (len(text) > 1 and text[0] == "0") or int(text) > 65_535:
        raise ProxyProtocolError("the version 1 header has a bad port")
    return int(text)


def _parse_v2(header: bytes) -> Source | None:
    command, family, body = header[12], header[13], header[V2_FIXED:]
    if command == _LOCAL:
        return None
    if command != _PROXY:
        raise ProxyProtocolError("the version 2 header has an unknown version or command")
    if family in (_UNSPECIFIED, _UNIX) and len(body) >= _BODY_SIZES.get(family, 0):
        return None  # a path says nothing more than the address of the balancer
    if family not in (_TCP4, _TCP6) or len(body) < _BODY_SIZES[family]:
        raise ProxyProtocolError("the version 2 header names no TCP connection")
    if family == _TCP4:
        return Source(str(ipaddress.IPv4Address(body[:4])), int.from_bytes(body[8:10], "big"))
    return Source(str(ipaddress.IPv6Address(body[:16])), int.from_bytes(body[32:34], "big"))


async def read_header(connection: socket.socket) -> Source | None:
    """Takes exactly the header off a non-blocking socket: what follows it is left for TLS or MQTT to read."""
    held = b""
    while True:
        await _readable(connection)
        try:
            peeked = connection.recv(V2_FIXED + V2_LONGEST_BODY, socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not peeked:
            raise ProxyProtocolError("closed before its PROXY protocol header")
        size = header_size(held + peeked)
        # All that was peeked is taken unless the header ends before, so the next wait is for new bytes.
        held += connection.recv(len(peeked) if size is None else min(len(peeked), size - len(held)))
        if len(held) == size:
            return parse_header(held)


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection, on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection)
