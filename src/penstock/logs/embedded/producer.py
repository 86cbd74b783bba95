"""Collects what one iteration of the loop appends and hands it to the commit thread as one list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock._ext.segment import RecordPack
from penstock.logs.base import Appended, LogError, LogUnavailable, OnAppended, TopicNotFound
from penstock.logs.embedded.commit_thread import Call
from penstock.logs.embedded.topic_writer import Append, TopicWriter
from penstock.logs.sending import send

if TYPE_CHECKING:
    from penstock.logs.embedded.log import EmbeddedLog


class EmbeddedProducer:
    """See Producer in base.py."""

    largest_record = 0  # any

    def __init__(self, log: EmbeddedLog, max_pending_bytes: int) -> None:
        self._log = log
        self._max_pending_bytes = max_pending_bytes
        self._collected: list[tuple[TopicWriter, Append] | Call] = []
        self.pending_bytes = 0

    def append(self, topic: str, partition: int, pack: RecordPack, on_done: OnAppended | None = None) -> None:
        if pack.count == 0 or not pack.is_dense:
            raise ValueError("a pack that is appended has records, and no gaps between their offsets")
        pack.seal()
        log = self._log
        writer = log.writers.get(topic)
        if writer is None or not 0 <= partition < len(writer.view.partitions):
            self._refuse(on_done, TopicNotFound(f"there is no partition {partition} of a topic {topic!r}"))
            return
        if self.pending_bytes + pack.size > self._max_pending_bytes and self.pending_bytes:
            reason = log.check()
            why = f": {reason}" if isinstance(reason, str) else ""
            self._refuse(on_done, LogUnavailable(f"{self.pending_bytes} bytes wait to be written{why}"))
            return
        if not log.is_open:
            self._refuse(on_done, LogUnavailable("the log is not open"))
            return
        if not self._collected:
            asyncio.get_running_loop().call_soon(self.flush)
        self._collected.append((writer, Append(writer.view, partition, pack, on_done)))
        self.pending_bytes += pack.size

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        return await send(self, topic, partition, pack)

    def flush(self) -> None:
        if self._collected:
            collected, self._collected = self._collected, []
            self._log.thread.submit(collected)

    def _refuse(self, on_done: OnAppended | None, error: LogError) -> None:
        self._log.count_refused()
        if on_done is not None:
            asyncio.get_running_loop().call_soon(on_done, error)
