"""Does an APPLICATION that does not read cost only itself, and does it go on when it reads again?"""

import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType, pack_publish
from tests.support.clients.raw_client import receive_from
from tests.support.worlds.application import persistent, running_app_broker

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

MIB = 1024 * 1024
PAYLOAD = bytes(10_000)
COUNT = 3000
SMALL = {"limits.write_high_watermark": 64 * 1024, "limits.write_low_watermark": 16 * 1024}


@pytest.fixture(params=["embedded", "kafka"])
def provider(request):
    return request.param


@pytest.fixture
def broker(provider, request, tmp_path):
    settings = getattr(request, "param", {})
    with running_app_broker(tmp_path, provider, {"limits.receive_maximum": 1000, **settings}) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


def publish_numbered(publisher, topic, numbers, payload=PAYLOAD):
    """With 100 unacknowledged at a time."""
    numbers = list(numbers)
    for first in range(0, len(numbers), 100):
        batch = numbers[first : first + 100]
        packets = [pack_publish(V5, topic, b"%06d" % n + payload, qos=1, packet_id=1 + n % 60_000) for n in batch]
        publisher.send_raw(b"".join(packets))
        for number in batch:
            publisher.expect(PacketType.PUBACK, timeout=30, packet_id=1 + number % 60_000)


@pytest.mark.parametrize("broker", [{}, SMALL], indirect=True, ids=["default", "small"])
def test_a_reader_that_stops_and_goes_on(broker, connect, topic, new_name):
    """Seed: above the high watermark all its consumers pause, below the low one they resume; memory is bounded."""
    publisher, bystander = connect(V5), connect(V5, new_name("app"), **persistent(V5))
    bystander.subscribe(f"{topic}/bystander", qos=1)
    # What the log itself keeps in memory is there before the measurement begins.
    publish_numbered(publisher, f"{topic}/nobody", range(COUNT))
    before = broker.resident_bytes()
    names = [(new_name("app"), version) for version in (V311, V5)]
    stuck = []
    for name, version in names:
        client = connect(version, name, **persistent(version))
        client.subscribe(topic, qos=1)
        client.subscribe(f"$share/group/{topic}/shared", qos=1)
        stuck.append(client)
    for part in range(6):
        publish_numbered(publisher, topic, range(part * COUNT // 6, (part + 1) * COUNT // 6))
        publisher.publish(f"{topic}/shared", b"%d" % part, qos=1)
        start = time.monotonic()
        publisher.publish(f"{topic}/bystander", b"%d" % part, qos=1)
        bystander.expect_publish(f"{topic}/bystander", b"%d" % part, ack=True)
        assert time.monotonic() - start < 15
    assert broker.resident_bytes() - before < 96 * MIB
    shared = []
    for client in stuck:
        expected = 0
        while expected < COUNT:
            packet = client.expect_publish(ack=True)
            if packet.topic == topic:
                assert int(packet.payload[:6]) == expected
                expected += 1
            else:
                shared.append(packet.payload)
    # Kafka takes its seconds until the members of a share have their partitions.
    late = receive_from(stuck, 6 - len(shared), seconds=0.5, ack=True)
    shared += [packet.payload for packets in late for packet in packets]
    assert sorted(shared) == [b"%d" % part for part in range(6)]
    publisher.publish(topic, b"after", qos=1)
    for client in stuck:
        client.expect_publish(topic, b"after", ack=True)


def test_large_messages_for_a_reader_that_stops(*, broker, provider, connect, topic, new_name):
    """What is made ready for it is bounded in bytes, not only in messages: 300 of them are less than its packs."""
    large = bytes(200_000)
    publisher = connect(V5)
    publish_numbered(publisher, f"{topic}/nobody", range(300), large)
    before = broker.resident_bytes()
    stuck = connect(V5, new_name("app"), **persistent(V5))
    stuck.subscribe(topic, qos=1)
    publish_numbered(publisher, topic, range(300), large)
    time.sleep(0.5)
    # librdkafka reads ahead, up to a bound of its own
    assert broker.resident_bytes() - before < (40 if provider == "embedded" else 160) * MIB
    for number in range(300):
        assert int(stuck.expect_publish(topic, ack=True).payload[:6]) == number


def test_a_reader_that_never_acknowledges(broker, connect, topic, new_name):
    """It reads and does not answer: what is under way to it is bounded by its packs, the rest waits in the log."""
    client = connect(V311, new_name("app"), **persistent(V311))
    client.subscribe(topic, qos=1)
    publisher = connect(V5)
    publish_numbered(publisher, topic, range(COUNT))
    packets = client.receive_all(2.0, at_least=800)
    assert len(packets) == 800, "4 packs of 200"
    assert [int(packet.payload[:6]) for packet in packets] == list(range(800))
    client.close()
