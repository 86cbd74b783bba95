"""Two short answers for commands: everything that is counted, for `penstock top`, and the cut of `penstock backup`."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.routing import BaseRoute, Route

from penstock.core.errors import ConflictError
from penstock.core.metrics import Number
from penstock.core.process import resident_bytes
from penstock.operate.http.commands import answering

ReadCut = Callable[[], Awaitable[Sequence[tuple[str, int, int]]]]
"""Directory, segment and position of every topic of the embedded log, at one moment."""


class Overview:
    """The counters as the broker keeps them, and what the system says of its process."""

    def __init__(self, read_counters: Callable[[], Mapping[str, Number]], version: str) -> None:
        self._read_counters = read_counters
        self._version = version
        self._started = time.monotonic()

    def read(self) -> dict[str, object]:
        now = time.monotonic()
        return {
            "version": self._version,
            "time": now,
            "uptime": round(now - self._started, 3),
            "counters": dict(self._read_counters()),
            "process": _describe_process(),
        }


def _describe_process() -> dict[str, Number]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    described: dict[str, Number] = {"pid": os.getpid(), "cpu_seconds": round(used.ru_utime + used.ru_stime, 3)}
    described["resident_bytes"] = resident_bytes() or 0
    try:
        described["open_fds"] = len(os.listdir("/proc/self/fd"))
        described["max_fds"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    except OSError:  # no /proc: the rest is good enough
        pass
    return described


def overview_routes(overview: Overview | None, read_cut: ReadCut | None) -> list[BaseRoute]:
    async def show(request: Request) -> object:
        if overview is None:
            raise ConflictError("this broker counts nothing")
        return overview.read()

    async def cut(request: Request) -> object:
        if read_cut is None:
            raise ConflictError("this broker has no embedded log", "What it keeps is not in its data directory.")
        return {"topics": [list(topic) for topic in await read_cut()]}

    return [
        Route("/overview", answering(show), methods=["GET"]),
        Route("/backup/cut", answering(cut), methods=["POST"]),
    ]
