"""The end of a queue: its log first, then what is stored of it. So a crash in between leaves a queue without messages,
never messages that would be in the next queue of this name; and while the log cannot be removed the name is taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.core.logging import get_logger
from penstock.logs.base import LogError, TopicNotFound
from penstock.queues import state as names
from penstock.queues.definitions import QueueError
from penstock.queues.group import Group
from penstock.queues.queue import Queue

if TYPE_CHECKING:
    from penstock.queues.manager import QueueManager

log = get_logger("penstock.queues")

AGAIN_SECONDS = 5.0


class Deletions:
    def __init__(self, manager: QueueManager) -> None:
        self._manager = manager
        self._under_way: set[str] = set()

    def __contains__(self, name: str) -> bool:
        """Whether messages of an earlier queue of this name may still be there."""
        return name in self._under_way

    def check_free(self, name: str) -> None:
        if name in self._under_way:
            raise QueueError(
                f"a queue {name!r} is still being deleted, its log cannot be removed yet", "Try again in a moment."
            )

    async def run(self, queue: Queue) -> None:
        """In the turn of its topic. Returns when it is gone, or when it has to be tried again later."""
        groups = list(queue.groups.values())
        self._manager.state.save([group.core for group in groups])  # so that all that is stored of them is known
        await self._manager.forget(queue)
        if await self._delete_log(queue):
            await self._forget_stored(queue, groups)
        else:
            self._under_way.add(queue.name)
            self._manager.spawn(self._run_later(queue, groups))

    async def _run_later(self, queue: Queue, groups: list[Group]) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            async with self._manager.turn_of(queue.topic):
                if await self._delete_log(queue):
                    await self._forget_stored(queue, groups)
                    self._under_way.discard(queue.name)
                    return

    async def _delete_log(self, queue: Queue) -> bool:
        try:
            await queue.log.admin.delete(queue.topic)
        except TopicNotFound:
            pass  # nobody has used it yet
        except LogError as error:
            what = "the log of a deleted queue cannot be removed yet, it is tried again"
            log.warning(what, queue=queue.name, error=str(error))
            return False
        return True

    async def _forget_stored(self, queue: Queue, groups: list[Group]) -> None:
        if queue.definition.durable:
            state = self._manager.state
            for group in groups:
                state.remove_group(group.core)
            kinds = (names.REMOVED, names.DEAD)
            state.store([(names.STATE, names.state_key(queue.name, "", kind), None) for kind in kinds])
            await self._manager.store_definition(queue.name, None)
