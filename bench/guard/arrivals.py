"""Clients that the guard counts while they connect, subscribe and leave: at a whole broker, without sockets."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from bench.guard.room import CLIENTS, Sink
from penstock._ext.hub.connection import Connection
from penstock._ext.wire import packets
from penstock.access.base import Entrance
from penstock.access.passwords import hash_password
from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.mqtt.frontend import ListenerContext
from penstock.settings.loader import load_settings

RULES = '[[rules]]\neffect = "allow"\nusers = ["alice"]\ntopics = ["own/%u/#"]\n'
SETTINGS = {
    "listeners.0.address": "127.0.0.1:0",
    "admin.address": "",
    "sys.interval": "0",
    "log.provider": "memory",
    "ingest.events": "false",
    "logging.level": "error",
}

Packet = Callable[[int], bytes]
"""Makes the packet of the client with this number."""


class Transport(Sink):
    """A transport of a client that may leave."""

    def get_extra_info(self, name: str, default: object = None) -> None:
        return None

    def close(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool:
        return False


class Reception:
    """A broker to which clients come. `has_rules`: they need a password, and rules decide what they may do."""

    def __init__(self, *, has_rules: bool = False) -> None:
        self._loop = uvloop.new_event_loop()
        with tempfile.TemporaryDirectory() as directory:
            broker = self._loop.run_until_complete(self._build(Path(directory), has_rules))
        (settings,) = broker.settings.listeners
        self._context = ListenerContext(settings, Entrance.of(settings, broker.settings.access, "mqtt"))
        self._frontend = broker.frontend
        self._made = 0

    async def _build(self, directory: Path, has_rules: bool) -> Broker:
        access = {}
        if has_rules:
            (directory / "passwords").write_text(f"alice:{hash_password(b'secret')}\n")
            (directory / "acl.toml").write_text(RULES)
            access = {
                "access.password_file": str(directory / "passwords"),
                "access.acl_file": str(directory / "acl.toml"),
            }
        return build_broker(load_settings(None, {}, SETTINGS | access | {"server.data_dir": str(directory / "data")}))

    def make(self) -> tuple[int, Transport, Connection]:
        self._made += 1
        transport, connection = Transport(), Connection(self._frontend.hub, self._frontend, self._context)
        connection.connection_made(transport)
        return self._made, transport, connection

    def turn(self) -> None:
        """Let the loop write the answers."""
        self._loop.run_until_complete(asyncio.sleep(0))

    def remember(self, packet: Packet) -> None:
        """Let a client connect whose password is remembered from then on; that is checked in a thread."""
        number, transport, connection = self.make()

        async def connect() -> None:
            say(connection, packet(number))
            while not transport.size:  # noqa: ASYNC110  # a transport tells nobody
                await asyncio.sleep(0.01)

        self._loop.run_until_complete(asyncio.wait_for(connect(), 60))


class Step:
    """Clients that have taken the steps `before` take this one, half of them at each call."""

    def __init__(
        self, reception: Reception, step: Packet, before: Sequence[Packet] = (), *, answered: bool = True
    ) -> None:
        clients = [reception.make() for _ in range(2 * CLIENTS)]
        for packet in before:
            for number, _, connection in clients:
                say(connection, packet(number))
            reception.turn()
        self._reception = reception
        self._answered = answered
        self._input = [(transport, connection, step(number)) for number, transport, connection in clients]

    def run(self) -> None:
        part, self._input = self._input[:CLIENTS], self._input[CLIENTS:]
        sizes = [transport.size for transport, _, _ in part]
        for _, connection, packet in part:
            say(connection, packet)
        self._reception.turn()
        if self._answered:
            later = [transport.size for transport, _, _ in part]
            assert all(size > before for size, before in zip(later, sizes, strict=True)), "a client has no answer"


def say(connection: Connection, data: bytes) -> None:
    connection.get_buffer(-1)[: len(data)] = data
    connection.buffer_updated(len(data))


def steps() -> dict[str, Callable[[], None]]:
    plain, ruled = Reception(), Reception(has_rules=True)
    user: dict[str, Any] = {"username": "alice", "password": b"secret"}

    def connect(number: int) -> bytes:
        return packets.build_connect(f"client-{number}", version=4)

    def connect_as_user(number: int) -> bytes:
        return packets.build_connect(f"client-{number}", **user)

    def subscribe(number: int) -> bytes:
        return packets.build_subscribe(7, [(b"own/alice/%d" % number, 1)], version=4)

    def unsubscribe(number: int) -> bytes:
        return packets.build_unsubscribe(7, [b"own/alice/%d" % number], version=4)

    def disconnect(_: int) -> bytes:
        return b"\xe0\x00"

    ruled.remember(connect_as_user)
    return {
        "client: CONNECT, anonymous": Step(plain, connect).run,
        "client: CONNECT 5, password and rules": Step(ruled, connect_as_user).run,
        "client: SUBSCRIBE": Step(plain, subscribe, [connect]).run,
        "client: UNSUBSCRIBE": Step(plain, unsubscribe, [connect, subscribe]).run,
        "client: DISCONNECT": Step(plain, disconnect, [connect, subscribe], answered=False).run,
    }
