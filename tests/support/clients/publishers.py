"""Publishers under load that remember what was acknowledged, whatever happens to the broker meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field

from tests.support.brokers.broker import Broker
from tests.support.clients.packets import PacketType, pack_publish
from tests.support.clients.raw_client import ClosedByServer, NothingCame, RawClient


@dataclass
class Publisher:
    """Sends numbered messages to a topic of its own with a window of unacknowledged ones, until it is cut off."""

    broker: Broker
    name: str
    version: int
    qos: int
    window: int = 50
    size: int = 40
    sent: int = 0
    acknowledged: set[bytes] = field(default_factory=set)
    refused: set[bytes] = field(default_factory=set)
    order_errors: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._waiting: deque[tuple[int, bytes]] = deque()

    @property
    def topic(self) -> str:
        return f"load/{self.name}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def join(self) -> None:
        self._thread.join(120)
        assert not self._thread.is_alive(), f"publisher {self.name} hangs"

    def _run(self) -> None:
        try:
            with self.broker.client(self.version) as client:
                client.connect(self.name)
                while not self._stop.is_set():
                    self._fill(client)
                    self._take_answer(client)
                while self._waiting:
                    self._take_answer(client)
        except (OSError, ClosedByServer, NothingCame):
            pass  # the broker is gone: what was not acknowledged was not promised

    def _fill(self, client: RawClient) -> None:
        """Tops the window up, in one write."""
        packets = []
        while len(self._waiting) < self.window:
            payload = f"{self.name} {self.sent} ".encode().ljust(self.size, b".")
            packet_id = client.new_packet_id()
            packets.append(pack_publish(self.version, self.topic, payload, qos=self.qos, packet_id=packet_id))
            self._waiting.append((packet_id, payload))
            self.sent += 1
        client.send_raw(b"".join(packets))

    def _take_answer(self, client: RawClient) -> None:
        """Answers come in the order of the publishes [MQTT-4.6.0-2] [MQTT-4.6.0-3]."""
        packet = client.receive()
        if packet.type == PacketType.PUBCOMP:
            return
        if packet.type == PacketType.DISCONNECT:
            raise ClosedByServer(f"{packet}")
        packet_id, payload = self._waiting.popleft()
        if packet.packet_id != packet_id:
            self.order_errors.append(f"{packet} where {packet_id} was the next")
        if packet.reason is not None and packet.reason < 0x80:
            self.acknowledged.add(payload)
        else:
            self.refused.add(payload)
        if packet.type == PacketType.PUBREC:
            client.send_ack(PacketType.PUBREL, packet.packet_id or 0)
