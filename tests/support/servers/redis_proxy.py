"""Stands between a client and a Redis server: slow, deaf, cutting connections, or answering with errors of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hiredis


class RedisProxy:
    """`delay` holds back what is sent; `is_deaf` swallows the answers to it; `errors` answer the next commands."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.port = 0
        self.delay = 0.0
        self.is_deaf = False
        self.errors: list[str] = []
        self.commands = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Every connection ends at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, server_writer}
        # What is answered here must not overtake what the server still has to answer.
        owed: asyncio.Queue[bytes | None] = asyncio.Queue()
        up = asyncio.create_task(self._commands(reader, server_writer, owed))
        down = asyncio.create_task(self._answers(server_reader, writer, owed))
        self._tasks |= {up, down}
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        down.cancel()
        for end in (writer, server_writer):
            end.transport.abort()
            self._writers.discard(end)

    async def _commands(
        self, reader: asyncio.StreamReader, server: asyncio.StreamWriter, owed: asyncio.Queue[bytes | None]
    ) -> None:
        parser = hiredis.Reader()
        while data := await reader.read(65_536):
            if self.delay:
                await asyncio.sleep(self.delay)
            parser.feed(data)
            while (command := parser.gets()) is not False:
                self.commands += 1
                if self.errors and command[0] == b"EVALSHA":
                    owed.put_nowait(f"-{self.errors.pop(0)}\r\n".encode())
                else:
                    owed.put_nowait(None)
                    server.write(hiredis.pack_command(tuple(command)))
            await server.drain()

    async def _answers(
        self, server: asyncio.StreamReader, writer: asyncio.StreamWriter, owed: asyncio.Queue[bytes | None]
    ) -> None:
        raw = b""
        while True:
            answer = await owed.get()
            if answer is None:
                answer, raw = await self._one_answer(server, raw)
            if not self.is_deaf:
                writer.write(answer)

    @staticmethod
    async def _one_answer(server: asyncio.StreamReader, raw: bytes) -> tuple[bytes, bytes]:
        while (size := _size_of_answer(raw)) is None:
            data = await server.read(65_536)
            if not data:
                raise ConnectionResetError
            raw += data
        return raw[:size], raw[size:]


def _size_of_answer(raw: bytes, start: int = 0) -> int | None:
    """Where the answer that starts here ends; None: not all of it is there."""
    end = raw.find(b"\r\n", start)
    if end < 0:
        return None
    kind, rest = raw[start : start + 1], raw[start + 1 : end]
    position: int | None = end + 2
    if kind == b"$":
        position = end + 2 + max(0, int(rest) + 2 if int(rest) >= 0 else 0)
        return position if position <= len(raw) else None
    if kind == b"*":
        for _ in range(max(0, int(rest))):
            position = _size_of_answer(raw, position) if position is not None else None
    return position


@asynccontextmanager
async def proxied(target: int) -> AsyncIterator[RedisProxy]:
    proxy = RedisProxy(target)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(server.wait_closed(), 1)
