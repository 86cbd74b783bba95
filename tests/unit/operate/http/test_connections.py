"""Time limits of the admin address: for what the client owes, not for what the broker takes."""

from __future__ import annotations

import asyncio
from typing import Any

import uvicorn

from penstock.operate.http.connections import AdminProtocol
from tests.support.machine.ports import free_port

CHUNK = b"x" * 4_000_000
PAUSE = 1.5  # longer than the limit


class Quick(AdminProtocol):
    head_seconds = 0.2
    body_seconds = 1.0


async def slow_answer(scope: Any, receive: Any, send: Any) -> None:
    """Takes its time, as a backup does, before each of two parts."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    for more in (True, False):
        await asyncio.sleep(PAUSE)
        await send({"type": "http.response.body", "body": CHUNK, "more_body": more})


async def served(client: Any) -> Any:
    port = free_port()
    config = uvicorn.Config(slow_answer, host="127.0.0.1", port=port, http=Quick, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.01)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=65_536)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        return await client(reader)
    finally:
        writer.close()
        server.should_exit = True
        server.force_exit = True
        await running


def test_an_answer_that_takes_long() -> None:
    """Its client does not read for a moment when the write begins, and then slowly: the answer arrives whole."""

    async def client(reader: asyncio.StreamReader) -> int:
        await asyncio.sleep(PAUSE + 0.5)
        received = 0
        while data := await reader.read(262_144):
            received += len(data)
            await asyncio.sleep(0.1)
        return received

    assert asyncio.run(served(client)) > 2 * len(CHUNK)


def test_a_client_that_stops_reading() -> None:
    async def client(reader: asyncio.StreamReader) -> int:
        await asyncio.sleep(PAUSE + Quick.body_seconds + 1.5)
        received = 0
        try:
            while data := await reader.read(65_536):
                received += len(data)
        except ConnectionError:
            pass
        return received

    assert asyncio.run(served(client)) < 2 * len(CHUNK)
