"""The age of the oldest unsettled message of queues, for operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from penstock.storage.log.base import Log, LogError
from penstock.subscribers.queue.fetcher import Fetcher

if TYPE_CHECKING:
    from penstock.subscribers.queue.queue import Queue

PATIENCE_SECONDS = 2.0
READ_AT_ONCE = 100


class Ages:
    """Reads a message of each queue. It has readers of its own, so that redeliveries need not wait for a listing. A
    time that was read once is remembered: the message at an offset never changes."""

    def __init__(self) -> None:
        self._fetchers: dict[int, Fetcher] = {}
        self._known: WeakKeyDictionary[Queue, tuple[int, int]] = WeakKeyDictionary()

    async def of(self, queues: Sequence[Queue]) -> dict[str, int]:
        """When the oldest unsettled message of each queue was stored, by the queue's name, in ms since the epoch. A
        queue without one, a stream, and a queue whose log does not answer in time are not in it."""
        wanted = {queue: offset for queue in queues if (offset := _oldest(queue)) is not None}
        unknown = [queue for queue, offset in wanted.items() if self._known.get(queue, (-1, 0))[0] != offset]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_SECONDS):
                for at in range(0, len(unknown), READ_AT_ONCE):
                    some = unknown[at : at + READ_AT_ONCE]
                    await asyncio.gather(*(self._read(queue, wanted[queue]) for queue in some))
        found = {queue: self._known.get(queue) for queue in wanted}
        return {queue.name: known[1] for queue, known in found.items() if known and known[0] == wanted[queue]}

    async def _read(self, queue: Queue, offset: int) -> None:
        try:
            packs = await self._fetcher_of(queue.log).fetch(queue.topic, [offset])
        except LogError:
            return
        for record in (record for pack in packs for record in pack if record.offset >= offset):
            self._known[queue] = offset, record.timestamp
            return

    def _fetcher_of(self, log_provider: Log) -> Fetcher:
        if id(log_provider) not in self._fetchers:
            self._fetchers[id(log_provider)] = Fetcher(log_provider)
        return self._fetchers[id(log_provider)]

    async def close(self) -> None:
        for fetcher in self._fetchers.values():
            await fetcher.close()


def _oldest(queue: Queue) -> int | None:
    """The offset of the first message that some group has yet to settle."""
    if queue.core.is_stream or not queue.depth or not queue.is_made:
        return None
    offset = max(queue.core.floor, queue.head)
    return offset if offset < queue.end else None
