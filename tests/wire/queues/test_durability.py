"""What does a publisher's acknowledgement wait for? Reference, section 9, row "durability"."""

import time

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.machine.slow_disk import SlowDisk
from tests.support.worlds.queues import QueueClient, running_queue_broker

LAZY = 2.0  # longer than the second after which what is buffered is written
QUEUES = [{"name": "safe"}, {"name": "quick", "ack_durability": "buffered"}]


@pytest.fixture
def disk(tmp_path, monkeypatch):
    slow_disk = SlowDisk(tmp_path)
    for name, value in slow_disk.environment.items():
        monkeypatch.setenv(name, value)
    return slow_disk


def test_the_acknowledgement_waits_for_the_level_of_its_queue(disk, tmp_path, connect):
    """Two levels, per queue; the one that `queue update` asks for holds from then on. After a restart it is the one of
    the settings file again."""
    with running_queue_broker(tmp_path, queues=QUEUES) as broker:
        client = QueueClient(connect(V5, broker=broker))
        client.publish("$queue/safe", b"0")
        client.publish("$queue/quick", b"0")

        def does_not_wait(address, payload):
            time.sleep(LAZY)  # what was written before is on the disk: nobody else waits for it
            disk.hold()
            client.publish(address, payload)
            disk.set()

        def waits_for_the_disk(address):
            disk.hold()
            packet_id = client.raw.send_publish(address, b"1", qos=1)
            client.nothing()
            disk.set()
            client.raw.expect(PacketType.PUBACK, 60, packet_id=packet_id)

        waits_for_the_disk("$queue/safe")
        does_not_wait("$queue/quick", b"1")
        broker.command("queue", "update", "quick", "-o", "ack_durability=fsync")
        waits_for_the_disk("$queue/quick")
        broker.command("queue", "update", "safe", "-o", "ack_durability=buffered")
        does_not_wait("$queue/safe", b"2")
        client.close()
        broker.kill()
        broker.restart()
        client = QueueClient(connect(V5, broker=broker))
        waits_for_the_disk("$queue/safe")
        does_not_wait("$queue/quick", b"2")
        client.consume("$queue/safe", "workers")
        client.take_and_ack(b"0", b"1", b"2", b"1")
        client.close()
