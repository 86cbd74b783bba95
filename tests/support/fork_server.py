"""The process behind forked.py: has Penstock's modules loaded, and forks a `python -m penstock` for each request.

A request is a line of JSON with its length in front of it, together with the files for standard input, output and
error. The answer is the number of the new process, eight digits of hex. The new process is forked twice, so that the
one that asked becomes its parent, as if it had started it itself (it is the reaper of what its children leave behind).
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import runpy
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
    "penstock.admin.api",
    "penstock.admin.collector",
    "penstock.admin.overview",
    "penstock.admin.pages",
    "penstock.datasub.sql.query",
    "penstock.datasub.sql.reader",
    "penstock.logs.kafka.log",
    "penstock.stores.redis.store",
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


def main() -> None:
    server = socket.socket(fileno=int(sys.argv[1]))
    gc.disable()
    load()
    gc.freeze()  # a collection would write to every page, and each process would need its own
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (received := receive_request(server)) is not None:
        request, files = received
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                server.close()
                become(request, files)
                return
            server.sendall(f"{child:08x}".encode())
            os._exit(0)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)
        server.sendall(b".")


if __name__ == "__main__":
    main()
