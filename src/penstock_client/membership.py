"""A consumer's place in its group: joining, asking which partitions it has, heartbeats."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from penstock_client.config import ConsumerConfig
from penstock_client.connection import NoAnswer
from penstock_client.errors import DataError, NotAMember, PollTooLate, Unavailable
from penstock_client.link import Link
from penstock_client.wire import Ask, Assignment, Heartbeat, Leave, Subscribe

logger = logging.getLogger("penstock.datasub")

REBALANCING, READY = "rebalancing", "ready"
_ASK_REBALANCING, _ASK_READY = 0.5, 1.0
_MOST_ASKS = 240
_LEAST_BETWEEN = 0.05
_LONGEST_PAUSE = 5.0


class GroupMember(Protocol):
    """Whose place it is."""

    def adopt(self, assignment: Assignment) -> None: ...
    def lose(self, error: DataError) -> None: ...
    def report(self, topic: str, partition: int, error: DataError) -> None: ...
    def tick(self) -> None: ...
    def positions(self) -> tuple[list[tuple[str, int, int]], list[int]]: ...

    rows: int


class Membership:
    def __init__(self, link: Link, config: ConsumerConfig, member: GroupMember) -> None:
        self._link = link
        self._config = config
        self._member = member
        self.consumer = ""
        self.epoch = 0
        self.state = ""
        self.schema: dict[str, list[tuple[str, int]]] = {}
        self.sources: dict[str, str] = {}
        self._topics: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._hurry = asyncio.Event()
        self._next_heartbeat = 0.0
        self._asks = 0
        self._polled_at = 0.0
        self._has_polled = False
        self._is_polling = False
        self.is_expelled = False

    # What the application does

    def begin_poll(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._polled_at > self._config.max_poll_interval_ms / 3000:
            self._next_heartbeat = now  # the broker counts from the last poll that a heartbeat reported
            self.look_soon()
        self._is_polling = self._has_polled = True
        self._polled_at = now

    def end_poll(self) -> None:
        self._is_polling = False
        self._polled_at = asyncio.get_running_loop().time()

    async def join(self, topics: list[str]) -> None:
        """Or change the topics. Raises what the broker has against them; then it stays where it was."""
        before, self._topics = self._topics, topics
        is_member = self._task is not None
        self._polled_at = asyncio.get_running_loop().time()
        try:
            await self._stop_looking()
            await self._join_again()
        except BaseException:
            self._topics = before
            if is_member:
                self._task = asyncio.ensure_future(self._look(must_join=True))
            raise
        self.is_expelled = False
        self._task = asyncio.ensure_future(self._look())

    async def _join_again(self) -> None:
        try:
            await self._join()
        except NotAMember:
            self._forget()
            self._member.lose(NotAMember("the consumer was removed from its group"))
            await self._join()

    async def leave(self, timeout: float) -> None:
        await self._stop_looking()
        if self.consumer:
            consumer = self.consumer
            self._forget()
            if self._link.is_up:
                await self._link.request(
                    "leave", Leave(consumer=consumer, group=self._config.group), timeout=timeout, is_repeatable=False
                )

    def forsake(self) -> None:
        """Without a word: the group finds out."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._forget()

    def look_soon(self) -> None:
        """Something is not as it was thought to be."""
        self._hurry.set()

    async def look_now(self) -> None:
        """Whether the assignment has changed. Raises NotAMember and the like."""
        await self._ask(asyncio.get_running_loop().time())

    async def is_back(self, former: str) -> bool:
        """Waits until it is known under another id than `former` and has partitions, no longer than a session lasts."""
        deadline = asyncio.get_running_loop().time() + self._config.session_timeout_ms / 1000
        while self.consumer in ("", former) or self.state != READY:
            if self._task is None or self.is_expelled or asyncio.get_running_loop().time() > deadline:
                return False
            self.look_soon()
            await asyncio.sleep(_LEAST_BETWEEN)
        return True

    async def rejoin(self) -> None:
        """After it was put out because it did not poll."""
        await self._stop_looking()
        self.is_expelled = False
        self._task = asyncio.ensure_future(self._look(must_join=True))

    # What goes on by itself

    async def _stop_looking(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _forget(self) -> None:
        self.consumer, self.epoch, self.state = "", 0, ""

    async def _look(self, *, must_join: bool = False) -> None:
        failures = 0
        told = ""
        while True:
            try:
                if must_join:
                    await self._join()
                    must_join = False
                failures, told = 0, ""
                await self._pause()
                await self._turn()
                if self.is_expelled:
                    return
                continue
            except NotAMember as error:
                logger.info("group %s: %s", self._config.group, error)
                self._forget()
                self._member.lose(error)
                must_join = True
            except DataError as error:
                logger.debug("group %s: %s", self._config.group, error)
                if not error.is_retryable and str(error) != told:
                    told = str(error)
                    self._member.report("", -1, error)
            failures += 1
            await asyncio.sleep(min(0.05 * 2 ** min(failures, 10), _LONGEST_PAUSE))

    async def _pause(self) -> None:
        """Until the next look is due; a hurry is not a busy loop."""
        await asyncio.sleep(_LEAST_BETWEEN)
        interval = _ASK_READY
        if self.state == REBALANCING:  # the first few sooner: mostly it is done at once
            interval = min(_ASK_REBALANCING, _LEAST_BETWEEN * 2 ** min(self._asks, 8))
        due = min(interval, max(0.0, self._next_heartbeat - asyncio.get_running_loop().time()))
        try:
            async with asyncio.timeout(due):
                await self._hurry.wait()
        except TimeoutError:
            pass
        self._hurry.clear()

    async def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        limit = self._config.max_poll_interval_ms / 1000
        if not self._is_polling and now - self._polled_at > limit:
            await self._expel(limit)
            return
        self._member.tick()
        await self._ask(now)
        if self.state != REBALANCING:
            self._asks = 0
            return
        self._asks += 1
        if self._asks > _MOST_ASKS:
            self._asks = 0
            self._member.report("", -1, Unavailable(f"no partitions after asking {_MOST_ASKS} times; joining again"))
            await self._join()

    async def _ask(self, now: float) -> None:
        """With a heartbeat if one is due: both are answered alike."""
        timeout = self._config.session_timeout_ms / 1000
        assignment: Assignment | None
        try:
            if now >= self._next_heartbeat:
                heartbeat = self._heartbeat()
                assignment = await self._link.request("heartbeat", heartbeat, timeout=timeout)
                self._has_polled = False
                self._next_heartbeat = now + self._config.heartbeat_interval_ms / 1000
            else:
                ask = Ask(consumer=self.consumer, group=self._config.group, epoch=self.epoch)
                assignment = await self._link.request("ask", ask, timeout=timeout)
        except NoAnswer:
            self._link.reset()
            raise
        if assignment is not None:
            self._adopt(assignment)

    def _heartbeat(self) -> Heartbeat:
        positions, counts = self._member.positions()
        return Heartbeat(
            consumer=self.consumer,
            group=self._config.group,
            epoch=self.epoch,
            polled=self._has_polled or self._is_polling,
            positions=positions,
            rows=self._member.rows,
            counts=counts,
        )

    async def _join(self) -> None:
        config = self._config
        request = Subscribe(
            group=config.group,
            topics=self._topics,
            consumer=self.consumer,
            client_id=config.client_id,
            session_timeout_ms=config.session_timeout_ms,
            max_poll_interval_ms=config.max_poll_interval_ms,
            auto_offset_reset=config.auto_offset_reset,
            replay=config.replay,
            parameters=config.parameters,
        )
        timeout = config.session_timeout_ms / 1000
        assignment: Assignment = await self._link.request("subscribe", request, timeout=timeout)
        self._asks = 0
        self._next_heartbeat = asyncio.get_running_loop().time() + config.heartbeat_interval_ms / 1000
        self._adopt(assignment)

    def _adopt(self, assignment: Assignment) -> None:
        if assignment.consumer == self.consumer and assignment.epoch < self.epoch:
            return  # an answer that was overtaken
        self.consumer = assignment.consumer
        self.schema, self.sources = assignment.schema, assignment.sources
        self.state = assignment.state
        self._member.adopt(assignment)
        self.epoch = assignment.epoch

    async def _expel(self, limit: float) -> None:
        """The broker would do it too; doing it here says why."""
        self.is_expelled = True
        consumer = self.consumer
        self._forget()
        self._member.lose(PollTooLate(f"no poll for {limit:g} s (max.poll.interval.ms): the partitions went to others"))
        leave = Leave(consumer=consumer, group=self._config.group)
        await self._link.request("leave", leave, timeout=limit, is_repeatable=False)
