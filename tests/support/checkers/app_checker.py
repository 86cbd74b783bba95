"""A client that lives through the ends of its broker, and the check that it got everything once and in order.

What it has received and acknowledged it remembers over its connections, as an MQTT client does, so that each packet of
the broker can be judged: is a repetition marked with DUP and under the same packet id, is no id given to two messages
at a time, is no QoS 2 message handed on twice.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import cast

from tests.support.clients.packets import V5, Packet, PacketType
from tests.support.clients.publishers import Publisher
from tests.support.clients.raw_client import ClosedByServer, NothingCame, RawClient
from tests.support.worlds.application import AppBroker, persistent, until

PUBACK, PUBREC, PUBREL, PUBCOMP = PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP
MOST_HELD = 150


def await_deliveries(subscribers: Sequence[Subscriber], least: int = 10) -> None:
    """Until they got so many more, together. A broker that was started again may take its time on a busy machine."""

    def count() -> int:
        return sum(len(subscriber.delivered) + subscriber.repeated for subscriber in subscribers)

    before = count()
    until(lambda: count() >= before + least or any(one.errors for one in subscribers), 60, "some deliveries")


@dataclass
class Subscriber:
    """Receives in a thread of its own, holds acknowledgements back for a while, and returns when it is cut off."""

    broker: AppBroker
    client_id: str
    version: int
    qos: int
    filters: tuple[str, ...]
    seed: int = 0
    delivered: list[bytes] = field(default_factory=list)  # handed on to the application, in order
    repeated: int = 0
    connections: int = 0
    errors: list[str] = field(default_factory=list)
    refusals: list[int] = field(default_factory=list)  # reasons of the CONNACKs that let it wait

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)
        self._ids: dict[bytes, int] = {}  # of everything delivered: the packet id it came with
        self._open: dict[int, bytes] = {}  # received and, by what this client knows, not yet done
        self._held: deque[Packet] = deque()
        self._client: RawClient | None = None
        self._stop = threading.Event()
        self._subscribed = threading.Event()
        self._prompt = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.client_id)

    def start(self) -> None:
        self._thread.start()

    def acknowledge_at_once(self) -> None:
        self._prompt.set()

    def await_subscribed(self, seconds: float = 60.0) -> None:
        deadline = time.monotonic() + seconds
        while not self._subscribed.is_set():
            assert not self.errors, self.errors
            assert time.monotonic() < deadline, f"{self.client_id} does not get in: {self.refusals[-3:]}"
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), f"subscriber {self.client_id} hangs"

    def cut_off(self) -> None:
        """Ends its connection under it; it returns by itself."""
        if self._client is not None:
            with contextlib.suppress(OSError):
                cast(socket.socket, self._client.stream).shutdown(socket.SHUT_RDWR)

    def id_of(self, payload: bytes) -> int | None:
        """The packet id under which the message came first."""
        return self._ids.get(payload)

    def await_payloads(self, payloads: Iterable[bytes], seconds: float) -> None:
        """Until all of these were delivered; what is missing then is told by the check."""
        wanted = set(payloads)
        deadline = time.monotonic() + seconds
        while wanted - self._ids.keys() and time.monotonic() < deadline and not self.errors:
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self.broker.client(self.version) as client:
                    self._client = client
                    self._connect(client)
                    while not self._stop.is_set():
                        self._take(client)
                    self._acknowledge(client, len(self._held))
            except (OSError, ClosedByServer, NothingCame):
                self._held.clear()
                self._rest()
            except AssertionError as error:  # a packet that no server may send
                self.errors.append(str(error))
                return

    def _rest(self) -> None:
        time.sleep(0.05)

    def _connect(self, client: RawClient) -> None:
        client.send_connect(self.client_id, **persistent(self.version))
        connack = client.expect(PacketType.CONNACK)
        if connack.reason:
            self.refusals.append(connack.reason)
            raise ClosedByServer(f"{connack}")
        if self.connections and not connack.session_present:
            self.errors.append("the session is gone")
        self.connections += 1
        if not connack.session_present:
            client.subscribe(*self.filters, qos=self.qos)
        self._subscribed.set()

    def _take(self, client: RawClient) -> None:
        try:
            packet = client.receive(0.1)
        except NothingCame:
            self._acknowledge(client, len(self._held) if self._prompt.is_set() else len(self._held) // 2)
            return
        if packet.type == PacketType.PUBLISH:
            self._on_publish(packet)
            self._held.append(packet)
        elif packet.type == PUBREL:
            self._on_pubrel(client, packet.packet_id or 0)
        elif packet.type == PacketType.DISCONNECT:
            raise ClosedByServer(f"{packet}")
        most = 1 if self._prompt.is_set() else self._chance.randrange(1, MOST_HELD)
        if len(self._held) >= most:
            self._acknowledge(client, self._chance.randrange(1, len(self._held) + 1))

    def _on_publish(self, packet: Packet) -> None:
        packet_id, payload = packet.packet_id or 0, packet.payload or b""
        known = self._open.get(packet_id)
        if known is not None and known != payload:
            self.errors.append(f"id {packet_id} of {known[:20]!r}, which is not done, was given to {payload[:20]!r}")
        first_id = self._ids.get(payload)
        if first_id is None:
            self._ids[payload] = packet_id
            self._open[packet_id] = payload
            self.delivered.append(payload)
            return
        self.repeated += 1
        if not packet.dup:
            self.errors.append(f"{payload[:20]!r} came again without DUP")
        if first_id != packet_id:
            self.errors.append(f"{payload[:20]!r} came again under id {packet_id} instead of {first_id}")
        if packet.qos == 2 and known is None:
            self.errors.append(f"{payload[:20]!r} came again after its PUBREL")
        self._open[packet_id] = payload

    def _on_pubrel(self, client: RawClient, packet_id: int) -> None:
        client.send_ack(PUBCOMP, packet_id)
        self._open.pop(packet_id, None)

    def _acknowledge(self, client: RawClient, count: int) -> None:
        """In the order of the publishes [MQTT-4.6.0-2] [MQTT-4.6.0-3]."""
        for _ in range(count):
            packet = self._held.popleft()
            packet_id = packet.packet_id or 0
            if packet.qos == 1:
                client.send_ack(PUBACK, packet_id)
                self._open.pop(packet_id, None)
            elif packet.qos == 2:
                client.send_ack(PUBREC, packet_id)


def numbers_by_publisher(payloads: Iterable[bytes]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = {}
    for payload in payloads:
        name, number = payload.split(b" ")[:2]
        numbers.setdefault(name.decode(), []).append(int(number))
    return numbers


def check_delivered(subscriber: Subscriber, publishers: Iterable[Publisher], note: str = "") -> None:
    """Everything acknowledged has come, once, in the order of its publisher, and nothing that nobody sent."""
    assert not subscriber.errors, f"{subscriber.client_id}: {subscriber.errors[:5]} {note}"
    delivered = numbers_by_publisher(subscriber.delivered)
    everything = set(subscriber.delivered)
    assert len(everything) == len(subscriber.delivered), f"handed on twice {note}"
    for publisher in publishers:
        assert not publisher.order_errors
        lost = publisher.acknowledged - everything
        assert not lost, (
            f"{len(lost)} acknowledged messages of {publisher.name} did not come to {subscriber.client_id} "
            f"(MQTT {subscriber.version}, QoS {subscriber.qos}): {sorted(lost)[:3]} {note}"
        )
        numbers = delivered.pop(publisher.name, [])
        # what was refused was not promised, and may have been written all the same
        may_miss = {number for each in numbers_by_publisher(publisher.refused).values() for number in each}
        expected = sorted({*range(max(numbers, default=-1) + 1)} - (may_miss - set(numbers)))
        assert numbers == expected, f"a gap or another order in what {publisher.name} sent {note}"
        assert len(numbers) <= publisher.sent
    assert not delivered, f"messages of nobody: {sorted(delivered)} {note}"


def version_of(number: int) -> int:
    """3.1.1 and 5 in turn."""
    return (4, V5)[number % 2]
