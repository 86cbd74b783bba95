"""Does SIGTERM tell the clients, finish what is under way and end the process with 0?"""

import signal
import time

from tests.support.clients.packets import V5, V311, PacketType, Reason, Will


def test_clients_are_told(start_broker, connect):
    """4.13, 3.14.2.1: DISCONNECT 0x8B for MQTT 5, closed for 3.1.1."""
    broker = start_broker({"server.drain_seconds": 1})
    clients = [connect(version, broker=broker) for version in (V311, V5)]
    broker.process.send_signal(signal.SIGTERM)
    for client in clients:
        client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0


def test_no_new_connections(start_broker, connect, open_client):
    """Draining: the listener is closed first."""
    broker = start_broker({"server.drain_seconds": 1})
    connect(V5, broker=broker)
    broker.process.send_signal(signal.SIGTERM)
    broker.process.wait(30)
    try:
        open_client(V5, broker=broker)
    except OSError:
        return
    raise AssertionError("a stopped broker accepts connections")


def test_acknowledged_messages_are_delivered_before_the_end(start_broker, connect, topic):
    """In-flight work is finished: what was acknowledged reaches a subscriber that is connected."""
    broker = start_broker({"server.drain_seconds": 2})
    subscriber = connect(V5, broker=broker)
    subscriber.subscribe(topic, qos=1)
    publisher = connect(V5, broker=broker)
    for number in range(50):
        publisher.publish(topic, b"%d" % number, qos=1)
    broker.process.send_signal(signal.SIGTERM)
    received = [packet.payload for packet in subscriber.receive_until_closed() if packet.type == PacketType.PUBLISH]
    assert received == [b"%d" % number for number in range(50)]
    assert broker.process.wait(30) == 0


def test_idle_broker_stops_at_once(start_broker):
    """Nothing under way: no need to wait for the drain limit."""
    broker = start_broker({"server.drain_seconds": 60})
    start = time.monotonic()
    assert broker.terminate() == 0
    assert time.monotonic() - start < 30


def test_idle_connections_do_not_use_up_the_drain_limit(start_broker, connect):
    """Connections without work in flight are told and closed at once."""
    broker = start_broker({"server.drain_seconds": 60})
    client = connect(V5, broker=broker, will=Will("will", b"x"))
    start = time.monotonic()
    broker.process.send_signal(signal.SIGTERM)
    client.expect_disconnect(Reason.SERVER_SHUTTING_DOWN)
    assert broker.process.wait(30) == 0
    assert time.monotonic() - start < 30
