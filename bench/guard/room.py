"""A hub with clients and without sockets, for the jobs of the guard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock._ext.hub.connection import Connection, Hub, Session
from penstock._ext.wire import packets

TOPIC = b"sensors/building-7/floor-3/temperature"
PAYLOAD = b"x" * 66
MESSAGES = 100


class Loop:
    """The part of an event loop that a hub needs."""

    def __init__(self) -> None:
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []

    def call_soon(self, callback: Callable[..., object], *arguments: Any) -> None:
        self._soon.append((callback, arguments))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        raise context["exception"]

    def turn(self) -> None:
        while self._soon:
            soon, self._soon = self._soon, []
            for callback, arguments in soon:
                callback(*arguments)


class Sink:
    """A transport that takes everything at once."""

    def __init__(self) -> None:
        self.size = 0

    def get_extra_info(self, name: str) -> None:
        return None

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def write(self, data: bytes) -> None:
        self.size += len(data)


class Handler:
    """Nothing rare happens here."""

    def on_open(self, connection: Connection) -> None: ...

    def on_error(self, connection: Connection, error: BaseException) -> None:
        raise error


class Client:
    """A connected client: what it says is fed, what it gets is counted in bytes."""

    def __init__(self, hub: Hub, name: str, *, keeps: bool = False) -> None:
        self.sink = Sink()
        self.session = Session(hub, name)
        self.connection = Connection(hub, Handler())
        self.connection.connection_made(self.sink)
        self.session.attach(self.connection, version=4, keeps=keeps, receive_maximum=65_535)
        self.connection.accept(self.session, packets.build_connack(4, False))

    def say(self, data: bytes) -> None:
        self.connection.get_buffer(-1)[: len(data)] = data
        self.connection.buffer_updated(len(data))


class Acknowledgements:
    """PUBACKs of packet ids in the order in which a session gives them, for two calls of a job."""

    def __init__(self) -> None:
        ids = range(1, 2 * MESSAGES + 1)
        self._parts = [
            b"".join(packets.build_ack(4, i, version=4) for i in part) for part in (ids[:MESSAGES], ids[MESSAGES:])
        ]

    def take(self) -> bytes:
        return self._parts.pop(0)
