"""Writes all topics, one turn at a time: everything appended during a turn is the commit of the next one.

    loop                                       disk thread or commit thread
    append: collected while a turn is under way
    begin the turn ──────────────────────────▶ write each topic's packs, fdatasync
    begin the next turn, on_commit(outcomes) ◀── done

A turn wakes one thread, and that thread wakes the loop once, or not at all for QoS 0 publishes that nothing waits for:
the loop finds such a turn done when it begins the next one. Most turns are packs of one topic whose segment is open
and has room. The loop assigns their offsets and positions, and the disk thread, which is compiled and never takes the
interpreter's lock, writes them. The commit thread runs all other turns: several topics, new segments, failures, calls.
It releases the interpreter's lock while it writes and waits for the disk. Small commits of several topics share one
fdatasync, see journal.py.

The state of the writers belongs to the turn that is under way, on whichever thread it runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock._ext.record.segment import DiskThread, Turns
from penstock.core.logging import get_logger
from penstock.core.process import descriptor_limit
from penstock.storage.log.base import LogError, LogUnavailable
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.journal import Entry, Journal
from penstock.storage.log.embedded.topic_writer import Append, Outcome, TopicWriter

log = get_logger("penstock.logs")

SYNC_THREADS = 4
# Topics whose files stay open between commits, two each; of what the process may open, connections need the most.
MOST_OPEN = 1_024
OPEN_SHARE = 8
# How long a turn that nothing waits for may remain unnoticed.
COLLECT_SECONDS = 0.05
# So many topics, each with no more bytes than this, share the journal; what is larger would only be written twice.
JOURNAL_TOPICS = 2
JOURNAL_BYTES = 65_536


@dataclass(eq=False, slots=True)
class Call:
    """Something else that is done in the order of the appends: `function(outcome)`, its result to `on_done`."""

    function: Callable[[Outcome], Any]
    on_done: Callable[[Any], None]
    writer: TopicWriter | None = None
    result: Any = None


@dataclass(slots=True)
class Commit:
    """What the loop is told after a turn."""

    outcomes: list[Outcome] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    problem: str | None = None
    seconds: float = 0.0
    is_unsynced: bool = False  # records of this or of an earlier turn wait for `sync_late`


Job = tuple[TopicWriter, Append] | Call


@dataclass(eq=False, slots=True)
class Single:
    """A turn of the disk thread that failed."""

    writer: TopicWriter
    started: float
    failure: int


class CommitThread(Turns):
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_commit: Callable[[Commit], None],
        on_appended: Callable[[list[Append], str | None, float], None],
        *,
        sync_always: bool,
        sync_interval: float,
        journal: Journal,
    ) -> None:
        self._loop = loop
        self._on_appended = on_appended
        self._journal = journal
        self._on_commit = on_commit
        self._sync_always = sync_always
        self._sync_interval = sync_interval
        # state of the loop
        self._waiting = []
        self._collect_seconds = COLLECT_SECONDS
        self._disk = DiskThread()
        self._sync_timer: asyncio.TimerHandle | None = None
        # state of the turn
        self._queue: queue.SimpleQueue[list[Job] | Single | None] = queue.SimpleQueue()
        self._open: OrderedDict[TopicWriter, None] = OrderedDict()
        self._unsynced: set[TopicWriter] = set()
        self._troubled = set()
        self._syncers: ThreadPoolExecutor | None = None
        self._most_open = min(MOST_OPEN, max(16, descriptor_limit() // OPEN_SHARE))
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)

    def start(self) -> None:
        self._thread.start()
        self._loop.add_reader(self._disk.event, self._on_event)

    # on the loop

    async def stop(self) -> None:
        """Finish everything that was submitted, then end the threads."""
        if self._is_busy:
            self._idle = self._loop.create_future()
            self.collect()
            await self._idle
        for timer in (self._sync_timer, self._collect_timer):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._disk.event)
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._end)

    def _end(self) -> None:
        self._thread.join()
        self._disk.close()

    def _begin_others(self, jobs: list[Job]) -> None:
        """Run the turn on the commit thread."""
        self._queue.put(jobs)

    def _fail_single(self, writer: TopicWriter, failure: int, started: float) -> None:
        self._queue.put(Single(writer, started, failure))

    def _on_thread_turn(self, commit: Commit) -> None:
        self.loop_wakes += 1
        if commit.is_unsynced and self._sync_timer is None:
            self._sync_timer = self._loop.call_later(self._sync_interval, self._sync_soon)
        self._begin_next()
        self._on_commit(commit)
        self._check_idle()

    def _sync_soon(self) -> None:
        self._sync_timer = None
        self.submit([Call(lambda _: self.sync_late(), lambda _: None)])

    # in a turn

    def _run(self) -> None:
        while (job := self._queue.get()) is not None:
            commit = self._roll_back(job) if isinstance(job, Single) else self._turn(job)
            with contextlib.suppress(RuntimeError):  # the loop was closed without closing the log
                self._loop.call_soon_threadsafe(self._on_thread_turn, commit)
        if self._unsynced:
            self.sync_late()
        for writer in self._open:
            writer.close()
        self._journal.close()
        if self._syncers is not None:
            self._syncers.shutdown()

    def _roll_back(self, single: Single) -> Commit:
        outcome = Outcome(single.writer.view)
        single.writer.roll_back(outcome, single.failure)
        self._note(single.writer)
        return Commit([outcome], problem=self._find_problem(), seconds=time.monotonic() - single.started)

    def _turn(self, jobs: list[Job]) -> Commit:
        started = time.monotonic()
        commit = Commit()
        waiting: dict[TopicWriter, list[Append]] = {}
        for job in jobs:
            if isinstance(job, Call):
                self._commit_all(waiting, commit)
                waiting = {}
                self._call(job, commit)
            else:
                waiting.setdefault(job[0], []).append(job[1])
        self._commit_all(waiting, commit)
        commit.problem = self._find_problem()
        commit.is_unsynced = bool(self._unsynced)
        commit.seconds = time.monotonic() - started
        return commit

    def _find_problem(self) -> str | None:
        return next((writer.problem for writer in self._troubled), None)

    def _commit_all(self, waiting: dict[TopicWriter, list[Append]], commit: Commit) -> None:
        """No more topics at a time than may have their files open."""
        if len(waiting) <= self._most_open:
            self._commit(waiting, commit)
            return
        items = iter(waiting.items())
        while some := dict(itertools.islice(items, self._most_open)):
            self._commit(some, commit)

    def _commit(self, waiting: dict[TopicWriter, list[Append]], commit: Commit) -> None:
        is_single = len(waiting) == 1 and not self._is_lazy(next(iter(waiting)))
        entries = self._choose_journaled(waiting)
        staged: list[tuple[TopicWriter, Outcome]] = []
        for writer, appends in waiting.items():
            outcome = Outcome(writer.view)
            commit.outcomes.append(outcome)
            try:
                writer.stage(appends, outcome, is_single, entries.get(writer))
            except Exception as error:
                log.exception("writing a topic failed", topic=writer.view.name)
                self._fail_rest(appends, outcome, error)
            if writer.has_staged:
                staged.append((writer, outcome))
            else:
                entries.pop(writer, None)
            self._note(writer)
        if staged:
            self._sync(staged, entries)

    def _choose_journaled(self, waiting: dict[TopicWriter, list[Append]]) -> dict[TopicWriter, list[Entry]]:
        if not self._sync_always or len(waiting) < JOURNAL_TOPICS:
            return {}
        small: dict[TopicWriter, list[Entry]] = {
            writer: []
            for writer, appends in waiting.items()
            if not self._is_lazy(writer) and sum(one.size for one in appends) <= JOURNAL_BYTES
        }
        return small if len(small) >= JOURNAL_TOPICS else {}

    @staticmethod
    def _fail_rest(appends: Iterable[Append], outcome: Outcome, error: Exception) -> None:
        told = {id(step) for step in outcome.steps}
        for append in appends:
            if id(append) not in told:
                append.error = LogUnavailable(f"writing failed: {error}")
                outcome.steps.append(append)

    def _sync(self, staged: list[tuple[TopicWriter, Outcome]], entries: dict[TopicWriter, list[Entry]]) -> None:
        lazy = [(writer, outcome) for writer, outcome in staged if self._is_lazy(writer)]
        if lazy:
            self._leave_unsynced(lazy)
            staged = [(writer, outcome) for writer, outcome in staged if not self._is_lazy(writer)]
        by_file = [(writer, outcome) for writer, outcome in staged if writer not in entries]
        by_journal = [(writer, outcome) for writer, outcome in staged if writer in entries]
        failures = self._sync_all([writer for writer, _ in by_file])
        if by_journal and self._journal.write([entry for of_topic in entries.values() for entry in of_topic]):
            for writer, outcome in by_journal:
                writer.settle(outcome, is_synced=True, is_journaled=True)
        elif by_journal:
            by_file += by_journal
            failures = itertools.chain(failures, self._sync_all([writer for writer, _ in by_journal]))
        for (writer, outcome), failure in zip(by_file, failures, strict=True):
            if failure:
                writer.roll_back(outcome, failure)
            else:
                writer.settle(outcome, is_synced=True)
            self._note(writer)

    def _is_lazy(self, writer: TopicWriter) -> bool:
        return not self._sync_always or writer.view.config.is_lazy

    def _leave_unsynced(self, staged: list[tuple[TopicWriter, Outcome]]) -> None:
        for writer, outcome in staged:
            writer.settle(outcome, is_synced=False)
            self._unsynced.add(writer)
        if len(self._unsynced) > self._most_open:
            self.sync_late()

    def _sync_all(self, writers: list[TopicWriter]) -> Iterable[int]:
        """Starts at once; who iterates waits."""
        if not writers:
            return ()
        if self._syncers is None:
            self._syncers = ThreadPoolExecutor(SYNC_THREADS, "penstock-log-sync")
        return self._syncers.map(TopicWriter.sync, writers)

    def sync_late(self) -> None:
        """`log.fsync = interval`: who appended was told already, so a failure can only be reported."""
        writers = [writer for writer in self._unsynced if writer.is_open]
        self._unsynced.clear()
        for writer, failure in zip(writers, self._sync_all(writers), strict=True):
            if failure:
                writer.doubt()
                writer.problem = f"topic {writer.view.name!r}: {files.describe_errno(failure)}"
                log.error("what was written may be lost", topic=writer.view.name, why=writer.problem)
            else:
                writer.settle(Outcome(writer.view), is_synced=True)
            self._note(writer)

    def _call(self, call: Call, commit: Commit) -> None:
        outcome = Outcome(call.writer.view if call.writer is not None else None)
        try:
            call.result = call.function(outcome)
        except LogError as error:
            call.result = error
        except OSError as error:
            call.result = LogUnavailable(files.describe_errno(error.errno or 0))
        except Exception as error:
            log.exception("an operation on the log failed")
            call.result = LogError(f"{type(error).__name__}: {error}")
        commit.outcomes.append(outcome)
        if call.writer is not None:
            self._note(call.writer)
        commit.calls.append(call)

    def _note(self, writer: TopicWriter) -> None:
        """Keeps account of who has files open and who is in trouble."""
        if writer.has_lost_journaled:
            writer.has_lost_journaled = False
            self._journal.keep(writer.directory.name)
        if writer.problem is None:
            self._troubled.discard(writer)
        else:
            self._troubled.add(writer)
        if not writer.is_open:
            self._open.pop(writer, None)
            return
        self._open[writer] = None
        self._open.move_to_end(writer)
        # two for the one that came: those that had to stay open when their turn came go one by one
        for _ in range(2):
            if len(self._open) <= self._most_open:
                break
            oldest, _ = self._open.popitem(last=False)
            if oldest.has_staged or oldest in self._unsynced:
                self._open[oldest] = None
            else:
                oldest.close()

    def forget(self, writer: TopicWriter) -> None:
        """On the commit thread: the topic is deleted."""
        writer.close()
        writer.problem = None
        self._unsynced.discard(writer)
        self._note(writer)
