"""A scenario over a log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.storage.log.memory import MemoryLog


def with_memory_log(scenario: Callable[[MemoryLog], Awaitable[None]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        await scenario(log)
        await log.close()

    asyncio.run(run())
