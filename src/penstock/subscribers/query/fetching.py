"""Answers fetches: from the feed where the consumer is close to the end, from the log where it is not.

A fetch ends with `min_rows` rows, with `max_bytes`, when its time is over, or at the end of the log with what it has.
When there is nothing it is parked there: rows answer it at once, its deadline at the latest.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Protocol

from penstock.settings.datasub import DataSubscriptionSettings
from penstock.subscribers.query.feeds import Feed, FeedMemory, Lane
from penstock.subscribers.query.live import LivePass, NewQueries
from penstock.subscribers.query.meta import plans_of
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.replay import ReplayClock
from penstock.subscribers.query.source import SLICE_BYTES, SLICE_NS, SLICE_RECORDS, Source, out_of_range
from penstock_client import wire
from penstock_client.errors import OutOfRange, Unavailable

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import Block, QuerySet, RowError
    from penstock._ext.record.segment import RecordPack
    from penstock.subscribers.query.catalogue import QueryTopic

# Records that are known to be in the log are waited for this long, even by a fetch that has less time.
LEAST_READ_SECONDS = 1.0
LONGEST_WAIT_MS = 60_000
# An answer that comes so long after its deadline is counted: something keeps fetches waiting.
OVERDUE_SECONDS = LEAST_READ_SECONDS + 1.0
SWEEP_SECONDS = 5.0
# Queries that nobody evaluates now and whose errors are still known.
MOST_REMEMBERED = 10_000


class DeadLetters(Protocol):
    def report(self, plan: Plan, partition: int, errors: Sequence[RowError]) -> None: ...


class Answer:
    """What a fetch has collected."""

    def __init__(self, request: wire.Fetch, most_bytes: int) -> None:
        self.partition = request.partition
        self.position = request.offset
        self.is_wanted = True  # until its consumer's partitions are others
        self.parked: asyncio.Future[None] | None = None
        self.blocks: list[Block] = []
        self.rows = 0
        self.bytes = 0
        # A replay goes block by block, and how many rows that is is seen when they are there.
        self.min_rows = 1 if request.replay else max(1, request.min_rows)
        self.max_bytes = max(1, min(request.max_bytes, most_bytes))

    @property
    def is_full(self) -> bool:
        return self.rows >= self.min_rows or self.bytes >= self.max_bytes

    def add(self, blocks: Sequence[Block]) -> None:
        for block in blocks:
            self.blocks.append(block)
            self.rows += block.rows
            self.bytes += block.size


class History:
    """A plan of its own set, for who reads the log behind the feed."""

    def __init__(self, plan: Plan, queries: QuerySet) -> None:
        self.plan = plan
        self.queries = queries
        self.query = queries.add(plan)
        self.used_at = 0.0


class Fetching:
    """The port `Fetcher`."""

    def __init__(
        self,
        source: Source,
        new_queries: NewQueries,
        settings: DataSubscriptionSettings,
        dead_letters: DeadLetters,
    ) -> None:
        self._source = source
        self._new_queries = new_queries
        self._settings = settings
        self._dead_letters = dead_letters
        self.memory = FeedMemory(settings.feed_bytes, settings.feeds_bytes)
        self.live = LivePass(
            source,
            new_queries,
            self.memory,
            idle_seconds=settings.feed_idle,
            on_errors=dead_letters.report,
            on_gone=self._keep_counts,
        )
        source.evaluated_to = self.live.evaluated_to
        self._history: dict[str, History] = {}
        self._gone_errors: Counter[str] = Counter()  # of plans whose feed is gone, by key
        # One slice of all that catch up in each turn of the loop: as many as there are readers would be a long turn.
        self._turn = asyncio.Lock()
        self._replays = ReplayClock()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_closed = False
        self.parked = 0
        self._under_way: dict[tuple[str, str], set[Answer]] = {}  # by group and consumer
        self.figures: Counter[str] = Counter()

    def start(self) -> None:
        self._sweeping = asyncio.get_running_loop().create_task(self._sweep(), name="penstock-datasub-sweep")

    async def close(self) -> None:
        """Those that wait are told to come again."""
        self._is_closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for feed in self.live.feeds.values():
            feed.wake()
        await self.live.close()
        await self._source.close()

    def wake(self, group: str, consumer: str) -> None:
        for answer in self._under_way.get((group, consumer), ()):
            answer.is_wanted = False
            if answer.parked is not None:
                _end(answer.parked)

    async def fetch(self, request: wire.Fetch, topic: QueryTopic) -> wire.Fetched:
        if request.partition >= self._source.count:
            await self._source.partitions()
        self._source.place(request.partition)
        if request.offset < 0:
            marks = await self._source.marks(request.partition)
            raise out_of_range(request.offset, marks.first, marks.end)
        clock = asyncio.get_running_loop().time
        deadline = clock() + min(max(request.max_wait_ms, 0), LONGEST_WAIT_MS) / 1000
        with self._answering(request) as answer:
            await self._answer(request, topic, answer, deadline)
        if not answer.rows and clock() > deadline + OVERDUE_SECONDS:
            self.figures["overdue"] += 1
        wait_ms = self._replays.cut(request, answer, topic.plan.key) if request.replay else 0.0
        marks = await self._source.recent_marks(request.partition)
        self.figures["fetches"] += 1
        self.figures["rows"] += answer.rows
        return wire.Fetched(
            next_offset=answer.position,
            begin=marks.first,
            end=max(marks.end, answer.position),
            blocks=[block.encode() for block in answer.blocks],
            wait_ms=wait_ms,
        )

    @contextlib.contextmanager
    def _answering(self, request: wire.Fetch) -> Iterator[Answer]:
        """Meanwhile `wake` finds it."""
        key = request.group, request.consumer
        answer = Answer(request, self._settings.max_fetch_bytes)
        of_consumer = self._under_way.setdefault(key, set())
        of_consumer.add(answer)
        try:
            yield answer
        finally:
            of_consumer.remove(answer)
            if not of_consumer:
                self._under_way.pop(key, None)

    async def _answer(self, request: wire.Fetch, topic: QueryTopic, answer: Answer, deadline: float) -> None:
        try:
            if not request.replay or not self._replays.go_on(request, answer, topic.plan.key):
                await self._collect(plans_of(topic), answer, deadline)
        except OutOfRange:
            self.figures["out_of_range"] += 1
            if not answer.rows:
                raise

    async def _collect(self, plans: Sequence[Plan], answer: Answer, deadline: float) -> None:
        clock = asyncio.get_running_loop().time
        while answer.is_wanted and not self._is_closed:
            feeds = [await self.live.feed(plan, answer.partition) for plan in plans]
            lanes = [feed.lanes[answer.partition] for feed in feeds]
            start = max(lane.start for lane in lanes)
            if answer.position < start:
                await self._catch_up(plans, answer, start, deadline)
                if answer.rows or clock() >= deadline:
                    return
                continue
            tail = self.live.positions[answer.partition]
            if answer.position > tail:
                await self._check_end(answer)
            elif self._take(lanes, answer, tail):
                return
            if clock() >= deadline or not answer.is_wanted:
                return
            await self._park(feeds, lanes, answer, deadline)
        if self._is_closed and not answer.rows:
            raise Unavailable("the broker is going down")

    def _take(self, lanes: Sequence[Lane], answer: Answer, tail: int) -> bool:
        """Whether the feed had rows; the answer has them, and stands behind them."""
        if len(lanes) == 1:
            blocks, is_cut = lanes[0].find(answer.position, answer.min_rows, answer.max_bytes)
            answer.position = blocks[-1].last_offset + 1 if is_cut else tail
        else:
            found = [lane.find(answer.position, answer.min_rows, answer.max_bytes) for lane in lanes]
            answer.position = min(part[-1].last_offset + 1 if is_cut else tail for part, is_cut in found)
            blocks = [cut for part, _ in found for block in part if (cut := _before(block, answer.position))]
            blocks.sort(key=_first_offset)
        answer.add(blocks)
        return bool(blocks)

    async def _park(self, feeds: Sequence[Feed], lanes: Sequence[Lane], answer: Answer, deadline: float) -> None:
        """Until there are rows, or the time is over."""
        if self.parked >= self._settings.max_parked:
            raise Unavailable(f"{self.parked} fetches wait for rows already (data_subscription.max_parked)")
        loop = asyncio.get_running_loop()
        future = answer.parked = loop.create_future()
        for lane in lanes:
            lane.waiting.append(future)
        timer = loop.call_at(deadline, _end, future)
        self.parked += 1
        try:
            await future
        finally:
            self.parked -= 1
            answer.parked = None
            timer.cancel()
            for lane in lanes:
                if future in lane.waiting:
                    lane.waiting.remove(future)
            for feed in feeds:
                feed.used_at = loop.time()

    async def _check_end(self, answer: Answer) -> None:
        """The pass is not there yet, or there is no such place."""
        marks = await self._source.marks(answer.partition)
        if answer.position > marks.end:
            raise out_of_range(answer.position, marks.first, marks.end)

    async def _catch_up(self, plans: Sequence[Plan], answer: Answer, start: int, deadline: float) -> None:
        """Reads the log up to where the feed begins, slice by slice."""
        marks = await self._source.recent_marks(answer.partition)
        if answer.position < marks.first:
            raise out_of_range(answer.position, marks.first, marks.end)
        clock = asyncio.get_running_loop().time
        least = clock() + LEAST_READ_SECONDS
        place = self._source.place(answer.partition)
        async with self._source.readers.at(place, answer.position, max(deadline, least) - clock()) as reader:
            while answer.position < start and not answer.is_full and not self._is_closed:
                packs = await reader.read(max(deadline, least) - clock())
                for pack in packs:
                    self.figures["catch_up_records"] += pack.count
                    while answer.position < pack.next_offset:
                        async with self._turn:
                            self._take_slice(plans, answer, pack)
                            await asyncio.sleep(0)
                        if answer.is_full or clock() >= deadline or self._is_closed:
                            return
                if not packs:
                    return

    def _take_slice(self, plans: Sequence[Plan], answer: Answer, pack: RecordPack) -> None:
        """As many records of the pack as one may do before others have their turn."""
        found = [self._evaluate(plan, answer, pack) for plan in plans]
        after = min(after for _, after in found)
        if len(plans) == 1:
            answer.add(found[0][0])
        else:
            answer.add([cut for part, _ in found for block in part if (cut := _before(block, after))])
            answer.blocks.sort(key=_first_offset)
        answer.position = after

    def _evaluate(self, plan: Plan, answer: Answer, pack: RecordPack) -> tuple[list[Block], int]:
        """The rows, and where the next slice begins."""
        history = self._history.get(plan.key)
        if history is None:
            history = self._history[plan.key] = History(plan, self._new_queries())
        history.used_at = asyncio.get_running_loop().time()
        found = history.queries.evaluate(pack, answer.partition, answer.position, SLICE_RECORDS, SLICE_BYTES, SLICE_NS)
        after = history.queries.next_offset
        if after < 0 or after >= pack.next_offset:
            after = pack.next_offset
        errors = history.queries.take_errors()
        if errors:
            self._dead_letters.report(plan, answer.partition, errors)
        return [block for _, block in found], after

    def errors_of(self, plan: Plan) -> int:
        """Rows of this query with an error, since the start of this node, as often as they were evaluated."""
        errors = self._gone_errors[plan.key]
        feed = self.live.feeds.get(plan.key)
        if feed is not None:
            errors += self.live.counts(feed)[2]
        history = self._history.get(plan.key)
        return errors + (0 if history is None else history.queries.counts(history.query)[2])

    def _keep_counts(self, plan: Plan, counts: tuple[int, int, int]) -> None:
        if counts[2]:
            self._gone_errors[plan.key] += counts[2]
        while len(self._gone_errors) > MOST_REMEMBERED:
            del self._gone_errors[next(iter(self._gone_errors))]

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._settings.feed_idle))
            now = loop.time()
            await self.live.sweep(now)
            await self._source.readers.sweep(now)
            await self._source.refresh()
            idle = [one for one in self._history.values() if now - one.used_at > self._settings.feed_idle]
            for history in idle:
                self._keep_counts(history.plan, history.queries.counts(history.query))
                del self._history[history.plan.key]


def _first_offset(block: Block) -> int:
    return block.first_offset


def _before(block: Block, offset: int) -> Block | None:
    """The rows before the offset; None when there are none."""
    if block.last_offset < offset:
        return block
    rows = sum(1 for one in block.offsets() if one < offset)
    return block.slice(block.first_offset, rows) if rows else None


def _end(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
