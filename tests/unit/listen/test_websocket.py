"""The opening handshake: what is upgraded and what the others are told."""

from __future__ import annotations

import pytest

from penstock.listen.websocket import (
    HandshakeError,
    Request,
    build_refusal,
    build_upgrade,
    parse_origins,
    parse_request,
)

# The key and its answer are the example of RFC 6455, section 1.3.
HEADERS = {
    b"host": b"broker.example",
    b"upgrade": b"websocket",
    b"connection": b"keep-alive, Upgrade",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
    b"sec-websocket-version": b"13",
    b"sec-websocket-protocol": b"mqttv3.1, mqtt",
}


def request(
    method: bytes = b"GET", target: bytes = b"/mqtt", version: bytes = b"HTTP/1.1", **changes: bytes
) -> Request:
    headers = HEADERS | {name.replace("_", "-").encode(): value for name, value in changes.items()}
    return Request(method, target, version, headers)


def test_the_example_of_the_rfc():
    """[MQTT-6.0.0-4]"""
    response = build_upgrade(request(), "/mqtt")
    assert response.startswith(b"HTTP/1.1 101 ")
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in response
    assert b"\r\nSec-WebSocket-Protocol: mqtt\r\n" in response
    assert response.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    "changes",
    [{"target": b"/mqtt?token=1"}, {"upgrade": b"WebSocket"}, {"connection": b"UPGRADE"}, {"content_length": b"0"}],
)
def test_also_upgraded(changes):
    assert build_upgrade(request(**changes), "/mqtt").startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({"target": b"/"}, 404, "/mqtt"),
        ({"target": b"/mqtt/"}, 404, "/mqtt"),
        ({"method": b"POST"}, 405, "GET"),
        ({"version": b"HTTP/1.0"}, 505, "HTTP/1.1"),
        ({"host": b""}, 400, "Host"),
        ({"upgrade": b"h2c"}, 426, "MQTT broker"),
        ({"connection": b"keep-alive"}, 426, "MQTT broker"),
        ({"sec_websocket_version": b"8"}, 426, "13"),
        ({"sec_websocket_key": b"short"}, 400, "Key"),
        ({"sec_websocket_key": b"AAAA"}, 400, "Key"),
        ({"sec_websocket_key": b"dGhlIHNhbXBsZSBub25jZQ==!"}, 400, "Key"),
        ({"sec_websocket_protocol": b"MQTT"}, 400, "Sec-WebSocket-Protocol"),
        ({"sec_websocket_protocol": b""}, 400, "Sec-WebSocket-Protocol"),
        ({"content_length": b"5"}, 400, "body"),
        ({"transfer_encoding": b"chunked"}, 400, "body"),
    ],
)
def test_refused(changes, status, says):
    """[MQTT-6.0.0-3] [MQTT3-6.0.0-3]"""
    with pytest.raises(HandshakeError, match=says) as caught:
        build_upgrade(request(**changes), "/mqtt")
    assert caught.value.status == status


def test_origins():
    """A browser names the page that asks; only those of the setting come in, and clients without a page."""
    origins = parse_origins("https://plant.example, http://localhost:3000/ ,")
    assert origins == {b"https://plant.example", b"http://localhost:3000"}
    for known in (b"https://plant.example", b"HTTPS://Plant.Example", b"http://localhost:3000"):
        assert build_upgrade(request(origin=known), "/mqtt", origins).startswith(b"HTTP/1.1 101 ")
    assert build_upgrade(request(), "/mqtt", origins).startswith(b"HTTP/1.1 101 ")
    for other in (b"https://evil.example", b"null", b"http://plant.example", b"https://plant.example.evil.example"):
        with pytest.raises(HandshakeError, match="origin") as caught:
            build_upgrade(request(origin=other), "/mqtt", origins)
        assert caught.value.status == 403
    assert build_upgrade(request(origin=b"https://evil.example"), "/mqtt").startswith(b"HTTP/1.1 101 ")


def test_a_wrong_version_is_told_the_right_one():
    with pytest.raises(HandshakeError) as caught:
        build_upgrade(request(sec_websocket_version=b"12"), "/mqtt")
    answer = build_refusal(caught.value)
    assert b"\r\nSec-WebSocket-Version: 13\r\n" in answer
    assert b"\r\nConnection: close, Upgrade\r\n" in answer
    head, body = answer.split(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head


def test_headers_are_joined_and_their_names_are_in_lower_case():
    parsed = parse_request(b"GET / HTTP/1.1\r\nConnection: a\r\nCONNECTION:  b \r\nEmpty:")
    assert parsed == Request(b"GET", b"/", b"HTTP/1.1", {b"connection": b"a, b", b"empty": b""})


@pytest.mark.parametrize(
    "head",
    [
        b"GET /",
        b"GET  / HTTP/1.1",
        b"GET /\x01 HTTP/1.1",
        b"GET / HTTP/1.1\r\nno colon",
        b"GET / HTTP/1.1\r\nspace : before colon",
        b"GET / HTTP/1.1\r\nA: b\r\n folded",
        b"GET / HTTP/1.1\r\nA: nul\x00",
        b"GET / HTTP/1.1\r\nA: bare\nB: newline",
        b"GET / HTTP/1.1\r\n: no name",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b",
        b"GET / HTTP/1.1\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Key: a",
    ],
)
def test_malformed_heads(head):
    with pytest.raises(HandshakeError) as caught:
        parse_request(head)
    assert caught.value.status == 400
