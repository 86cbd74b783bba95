"""The newest rows of each query, in memory, and the fetches that wait for more of them.

A feed belongs to a plan, not to a topic or a group: topics with the same query share it. Of each partition it has all
rows from `start` on up to where the live pass is; who wants older ones reads the log.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from penstock.subscribers.query.plan import Plan

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import Block

# What a block costs beside its columns.
BLOCK_OVERHEAD = 512
# Places of blocks that are gone, beyond which they are looked for.
MOST_GONE = 1_000


class Lane:
    """One partition of a feed."""

    __slots__ = ("blocks", "feed", "gone_early", "start", "waiting")

    def __init__(self, feed: Feed, start: int) -> None:
        self.feed = feed
        self.start = start
        self.blocks: deque[Block] = deque()
        self.gone_early = 0  # blocks that went before their turn, see FeedMemory
        self.waiting: list[asyncio.Future[None]] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.feed.bytes += block.size + BLOCK_OVERHEAD
        self.wake()

    def drop_first(self) -> int:
        """The oldest rows go; the bytes that are free now."""
        block = self.blocks.popleft()
        self.start = block.last_offset + 1
        freed = block.size + BLOCK_OVERHEAD
        self.feed.bytes -= freed
        return freed

    def start_at(self, offset: int) -> int:
        """Forgets everything; the bytes that are free now."""
        freed = sum(block.size + BLOCK_OVERHEAD for block in self.blocks)
        self.gone_early += len(self.blocks)
        self.blocks.clear()
        self.feed.bytes -= freed
        self.start = offset
        self.wake()
        return freed

    def wake(self) -> None:
        waiting, self.waiting = self.waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def find(self, offset: int, max_rows: int, max_bytes: int) -> tuple[list[Block], bool]:
        """Blocks with rows from the offset on, until there are as many rows or bytes; and whether that ended it."""
        found: list[Block] = []
        rows = size = 0
        for block in self._from(offset):
            found.append(block)
            rows += block.rows
            size += block.size
            if rows >= max_rows or size >= max_bytes:
                return found, True
        return found, False

    def _from(self, offset: int) -> list[Block]:
        """Looked for from the end: who reads a feed is nearly always close to it."""
        found: list[Block] = []
        for block in reversed(self.blocks):
            if block.last_offset < offset:
                break
            if block.first_offset < offset:
                found.append(block.slice(offset))
                break
            found.append(block)
        found.reverse()
        return found


class Feed:
    """One plan that is being evaluated; `query` is its number in the set of the live pass."""

    def __init__(self, plan: Plan, query: int, starts: list[int]) -> None:
        self.plan = plan
        self.query = query
        self.lanes = [Lane(self, start) for start in starts]
        self.bytes = 0
        self.used_at = 0.0

    @property
    def is_waited_for(self) -> bool:
        return any(lane.waiting for lane in self.lanes)

    def wake(self) -> None:
        for lane in self.lanes:
            lane.wake()


class FeedMemory:
    """Bounds what all feeds keep: the oldest rows of a feed that has too much go, then the oldest of all."""

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one = of_one
        self._of_all = of_all
        # The lane of each block, in the order they came. One that went before its turn is passed over when it comes.
        self._order: deque[Lane] = deque()
        self._kept = 0
        self.bytes = 0

    def add(self, lane: Lane, block: Block) -> None:
        lane.add(block)
        self._order.append(lane)
        self._kept += 1
        self.bytes += block.size + BLOCK_OVERHEAD
        while lane.feed.bytes > self._of_one:
            longest = max(lane.feed.lanes, key=_length)
            self._drop_first(longest)
            longest.gone_early += 1
        while self.bytes > self._of_all:
            oldest = self._order.popleft()
            if oldest.gone_early:
                oldest.gone_early -= 1
            else:
                self._drop_first(oldest)
        if len(self._order) > 2 * self._kept + MOST_GONE:
            self._pass_over()

    def _drop_first(self, lane: Lane) -> None:
        self.bytes -= lane.drop_first()
        self._kept -= 1

    def _pass_over(self) -> None:
        """A row that stays for long must not keep all that have come and gone behind it."""
        order, self._order = self._order, deque()
        for lane in order:
            if lane.gone_early:
                lane.gone_early -= 1
            else:
                self._order.append(lane)

    def forget(self, lane: Lane, start: int) -> None:
        self._kept -= len(lane.blocks)
        self.bytes -= lane.start_at(start)

    def remove(self, feed: Feed) -> None:
        for lane in feed.lanes:
            self.forget(lane, lane.start)


def _length(lane: Lane) -> int:
    return len(lane.blocks)
