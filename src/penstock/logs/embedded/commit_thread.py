"""The one thread that writes all topics: everything queued since its last turn becomes one commit.

    loop                                   commit thread
    append → list of this iteration ──┐
    append → …                        ├──▶ takes all lists that wait → writes each topic's packs → fdatasync
    on_commit(outcomes)  ◀────────────┘    ← one call_soon_threadsafe per turn

The interpreter's lock is not held while bytes are written and the disk is waited for. Topics that get little are waited
for together, see journal.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import queue
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from penstock.core.logging import get_logger
from penstock.logs.base import LogError, LogUnavailable
from penstock.logs.embedded import files
from penstock.logs.embedded.journal import Entry, Journal
from penstock.logs.embedded.topic_writer import Append, Outcome, TopicWriter

log = get_logger("penstock.logs")

SYNC_THREADS = 4
# Topics whose files stay open between commits, two each; of what the process may open, connections need the most.
MOST_OPEN = 1_024
OPEN_SHARE = 8
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


Job = Append | Call


class CommitThread:
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_commit: Callable[[Commit], None],
        sync_always: bool,
        sync_interval: float,
        journal: Journal,
    ) -> None:
        self._loop = loop
        self._journal = journal
        self._on_commit = on_commit
        self._sync_always = sync_always
        self._sync_interval = sync_interval
        self._queue: queue.SimpleQueue[list[tuple[TopicWriter, Append] | Call] | None] = queue.SimpleQueue()
        self._open: OrderedDict[TopicWriter, None] = OrderedDict()
        self._unsynced: set[TopicWriter] = set()
        self._troubled: set[TopicWriter] = set()
        self._sync_at = 0.0
        self._syncers: ThreadPoolExecutor | None = None
        self._most_open = min(MOST_OPEN, max(16, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // OPEN_SHARE))
        self._thread = threading.Thread(target=self._run, name="penstock-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, jobs: list[tuple[TopicWriter, Append] | Call]) -> None:
        self._queue.put(jobs)

    def stop(self) -> None:
        """Blocks until everything queued is done: not on the loop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_running = True
        while is_running:
            jobs: list[tuple[TopicWriter, Append] | Call] = []
            try:
                batch = self._queue.get(timeout=self._wait_seconds())
                while True:
                    if batch is None:
                        is_running = False
                    else:
                        jobs += batch
                    batch = self._queue.get_nowait()
            except queue.Empty:
                pass
            if jobs:
                self._turn(jobs)
            if self._unsynced and (not is_running or time.monotonic() >= self._sync_at):
                self.sync_late()
        for writer in self._open:
            writer.close()
        self._journal.close()
        if self._syncers is not None:
            self._syncers.shutdown()

    def _wait_seconds(self) -> float | None:
        return max(0.0, self._sync_at - time.monotonic()) if self._unsynced else None

    def _turn(self, jobs: list[tuple[TopicWriter, Append] | Call]) -> None:
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
        commit.problem = next((writer.problem for writer in self._troubled), None)
        commit.seconds = time.monotonic() - started
        with contextlib.suppress(RuntimeError):  # the loop was closed without closing the log
            self._loop.call_soon_threadsafe(self._on_commit, commit)

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
            if not self._is_lazy(writer) and sum(one.pack.size for one in appends) <= JOURNAL_BYTES
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
        if not self._unsynced:
            self._sync_at = time.monotonic() + self._sync_interval
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
