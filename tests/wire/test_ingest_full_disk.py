"""What does the broker do when the disk of its log is full, and does it come back by itself?"""

import os
import subprocess
import time

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import V5, V311, PacketType, Reason

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the log is Penstock's own")

DISK_BYTES = 16 * 1024 * 1024
RECOVERY_SECONDS = 30.0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own with room for very little."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a tmpfs")
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "penstock-test", str(disk)]
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def broker(small_disk, start_log_broker):
    # Gone before the disk is: the fixtures end in the reverse order.
    return start_log_broker({"server.data_dir": str(small_disk / "data"), "ingest.partitions": 4})


def fill(disk):
    """Takes all the room there is; gives the file to be removed."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while file.write(b"\0" * size) == size:
                    pass
            except OSError:
                continue
    return ballast


def await_readiness(broker, wanted):
    deadline = time.monotonic() + RECOVERY_SECONDS
    while (state := broker.is_ready())[0] is not wanted and time.monotonic() < deadline:
        time.sleep(0.05)
    assert state[0] is wanted, state
    return state[1]


def publish_until_refused(client, payload=b"." * 4096):
    """A page may have a little room left: at most a few go through."""
    for _ in range(64):
        answer = client.publish("t", payload, qos=1)
        if answer.reason >= 0x80:
            return answer
    raise AssertionError("the disk is full and the publishes are acknowledged all the same")


def test_a_full_disk_refuses_publishes_and_comes_back(broker, small_disk, connect):
    """MQTT 5 is told why (0x97); QoS 0 goes on being delivered; nothing acknowledged is missing afterwards."""
    publisher, subscriber = connect(V5, broker=broker), connect(V5, broker=broker)
    subscriber.subscribe("alive/#")
    publisher.publish("t", b"before", qos=1)
    assert broker.is_ready()[0]

    ballast = fill(small_disk)
    assert publish_until_refused(publisher).reason == Reason.QUOTA_EXCEEDED
    assert publisher.publish("t", b"." * 4096, qos=2).reason == Reason.QUOTA_EXCEEDED
    reason = await_readiness(broker, False)
    assert "the disk is full" in reason
    publisher.publish("alive/1", b"not logged")
    subscriber.expect_publish("alive/1", b"not logged", qos=0)

    ballast.unlink()
    deadline = time.monotonic() + RECOVERY_SECONDS
    while publisher.publish("t", b"after", qos=1).reason >= 0x80:
        assert time.monotonic() < deadline, "there is room again and the broker does not notice"
        time.sleep(0.1)
    await_readiness(broker, True)
    publisher.publish("t", b"qos 2 after", qos=2)
    payloads = broker.logged_payloads()
    assert payloads.count(b"before") == payloads.count(b"after") == payloads.count(b"qos 2 after") == 1


def test_an_older_client_is_cut_off_without_an_acknowledgement(broker, small_disk, connect):
    """MQTT 3.1.1 has no reason code: without a PUBACK the client knows that it has to send again [MQTT3-4.3.2-1]."""
    watcher, publisher = connect(V5, broker=broker), connect(V311, broker=broker)
    fill(small_disk)
    publish_until_refused(watcher)
    publisher.send_publish("t", b"." * 4096, qos=1)
    publisher.expect_closed()
    assert watcher.publish("t", b"." * 4096, qos=1).reason == Reason.QUOTA_EXCEEDED


def test_a_refused_qos_2_publish_can_be_sent_again(broker, small_disk, connect):
    """[MQTT-4.3.3-4]: the packet id is free after the refusal; the next try is a new message and is logged."""
    publisher = connect(V5, broker=broker)
    ballast = fill(small_disk)
    publish_until_refused(publisher)
    publisher.send_publish("t", b"again" * 1000, qos=2, packet_id=99)
    assert publisher.expect(PacketType.PUBREC, packet_id=99).reason == Reason.QUOTA_EXCEEDED
    ballast.unlink()
    await_readiness(broker, True)
    assert publisher.publish("t", b"again" * 1000, qos=2, packet_id=99).reason < 0x80
    assert broker.logged_payloads().count(b"again" * 1000) == 1


def test_the_log_is_sound_after_a_kill_with_a_full_disk(broker, small_disk, connect):
    publisher = connect(V5, broker=broker)
    acknowledged = []
    for number in range(200):
        payload = b"%d " % number + b"." * 10_000
        if number == 100:
            ballast = fill(small_disk)
        if publisher.publish("t", payload, qos=1).reason < 0x80:
            acknowledged.append(payload)
    broker.kill()
    ballast.unlink()
    broker.restart()
    assert 100 <= len(acknowledged) < 200
    logged = broker.logged_payloads()
    assert set(acknowledged) <= set(logged)
