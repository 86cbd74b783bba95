"""Patience with a log that cannot do something yet."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from penstock.storage.log.base import LogError

TRIES = 20
SECONDS = 0.25


async def patiently(work: Callable[[], Awaitable[None]]) -> None:
    """Tries again for a while what the log cannot do yet."""
    for _ in range(TRIES):
        try:
            await work()
            return
        except LogError as error:
            if not error.is_retryable:
                raise
        await asyncio.sleep(SECONDS)
    await work()
