"""Changes that are heard on the loop, one callback each, and worked off beside it in packs."""

from __future__ import annotations

import asyncio
from collections import deque

from penstock._ext.record.segment import Record
from penstock.core.clock import now_ms
from penstock.services.packs.processor import PackProcessor


class Changes:
    """What was heard first is done first, as far as the strategies of the processor's queue say so. What arrives while
    a pack is worked off is the next pack."""

    def __init__(self, processor: PackProcessor) -> None:
        self.processor = processor
        self._heard: deque[Record] = deque()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Those that wait for the pack that is worked off."""
        return len(self._heard)

    def put(self, key: bytes, value: bytes | None = None) -> None:
        self._heard.append(Record(-1, now_ms(), key, value, []))
        self._news.set()

    def start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Gives up what is worked off."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _run(self) -> None:
        queue = self.processor.queue
        while True:
            await self._news.wait()
            self._news.clear()
            while self._heard:
                count = min(len(self._heard), queue.max_records)
                await self.processor.process_records(queue.topic, [self._heard.popleft() for _ in range(count)])
