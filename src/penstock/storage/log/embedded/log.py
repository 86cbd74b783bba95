"""The embedded provider; see base.py for the port and commit_thread.py for who does what on which thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from penstock._ext.record.segment import AppendCounts, RecentPacks, RecordPack, report_appended
from penstock.core.logging import get_logger
from penstock.storage.log.base import (
    Committed,
    LogDamaged,
    LogError,
    LogUnavailable,
    TopicCut,
    TopicNotFound,
    TopicPartition,
    Watermarks,
)
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.admin import EmbeddedAdmin
from penstock.storage.log.embedded.commit_thread import Call, Commit, CommitThread
from penstock.storage.log.embedded.damage import MetDamage
from penstock.storage.log.embedded.journal import Journal, replay
from penstock.storage.log.embedded.maintenance import Maintenance
from penstock.storage.log.embedded.offsets import GroupOffsets, KeyValue
from penstock.storage.log.embedded.producer import EmbeddedProducer
from penstock.storage.log.embedded.reading import Load, Request, Windows, run_at_once
from penstock.storage.log.embedded.recovery import RecoveredTopic, missing, recover_all
from penstock.storage.log.embedded.segments import Segment
from penstock.storage.log.embedded.topic import TopicView
from penstock.storage.log.embedded.topic_writer import Append, Outcome, TopicWriter
from penstock.storage.log.groups import GroupCoordinator
from penstock.storage.log.local_consumer import LocalConsumer, Watchers

log = get_logger("penstock.logs")

MIB = 1_048_576
READ_THREADS = 2
# Who creates a topic waits for the disk several times; when many do it at once the disk does it for all together.
ADMIN_THREADS = 4
ATTEMPTS = 10
R = TypeVar("R")


class EmbeddedLog:
    """`store` keeps the groups' offsets (storage/state/lmdb_kv.py); its owner closes it after the log."""

    is_shared = False
    has_files = True
    is_durable = True
    is_remote = False

    def __init__(
        self,
        data_dir: Path | str,
        store: KeyValue,
        *,
        fsync: str = "always",
        fsync_interval_ms: int = 100,
        max_pending_bytes: int = 64 * MIB,
        cache_bytes: int = 64 * MIB,
        maintenance_interval: float = 30.0,
        max_poll_interval: float = 300.0,
        linger_ms: int = 5,
    ) -> None:
        if fsync not in {"always", "interval"}:
            raise ValueError(f"log.fsync {fsync!r} is not always or interval")
        self.root = files.log_directory(data_dir)
        self.views: dict[str, TopicView] = {}
        self.writers: dict[str, TopicWriter] = {}
        self.held: dict[str, dict[int, int]] = {}  # what retention waits for: by topic, of its partitions
        self.offsets = GroupOffsets(store)
        self._sync_always = fsync == "always"
        self._sync_interval = fsync_interval_ms / 1000
        self._max_poll_interval = max_poll_interval
        self._recent = RecentPacks(cache_bytes)
        self._windows = Windows()
        self._watchers = Watchers()
        self._consumers: set[LocalConsumer] = set()
        self._appends = AppendCounts()
        self._producer = EmbeddedProducer(self, self._appends, max_pending_bytes, linger_ms / 1000)
        self._admin = EmbeddedAdmin(self)
        self.maintenance = Maintenance(self, maintenance_interval)
        self._problem: str | None = None
        self.damage = MetDamage(self.views)
        self._lock: files.DirectoryLock | None = None
        self._thread: CommitThread | None = None
        self._readers: ThreadPoolExecutor | None = None
        self._workers: ThreadPoolExecutor | None = None
        self._admins: ThreadPoolExecutor | None = None
        self._coordinator: GroupCoordinator | None = None
        self._journal: Journal | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        self._lock = files.DirectoryLock(self.root)
        self._readers = ThreadPoolExecutor(READ_THREADS, "penstock-log-read")
        self._workers = ThreadPoolExecutor(1, "penstock-log-work")
        self._admins = ThreadPoolExecutor(ADMIN_THREADS, "penstock-log-admin")
        try:
            await loop.run_in_executor(self._readers, replay, self.root)
            recovered = await loop.run_in_executor(self._readers, recover_all, self.root)
            await loop.run_in_executor(self._readers, self.offsets.load)
            names = {topic.name for topic in recovered}
            await loop.run_in_executor(self._readers, self.offsets.drop_missing, names)
        except BaseException:
            self._stop_threads()
            self._lock.release()
            raise
        for topic in recovered:
            self.add_topic(topic)
        self._coordinator = GroupCoordinator(self._partitions_of, loop.time, self._max_poll_interval)
        self._journal = Journal(self.root)
        self._thread = CommitThread(
            loop,
            self._on_commit,
            self._on_appended,
            sync_always=self._sync_always,
            sync_interval=self._sync_interval,
            journal=self._journal,
        )
        self._thread.start()
        self.offsets.start(loop)
        self.maintenance.start(loop)
        seconds = round(time.monotonic() - started, 3)
        log.info("log opened", directory=str(self.root), topics=len(recovered), seconds=seconds)

    async def close(self) -> None:
        """Everything that was appended is durable when it returns."""
        if self._thread is None or self._readers is None or self._lock is None:
            return
        loop = asyncio.get_running_loop()
        await self.maintenance.stop()
        for consumer in list(self._consumers):
            await consumer.close()
        self._producer.flush()
        thread, self._thread = self._thread, None
        await thread.stop()
        await loop.run_in_executor(None, self.offsets.stop)
        await asyncio.sleep(0)  # what the threads told the loop last is done before the log counts as closed
        self._stop_threads()
        for view in self.views.values():
            for segment in view.segments:
                segment.close()
        self._lock.release()

    def _stop_threads(self) -> None:
        for pool in (self._readers, self._workers, self._admins):
            if pool is not None:
                pool.shutdown()

    @property
    def producer(self) -> EmbeddedProducer:
        return self._producer

    @property
    def patient_producer(self) -> EmbeddedProducer:
        return self._producer

    @property
    def admin(self) -> EmbeddedAdmin:
        return self._admin

    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str = "earliest"
    ) -> LocalConsumer:
        consumer = LocalConsumer(self, group, instance_id, auto_offset_reset)
        self._consumers.add(consumer)
        return consumer

    def check(self) -> bool | str:
        if self._thread is None:
            return "the log is not open"
        return self._problem or True

    def check_readers(self) -> bool | str:
        return self.damage.describe() or True

    def counters(self) -> dict[str, int | float]:
        return {
            "appended_records": self._appends.records,
            "appended_bytes": self._appends.bytes,
            "failed_appends": self._appends.failed,
            "commits": self._appends.commits,
            "commit_seconds": self._appends.seconds,
            "disk_reads": self._appends.disk_reads,
            "pending_bytes": self._appends.pending_bytes,
            "cached_bytes": self._recent.bytes,
            "topics": len(self.views),
            "segments": sum(len(view.segments) for view in self.views.values()),
            "bytes": sum(view.bytes for view in self.views.values()),
            "journal_rounds": self._journal.rounds if self._journal is not None else 0,
            "offset_commits": self.offsets.commits,
            "segments_removed": self.maintenance.segments_removed,
            "segments_held": self.maintenance.segments_held,
            "compactions": self.maintenance.compactions,
            "maintenance_failures": self.maintenance.failures,
            "damaged_partitions": len(self.damage),
        }

    # topics

    def add_topic(self, recovered: RecoveredTopic) -> None:
        view = TopicView(recovered, self._windows, self._recent)
        self.views[view.name] = view
        self.writers[view.name] = TopicWriter(view, recovered)

    def find(self, topic: str) -> TopicView:
        view = self.views.get(topic)
        if view is None:
            raise TopicNotFound(f"there is no topic {topic!r}")
        return view

    def _partitions_of(self, topic: str) -> int | None:
        view = self.views.get(topic)
        return None if view is None else view.config.partitions

    # the commit thread

    @property
    def thread(self) -> CommitThread:
        if self._thread is None:
            raise LogError("the log is not open")
        return self._thread

    @property
    def is_open(self) -> bool:
        return self._thread is not None

    async def run(self, function: Callable[[Outcome], R], writer: TopicWriter | None = None) -> R:
        """Runs the function on the commit thread, after what was appended before; raises what it raised."""
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def finish(result: Any) -> None:
            if not done.done():
                done.set_result(result)

        self._producer.flush()
        self.thread.submit([Call(function, finish, writer)])
        result = await done
        if isinstance(result, LogError):
            raise result
        return result  # type: ignore[no-any-return] # a Call carries the result of any function

    async def cut(self) -> list[TopicCut]:
        """How far every topic is written, all of them at one moment between two commits: see backup.py."""
        writers = list(self.writers.values())
        return await self.run(lambda _: [writer.cut() for writer in writers])

    def _on_appended(self, appends: list[Append], problem: str | None, seconds: float) -> None:
        """A commit of one topic, without a new segment, failures and calls."""
        self._problem = problem
        for append, error in report_appended(appends, self._appends, self._recent, seconds):
            _log_failure(append, error)
        for append in appends:
            self._watchers.wake(append.view.name, append.partitions)
        self._producer.flush()

    def _on_commit(self, commit: Commit) -> None:
        appends: list[Append] = []
        for outcome in commit.outcomes:
            for step in outcome.steps:
                if isinstance(step, Segment):
                    if outcome.view is not None:
                        self.maintenance.segment_closed(outcome.view.add_segment(step))
                    continue
                appends.append(step)
                if step.error is None:
                    step.view.add_packs(step.position, step.partitions, step.packs)
        self._report(appends, commit.problem, commit.seconds)
        for call in commit.calls:
            call.on_done(call.result)
        self._producer.flush()  # what was appended in answer to it need not wait for the next iteration

    def _report(self, appends: list[Append], problem: str | None, seconds: float) -> None:
        self._problem = problem
        self._appends.commits += 1
        self._appends.seconds += seconds
        for append in appends:
            self._appends.add(append)
        for append in appends:
            try:
                append.tell()
            except Exception as error:
                _log_failure(append, error)  # the others of this commit must hear of it all the same
        for append in appends:
            if append.error is None:
                self._watchers.wake(append.view.name, append.partitions)

    # what its consumers ask for

    @property
    def coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise LogError("the log is not open")
        return self._coordinator

    @property
    def watchers(self) -> Watchers:
        return self._watchers

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        return self.find(partition.topic).watermarks(partition.partition)

    def try_read(
        self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int
    ) -> list[RecordPack] | None:
        view = self.find(partition.topic)
        recent = view.partition(partition.partition).recent
        first = recent.first_offset
        if first is not None and offset >= first:
            return recent.read(offset, max_records, max_bytes)
        self._appends.disk_reads += 1
        try:
            pack = run_at_once(view.reader.read(Request(partition.partition, offset, max_records, max_bytes)))
        except FileNotFoundError as error:
            return self._explain_gone(view, partition, offset, error)
        except LogDamaged as error:
            self.damage.note(partition, offset, error)
            raise
        if pack is None:
            return None
        self.damage.note_read(partition, offset)
        return self._close_gap(view, partition.partition, offset, pack)

    async def read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        view = self.find(partition.topic)
        try:
            pack = await self._wait_for(view.reader.read(Request(partition.partition, offset, max_records, max_bytes)))
        except FileNotFoundError as error:
            return self._explain_gone(view, partition, offset, error)
        except LogDamaged as error:
            if not view.is_deleted:  # else it is no damage of the next one of this name
                self.damage.note(partition, offset, error)
            raise
        self.damage.note_read(partition, offset)
        return self._close_gap(view, partition.partition, offset, pack)

    def _explain_gone(
        self, view: TopicView, partition: TopicPartition, offset: int, error: FileNotFoundError
    ) -> list[RecordPack]:
        """Nothing when retention or compaction was here first: the next poll sees where the partition begins now."""
        path = Path(error.filename)
        is_ours = any(segment.path == path for segment in view.segments)
        if view.is_deleted or not is_ours or path.suffix != files.SEGMENT or path.exists():
            return []
        gone = missing(view.name, path)
        self.damage.note(partition, offset, gone)
        raise gone from None

    @staticmethod
    def _close_gap(view: TopicView, partition: int, offset: int, pack: RecordPack) -> list[RecordPack]:
        if pack.count:
            return [pack]
        # nothing is left up to what is in memory: an empty pack moves the reader on
        state = view.partition(partition)
        first = state.recent.first_offset
        pack.place(max(offset, state.end if first is None else first))
        return [pack]

    async def find_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        view = self.find(partition.topic)
        state = view.partition(partition.partition)
        for _ in range(ATTEMPTS):
            try:
                found = await self._wait_for(view.reader.find_time(partition.partition, timestamp_ms, state.first))
            except FileNotFoundError as error:
                self._explain_gone(view, partition, state.first, error)
                continue
            return state.end if found is None else found
        raise LogUnavailable(f"{view.directory} changes faster than it can be read")

    async def _wait_for(self, steps: Generator[Load, bytes, R]) -> R:
        loop = asyncio.get_running_loop()
        try:
            load = next(steps)
            while True:
                load = steps.send(await loop.run_in_executor(self._readers, load.wait))
        except StopIteration as stop:
            result: R = stop.value
            return result

    def get_committed(self, group: str, partition: TopicPartition) -> Committed | None:
        return self.offsets.get(group, partition)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        for partition in offsets:
            self.find(partition.topic).partition(partition.partition)
        await self.offsets.commit(group, offsets)

    def forget(self, consumer: LocalConsumer) -> None:
        self._consumers.discard(consumer)

    async def in_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        """Runs something of the maintenance that reads or writes files, one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._workers, function, *arguments)

    async def in_admin_thread(self, function: Callable[..., R], *arguments: Any) -> R:
        """Runs what creates or deletes a topic's files."""
        if self._thread is None:
            raise LogError("the log is not open")
        return await asyncio.get_running_loop().run_in_executor(self._admins, function, *arguments)

    def count_refused(self, packs: int = 1) -> None:
        self._appends.failed += packs


def _log_failure(append: Append, error: Exception) -> None:
    log.error("who appended failed when told so", topic=append.view.name, error=repr(error), exc_info=error)
