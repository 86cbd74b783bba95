"""Fetches ahead of the application: one answer of each partition, all partitions at once, bounded in bytes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from penstock_client.config import ConsumerConfig
from penstock_client.errors import DataError, NotAMember, OutOfRange, StaleEpoch
from penstock_client.link import Link
from penstock_client.messages import META, Message, decode_blocks
from penstock_client.owned import NOWHERE, Owned
from penstock_client.wire import Fetch, Fetched

logger = logging.getLogger("penstock.datasub")

# How much longer than it may be parked a fetch is waited for: a lost answer costs no more than that.
_GRACE = 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 2.0
_MOST_FAILURES = 5


class Membership(Protocol):
    consumer: str
    epoch: int
    schema: dict[str, list[tuple[str, int]]]
    sources: dict[str, str]

    def look_soon(self) -> None: ...


class Owner(Protocol):
    """Who gets what was fetched."""

    def fetched(self, owned: Owned, message: Message) -> None: ...
    def passed(self, owned: Owned, next_offset: int) -> None: ...
    def fell_off(self, owned: Owned, error: OutOfRange) -> None: ...
    def report(self, topic: str, partition: int, error: DataError) -> None: ...


class Fetcher:
    def __init__(self, link: Link, config: ConsumerConfig, membership: Membership, owner: Owner) -> None:
        self._link = link
        self._config = config
        self._membership = membership
        self._owner = owner
        self._held = 0  # bytes that were fetched and not taken
        self._replay_start: tuple[float, int] | None = None

    def start(self, owned: Owned) -> None:
        """Anew from the partition's position; what is under way or waits is thrown away."""
        self.stop([owned])
        owned.replayed_until = 0.0
        owned.task = asyncio.ensure_future(self._run(owned))

    def stop(self, partitions: Iterable[Owned]) -> None:
        for owned in partitions:
            if owned.task is not None:
                owned.task.cancel()
                owned.task = None
            self._release(owned)

    def take(self, owned: Owned) -> Message:
        """What waits for the application; the next fetch begins while it works on it."""
        message = owned.waiting
        assert message is not None
        self._release(owned)
        return message

    def give_back(self, owned: Owned, message: Message) -> None:
        """The application never saw it; a fetch that has begun behind it is forgotten."""
        self.start(owned)
        owned.waiting = message
        self._held += message.size

    def wake(self, partitions: Iterable[Owned]) -> None:
        for owned in partitions:
            owned.wanted.set()

    def _release(self, owned: Owned) -> None:
        if owned.waiting is not None:
            self._held -= owned.waiting.size
            owned.waiting = None
        owned.wanted.set()

    def has_room(self) -> bool:
        return self._held < self._config.queued_max_bytes

    def _is_idle(self, owned: Owned) -> bool:
        return (
            owned.waiting is not None
            or owned.is_paused
            or owned.is_stuck
            or owned.position == NOWHERE
            or not self.has_room()
        )

    async def _run(self, owned: Owned) -> None:
        pause = _FIRST_PAUSE
        failures = 0
        while True:
            while self._is_idle(owned):
                owned.wanted.clear()
                await owned.wanted.wait()
            try:
                await self._fetch(owned)
                pause, failures = _FIRST_PAUSE, 0
                continue
            except OutOfRange as error:
                self._owner.fell_off(owned, error)
                continue
            except (StaleEpoch, NotAMember):
                # One look settles it: the partition is another's, or the epoch has grown. [reference: wrong owner]
                self._membership.look_soon()
            except DataError as error:
                logger.debug("fetch of %s[%d]: %s", owned.topic, owned.partition, error)
                if not error.is_retryable:
                    # A topic that was dropped, or may no longer be read: the assignment says so once for all of it.
                    self._membership.look_soon()
                    failures += 1
                    if failures == _MOST_FAILURES:
                        self._owner.report(owned.topic, owned.partition, error)
            except ValueError as error:
                owned.is_stuck = True
                self._owner.report(owned.topic, owned.partition, DataError(f"rows that cannot be read: {error}"))
                continue
            await _wait(owned.wanted, pause)  # a new assignment ends it
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _fetch(self, owned: Owned) -> None:
        config = self._config
        start = owned.position
        request = Fetch(
            consumer=self._membership.consumer,
            group=config.group,
            epoch=self._membership.epoch,
            topic=owned.topic,
            partition=owned.partition,
            offset=start,
            min_rows=config.min_poll_rows,
            max_wait_ms=config.fetch_max_wait_ms,
            max_bytes=config.fetch_max_bytes,
            replay=config.replay,
        )
        timeout = config.fetch_max_wait_ms / 1000 + _GRACE
        fetched: Fetched = await self._link.request("fetch", request, timeout=timeout)
        owned.begin, owned.end = fetched.begin, fetched.end
        if fetched.gap:
            lost = OutOfRange(
                f"{owned.topic}[{owned.partition}]: {fetched.gap} messages from offset {start} on were removed by "
                "retention before they were read"
            )
            lost.begin, lost.end = fetched.begin, fetched.end
            self._owner.report(owned.topic, owned.partition, lost)
        if not fetched.blocks:
            if fetched.next_offset > start:
                self._owner.passed(owned, fetched.next_offset)
            return
        message = self._message(owned, start, fetched)
        if config.replay:
            await self._wait_for_its_time(owned, message, fetched.wait_ms)
        owned.waiting = message
        self._held += message.size
        self._owner.fetched(owned, message)

    def _message(self, owned: Owned, start: int, fetched: Fetched) -> Message:
        columns = tuple(name for name, _ in self._membership.schema.get(owned.topic, ()))
        rows, meta = decode_blocks(fetched.blocks, may_be_meta=columns != META)
        return Message(
            owned.topic,
            owned.partition,
            rows,
            meta=meta,
            start=start,
            next_offset=fetched.next_offset,
            database=self._membership.sources.get(owned.topic, ""),
        )

    async def _wait_for_its_time(self, owned: Owned, message: Message, wait_ms: float) -> None:
        """As long behind the block before as it was received behind it; a partition's first one as long behind the
        first of all."""
        loop = asyncio.get_running_loop()
        if self._replay_start is None:
            self._replay_start = loop.time(), message.first_time()
        if owned.replayed_until:
            due = owned.replayed_until + wait_ms / 1000
        else:
            started, first = self._replay_start
            due = started + max(0, message.first_time() - first) / 1e9
        owned.replayed_until = max(due, loop.time())
        await asyncio.sleep(due - loop.time())


async def _wait(event: asyncio.Event, seconds: float) -> None:
    event.clear()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
