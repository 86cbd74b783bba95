"""What do the answers to publishers and consumers wait for? Reference, section 9, row "durability"."""

import errno
import time

import pytest

from tests.support.clients.packets import V5, PacketType
from tests.support.clients.raw_client import NothingCame
from tests.support.machine.slow_disk import SlowDisk
from tests.support.worlds.application import until
from tests.support.worlds.queues import QueueClient, running_queue_broker

LAZY = 2.0  # longer than the second after which what is buffered is written
UNSPECIFIED_ERROR = 0x80
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


@pytest.mark.parametrize("session", [0, 3600])
@pytest.mark.parametrize("kind", ["classic", "stream"])
def test_a_new_group_is_durable_when_its_consumer_is_answered(disk, tmp_path, connect, kind, session):
    """Messages that are acknowledged after the answer reach the group, whatever happens to the broker."""
    with running_queue_broker(tmp_path, queues=[{"name": "orders", "type": kind}]) as broker:
        worker = QueueClient(connect(V5, broker=broker))
        worker.consume("$queue/orders", "workers")
        auditor = QueueClient(connect(V5, broker=broker, properties={"session_expiry_interval": session}))
        disk.hold()
        packet_id = auditor.raw.send_subscribe(
            ("$queue/orders", 1), properties={"user_property": [("consumer-group", "audit")]}
        )
        with pytest.raises(NothingCame):
            auditor.raw.receive(0.5)
        disk.set()
        auditor.raw.expect(PacketType.SUBACK, 60, packet_id=packet_id)
        broker.kill()
        auditor.close()
        worker.close()
        broker.restart()
        groups = {group["id"] for group in broker.api("queues/orders/groups")["groups"]}
        assert groups == {"workers", "audit"}


def test_a_consumer_whose_group_cannot_be_stored_is_refused(disk, tmp_path, connect):
    with running_queue_broker(tmp_path, queues=[{"name": "orders"}]) as broker:
        client = QueueClient(connect(V5, broker=broker))
        disk.set(errno=errno.EIO)
        assert client.try_consume("$queue/orders", "workers") == [UNSPECIFIED_ERROR]
        disk.set()
        until(lambda: client.try_consume("$queue/orders", "workers") == [1])
        client.publish("$queue/orders", b"1")
        client.take_and_ack(b"1")
        client.close()
