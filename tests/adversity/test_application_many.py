"""What do many APPLICATIONs cost: no thread and no connection to Kafka for each, and each gets its messages."""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, PacketType, pack_connect, pack_disconnect, pack_subscribe
from tests.support.worlds.application import PREFIX, running_app_broker, until

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

CLIENTS = 500
AT_ONCE = 50
SEGMENT = "retention.ms:604800000;segment.bytes:1048576"


@pytest.fixture(params=["embedded", "kafka"])
def broker(request, tmp_path):
    settings = {"application.topic_properties": SEGMENT, "limits.connect_timeout": 60}
    with running_app_broker(tmp_path, request.param, settings) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


def open_all(broker, *, subscribes):
    """Everybody connected, some at a time."""
    clients = []
    for first in range(0, CLIENTS, AT_ONCE):
        some = [broker.client(V5) for _ in range(AT_ONCE)]
        for at, client in enumerate(some):
            name = f"app{first + at}"
            client.timeout = 60
            client.send_raw(pack_connect(V5, name, clean_start=False, properties={"session_expiry_interval": 600}))
            if subscribes:
                client.send_raw(pack_subscribe(V5, 1, [("all", 1), (f"own/{name}", 1)]))
        for client in some:
            client.expect(PacketType.CONNACK, reason=0)
            if subscribes:
                client.expect(PacketType.SUBACK)
        clients += some
    return clients


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_five_hundred_clients(broker, connect):
    publisher = connect(V5)
    warm = connect(V5, "appwarm", clean_start=False, properties={"session_expiry_interval": 600})
    warm.subscribe("warm", qos=1)
    publisher.publish("warm", b"x", qos=1)
    warm.expect_publish("warm", b"x", ack=True)
    threads, files, memory = broker.threads(), broker.open_files(), broker.resident_bytes()

    clients = open_all(broker, subscribes=True)
    publisher.publish("all", b"to all", qos=1)
    for at in range(0, CLIENTS, 50):
        publisher.publish(f"own/app{at}", b"to one", qos=1)
    for at, client in enumerate(clients):
        # Each topic has an order of its own.
        wanted = {("all", b"to all"), *([(f"own/app{at}", b"to one")] if at % 50 == 0 else [])}
        packets = [client.expect_publish(ack=True) for _ in wanted]
        assert {(packet.topic, packet.payload) for packet in packets} == wanted
    assert broker.threads() - threads <= 4
    # A socket for each, and with the embedded log at most two files of each topic, fewer where the limit is low.
    of_topics = 2 * CLIENTS if broker.provider == "embedded" else 0
    assert broker.open_files() - files <= CLIENTS + of_topics + 30
    assert broker.resident_bytes() - memory < 60 * 1024 * 1024
    for client in clients:
        client.send_raw(pack_disconnect(V5))
        client.close()

    until(lambda: broker.open_files() - files <= of_topics + 30, 60, "connections are closed")
    publisher.publish("all", b"again", qos=1)
    for client in (again := open_all(broker, subscribes=False)):
        client.expect_publish("all", b"again", dup=False, ack=True)
    assert broker.threads() - threads <= 4
    start = time.monotonic()
    publisher.publish("warm", b"y", qos=1)
    warm.expect_publish("warm", b"y", ack=True)
    assert time.monotonic() - start < 15
    for client in again:
        client.send_raw(pack_disconnect(V5, properties={"session_expiry_interval": 0}))
        client.close()
    until(lambda: broker.topics() == {f"{PREFIX}appwarm"}, 60, "the topics of ended sessions are removed")
