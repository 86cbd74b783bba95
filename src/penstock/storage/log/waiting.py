"""Work that has to wait for a log that may be unavailable."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.core.logging import get_logger
from penstock.storage.log.base import LogError

log = get_logger("penstock.log")

Result = TypeVar("Result")
RETRY_SECONDS = 1.0


async def until_available(work: Callable[[], Awaitable[Result]], doing: str) -> Result:
    """Do the work, and again from its beginning until the log is available. Raises LogError if a retry cannot help."""
    has_warned = False
    while True:
        try:
            return await work()
        except LogError as error:
            if not error.is_retryable:
                raise
            if not has_warned:
                log.warning("the start waits for the log", doing=doing, error=str(error))
                has_warned = True
        await asyncio.sleep(RETRY_SECONDS)


async def retry_while(is_wanted: Callable[[], bool], work: Callable[[], Awaitable[Result]]) -> Result:
    """Do the work again after errors of the log that may pass, as long as that is wanted. Raises the last LogError."""
    while True:
        try:
            return await work()
        except LogError as error:
            if not error.is_retryable or not is_wanted():
                raise
        await asyncio.sleep(RETRY_SECONDS)
