"""What a service manager wants to be told (sd_notify of systemd): that we are ready, alive, reloading, stopping.

One datagram with lines of NAME=value to the socket that NOTIFY_SOCKET names; without it nothing is said to anybody.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Mapping

from penstock.core.logging import get_logger

log = get_logger("penstock.service")

# A start that takes its time is no failure as long as the loop runs: every so often it asks for this much more.
EXTEND_SECONDS = 30
ASK_SECONDS = 10
STOP_MARGIN_SECONDS = 15


class ServiceManager:
    """Talks to the manager of the environment; every call does nothing where there is none.

    It never waits and never fails: a manager that does not listen must not stop a broker that works.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, environ: Mapping[str, str] = os.environ) -> None:
        self._loop = loop
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._watchdog_seconds = _watchdog_seconds(environ) if self._address else 0.0
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_failed = False

    def starting(self) -> None:
        """Until `ready`, a long start is kept from being taken for a failed one."""
        if self._address:
            self._tell("STATUS=starting", f"EXTEND_TIMEOUT_USEC={EXTEND_SECONDS * 1_000_000}")
            self._timer = self._loop.call_later(ASK_SECONDS, self.starting)

    def ready(self, status: str) -> None:
        """Clients may come; from here on the watchdog is fed by the loop."""
        self._cancel()
        self._tell("READY=1", f"STATUS={status}")
        self._feed()

    def reloading(self) -> None:
        """Settings are read again; `ready` says when that is done."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1_000}")

    def stopping(self, seconds: float) -> None:
        """It drains for so long at most; the watchdog is fed meanwhile."""
        self._tell("STOPPING=1", "STATUS=draining", f"EXTEND_TIMEOUT_USEC={_microseconds(seconds)}")

    def close(self) -> None:
        self._cancel()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _feed(self) -> None:
        if self._watchdog_seconds:
            self._tell("WATCHDOG=1")
            self._timer = self._loop.call_later(self._watchdog_seconds / 3, self._feed)

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._has_failed:
                log.warning("the service manager cannot be told", error=error.strerror)
            self._has_failed = True


def _address(name: str) -> str:
    """A path, or with an @ in front a name that is in no file system; anything else is nothing we can speak to."""
    if name.startswith("@"):
        return "\0" + name[1:]
    return name if name.startswith("/") else ""


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """How long we may be silent; 0 = for ever. The single-file executable is the child of the process that is meant."""
    microseconds, process = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    if not microseconds.isdigit() or (process and process not in (str(os.getpid()), str(os.getppid()))):
        return 0.0
    return int(microseconds) / 1_000_000


def _microseconds(drain_seconds: float) -> int:
    return round((drain_seconds + STOP_MARGIN_SECONDS) * 1_000_000)
