"""Dispatch: what is durable in the log of all messages is written to the logs of the clients that are to have it.

    tbmq.msg.all ──poll──▶ match, in C ──▶ one pack per client ──append──▶ durable ──▶ commit tbmq.msg.all

A round is finished before the next is read, so the packs of a client are appended in the order of the log, and nothing
is ever skipped: what the log does not take now is tried until it does. After a crash the rounds since the last commit
come again; the reader of a client's log passes over what it has seen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from penstock._ext.application.feed import Feed, refill, take_filled
from penstock._ext.dispatch.desk import DispatchDesk, Round
from penstock._ext.hub.connection import Hub
from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.services.log_names import DISPATCH_GROUP
from penstock.storage.log.base import (
    Committed,
    Consumer,
    Fetched,
    Log,
    LogError,
    LogUnavailable,
    RecordTooLarge,
    TopicNotFound,
    TopicPartition,
)
from penstock.storage.log.lag_watch import LagWatch
from penstock.subscribers.device.delivery import DeviceDelivery

log = get_logger("penstock.dispatch")

INSTANCE = "dispatcher"
# A round ends with a commit of the log, which takes its time however little there is. It must be large enough for what
# comes meanwhile: else partitions wait for their turn in the next rounds, and those with many publishers most.
RECORDS_AT_ONCE = 12_000
POLL_SECONDS = 5.0
COMMIT_SECONDS = 0.2
LONGEST_PAUSE = 5.0
JOIN_TRIES = 400
JOIN_SECONDS = 0.05
MOST_ROUNDS = 500
STALL_SECONDS = 0.005
CATCH_UP_SECONDS = 5.0
TURN_SECONDS = 30.0


Filled = tuple[Feed, int, RecordPack]
SharedFeeds = list[tuple[bytes, Feed]]
"""Topics of filters that clients share, which this broker does not write yet."""
MakeTopic = Callable[[str], Awaitable[bool]]
"""Makes a client's topic again; False if nobody is to have it any more."""


class Dispatcher:
    """A member of the group from the start, because joining takes Kafka some seconds; it reads while there are clients
    with a log of their own."""

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        topic: str,
        make_topic: MakeTopic,
        *,
        devices: DeviceDelivery | None = None,
        group: str = DISPATCH_GROUP,
    ) -> None:
        self._group = group
        self._desk = DispatchDesk(hub)
        self._devices = devices
        self._open: deque[tuple[Round, dict[TopicPartition, int]]] = deque()
        # Messages in the windows of clients point to their round: one that was not finished has to stay, too.
        self._begun: list[Round] = []
        self._log = log_provider
        self._topic = topic
        self._make_topic = make_topic
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._assigned: set[TopicPartition] = set()
        self._replayed_to: dict[TopicPartition, int] = {}
        self._marks: dict[TopicPartition, int] = {}
        self._done: dict[TopicPartition, int] = {}  # the next offset of each partition that is to be dispatched
        self._turn = asyncio.Lock()  # a round, or an adoption
        self._warnings = Throttled(log, interval=10.0)
        self._is_busy = False
        self._is_active = False
        self._activating = asyncio.Lock()
        self.lag_watch = LagWatch(self.lag)
        self.rounds = 0
        self.damaged = 0
        self.retries = 0
        self.too_large = 0

    @property
    def is_active(self) -> bool:
        return self._is_active

    @property
    def is_busy(self) -> bool:
        """Whether a round is under way."""
        return self._is_busy or bool(self._open)

    @property
    def is_committed(self) -> bool:
        """Whether nothing is under way, and nothing that was dispatched would be again after a crash."""
        return not self.is_busy and self._positions == self._committed

    @contextlib.asynccontextmanager
    async def held(self, seconds: float) -> AsyncIterator[bool]:
        """Between two rounds, with all that was dispatched committed; False where that takes longer than this. Nothing
        is dispatched within the context. Raises LogError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        try:
            async with asyncio.timeout(seconds):
                await self._turn.acquire()
        except TimeoutError:
            yield False
            return
        try:
            self._close_rounds()
            while self._open and loop.time() < deadline:  # DEVICEs acknowledge, or their messages are stored
                await asyncio.sleep(STALL_SECONDS)
                self._close_rounds()
            if not self._open and self._consumer is not None:
                await self._commit(self._consumer)
            yield self.is_committed
        finally:
            self._turn.release()

    @property
    def dispatched(self) -> dict[int, int]:
        """The newest offset of each partition that was dispatched since the start."""
        return {place.partition: offset - 1 for place, offset in self._done.items() if offset}

    def start(self) -> None:
        """Joins the group; nothing is read yet."""
        # A static member: a broker that was killed has its partitions back as soon as it is there again.
        self._consumer = self._log.consumer(self._group, instance_id=INSTANCE)
        self._consumer.subscribe([self._topic], self._on_assigned, self._on_revoked)
        self._task = asyncio.get_running_loop().create_task(self._run(self._consumer))
        self.lag_watch.start()

    async def activate(self, *, from_now: bool) -> None:
        """Goes on where the last commit was; `from_now`: nobody was to have what came before. Raises LogError."""
        async with self._activating:
            if self._is_active or self._consumer is None:
                return
            if from_now:
                await self._skip_to_end(self._consumer)
            else:
                await self._find_replay(self._consumer)
            self._is_active = True
            self._consumer.resume(self._consumer.assignment())

    def _on_assigned(self, partitions: Sequence[TopicPartition]) -> None:
        self._assigned.update(partitions)
        if not self._is_active and self._consumer is not None:
            self._consumer.pause(partitions)

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        self._assigned.difference_update(partitions)
        for place in partitions:
            self._positions.pop(place, None)
            self._committed.pop(place, None)
            self._done.pop(place, None)

    async def mark(self) -> None:
        """A later `activate(from_now=True)` begins here. Raises LogError."""
        if self._consumer is not None:
            self._marks = await self._find_ends(self._consumer)

    async def _find_ends(self, consumer: Consumer) -> dict[TopicPartition, int]:
        partitions = (await self._log.admin.describe(self._topic)).partitions
        places = [TopicPartition(self._topic, number) for number in range(partitions)]
        return {place: (await consumer.watermarks(place)).end for place in places}

    async def _find_replay(self, consumer: Consumer) -> None:
        """What is in the log now was published before this start."""
        self._replayed_to = await self._find_ends(consumer)

    async def _skip_to_end(self, consumer: Consumer) -> None:
        # Only a member of a group may commit, and joining takes Kafka a while.
        for _ in range(JOIN_TRIES):
            if consumer.assignment():
                break
            await asyncio.sleep(JOIN_SECONDS)
        else:
            raise LogUnavailable(f"the group {self._group} has not got the topic {self._topic} yet")
        ends = {}
        for place in consumer.assignment():
            mark = self._marks.get(place)
            ends[place] = Committed((await consumer.watermarks(place)).end if mark is None else mark)
            await consumer.seek(place, ends[place].offset)
            self._done[place] = ends[place].offset
        await consumer.commit(ends)

    async def stop(self) -> None:
        await self.lag_watch.stop()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=2.0)
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._close_rounds()
            for last in (self._commit(consumer), consumer.close()):
                with contextlib.suppress(LogError, TimeoutError):
                    async with asyncio.timeout(2.0):
                        await last

    async def lag(self) -> int:
        """Records of the log that were not dispatched yet."""
        if self._consumer is None or not self._is_active:
            return 0
        return sum((await self._consumer.lag()).values())

    async def _run(self, consumer: Consumer) -> None:
        loop = asyncio.get_running_loop()
        next_commit = loop.time() + COMMIT_SECONDS
        pause = 0.1
        while True:
            try:
                seconds = COMMIT_SECONDS if self._open or self._positions != self._committed else POLL_SECONDS
                fetched = await consumer.poll(RECORDS_AT_ONCE, seconds)
                if fetched:
                    async with self._turn:
                        await self._dispatch_or_rewind(consumer, fetched)
                self._close_rounds()
                if loop.time() >= next_commit:
                    await self._commit(consumer)
                    next_commit = loop.time() + COMMIT_SECONDS
                pause = 0.1
            except LogError as error:
                self._warnings.error("dispatch waits for the log", error=str(error))
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _dispatch_or_rewind(self, consumer: Consumer, fetched: list[Fetched]) -> None:
        dispatched = Round()
        self._begun.append(dispatched)
        try:
            await self._dispatch(fetched, dispatched)
            self._begun.pop()
        except Exception as error:  # whatever it is, these records must not be passed over
            log.exception("a round of dispatch failed, it is done again", error=repr(error))
            self._is_busy = False
            take_filled(self._desk.hub)
            if self._devices is not None:
                self._devices.give(None)
            await asyncio.sleep(COMMIT_SECONDS)
            for item in fetched:
                place = TopicPartition(item.topic, item.partition)
                if place in self._assigned:
                    await consumer.seek(place, item.pack.base_offset)
                    self._done[place] = item.pack.base_offset

    async def _dispatch(self, fetched: list[Fetched], dispatched: Round) -> None:
        self._is_busy = True
        for item in fetched:
            place = TopicPartition(item.topic, item.partition)
            is_replay = item.pack.base_offset < self._replayed_to.get(place, 0)
            self.damaged += self._desk.dispatch(item.pack, item.partition, dispatched, is_replay)
            while self._desk.position >= 0:
                # A subscriber here cannot take what other brokers send as fast, or matching takes long: the log can
                # wait, for a while.
                position = self._desk.position
                await self._hand_over(dispatched)
                await asyncio.sleep(0)
                while self._desk.is_stalled:  # noqa: ASYNC110  # the compiled side has no events
                    await asyncio.sleep(STALL_SECONDS)
                self.damaged += self._desk.dispatch(item.pack, item.partition, dispatched, is_replay, position)
            self._done[place] = item.next_offset
        await self._hand_over(dispatched)
        self._open.append(
            (dispatched, {TopicPartition(item.topic, item.partition): item.next_offset for item in fetched})
        )
        self.rounds += 1
        self._is_busy = False
        while len(self._open) > MOST_ROUNDS or (self._devices is not None and self._devices.is_busy):
            # Devices are slow to acknowledge, or their store to store: the log can wait.
            await asyncio.sleep(0.01)
            self._close_rounds()

    async def _hand_over(self, dispatched: Round) -> None:
        """To the stores and logs of the clients. Nothing else may run between dispatch and this: whoever looks what is
        for the store, or for a log, would take it for his own."""
        if self._devices is not None:
            self._devices.give(dispatched)
        await self._append(take_filled(self._desk.hub))

    # ---- sessions that move between brokers ----

    async def leave(self, remove: Callable[[], None]) -> dict[int, int]:
        """Calls `remove` between two rounds; what of each partition was dispatched before, durably by now."""
        async with self._turn:
            remove()
            return {place.partition: offset for place, offset in (await self._where()).items()}

    async def _where(self) -> dict[TopicPartition, int]:
        """Of every partition, also of those the group has not given to us yet."""
        if not self._is_active or self._consumer is None:
            return {}
        partitions = (await self._log.admin.describe(self._topic)).partitions
        places = [TopicPartition(self._topic, number) for number in range(partitions)]
        unknown = [place for place in places if place not in self._done]
        if unknown:
            for place, committed in (await self._consumer.committed(unknown)).items():
                self._done.setdefault(place, 0 if committed is None else committed.offset)
        return {place: self._done[place] for place in places}

    async def adopt(
        self, starts: Mapping[int, int], insert: Callable[[], None], feeds: SharedFeeds, filled_to: Mapping[int, int]
    ) -> int:
        """Calls `insert` between two rounds, which puts sessions into the trie, marked as adopted; everything from
        `starts` on that was dispatched here already is repeated for them, and from `filled_to` on for the shared feeds
        that begin with them. How many records were repeated for the sessions. Raises LogError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + CATCH_UP_SECONDS
        while True:
            async with self._turn:
                here = await self._where()
                wanted = {place: starts[place.partition] for place in here if place.partition in starts}
                # Who has been served elsewhere further than we are, waits until we are there.
                if loop.time() > deadline or all(here[place] >= start for place, start in wanted.items()):
                    await self.refill(feeds, filled_to)
                    insert()
                    missed = {place: (start, here[place]) for place, start in wanted.items() if start < here[place]}
                    return await self._repeat(missed) if missed else 0
            await asyncio.sleep(STALL_SECONDS)

    async def refill(self, feeds: SharedFeeds, starts: Mapping[int, int]) -> dict[int, int]:
        """What is in the log from `starts` on and was dispatched here already is written to the feeds; where that ends.
        Raises LogError."""
        here = await self._where()
        missed = {
            place: (starts[place.partition], end)
            for place, end in here.items()
            if starts.get(place.partition, end) < end
        }
        if feeds and missed:
            await self._repeat(missed, feeds)
        return {place.partition: max(starts.get(place.partition, end), end) for place, end in here.items()}

    @contextlib.asynccontextmanager
    async def filling(self, feeds: SharedFeeds, starts: Mapping[int, int]) -> AsyncIterator[None]:
        """Between two rounds, with all that `refill` writes written: feeds that begin within the context miss nothing
        from `starts` on. Raises LogError."""
        async with self.between_rounds():
            await self.refill(feeds, starts)
            yield

    @contextlib.asynccontextmanager
    async def between_rounds(self) -> AsyncIterator[None]:
        """Pause dispatch within the context; everything dispatched before is in the logs of the clients. Raises
        LogError."""
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await self._turn.acquire()
        except TimeoutError:
            raise LogUnavailable("dispatch has been busy for too long with what is before") from None
        try:
            yield
        finally:
            self._turn.release()

    async def _repeat(self, missed: Mapping[TopicPartition, tuple[int, int]], feeds: SharedFeeds | None = None) -> int:
        """For adopted sessions or, where there are any, for the feeds."""
        consumer = self._log.consumer("")
        repeated = 0
        try:
            left = {}
            for place, (start, end) in missed.items():
                first = (await consumer.watermarks(place)).first
                if max(start, first) < end:
                    left[place] = end
                    await consumer.add({place: max(start, first)})
            while left:
                fetched = await consumer.poll(RECORDS_AT_ONCE, POLL_SECONDS)
                dispatched = Round()
                for item in fetched:
                    place = TopicPartition(item.topic, item.partition)
                    if place in left:
                        repeated += item.pack.count
                        if feeds:
                            await self._append(refill(self._desk.hub, item.pack, item.partition, feeds, left[place]))
                        else:
                            self._desk.dispatch(
                                item.pack,
                                item.partition,
                                dispatched,
                                is_replay=True,
                                is_adoption=True,
                                until=left[place],
                            )
                            await self._hand_over(dispatched)
                        if item.next_offset >= left[place]:
                            del left[place]
                            await consumer.remove([place])
                await self._settle(dispatched)
                if not fetched:
                    raise LogUnavailable("what another broker has not dispatched cannot be read now")
        finally:
            await consumer.close()
        return repeated

    @staticmethod
    async def _settle(dispatched: Round) -> None:
        """It is stored: no commit stands for these records any more."""
        deadline = asyncio.get_running_loop().time() + CATCH_UP_SECONDS
        while dispatched.pending > 0:
            if asyncio.get_running_loop().time() > deadline:
                raise LogUnavailable("what another broker has not dispatched cannot be stored now")
            await asyncio.sleep(STALL_SECONDS)

    def _close_rounds(self) -> None:
        """Rounds of which everything is acknowledged or stored, from the oldest on."""
        while self._open and self._open[0][0].pending <= 0:
            _, ends = self._open.popleft()
            for place, offset in ends.items():
                if place in self._assigned:
                    self._positions[place] = offset

    async def _commit(self, consumer: Consumer) -> None:
        changed = {place: offset for place, offset in self._positions.items() if self._committed.get(place) != offset}
        if changed:
            await consumer.commit({place: Committed(offset) for place, offset in changed.items()})
            self._committed.update(changed)

    async def _append(self, filled: list[Filled]) -> None:
        """Returns when all of it is durable."""
        pause = 0.05
        while filled:
            results = await asyncio.gather(
                *(self._log.producer.send(feed.topic, partition, pack) for feed, partition, pack in filled),
                return_exceptions=True,
            )
            again: list[Filled] = []
            for item, result in zip(filled, results, strict=True):
                if isinstance(result, BaseException):
                    if not isinstance(result, LogError):
                        raise result
                    if isinstance(result, RecordTooLarge):
                        await self._append_one_by_one(*item)
                        continue
                    self._warnings.error(
                        "messages of a client cannot be appended to its log, they are tried again", error=str(result)
                    )
                    if not isinstance(result, TopicNotFound) or await self._is_wanted(item[0].topic):
                        again.append(item)
            if again:
                self.retries += len(again)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
            filled = again

    async def _append_one_by_one(self, feed: Feed, partition: int, pack: RecordPack) -> None:
        """One of the records is larger than the topic takes. It is lost for this client, instead of keeping everything
        behind it from everybody; the others are not, and keep their order."""
        pack.place(0)
        for number in range(pack.count):
            try:
                await self._log.producer.send(feed.topic, partition, pack.slice(number, 1))
            except RecordTooLarge as error:
                self.too_large += 1
                self._warnings.error(
                    "a message is larger than the topic of a client takes, and lost for this client", error=str(error)
                )
            except LogError:
                await self._append([(feed, partition, pack.slice(number, 1))])

    async def _is_wanted(self, topic: str) -> bool:
        """Whether the topic is there again, or may be later."""
        try:
            return await self._make_topic(topic)
        except LogError as error:
            self._warnings.error("the topic of a client cannot be made again yet", error=str(error))
            return True

    def counters(self) -> dict[str, int]:
        return {
            "dispatch_rounds": self.rounds,
            "dispatch_damaged": self.damaged,
            "dispatch_retries": self.retries,
            "dispatch_too_large": self.too_large,
            "dispatch_open_rounds": len(self._open),
            "dispatch_lag": self.lag_watch.records,
        }
