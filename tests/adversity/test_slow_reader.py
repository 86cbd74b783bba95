"""Does a subscriber that does not read, or reads late, cost only itself?"""

import time

import pytest

from tests.support.clients.packets import V5, V311, PacketType, pack_publish
from tests.support.clients.streams import open_tcp
from tests.support.worlds.application import until

MIB = 1024 * 1024
FLOOD = 60 * MIB
PAYLOAD = bytes(10_000)


@pytest.fixture
def broker(start_broker):
    """Gives up on a slow reader quickly, for short tests; logs nothing, so that the memory is the readers'."""
    return start_broker({"limits.backpressure_seconds": 0.2, "sys.interval": 1, "ingest.log": "none"})


def publish_flood(publisher, topic, qos=0, size=FLOOD):
    """Writes `size` bytes of messages; the broker may slow this down but not stop it."""
    publisher.stream.settimeout(30)
    packet = pack_publish(publisher.version, topic, PAYLOAD)
    batch = packet * 20
    for _ in range(size // len(batch)):
        publisher.send_raw(batch)
    publisher.timeout = 30
    publisher.ping()


@pytest.mark.parametrize("version", [V311, V5])
def test_reader_that_never_reads(broker, connect, topic, version):
    """QoS 0 for it is dropped and counted, memory stays bounded, and a bystander loses nothing and waits little."""
    stuck = connect(version, broker=broker)
    stuck.subscribe(topic)
    bystander, other = connect(V5, broker=broker), connect(V5, broker=broker)
    bystander.subscribe(f"{topic}/bystander", qos=1)
    watcher = connect(V5, broker=broker)
    watcher.subscribe("$SYS/broker/publish/messages/dropped")
    before = broker.resident_bytes()
    publisher = connect(V5, broker=broker)
    for number in range(6):
        publish_flood(publisher, topic, size=FLOOD // 6)
        start = time.monotonic()
        other.publish(f"{topic}/bystander", b"%d" % number, qos=1)
        bystander.expect_publish(f"{topic}/bystander", b"%d" % number, ack=True)
        assert time.monotonic() - start < 10
    assert broker.resident_bytes() - before < 25 * MIB
    until(lambda: int(watcher.expect_publish().payload) > 0, 60, "dropped messages in $SYS")


def test_qos_1_for_a_stuck_reader_is_bounded(broker, connect, topic):
    """Messages of QoS 1 wait up to the limits of the queue; the publisher is still served."""
    stuck = connect(V5, broker=broker)
    stuck.subscribe(topic, qos=1)
    before = broker.resident_bytes()
    publisher = connect(V5, broker=broker)
    for _ in range(3000):
        publisher.publish(topic, PAYLOAD, qos=1)
    assert broker.resident_bytes() - before < 40 * MIB


def test_reader_that_recovers(broker, connect, topic):
    """What it reads later is whole and in order, and the connection goes on as if nothing had been."""
    late = connect(V5, broker=broker)
    late.subscribe(topic)
    publisher = connect(V5, broker=broker)
    for number in range(4000):
        publisher.send_publish(topic, b"%06d" % number + PAYLOAD)
    publisher.ping()
    late.ping()  # behind everything that waited in the buffer of its connection
    numbers = [int(packet.payload[:6]) for packet in late.receive_all(0.5) if packet.type == PacketType.PUBLISH]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == 0
    publisher.publish(topic, b"after")
    late.expect_publish(topic, b"after")
    late.ping()


def test_qos_1_reader_that_recovers_loses_nothing(broker, connect, topic):
    """Within the limits of its queue every QoS 1 message arrives, in order."""
    late = connect(V5, broker=broker)
    late.subscribe(topic, qos=1)
    publisher = connect(V5, broker=broker)
    for number in range(700):
        publisher.publish(topic, b"%06d" % number + PAYLOAD, qos=1)
    numbers = [int(late.expect_publish(topic, qos=1, ack=True).payload[:6]) for _ in range(700)]
    assert numbers == list(range(700))


def test_half_open_connections(start_broker, connect, open_client):
    """Connections that never say anything are closed after their time and cost the others nothing."""
    broker = start_broker({"limits.connect_timeout": 1})
    silent = [open_tcp(broker.address) for _ in range(200)]
    client = connect(V5, broker=broker)
    start = time.monotonic()
    while time.monotonic() - start < 2.5:
        client.ping()
        time.sleep(0.1)
    for connection in silent:
        connection.settimeout(60)
        assert connection.recv(1) == b""
        connection.close()
    open_client(V5, broker=broker).connect("later")
