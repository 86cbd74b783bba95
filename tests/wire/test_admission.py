"""Do the limits on connections hold: all, of one listener, per second; and those on retained bytes and sessions?"""

import time

import pytest

from tests.support.brokers.broker import Listener
from tests.support.clients.packets import V5, V311, PacketType
from tests.support.clients.raw_client import ClosedByServer, RawClient
from tests.support.clients.streams import WebSocketStream, open_tcp


def is_served(address, client_id, kept):
    """Whether a new connection gets a CONNACK; it is kept open then."""
    client = RawClient(open_tcp(address), V311)
    try:
        client.connect(client_id)
    except (ClosedByServer, ConnectionError):
        client.close()
        return False
    kept.append(client)
    return True


def test_connections_of_one_listener(start_file_broker, connect):
    """listeners.max_connections: the other listeners still take clients; a place is free again after an end."""
    listener = Listener("tcp", {"max_connections": 2})
    broker = start_file_broker(listeners=[listener])
    kept = []
    assert [is_served(listener.host_and_port, f"client{number}", kept) for number in range(4)] == [1, 1, 0, 0]
    connect(V5, broker=broker).ping()
    kept.pop().disconnect()
    deadline = time.monotonic() + 30
    while not is_served(listener.host_and_port, "next", kept):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    for client in kept:
        client.ping()


def test_refused_websocket_counts_no_place(start_file_broker):
    """A WebSocket over the limit is refused as well, and those inside stay."""
    listener = Listener("ws", {"max_connections": 1})
    start_file_broker(listeners=[listener])
    inside = RawClient(WebSocketStream(open_tcp(listener.host_and_port)), V5)
    inside.connect("inside")
    for number in range(3):
        with pytest.raises((AssertionError, OSError)):
            RawClient(WebSocketStream(open_tcp(listener.host_and_port)), V5).connect(f"outside{number}")
    inside.ping()


def test_connection_rate(start_file_broker):
    """limits.connect_rate: as many at once, then so many a second."""
    broker = start_file_broker({"limits": {"connect_rate": 5}})
    time.sleep(1.1)  # waiting for it to listen took one
    kept = []
    started = time.monotonic()
    served = [is_served(broker.address, f"client{number}", kept) for number in range(30)]
    seconds = time.monotonic() - started
    assert served[:5] == [True] * 5
    assert 5 <= sum(served) <= 6 + 5 * seconds
    time.sleep(1.1)
    assert sum(is_served(broker.address, f"later{number}", kept) for number in range(5)) == 5
    for client in kept:
        client.ping()
        client.close()


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_time_to_send_connect(start_file_broker, transport):
    """limits.connect_timeout: silent or dribbling, also over WebSocket; a client in time is not touched."""
    listener = Listener(transport)
    start_file_broker({"limits": {"connect_timeout": 1}}, [listener])

    def open_one():
        stream = open_tcp(listener.host_and_port)
        return RawClient(WebSocketStream(stream) if transport == "ws" else stream, V311)

    good, silent, dribbling = open_one(), open_one(), open_one()
    good.connect("good")
    started = time.monotonic()
    dribbling.send_raw(b"\x10")
    silent.expect_closed()
    dribbling.expect_closed()
    assert 0.5 < time.monotonic() - started < 9  # the default is ten seconds
    good.ping()


def test_retained_bytes(start_file_broker, connect, topic):
    """limits.max_retained_bytes: no more are kept. MQTT 3.1.1 has no way to refuse one: subscribers that are there get
    the message all the same."""
    broker = start_file_broker({"limits": {"max_retained_bytes": 5_000}, "sys": {"interval": 0}})
    watcher, publisher = connect(V5, broker=broker), connect(V5, broker=broker)
    old_publisher = connect(V311, broker=broker)
    watcher.subscribe(f"{topic}/+")
    for number in range(10):
        old_publisher.publish(f"{topic}/{number}", bytes(1_000), qos=1, retain=True)
        watcher.expect_publish(f"{topic}/{number}", bytes(1_000))
    late = connect(V5, broker=broker)
    late.subscribe(f"{topic}/+")
    kept = [packet for packet in late.receive_all(0.2, at_least=1) if packet.type == PacketType.PUBLISH]
    assert 1 <= len(kept) <= 5
    publisher.publish(f"{topic}/0", b"", qos=1, retain=True)
    assert publisher.publish(f"{topic}/again", bytes(500), qos=1, retain=True).reason in (0, 0x10)
    again = connect(V5, broker=broker)
    again.subscribe(f"{topic}/again")
    again.expect_publish(f"{topic}/again", bytes(500), retain=True)


def test_session_expiry_cap(start_file_broker, connect, client_id, version):
    """limits.max_session_expiry: told to MQTT 5 clients, and kept to for both versions."""
    broker = start_file_broker({"limits": {"max_session_expiry": 1}})
    options = {"clean_start": False}
    if version == V5:
        options["properties"] = {"session_expiry_interval": 0xFFFFFFFF}
    client = connect(version, client_id, broker=broker, **options)
    if version == V5:
        assert client.connack.properties["session_expiry_interval"] == 1
    client.close()
    client = connect(version, client_id, broker=broker, **options)
    assert client.connack.session_present
    client.close()
    time.sleep(1.6)
    assert not connect(version, client_id, broker=broker, **options).connack.session_present
