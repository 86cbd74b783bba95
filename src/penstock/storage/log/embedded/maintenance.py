"""What the embedded log does from time to time: retention, rolling by age, indexes, compaction, looking for room."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.clock import now_ms
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.storage.log.base import LogError
from penstock.storage.log.embedded.compaction import CompactionPlan, compact, swap_in
from penstock.storage.log.embedded.segments import Segment
from penstock.storage.log.embedded.topic import TopicView

if TYPE_CHECKING:
    from penstock.storage.log.embedded.log import EmbeddedLog

log = get_logger("penstock.logs")

# While the disk refuses, room is looked for this often, and this much of it is wanted.
PROBE_SECONDS = 1.0
ROOM_WANTED = 4 * 1_048_576
# What fails in one round most often fails in the next as well: it is said this often.
WARNING_SECONDS = 60.0


class Maintenance:
    def __init__(self, owner: EmbeddedLog, interval: float) -> None:
        self._log = owner
        self._interval = interval
        self._task: asyncio.Task[None] | None = None
        self._jobs = TaskSet()
        self.segments_removed = 0
        self.segments_held = 0  # in the last round: over a limit, and kept because somebody has not read them
        self.compactions = 0
        self.failures = 0
        self._warnings = Throttled(log, interval=WARNING_SECONDS)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._task = loop.create_task(self._run(), name="penstock-log-maintenance")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._jobs.wait()

    async def _run(self) -> None:
        waited = 0.0
        while True:
            step = min(PROBE_SECONDS, self._interval)
            await asyncio.sleep(step)
            waited += step
            try:
                if isinstance(self._log.check(), str):
                    await self._probe()
                if waited >= self._interval:
                    waited = 0.0
                    await self.tidy()
            except LogError as error:
                log.warning("maintenance of the log failed", why=str(error))
            except Exception:
                log.exception("maintenance of the log failed")

    async def tidy(self) -> None:
        """One round over all topics. What fails in one keeps nothing from the others, and retention needs no room: on a
        full disk it is what makes some."""
        now = now_ms()
        held = 0
        views = list(self._log.views.values())
        for view in views:
            if view.is_deleted:
                continue
            if view.should_roll(now):
                with self._alone(view, "a segment cannot be closed"):
                    await self.roll(view)
            with self._alone(view, "old segments cannot be removed"):
                held += await self._remove_expired(view, now)
        self.segments_held = held
        for view in views:
            if view.config.is_compacted and not view.is_deleted and not view.is_compacting:
                with self._alone(view, "a topic cannot be compacted"):
                    await self._compact(view)

    @contextlib.contextmanager
    def _alone(self, view: TopicView, event: str) -> Iterator[None]:
        """A failure is logged and counted, and affects its topic only."""
        try:
            yield
        except (LogError, OSError) as error:
            if view.is_deleted:
                return
            self.failures += 1
            self._warnings.warning(event, per=(view.name, event), topic=view.name, why=str(error))

    async def roll(self, view: TopicView) -> None:
        """Closes the segment being written."""
        writer = self._log.writers[view.name]

        await self._log.run(writer.roll, writer)

    async def _remove_expired(self, view: TopicView, now: int) -> int:
        """How many more would go if nobody held them."""
        expired = view.find_expired(now)
        count = view.count_free(expired, self._log.held.get(view.name, {}))
        if view.is_compacting or not count:
            return expired - count
        dropped = view.drop_segments(count)
        self.segments_removed += count
        async with self._log.admin.turn(view.name):
            if not view.is_deleted:
                await self._log.in_thread(_unlink, dropped)
        return expired - count

    async def _compact(self, view: TopicView) -> None:
        plan = CompactionPlan.of(view)
        if plan is None:
            return
        view.is_compacting = True
        try:
            built = await self._log.in_thread(compact, plan)
            async with self._log.admin.turn(view.name):
                if view.is_deleted:
                    return
                view.replace_segments(plan.segments, built)
                await self._log.in_thread(swap_in, plan.segments, built)
            self.compactions += 1
        except FileNotFoundError:
            if not view.is_deleted:
                raise
        finally:
            view.is_compacting = False

    async def _probe(self) -> None:
        """Says whether there is room again, if nobody appends meanwhile."""
        usage = await self._log.in_thread(shutil.disk_usage, self._log.root)
        if usage.free < ROOM_WANTED:
            return
        for writer in [writer for writer in self._log.writers.values() if writer.problem is not None]:
            with contextlib.suppress(LogError):
                await self._log.run(writer.probe, writer)

    def segment_closed(self, segment: Segment | None) -> None:
        """Its index is written to a file, so that the next start need not walk it."""
        if segment is None:
            return
        self._jobs.spawn(self._write_index(segment))

    async def _write_index(self, segment: Segment) -> None:
        with contextlib.suppress(OSError):  # it can always be rebuilt
            await self._log.in_thread(_write_index, segment, segment.encode_index())


def _unlink(segments: list[Segment]) -> None:
    for segment in segments:
        segment.path.unlink(missing_ok=True)
        segment.index_path.unlink(missing_ok=True)


def _write_index(segment: Segment, encoded: bytes) -> None:
    if segment.path.exists():
        segment.index_path.write_bytes(encoded)
