"""The end of NOTIFY_SOCKET where systemd listens."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 60.0


class NotifySocket:
    """Takes the datagrams of one service; each is a table of its lines. They are read as they come: the kernel keeps
    few, and a service does not wait for room."""

    def __init__(self, path: Path | str) -> None:
        self.name = str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.name[1:] if self.name.startswith("@") else self.name)
        self._said: queue.Queue[dict[str, str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while datagram := self._socket.recv(4096):
            self._said.put(dict(line.split("=", 1) for line in datagram.decode().split("\n")))

    def receive(self) -> dict[str, str]:
        return self._said.get(timeout=SECONDS)

    def wait_for(self, is_wanted: Callable[[dict[str, str]], bool]) -> dict[str, str]:
        """The first that is wanted, however many others come before."""
        deadline = time.monotonic() + SECONDS
        seen = []
        while time.monotonic() < deadline:
            seen.append(self.receive())
            if is_wanted(seen[-1]):
                return seen[-1]
        raise AssertionError(f"it did not come: {seen[-20:]}")

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RD)
        self._reader.join(SECONDS)
        self._socket.close()
