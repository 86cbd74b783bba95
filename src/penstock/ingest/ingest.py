"""The way into the log: what was published leaves in batches, one pack per partition."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from penstock._ext.hub.connection import DurableQueue, Hub, QueueGroup, Session
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.core.logging import Throttled, get_logger
from penstock.ingest.received import ReceivedIds
from penstock.ingest.received_order import OrderedIds
from penstock.services.log_names import RETAINED_TOPIC
from penstock.storage.log.base import Appended, Log, LogError, LogUnavailable
from penstock.storage.state.base import StoreError
from penstock.subscribers.queue.manager import QueueManager

log = get_logger("penstock.ingest")

START_SECONDS = 5.0
RETRY_SECONDS = 2.0
STOP_SECONDS = 1.0
MARK_SECONDS = 2.0
LONGEST_MARK_SECONDS = 60.0

Beside = tuple[RecordPack | None, list[tuple[Session, bytes]], list[tuple[DurableQueue, RecordPack]], list[QueueGroup]]
"""Submitted besides publishes: retained messages, QoS 2 packet ids of sessions, messages of durable queues, and groups
of queues whose state has changed."""


@dataclass(slots=True)
class _Batch:
    """What one iteration handed over."""

    ticket: int
    size: int
    waiting: int
    received: Sequence[tuple[Session, bytes]] = ()
    failures: int = 0
    has_failed: bool = False
    is_logged: bool = False


class Ingest:
    """Feeds the publishes of the hub to a topic of the log and tells the hub, in order, what has become durable.

    A batch of which any part failed has failed: its QoS 1 and 2 publishes are refused, their senders send again. What
    the other partitions took of it is there already; at least once is what QoS 1 promises. A batch with QoS 2 packet
    ids waits for a log that is unavailable and does not fail because of that.
    """

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        topic: str,
        partitions: int,
        properties: Mapping[str, str],
        *,
        received: ReceivedIds | None = None,
        queues: QueueManager | None = None,
        retained_topic: str = RETAINED_TOPIC,
    ) -> None:
        self._hub = hub
        self._received = received
        self._ids = None if received is None else OrderedIds(received)
        self._queues = queues
        self._log = log_provider
        self._topic = topic
        self._retained_topic = retained_topic
        self._partitions = partitions
        self._properties = properties
        self._batches: deque[_Batch] = deque()
        self._failed_untold = 0  # batches that failed and that the hub has not heard of
        self._logging: deque[_Batch] = deque()  # those whose packet ids were not handed to the store yet
        self._warnings = Throttled(log, interval=10.0)
        self._preparing: asyncio.Task[None] | None = None
        self._ends: dict[int, int] = {}  # of each partition, behind the last record of ours that is durable
        self._next_mark: tuple[int, dict[int, int], int, dict[str, int]] | None = None
        self._mark_at = 0.0
        self._marker: asyncio.TimerHandle | None = None

    async def start(
        self, mode: str, hash_function: str, max_pending: int, *, linger_ms: int = 0, ack_linger_ms: int = 0
    ) -> None:
        """Create the topic if necessary and log publishes from here on. The two times apply to a log that gathers: how
        long QoS 0 publishes wait, and the minimum time between two commits that only acknowledgements wait for."""
        partitions = self._partitions
        try:
            async with asyncio.timeout(START_SECONDS):
                partitions = await self._prepare()
        except (LogError, TimeoutError) as error:
            if isinstance(error, LogError) and not error.is_retryable:
                raise
            # The broker serves all the same: publishes wait or are refused until the log is there.
            why = str(error) or f"no answer in {START_SECONDS:g} s"
            log.warning("the log is not ready, publishes wait for it", topic=self._topic, error=why)
            self._preparing = asyncio.get_running_loop().create_task(self._prepare_later())
        self._hub.log_to(
            self.submit,
            mode=mode,
            partitions=partitions,
            hash_function=hash_function,
            max_pending=max_pending,
            keeps_state=self._received is not None,
            largest_record=self._log.patient_producer.largest_record,
            gathers=self._log.patient_producer.gathers,
            linger_ms=linger_ms,
            ack_linger_ms=ack_linger_ms,
            collect=self._log.patient_producer.collect,
        )
        if self._received is not None and self._received.is_shared:
            self._mark_idle(self._received)

    async def stop(self) -> None:
        self._hub.stop_gathering()
        if self._marker is not None:
            self._marker.cancel()
        if self._preparing is not None:
            self._preparing.cancel()
            await asyncio.wait([self._preparing], timeout=STOP_SECONDS)

    async def _prepare(self) -> int:
        await self._log.admin.create(self._topic, self._partitions, self._properties)
        found = (await self._log.admin.describe(self._topic)).partitions
        if found != self._partitions:
            log.warning(
                "the topic was made with another number of partitions, which stays: set ingest.partitions to it",
                topic=self._topic,
                partitions=found,
                configured=self._partitions,
            )
        return found

    async def _prepare_later(self) -> None:
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                found = await self._prepare()
            except LogError:
                continue
            if found != self._partitions:
                log.error("restart the broker: the topic's partitions were not known when it started", partitions=found)
            return

    def submit(
        self,
        ticket: int,
        packs: list[tuple[int, RecordPack]],
        size: int,
        beside: Beside | None,
    ) -> None:
        """Called by the hub with everything that was published or settled since the last call."""
        waiting = int(bool(packs))
        batch = _Batch(ticket, size, waiting)
        refusal = self._find_refusal() if self._failed_untold else None
        self._batches.append(batch)
        self._logging.append(batch)
        if beside is not None:
            waiting += self._submit_beside(batch, beside, refusal)
        if packs and refusal is not None:
            self._on_packs(batch, packs, [refusal] * len(packs))
        elif packs:
            # If a part of it failed, QoS 2 messages that the log has would be sent and logged again.
            self._log.patient_producer.append_packs(
                self._topic,
                packs,
                partial(self._on_packs, batch, packs),
                is_lasting=bool(batch.received),
                is_quiet=self._hub.is_quiet,
            )
        elif waiting == 0:
            self._on_logged(batch)

    def _submit_beside(self, batch: _Batch, beside: Beside, refusal: LogError | None) -> int:
        """Return how many parts the batch waits for. Some may be done already."""
        retained, received, queued, changed = beside
        waiting = (retained is not None) + len(queued) + bool(changed)
        batch.waiting += waiting
        batch.received = received
        is_lasting = bool(received)
        if self._queues is not None:
            for queue, pack in queued:
                if queue.has_ids:
                    self._mark_queue(queue)
                on_done = partial(self._on_done, batch, pack.count)
                queue.owner.append_pack(pack, on_done, is_lasting=is_lasting, refusal=refusal)
            if changed:
                self._queues.save(changed, partial(self._on_saved, batch))
        if retained is not None:
            on_done = partial(self._on_done, batch, retained.count)
            if refusal is None:
                self._log.patient_producer.append(self._retained_topic, 0, retained, on_done, is_lasting=is_lasting)
            else:
                on_done(refusal)
        return waiting

    @staticmethod
    def _find_refusal() -> LogError:
        """Return why nothing can be appended now: publishers of a failed batch do not know that yet, and would have
        younger messages logged before they send the older ones again."""
        return LogUnavailable("earlier publishes were not logged")

    def _on_packs(
        self, batch: _Batch, packs: list[tuple[int, RecordPack]], results: Sequence[Appended | LogError] | None
    ) -> None:
        batch.waiting -= 1
        if results is None:
            for partition, pack in packs:
                self._ends[partition] = pack.next_offset
        else:
            self._note_results(batch, packs, results)
        if batch.waiting == 0:
            self._on_logged(batch)

    def _note_results(
        self, batch: _Batch, packs: list[tuple[int, RecordPack]], results: Sequence[Appended | LogError]
    ) -> None:
        for (partition, pack), result in zip(packs, results, strict=True):
            if isinstance(result, LogError):
                if self._hub.is_spread:
                    self._hub.not_logged(pack)
                self._count_failed(batch, pack.count, result)
            elif result.base_offset >= 0:
                self._ends[partition] = result.base_offset + result.count

    def _on_done(self, batch: _Batch, count: int, result: Appended | LogError) -> None:
        batch.waiting -= 1
        if isinstance(result, LogError):
            self._count_failed(batch, count, result)
        if batch.waiting == 0:
            self._on_logged(batch)

    def _count_failed(self, batch: _Batch, count: int, error: LogError) -> None:
        self._note_failures(batch, count)
        self._warnings.error("publishes were not logged", per=type(error).__name__, error=str(error), records=count)

    def _note_failures(self, batch: _Batch, count: int) -> None:
        self._failed_untold += not batch.has_failed
        batch.has_failed = True
        batch.failures += count

    def _on_saved(self, batch: _Batch, error: StoreError | None) -> None:
        """What was settled is stored; or it is not, and who settled it is told so."""
        batch.waiting -= 1
        if error is not None:
            self._note_failures(batch, 1)
        if batch.waiting == 0:
            self._on_logged(batch)

    def _on_logged(self, batch: _Batch) -> None:
        """The packet ids of QoS 2 are stored after their messages: what was not logged must not count as received."""
        batch.is_logged = True
        if not batch.received and len(self._logging) == 1:
            self._logging.clear()
            self._finish()
            return
        batch.waiting = 1
        # In their order: a batch that has only ids to release is logged at once, and what an earlier one says of the
        # same session must not be stored over it.
        while self._logging and self._logging[0].is_logged:
            self._store_ids(self._logging.popleft())

    def _store_ids(self, batch: _Batch) -> None:
        if batch.received and not batch.failures and self._ids is not None:
            self._ids.store(batch.ticket, list(batch.received), partial(self._on_stored, batch))
        else:
            self._on_stored(batch)

    def _on_stored(self, batch: _Batch) -> None:
        batch.waiting = 0
        self._finish()

    def _finish(self) -> None:
        # Partitions finish in any order; the hub hears of batches in theirs.
        while self._batches and self._batches[0].waiting == 0:
            done = self._batches.popleft()
            self._failed_untold -= done.has_failed
            self._hub.log_committed(done.ticket, done.size, done.failures)
            if self._received is not None and (self._next_mark is not None or time.monotonic() >= self._mark_at):
                self._mark(self._received, done.ticket)

    def _mark_queue(self, queue: DurableQueue) -> None:
        """From here on its log has packet ids that may not be stored."""
        queue.has_ids = False
        owner = queue.owner
        if self._received is not None and owner.definition.durable and owner.topic not in self._received.queues:
            self._received.mark_queues({owner.topic: owner.end})

    def _mark(self, received: ReceivedIds, ticket: int) -> None:
        """What was durable when the newest batch of then was handed over, has its packet ids stored now."""
        if self._next_mark is not None and ticket >= self._next_mark[0]:
            _, ends, at, queues = self._next_mark
            received.mark(ends, at)
            if queues:
                received.mark_queues(queues)
            self._next_mark = None
        now = time.monotonic()
        if self._next_mark is None and now >= self._mark_at:
            self._mark_at = now + MARK_SECONDS
            queues = {} if self._queues is None else self._queues.ends_of(received.queues)
            self._next_mark = self._hub.ticket, dict(self._ends), now_ms(), queues

    def _mark_idle(self, received: ReceivedIds) -> None:
        """Others write to the same log: a broker that was idle has not to look through all of that when it starts."""
        self._marker = asyncio.get_running_loop().call_later(LONGEST_MARK_SECONDS, self._mark_idle, received)
        if not self._batches:
            received.mark(dict(self._ends), now_ms())

    @property
    def batches_open(self) -> int:
        return len(self._batches)
