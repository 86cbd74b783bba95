"""Does MQTT work the same over TCP, TLS, Unix socket, WebSocket and secure WebSocket, several listeners at once?"""

import contextlib
import ssl

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, V311, PacketType, Reason, pack_connect
from tests.support.clients.raw_client import RawClient
from tests.support.clients.streams import WebSocketStream, open_tcp, open_tls, open_unix
from tests.support.servers.certificates import Authority

TRANSPORTS = ["tcp", "tls", "unix", "ws", "wss"]


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server_identity(authority):
    return authority.issue("localhost")


def tls_options(identity, **options):
    return {"certificate": str(identity.certificate), "key": str(identity.key), **options}


@pytest.fixture
def open_transport(share_broker, authority, server_identity):
    """open_transport(name, version) connects over that transport to one broker with all of them."""
    secure = tls_options(server_identity)
    wanted = [Listener(name, secure if name in {"tls", "wss"} else {}) for name in TRANSPORTS if name != "tcp"]
    broker = share_broker("transports", listeners=wanted)
    listeners = {listener.transport: listener for listener in broker.listeners}
    clients = []

    def open_one(name, version):
        listener = listeners.get(name)
        if name == "tcp":
            stream = open_tcp(broker.address)
        elif name == "unix":
            stream = open_unix(listener.address)
        elif name == "ws":
            stream = WebSocketStream(open_tcp(listener.host_and_port))
        else:
            stream = open_tls(listener.host_and_port, authority.client_context())
            if name == "wss":
                stream = WebSocketStream(stream)
        clients.append(RawClient(stream, version))
        return clients[-1]

    yield open_one
    for client in clients:
        client.close()


def test_every_transport_to_every_other(open_transport, topic, new_name):
    """[MQTT-4.2.0-1] [MQTT3-7.1.1-1]: one broker, all transports, both versions; small and large payloads."""
    subscribers = []
    for version in (V311, V5):
        for name in TRANSPORTS:
            client = open_transport(name, version)
            client.connect(new_name(name))
            client.subscribe(topic, qos=1)
            subscribers.append(client)
    payloads = [b"", b"small", bytes(range(256)) * 400]
    for name in TRANSPORTS:
        publisher = open_transport(name, V5)
        publisher.connect(new_name(name))
        for payload in payloads:
            publisher.publish(topic, payload, qos=1)
        for subscriber in subscribers:
            subscriber.expect_payloads(payloads, qos=1)
        publisher.disconnect()


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_errors_and_take_over_reach_the_client(open_transport, client_id, transport):
    """[MQTT-3.1.4-3] [MQTT-4.13.1-1]: DISCONNECT arrives before the end on every transport."""
    old, new = open_transport(transport, V5), open_transport(transport, V5)
    old.connect(client_id)
    new.connect(client_id)
    old.expect_disconnect(Reason.SESSION_TAKEN_OVER)
    new.send_raw(b"\x00\x00")
    new.expect_disconnect((Reason.MALFORMED, Reason.PROTOCOL_ERROR))


def test_plain_bytes_on_a_tls_listener_cost_nobody_else(start_broker, authority, server_identity, connect):
    """The issue: bad input costs its sender the connection."""
    listener = Listener("tls", tls_options(server_identity))
    broker = start_broker(listeners=[listener])
    bystander = connect(V5, broker=broker)
    stranger = RawClient(open_tcp(listener.host_and_port), V5)
    stranger.send_connect("stranger")
    with contextlib.suppress(ConnectionResetError):
        assert b"MQTT" not in stranger.stream.recv(100)
    good = RawClient(open_tls(listener.host_and_port, authority.client_context()), V5)
    good.connect("good")
    bystander.ping()


@pytest.mark.parametrize("wanted", ["required", "optional"])
def test_client_certificates(start_broker, authority, server_identity, tmp_path, wanted):
    """listeners.client_certificate: required refuses those without, optional takes both; a stranger's is refused."""
    options = tls_options(server_identity, client_ca=str(authority.path), client_certificate=wanted)
    listener = Listener("tls", options)
    start_broker(listeners=[listener])
    known = authority.client_context(authority.issue("device-1"))
    RawClient(open_tls(listener.host_and_port, known)).connect("known")
    strangers = authority.client_context(Authority(tmp_path, "Stranger").issue("device-2"))
    assert is_refused(listener, strangers)
    assert is_refused(listener, authority.client_context()) == (wanted == "required")


def test_old_tls_versions_are_refused(start_broker, authority, server_identity):
    """listeners.tls_minimum: 1.3 refuses 1.2."""
    listener = Listener("tls", tls_options(server_identity, tls_minimum="1.3"))
    start_broker(listeners=[listener])
    old = authority.client_context()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    assert is_refused(listener, old)
    assert not is_refused(listener, authority.client_context())


def is_refused(listener, context):
    """With TLS 1.3 a client learns of it with its first read."""
    try:
        client = RawClient(open_tls(listener.host_and_port, context))
        client.connect("client")
    except (OSError, AssertionError):
        return True
    client.close()
    return False


PROXY_V1 = b"PROXY TCP4 192.0.2.1 192.0.2.2 51234 1883\r\n"
PROXY_V2 = b"\r\n\r\n\x00\r\nQUIT\n" + b"\x21\x11\x00\x0c" + bytes([192, 0, 2, 1, 192, 0, 2, 2]) + b"\xc8\x22\x07\x5b"


@pytest.mark.parametrize("header", [PROXY_V1, PROXY_V2, b"PROXY UNKNOWN\r\n"], ids=["v1", "v2", "unknown"])
def test_proxy_protocol(start_broker, client_id, header):
    """listeners.proxy_protocol: the header comes first, then MQTT, also in one segment."""
    listener = Listener("tcp", {"proxy_protocol": True})
    start_broker(listeners=[listener])
    for pause in (False, True):
        client = RawClient(open_tcp(listener.host_and_port), V5)
        if pause:
            client.send_raw(header[:7])
            client.send_raw(header[7:])
            client.connect(client_id)
        else:
            client.send_raw(header + pack_connect(V5, client_id))
            client.expect(PacketType.CONNACK, reason=0)
        client.ping()
        client.close()


def test_missing_proxy_header_is_refused(start_broker, client_id):
    """listeners.proxy_protocol: a client that comes past the proxy is not served."""
    listener = Listener("tcp", {"proxy_protocol": True})
    start_broker(listeners=[listener])
    client = RawClient(open_tcp(listener.host_and_port), V5)
    client.send_connect(client_id)
    client.expect_closed()
