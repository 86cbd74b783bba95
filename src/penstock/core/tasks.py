"""Background tasks that belong to one component."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_log = logging.getLogger("penstock.tasks")


class TaskSet:
    """Keeps tasks alive until they end, and logs the ones that fail.

    The event loop itself holds tasks by weak references only: a task that nothing else refers to may vanish while it
    waits.
    """

    def __init__(self, failure: str = "background task failed") -> None:
        self._failure = failure
        self._tasks: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def spawn(
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, is_awaited: bool = False
    ) -> asyncio.Task[T]:
        """Start a task. With `is_awaited` the caller handles its exception, so it is not logged."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._on_awaited if is_awaited else self._on_done)
        return task

    def cancel(self) -> None:
        """Cancel all tasks without waiting for them."""
        for task in list(self._tasks):
            task.cancel()

    async def wait(self, timeout: float | None = None) -> None:
        """Return when all tasks that run now have ended, or after `timeout` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)

    async def wait_for_one(self) -> None:
        """Return when any of the tasks has ended, or when there are none."""
        if self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def close(self, timeout: float | None = None) -> None:
        """Cancel all tasks and wait until they have ended."""
        self.cancel()
        await self.wait(timeout)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s", self._failure, exc_info=error)

    def _on_awaited(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as seen: the caller may have been cancelled meanwhile
