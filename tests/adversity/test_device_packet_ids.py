"""More messages than there are packet ids go through the stored queue of one client that comes and goes: does it get
each of them, in order, and never one under an id that another has?"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.brokers.broker import IS_MOSQUITTO
from tests.support.clients.packets import PINGREQ, V311, pack_publish
from tests.support.clients.raw_client import RawClient
from tests.support.worlds.application import persistent
from tests.support.worlds.device import DeviceBroker, running_device_broker

pytestmark = pytest.mark.skipif(IS_MOSQUITTO, reason="the store is Penstock's own")

ROUNDS, PER_ROUND = 20, 5_100
AT_ONCE = 1_700  # PUBLISHes under way of the publisher
KEPT_BACK = 15  # messages of each round that are acknowledged only at the very end
LAST_ID = 65_535
DEVICE = "forgetful"
SESSION_PRESENT = b"\x20\x02\x01\x00"
PUBLISH, PUBLISH_AGAIN, PINGRESP = 0x32, 0x3A, b"\xd0\x00"

Connect = Callable[..., RawClient]


@pytest.fixture(params=["embedded", "kafka"])
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeviceBroker]:
    with running_device_broker(tmp_path, request.param) as started:
        request.node.broker_logs = [(started, 0)]
        yield started


class ForgetfulDevice:
    """What the client knows over all its connections; it judges every PUBLISH. All of them have one size, so that they
    can be taken apart quickly."""

    def __init__(self, topic: str) -> None:
        self.size = len(self.pack(topic, 0, 1))
        self.in_flight: dict[int, int] = {}  # packet id to number, in the order they came in
        self.kept_back: set[int] = set()  # numbers
        self.seen = 0  # they are numbered from 0, so that this is the next one
        self.last_id = 0
        self.wraps = self.repeated = 0
        self._client: RawClient
        self._unread = b""
        self._again: list[tuple[int, int]] = []  # what must come first, because it was in flight

    @staticmethod
    def pack(topic: str, number: int, packet_id: int) -> bytes:
        return pack_publish(V311, topic, b"%08d" % number, qos=1, packet_id=packet_id)

    def returns(self, client: RawClient) -> None:
        """Reads CONNACK and not a byte more, because stored messages may be right behind it."""
        client.stream.settimeout(client.timeout)
        client.send_connect(DEVICE, **persistent(V311))
        assert client.stream.recv(len(SESSION_PRESENT)) == SESSION_PRESENT
        self._client, self._unread = client, b""
        self._again = list(self.in_flight.items())

    def take(self, until: int) -> None:
        """All that comes until the message before `until` has; acknowledges as it goes, but not the newest of it."""
        while self.seen < until or self._again:
            self._read()
            self.acknowledge(leave=100)

    def cut(self) -> None:
        """Without a DISCONNECT, when the broker has read what was acknowledged; it may have sent more meanwhile."""
        self._client.send_raw(PINGREQ)
        while not self._read():
            pass
        self._client.close()

    def _read(self) -> bool:
        """Judges what has come; whether PINGRESP was there."""
        more = self._client.stream.recv(65_536)
        assert more, "closed by the server"
        data, at, was_pinged = self._unread + more, 0, False
        while len(data) - at >= len(PINGRESP):
            if data.startswith(PINGRESP, at):
                at, was_pinged = at + len(PINGRESP), True
            elif len(data) - at >= self.size:
                self._judge(data[at : at + self.size])
                at += self.size
            else:
                break
        self._unread = data[at:]
        return was_pinged

    def _judge(self, packet: bytes) -> None:
        head, packet_id, number = packet[0], int.from_bytes(packet[-10:-8], "big"), int(packet[-8:])
        assert head in (PUBLISH, PUBLISH_AGAIN), packet
        if self._again:
            assert (head, packet_id, number) == (PUBLISH_AGAIN, *self._again.pop(0))
            self.repeated += 1
            return
        # DUP or not: it may have been on its way when the connection before was cut.
        assert number == self.seen, f"{number} comes where {self.seen} should"
        assert packet_id == self._next_id(), f"{packet_id} is given behind {self.last_id}"
        self.wraps += packet_id < self.last_id
        self.seen, self.last_id = number + 1, packet_id
        self.in_flight[packet_id] = number

    def _next_id(self) -> int:
        """The next one that is free, never 0 [MQTT-2.2.1-4]."""
        wanted = self.last_id % LAST_ID + 1
        while wanted in self.in_flight:
            wanted = wanted % LAST_ID + 1
        return wanted

    def acknowledge(self, leave: int) -> None:
        """The oldest that are not kept back, all but so many."""
        ready = [one for one, number in self.in_flight.items() if number not in self.kept_back]
        done = ready[: max(0, len(ready) - leave)]
        self._client.send_raw(b"".join(b"\x40\x02" + one.to_bytes(2, "big") for one in done))
        for packet_id in done:
            del self.in_flight[packet_id]


def publish_round(publisher: RawClient, topic: str, first: int) -> None:
    """PER_ROUND messages, acknowledged in their order."""
    for start in range(first, first + PER_ROUND, AT_ONCE):
        ids = range(1, 1 + AT_ONCE)
        publisher.send_raw(b"".join(ForgetfulDevice.pack(topic, start + one - 1, one) for one in ids))
        expected = b"".join(b"\x40\x02" + one.to_bytes(2, "big") for one in ids)
        answer = b""
        publisher.stream.settimeout(publisher.timeout)
        while len(answer) < len(expected):
            answer += publisher.stream.recv(65_536) or pytest.fail("closed by the server")
        assert answer == expected


@pytest.mark.slow
def test_ids_start_again_while_the_client_comes_and_goes(broker: DeviceBroker, connect: Connect, topic: str) -> None:
    """The issue: packet-id wrap with 100,000 stored messages across many reconnects."""
    chance = random.Random(6)
    total = ROUNDS * PER_ROUND
    client = connect(V311, DEVICE, **persistent(V311))
    client.subscribe(topic, qos=1)
    client.disconnect()
    publisher, device = connect(V311), ForgetfulDevice(topic)
    for first in range(0, total, PER_ROUND):
        device.kept_back.update(chance.sample(range(first, first + PER_ROUND), KEPT_BACK))
        publish_round(publisher, topic, first)
        broker.await_stored(DEVICE, len(device.in_flight) + PER_ROUND)
        # It goes in the middle of its backlog, with messages in flight that it has not acknowledged.
        for until in (first + chance.randrange(PER_ROUND), first + PER_ROUND):
            device.returns(broker.client(V311))
            device.take(until)
            if until == first + PER_ROUND:
                device.acknowledge(leave=0)
            device.cut()
        broker.await_stored(DEVICE, len(device.in_flight))
    assert device.seen == total
    assert device.wraps == total // LAST_ID
    assert sorted(device.in_flight.values()) == sorted(device.kept_back)
    assert device.repeated > ROUNDS * ROUNDS * KEPT_BACK  # in flight over all those connections
    device.returns(broker.client(V311))
    device.kept_back.clear()
    device.take(total)
    device.acknowledge(leave=0)
    device.cut()
    broker.await_stored(DEVICE, 0)
