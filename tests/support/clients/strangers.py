"""Servers that are not what somebody took them for: each answers every connection in its own wrong way."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

LONGEST = 60.0  # that one waits for its client to go


def _answer(reply: bytes) -> Callable[[socket.socket], None]:
    def serve(client: socket.socket) -> None:
        client.recv(1_000)
        client.sendall(reply)

    return serve


def _greet(client: socket.socket) -> None:
    client.sendall(b"220 mail.example ESMTP\r\n")
    _say_nothing(client)


def _say_nothing(client: socket.socket) -> None:
    while client.recv(1_000):
        pass


def _close(_client: socket.socket) -> None:
    pass


STRANGERS: dict[str, Callable[[socket.socket], None]] = {
    "http": _answer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"),
    "mail": _greet,
    "hangs": _say_nothing,
    "closes": _close,
    # RESP, but not what was asked for
    "number": _answer(b":5\r\n" * 4),
    "word": _answer(b"+OK\r\n" * 4),
}


@contextlib.contextmanager
def stranger(kind: str) -> Iterator[int]:
    """The port it listens on."""
    serve = STRANGERS[kind]

    def talk(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(LONGEST)
            serve(client)

    def accept() -> None:
        with contextlib.suppress(OSError):  # closed at the end
            while True:
                threading.Thread(target=talk, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)  # wakes accept
    thread.join()
