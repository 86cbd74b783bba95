"""How far a reader is behind, measured from time to time: a log may have to be asked, and metrics cannot wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from penstock.storage.log.base import LogError

LOOK_SECONDS = 5.0


class LagWatch:
    """`records` is what `measure` said last."""

    def __init__(self, measure: Callable[[], Awaitable[int]]) -> None:
        self._measure = measure
        self._task: asyncio.Task[None] | None = None
        self.records = 0

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            # a log that is away says so elsewhere; what was known before is better than nothing
            with contextlib.suppress(LogError):
                self.records = await self._measure()
