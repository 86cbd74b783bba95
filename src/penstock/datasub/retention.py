"""Retention of the log that waits for groups: it is told, again and again, what the slowest of them still needs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from penstock.core.logging import RateLimited, get_logger
from penstock.datasub.errors import DataError
from penstock.datasub.ports import Progress
from penstock.datasub.source import Source
from penstock.logs.base import Log, LogError, TopicPartition

log = get_logger("penstock.datasub")


class Retention:
    """With `hold`, from `protect` on. Until the groups are known nothing may go at all."""

    def __init__(self, provider: Log, topic: str, *, interval: float, is_holding: bool) -> None:
        self._log = provider
        self._topic = topic
        self._interval = interval
        self._is_holding = is_holding
        self._held: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self._warnings = RateLimited(interval=60.0)
        self.is_held = False  # whether the log does as it is told

    async def protect(self, partitions: int) -> None:
        """Before the log looks at its segments for the first time."""
        if not self._is_holding:
            return
        self.is_held = await self._log.admin.hold(TopicPartition(self._topic, 0), 0)
        if not self.is_held:
            log.info(
                "data_subscription.retention = hold is not possible with this log: its own retention decides, and a "
                "consumer that fell behind it gets the error out-of-range",
                topic=self._topic,
            )
            return
        with contextlib.suppress(LogError):
            # One that was made with other settings has another number of them.
            partitions = (await self._log.admin.describe(self._topic)).partitions
        for number in range(partitions):
            await self._log.admin.hold(TopicPartition(self._topic, number), 0)
            self._held[number] = 0

    def start(self, source: Source, progress: Progress) -> None:
        if self.is_held:
            self._task = asyncio.get_running_loop().create_task(self._run(source, progress))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self, source: Source, progress: Progress) -> None:
        while True:
            try:
                await self.apply(await source.partitions(), progress.needed())
            except (DataError, LogError) as error:
                suppressed = self._warnings.try_pass("retention")
                if suppressed is not None:
                    log.warning("the log cannot be told what groups need", error=str(error))
            await asyncio.sleep(self._interval)

    async def apply(self, partitions: list[int], needed: Mapping[int, int]) -> None:
        for number in partitions:
            offset = needed.get(number)
            if self._held.get(number) == offset:
                continue
            await self._log.admin.hold(TopicPartition(self._topic, number), offset)
            if offset is None:
                self._held.pop(number, None)
            else:
                self._held[number] = offset
