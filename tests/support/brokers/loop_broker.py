"""A broker without a log in the process of the test, for tests that take the place of its log or of another node."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable

import uvloop

from penstock.broker.build import build_broker
from penstock.broker.life import Broker
from penstock.settings.loader import load_settings


def run_with_broker(use: Callable[[Broker, int], Awaitable[None]], seconds: float = 60) -> None:
    """Start the broker's first listener and call `use` with the broker and its port, on a loop of its own."""

    async def main() -> None:
        overrides = {
            "listeners.0.address": "127.0.0.1:0",
            "admin.address": "",
            "sys.interval": "0",
            "ingest.log": "none",
            "server.data_dir": tempfile.mkdtemp(),
            "logging.level": "error",
        }
        broker = build_broker(load_settings(None, {}, overrides))
        await broker.listeners[0].start()
        port = int(broker.listeners[0].address.rpartition(":")[2])
        try:
            async with asyncio.timeout(seconds):
                await use(broker, port)
        finally:
            await broker.close()

    uvloop.run(main())
