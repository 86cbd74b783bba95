"""What the layers ask of each other, so that the one below never has to know the one above."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol


class Timer(Protocol):
    """Something that happens later, unless it is cancelled."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """The part of an event loop that session logic needs; a test drives it with a clock of its own."""

    def call_later(self, delay: float, callback: Callable[..., object], /, *args: Any) -> Timer: ...


@dataclass(frozen=True, slots=True)
class AuthStep:
    """An answer of enhanced authentication: go on with `data`, or the client is in (as `username`), or it is not."""

    outcome: str
    data: bytes | None = None
    username: str | None = None

    @classmethod
    def proceed(cls, data: bytes) -> AuthStep:
        return cls("proceed", data)

    @classmethod
    def success(cls, username: str | None, data: bytes | None = None) -> AuthStep:
        return cls("success", data, username)

    @classmethod
    def failure(cls) -> AuthStep:
        return cls("failure")


class AuthExchange(Protocol):
    """The broker's side of one AUTH exchange (MQTT 5, 4.12). A new one is made for each exchange."""

    def step(self, data: bytes | None) -> AuthStep | Awaitable[AuthStep]:
        """Answers the data of CONNECT or AUTH."""
        ...


AuthExchangeFactory = Callable[[str, str | None], AuthExchange]
"""Made from (client id, user name of CONNECT or None)."""
