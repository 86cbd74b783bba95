"""What the layers ask of each other, so that the one below never has to know the one above."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Timer(Protocol):
    """Something that happens later, unless it is cancelled."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The part of an event loop that session logic needs; a test drives it with a clock of its own."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer: ...
