"""The end of a process: its parts one after the other, and those that wait for a service that is away not for long."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from penstock.broker.parts import Part
from penstock.core.logging import get_logger

log = get_logger("penstock.app")

# How often it is looked whether the service is still away.
LOOK_SECONDS = 0.1
# What a part gets when the time is over: enough for all that waits for nobody.
LEAST_SECONDS = 0.25
# For threads that ask a service that is away: nobody needs the answer any more.
THREADS_SECONDS = 1.0


async def close_parts(parts: Sequence[Part], seconds: float, find_away: Callable[[], str]) -> None:
    """Closes them in their order. All of them have `seconds` together while `find_away` says what is away and why, and
    twice as long while it says nothing: a service may not answer for a while before anybody can tell that it is away.
    What is not closed by then is left, which costs what a kill would: nothing that was acknowledged."""
    deadline = time.monotonic() + seconds
    for part in parts:
        started = time.monotonic()
        closing = asyncio.ensure_future(part.stop())
        first = max(deadline, started + LEAST_SECONDS)
        is_left = await _wait(closing, first, max(deadline + seconds, first), find_away)
        if is_left:
            closing.cancel()
            await asyncio.wait([closing], timeout=LEAST_SECONDS)
            log.warning(
                "shutdown deadline reached, skipping component", part=part.name, reason=find_away() or "no answer"
            )
        elif time.monotonic() - started > 1.0:
            log.info("a part took long to close", part=part.name, seconds=_since(started), reason=find_away())
        if not is_left:
            closing.result()


async def _wait(closing: asyncio.Future[object], first: float, last: float, find_away: Callable[[], str]) -> bool:
    """Whether it took too long."""
    while not closing.done():
        now = time.monotonic()
        if now > last or (now > first and find_away()):
            return True
        await asyncio.wait([closing], timeout=LOOK_SECONDS)
    return False


def _since(started: float) -> float:
    return round(time.monotonic() - started, 1)


def end_soon(code: int) -> None:
    """When everything is closed. The interpreter waits for threads, and some of them may wait for Kafka."""

    def end() -> None:
        log.warning("threads that still wait are left as they are, to end in time")
        logging.shutdown()
        os._exit(code)

    timer = threading.Timer(THREADS_SECONDS, end)
    timer.daemon = True
    timer.start()
