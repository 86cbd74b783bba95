"""A broker for publishers and one subscriber that mistreats messages: the load generator sees it."""

import socket
import threading
from collections.abc import Callable
from typing import Self

CONNECT, PUBLISH, PUBREC, PUBREL, SUBSCRIBE = 1, 3, 5, 6, 8
Packets = list[bytes]


def split_packets(data: bytes) -> tuple[Packets, bytes]:
    """Whole packets and the incomplete rest; remaining lengths of one byte are enough for these tests."""
    packets = []
    while len(data) >= 2 and len(data) >= 2 + data[1]:
        packets.append(data[: 2 + data[1]])
        data = data[2 + data[1] :]
    return packets, data


def forward(packets: Packets) -> Packets:
    return packets


def as_it_is(answer: bytes) -> bytes:
    return answer


class FaultyBroker:
    """Forwards a `group` of PUBLISH packets at a time after `mistreat` has changed the list of them; after so many
    `lies` it passes them on as they come. `answer` changes each PUBACK, PUBREC and PUBCOMP."""

    def __init__(
        self,
        mistreat: Callable[[Packets], Packets] = forward,
        lies: int = 1_000,
        group: int = 10,
        answer: Callable[[bytes], bytes] = as_it_is,
    ):
        self._mistreat = mistreat
        self._answer = answer
        self._group = group
        self._lock = threading.Lock()  # publishers are served by a thread each
        self._lies = lies
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._is_v5 = False
        self._subscriber: socket.socket | None = None
        self._held: Packets = []
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for connection in self._open:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        rest = b""
        try:
            while data := connection.recv(65_536):
                packets, rest = split_packets(rest + data)
                for packet in packets:
                    with self._lock:
                        self._handle(connection, packet)
        except OSError:
            return

    def _handle(self, connection: socket.socket, packet: bytes) -> None:
        kind = packet[0] >> 4
        if kind == CONNECT:
            self._is_v5 = packet[8] == 5
            connection.sendall(b"\x20\x03\x00\x00\x00" if self._is_v5 else b"\x20\x02\x00\x00")  # CONNACK, accepted
        elif kind == SUBSCRIBE:
            self._subscriber = connection
            body = packet[2:4] + (b"\x00" if self._is_v5 else b"") + packet[-1:]
            connection.sendall(bytes((0x90, len(body))) + body)  # SUBACK, the QoS that was asked for
        elif kind == PUBREC:
            connection.sendall(b"\x62\x02" + packet[2:4])  # PUBREL
        elif kind == PUBREL:
            connection.sendall(self._answer(b"\x70\x02" + packet[2:4]))  # PUBCOMP
        elif kind == PUBLISH:
            if packet[0] & 6:
                id_at = 4 + int.from_bytes(packet[2:4])
                answer = b"\x40\x02" if packet[0] & 2 else b"\x50\x02"  # PUBACK, PUBREC
                connection.sendall(self._answer(answer + packet[id_at : id_at + 2]))
            self._held.append(packet)
            if self._subscriber and not self._lies:
                self._subscriber.sendall(self._held.pop())
            elif self._subscriber and len(self._held) == self._group:
                self._lies -= 1
                self._subscriber.sendall(b"".join(self._mistreat(self._held)))
                self._held = []
