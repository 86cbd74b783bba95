"""Ports for what tests start.

They are below those that connections get: nobody takes one before its server does, or while a server that was killed is
away. Connections of which one end tries a closed port of theirs again and again may even meet themselves there.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import socket

PER_PROCESS = 2_000

_NUMBERS = itertools.count(random.randrange(PER_PROCESS))


def free_port() -> int:
    """Of a range that no other process of a parallel run looks into."""
    first = 16_000 + PER_PROCESS * int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw"))
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", first + next(_NUMBERS) % PER_PROCESS))
            return int(probe.getsockname()[1])


def free_pair(distance: int) -> int:
    """A port that is free together with the one so much higher. The ranges of other processes are below and above."""
    while True:
        with socket.socket() as first, socket.socket() as second, contextlib.suppress(OSError):
            first.bind(("127.0.0.1", random.randrange(5_000, 5_900)))
            port: int = first.getsockname()[1]
            second.bind(("127.0.0.1", port + distance))
            return port
