"""WebSocket frames as a server reads and writes them (RFC 6455)."""

from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._ext.wire.websocket import WsDecoder, build_frame

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
FIN = 0x80
MASK = b"\x37\xfa\x21\x3d"


def client_frame(opcode: int, payload: bytes = b"", *, final: bool = True, mask: bytes = MASK) -> bytes:
    size = len(payload)
    if size < 126:
        length = bytes([FIN | size])
    elif size < 0x10000:
        length = bytes([FIN | 126]) + struct.pack(">H", size)
    else:
        length = bytes([FIN | 127]) + struct.pack(">Q", size)
    masked = bytes(byte ^ mask[i & 3] for i, byte in enumerate(payload))
    return bytes([(FIN if final else 0) | opcode]) + length + mask + masked


def data_of(events: list[tuple[str, bytes | int]]) -> bytes:
    return b"".join(payload for name, payload in events if name == "data" and isinstance(payload, bytes))


def merged(events: list[tuple[str, bytes | int]]) -> list[tuple[str, bytes | int]]:
    """Neighbouring data joined: where a read ends is not part of the meaning."""
    result: list[tuple[str, bytes | int]] = []
    for name, payload in events:
        if name == "data" and result and result[-1][0] == "data":
            result[-1] = ("data", result[-1][1] + payload)  # type: ignore[operator]  # both are bytes: they are data
        else:
            result.append((name, payload))
    return result


def test_a_binary_frame_gives_its_bytes_unmasked():
    """[MQTT-6.0.0-1] [MQTT3-6.0.0-1]"""
    assert WsDecoder().feed(client_frame(BINARY, b"Hello, penstock")) == [("data", b"Hello, penstock")]


def test_packets_may_cross_frames_and_share_them():
    """[MQTT-6.0.0-2] [MQTT3-6.0.0-2]"""
    stream = client_frame(BINARY, b"\xc0") + client_frame(BINARY, b"\x00\xc0\x00")
    assert data_of(WsDecoder().feed(stream)) == b"\xc0\x00\xc0\x00"


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 125, 126, 127, 65_535, 65_536, 100_000])
def test_every_length_form(size):
    payload = bytes(i * 7 & 0xFF for i in range(size))
    assert data_of(WsDecoder().feed(client_frame(BINARY, payload) + client_frame(BINARY, b"next"))) == payload + b"next"


def test_control_frames_between_fragments_do_not_end_the_message():
    stream = (
        client_frame(BINARY, b"one", final=False)
        + client_frame(PING, b"are you there")
        + client_frame(CONTINUATION, b"two", final=False)
        + client_frame(PONG)
        + client_frame(CONTINUATION, b"three")
        + client_frame(BINARY, b"four")
    )
    assert WsDecoder().feed(stream) == [
        ("data", b"one"),
        ("ping", b"are you there"),
        ("data", b"two"),
        ("pong", b""),
        ("data", b"three"),
        ("data", b"four"),
    ]


@pytest.mark.parametrize("payload", [b"", b"\x03\xe8", b"\x03\xe8bye", b"\x0b\xb8", b"\x13\x87" + b"x" * 123])
def test_close_comes_with_its_payload(payload):
    assert WsDecoder().feed(client_frame(CLOSE, payload)) == [("close", payload)]


UNMASKED = bytes([FIN | BINARY, 2]) + b"ab"
REFUSED = {
    "text": (client_frame(TEXT, b"hi"), 1003),
    "unmasked": (UNMASKED, 1002),
    "reserved bit 1": (bytes([FIN | 0x40 | BINARY]) + client_frame(BINARY)[1:], 1002),
    "reserved bit 3": (bytes([FIN | 0x10 | BINARY]) + client_frame(BINARY)[1:], 1002),
    "reserved data opcode": (client_frame(3), 1002),
    "reserved control opcode": (client_frame(11), 1002),
    "fragmented control": (client_frame(PING, b"x", final=False), 1002),
    "long control": (client_frame(PING, b"x" * 126), 1002),
    "continuation of nothing": (client_frame(CONTINUATION, b"x"), 1002),
    "binary inside a message": (client_frame(BINARY, b"x", final=False) + client_frame(BINARY, b"y"), 1002),
    "16-bit length of a short frame": (bytes([FIN | BINARY, FIN | 126, 0, 125]) + MASK, 1002),
    "64-bit length of a short frame": (bytes([FIN | BINARY, FIN | 127]) + struct.pack(">Q", 65_535) + MASK, 1002),
    "64-bit length with its top bit": (bytes([FIN | BINARY, FIN | 127]) + struct.pack(">Q", 1 << 63) + MASK, 1002),
    "over the limit": (bytes([FIN | BINARY, FIN | 127]) + struct.pack(">Q", 70_000), 1009),
    "close of one byte": (client_frame(CLOSE, b"\x03"), 1002),
    "close with a code never sent": (client_frame(CLOSE, struct.pack(">H", 1006)), 1002),
    "close with no such code": (client_frame(CLOSE, struct.pack(">H", 999)), 1002),
}


@pytest.mark.parametrize(("stream", "code"), REFUSED.values(), ids=REFUSED.keys())
def test_a_broken_frame_is_refused_with_its_close_code(stream, code):
    assert WsDecoder(max_frame=66_000).feed(stream)[-1] == ("error", code)
    decoder = WsDecoder(max_frame=66_000)
    events = [event for i in range(len(stream)) for event in decoder.feed(stream[i : i + 1])]
    assert ("error", code) in events


def test_a_frame_of_exactly_the_limit_passes():
    assert data_of(WsDecoder(max_frame=300).feed(client_frame(BINARY, b"x" * 300))) == b"x" * 300
    assert WsDecoder(max_frame=300).feed(client_frame(BINARY, b"x" * 301)) == [("error", 1009)]


@st.composite
def frame_streams(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, bytes | int]]]:
    """A valid stream and what it means: messages in fragments with control frames between them."""
    stream, meaning = b"", []
    for fragments in draw(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=4), max_size=5)):
        for i, fragment in enumerate(fragments):
            mask = draw(st.binary(min_size=4, max_size=4))
            opcode = CONTINUATION if i else BINARY
            stream += client_frame(opcode, fragment, final=i == len(fragments) - 1, mask=mask)
            if fragment:
                meaning.append(("data", fragment))
            control = draw(st.none() | st.tuples(st.sampled_from([PING, PONG]), st.binary(max_size=125)))
            if control is not None:
                stream += client_frame(control[0], control[1], mask=mask)
                meaning.append(("ping" if control[0] == PING else "pong", control[1]))
    return stream, merged(meaning)


@given(frame_streams(), st.data())
def test_where_reads_end_changes_nothing(stream_and_meaning, data):
    stream, meaning = stream_and_meaning
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=20))
    decoder = WsDecoder()
    events = []
    for start, end in pairwise([0, *sorted(cuts), len(stream)]):
        events += decoder.feed(stream[start:end])
    assert merged(events) == meaning


@given(frame_streams())
def test_one_byte_at_a_time(stream_and_meaning):
    stream, meaning = stream_and_meaning
    decoder = WsDecoder()
    assert merged([e for i in range(len(stream)) for e in decoder.feed(stream[i : i + 1])]) == meaning


@given(st.binary(max_size=400), st.integers(0, 400))
def test_any_bytes_mean_the_same_however_they_are_read(stream, cut):
    def meaning(*chunks: bytes) -> list[tuple[str, bytes | int]]:
        decoder, events = WsDecoder(max_frame=1000), []
        for chunk in chunks:
            events += decoder.feed(chunk)
            if events and events[-1][0] == "error":
                break
        return merged(events)

    assert meaning(stream[:cut], stream[cut:]) == meaning(stream)


@pytest.mark.parametrize(
    ("size", "header"),
    [
        (0, b"\x82\x00"),
        (125, b"\x82\x7d"),
        (126, b"\x82\x7e\x00\x7e"),
        (65_535, b"\x82\x7e\xff\xff"),
        (65_536, b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00"),
    ],
)
def test_the_server_writes_unmasked_frames_in_the_shortest_form(size, header):
    assert build_frame(BINARY, b"x" * size) == header + b"x" * size
