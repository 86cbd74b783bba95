"""Durable state in a log: a compacted topic for each table, where the newest record of a key is its value."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import Appended, Log, LogError, read_state
from penstock.storage.log.state_topics import STATE_PROPERTIES, make_state_topic
from penstock.storage.state.base import Change, OnRecord, OnStored, StoreError

log = get_logger("penstock.state")

RETRY_SECONDS = 0.25
PATIENCE_SECONDS = 15.0
RECORDS_IN_PACK = 5_000
BYTES_IN_PACK = 1_000_000
# Written before a table is read: its end is then a record that is there, whatever compaction has removed.
MARKER = b"\xffload"


class _Batch:
    """What one loop iteration stored: done when each table has its part of it."""

    __slots__ = ("callbacks", "error", "waiting")

    def __init__(self) -> None:
        self.callbacks: list[OnStored] = []
        self.error: StoreError | None = None
        self.waiting = 0

    def finish_part(self, error: StoreError | None) -> None:
        self.error = self.error or error
        self.waiting -= 1
        if self.waiting == 0:
            for on_done in self.callbacks:
                try:
                    on_done(self.error)
                except Exception:  # one caller's fault is not the others'
                    log.exception("an answer to a stored change failed")


Part = tuple[_Batch, list[tuple[bytes, bytes | None]]]


class _Table:
    """One topic. A single pack is under way at a time, so that one sent again is never behind a later one; what comes
    meanwhile is the next."""

    def __init__(self, topic: str, log_provider: Log, on_stored: Callable[[int, str], None]) -> None:
        self._topic = topic
        self._log = log_provider
        self._on_stored = on_stored
        self._parts: list[Part] = []
        self._under_way: list[Part] = []
        self._records: list[tuple[bytes, bytes | None]] = []
        self._sent = 0
        self._give_up_at = 0.0

    def add(self, part: Part) -> None:
        self._parts.append(part)
        if not self._under_way:
            self._start()

    def _start(self) -> None:
        self._under_way, self._parts = self._parts, []
        self._records = [record for _, records in self._under_way for record in records]
        self._sent = 0
        self._give_up_at = time.monotonic() + PATIENCE_SECONDS
        if self._records:
            self._append()
        else:
            self._finish("")

    def _append(self) -> None:
        pack, size = RecordPack(), 0
        for key, value in self._records[self._sent : self._sent + RECORDS_IN_PACK]:
            size += len(key) + len(value or b"")
            if pack.count and size > BYTES_IN_PACK:
                break
            pack.append(value, key)
        self._log.producer.append(self._topic, 0, pack, partial(self._on_appended, pack.count))

    def _on_appended(self, count: int, result: Appended | LogError) -> None:
        if isinstance(result, LogError):
            if result.is_retryable and time.monotonic() < self._give_up_at:
                asyncio.get_running_loop().call_later(RETRY_SECONDS, self._append)
                return
            self._finish(str(result))
            return
        self._sent += count
        if self._sent < len(self._records):
            self._append()
        else:
            self._finish("")

    def _finish(self, problem: str) -> None:
        done, self._under_way = self._under_way, []
        count, self._records = len(self._records), []
        if count:
            self._on_stored(count, problem)
        error = StoreError(problem) if problem else None
        for batch, _ in done:
            batch.finish_part(error)
        if self._parts and not self._under_way:
            self._start()


class StateLog:
    """See StateStore in base.py; the log is opened and closed by who made it. The tables are the topics' names,
    behind the prefix of the installation where there is one.

    A write that the log refuses is retried in its place; after PATIENCE_SECONDS the callers get an error. The order of
    changes holds within a table; after a crash one table may be ahead of another by the writes under way.
    """

    def __init__(
        self,
        log_provider: Log,
        properties: Mapping[str, str] | None = None,
        *,
        topic_of: Callable[[str], str] = str,
    ) -> None:
        self._log = log_provider
        self._topic_of = topic_of
        self._properties = {**STATE_PROPERTIES, **(properties or {})}
        self._tables: dict[str, _Table] = {}
        self._changes: dict[str, dict[bytes, bytes | None]] = {}
        self._batch: _Batch | None = None
        self._pending = 0
        self._problem = ""
        self._warnings = Throttled(log, interval=10.0)

    async def load(self, table: str, on_record: OnRecord) -> int:
        """Waits for a log that cannot be reached."""
        newest: dict[bytes, bytes | None] = {}
        topic = self._topic_of(table)

        def note(key: bytes | None, value: bytes | None) -> None:
            if key is not None and key != MARKER:
                newest[key] = value

        while True:
            try:
                await make_state_topic(self._log, topic, self._properties)
                marker = RecordPack()
                marker.append(b"", MARKER)
                await self._log.producer.send(topic, 0, marker)
                newest.clear()
                await read_state(self._log, topic, note)
                break
            except LogError as error:
                if not error.is_retryable:
                    raise StoreError(f"the state in {topic} cannot be read: {error}") from error
                self._warnings.warning(f"the state in {topic} cannot be read: {error}")
            await asyncio.sleep(RETRY_SECONDS)
        count = 0
        for key, value in newest.items():
            if value is not None:
                on_record(key, value)
                count += 1
        return count

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        if self._batch is None:
            self._batch = _Batch()
            asyncio.get_running_loop().call_soon(self._submit)
        for table, key, value in changes:
            records = self._changes.setdefault(table, {})
            records.pop(key, None)  # in the order of the last changes, so that a crash keeps a prefix of them
            records[key] = value
        if on_done is not None:
            self._batch.callbacks.append(on_done)

    def _submit(self) -> None:
        """At the end of the iteration: one pack for each table."""
        batch, changes = self._batch, self._changes
        if batch is None:
            return
        self._batch, self._changes = None, {}
        for name in changes:
            if name not in self._tables:
                self._tables[name] = _Table(self._topic_of(name), self._log, self._on_stored)
        # Each table takes part, if only to say that what came before is done: batches are done in their order. And one
        # part more, so that the batch is not done before all of them have begun.
        batch.waiting = len(self._tables) + 1
        for name, table in self._tables.items():
            records = list(changes.get(name, {}).items())
            self._pending += len(records)
            table.add((batch, records))
        batch.finish_part(None)

    def _on_stored(self, count: int, problem: str) -> None:
        self._pending -= count
        if problem:
            self._warnings.warning(f"state cannot be stored: {problem}")
        self._problem = problem

    async def flush(self) -> None:
        done: asyncio.Future[StoreError | None] = asyncio.get_running_loop().create_future()
        self.store((), lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    @property
    def pending(self) -> int:
        return self._pending + sum(len(records) for records in self._changes.values())

    def check(self) -> bool | str:
        checked = self._log.check()
        return checked if checked is not True else self._problem or True

    async def close(self) -> None:
        self._submit()
        try:
            await self.flush()
        except StoreError as error:
            log.error("state is lost", error=str(error))
