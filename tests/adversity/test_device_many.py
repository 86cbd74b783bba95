"""What happens when very many DEVICEs return at once, and when one of them does not read or does not answer?"""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType, pack_connect, pack_disconnect, pack_subscribe
from tests.support.worlds.application import persistent
from tests.support.worlds.device import publish_all, running_device_broker

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the store is Penstock's own")

MIB = 1024 * 1024
DEVICES = 1000
AT_ONCE = 250
PAYLOAD = bytes(10_000)
SETTINGS = {
    "limits.connect_timeout": 60,
    "limits.write_high_watermark": 64 * 1024,
    "limits.write_low_watermark": 16 * 1024,
}
KEPT = {"clean_start": False, "properties": {"session_expiry_interval": 600}}


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def module_broker(request, tmp_path_factory):
    with running_device_broker(tmp_path_factory.mktemp("broker"), request.param, SETTINGS) as started:
        yield started


@pytest.fixture
def broker(module_broker, request):
    start = module_broker.log_size()
    request.node.broker_logs = [(module_broker, start)]
    yield module_broker
    module_broker.assert_healthy(start)


def leave_sessions(broker):
    """So many subscribed sessions whose clients are away."""
    for first in range(0, DEVICES, AT_ONCE):
        clients = [broker.client(V5) for _ in range(AT_ONCE)]
        for at, client in enumerate(clients):
            subscribe = pack_subscribe(V5, 1, [("all", 1), (f"own/{first + at}", 2)])
            client.send_raw(pack_connect(V5, f"many{first + at}", **KEPT) + subscribe + pack_disconnect(V5))
        for client in clients:
            client.expect(PacketType.CONNACK, reason=0)
            client.expect(PacketType.SUBACK)
            client.expect_closed()


@pytest.mark.slow
def test_a_thousand_devices_return_at_once(broker, connect):
    """The issue: each gets its own messages, once, in order, and a bystander is served meanwhile."""
    leave_sessions(broker)
    publisher, bystander = connect(V5), connect(V5, "bystander", **persistent(V5))
    bystander.subscribe("bystander", qos=1)
    publish_all(publisher, "all", [b"a", b"b", b"c"])
    for at in range(0, DEVICES, 100):
        publisher.publish(f"own/{at}", b"own", qos=2)
    broker.await_stored("many0", 4)
    memory = broker.resident_bytes()
    clients = [broker.client(V5) for _ in range(DEVICES)]
    for at, client in enumerate(clients):
        client.send_raw(pack_connect(V5, f"many{at}", **KEPT))
    start = time.monotonic()
    publisher.publish("bystander", b"still here", qos=1)
    bystander.expect_publish("bystander", b"still here", ack=True)
    assert time.monotonic() - start < 15
    for at, client in enumerate(clients):
        client.expect(PacketType.CONNACK, reason=0, session_present=True)
        # Each topic has an order of its own.
        own = [(b"own", 2)] if at % 100 == 0 else []
        packets = [client.expect_publish(dup=False, ack=True) for _ in range(3 + len(own))]
        assert [packet.payload for packet in packets if packet.topic == "all"] == [b"a", b"b", b"c"]
        assert [(packet.payload, packet.qos) for packet in packets if packet.topic == f"own/{at}"] == own
    assert broker.resident_bytes() - memory < 60 * MIB
    # All of them are live now.
    publisher.publish("all", b"live", qos=1)
    for client in clients:
        client.expect_publish("all", b"live", dup=False, ack=True)
        client.send_raw(pack_disconnect(V5, properties={"session_expiry_interval": 0}))
    for client in clients:
        client.close()
    for at in (0, DEVICES - 1):
        broker.await_stored(f"many{at}", 0)


@pytest.mark.slow
def test_a_reader_that_stops_and_goes_on(broker, connect, new_name, topic):
    """Above the high watermark it is like being away: the rest waits in the store, memory is bounded, order stays."""
    count = 1_200
    publisher, bystander = connect(V5), connect(V5, new_name("device"), **persistent(V5))
    bystander.subscribe(f"{topic}/bystander", qos=1)
    names = [(new_name("device"), version) for version in (V311, V5)]
    stuck = []
    for name, version in names:
        client = connect(version, name, **persistent(version))
        client.subscribe(topic, qos=1)
        stuck.append(client)
    publish_all(publisher, f"{topic}/nobody", [b"%06d" % number + PAYLOAD for number in range(count // 4)])
    before = broker.resident_bytes()
    for part in range(4):
        numbers = range(part * count // 4, (part + 1) * count // 4)
        publish_all(publisher, topic, [b"%06d" % number + PAYLOAD for number in numbers])
        start = time.monotonic()
        publisher.publish(f"{topic}/bystander", b"%d" % part, qos=1)
        bystander.expect_publish(f"{topic}/bystander", b"%d" % part, ack=True)
        assert time.monotonic() - start < 15
    # what the log and the store keep of the newest in memory is bounded, too, and some 50 MiB of it
    assert broker.resident_bytes() - before < 96 * MIB
    for client in stuck:
        for number in range(count):
            packet = client.expect_publish(topic, ack=True)
            assert int(packet.payload[:6]) == number
    publisher.publish(topic, b"after", qos=1)
    for client in stuck:
        client.expect_publish(topic, b"after", dup=False, ack=True)
    for name, _ in names:
        broker.await_stored(name, 0)


def test_a_reader_that_never_acknowledges(broker, connect, new_name, topic):
    """What is on its way to it is bounded by its quota; the rest waits in the store and comes with its next answers."""
    name = new_name("device")
    client = connect(V5, name, clean_start=False, properties={"session_expiry_interval": 600, "receive_maximum": 30})
    client.subscribe(topic, qos=1)
    payloads = [b"%d" % number for number in range(500)]
    publish_all(connect(V5), topic, payloads)
    packets = client.receive_all(1.0, at_least=30)
    assert [packet.payload for packet in packets] == payloads[:30]
    broker.await_stored(name, 500)
    for packet in packets:
        client.ack(packet)
    client.expect_payloads(payloads[30:])
    broker.await_stored(name, 0)
