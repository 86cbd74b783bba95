"""Topics and groups of the embedded log."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from penstock._ext.record.segment import encode_tail
from penstock.core.clock import now_ms
from penstock.storage.log.base import (
    LATEST,
    Committed,
    Limits,
    LogError,
    OffsetOutOfRange,
    TopicDescription,
    TopicNotFound,
    TopicPartition,
    of_topics,
)
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.recovery import RecoveredTopic, remove_directory
from penstock.storage.log.embedded.segments import Segment, SegmentStart
from penstock.storage.log.topics import TopicConfig

if TYPE_CHECKING:
    from penstock.storage.log.embedded.log import EmbeddedLog

Names = list[str]  # within a class that has a method `list`


def _create_directory(root: Path, topic: str, config: TopicConfig) -> RecoveredTopic:
    """With its first segment, so that the first append does not have to wait for one. Blocks, in a thread."""
    directory = root / files.escape_topic(topic)
    nothing = [0] * config.partitions
    start = SegmentStart(1, 0, now_ms(), nothing, nothing)
    encoded = start.build()
    path = files.segment_path(directory, 1)
    with files.translate_errors(f"topic {topic!r} cannot be created"):
        directory.mkdir(mode=0o700, exist_ok=True)
        fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        try:
            if os.write(fd, encoded) < len(encoded):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(fd)
        finally:
            os.close(fd)
        (directory / files.TAIL_FILE).write_bytes(encode_tail(1, len(encoded)))
        # the directory is a topic's when it has this file, so it comes last
        files.write_topic(directory, topic, config)
        files.sync_directory(root)
    return RecoveredTopic(topic, directory, config, [Segment(path, start, len(encoded))], nothing, nothing, nothing)


def _delete_directory(directory: Path, number: int) -> None:
    # hidden first, so that a crash in between leaves all of it or nothing
    hidden = directory.with_name(f".deleted-{number}-{directory.name}"[:255])
    with files.translate_errors(f"{directory} cannot be deleted"):
        directory.rename(hidden)
        files.sync_directory(directory.parent)
        remove_directory(hidden)


class EmbeddedAdmin:
    """See Admin in base.py."""

    def __init__(self, log: EmbeddedLog) -> None:
        self._log = log
        self._numbers = itertools.count(1)
        # whoever creates or deletes a topic waits for who does the same with the same name
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def turn(self, topic: str) -> asyncio.Lock:
        """For whoever changes files of the topic by their names, which may be those of the next one of that name."""
        lock = self._turns.get(topic)
        if lock is None:
            lock = self._turns[topic] = asyncio.Lock()
        return lock

    async def create(
        self, topic: str, partitions: int = 1, properties: Mapping[str, str] | None = None, *, exist_ok: bool = True
    ) -> None:
        config = TopicConfig.of(topic, partitions, properties)
        if topic in self._log.views:
            if not exist_ok:
                raise LogError(f"topic {topic!r} exists already")
            return
        async with self.turn(topic):
            if topic in self._log.views:  # another call was quicker
                return
            created = await self._log.in_admin_thread(_create_directory, self._log.root, topic, config)
            self._log.add_topic(created)
        self._log.coordinator.topics_changed(topic)

    async def describe(self, topic: str) -> TopicDescription:
        config = self._log.find(topic).config
        return TopicDescription(topic, config.partitions, dict(config.properties))

    async def alter(self, topic: str, properties: Mapping[str, str]) -> None:
        view = self._log.find(topic)
        writer = self._log.writers[topic]
        config = TopicConfig.of(topic, view.config.partitions, properties)

        def change(_outcome: object) -> None:
            # What was written without waiting for the disk must be there before anything that relies on it.
            self._log.thread.sync_late()
            view.config = writer.config = config

        async with self.turn(topic):
            if view.is_deleted:
                raise TopicNotFound(f"there is no topic {topic!r}")
            await self._log.in_admin_thread(files.write_topic, view.directory, topic, config)
            await self._log.run(change)

    async def delete(self, topic: str) -> None:
        self._log.find(topic)
        async with self.turn(topic):
            view = self._log.find(topic)  # another call may have been quicker
            # Not before its turn: who waits to create the topic would take the directory that is deleted here.
            writer = self._log.writers.pop(topic)
            del self._log.views[topic]
            view.is_deleted = True
            self._log.damage.forget(topic)
            await self._log.run(lambda _: self._log.thread.forget(writer))
            for segment in view.segments:
                segment.close()
            # First: after a crash in between, a new topic of that name would be read from where the old one was.
            await self._log.offsets.delete_topic(topic)
            await self._log.in_admin_thread(_delete_directory, view.directory, next(self._numbers))
        self._log.coordinator.topics_changed(topic)
        self._log.watchers.wake(topic, range(view.config.partitions))

    async def list(self) -> Names:
        return sorted(self._log.views)

    async def truncate(self, partition: TopicPartition, before_offset: int) -> None:
        view = self._log.find(partition.topic)
        state = view.partition(partition.partition)
        before_offset = state.end if before_offset == LATEST else before_offset
        if not 0 <= before_offset <= state.end:
            raise OffsetOutOfRange(f"{before_offset} is behind the last record", state.first, state.end)
        if before_offset <= state.first:
            return
        writer = self._log.writers[partition.topic]

        await self._log.run(lambda outcome: writer.truncate(partition.partition, before_offset, outcome), writer)
        view.move_first(partition.partition, before_offset)

    async def hold(self, partition: TopicPartition, offset: int | None) -> bool:
        held = self._log.held.setdefault(partition.topic, {})
        if offset is None:
            held.pop(partition.partition, None)
        else:
            held[partition.partition] = offset
        return True

    async def limits(self, topic: str) -> Limits | None:
        return None  # nobody removes anything here but this log itself, and it can hold

    async def set_limits(self, topic: str, limits: Limits) -> None:
        raise LogError(f"topic {topic!r}: hold() decides what this log keeps")

    def size(self, topic: str) -> int | None:
        view = self._log.views.get(topic)
        return 0 if view is None else view.bytes

    async def groups(self) -> Names:
        return sorted({*self._log.offsets.groups, *self._log.coordinator.names})

    async def group_offsets(self, group: str, topics: Collection[str] = ()) -> dict[TopicPartition, Committed]:
        return of_topics(self._log.offsets.of_group(group), topics)

    async def delete_group(self, group: str) -> None:
        if self._log.coordinator.members_of(group):
            raise LogError(f"group {group!r} has members")
        await self._log.offsets.delete_group(group)
