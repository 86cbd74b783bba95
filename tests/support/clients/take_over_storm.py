"""Clients that fight for a few client ids: at one broker or several, with everything a session can hold in flight."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Sequence

from tests.support.clients.packets import V5, PacketType, pack_ack, pack_publish, pack_subscribe
from tests.support.clients.raw_client import ClosedByServer, NothingCame, RawClient
from tests.support.clients.streams import open_tcp
from tests.support.clients.wire_types import WireError

Address = tuple[str, int]


class Storm:
    """Threads that connect with the same few ids, subscribe, publish, acknowledge what was never sent, and vanish."""

    def __init__(self, addresses: Sequence[Address], prefix: str, *, ids: int = 6, threads: int = 6) -> None:
        self._addresses = addresses
        self._prefix = prefix
        self._ids = ids
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(seed,)) for seed in range(threads)]
        self.connected = 0

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        time.sleep(seconds)
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop.is_set():
            with contextlib.suppress(OSError, ClosedByServer, NothingCame, WireError):
                self._live(chance)

    def _live(self, chance: random.Random) -> None:
        kind = chance.choice(["client", "app"])
        with RawClient(open_tcp(chance.choice(self._addresses)), V5, timeout=3.0) as client:
            client.send_connect(
                f"{kind}{self._prefix}{chance.randrange(self._ids)}",
                clean_start=chance.random() < 0.1,
                properties={"session_expiry_interval": chance.choice([0, 60, 60, 60])},
            )
            client.send_raw(self._traffic(chance))
            if client.receive().type is PacketType.CONNACK:
                self.connected += 1
            for _ in range(chance.randrange(20)):
                client.send_raw(self._traffic(chance))
                if chance.random() < 0.5:
                    client.receive(0.05)

    def _traffic(self, chance: random.Random) -> bytes:
        """A few packets in one write: those behind the one that ends the session are parsed in the same turn."""
        topic = f"storm/{self._prefix}/{chance.randrange(3)}"
        filters = [f"storm/{self._prefix}/#", f"$share/g/storm/{self._prefix}/+", f"$queue/storm{self._prefix}/#"]
        packets = []
        for _ in range(chance.randrange(1, 6)):
            number = chance.randrange(1, 30)
            acknowledged = chance.choice([PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP])
            packets.append(
                chance.choice(
                    [
                        pack_ack(acknowledged, V5, number),
                        pack_publish(V5, topic, b"x" * chance.randrange(200), qos=1, packet_id=number),
                        pack_publish(V5, topic, b"y", qos=2, packet_id=number),
                        pack_publish(V5, f"$queue/storm{self._prefix}/a", b"z", qos=1, packet_id=number),
                        pack_subscribe(V5, number, [(chance.choice(filters), chance.choice([1, 2]))]),
                    ]
                )
            )
        return b"".join(packets)
