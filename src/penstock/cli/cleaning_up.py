"""Signals for commands that have something to put in order before they end."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

from penstock.core import exit_codes


@contextlib.contextmanager
def cleaning_up() -> Iterator[None]:
    """SIGTERM, as of a service manager, ends the command as Ctrl-C does: what it left behind is removed."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass
class Ending:
    """The exit code of a command that was interrupted."""

    exit_code: int = exit_codes.INTERRUPTED


@contextlib.contextmanager
def interruptible() -> Iterator[Ending]:
    """SIGTERM, and SIGHUP of a terminal that is closed, are Ctrl-C with another exit code: for a command that tells how
    far it was. Under nohup SIGHUP stays ignored."""
    ending = Ending()

    def interrupt(number: int, _: FrameType | None) -> None:
        ending.exit_code = 128 + number
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    try:
        yield ending
    except KeyboardInterrupt:
        sys.exit(ending.exit_code)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
