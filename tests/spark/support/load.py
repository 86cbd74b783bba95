"""Load on a broker while Spark reads its log: a stream of publishes, and probes that say how long one takes."""

from __future__ import annotations

import socket
import statistics
import threading
import time

BLOCK = 500
PAYLOAD = 99


def _connect(port: int, name: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    body = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name
    connection.sendall(bytes([0x10, len(body)]) + body)
    connection.recv(4)
    return connection


class Publisher(threading.Thread):
    """QoS 0 publishes of one connection, `rate` a second as long as the broker takes them."""

    def __init__(self, port: int, rate: int = 50_000) -> None:
        super().__init__(daemon=True)
        self._port, self._rate = port, rate
        self.sent = 0
        self.is_running = True

    def run(self) -> None:
        packets = b"".join(b"\x30\x6a\x00\x05a/%03d" % number + (b"%099d" % number) for number in range(BLOCK))
        with _connect(self._port, b"load") as connection:
            started = time.monotonic()
            while self.is_running:
                connection.sendall(packets)
                self.sent += BLOCK
                time.sleep(max(0.0, started + self.sent / self._rate - time.monotonic()))
            # QoS 0 is on its way when the broker answers what was sent after it
            connection.settimeout(60)
            connection.sendall(b"\xc0\x00")
            connection.recv(2)


class Probe(threading.Thread):
    """A QoS 1 publish every few milliseconds, and how long its acknowledgement took: it comes when the log has it."""

    def __init__(self, port: int, pause: float = 0.005) -> None:
        super().__init__(daemon=True)
        self._port, self._pause = port, pause
        self.seconds: list[float] = []
        self.is_running = True

    def run(self) -> None:
        with _connect(self._port, b"probe") as connection:
            while self.is_running:
                started = time.perf_counter()
                connection.sendall(b"\x32\x08\x00\x03p/0\x00\x01x")
                if connection.recv(4) != b"\x40\x02\x00\x01":
                    return
                self.seconds.append(time.perf_counter() - started)
                time.sleep(self._pause)

    def percentile(self, percent: int, since: int = 0) -> float:
        """In milliseconds, of the probes from that one on."""
        return statistics.quantiles(self.seconds[since:], n=100)[percent - 1] * 1000
