"""Rows that a query could not make: one record each in a topic of the log, for queries that say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Appended, Log, LogError, parse_properties
from penstock.subscribers.query.plan import Plan

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import RowError

log = get_logger("penstock.datasub")

TOPIC = "tbmq.datasub.errors"
# A log that takes nothing must not fill the memory with errors.
MOST_PENDING = 10_000

NamesOf = Callable[[str], Iterable[str]]


class DeadLetter(msgspec.Struct):
    """A record of the topic, as JSON; its key is `partition:offset:column`, so that one reported again is recognised:
    who reads old records again evaluates them again."""

    topics: list[str]  # the query topics that have this query
    partition: int  # of the source
    offset: int
    column: str
    reason: str


class DeadLetterLog:
    """Appends and does not wait; what cannot be appended is counted."""

    def __init__(self, provider: Log, topic: str, properties: str) -> None:
        self._log = provider
        self._topic = topic
        self._properties = properties
        self._making: asyncio.Task[None] | None = None
        self._is_made = False
        self._waiting: list[RecordPack] = []
        self._pending = 0
        self._warnings = Throttled(log, interval=10.0)
        self.reported = 0
        self.lost = 0
        self._names_of: NamesOf = lambda key: ()

    def name_topics(self, names_of: NamesOf) -> None:
        """`names_of` returns the names of the topics with a plan, by its key."""
        self._names_of = names_of

    def report(self, plan: Plan, partition: int, errors: Sequence[RowError]) -> None:
        names = sorted(self._names_of(plan.key))
        room = MOST_PENDING - self._pending
        self.lost += max(0, len(errors) - room)
        pack = RecordPack()
        for error in errors[: max(0, room)]:
            letter = DeadLetter(names, partition, error.offset, error.column, error.message)
            key = f"{partition}:{error.offset}:{error.column}".encode()
            pack.append(msgspec.json.encode(letter), key)
        if not pack.count:
            return
        self._pending += pack.count
        if self._is_made:
            self._append(pack)
            return
        self._waiting.append(pack)
        if self._making is None:
            self._making = asyncio.get_running_loop().create_task(self._make())

    async def _make(self) -> None:
        """The topic is made when it is needed first."""
        try:
            await self._log.admin.create(self._topic, 1, parse_properties(self._properties))
            self._is_made = True
        except LogError as error:
            self._warn(error)
        finally:
            self._making = None
            waiting, self._waiting = self._waiting, []
        for pack in waiting:
            if self._is_made:
                self._append(pack)
            else:
                self._pending -= pack.count
                self.lost += pack.count

    def _append(self, pack: RecordPack) -> None:
        count = pack.count

        def on_done(result: Appended | LogError) -> None:
            self._pending -= count
            if isinstance(result, LogError):
                self.lost += count
                self._warn(result)
            else:
                self.reported += count

        self._log.producer.append(self._topic, 0, pack, on_done)

    def _warn(self, error: LogError) -> None:
        self._warnings.warning("rows with errors cannot be reported", topic=self._topic, error=str(error))

    async def close(self) -> None:
        if self._making is not None:
            self._making.cancel()
