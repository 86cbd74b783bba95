"""Can the sizes and the timing of what is sent to a WebSocket client damage the broker, its memory or its framing?"""

import os
import time

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, pack_connect, pack_publish, pack_subscribe
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import BINARY, CLOSE, PING, PONG, WebSocketStream, open_tcp

MIB = 1 << 20


@pytest.fixture
def listener():
    return Listener("ws")


def masked_frame(opcode: int, payload: bytes) -> bytes:
    """Masked with zeros, so that it is cheap to make many."""
    assert len(payload) < 126
    return bytes([0x80 | opcode, 0x80 | len(payload), 0, 0, 0, 0]) + payload


def test_output_of_every_small_size(start_broker, listener):
    """The room for the frame's header in front of the output survives whatever makes the buffer grow.

    Packets of 240 to 256 bytes fill what a new buffer has but not what is left behind the header's room.
    """
    broker = start_broker(listeners=[listener])
    client = RawClient(WebSocketStream(open_tcp(listener.host_and_port)), V5)
    client.connect("client")
    client.subscribe("t")
    for size in range(200, 280):
        client.publish("t", bytes(size))
        client.expect_publish("t", bytes(size))
    for size in range(200, 280):  # behind something small in the same buffer
        client.send_raw(b"\xc0\x00" + pack_publish(V5, "t", bytes(size)))
        client.receive()
        client.expect_publish("t", bytes(size))
    broker.assert_healthy()


def test_pings_of_a_client_that_does_not_read(start_broker, listener):
    """Pongs count as output: a client that never reads them is not read either, and costs a bounded amount."""
    broker = start_broker(listeners=[listener])
    connection = open_tcp(listener.host_and_port)
    stream = WebSocketStream(connection)
    client = RawClient(stream, V5)
    client.connect("client")
    before = broker.resident_bytes()
    pings = masked_frame(PING, bytes(125)) * 2_000
    connection.settimeout(0.5)
    sent, deadline = 0, time.monotonic() + 8
    try:
        while sent < 64 * MIB and time.monotonic() < deadline:
            sent += connection.send(pings)
    except TimeoutError:
        pass  # not read any more: what must happen
    assert broker.resident_bytes() - before < 24 * MIB
    connection.close()


def test_last_packet_of_a_slow_client_is_framed(start_broker, listener):
    """What is sent while the socket is full and the connection ends is still a sequence of whole WebSocket frames."""
    broker = start_broker(listeners=[listener])
    connection = open_tcp(listener.host_and_port)
    stream = WebSocketStream(connection)
    client = RawClient(stream, V5)
    client.connect("slow")
    client.subscribe("t")
    publisher = broker.client(V5)
    publisher.connect("publisher")
    for _ in range(14):  # more than the two sockets take
        publisher.publish("t", os.urandom(1_000_000), qos=1)
    other = broker.client(V5)
    other.connect("slow")  # takes over: the first one gets DISCONNECT behind what it has not read yet
    opcodes = set()
    connection.settimeout(60)
    while (frame := stream.read_frame()) is not None:
        opcodes.add(frame[0])
    assert not stream._raw, "the stream ends inside a frame"
    assert opcodes <= {BINARY, CLOSE, PONG}


def test_packets_behind_connect_in_one_frame(start_broker, listener):
    broker = start_broker(listeners=[listener])
    stream = WebSocketStream(open_tcp(listener.host_and_port))
    data = pack_connect(V5, "client") + pack_subscribe(V5, 1, [("t", 0)]) + pack_publish(V5, "t", bytes(245))
    stream.send_frame(BINARY, data)
    client = RawClient(stream, V5)
    client.receive()
    client.receive()
    client.expect_publish("t", bytes(245))
    broker.assert_healthy()
