"""Durable state in LMDB: one thread has the environment for itself, and everything that waits for it is one commit.

    loop                                          thread
    store → changes of this iteration ──┐
    store → …                           ├──▶ takes all that wait → one transaction → on the disk
    on_done(None or StoreError) ◀───────┘    ← one call_soon_threadsafe per commit

Reading is done by the same thread, so the map may grow at any moment in between. A key is stored behind a byte 0; one
too long for LMDB as its SHA-256 behind a byte 1, and stands in front of its value.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lmdb

from penstock.core.logging import Throttled, get_logger
from penstock.storage.state.base import Change, OnRecord, OnStored, StoreError
from penstock.storage.state.lmdb_kv import LmdbSpace, LmdbStore

log = get_logger("penstock.stores")

LONGEST_KEY = 400
RECORDS_AT_ONCE = 5_000
LENGTH_BYTES = 4
PROBE_SECONDS = 1.0
PROBE_TABLE = "probe"
LITTLE_ROOM = 1_048_576

Pair = tuple[bytes, bytes]
Job = tuple[list[Change], list[OnStored]] | Callable[[], None]


def encode_pair(key: bytes, value: bytes | None) -> tuple[bytes, bytes | None]:
    if len(key) <= LONGEST_KEY:
        return b"\0" + key, value
    stored_key = b"\1" + hashlib.sha256(key).digest()
    return stored_key, None if value is None else len(key).to_bytes(LENGTH_BYTES, "big") + key + value


def decode_pair(stored_key: bytes, stored_value: bytes) -> Pair:
    if stored_key[0] == 0:
        return stored_key[1:], stored_value
    end = LENGTH_BYTES + int.from_bytes(stored_value[:LENGTH_BYTES], "big")
    return stored_value[LENGTH_BYTES:end], stored_value[end:]


class LmdbStateStore:
    """See StateStore in base.py. Made on the loop. A second process that opens a path gets an error."""

    def __init__(self, path: Path | str, loop: asyncio.AbstractEventLoop) -> None:
        self._path = Path(path)
        self._loop = loop
        self._lock = _lock(self._path)
        self._environment = self._open()
        self._spaces: dict[str, LmdbSpace] = {}
        self._changes: list[Change] = []
        self._callbacks: list[OnStored] = []
        self._is_scheduled = False
        self._pending = 0
        self._problem = ""
        self._warnings = Throttled(log, interval=10.0)
        self._probe: asyncio.TimerHandle | None = None
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="penstock-state", daemon=True)
        self._thread.start()
        self._is_closed = False

    # ---- on the loop ----

    async def load(self, table: str, on_record: OnRecord) -> int:
        count = 0
        last: bytes | None = None
        while True:
            records = await self._on_thread(self._read, table, last)
            for stored_key, stored_value in records:
                on_record(*decode_pair(stored_key, stored_value))
            count += len(records)
            if len(records) < RECORDS_AT_ONCE:
                return count
            last = records[-1][0]

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        if self._is_closed:
            if on_done is not None:
                self._loop.call_soon(on_done, StoreError("the store is closed"))
            return
        before = len(self._changes)
        self._changes.extend(changes)
        self._pending += len(self._changes) - before
        if on_done is not None:
            self._callbacks.append(on_done)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._submit)

    def _submit(self) -> None:
        """At the end of the iteration."""
        if self._is_scheduled:
            self._is_scheduled = False
            self._jobs.put((self._changes, self._callbacks))
            self._changes, self._callbacks = [], []

    async def flush(self) -> None:
        done: asyncio.Future[StoreError | None] = self._loop.create_future()
        self.store((), lambda error: None if done.done() else done.set_result(error))
        error = await done
        if error is not None:
            raise error

    @property
    def pending(self) -> int:
        return self._pending

    def check(self) -> bool | str:
        return self._problem or True

    async def close(self) -> None:
        if self._is_closed:
            return
        self._submit()
        self._is_closed = True
        if self._probe is not None:
            self._probe.cancel()
        self._jobs.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        # what the thread told last is waiting to be told on the loop
        await asyncio.sleep(0)
        os.close(self._lock)

    def _on_done(self, count: int, callbacks: list[OnStored], problem: str, has_written: bool) -> None:
        self._pending -= count
        if problem or has_written:
            self._note(problem)
        error = StoreError(problem) if problem else None
        for on_done in callbacks:
            try:
                on_done(error)
            except Exception:  # one caller's fault is not the others'
                log.exception("an answer to a stored change failed")

    def _note(self, problem: str) -> None:
        """Report trouble, and check again until it is over, also when nothing is stored."""
        if problem:
            self._warnings.error("state cannot be stored", error=problem)
            if self._probe is None and not self._is_closed:
                self._probe = self._loop.call_later(PROBE_SECONDS, self._look_again)
        elif self._problem:
            log.info("state can be stored again")
        self._problem = problem

    def _look_again(self) -> None:
        self._probe = None
        if self._problem:
            self.store([(PROBE_TABLE, b"", os.urandom(8))])

    async def _on_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        done: asyncio.Future[Any] = self._loop.create_future()

        def finish(result: Any, error: Exception | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def run() -> None:
            try:
                result, error = function(*arguments), None
            except Exception as failure:
                result, error = None, StoreError(f"the store cannot be read: {failure}")
            self._tell(finish, result, error)

        self._jobs.put(run)
        return await done

    # ---- on the thread ----

    def _open(self) -> LmdbStore:
        try:
            return LmdbStore(self._path)
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"the store {self._path} cannot be opened: {error}") from error

    def _run(self) -> None:
        is_running = True
        while is_running:
            waiting = [self._jobs.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self._jobs.get_nowait())
            changes: list[Change] = []
            callbacks: list[OnStored] = []
            for job in waiting:
                if job is None:
                    is_running = False
                elif isinstance(job, tuple):
                    changes += job[0]
                    callbacks += job[1]
                else:
                    self._commit(changes, callbacks)
                    changes, callbacks = [], []
                    job()
            self._commit(changes, callbacks)
        self._environment.close()

    def _read(self, table: str, last: bytes | None) -> list[Pair]:
        return self._space(table).read_after(last, RECORDS_AT_ONCE)

    def _space(self, table: str) -> LmdbSpace:
        if table not in self._spaces:
            self._spaces[table] = self._environment.space(table)
        return self._spaces[table]

    def _commit(self, changes: list[Change], callbacks: list[OnStored]) -> None:
        if not changes and not callbacks:
            return
        problem = ""
        has_written = False  # removing what is not there asks nothing of the disk, and says nothing about it
        try:
            if changes:
                before = self._environment.commits
                self._environment.write((self._space(table), *encode_pair(key, value)) for table, key, value in changes)
                has_written = self._environment.commits != before
        except Exception as error:
            problem = _describe(error, self._path)
            if isinstance(error, lmdb.PanicError):
                self._reopen()
        self._tell(self._on_done, len(changes), callbacks, problem, has_written)

    def _reopen(self) -> None:
        """After a failed write of its head LMDB refuses everything until it is opened again."""
        with contextlib.suppress(Exception):
            self._environment.close()
        self._spaces.clear()
        with contextlib.suppress(StoreError):
            self._environment = self._open()

    def _tell(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed without closing the store
            self._loop.call_soon_threadsafe(callback, *arguments)


def _describe(error: Exception, path: Path) -> str:
    if not isinstance(error, lmdb.Error | OSError):
        return repr(error)
    if "No space left" in str(error) or _free_bytes(path) < LITTLE_ROOM:
        return f"the disk is full ({error})"  # LMDB calls half a write an input/output error
    return f"the disk refuses ({error})"


def _free_bytes(path: Path) -> int:
    try:
        stat = os.statvfs(path)
    except OSError:
        return LITTLE_ROOM
    return stat.f_bavail * stat.f_frsize


def _lock(directory: Path) -> int:
    """Held while the process lives, however it ends: two of them would undo each other's changes."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    held = os.open(directory.with_name(f"{directory.name}.lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(held, 32).decode(errors="replace").strip() or "unknown"
        os.close(held)
        raise StoreError(
            f"{directory} is in use by another process (pid {holder})",
            "Stop it first, or give this one a data directory of its own.",
        ) from None
    os.ftruncate(held, 0)
    os.pwrite(held, f"{os.getpid()}\n".encode(), 0)
    return held
