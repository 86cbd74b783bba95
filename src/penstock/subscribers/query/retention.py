"""Retention of the log that waits for groups: it is told, again and again, what the slowest of them still needs. Where
it is not the log's own (Kafka), suspension.py does what can be done."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

from penstock.core.clock import now_ms
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Log, LogError, TopicPartition
from penstock.subscribers.query.ports import Progress
from penstock.subscribers.query.source import Source
from penstock.subscribers.query.suspension import Notes, Suspension
from penstock_client.errors import DataError

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
        self._warnings = Throttled(log, interval=60.0)
        self._suspension: Suspension | None = None
        self._watched: tuple[Source, Progress] | None = None
        self._failures = 0
        self.is_held = False  # whether the log does as it is told

    async def protect(self, partitions: int) -> None:
        """Before the log looks at its segments for the first time."""
        if not self._is_holding:
            return
        self.is_held = await self._log.admin.hold(TopicPartition(self._topic, 0), 0)
        if not self.is_held:
            return
        with contextlib.suppress(LogError):
            # One that was made with other settings has another number of them.
            partitions = (await self._log.admin.describe(self._topic)).partitions
        for number in range(partitions):
            await self._log.admin.hold(TopicPartition(self._topic, number), 0)
            self._held[number] = 0

    def start(
        self, source: Source, progress: Progress, notes: Notes, is_mine: Callable[[], bool] = lambda: True
    ) -> None:
        """`is_mine`: whether this node, of those that use the log, is the one to change its limits."""
        if not self.is_held:
            self._suspension = Suspension(self._log, self._topic, source, notes, is_mine=is_mine)
        self._watched = source, progress
        self._task = asyncio.get_running_loop().create_task(self._run(source, progress))

    async def look_now(self) -> None:
        """A group needs what nobody needed before. Where the log does as it is told, it knows that before the group
        has its answer; whose retention is its own (Kafka) hears of it at the next look."""
        if self._watched is None or not self.is_held:
            return
        try:
            await self._look(*self._watched)
        except (DataError, LogError) as error:
            self._complain(error)

    async def stop(self) -> None:
        """Limits that are lifted stay so: groups need what they need while no broker runs."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def counters(self) -> dict[str, int | float]:
        suspension = self._suspension
        return {
            "datasub_retention_suspended": int(suspension is not None and suspension.noted is not None),
            "datasub_retention_removed": 0 if suspension is None else suspension.removed,
            "datasub_retention_failures": self._failures,
        }

    async def _run(self, source: Source, progress: Progress) -> None:
        while True:
            try:
                if self._suspension is not None and not self._is_holding:
                    await self._suspension.resume()  # the setting may have been another one yesterday
                    return
                await self._look(source, progress)
            except (DataError, LogError) as error:
                self._complain(error)
            await asyncio.sleep(self._interval)

    def _complain(self, error: Exception) -> None:
        self._failures += 1
        self._warnings.warning(
            "the log cannot be told what groups need: a consumer may fall behind what it keeps",
            error=str(error),
        )

    async def _look(self, source: Source, progress: Progress) -> None:
        if self._suspension is None:
            await self.apply(await source.partitions(), progress.needed())
        else:
            await self._suspension.look(progress.needed(), now_ms())

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
