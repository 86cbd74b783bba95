"""A listener with a stand-in connection, for tests of transports on the loop the broker runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import uvloop

from penstock.listen.listener import Listener
from penstock.settings.model import ListenerSettings
from tests.support.clients.echo import EchoConnection
from tests.support.servers.certificates import Identity

V2_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V1_HEADER = b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n"
V2_HEADER = V2_SIGNATURE + bytes.fromhex("21 11 000c c0000207 c6336401 dc04 075b")


def run(test: Coroutine[Any, Any, None]) -> None:
    uvloop.run(asyncio.wait_for(test, 60))


class Started:
    """A listener that runs, what it made and what it refused."""

    def __init__(self, settings: ListenerSettings, **options: Any) -> None:
        self.made: list[EchoConnection] = []
        self.refused: Counter[str] = Counter()
        self._refusal = asyncio.Event()
        self.clients: list[asyncio.StreamWriter] = []
        self.listener = Listener(settings, lambda: EchoConnection(self.made), on_refused=self._count, **options)

    def _count(self, cause: str, *_: str) -> None:
        self.refused[cause] += 1
        self._refusal.set()

    @property
    def port(self) -> int:
        return int(self.listener.address.rpartition(":")[2])

    async def connect(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self.listener.settings.transport == "unix":
            streams = await asyncio.open_unix_connection(self.listener.address)
        else:
            host = self.listener.settings.address.rpartition(":")[0]
            streams = await asyncio.open_connection(host, self.port, **options)
        self.clients.append(streams[1])
        return streams

    async def until(self, cause: str, count: int = 1) -> None:
        while self.refused[cause] < count:
            self._refusal.clear()
            await self._refusal.wait()


@contextlib.asynccontextmanager
async def started(transport: str, address: str = "127.0.0.1:0", **settings: Any) -> AsyncIterator[Started]:
    options = {name: settings.pop(name) for name in ("handshake_seconds", "max_handshakes") if name in settings}
    it = Started(ListenerSettings(transport=transport, address=address, **settings), **options)
    await it.listener.start()
    try:
        yield it
    finally:
        await it.listener.close()
        for connection in it.made:
            connection.transport.abort()
        for client in it.clients:
            client.transport.abort()
        await asyncio.sleep(0)  # transports are closed by the next turn of the loop


def tls_settings(identity: Identity, **more: Any) -> dict[str, Any]:
    return {"certificate": str(identity.certificate), "key": str(identity.key), **more}


async def assert_echo(
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], data: bytes = b"\xc0\x00", first: bytes = b""
) -> None:
    reader, writer = streams
    writer.write(first + data)
    assert await reader.readexactly(len(data)) == data


async def assert_closed(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert await streams[0].read() == b""
