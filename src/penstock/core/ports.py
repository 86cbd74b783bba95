"""What the layers ask of each other, so that the one below never has to know the one above."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

S = TypeVar("S")


class Timer(Protocol):
    """Something that happens later, unless it is cancelled."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The part of an event loop that session logic needs; a test drives it with a clock of its own."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer: ...


class SessionStore(Protocol[S]):
    """The sessions of all clients, by client id."""

    def get(self, client_id: str) -> S | None: ...
    def put(self, client_id: str, session: S) -> None: ...
    def remove(self, client_id: str) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[S]: ...
