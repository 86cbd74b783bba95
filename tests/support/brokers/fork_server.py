"""The process behind forked.py: has Penstock's modules loaded, and forks a `python -m penstock` for each request.

A request is JSON with its length in front of it, together with the files for standard input, output and error. The
answer is the number of the new process, eight digits of hex.

The tests ask through the socket that this process was started with. What is forked for them is forked twice, so that
the one that asked becomes its parent, as if it had started it itself (it is the reaper of what its children leave
behind). Scripts connect to a unix socket, are told the exit code in the end, and take the process along when they go.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module
from typing import Any

from penstock.cli.app import COMMANDS

# What `penstock serve` imports when it starts, and later as its settings ask; and all other commands but Spark's.
MODULES = (
    "penstock.__main__",
    *(module for name, (module, _) in COMMANDS.items() if name != "spark"),
    "penstock.cli.serving",
    "penstock.operate.http.api",
    "penstock.operate.collector",
    "penstock.operate.http.overview",
    "penstock.operate.http.pages",
    "penstock.subscribers.query.sql.query",
    "penstock.subscribers.query.sql.reader",
    "penstock.storage.log.kafka.log",
    "penstock.subscribers.device.store.redis.store",
    "uvicorn",
)
HEADER = 8


def receive_request(server: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """None when nobody is left who could ask."""
    header, files, _, _ = socket.recv_fds(server, HEADER, 3)
    if not header:
        return None
    left = int(header, 16)
    text = b""
    while left > len(text):
        text += server.recv(left - len(text))
    return json.loads(text), files


def load() -> None:
    """Everything that is the same for all of them: the modules, and what is known of the settings once it was asked."""
    for name in MODULES:
        import_module(name)
    with contextlib.redirect_stdout(io.StringIO()):
        assert import_module("penstock.__main__").main(["check-config"]) == 0
    del sys.modules["penstock.__main__"]  # each runs it for itself


def become(request: dict[str, Any], files: list[int]) -> None:
    """From here on the process is what was asked for."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    for file in files:
        os.close(file)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", write_through=True)
    sys.argv[1:] = request["arguments"]
    sys.path[0] = request["directory"]
    gc.enable()
    runpy.run_module("penstock", run_name="__main__", alter_sys=True)


class ForkServer:
    """`serve` returns in a process that was forked, too, with what it is to become."""

    def __init__(self, server: socket.socket, listener: socket.socket) -> None:
        self._server, self._listener = server, listener
        self._poll = select.poll()
        for one in (server, listener):
            self._poll.register(one, select.POLLIN)
        # For scripts, by the file that tells their end; and that file by the file of the connection.
        self._children: dict[int, tuple[int, socket.socket]] = {}
        self._file_of: dict[int, int] = {}

    def serve(self) -> tuple[dict[str, Any], list[int]] | None:
        while True:
            for number, _ in self._poll.poll():
                if number == self._server.fileno():
                    received = receive_request(self._server)
                    if received is None or self._fork_twice(*received):
                        return received
                elif number == self._listener.fileno():
                    connection, _ = self._listener.accept()
                    received = receive_request(connection)
                    if received is not None and self._fork(connection, *received):
                        return received
                elif number in self._children or number in self._file_of:
                    self._end(number)

    def _fork_twice(self, request: dict[str, Any], files: list[int]) -> bool:
        """True in the new process."""
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                self._close()
                return True
            self._server.sendall(f"{child:08x}".encode())
            os._exit(0)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)
        self._server.sendall(b".")
        return False

    def _fork(self, connection: socket.socket, request: dict[str, Any], files: list[int]) -> bool:
        child = os.fork()
        if child == 0:
            connection.close()
            self._close()
            return True
        for file in files:
            os.close(file)
        connection.sendall(f"{child:08x}".encode())
        file = os.pidfd_open(child)
        self._children[file] = child, connection
        self._file_of[connection.fileno()] = file
        self._poll.register(file, select.POLLIN)
        self._poll.register(connection, select.POLLIN)
        return False

    def _end(self, number: int) -> None:
        """The process has ended, or the one that asked for it has."""
        file = self._file_of.get(number, number)
        child, connection = self._children.pop(file)
        if number != file:
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        with contextlib.suppress(OSError):
            connection.sendall(f"{code:8d}".encode())
        self._poll.unregister(file)
        self._poll.unregister(connection)
        del self._file_of[connection.fileno()]
        os.close(file)
        connection.close()

    def _close(self) -> None:
        """What a new process has no use for."""
        for file, (_, connection) in self._children.items():
            os.close(file)
            connection.close()
        self._server.close()
        self._listener.close()


def main() -> None:
    server = socket.socket(fileno=int(sys.argv[1]))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(sys.argv[2])
    listener.listen(100)
    gc.disable()
    load()
    gc.freeze()  # a collection would write to every page, and each process would need its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    received = ForkServer(server, listener).serve()
    if received is not None:
        become(*received)


if __name__ == "__main__":
    main()
