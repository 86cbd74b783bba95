"""Retention that waits for groups where it is somebody else's, as Kafka's is: its limits are lifted while a group is
behind. What they would remove is removed by this meanwhile, as far as no group needs it, and when everybody has read
on they are put back as they were.

The limits that were there are noted before they are lifted, so that another process finds them after a crash. An
operator who changes them meanwhile is obeyed: what he says are the limits from then on.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from penstock.core.logging import get_logger
from penstock.storage.log.base import NO_LIMITS, Limits, Log, LogError, TopicPartition
from penstock.storage.state.base import Change
from penstock.subscribers.query.source import SLICE_RECORDS, Source
from penstock.subscribers.query.stored import RETENTION
from penstock_client.errors import DataError

log = get_logger("penstock.datasub")

# A group is behind that has not read what was there so many looks ago; commits come every five seconds by default.
BEHIND_LOOKS = 10
# Behind for the last time so many looks ago: the limits come back. They do not come and go all the time.
CALM_LOOKS = 60
# Every so many looks it is seen to it that the limits are what they are thought to be, and that what may go goes.
TIDY_LOOKS = 30
# Sizes are guessed from the newest records, before compression: so many times the limit is kept rather than less of it.
GENEROSITY = 4
SAMPLE_SECONDS = 2.0


class Notes(Protocol):
    """See Stored in stored.py."""

    def items(self, table: str) -> Mapping[bytes, bytes]: ...
    async def write(self, changes: list[Change]) -> None: ...


class Suspension:
    """`is_mine`: of the nodes of a cluster one does it."""

    def __init__(
        self, provider: Log, topic: str, source: Source, notes: Notes, *, is_mine: Callable[[], bool] = lambda: True
    ) -> None:
        self._log = provider
        self._topic = topic
        self._source = source
        self._notes = notes
        self._is_mine = is_mine
        self._ends: deque[Mapping[int, int]] = deque(maxlen=BEHIND_LOOKS)
        self._calm = 0
        self._looks = 0
        self._has_no_limits = False  # when it was looked at last: there is nothing to lift
        self.removed = 0

    @property
    def noted(self) -> Limits | None:
        """The limits that were lifted."""
        value = self._notes.items(RETENTION).get(self._topic.encode())
        return None if value is None else msgspec.json.decode(value, type=Limits)

    async def look(self, needed: Mapping[int, int], now_ms: int) -> None:
        """Again and again, with what groups need. Raises LogError, DataError; the next look tries again."""
        if not self._is_mine():
            self._ends.clear()
            return
        is_due = self._looks % TIDY_LOOKS == 0
        self._looks += 1
        self._calm = 0 if self._is_behind(needed) else self._calm + 1
        noted = self.noted
        if noted is None:
            if self._calm == 0 and (is_due or not self._has_no_limits):
                await self._suspend()
        elif self._calm >= CALM_LOOKS:
            await self.resume()
        elif is_due and await self._check(noted):
            await self._remove(noted, needed, now_ms)

    def _is_behind(self, needed: Mapping[int, int]) -> bool:
        seen = {number: self._source.last_seen(number) for number in range(self._source.count)}
        was = self._ends[0] if len(self._ends) == BEHIND_LOOKS else {}
        self._ends.append({number: marks[1] for number, marks in seen.items() if marks is not None})
        return any(position < was.get(number, 0) for number, position in needed.items())

    async def _suspend(self) -> None:
        limits = await self._log.admin.limits(self._topic)
        self._has_no_limits = limits is None or limits.are_none
        if limits is None or limits.are_none:
            return
        await self._note(limits)
        try:
            await self._log.admin.set_limits(self._topic, NO_LIMITS)
        except LogError:
            with contextlib.suppress(DataError):
                await self._note(None)
            raise
        log.info(
            "retention waits for a group that is behind: its limits are lifted until it has read on",
            topic=self._topic,
            ms=limits.ms,
            bytes=limits.bytes,
        )

    async def _check(self, noted: Limits) -> bool:
        """Whether the limits are lifted still."""
        limits = await self._log.admin.limits(self._topic)
        if limits is None or limits.are_none:
            return True
        if limits == noted:  # a process ended between the note and the change
            await self._log.admin.set_limits(self._topic, NO_LIMITS)
            return True
        log.warning("the limits of retention were changed while they were lifted", topic=self._topic)
        await self._note(None)
        return False

    async def resume(self) -> None:
        """Puts the limits back, if they were lifted."""
        noted = self.noted
        if noted is None:
            return
        limits = await self._log.admin.limits(self._topic)
        if limits is not None and limits.are_none:
            await self._log.admin.set_limits(self._topic, noted)
            log.info("retention has its limits again", topic=self._topic, ms=noted.ms, bytes=noted.bytes)
        await self._note(None)

    async def _note(self, limits: Limits | None) -> None:
        value = None if limits is None else msgspec.json.encode(limits)
        await self._notes.write([(RETENTION, self._topic.encode(), value)])

    # ---- what would be removed by the limits ----

    async def _remove(self, limits: Limits, needed: Mapping[int, int], now_ms: int) -> None:
        for number in await self._source.partitions():
            marks = await self._source.marks(number)
            too_old = too_much = marks.first
            if limits.ms >= 0:
                place = number, now_ms - limits.ms
                too_old = (await self._source.offsets_at([place]))[place]
            if limits.bytes >= 0:
                too_much = marks.end - await self._records_of(number, GENEROSITY * limits.bytes)
            cut = min(needed.get(number, marks.end), max(too_old, too_much), marks.end)
            if cut > marks.first:
                await self._log.admin.truncate(TopicPartition(self._topic, number), cut)
                self.removed += cut - marks.first

    async def _records_of(self, number: int, size: int) -> int:
        """How many of the newest records are about so many bytes."""
        marks = await self._source.marks(number)
        start = max(marks.first, marks.end - SLICE_RECORDS)
        if start >= marks.end:
            return 0
        async with self._source.readers.at(self._source.place(number), start) as reader:
            packs = await reader.read(SAMPLE_SECONDS)
        records = sum(pack.count for pack in packs)
        return size * records // max(1, sum(pack.size for pack in packs)) if records else marks.end
