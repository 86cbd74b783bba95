"""The embedded log read from outside of the broker that writes it, behind the port of the logs.

No lock is taken and nothing is written. What was added is noticed by looking at the files again and again, because no
other process tells.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import (
    Committed,
    LogDamaged,
    LogError,
    OffsetOutOfRange,
    Producer,
    TopicDescription,
    TopicNotFound,
    TopicPartition,
    Watermarks,
    of_topics,
)
from penstock.storage.log.embedded import LogReader, files, open_reader
from penstock.storage.log.embedded.offsets import GroupOffsets
from penstock.storage.log.groups import GroupCoordinator
from penstock.storage.log.local_consumer import LocalConsumer, Watchers
from penstock.storage.state.lmdb_kv import LmdbStore

LOOK_SECONDS = 0.1
# Topics whose files stay open, hundreds each if they have so many: a listing goes through any number of topics.
MOST_READERS = 2
Names = list[str]  # within a class that has a method `list`


def _no_writing() -> LogError:
    return LogError("the log was opened to be read")


class OutsideLog:
    """See Log in base.py, and LocalSource for its consumers."""

    is_shared = False
    has_files = True
    is_durable = True
    is_remote = False

    def __init__(self, data_dir: str, state_path: Path, groups_space: str) -> None:
        self.root = files.log_directory(data_dir)
        self._data_dir = data_dir
        self._state_path = state_path
        self._groups_space = groups_space
        self._readers: OrderedDict[str, LogReader] = OrderedDict()
        self._offsets: GroupOffsets | None = None
        # what cannot be opened or, while it was followed, turned out to be damaged or was deleted; by topic
        self.bad: dict[str, LogError] = {}
        self._watchers = Watchers()
        self._consumers: set[LocalConsumer] = set()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._look_again())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watch
        for consumer in list(self._consumers):
            await consumer.close()
        for reader in self._readers.values():
            reader.close()

    @property
    def producer(self) -> Producer:
        raise _no_writing()

    @property
    def admin(self) -> OutsideAdmin:
        return OutsideAdmin(self)

    def consumer(
        self, group: str, *, instance_id: str | None = None, auto_offset_reset: str = "earliest"
    ) -> LocalConsumer:
        consumer = LocalConsumer(self, group, instance_id, auto_offset_reset)
        self._consumers.add(consumer)
        return consumer

    def check(self) -> bool | str:
        return True

    def check_readers(self) -> bool | str:
        return True

    def counters(self) -> dict[str, int | float]:
        return {}

    def reader(self, topic: str) -> LogReader:
        """Raises LogError. Of those that are open the one used longest ago is closed beyond a number."""
        if topic in self.bad:
            raise self.bad[topic]
        reader = self._readers.get(topic)
        if reader is None:
            reader = self._readers[topic] = _open(self._data_dir, topic)
            if len(self._readers) > MOST_READERS:
                self._readers.popitem(last=False)[1].close()
        self._readers.move_to_end(topic)
        return reader

    def load_offsets(self) -> GroupOffsets | None:
        """What the groups had committed when it was first asked for; None when nobody ever has."""
        if self._offsets is not None or not self._state_path.exists():
            return self._offsets
        store = LmdbStore(self._state_path, is_readonly=True)
        try:
            offsets = GroupOffsets(store.space(self._groups_space))
            offsets.load()
            self._offsets = offsets
            return offsets
        except KeyError:
            return None
        finally:
            store.close()

    def count_records(self, partition: TopicPartition) -> int:
        """Those that are there, whatever compaction took. Raises LogError."""
        return self.reader(partition.topic).count(partition.partition)

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for topic, reader in list(self._readers.items()):
                before = [reader.watermarks(number) for number in range(reader.partitions)]
                try:
                    reader.refresh()
                except OSError:
                    pass
                except (LogDamaged, TopicNotFound) as error:
                    self.bad[topic] = error
                    self._watchers.wake(topic, range(reader.partitions))
                    continue
                after = [reader.watermarks(number) for number in range(reader.partitions)]
                changed = [number for number, mark in enumerate(after) if mark != before[number]]
                self._watchers.wake(topic, changed)

    # what its consumers ask for

    @property
    def coordinator(self) -> GroupCoordinator:
        raise LogError("groups are shared out by the broker, not from outside")

    @property
    def watchers(self) -> Watchers:
        return self._watchers

    def watermarks(self, partition: TopicPartition) -> Watermarks:
        return self.reader(partition.topic).watermarks(partition.partition)

    def try_read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        try:
            pack = self.reader(partition.topic).read(partition.partition, offset, max_records, max_bytes)
        except OffsetOutOfRange:
            return []  # retention was here first; the next poll sees where the partition begins now
        if not pack.count:
            # compaction left nothing up to the end: an empty pack moves the reader on
            pack.place(max(offset, self.watermarks(partition).end))
        return [pack]

    async def read(self, partition: TopicPartition, offset: int, max_records: int, max_bytes: int) -> list[RecordPack]:
        return self.try_read(partition, offset, max_records, max_bytes)

    async def find_time(self, partition: TopicPartition, timestamp_ms: int) -> int:
        return self.reader(partition.topic).find_time(partition.partition, timestamp_ms)

    def get_committed(self, group: str, partition: TopicPartition) -> Committed | None:
        return None

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        raise _no_writing()

    def forget(self, consumer: LocalConsumer) -> None:
        self._consumers.discard(consumer)


def _open(data_dir: str, topic: str) -> LogReader:
    try:
        return open_reader(data_dir, topic)
    except OSError as error:
        raise LogError(f"topic {topic!r} cannot be read: {error.strerror or error}") from None


class OutsideAdmin:
    """See Admin in base.py."""

    def __init__(self, log: OutsideLog) -> None:
        self._log = log

    async def list(self) -> Names:
        found = []
        if self._log.root.is_dir():
            for directory in self._log.root.iterdir():
                if directory.is_dir() and not directory.name.startswith("."):
                    # a directory without a description is being created or deleted
                    with contextlib.suppress(FileNotFoundError):
                        found.append(self._read_name(directory))
        return sorted(found)

    def _read_name(self, directory: Path) -> str:
        """A topic whose description is bad keeps no other one from being listed."""
        try:
            return files.read_topic(directory)[0]
        except FileNotFoundError:
            raise
        except (OSError, LogError) as error:
            name = files.unescape_topic(directory.name)
            self._log.bad[name] = error if isinstance(error, LogError) else LogError(f"{directory}: {error.strerror}")
            return name

    async def describe(self, topic: str) -> TopicDescription:
        reader = self._log.reader(topic)
        return TopicDescription(topic, reader.partitions, dict(reader.properties))

    async def groups(self) -> Names:
        offsets = self._log.load_offsets()
        return [] if offsets is None else offsets.groups

    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        offsets = self._log.load_offsets()
        return {} if offsets is None else of_topics(offsets.of_group(group), topics)

    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None:
        raise _no_writing()

    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        raise _no_writing()

    async def delete(self, topic: str) -> None:
        raise _no_writing()

    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        raise _no_writing()

    async def delete_group(self, group: str) -> None:
        raise _no_writing()
