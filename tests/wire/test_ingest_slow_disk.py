"""Does an acknowledgement wait for the disk, does nothing else wait, and what if the disk says no?"""

import errno
import threading
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType, Reason, pack_publish
from tests.support.clients.raw_client import NothingCame
from tests.support.machine.slow_disk import SlowDisk

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

PUBACK, PUBREC = PacketType.PUBACK, PacketType.PUBREC


@pytest.fixture
def disk(tmp_path, monkeypatch):
    slow_disk = SlowDisk(tmp_path)
    for name, value in slow_disk.environment.items():
        monkeypatch.setenv(name, value)
    return slow_disk


@pytest.fixture
def start(disk, start_log_broker, monkeypatch):
    def start_one(settings=None):
        broker = start_log_broker(settings)
        monkeypatch.delenv("LD_PRELOAD")
        return broker

    return start_one


@pytest.mark.parametrize("qos", [1, 2])
def test_the_acknowledgement_waits_for_the_disk_and_nothing_else_does(disk, start, connect, version, qos):
    """[MQTT-4.3.2-4] [MQTT-4.3.3-8] [MQTT3-4.3.2-2] [MQTT3-4.3.3-2]"""
    broker = start()
    publisher, subscriber = connect(version, broker=broker), connect(V5, broker=broker)
    subscriber.subscribe("quick")
    disk.hold()
    packet_id = publisher.send_publish("t", b"x", qos=qos)
    subscriber.publish("quick", b"now")
    subscriber.expect_publish("quick", b"now")
    publisher.expect_nothing()
    disk.set()
    publisher.expect(PUBACK if qos == 1 else PUBREC, packet_id=packet_id)
    assert b"x" in broker.logged_payloads()


def test_answers_do_not_overtake_those_that_wait(disk, start, connect, tmp_path):
    """[MQTT-4.6.0-2] [MQTT-4.6.0-3]: a refusal is known at once and still waits for its turn."""
    acl = tmp_path / "acl.toml"
    acl.write_text('[[rules]]\neffect = "allow"\nanonymous = true\ntopics = ["open/#"]\n')
    broker = start({"access.acl_file": str(acl)})
    subscriber, client = connect(V5, broker=broker), connect(V5, broker=broker)
    subscriber.subscribe("open/heard", qos=1)
    disk.hold()
    client.send_publish("open/unheard", b"x", qos=1, packet_id=1)
    client.ping()
    client.send_publish("closed", b"x", qos=1, packet_id=2)
    client.send_publish("open/heard", b"x", qos=2, packet_id=3)
    client.send_publish("closed", b"x", qos=2, packet_id=4)
    client.expect_nothing(0.05)
    disk.set()
    client.expect(PUBACK, packet_id=1, reason=Reason.NO_MATCHING_SUBSCRIBERS)
    client.expect(PUBACK, packet_id=2, reason=Reason.NOT_AUTHORIZED)
    client.expect(PUBREC, packet_id=3, reason=0)
    client.expect(PUBREC, packet_id=4, reason=Reason.NOT_AUTHORIZED)
    assert len(broker.logged()) == 2


def test_a_client_that_leaves_has_published_all_the_same(disk, start, connect, version):
    """DISCONNECT behind publishes that still wait for the disk."""
    broker = start()
    client = connect(version, broker=broker)
    disk.hold()
    for number in range(1, 4):
        client.send_publish("t", b"%d" % number, qos=number % 3, packet_id=number if number % 3 else None)
    client.disconnect()
    disk.set()
    deadline = time.monotonic() + 30
    while len(broker.logged()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert broker.logged_payloads() == [b"1", b"2", b"3"]
    broker.assert_healthy()


def test_what_waits_for_the_disk_counts_for_the_receive_maximum(disk, start, connect):
    """[MQTT-3.3.4-7] [MQTT-3.3.4-8]"""
    broker = start({"limits.receive_maximum": 3})
    client = connect(V5, broker=broker)
    disk.hold()
    for _ in range(3):
        client.send_publish("t", b"x", qos=1)
        client.ping()
    client.send_publish("t", b"one too many", qos=1)
    client.expect_disconnect(Reason.RECEIVE_MAXIMUM_EXCEEDED)
    disk.set()
    deadline = time.monotonic() + 30
    while broker.logged_payloads() != [b"x"] * 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert broker.logged_payloads() == [b"x"] * 3


def test_qos_2_sent_again_on_a_new_connection_waits_as_well(disk, start, connect, version):
    """The first attempt is not durable yet when the second comes: one record, and no PUBREC before it is there."""
    broker = start()
    keep = {"properties": {"session_expiry_interval": 100}} if version == V5 else {}
    client = connect(version, "stubborn", broker=broker, clean_start=False, **keep)
    disk.hold()
    client.send_publish("t", b"once", qos=2, packet_id=9)
    client.ping()
    client.close()
    again = connect(version, "stubborn", broker=broker, clean_start=False, **keep)
    again.send_publish("t", b"once", qos=2, packet_id=9, dup=True)
    again.expect_nothing()
    disk.set()
    again.expect(PUBREC, packet_id=9)
    again.send_ack(PacketType.PUBREL, 9)
    again.expect(PacketType.PUBCOMP, packet_id=9)
    assert broker.logged_payloads() == [b"once"]


def test_a_stop_waits_for_what_is_on_its_way(disk, start, connect, version):
    """SIGTERM: what waits for the disk is acknowledged before the connection ends."""
    broker = start({"server.drain_seconds": 30})
    client = connect(version, broker=broker)
    disk.hold()
    for number in range(1, 4):
        client.send_publish("t", b"%d" % number, qos=1, packet_id=number)
    client.ping()
    broker.process.terminate()
    with pytest.raises(NothingCame):
        client.receive(0.2)
    disk.set()
    for number in range(1, 4):
        client.expect(PUBACK, packet_id=number)
    assert broker.process.wait(30) == 0
    assert sorted(broker.logged_payloads()) == [b"1", b"2", b"3"]


def test_a_disk_that_fails_to_sync_refuses_and_comes_back(disk, start, connect):
    """What the disk did not promise is not promised to anybody; after it is well again, everything goes on."""
    broker = start()
    client, old = connect(V5, broker=broker), connect(V311, broker=broker)
    client.publish("t", b"before", qos=1)
    disk.set(errno=errno.EIO)
    assert client.publish("t", b"refused 1", qos=1).reason >= 0x80
    assert client.publish("t", b"refused 2", qos=2).reason >= 0x80
    old.send_publish("t", b"refused 3", qos=1)
    old.expect_closed()
    assert not broker.is_ready()[0]
    disk.set()
    deadline = time.monotonic() + 30
    while not broker.is_ready()[0] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert client.publish("t", b"after", qos=1).reason < 0x80
    assert client.publish("t", b"after 2", qos=2).reason < 0x80
    broker.kill()
    broker.restart()
    payloads = broker.logged_payloads()
    assert [payloads.count(payload) for payload in (b"before", b"after", b"after 2")] == [1, 1, 1]


def test_publishers_are_held_back_while_the_disk_is_slow(disk, start, connect):
    """log.max_pending_bytes bounds what the broker holds: the network is not read, and nothing is lost."""
    broker = start({"log.max_pending_bytes": 100_000})
    flooder = connect(V311, broker=broker)
    before = broker.resident_bytes()
    packets = [pack_publish(V311, "flood", b"%d " % number + b"." * 10_000) for number in range(3_000)]
    sending = threading.Thread(target=lambda: [flooder.send_raw(packet) for packet in packets])
    disk.hold()
    sending.start()
    sending.join(0.8)
    assert sending.is_alive(), "30 MB were taken while nothing could be written"
    assert broker.resident_bytes() - before < 20_000_000
    disk.set()
    sending.join(60)
    flooder.ping()
    deadline = time.monotonic() + 60
    while len(payloads := broker.logged_payloads()) < len(packets) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [int(payload.split()[0]) for payload in payloads] == list(range(3_000))
