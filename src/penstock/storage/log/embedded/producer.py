"""Collects what one iteration of the loop appends and hands it to the commit thread as one list."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock._ext.record.segment import AppendCounts, RecordPack, seal_packs
from penstock.storage.log.base import (
    Appended,
    LogError,
    LogUnavailable,
    OnAllAppended,
    OnAppended,
    Packs,
    TopicNotFound,
)
from penstock.storage.log.embedded.commit_thread import Job
from penstock.storage.log.embedded.topic_writer import Append, TopicWriter
from penstock.storage.log.sending import send

if TYPE_CHECKING:
    from penstock.storage.log.embedded.log import EmbeddedLog


class EmbeddedProducer:
    """See Producer in base.py."""

    largest_record = 0  # any
    gathers = True

    def __init__(self, log: EmbeddedLog, counts: AppendCounts, max_pending_bytes: int, linger: float = 0.0) -> None:
        self._log = log
        self._counts = counts
        self._max_pending_bytes = max_pending_bytes
        self._linger = linger
        self._collected: list[Job] = []
        self._flush_at_end = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def pending_bytes(self) -> int:
        return self._counts.pending_bytes

    def append(
        self,
        topic: str,
        partition: int,
        pack: RecordPack,
        on_done: OnAppended | None = None,
        *,
        can_wait: bool = False,
        is_lasting: bool = False,
    ) -> None:
        job = self._admit(topic, ((partition, pack),))
        if isinstance(job, LogError):
            self._log.count_refused()
            if on_done is not None:
                asyncio.get_running_loop().call_soon(on_done, job)
            return
        job[1].on_done = on_done
        self._collected.append(job)
        self._schedule(can_wait and self._linger > 0)

    def append_packs(
        self, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False, is_quiet: bool = False
    ) -> None:
        job = self._admit(topic, packs)
        if isinstance(job, LogError):
            self._log.count_refused(len(packs))
            asyncio.get_running_loop().call_soon(on_done, [job] * len(packs))
            return
        job[1].on_all_done = on_done
        job[1].is_quiet = is_quiet and not self._log.watchers.has_active(topic, job[1].partitions)
        self._collected.append(job)
        self.flush()

    def collect(self) -> None:
        self._log.thread.collect()

    def _admit(self, topic: str, packs: Packs) -> tuple[TopicWriter, Append] | LogError:
        """Return the topic's writer and the append, counted as pending, or the reason to refuse the packs."""
        log = self._log
        numbers, sealed, size, records = seal_packs(packs)
        writer = log.writers.get(topic)
        if writer is None or not 0 <= min(numbers) <= max(numbers) < len(writer.view.partitions):
            return TopicNotFound(f"there is no partition {max(numbers)} of a topic {topic!r}")
        if self._counts.pending_bytes + size > self._max_pending_bytes and self._counts.pending_bytes:
            reason = log.check()
            why = f": {reason}" if isinstance(reason, str) else ""
            return LogUnavailable(f"{self._counts.pending_bytes} bytes wait to be written{why}")
        if not log.is_open:
            return LogUnavailable("the log is not open")
        self._counts.pending_bytes += size
        return writer, Append(writer.view, numbers, sealed, size, records)

    def _schedule(self, can_wait: bool) -> None:
        """Flush at the end of the iteration, or after the linger; a flush takes everything along."""
        if not can_wait:
            if not self._flush_at_end:
                self._flush_at_end = True
                asyncio.get_running_loop().call_soon(self._flush_now)
        elif not self._flush_at_end and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._linger, self.flush)

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        return await send(self, topic, partition, pack)

    def _flush_now(self) -> None:
        self._flush_at_end = False
        self.flush()

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._collected:
            collected, self._collected = self._collected, []
            self._log.thread.submit(collected)
