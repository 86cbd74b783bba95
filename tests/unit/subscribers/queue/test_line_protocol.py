"""A front-end without MQTT, added from the tests: it publishes to, consumes from and settles in durable queues."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from penstock.broker.build import build_broker
from penstock.broker.features import Features
from penstock.broker.foundation import Foundation
from penstock.broker.parts import Closing, Part
from penstock.settings.address import parse_address
from penstock.settings.loader import load_settings
from tests.support.toys.line_protocol import make_listener

SECONDS = 30.0


class LineClient:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, line: str) -> str:
        self._writer.write(f"{line}\n".encode())
        return await self.read()

    async def read(self) -> str:
        async with asyncio.timeout(SECONDS):
            return (await self._reader.readline()).decode().rstrip("\n")

    async def read_messages(self, count: int) -> list[str]:
        return sorted([(await self.read()).removeprefix("MESSAGE ") for _ in range(count)])

    async def is_silent(self) -> bool:
        try:
            async with asyncio.timeout(0.3):
                await self._reader.readline()
        except TimeoutError:
            return True
        return False

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


class Lines:
    """The front-end of a broker that it is a part of."""

    def make(self, _: Foundation, features: Features) -> Part:
        (queues,) = features.queues
        self.listener = make_listener(queues)
        return Part(
            name="lines",
            closing=Closing.LISTENERS,
            start=self.listener.start,
            drain=self.listener.stop_accepting,
            stop=self.listener.close,
        )

    async def connect(self, client_id: str) -> LineClient:
        address = parse_address(self.listener.address)
        client = LineClient(*await asyncio.open_connection(address.host, address.port))
        assert await client.ask(f"HELLO {client_id}") == "OK"
        return client


def in_broker(directory: Path, work: Callable[[Lines], Awaitable[None]]) -> None:
    """Start a broker, do the work, and stop the broker."""

    async def run() -> None:
        overrides = {
            "listeners": "127.0.0.1:0",
            "server.data_dir": str(directory),
            "admin.address": "",
            "sys.interval": "0",
            "logging.level": "error",
        }
        lines = Lines()
        broker = build_broker(load_settings(None, {}, overrides), more_frontends=[lines.make])
        await broker.start()
        try:
            await work(lines)
        finally:
            await broker.close()

    uvloop.run(run())


def test_what_is_unsettled_is_delivered_again_after_a_restart(tmp_path: Path) -> None:
    async def before(lines: Lines) -> None:
        publisher, worker = await lines.connect("p"), await lines.connect("w")
        for number in range(3):
            assert await publisher.ask(f"PUBLISH orders/k{number} m{number}") == "OK"
        assert await worker.ask("CONSUME orders workers") == "OK"
        assert await worker.is_silent()  # it has no credit
        assert await worker.ask("CREDIT orders 2") == "OK"
        assert await worker.read_messages(2) == ["orders 0 1 k0 m0", "orders 1 1 k1 m1"]
        assert await worker.is_silent()
        assert await worker.ask("ACCEPT orders 0") == "OK"

    async def after(lines: Lines) -> None:
        worker = await lines.connect("w")
        assert await worker.ask("CONSUME orders workers") == "OK"
        assert await worker.ask("CREDIT orders 10") == "OK"
        assert await worker.read_messages(2) == ["orders 1 2 k1 m1", "orders 2 1 k2 m2"]
        for number in (1, 2):
            assert await worker.ask(f"ACCEPT orders {number}") == "OK"
        assert await worker.is_silent()

    in_broker(tmp_path, before)
    in_broker(tmp_path, after)


def test_outcomes(tmp_path: Path) -> None:
    async def work(lines: Lines) -> None:
        publisher, worker, other = [await lines.connect(name) for name in ("p", "w", "o")]
        for number in range(3):
            assert await publisher.ask(f"PUBLISH jobs/k m{number}") == "OK"
        for client in (worker, other):
            assert await client.ask("CONSUME jobs workers") == "OK"
        assert await worker.ask("CREDIT jobs 3") == "OK"
        assert len(await worker.read_messages(3)) == 3
        assert await other.ask("CREDIT jobs 1") == "OK"
        assert await worker.ask("RELEASE jobs 1") == "OK"
        assert await other.read() == "MESSAGE jobs 1 2 k m1"
        assert await worker.ask("ACCEPT jobs 1") == "ERROR IN_USE the message is with another consumer"
        assert await worker.ask("NACK jobs 2 0.1") == "OK"
        assert await worker.ask("REJECT jobs 0") == "OK"
        assert await other.ask("CREDIT jobs 1") == "OK"
        assert await other.read() == "MESSAGE jobs 2 2 k m2"
        assert (await other.ask("ACCEPT jobs 0")).startswith("ERROR NOT_FOUND the message is not pending")
        assert await other.ask("CONSUME $dlq/jobs undertakers") == "OK"
        assert await other.ask("CREDIT $dlq/jobs 1") == "OK"
        assert await other.read() == "MESSAGE $dlq/jobs 0 1 k m0"
        assert await other.ask("PUBLISH $dlq/jobs/k m") == "ERROR NOT_AUTHORISED only the broker publishes dead letters"

    in_broker(tmp_path, work)


def test_a_client_that_leaves_gives_back_what_it_has(tmp_path: Path) -> None:
    async def work(lines: Lines) -> None:
        publisher, worker, other = [await lines.connect(name) for name in ("p", "w", "o")]
        assert await publisher.ask("PUBLISH jobs/k m") == "OK"
        for client in (worker, other):
            assert await client.ask("CONSUME jobs workers") == "OK"
        assert await worker.ask("CREDIT jobs 1") == "OK"
        assert await worker.read() == "MESSAGE jobs 0 1 k m"
        assert await other.ask("CREDIT jobs 1") == "OK"
        await worker.close()
        assert await other.read() == "MESSAGE jobs 0 2 k m"

    in_broker(tmp_path, work)


def test_refusals_are_lines(tmp_path: Path) -> None:
    async def work(lines: Lines) -> None:
        client = await lines.connect("c")
        assert (await client.ask("PUBLISH jobs/$ack m")).startswith("ERROR INVALID_NAME not an address of a queue")
        assert (await client.ask("PUBLISH a+b m")).startswith("ERROR INVALID_NAME not a topic of a queue")
        assert (await client.ask("CONSUME $dlq/none g")).startswith("ERROR QUOTA_EXCEEDED there is no such queue")
        assert await client.ask("ACCEPT jobs 0") == "ERROR NOT_FOUND not a consumer of jobs"
        assert await client.ask("SHOUT") == "ERROR NOT_SUPPORTED no such verb: SHOUT"
        assert await client.ask("PUBLISH jobs/k m") == "OK"
        assert await client.ask("CONSUME jobs g") == "OK"
        assert (await client.ask("NACK jobs 0 1e9")).startswith("ERROR INVALID_ARGUMENT delay must be from 0 to")

    in_broker(tmp_path, work)
