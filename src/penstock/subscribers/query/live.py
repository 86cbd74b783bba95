"""The live pass: the tail of the log goes once through all queries that somebody reads, and their rows to the feeds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Consumer, Fetched, LogError, OffsetOutOfRange
from penstock.subscribers.query.feeds import Feed, FeedMemory, Lane
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.source import SLICE_BYTES, SLICE_NS, SLICE_RECORDS, Source, close_consumer
from penstock_client.errors import Unavailable

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import QuerySet, RowError

log = get_logger("penstock.datasub")

POLL_RECORDS = 4_000
POLL_SECONDS = 1.0
RETRY_SECONDS = 0.5
# Evaluation without a pause for others; slices are made as large as fits into it.
TURN_SECONDS = 0.004
LEAST_SLICE = 100
# Between two rounds: what comes meanwhile is evaluated, sent and fetched together.
GATHER_SECONDS = 0.002

NewQueries = Callable[[], "QuerySet"]
OnErrors = Callable[[Plan, int, "Sequence[RowError]"], None]  # plan, partition, errors
OnGone = Callable[[Plan, tuple[int, int, int]], None]  # plan, its counts


class LivePass:
    """Runs while there are feeds; a feed ends when nobody has fetched from it for a while."""

    def __init__(
        self,
        source: Source,
        new_queries: NewQueries,
        memory: FeedMemory,
        *,
        idle_seconds: float,
        on_errors: OnErrors,
        on_gone: OnGone,
    ) -> None:
        self._source = source
        self._new_queries = new_queries
        self._memory = memory
        self._idle_seconds = idle_seconds
        self._on_errors = on_errors
        self._on_gone = on_gone
        self._queries: QuerySet | None = None
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._by_query: dict[int, Feed] = {}
        self._warnings = Throttled(log, interval=10.0)
        self.feeds: dict[str, Feed] = {}
        self.positions: list[int] = []
        self._slice = SLICE_RECORDS
        self._turn = 0.0  # time since others had theirs
        self.records = 0
        self.restarts = 0

    async def feed(self, plan: Plan, partition: int) -> Feed:
        """The plan's feed, with the partition; it begins where the pass is now if there is none. Raises
        Unavailable."""
        if self._task is None or partition >= len(self.positions):
            async with self._starting:
                if self._task is None:
                    await self._start()
                if partition >= len(self.positions):
                    await self._grow()
        feed = self.feeds.get(plan.key)
        if feed is None:
            assert self._queries is not None
            query = self._queries.add(plan)
            feed = self.feeds[plan.key] = self._by_query[query] = Feed(plan, query, list(self.positions))
        feed.used_at = asyncio.get_running_loop().time()
        return feed

    def evaluated_to(self, partition: int) -> int:
        """The next offset it will evaluate; -1 when it does not run."""
        return self.positions[partition] if partition < len(self.positions) else -1

    async def _start(self) -> None:
        queries = self._new_queries()
        partitions = await self._source.partitions()
        ends = [(await self._source.marks(partition)).end for partition in partitions]
        consumer = self._source.log.consumer(group="", auto_offset_reset="none")
        try:
            await consumer.add({self._source.place(partition): end for partition, end in enumerate(ends)})
        except LogError as error:
            await close_consumer(consumer)
            raise Unavailable(f"the end of the log cannot be read: {error}") from None
        self._queries, self._consumer, self.positions = queries, consumer, ends
        self._task = asyncio.get_running_loop().create_task(self._run(consumer), name="penstock-datasub-pass")

    async def _grow(self) -> None:
        """Partitions that were added to the topic since the pass began."""
        assert self._consumer is not None
        for partition in (await self._source.partitions())[len(self.positions) :]:
            end = (await self._source.marks(partition)).end
            try:
                await self._consumer.add({self._source.place(partition): end})
            except LogError as error:
                raise Unavailable(f"the end of the log cannot be read: {error}") from None
            self.positions.append(end)
            for feed in self.feeds.values():
                feed.lanes.append(Lane(feed, end))

    async def close(self) -> None:
        """Who waits is told that there is nothing more."""
        task, self._task = self._task, None
        for feed in list(self.feeds.values()):
            self._remove(feed)
        self.positions = []
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await close_consumer(consumer)

    async def sweep(self, now: float) -> None:
        """Ends feeds that nobody uses, and the pass with the last of them."""
        for feed in list(self.feeds.values()):
            if now - feed.used_at > self._idle_seconds and not feed.is_waited_for:
                self._remove(feed)
        if not self.feeds and self._task is not None:
            async with self._starting:
                if not self.feeds:
                    await self.close()

    def _remove(self, feed: Feed) -> None:
        assert self._queries is not None
        del self.feeds[feed.plan.key]
        del self._by_query[feed.query]
        self._on_gone(feed.plan, self._queries.counts(feed.query))
        self._queries.remove(feed.query)
        self._memory.remove(feed)

    def counts(self, feed: Feed) -> tuple[int, int, int]:
        assert self._queries is not None
        return self._queries.counts(feed.query)

    async def _run(self, consumer: Consumer) -> None:
        while True:
            try:
                fetched = await consumer.poll(POLL_RECORDS, POLL_SECONDS)
            except OffsetOutOfRange as error:
                await self._jump(consumer, error)
                continue
            except LogError as error:
                self._warnings.warning("the log cannot be read for data subscription", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)
                continue
            for item in fetched:
                try:
                    await self._take(item)
                except Exception:
                    # Whoever reads these queries comes to the same records in the log, and is told there.
                    log.exception("records cannot be evaluated", partition=item.partition, offset=item.pack.base_offset)
                    self._begin_anew(item.partition, item.pack.next_offset)
            if fetched:
                await asyncio.sleep(GATHER_SECONDS)

    async def _take(self, item: Fetched) -> None:
        """In slices: neither a large pack nor many queries keep everybody else waiting."""
        at = item.pack.base_offset
        while at < item.pack.next_offset:
            # The time this thread has worked: that others were given the core says nothing about the queries.
            began = time.thread_time()
            at = self._evaluate(item.partition, item.pack, at)
            took = time.thread_time() - began
            self._turn += took
            if self._turn > TURN_SECONDS:
                self._turn = 0.0
                await asyncio.sleep(0)
            if took > TURN_SECONDS:
                self._slice = max(LEAST_SLICE, self._slice // 2)
            elif took < TURN_SECONDS / 4:
                self._slice = min(SLICE_RECORDS, self._slice * 2)
        self.records += item.pack.count

    def _evaluate(self, partition: int, pack: RecordPack, at: int) -> int:
        """The next slice; where the one after it begins."""
        assert self._queries is not None
        found = self._queries.evaluate(pack, partition, at, self._slice, SLICE_BYTES, SLICE_NS)
        after = self._queries.next_offset
        if after < 0:
            after = pack.next_offset  # behind the last record there may be marks that only the log knows
        self.positions[partition] = after
        for query, block in found:
            feed = self._by_query.get(query)
            if feed is not None:
                self._memory.add(feed.lanes[partition], block)
        self._report(partition)
        return after

    def _report(self, partition: int) -> None:
        assert self._queries is not None
        by_query: dict[int, list[RowError]] = {}
        for error in self._queries.take_errors():
            by_query.setdefault(error.query, []).append(error)
        for query, errors in by_query.items():
            if query in self._by_query:
                self._on_errors(self._by_query[query].plan, partition, errors)

    async def _jump(self, consumer: Consumer, error: OffsetOutOfRange) -> None:
        """The log has lost what the pass stood at. Feeds start over, so their readers see that it is not there."""
        place = error.partition
        self._warnings.warning("the log has lost records that were not evaluated", error=str(error))
        self.restarts += 1
        if place is None:
            await asyncio.sleep(RETRY_SECONDS)
            return
        try:
            await consumer.seek(place, error.end)
        except LogError as failed:
            self._warnings.warning("the end of the log cannot be read", error=str(failed))
            await asyncio.sleep(RETRY_SECONDS)
            return
        self._begin_anew(place.partition, error.end)

    def _begin_anew(self, partition: int, offset: int) -> None:
        self.positions[partition] = offset
        for feed in self.feeds.values():
            self._memory.forget(feed.lanes[partition], offset)
