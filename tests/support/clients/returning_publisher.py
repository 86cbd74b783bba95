"""A publisher with a session, which comes back after every loss of its connection and sends again what was not
acknowledged: in the order in which it was sent, before anything new."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field

from tests.support.brokers.broker import Broker
from tests.support.clients.packets import PacketType, pack_publish
from tests.support.clients.raw_client import ClosedByServer, NothingCame, RawClient
from tests.support.worlds.application import persistent

RETRY_SECONDS = 0.05
UNAVAILABLE = (0x03, 0x88)  # "server unavailable" of MQTT 3 and 5


@dataclass(slots=True)
class _Message:
    topic: str
    payload: bytes
    is_received: bool = False  # PUBREC came


@dataclass
class ReturningPublisher:
    """Sends numbered messages to `topics` in turn; a payload is the publisher's name and a number of its topic."""

    broker: Broker
    name: str
    version: int
    qos: int
    topics: tuple[str, ...]
    window: int = 40
    acknowledged: set[tuple[str, bytes]] = field(default_factory=set)
    sent_again: int = 0
    connections: int = 0
    _open: dict[int, _Message] = field(default_factory=dict)  # by packet id, in the order in which they were sent
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._sent = 0
        self._packet_id = 0
        self._is_abandoned = False

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """Returns when everything that was sent is acknowledged."""
        self._stop.set()
        self._thread.join(180)
        assert not self._thread.is_alive(), f"publisher {self.name} hangs"

    def abandon(self) -> None:
        """Stop now, whatever is not acknowledged."""
        self._stop.set()
        self._is_abandoned = True
        if self._thread.ident is not None:
            self._thread.join(60)

    @property
    def _has_more(self) -> bool:
        return not self._is_abandoned and (bool(self._open) or not self._stop.is_set())

    def _run(self) -> None:
        while self._has_more:
            with contextlib.suppress(OSError, ClosedByServer, NothingCame), self.broker.client(self.version) as client:
                self._connect(client)
                self._send_again(client)
                while self._has_more:
                    self._fill(client)
                    self._take_answer(client)
            time.sleep(RETRY_SECONDS)

    def _connect(self, client: RawClient) -> None:
        """A broker whose log or store is away refuses for now, and the publisher tries again."""
        client.send_connect(self.name, **persistent(self.version))
        connack = client.expect(PacketType.CONNACK)
        if connack.reason in UNAVAILABLE:
            raise ClosedByServer(f"{connack}")
        assert connack.reason == 0, connack
        self.connections += 1

    def _send_again(self, client: RawClient) -> None:
        for packet_id, message in self._open.items():
            self.sent_again += 1
            if message.is_received:
                client.send_ack(PacketType.PUBREL, packet_id)
            else:
                client.send_raw(self._pack(packet_id, message, dup=True))

    def _fill(self, client: RawClient) -> None:
        packets = []
        while len(self._open) < self.window and not self._stop.is_set():
            self._packet_id = self._packet_id % 65_535 + 1
            turn, at = divmod(self._sent, len(self.topics))
            message = self._open[self._packet_id] = _Message(self.topics[at], f"{self.name} {turn}".encode())
            packets.append(self._pack(self._packet_id, message))
            self._sent += 1
        if packets:
            client.send_raw(b"".join(packets))

    def _pack(self, packet_id: int, message: _Message, *, dup: bool = False) -> bytes:
        return pack_publish(self.version, message.topic, message.payload, qos=self.qos, packet_id=packet_id, dup=dup)

    def _take_answer(self, client: RawClient) -> None:
        packet = client.receive()
        if packet.type == PacketType.DISCONNECT:
            raise ClosedByServer(f"{packet}")
        packet_id = packet.packet_id or 0
        # The answer to a PUBREL that the broker had already carried out before it was killed says that it knows no id.
        assert packet.reason is None or packet.reason < 0x80 or packet.type == PacketType.PUBCOMP, packet
        if packet.type == PacketType.PUBREC:
            self._open[packet_id].is_received = True
            client.send_ack(PacketType.PUBREL, packet_id)
        else:
            message = self._open.pop(packet_id)
            self.acknowledged.add((message.topic, message.payload))
