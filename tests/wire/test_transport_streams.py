"""Do large messages, many small ones and arbitrary borders pass TLS and WebSocket whole, also with real clients?"""

import random
import shutil
import subprocess
import threading

import paho.mqtt.client as paho
import pytest

from tests.support.brokers.broker import Listener
from tests.support.brokers.file_broker import running_broker
from tests.support.clients.packets import (
    V5,
    V311,
    PacketType,
    Reason,
    pack_connect,
    pack_publish,
    pack_subscribe,
    subscription_options,
)
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import BINARY, CLOSE, PING, PONG, WebSocketStream, open_tcp, open_tls

LARGE = 500_000
MANY = 5_000


@pytest.fixture(scope="module")
def listeners(tmp_path_factory, authority):
    """One broker with every transport for all tests here; gives its listeners by transport."""
    identity = authority.issue("localhost")
    secure = {"certificate": str(identity.certificate), "key": str(identity.key)}
    found = {
        "tls": Listener("tls", secure),
        "ws": Listener("ws"),
        "wss": Listener("wss", secure),
        "tls-proxy": Listener("tls", {**secure, "proxy_protocol": True}),
    }
    with running_broker(tmp_path_factory.mktemp("broker"), {}, list(found.values())) as broker:
        found["tcp"] = Listener("tcp", address=f"127.0.0.1:{broker.port}")
        yield found


@pytest.fixture
def open_over(listeners, authority):
    """open_over("wss", version) opens a connection on which no MQTT has been sent yet."""
    clients = []

    def open_one(transport, version=V5):
        address = listeners[transport].host_and_port
        is_secure = transport in {"tls", "wss"}
        stream = open_tls(address, authority.client_context()) if is_secure else open_tcp(address)
        if transport in {"ws", "wss"}:
            stream = WebSocketStream(stream)
        clients.append(RawClient(stream, version))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


def pattern_payload(size, seed):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
def test_large_messages_both_ways(open_over, new_name, topic, version, transport):
    """500 KB in, 500 KB out, QoS 1 and 2, also to a client on plain TCP."""
    near, far = open_over(transport, version), open_over("tcp", version)
    for client in (near, far):
        client.connect(new_name("large"))
        client.subscribe(topic, qos=2)
    for sender, qos in ((near, 1), (far, 2)):
        payload = pattern_payload(LARGE, qos)
        sender.publish(topic, payload, qos=qos)
        for client in (near, far):
            client.expect_publish(topic, payload, qos=qos, ack=True)


@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
def test_many_small_messages_keep_their_order(open_over, new_name, topic, version, transport):
    """[MQTT-4.6.0-6] [MQTT3-4.6.0-6]: 5,000 in few writes; QoS 0 loses none of a reader that keeps up, QoS 1 none."""
    subscriber, publisher = open_over(transport, version), open_over(transport, version)
    subscriber.connect(new_name("many"))
    subscriber.subscribe(topic, qos=0)
    publisher.connect(new_name("many"))
    packets = [pack_publish(version, topic, b"%d" % number) for number in range(MANY)]
    for start in range(0, MANY, 500):
        publisher.send_raw(b"".join(packets[start : start + 500]))
    for number in range(MANY):
        subscriber.expect_publish(topic, b"%d" % number)


@pytest.mark.parametrize("transport", ["ws", "wss"])
@pytest.mark.parametrize("seed", range(3))
def test_frames_of_any_size(open_over, topic, transport, seed):
    """[MQTT-6.0.0-2] [MQTT3-6.0.0-2]: packets cut at random, continuation and empty frames, pings between them."""
    chance = random.Random(seed)
    client = open_over(transport)
    stream = client.stream
    payloads = [chance.randbytes(chance.choice([0, 1, 100, 1_000, 70_000])) for _ in range(30)]
    data = pack_connect(V5, f"frames{transport}{seed}") + pack_subscribe(V5, 1, [(topic, subscription_options(1))])
    data += b"".join(
        pack_publish(V5, topic, payload, qos=1, packet_id=number) for number, payload in enumerate(payloads, 1)
    )
    at, pings, is_fragment = 0, 0, False
    while at < len(data):
        size = chance.choice([0, 1, 2, 7, 125, 126, 127, 5_000, 65_535, 65_536])
        is_last = at + size >= len(data)
        is_final = is_last or chance.random() < 0.5
        stream.send_frame(0 if is_fragment else BINARY, data[at : at + size], final=is_final)
        at, is_fragment = at + size, not is_final
        if chance.random() < 0.2:
            stream.send_frame(PING, b"%d" % pings)
            pings += 1
    client.expect(PacketType.CONNACK, reason=0)
    client.expect(PacketType.SUBACK, reasons=[1])
    for number in range(1, len(payloads) + 1):
        client.await_packet(PacketType.PUBACK, number)
    for payload in payloads:
        client.expect_publish(topic, payload, qos=1)
    client.ping()
    assert stream.received_opcodes.count(PONG) == pings


def test_close_frame_right_behind_the_last_packet(open_over, new_name, topic):
    """RFC 6455 5.5.1: what came before the close frame counts; the close is answered with the same code."""
    watcher = open_over("ws")
    watcher.connect(new_name("watcher"))
    watcher.subscribe(topic)
    client = open_over("ws")
    client.connect(new_name("closing"))
    client.stream.send_frame(BINARY, pack_publish(V5, topic, b"last words"))
    client.stream.send_frame(CLOSE, b"\x03\xe8bye")
    watcher.expect_publish(topic, b"last words")
    opcode, payload = client.stream.read_frame()
    assert (opcode, payload[:2]) == (CLOSE, b"\x03\xe8")
    assert client.stream.read_frame() is None


@pytest.mark.parametrize("transport", ["tls", "ws", "wss"])
def test_disconnect_behind_a_backlog_is_readable(open_over, client_id, new_name, topic, transport):
    """[MQTT-3.1.4-3]: a client whose socket is full and that is taken over can read all of it, and the DISCONNECT."""
    slow = open_over(transport)
    slow.connect(client_id)
    slow.subscribe(topic, qos=0)
    publisher = open_over("tcp")
    publisher.connect(new_name("publisher"))
    payload = bytes(60_000)
    for _ in range(80):
        publisher.publish(topic, payload)
    publisher.ping()
    taking_over = open_over("tcp")
    taking_over.connect(client_id)
    packet = slow.receive()
    while packet.type == PacketType.PUBLISH:
        assert packet.payload == payload
        packet = slow.receive()
    assert (packet.type, packet.reason) == (PacketType.DISCONNECT, Reason.SESSION_TAKEN_OVER)
    slow.expect_closed()


def test_pings_of_a_client_that_reads_nothing_cost_no_memory(start_broker):
    """A WebSocket client that never reads its pongs does not make the broker keep them all."""
    listener = Listener("ws")
    broker = start_broker(listeners=[listener])
    stream = WebSocketStream(open_tcp(listener.host_and_port))
    RawClient(stream, V5).connect("pinger")
    before = broker.resident_bytes()
    frames = (b"\x89\xfd" + bytes(4) + bytes(125)) * 500
    connection = stream._connection
    connection.settimeout(1.0)
    try:
        for _ in range(800):  # 52 MB
            connection.sendall(frames)
    except OSError:
        pass
    assert broker.resident_bytes() - before < 20_000_000
    stream.close()


PROXY_V1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 51234 8883\r\n"
PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n" + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 1, 192, 0, 2, 2]) + b"\xc8\x22\x22\xb3"


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2], ids=["v1", "v2"])
def test_proxy_protocol_in_front_of_tls(listeners, authority, new_name, topic, header):
    """listeners.proxy_protocol: the header is outside TLS; the handshake follows it, also in one segment."""
    connection = open_tcp(listeners["tls-proxy"].host_and_port)
    connection.sendall(header)
    secure = authority.client_context().wrap_socket(connection, server_hostname="localhost")
    client = RawClient(secure, V311)
    client.connect(new_name("proxied"))
    client.subscribe(topic, qos=1)
    client.publish(topic, b"x", qos=1)
    client.expect_publish(topic, b"x")
    client.close()


@pytest.mark.parametrize("transport", ["ws", "wss"])
@pytest.mark.parametrize("protocol", [paho.MQTTv311, paho.MQTTv5], ids=["v311", "v5"])
def test_paho_over_websockets(*, listeners, authority, new_name, topic, transport, protocol):
    """A real client: publish and subscribe QoS 2, large and small."""
    host, port = listeners[transport].host_and_port
    client = paho.Client(paho.CallbackAPIVersion.VERSION2, new_name("paho"), transport="websockets", protocol=protocol)
    if transport == "wss":
        client.tls_set(str(authority.path))
    payloads = [b"small", pattern_payload(200_000, 1), b""]
    received, is_subscribed, is_done = [], threading.Event(), threading.Event()

    def on_message(_client, _data, message):
        received.append(message.payload)
        if len(received) == len(payloads):
            is_done.set()

    client.on_connect = lambda *_: client.subscribe(topic, 2)
    client.on_subscribe = lambda *_: is_subscribed.set()
    client.on_message = on_message
    client.connect(host, port)
    client.loop_start()
    try:
        assert is_subscribed.wait(30)
        for payload in payloads:
            client.publish(topic, payload, 2)
        assert is_done.wait(30)
    finally:
        client.disconnect()
        client.loop_stop()
    assert received == payloads


@pytest.mark.skipif(shutil.which("mosquitto_sub") is None, reason="mosquitto-clients is not installed")
@pytest.mark.parametrize("version_flag", ["311", "5"])
def test_mosquitto_sub_with_cafile(listeners, authority, topic, version_flag):
    """The real mosquitto_pub and mosquitto_sub over TLS; without the authority they do not trust the broker."""
    host, port = listeners["tls"].host_and_port
    common = ["-h", host, "-p", str(port), "-V", version_flag, "-t", topic, "-q", "1"]
    trusting = [*common, "--cafile", str(authority.path)]
    subprocess.run(["mosquitto_pub", *trusting, "-r", "-m", "over tls"], check=True, timeout=60)
    command = ["mosquitto_sub", *trusting, "-C", "1", "-W", "5"]
    assert subprocess.run(command, check=True, capture_output=True, timeout=60).stdout == b"over tls\n"
    suspicious = ["mosquitto_pub", *common, "--tls-use-os-certs", "-m", "x"]
    assert subprocess.run(suspicious, check=False, capture_output=True, timeout=60).returncode != 0
