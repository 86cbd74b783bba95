"""The queues of DEVICE clients in LMDB: one thread has the environment for itself, and all that waits is one commit.

loop                                       thread
add, remove, … → list of calls ──┐
add, …                           ├──▶ takes all that wait → one transaction, in their order → on the disk
on_done(results) ◀───────────────┘    ← one call_soon_threadsafe per transaction
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import struct
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lmdb

from penstock._ext.device.rows import BadSource
from penstock.core.logging import Throttled, get_logger
from penstock.settings.redis import DeviceSettings
from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_kv import SMALLEST_MAP, LmdbStore
from penstock.subscribers.device.store.addition_order import AdditionOrder
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    DeviceStatistics,
    Moved,
    OnAllDone,
    OnDone,
    PacketIds,
    Page,
    PlacedId,
    Queue,
    QueueState,
    StoreFull,
    StoreUnavailable,
)
from penstock.subscribers.device.store.lmdb_rows import QueueTables

log = get_logger("penstock.stores")

# A transaction that is too large keeps everybody waiting for its end.
MOST_BYTES_AT_ONCE = 16 * 1024 * 1024
CALL_OVERHEAD = 200
FIRST_MAP = 1024 * 1024 * 1024
PROBE_SECONDS = 1.0

Work = Callable[[QueueTables, int], Any]
Numbered = Sequence[tuple[Queue, int]]
"""Additions: their queues, and their numbers in AdditionOrder."""


class _Call:
    """Something to be done in a transaction, in its turn."""

    __slots__ = ("additions", "on_done", "result", "size", "work", "writes")

    def __init__(
        self, work: Work, size: int, on_done: Callable[[Any], None], *, writes: bool, additions: Numbered = ()
    ) -> None:
        self.work = work
        self.size = size
        self.on_done = on_done
        self.writes = writes
        self.additions = additions
        self.result: Any = None


class LmdbDeviceStore:
    """See DeviceStore. Made on the loop it is used on. A process opens a path once."""

    is_shared = False
    is_remote = False

    def __init__(
        self,
        path: Path | str,
        device: DeviceSettings,
        backlog_bytes: int = 64 * 1024 * 1024,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.statistics = DeviceStatistics()
        self._path = Path(path)
        self._device = device
        self._backlog_bytes = backlog_bytes
        self._clock = clock
        self._pending_bytes = 0
        self._problem = ""
        self._is_closed = True
        self._warnings = Throttled(log, interval=10.0)
        self._probe: asyncio.TimerHandle | None = None
        self._order = AdditionOrder()
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._open()
        self._thread = threading.Thread(target=self._run, name="penstock-device", daemon=True)
        self._thread.start()
        self._is_closed = False

    def _open(self) -> None:
        try:
            self._environment = LmdbStore(self._path)
            # Growing does a transaction all over again; room in the map that is not used costs nothing.
            size = max(SMALLEST_MAP, 2 * (self._path / "data.mdb").stat().st_size)
            while size < FIRST_MAP:
                self._environment.grow()
                size *= 2
            device = self._device
            self._tables = QueueTables(
                self._environment, device.messages_limit, device.bytes_limit, device.total_bytes_limit
            )
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"the store {self._path} cannot be opened: {error}") from error

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        if self._probe is not None:
            self._probe.cancel()
        self._calls.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        await asyncio.sleep(0)  # what the thread told last waits to be told on the loop

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def check(self) -> bool | str:
        return self._problem or True

    def add(self, batch: Sequence[Addition], on_done: OnAllDone[Added]) -> None:
        ttl = 1000 * self._device.messages_ttl

        def work(tables: QueueTables, now: int) -> list[Added | StoreError]:
            results: list[Added | StoreError] = []
            for (name, pack, in_flight), (_, number) in zip(batch, numbered, strict=True):
                if (failure := self._order.failure(name, number)) is not None:
                    results.append(failure)
                    continue
                try:
                    results.append(tables.add(name, pack, in_flight, now, now + ttl))
                except StoreFull as error:
                    self._order.failed(name, number, error)
                    results.append(error)
            return results

        def finish(results: list[Added | StoreError]) -> None:
            for result in results:
                if isinstance(result, Added):
                    self.statistics.added += len(result.packet_ids) - result.packet_ids.count(0)
                    self.statistics.trimmed += result.trimmed
            try:
                on_done(results)
            finally:
                self._order.told(name for name, _ in numbered)

        numbered = [(addition.queue, self._order.given(addition.queue)) for addition in batch]
        self._submit(work, sum(addition.pack.size for addition in batch), finish, len(batch), additions=numbered)

    def remove(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        def finish(results: list[int | StoreError]) -> None:
            self.statistics.removed += sum(result for result in results if isinstance(result, int))
            on_done(results)

        self._submit(lambda tables, _: [tables.remove(*entry) for entry in batch], 0, finish, len(batch))

    def release(self, batch: Sequence[PacketIds], on_done: OnAllDone[int]) -> None:
        def finish(results: list[int | StoreError]) -> None:
            self.statistics.released += sum(result for result in results if isinstance(result, int))
            on_done(results)

        self._submit(lambda tables, _: [tables.release(*entry) for entry in batch], 0, finish, len(batch))

    def remove_all(self, queues: Sequence[Queue], on_done: OnAllDone[int]) -> None:
        self._submit(lambda tables, _: [tables.remove_all(name) for name in queues], 0, on_done, len(queues))

    def fetch(self, queue: Queue, after_score: int, limit: int, on_done: OnDone[Page]) -> None:
        def finish(result: tuple[Page, list[int]] | StoreError) -> None:
            if isinstance(result, StoreError):
                on_done(result)
                return
            page, expired = result
            if expired:
                self.remove([(queue, expired)], lambda _: None)
            self.statistics.fetched += len(page.packet_ids)
            on_done(page)

        self._submit(lambda tables, now: tables.fetch(queue, after_score, limit, now), 0, finish, writes=False)

    def reserve(self, queue: Queue, count: int, in_flight: bytes, on_done: OnDone[list[int]]) -> None:
        self._submit(lambda tables, _: tables.reserve(queue, count, in_flight), 0, on_done)

    def move(self, group: Queue, member: Queue, delivery: bytes, limit: int, on_done: OnDone[Moved]) -> None:
        self._move(group, member, delivery, on_done, limit=limit)

    def move_some(
        self, group: Queue, member: Queue, delivery: bytes, chosen: Sequence[PlacedId], on_done: OnDone[Moved]
    ) -> None:
        wanted = {score for _, score in chosen}
        self._move(group, member, delivery, on_done, limit=len(chosen), wanted=wanted)

    def _move(
        self,
        group: Queue,
        member: Queue,
        delivery: bytes,
        on_done: OnDone[Moved],
        *,
        limit: int,
        wanted: set[int] | None = None,
    ) -> None:
        ttl = 1000 * self._device.messages_ttl

        def work(tables: QueueTables, now: int) -> Moved:
            return tables.move(group, member, delivery, limit=limit, wanted=wanted, now=now, default_expiry=now + ttl)

        def finish(result: Moved | StoreError) -> None:
            if not isinstance(result, StoreError):
                self.statistics.trimmed += result.trimmed
            on_done(result)

        self._submit(work, 0, finish)

    def describe(self, queue: Queue, on_done: OnDone[QueueState]) -> None:
        self._submit(lambda tables, _: tables.describe(queue), 0, on_done, writes=False)

    def _submit(
        self,
        work: Work,
        size: int,
        on_done: Callable[[Any], None],
        count: int = 0,
        *,
        writes: bool = True,
        additions: Numbered = (),
    ) -> None:
        """With a count, `on_done` gets so many results in a list."""

        def finish(result: Any) -> None:
            if isinstance(result, StoreError):
                self.statistics.failed += max(1, count)
            on_done([result] * count if count and isinstance(result, StoreError) else result)

        size += CALL_OVERHEAD
        # What is larger than the room there is goes alone: else it would never go.
        if self._is_closed or (self._pending_bytes and self._pending_bytes + size > self._backlog_bytes):
            refusal = self._refuse()
            self._fail(additions, refusal)
            self._loop.call_soon(finish, refusal)
            return
        self._pending_bytes += size
        self._calls.put(_Call(work, size, finish, writes=writes, additions=additions))

    def _fail(self, additions: Numbered, error: StoreError) -> None:
        """None of these is done."""
        for name, number in additions:
            self._order.failed(name, number, error)

    def _refuse(self) -> StoreError:
        if self._is_closed:
            return StoreUnavailable("the store is closed")
        self.statistics.refused += 1
        return StoreFull(f"{self._pending_bytes} bytes wait for the disk already", "give it again later")

    def _note_stored(self) -> None:
        self.statistics.stored = self._tables.stored
        self.statistics.stored_bytes = self._tables.stored_bytes

    def _on_turn(self, calls: list[_Call], problem: str, has_written: bool) -> None:
        self.statistics.commits += 1
        if not problem:
            self._note_stored()
        # who only reads, or removes what is not there, learns nothing about the disk
        if problem or has_written:
            self._note(problem)
        for call in calls:
            self._pending_bytes -= call.size
            try:
                call.on_done(call.result)
            except Exception:  # one caller's fault is not the others'
                log.exception("a callback of the store failed")

    def _note(self, problem: str) -> None:
        """Report trouble, and check again until it is over, also when nothing is stored."""
        if problem:
            self._warnings.error("messages of DEVICE clients cannot be stored", error=problem)
            if self._probe is None and not self._is_closed:
                self._probe = self._loop.call_later(PROBE_SECONDS, self._look_again)
        elif self._problem:
            log.info("messages of DEVICE clients can be stored again")
        self._problem = problem

    def _look_again(self) -> None:
        self._probe = None
        if self._problem:
            self._submit(lambda tables, _: tables.probe(), 0, lambda _: None)

    # On the thread.

    def _run(self) -> None:
        problem, _ = self._turn([])  # loads what is known of the tables
        if not problem:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._note_stored)
        is_running = True
        while is_running:
            first = self._calls.get()
            calls: list[_Call] = []
            size = 0
            with contextlib.suppress(queue.Empty):
                while True:
                    if first is None:
                        is_running = False
                    else:
                        calls.append(first)
                        size += first.size
                    if size > MOST_BYTES_AT_ONCE:
                        break
                    first = self._calls.get_nowait()
            if calls:
                problem, has_written = self._turn(calls)
                with contextlib.suppress(RuntimeError):  # the loop was closed without closing the store
                    self._loop.call_soon_threadsafe(self._on_turn, calls, problem, has_written)
        self._environment.close()

    def _turn(self, calls: list[_Call]) -> tuple[str, bool]:
        """Does everything or nothing; says what is wrong with the store, and whether the disk had a say in it."""
        while True:
            try:
                before = self._environment.commits
                self._transact(calls)
                return "", self._environment.commits != before
            except lmdb.MapFullError:
                self._tables.forget()
                self._environment.grow()
            except Exception as error:
                self._tables.forget()
                failure = to_store_error(error)
                if isinstance(error, lmdb.PanicError):
                    self._reopen()
                elif not isinstance(error, lmdb.Error | OSError):
                    log.exception("an operation on the store failed")
                for call in calls:
                    call.result = failure
                    self._fail(call.additions, failure)
                return failure.message, False

    def _transact(self, calls: list[_Call]) -> None:
        now = int(self._clock() * 1000)
        with self._environment.begin(write=any(call.writes for call in calls)) as transaction:
            self._tables.begin(transaction)
            for call in calls:
                try:
                    call.result = call.work(self._tables, now)
                except StoreError as error:
                    call.result = error
                    self._fail(call.additions, error)
                except (struct.error, BadSource) as error:
                    # The caller's mistake; what it did before that is as good as any other message.
                    call.result = StoreError(f"the key of a record is not a source: {error}")
                    self._fail(call.additions, call.result)
            self._tables.end()

    def _reopen(self) -> None:
        """After a failed write of its head LMDB refuses everything until it is opened again."""
        with contextlib.suppress(Exception):
            self._environment.close()
        with contextlib.suppress(StoreError):
            self._open()


def to_store_error(error: Exception) -> StoreError:
    text = str(error)
    if "No space left" in text or "quota" in text.lower():
        return StoreFull(f"the disk is full ({text})", "make room in server.data_dir")
    if isinstance(error, lmdb.Error | OSError):
        return StoreUnavailable(f"the disk refuses ({text})")
    return StoreError(f"the store failed ({error!r})")
