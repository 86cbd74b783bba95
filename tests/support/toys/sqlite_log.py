"""A log in an SQLite file, made only of what src/ offers to any provider: proof that a log can be added from outside.

Select it with `log.provider = "tests.support.toys.sqlite_log:make_log"`. It is slow, and every commit blocks the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.settings import Settings
from penstock.settings.providers import LogCapabilities
from penstock.storage.log.base import (
    LATEST,
    Appended,
    Committed,
    Limits,
    LogError,
    LogUnavailable,
    OffsetOutOfRange,
    OnAllAppended,
    OnAppended,
    Packs,
    TopicDescription,
    TopicNotFound,
    TopicPartition,
    Watermarks,
    of_topics,
)
from penstock.storage.log.groups import GroupCoordinator
from penstock.storage.log.local_consumer import LocalConsumer, Watchers
from penstock.storage.log.sending import append_each, send
from penstock.storage.log.topics import TopicConfig

POLL_INTERVAL = 300.0
TABLES = """
CREATE TABLE IF NOT EXISTS topics (name TEXT PRIMARY KEY, partitions INTEGER, properties TEXT);
CREATE TABLE IF NOT EXISTS ends (topic TEXT, partition INTEGER, first INTEGER, "end" INTEGER,
    PRIMARY KEY (topic, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (topic TEXT, partition INTEGER, "offset" INTEGER, time INTEGER, key BLOB, value BLOB,
    headers TEXT, PRIMARY KEY (topic, partition, "offset")) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS commits ("group" TEXT, topic TEXT, partition INTEGER, "offset" INTEGER, metadata TEXT,
    PRIMARY KEY ("group", topic, partition)) WITHOUT ROWID;
"""
HERE = "topic = ? AND partition = ?"
Names = list[str]  # within a class that has a method `list`


def make_log(settings: Settings) -> SqliteLog:
    """The factory that the settings name."""
    return SqliteLog(Path(settings.server.data_dir) / "toy.sqlite", settings.log.max_pending_bytes)


make_log.capabilities = LogCapabilities()  # type: ignore[attr-defined] # read by penstock.settings.providers


class SqliteLog:
    """See Log in base.py, and LocalSource for its consumers."""

    is_shared = False
    has_files = False
    is_durable = True
    is_remote = False

    def __init__(self, path: Path, max_pending_bytes: int = 1 << 26) -> None:
        self._path = path
        self._watchers = Watchers()
        self._consumers: set[LocalConsumer] = set()
        self._coordinator: GroupCoordinator | None = None
        self._producer = SqliteProducer(self, max_pending_bytes)
        self._admin = SqliteAdmin(self)
        self.held: dict[TopicPartition, int | None] = {}

    async def start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(self._path)
        self.database.executescript(TABLES)
        self._coordinator = GroupCoordinator(self._partitions_of, asyncio.get_running_loop().time, POLL_INTERVAL)

    async def close(self) -> None:
        for consumer in list(self._consumers):
            await consumer.close()
        self._producer.complete()
        self._coordinator = None
        self.database.close()

    @property
    def producer(self) -> SqliteProducer:
        return self._producer

    patient_producer = producer

    @property
    def admin(self) -> SqliteAdmin:
        return self._admin

    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str = "earliest"
    ) -> LocalConsumer:
        consumer = LocalConsumer(self, group, instance_id, auto_offset_reset)
        self._consumers.add(consumer)
        return consumer

    def check(self) -> bool | str:
        return self._coordinator is not None or "the log is not open"

    def check_readers(self) -> bool | str:
        return True

    def counters(self) -> dict[str, int | float]:
        return dict(self._producer.counters)

    # for its consumers, see LocalSource

    @property
    def coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise LogError("the log is not open")
        return self._coordinator

    @property
    def watchers(self) -> Watchers:
        return self._watchers

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        self._retain(partition)
        return self.find(partition)

    def try_read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        self.find(partition)
        rows = self.database.execute(
            f'SELECT "offset", time, key, value, headers FROM records WHERE {HERE} AND "offset" >= ? '
            'ORDER BY "offset" LIMIT ?',
            (*partition, offset, max_records),
        )
        pack, size = RecordPack(), 0
        for number, timestamp, key, value, headers in rows:
            size += len(value or b"") + len(key or b"")
            if pack.count and size > max_bytes:
                break
            texts = [(name, bytes.fromhex(text)) for name, text in json.loads(headers)]
            pack.append(value, key, texts, timestamp, number)
        return [pack] if pack.count else []

    async def read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        return self.try_read(partition, offset, max_records, max_bytes)

    async def find_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        ends = self.find(partition)
        query = f'SELECT min("offset") FROM records WHERE {HERE} AND time >= ?'
        found: int | None = self.database.execute(query, (*partition, timestamp_ms)).fetchone()[0]
        return ends.end if found is None else found

    def get_committed(self, group: str, partition: TopicPartition) -> Committed | None:
        return self.committed(group).get(partition)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        for partition in offsets:
            self.find(partition)
        rows = [(group, *place, committed.offset, committed.metadata) for place, committed in offsets.items()]
        with self.database:
            self.database.executemany("REPLACE INTO commits VALUES (?, ?, ?, ?, ?)", rows)

    def forget(self, consumer: LocalConsumer) -> None:
        self._consumers.discard(consumer)

    # for the producer and the admin

    def find(self, partition: TopicPartition) -> Watermarks:
        """Return the offsets of the first and the next record."""
        row = None
        with contextlib.suppress(UnicodeEncodeError):  # no topic has a name with lone surrogates
            row = self.database.execute(f'SELECT first, "end" FROM ends WHERE {HERE}', partition).fetchone()
        if row is None:
            raise TopicNotFound(f"there is no partition {partition.partition} of a topic {partition.topic!r}")
        return Watermarks(*row)

    def committed(self, group: str) -> dict[TopicPartition, Committed]:
        query = 'SELECT topic, partition, "offset", metadata FROM commits WHERE "group" = ?'
        rows = self.database.execute(query, (group,))
        return {TopicPartition(topic, number): Committed(offset, text) for topic, number, offset, text in rows}

    def config_of(self, topic: str) -> TopicConfig:
        query = "SELECT partitions, properties FROM topics WHERE name = ?"
        row = self.database.execute(query, (topic,)).fetchone()
        if row is None:
            raise TopicNotFound(f"there is no topic {topic!r}")
        return TopicConfig.of(topic, row[0], json.loads(row[1]))

    def drop_before(self, partition: TopicPartition, offset: int) -> None:
        with self.database:
            self.database.execute(f'DELETE FROM records WHERE {HERE} AND "offset" < ?', (*partition, offset))
            self.database.execute(f"UPDATE ends SET first = max(first, ?) WHERE {HERE}", (offset, *partition))

    def _partitions_of(self, topic: str) -> int | None:
        row = self.database.execute("SELECT partitions FROM topics WHERE name = ?", (topic,)).fetchone()
        return None if row is None else row[0]

    def _retain(self, partition: TopicPartition) -> None:
        """Remove the oldest records that exceed a limit of the topic, unless they are held."""
        config, ends = self.config_of(partition.topic), self.find(partition)
        oldest = now_ms() - config.retention_ms if config.retention_ms >= 0 else 0
        rows = self.database.execute(
            f'SELECT "offset", time, coalesce(length(value), 0) FROM records WHERE {HERE} ORDER BY "offset" DESC',
            partition,
        )
        kept = size = 0
        first = ends.end
        for offset, timestamp, length in rows:
            kept, size = kept + 1, size + length
            is_over = 0 <= config.retention_bytes < size or 0 <= config.retention_messages < kept
            if config.is_deleted and (is_over or timestamp < oldest):
                break
            first = offset
        else:
            return
        held = self.held.get(partition)
        self.drop_before(partition, first if held is None else min(first, held))


class SqliteProducer:
    """Appends the packs of one loop iteration in one transaction."""

    def __init__(self, log: SqliteLog, max_pending_bytes: int) -> None:
        self._log = log
        self._room = 2 * max_pending_bytes
        self._waiting: list[tuple[TopicPartition, RecordPack, OnAppended | None]] = []
        self.pending_bytes = 0
        self.gathers = False
        self.largest_record = 0
        self.counters = {"appended_records": 0, "appended_bytes": 0, "failed_appends": 0}

    def append(
        self,
        topic: str,
        partition: int,
        pack: RecordPack,
        on_done: OnAppended | None = None,
        *,
        can_wait: bool = False,
        is_lasting: bool = False,
    ) -> None:
        if pack.count == 0 or not pack.is_dense:
            raise ValueError("only a pack with records, and without gaps between their offsets, can be appended")
        pack.seal()
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self.complete)
        self._waiting.append((TopicPartition(topic, partition), pack, on_done))
        self.pending_bytes += pack.size

    def append_packs(
        self, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False, is_quiet: bool = False
    ) -> None:
        append_each(self, topic, packs, on_done)

    def collect(self) -> None:
        """Nothing to do: every append is reported by itself."""

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        return await send(self, topic, partition, pack)

    def complete(self) -> None:
        waiting, self._waiting = self._waiting, []
        results: list[Appended | LogError] = []
        with self._log.database:
            for partition, pack, _ in waiting:
                results.append(self._store(partition, pack))
                self.pending_bytes -= pack.size
        for (_, _, on_done), result in zip(waiting, results, strict=True):
            if on_done is not None:
                on_done(result)
        for topic, number in {place for place, _, _ in waiting}:
            self._log.watchers.wake(topic, (number,))

    def _store(self, partition: TopicPartition, pack: RecordPack) -> Appended | LogError:
        try:
            if self.pending_bytes > self._room:
                raise LogUnavailable(f"more than {self._room} bytes wait to be appended")
            end = self._log.find(partition).end
        except LogError as error:
            self.counters["failed_appends"] += 1
            return error
        pack.place(end)
        rows = (
            (*partition, record.offset, record.timestamp, record.key, record.value, _as_text(record.headers))
            for record in pack
        )
        self._log.database.executemany("INSERT INTO records VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        self._log.database.execute(f'UPDATE ends SET "end" = ? WHERE {HERE}', (pack.next_offset, *partition))
        self.counters["appended_records"] += pack.count
        self.counters["appended_bytes"] += pack.size
        return Appended(*partition, pack.base_offset, pack.count)


def _as_text(headers: Iterable[tuple[str, bytes]]) -> str:
    return json.dumps([(name, value.hex()) for name, value in headers])


class SqliteAdmin:
    """See Admin in base.py."""

    def __init__(self, log: SqliteLog) -> None:
        self._log = log

    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None:
        config = TopicConfig.of(topic, partitions, properties)
        if topic in await self.list():
            if not exist_ok:
                raise LogError(f"topic {topic!r} exists already")
            return
        with self._log.database as database:
            row = (topic, config.partitions, json.dumps(dict(config.properties)))
            database.execute("INSERT INTO topics VALUES (?, ?, ?)", row)
            ends = [(topic, number, 0, 0) for number in range(config.partitions)]
            database.executemany("INSERT INTO ends VALUES (?, ?, ?, ?)", ends)
        self._log.coordinator.topics_changed(topic)

    async def describe(self, topic: str) -> TopicDescription:
        config = self._log.config_of(topic)
        return TopicDescription(topic, config.partitions, dict(config.properties))

    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        config = TopicConfig.of(topic, self._log.config_of(topic).partitions, properties)
        row = (json.dumps(dict(config.properties)), topic)
        with self._log.database as database:
            database.execute("UPDATE topics SET properties = ? WHERE name = ?", row)

    async def delete(self, topic: str) -> None:
        partitions = self._log.config_of(topic).partitions
        with self._log.database as database:
            database.execute("DELETE FROM topics WHERE name = ?", (topic,))
            for table in ("ends", "records", "commits"):
                database.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))
        self._log.coordinator.topics_changed(topic)
        self._log.watchers.wake(topic, range(partitions))

    async def list(self) -> Names:
        return [name for (name,) in self._log.database.execute("SELECT name FROM topics ORDER BY name")]

    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        ends = self._log.find(partition)
        before = ends.end if before_offset == LATEST else before_offset
        if not 0 <= before <= ends.end:
            raise OffsetOutOfRange(f"{before} is after the last record", ends.first, ends.end)
        self._log.drop_before(partition, before)

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        self._log.held[partition] = offset
        return True

    async def limits(self, topic: str) -> Limits | None:
        return None

    async def set_limits(self, topic: str, limits: Limits) -> None:
        raise LogError(f"topic {topic!r}: use hold() to say what this log keeps")

    def size(self, topic: str) -> int | None:
        query = "SELECT coalesce(sum(length(value)), 0) FROM records WHERE topic = ?"
        return int(self._log.database.execute(query, (topic,)).fetchone()[0])

    async def groups(self) -> Names:
        rows = self._log.database.execute('SELECT DISTINCT "group" FROM commits')
        return sorted({*(group for (group,) in rows), *self._log.coordinator.names})

    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        return of_topics(self._log.committed(group), topics)

    async def delete_group(self, group: str) -> None:
        if self._log.coordinator.members_of(group):
            raise LogError(f"group {group!r} has members")
        with self._log.database as database:
            database.execute('DELETE FROM commits WHERE "group" = ?', (group,))
