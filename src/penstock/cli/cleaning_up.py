"""SIGTERM for commands that have something to put in order before they end."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """SIGTERM, as of a service manager, ends the command as Ctrl-C does: what it left behind is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
