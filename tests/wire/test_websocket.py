"""Does MQTT over WebSocket follow chapter 6 of the specifications and RFC 6455?"""

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, PacketType, pack_connect, pack_publish, pack_subscribe
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import BINARY, CLOSE, PING, PONG, TEXT, WebSocketRefused, WebSocketStream, open_tcp


@pytest.fixture
def listener(share_broker):
    return share_broker("websocket", listeners=[Listener("ws")]).listeners[0]


@pytest.fixture
def stream(listener):
    websocket = WebSocketStream(open_tcp(listener.host_and_port))
    yield websocket
    websocket.close()


def test_subprotocol(listener, stream):
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4] [MQTT3-6.0.0-3] [MQTT3-6.0.0-4]: mqtt is chosen, also from a list."""
    assert stream.headers["sec-websocket-protocol"] == "mqtt"
    several = WebSocketStream(open_tcp(listener.host_and_port), subprotocol="chat, mqtt, mqttv3.1")
    assert several.headers["sec-websocket-protocol"] == "mqtt"


@pytest.mark.parametrize("arguments", [{"path": "/elsewhere"}, {"subprotocol": "chat"}], ids=["path", "subprotocol"])
def test_wrong_subprotocol_or_path(listener, arguments):
    """[MQTT-6.0.0-3] [MQTT-6.0.0-4]: refused with an HTTP error."""
    with pytest.raises(WebSocketRefused, match=r"^HTTP/1\.1 4"):
        WebSocketStream(open_tcp(listener.host_and_port), **arguments)


def test_pages_of_other_origins_stay_out(share_broker):
    settings = Listener("ws", {"allowed_origins": "https://plant.example"})
    listener = share_broker("origins", listeners=[settings]).listeners[0]
    head = (
        b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\nOrigin: %s\r\n\r\n"
    )
    for origin, status in ((b"https://evil.example", b"403"), (b"https://plant.example", b"101")):
        connection = open_tcp(listener.host_and_port)
        connection.sendall(head % origin)
        assert connection.recv(1000).startswith(b"HTTP/1.1 " + status)
        connection.close()


def test_not_a_websocket_request(listener):
    """A browser at the wrong door gets an HTTP answer and the end."""
    connection = open_tcp(listener.host_and_port)
    connection.sendall(b"GET /mqtt HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(1000).startswith(b"HTTP/1.1 4")


def test_answers_are_binary_frames(stream):
    """[MQTT-6.0.0-1] [MQTT3-6.0.0-1]"""
    client = RawClient(stream, V5)
    client.connect("client")
    client.ping()
    assert set(stream.received_opcodes) == {BINARY}


def test_text_frames_end_the_connection(stream):
    """[MQTT-6.0.0-1] [MQTT3-6.0.0-1]"""
    stream.send_frame(TEXT, pack_connect(V5, "client"))
    frame = stream.read_frame()
    assert frame is None or frame[0] == CLOSE


@pytest.mark.parametrize("size", [1, 3, 10, 10_000])
def test_packets_and_frames_have_their_own_borders(stream, topic, size):
    """[MQTT-6.0.0-2] [MQTT3-6.0.0-2]"""
    client = RawClient(stream, V5)
    data = pack_connect(V5, "client") + pack_subscribe(V5, 1, [(topic, 0)]) + pack_publish(V5, topic, bytes(200))
    for start in range(0, len(data), size):
        stream.send_frame(BINARY, data[start : start + size])
    client.expect(PacketType.CONNACK, reason=0)
    client.expect(PacketType.SUBACK)
    client.expect_publish(topic, bytes(200))


def test_fragmented_message_with_a_ping_between(stream):
    """RFC 6455 5.4: continuation frames, and a control frame among them is answered."""
    data = pack_connect(V5, "client")
    stream.send_frame(BINARY, data[:5], final=False)
    stream.send_frame(PING, b"are you there")
    stream.send_frame(0, data[5:10], final=False)
    stream.send_frame(0, data[10:])
    assert stream.read_frame() == (PONG, b"are you there")
    RawClient(stream, V5).expect(PacketType.CONNACK, reason=0)


def test_unmasked_frames_end_the_connection(stream):
    """RFC 6455 5.1"""
    stream.send_frame(BINARY, pack_connect(V5, "client"), masked=False)
    frame = stream.read_frame()
    assert frame is None or frame[0] == CLOSE


def test_close_is_answered(stream):
    """RFC 6455 5.5.1"""
    RawClient(stream, V5).connect("client")
    stream.send_frame(CLOSE, b"\x03\xe8")
    frame = stream.read_frame()
    assert frame is None or frame[0] == CLOSE
    assert stream.read_frame() is None


def test_a_close_reason_that_is_not_utf_8_is_refused(stream):
    """RFC 6455 8.1: the connection fails with 1007."""
    RawClient(stream, V5).connect("client")
    stream.send_frame(CLOSE, b"\x03\xe8\xff\xfe")
    opcode, payload = stream.read_frame()
    assert (opcode, payload) == (CLOSE, b"\x03\xef")
    assert stream.read_frame() is None


def test_large_payloads(stream, topic):
    """RFC 6455 5.2: lengths of 7, 16 and 64 bits, both ways."""
    client = RawClient(stream, V5)
    client.connect("client")
    client.subscribe(topic)
    for size in (10, 120, 130, 65_000, 66_000, 500_000):
        client.publish(topic, bytes(size))
        client.expect_publish(topic, bytes(size))
