"""What both consumers are made of: a member of a group, its partitions, and what waits for the application.

It calls nobody: what the application must know comes out of `next` in the order it happened, so that its callbacks run
where it polls. Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from penstock_client.config import ConsumerConfig
from penstock_client.errors import BadRequest, DataError, NotAMember, OutOfRange, StaleEpoch, TopicRefused
from penstock_client.fetcher import Fetcher
from penstock_client.link import Link
from penstock_client.membership import READY, REBALANCING, Membership
from penstock_client.messages import Message, make_error_message
from penstock_client.owned import NOWHERE, Owned, take_over
from penstock_client.partitions import OFFSET_INVALID, TopicPartition
from penstock_client.wire import Assignment, Commit, Partition

logger = logging.getLogger("penstock.datasub")

Offsets = list[tuple[str, int, int]]
# Errors are for a person to read; an application that does not poll has no use for the thousandth.
_MOST_EVENTS = 1_000


@dataclass(frozen=True, slots=True)
class Rebalance:
    """Partitions that came or went; `is_lost`: others may have had them already, and what was not committed comes
    again."""

    partitions: list[TopicPartition]
    is_assigned: bool
    is_lost: bool = False


class Engine:
    def __init__(self, config: ConsumerConfig) -> None:
        self.config = config
        self.link = Link(config)
        self.membership = Membership(self.link, config, self)
        self.owned: dict[tuple[str, int], Owned] = {}
        self.rows = 0
        self._fetcher = Fetcher(self.link, config, self.membership, self)
        self._topics: list[str] = []
        self._ready: deque[Owned] = deque()
        self._events: deque[Message | Rebalance] = deque()
        self._changed = asyncio.Event()
        # Where the application was when a partition went away: it has everything before that, unless its callbacks
        # throw away what is not committed.
        self._left_at: dict[tuple[str, int], int] = {}
        self._keeps_what_it_got = True
        self._refused: dict[str, str] = {}
        self._is_storing = False
        self._commit_due = 0.0
        self._committing: asyncio.Task[None] | None = None
        self._commits: set[asyncio.Task[None]] = set()
        self.is_closed = False

    # The subscription

    @property
    def topics(self) -> list[str]:
        return list(self._topics)

    async def subscribe(self, topics: list[str], *, has_callbacks: bool) -> None:
        self._check_open()
        if not topics or not all(isinstance(topic, str) and topic for topic in topics):
            raise BadRequest("subscribe to a list of topics, at least one; unsubscribe() is for none")
        self._keeps_what_it_got = not has_callbacks
        limit = self.config.subscribe_timeout_ms / 1000
        deadline = self._now() + limit if limit else math.inf
        told = ""
        while True:
            try:
                await self._join(list(dict.fromkeys(topics)))
                return
            except DataError as error:
                if not error.is_retryable or self._now() >= deadline:
                    raise
                if str(error) != told:
                    told = str(error)
                    logger.warning("group %s: cannot subscribe yet, trying again: %s", self.config.group, error)
            await asyncio.sleep(min(self.link.pause, max(0.0, deadline - self._now())))
            self._check_open()

    async def _join(self, topics: list[str]) -> None:
        if not self.link.is_up:
            await self.link.connect()
        self._refused.clear()
        self._commit_due = self._now() + self.config.auto_commit_interval_ms / 1000
        await self.membership.join(topics)
        self._topics = topics

    async def unsubscribe(self, *, timeout: float = 10.0, is_all_finished: bool = True) -> None:
        """After a commit if that is automatic. What the broker cannot be told it will find out."""
        if not self._topics:
            return
        self._topics = []
        self._fetcher.stop(self.owned.values())
        try:
            if self.config.auto_commit and self.link.is_up:
                async with asyncio.timeout(timeout):
                    await self._commit_last(is_all_finished)
            await self.membership.leave(timeout)
        except (DataError, TimeoutError) as error:
            logger.warning("group %s: leaving without a word: %s", self.config.group, error)
        finally:
            self.membership.forsake()
            self._drop(list(self.owned.values()))
            self._events.clear()
            self._left_at.clear()

    async def close(self, *, timeout: float = 10.0, is_all_finished: bool = True) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        try:
            await self.unsubscribe(timeout=timeout, is_all_finished=is_all_finished)
        finally:
            await self.link.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise BadRequest("the consumer is closed")

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # Polling

    async def begin_poll(self) -> None:
        """What the application got before, it has worked on: it may be committed from now on."""
        self._check_open()
        if not self._topics:
            raise BadRequest("not subscribed: call subscribe() first")
        for owned in self.owned.values():
            owned.finished = owned.position
        self.membership.begin_poll()
        if self.membership.is_expelled:
            await self.membership.rejoin()
        self.tick()

    def end_poll(self) -> None:
        self.membership.end_poll()

    async def next(self, timeout: float | None) -> Message | Rebalance | None:
        """The next thing for the application. Cancelled, it has taken nothing."""
        deadline = None if timeout is None else self._now() + timeout
        while True:
            found = self.take()
            if found is not None:
                return found
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                return self.take()

    async def gather(self, most: int, timeout: float | None) -> tuple[list[Message], Rebalance | None]:
        """Waits for the first message, takes what is there besides, up to the next thing to be called back for."""
        found: list[Message] = []
        event = await self.next(timeout)
        while event is not None:
            if isinstance(event, Rebalance):
                return found, event
            found.append(event)
            event = self.take() if len(found) < most else None
        return found, None

    def take(self) -> Message | Rebalance | None:
        """Partitions in the order in which their answers came."""
        if self._events:
            return self._events.popleft()
        for _ in range(len(self._ready)):
            owned = self._ready.popleft()
            if owned.waiting is None or self.owned.get(owned.key) is not owned:
                continue
            if owned.is_paused:
                continue  # resume() puts it back
            was_full = not self._fetcher.has_room()
            message = self._fetcher.take(owned)
            owned.position = message.next_offset()
            self.rows += len(message)
            owned.rows += len(message)
            if was_full:
                self._fetcher.wake(self.owned.values())
            return message
        return None

    def give_back(self, message: Message | Rebalance | None) -> None:
        """What never reached the application."""
        self._changed.set()
        if message is None:
            return
        if isinstance(message, Rebalance):
            self._events.appendleft(message)
            return
        owned = self.owned.get((message.topic(), message.partition()))
        if message.error() is not None:
            self._events.appendleft(message)
        elif owned is not None and owned.position == message.next_offset():
            owned.position = message.start_offset()
            self.rows -= len(message)
            owned.rows -= len(message)
            self._fetcher.give_back(owned, message)
            self._ready.appendleft(owned)

    def give_all_back(self, messages: list[Message]) -> None:
        for message in reversed(messages):
            self.give_back(message)

    # What the fetcher and the membership tell

    def fetched(self, owned: Owned, message: Message) -> None:
        self._ready.append(owned)
        self._changed.set()

    def passed(self, owned: Owned, next_offset: int) -> None:
        """No row passed the query: progress all the same, and the application has nothing to do for it."""
        if owned.finished == owned.position:
            owned.finished = next_offset
        if owned.stored == owned.position:
            owned.stored = next_offset
        owned.position = next_offset

    def fell_off(self, owned: Owned, error: OutOfRange) -> None:
        """Never silent: the application sees it, and the policy says where to go on."""
        begin, end = max(error.begin, 0), max(error.end, 0)
        policy = self.config.auto_offset_reset
        where = (
            f"{owned.topic}[{owned.partition}]: offset {owned.position} is not in the log, which has {begin} to {end}"
        )
        if policy == "none":
            owned.is_stuck = True
            seen = OutOfRange(f"{where}; auto.offset.reset is none, so nothing comes until seek()")
        else:
            target = begin if policy == "earliest" else end
            seen = OutOfRange(f"{where}; going on at {target} (auto.offset.reset = {policy})")
            owned.position = owned.finished = target
        seen.begin, seen.end = begin, end
        owned.begin, owned.end = begin, end
        self.report(owned.topic, owned.partition, seen)

    def report(self, topic: str, partition: int, error: DataError) -> None:
        if len(self._events) < _MOST_EVENTS:
            self._events.append(make_error_message(topic, partition, error))
            self._changed.set()

    def positions(self) -> tuple[Offsets, list[int]]:
        """And how many rows were given out of each."""
        known = [owned for owned in self.owned.values() if owned.position != NOWHERE]
        return [(*owned.key, owned.position) for owned in known], [owned.rows for owned in known]

    def adopt(self, assignment: Assignment) -> None:
        for topic, why in assignment.refused.items():
            if self._refused.get(topic) != why:
                self.report(topic, -1, TopicRefused(f"{topic}: {why}"))
        self._refused = dict(assignment.refused)
        if assignment.state == REBALANCING:
            return  # what it has it keeps until it is known what it gets
        told = {(each.topic, each.partition): each for each in assignment.partitions}
        gone = [owned for key, owned in self.owned.items() if key not in told]
        if gone:
            self._drop(gone)
            self._announce(gone, is_assigned=False)
        gained = []
        for key, each in told.items():
            owned = self.owned.get(key)
            if owned is None:
                gained.append(self._take_over(each))
            else:
                # Not committed by this consumer, so another has had the partition between two looks at the group.
                has_moved_on = each.committed > owned.position and each.committed != owned.committed
                owned.learn(each)
                if has_moved_on:
                    owned.position = owned.finished = each.committed
                    self._fetcher.start(owned)
        if gained:
            self._announce(gained, is_assigned=True)
        self._fetcher.wake(self.owned.values())

    def lose(self, error: DataError) -> None:
        """The place in the group is lost; another may have the partitions already."""
        gone = list(self.owned.values())
        self._drop(gone)
        if gone:
            self._announce(gone, is_assigned=False, is_lost=True)
        if not isinstance(error, NotAMember):
            self.report("", -1, error)

    def _take_over(self, told: Partition) -> Owned:
        position = told.offset
        left_at = self._left_at.pop((told.topic, told.partition), NOWHERE)
        if left_at != NOWHERE and (self._keeps_what_it_got or told.committed < 0):
            position = max(left_at, told.committed)
        owned = take_over(told, position)
        if position == NOWHERE:
            why = "nothing is committed and auto.offset.reset is none: nothing comes until seek()"
            self.report(told.topic, told.partition, OutOfRange(f"{told.topic}[{told.partition}]: {why}"))
        self.owned[owned.key] = owned
        self._fetcher.start(owned)
        return owned

    def _drop(self, gone: Iterable[Owned]) -> None:
        gone = list(gone)
        self._fetcher.stop(gone)
        for owned in gone:
            del self.owned[owned.key]
            # With callbacks an application may throw away its work: then it goes on where its last commit would be.
            self._left_at[owned.key] = owned.position if self._keeps_what_it_got else owned.started
        self._fetcher.wake(self.owned.values())

    def _announce(self, partitions: list[Owned], *, is_assigned: bool, is_lost: bool = False) -> None:
        self._events.append(Rebalance([owned.shown() for owned in partitions], is_assigned, is_lost))
        self._changed.set()

    # Progress

    def tick(self) -> None:
        """Commits if that is automatic and due: only what was given to the application before its latest poll."""
        config = self.config
        if not config.auto_commit or self._committing is not None or self._now() < self._commit_due:
            return
        self._commit_due = self._now() + config.auto_commit_interval_ms / 1000
        offsets = self._finished()
        if offsets:
            self._committing = asyncio.ensure_future(self._commit_quietly(offsets))

    def _finished(self) -> Offsets:
        found = []
        for owned in self.owned.values():
            offset = owned.stored if self._is_storing else owned.finished
            if offset >= 0 and offset != owned.committed:
                found.append((*owned.key, offset))
        return found

    async def _commit_quietly(self, offsets: Offsets) -> None:
        """The next one will say it again; not being allowed to is worth a word."""
        try:
            await self._send_commit(offsets)
        except DataError as error:
            logger.info("group %s: automatic commit: %s", self.config.group, error)
        finally:
            self._committing = None

    async def _commit_last(self, is_all_finished: bool) -> None:
        under_way = [*self._commits, *([self._committing] if self._committing else [])]
        if under_way:
            await asyncio.wait(under_way)
        if is_all_finished:
            for owned in self.owned.values():
                owned.finished = owned.position
        offsets = self._finished()
        if offsets:
            await self._send_commit(offsets)

    def store(self, offsets: Offsets) -> None:
        """From the first time on, commits without an argument take these instead of what was given out."""
        self._is_storing = True
        for topic, partition, offset in offsets:
            owned = self.owned.get((topic, partition))
            if owned is None:
                raise StaleEpoch(f"{topic}[{partition}] is not assigned to this consumer")
            owned.stored = offset

    async def commit(self, offsets: Offsets | None) -> Offsets:
        """Durable when it returns. Raises StaleEpoch when another consumer owns one of the partitions now."""
        self._check_open()
        if self.config.replay:
            raise BadRequest("a replay stores no progress (enable.replay)")
        if offsets is not None:
            await self._commit_these(offsets)
            return offsets
        everything = self._everything()
        if everything:
            try:
                await self._send_commit(everything)
            except StaleEpoch:
                # Some have gone; what is left is still this consumer's to commit.
                await self.membership.look_now()
                everything = self._everything()
                if everything:
                    await self._send_commit(everything)
        return everything

    async def _commit_these(self, offsets: Offsets) -> None:
        """A broker that was restarted knows no members: the same consumer with the same partitions again may commit
        what it got before. With callbacks it was told that it has lost them, and may have thrown it away."""
        membership = self.membership
        former = ""
        lost = NotAMember("the consumer has lost its place in the group, and its partitions with it")
        if membership.state == READY or not self._keeps_what_it_got:
            former = membership.consumer
            try:
                await self._send_commit(offsets)
                return
            except NotAMember as error:
                if not self._keeps_what_it_got:
                    raise
                lost = error
        mine = [self.owned.get(each[:2]) for each in offsets] if await membership.is_back(former) else []
        if not mine or not all(mine):
            raise lost
        # Another may have had the partition meanwhile and be further.
        still = [each for owned, each in zip(mine, offsets, strict=True) if owned and owned.committed < each[2]]
        if still:
            await self._send_commit(still)

    def commit_later(self, offsets: Offsets | None) -> None:
        task = asyncio.ensure_future(self._commit_and_report(offsets))
        self._commits.add(task)
        task.add_done_callback(self._commits.discard)

    async def _commit_and_report(self, offsets: Offsets | None) -> None:
        try:
            await self.commit(offsets)
        except DataError as error:
            self.report("", -1, error)

    def _everything(self) -> Offsets:
        return [
            (*owned.key, owned.stored if self._is_storing else owned.position)
            for owned in self.owned.values()
            if (owned.stored if self._is_storing else owned.position) >= 0
        ]

    async def _send_commit(self, offsets: Offsets) -> None:
        membership = self.membership
        if not membership.consumer:
            raise NotAMember("the consumer is not in its group: it has lost its partitions")
        request = Commit(consumer=membership.consumer, group=self.config.group, epoch=membership.epoch, offsets=offsets)
        try:
            await self.link.request("commit", request, timeout=self.config.session_timeout_ms / 1000)
        except (StaleEpoch, NotAMember):
            membership.look_soon()
            raise
        for topic, partition, offset in offsets:
            owned = self.owned.get((topic, partition))
            if owned is not None:
                owned.committed = offset
                owned.started = max(owned.started, offset)

    # Places

    def find(self, topic: str, partition: int) -> Owned:
        owned = self.owned.get((topic, partition))
        if owned is None:
            raise BadRequest(f"{topic}[{partition}] is not assigned to this consumer")
        return owned

    def seek(self, owned: Owned, offset: int) -> None:
        owned.position = offset
        owned.is_stuck = False
        self._fetcher.start(owned)

    def pause(self, partitions: Iterable[Owned]) -> None:
        for owned in partitions:
            owned.is_paused = True

    def resume(self, partitions: Iterable[Owned]) -> None:
        for owned in partitions:
            owned.is_paused = False
            if owned.waiting is not None and owned not in self._ready:
                self._ready.append(owned)
            owned.wanted.set()
        self._changed.set()

    def position(self, topic: str, partition: int) -> int:
        owned = self.owned.get((topic, partition))
        return owned.position if owned is not None and owned.position != NOWHERE else OFFSET_INVALID
