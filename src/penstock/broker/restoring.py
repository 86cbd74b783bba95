"""Sessions of before a restart, and everything that belongs to them: restored before a client can connect."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from penstock._ext.match.acl import AclProgram
from penstock.access.base import Subject
from penstock.core.logging import get_logger
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import SessionRegistry
from penstock.storage.state.base import StateStore, StoreError
from penstock.subscribers.kinds import Kinds

log = get_logger("penstock.app")

RESTORE_SECONDS = 5.0
POLL_SECONDS = 0.02

Step = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps that restore everything else, in this order."""

    before_sessions: Sequence[Step] = ()
    after_sessions: Sequence[Step] = ()
    at_last: Sequence[Step] = ()


class Restoring:
    """Where the store is a Kafka that cannot be reached, the broker serves clients without sessions meanwhile, and
    refuses the others."""

    def __init__(
        self,
        registry: SessionRegistry,
        keeper: SessionKeeper,
        state: StateStore,
        kinds: Kinds,
        *,
        program_for: Callable[[Subject], AclProgram | None],
        steps: Steps,
        drain_seconds: float,
    ) -> None:
        self._registry = registry
        self._keeper = keeper
        self._state = state
        self._kinds = kinds
        self._program_for = program_for
        self._steps = steps
        self._drain_seconds = drain_seconds
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._restore())
        gc.disable()  # everything made here stays
        try:
            await asyncio.wait([self._task], timeout=RESTORE_SECONDS)
            while not self._task.done() and self._state.check() is True:
                await asyncio.wait([self._task], timeout=POLL_SECONDS)
        finally:
            gc.enable()
        if self._task.done():
            self._task.result()
        else:
            log.warning("sessions cannot be restored yet", reason=self._state.check())
            self._task.add_done_callback(_on_restored_late)

    async def _restore(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        for kind in self._kinds:
            await kind.start()
        for step in self._steps.before_sessions:
            await step()
        count = await self._registry.restore(self._program_for, self._kinds.restore)
        for step in self._steps.after_sessions:
            await step()
        for kind in self._kinds:
            await kind.restored(self._registry.get)
        for step in self._steps.at_last:
            await step()
        log.info("sessions restored", sessions=count, seconds=round(loop.time() - started, 3))

    async def stop(self) -> None:
        """Store what is known of sessions; a store that cannot be reached gets as long as a drain."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
        seconds = max(self._drain_seconds, 1.0)
        for close in (self._keeper.close, self._state.close):
            try:
                async with asyncio.timeout(seconds):
                    await close()
            except (StoreError, TimeoutError) as error:
                log.error("the last changes of sessions are lost", reason=str(error) or self._state.check())

    def health(self) -> bool | str:
        return self._state.check() if self._keeper.is_restored else "sessions are not restored yet"

    def counters(self) -> dict[str, int | float]:
        return {
            "sessions_expired": self._registry.expired_total,
            "sessions_taken_over": self._registry.taken_over_total,
        }


def _on_restored_late(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("sessions cannot be restored", error=str(error))
