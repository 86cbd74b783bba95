"""Workers and readers of queues that live through the ends of their broker, and the ledger that judges what they saw.

A delivery is known by its offset and its number: which time the message is given to the group. So a packet that a slow
worker reads late is told from one that was sent although the message was settled.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.clients.packets import Packet, PacketType, pack_publish
from tests.support.clients.publishers import Publisher
from tests.support.clients.raw_client import ClosedByServer, NothingCame, RawClient
from tests.support.worlds.queues import Delivery, QueueBroker

PUBACK = PacketType.PUBACK


@dataclass
class QueuePublisher(Publisher):
    """Numbered messages to a queue."""

    queue: str = "work"

    @property
    def topic(self) -> str:
        return f"$queue/{self.queue}/{self.name}"


@dataclass
class Ledger:
    """What all workers of one group saw and settled."""

    deliveries: Counter[tuple[int, int]] = field(default_factory=Counter)  # (offset, number)
    payloads: dict[int, bytes] = field(default_factory=dict)  # by offset
    settled: dict[int, tuple[str, int]] = field(default_factory=dict)  # by offset: verb and number, as answered
    tried: dict[str, set[int]] = field(default_factory=lambda: {"ack": set(), "nack": set(), "reject": set()})
    refused: list[tuple[str, int, int]] = field(default_factory=list)  # verb, offset, number
    errors: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def delivered(self, delivery: Delivery) -> None:
        offset, number = delivery.offset, delivery.count
        with self._lock:
            self.deliveries[offset, number] += 1
            if self.deliveries[offset, number] > 1:
                self.errors.append(f"delivery {number} of offset {offset} came twice")
            if self.payloads.setdefault(offset, delivery.payload) != delivery.payload:
                self.errors.append(f"offset {offset} has two payloads")
            verb, settled_at = self.settled.get(offset, ("", number))
            if number > settled_at and verb != "nack":
                self.errors.append(
                    f"offset {offset} came again ({number}) after its {verb} ({settled_at}) was answered"
                )

    def trying(self, verb: str, delivery: Delivery) -> None:
        with self._lock:
            self.tried[verb].add(delivery.offset)

    def answered(self, verb: str, delivery: Delivery, reason: int) -> None:
        with self._lock:
            if reason == 0:
                self.settled[delivery.offset] = (verb, delivery.count)
            else:
                self.refused.append((verb, delivery.offset, delivery.count))

    def unfounded(self) -> list[str]:
        """Settlements that were refused though the message was not given to anybody after that. A worker that is slow
        may have two deliveries of one message: the first settles it, as the message is the worker's, the second is
        refused then."""
        last: dict[int, int] = {}
        for offset, number in self.deliveries:
            last[offset] = max(number, last.get(offset, 0))
        return [
            f"${verb} of offset {offset} ({number}) was refused though nobody got it after that"
            for verb, offset, number in self.refused
            if last[offset] <= number and not self._is_done_before(offset, number)
        ]

    def _is_done_before(self, offset: int, number: int) -> bool:
        """By an earlier delivery."""
        verb, settled_at = self.settled.get(offset, ("nack", number))
        return verb != "nack" and settled_at < number

    def done(self) -> set[bytes]:
        """Payloads that were acknowledged or rejected, or may be: a kill may have met the answer on its way."""
        with self._lock:
            return {self.payloads[offset] for offset in self.tried["ack"] | self.tried["reject"]}

    def highest_number(self) -> int:
        with self._lock:
            return max((number for _, number in self.deliveries), default=0)


class Client:
    """A thread with a connection that it opens again when it ends."""

    def __init__(self, broker: QueueBroker, name: str) -> None:
        self.broker = broker
        self.name = name
        self.errors: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive(), f"{self.name} hangs"

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self.broker.client(5) as client:
                    client.connect(self.name)
                    self.begin(client)
                    while not self._stop.is_set():
                        self.turn(client)
            except (OSError, ClosedByServer, NothingCame):
                time.sleep(0.05)
            except AssertionError as error:  # an answer that no broker may give
                if self.broker.is_alive:
                    self.errors.append(str(error))
                    return
                time.sleep(0.05)

    def begin(self, client: RawClient) -> None:
        raise NotImplementedError

    def turn(self, client: RawClient) -> None:
        raise NotImplementedError


class Worker(Client):
    """Of a classic queue: settles what it gets, one way or another and not always."""

    def __init__(
        self,
        broker: QueueBroker,
        name: str,
        queue: str,
        ledger: Ledger,
        *,
        choose: Callable[[random.Random], str],
        seed: int = 0,
        prefetch: int = 50,
    ) -> None:
        super().__init__(broker, name)
        self.queue, self.ledger, self.choose, self.prefetch = queue, ledger, choose, prefetch
        self._chance = random.Random(seed)
        self._held: list[Delivery] = []
        self._waiting: dict[int, tuple[str, Delivery]] = {}
        self.prompt = threading.Event()

    def begin(self, client: RawClient) -> None:
        self._held.clear()
        self._waiting.clear()
        pairs = [("consumer-group", "workers"), ("prefetch", str(self.prefetch))]
        reasons = client.subscribe(f"$queue/{self.queue}/#", qos=1, properties={"user_property": pairs})
        assert reasons == [1], f"SUBACK {reasons}"

    def turn(self, client: RawClient) -> None:
        try:
            packet = client.receive(0.05)
        except NothingCame:
            self._settle(client, len(self._held))
            return
        if packet.type == PacketType.PUBLISH:
            delivery = Delivery(packet, time.monotonic())
            self.ledger.delivered(delivery)
            client.ack(packet)
            self._held.append(delivery)
        elif packet.type == PUBACK:
            self._take_answer(packet)
        elif packet.type == PacketType.DISCONNECT:
            raise ClosedByServer(f"{packet}")
        if len(self._held) >= (1 if self.prompt.is_set() else self._chance.randrange(1, 20)):
            self._settle(client, self._chance.randrange(1, len(self._held) + 1))

    def _take_answer(self, packet: Packet) -> None:
        verb, delivery = self._waiting.pop(packet.packet_id or 0)
        reason = 0 if packet.reason is None else packet.reason
        self.ledger.answered(verb, delivery, reason)

    def _settle(self, client: RawClient, count: int) -> None:
        """In one write, in any order."""
        self._chance.shuffle(self._held)
        packets = []
        for _ in range(count):
            delivery = self._held.pop()
            verb = "ack" if self.prompt.is_set() else self.choose(self._chance)
            if verb == "forget":
                continue
            packet_id = client.new_packet_id()
            self._waiting[packet_id] = (verb, delivery)
            self.ledger.trying(verb, delivery)
            pairs = [("message-id", delivery.message_id), ("group-id", "workers")]
            packets.append(
                pack_publish(
                    5,
                    f"$queue/{self.queue}/${verb}",
                    qos=1,
                    packet_id=packet_id,
                    properties={"user_property": pairs},
                )
            )
        if packets:
            client.send_raw(b"".join(packets))


class StreamReader(Client):
    """Commits now and then; after each beginning it must be where its last commit was, and nothing may be missing."""

    def __init__(self, broker: QueueBroker, name: str, queue: str, seed: int = 0) -> None:
        super().__init__(broker, name)
        self.queue = queue
        self.payloads: dict[int, bytes] = {}
        self.beginnings = 0
        self._chance = random.Random(seed)
        self._last: int | None = None
        self._committed = 0  # as answered
        self._tried = 0

    def begin(self, client: RawClient) -> None:
        self._last = None
        pairs = [("consumer-group", "readers"), ("x-auto-commit", "false")]
        reasons = client.subscribe(f"$queue/{self.queue}", qos=1, properties={"user_property": pairs})
        assert reasons == [1], f"SUBACK {reasons}"

    def turn(self, client: RawClient) -> None:
        try:
            packet = client.receive(0.05)
        except NothingCame:
            return
        if packet.type == PacketType.DISCONNECT:
            raise ClosedByServer(f"{packet}")
        delivery = Delivery(packet, time.monotonic())
        client.ack(packet)
        self._judge(delivery)
        if self._chance.random() < 0.1:
            self._commit(client, delivery.offset)

    def _judge(self, delivery: Delivery) -> None:
        offset = delivery.offset
        if self._last is None:
            self.beginnings += 1
            if not self._committed <= offset <= max(self._tried, self._committed):
                self.errors.append(f"began at {offset}, committed was {self._committed}, tried {self._tried}")
        elif offset != self._last + 1:
            self.errors.append(f"offset {offset} after {self._last}")
        self._last = offset
        if self.payloads.setdefault(offset, delivery.payload) != delivery.payload:
            self.errors.append(f"offset {offset} has two payloads")

    def _commit(self, client: RawClient, offset: int) -> None:
        self._tried = offset + 1
        pairs = [("x-group-id", "readers"), ("x-offset", str(offset))]
        properties = {"user_property": pairs}
        answer = client.publish(f"$queue/{self.queue}/$commit", b"", qos=1, properties=properties)
        assert answer is not None
        if answer.reason:
            self.errors.append(f"commit of {offset} refused: {answer}")
        self._committed = offset + 1
