"""The offsets of consumer groups: a copy in memory, and a durable one in a key-value store behind a thread."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Protocol

import msgspec

from penstock.core.logging import get_logger
from penstock.storage.log.base import Committed, LogUnavailable, TopicPartition

log = get_logger("penstock.logs")

LONGEST_KEY = 400

Change = tuple[bytes, bytes | None]


class KeyValue(Protocol):
    """Durable state, called on one thread at a time. `write` is all or nothing, and on the disk when it returns."""

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]: ...
    def write(self, changes: Iterable[Change]) -> None: ...


class StoredOffset(msgspec.Struct, array_like=True):
    group: str
    topic: str
    partition: int
    offset: int
    metadata: str


def make_key(group: str, partition: TopicPartition) -> bytes:
    """Unique and not too long for the store; what it stands for is in the value."""
    key = f"{group}\0{partition.topic}\0{partition.partition}".encode()
    return key if len(key) <= LONGEST_KEY else hashlib.sha256(key).digest()


class GroupOffsets:
    """On the loop; `commit` returns when the store says it is durable."""

    def __init__(self, store: KeyValue) -> None:
        self._store = store
        self._of: dict[str, dict[TopicPartition, Committed]] = {}
        self._queue: queue.SimpleQueue[tuple[list[Change], Callable[[Exception | None], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, name="penstock-offsets", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self.commits = 0

    def load(self) -> None:
        """Blocks: not on the loop."""
        for _, value in self._store.scan():
            stored = msgspec.msgpack.decode(value, type=StoredOffset)
            partition = TopicPartition(stored.topic, stored.partition)
            self._of.setdefault(stored.group, {})[partition] = Committed(stored.offset, stored.metadata)

    def drop_missing(self, topics: Container[str]) -> None:
        """Those of topics that are not there any more, for the log that owns them: a new topic of that name must be
        read from its beginning. Blocks: not on the loop."""
        stale = [(group, p) for group, offsets in self._of.items() for p in offsets if p.topic not in topics]
        if not stale:
            return
        self._store.write([(make_key(group, partition), None) for group, partition in stale])
        self._forget(stale)
        log.info("offsets of topics that are gone are dropped", offsets=len(stale))

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread.start()

    def stop(self) -> None:
        """Blocks until everything is written: not on the loop."""
        self._queue.put(None)
        self._thread.join()

    def get(self, group: str, partition: TopicPartition) -> Committed | None:
        return self._of.get(group, {}).get(partition)

    def of_group(self, group: str) -> dict[TopicPartition, Committed]:
        return dict(self._of.get(group, {}))

    @property
    def groups(self) -> list[str]:
        return sorted(self._of)

    async def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        changes: list[Change] = []
        for partition, committed in offsets.items():
            stored = StoredOffset(group, partition.topic, partition.partition, committed.offset, committed.metadata)
            changes.append((make_key(group, partition), msgspec.msgpack.encode(stored)))
        await self._write(changes)
        self._of.setdefault(group, {}).update(offsets)
        self.commits += 1

    async def delete_group(self, group: str) -> None:
        await self._write([(make_key(group, partition), None) for partition in self._of.get(group, {})])
        self._of.pop(group, None)

    async def delete_topic(self, topic: str) -> None:
        """Also what is being committed now."""
        await self._wait_for_the_thread()
        gone = [(group, p) for group, offsets in self._of.items() for p in offsets if p.topic == topic]
        await self._write([(make_key(group, partition), None) for group, partition in gone])
        self._forget(gone)

    def _forget(self, gone: Iterable[tuple[str, TopicPartition]]) -> None:
        """A group that has nothing left is none: there is one for each APPLICATION client, and those come and go."""
        for group, partition in gone:
            offsets = self._of.get(group, {})
            offsets.pop(partition, None)
            if not offsets:
                self._of.pop(group, None)

    async def _write(self, changes: list[Change]) -> None:
        if changes:
            await self._hand_over(changes)

    async def _wait_for_the_thread(self) -> None:
        await self._hand_over([])

    async def _hand_over(self, changes: list[Change]) -> None:
        done: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

        def finish(error: Exception | None) -> None:
            if not done.done():
                done.set_result(error)

        self._queue.put((changes, finish))
        error = await done
        if error is not None:
            raise LogUnavailable(f"the offsets cannot be stored: {error}")

    def _run(self) -> None:
        is_running = True
        while is_running:
            waiting = [self._queue.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    waiting.append(self._queue.get_nowait())
            jobs = [job for job in waiting if job is not None]
            is_running = len(jobs) == len(waiting)
            if jobs:
                self._store_all(jobs)

    def _store_all(self, jobs: list[tuple[list[Change], Callable[[Exception | None], None]]]) -> None:
        failure: Exception | None = None
        try:
            self._store.write(change for changes, _ in jobs for change in changes)
        except Exception as error:
            log.exception("storing the offsets of groups failed")
            failure = error
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop was closed without closing the log
            self._loop.call_soon_threadsafe(lambda: [finish(failure) for _, finish in jobs])
