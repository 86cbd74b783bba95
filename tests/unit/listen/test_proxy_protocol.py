"""PROXY protocol headers, versions 1 and 2."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.listen.proxy_protocol import (
    V1_LONGEST,
    V2_LONGEST_BODY,
    V2_SIGNATURE,
    ProxyProtocolError,
    Source,
    header_size,
    parse_header,
)

TCP4_BODY = bytes.fromhex("c0000207 c6336401 dc04 075b")
TCP6_BODY = bytes.fromhex("20010db8000000000000000000000007 20010db8000000000000000000000001 dc04 075b")


def v2(command: int, family: int, body: bytes = b"") -> bytes:
    return V2_SIGNATURE + bytes([command, family]) + len(body).to_bytes(2, "big") + body


ACCEPTED = {
    "v1 tcp4": (b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n", Source("192.0.2.7", 56324)),
    "v1 tcp6": (b"PROXY TCP6 2001:db8::7 2001:db8::1 56324 1883\r\n", Source("2001:db8::7", 56324)),
    "v1 port 0": (b"PROXY TCP4 192.0.2.7 198.51.100.1 0 65535\r\n", Source("192.0.2.7", 0)),
    "v1 unknown": (b"PROXY UNKNOWN\r\n", None),
    "v1 unknown with more": (b"PROXY UNKNOWN ffff:f...f:ffff ffff:f...f:ffff 65535 65535\r\n", None),
    "v2 tcp4": (v2(0x21, 0x11, TCP4_BODY), Source("192.0.2.7", 56324)),
    "v2 tcp4 with TLVs": (v2(0x21, 0x11, TCP4_BODY + b"\x01\x00\x04mqtt"), Source("192.0.2.7", 56324)),
    "v2 tcp6": (v2(0x21, 0x21, TCP6_BODY), Source("2001:db8::7", 56324)),
    "v2 unix": (v2(0x21, 0x31, bytes(216)), None),
    "v2 unspecified": (v2(0x21, 0x00, b"whatever"), None),
    "v2 local": (v2(0x20, 0x00), None),
    "v2 local with an address": (v2(0x20, 0x11, TCP4_BODY), None),
}

REFUSED = {
    "mqtt": b"\x10\x0c\x00\x04MQTT",
    "tls": b"\x16\x03\x01",
    "lower case": b"proxy TCP4 ",
    "v1 udp": b"PROXY UDP4 192.0.2.7 198.51.100.1 56324 1883\r\n",
    "v1 nothing": b"PROXY \r\n",
    "v1 a word too few": b"PROXY TCP4 192.0.2.7 198.51.100.1 56324\r\n",
    "v1 a word too many": b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883 x\r\n",
    "v1 two spaces": b"PROXY TCP4  192.0.2.7 198.51.100.1 56324 1883\r\n",
    "v1 wrong family": b"PROXY TCP4 2001:db8::7 2001:db8::1 56324 1883\r\n",
    "v1 bad destination": b"PROXY TCP4 192.0.2.7 somewhere 56324 1883\r\n",
    "v1 port too high": b"PROXY TCP4 192.0.2.7 198.51.100.1 65536 1883\r\n",
    "v1 port with a zero": b"PROXY TCP4 192.0.2.7 198.51.100.1 056 1883\r\n",
    "v1 port with a sign": b"PROXY TCP4 192.0.2.7 198.51.100.1 +56 1883\r\n",
    "v1 bare newline": b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\n",
    "v1 not ASCII": b"PROXY TCP4 \xff 198.51.100.1 56324 1883\r\n",
    "v1 without end": b"PROXY " + b"x" * V1_LONGEST,
    "v1 too long": b"PROXY UNKNOWN " + b"x" * (V1_LONGEST - 15) + b"\r\n",
    "v2 of version 1": v2(0x11, 0x11, TCP4_BODY),
    "v2 unknown command": v2(0x22, 0x11, TCP4_BODY),
    "v2 udp": v2(0x21, 0x12, TCP4_BODY),
    "v2 unknown family": v2(0x21, 0x41, TCP4_BODY),
    "v2 short address": v2(0x21, 0x11, TCP4_BODY[:-1]),
    "v2 short ipv6 address": v2(0x21, 0x21, TCP6_BODY[:-1]),
    "v2 too long": v2(0x21, 0x11, bytes(V2_LONGEST_BODY + 1)),
    "v2 signature broken": V2_SIGNATURE[:-1] + b"X" + bytes(4),
}


@pytest.mark.parametrize(("header", "source"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_accepted(header, source):
    assert header_size(header + b"\x10\r\n\x00") == len(header)
    assert parse_header(header) == source


@pytest.mark.parametrize("header", ACCEPTED.values(), ids=ACCEPTED.keys())
def test_a_part_of_a_header_asks_for_more_and_never_for_too_much(header):
    whole = header[0]
    for size in range(len(whole)):
        assert header_size(whole[:size]) in (None, len(whole))


@pytest.mark.parametrize("header", REFUSED.values(), ids=REFUSED.keys())
def test_refused(header):
    def read() -> None:
        assert header_size(header) == len(header)
        parse_header(header)

    with pytest.raises(ProxyProtocolError):
        read()


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: V2_SIGNATURE + rest))
def test_any_bytes_are_refused_or_understood(data):
    try:
        size = header_size(data)
        if size is not None and size <= len(data):
            parse_header(data[:size])
    except ProxyProtocolError:
        pass


def test_an_address_of_ipv6_is_written_in_brackets():
    assert str(Source("2001:db8::7", 1)) == "[2001:db8::7]:1"
