"""Compacted topics, followed: what all brokers of a cluster write down is known to each of them, in memory."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from penstock._ext.record.segment import RecordPack
from penstock.core.logging import Throttled, get_logger
from penstock.storage.log.base import EARLIEST, Consumer, Fetched, Log, LogError, TopicPartition
from penstock.storage.log.state_topics import STATE_PROPERTIES, make_state_topic
from penstock.storage.state.topic import MARKER

log = get_logger("penstock.state")

RECORDS_AT_ONCE = 5_000
POLL_SECONDS = 5.0
RETRY_SECONDS = 0.5
STOP_SECONDS = 2.0

OnChange = Callable[[str, bytes, bytes | None], None]
"""Topic, key, value; None as the value means that it is gone."""


class StateTail:
    """Reads the topics from their beginning and goes on for ever. On the loop.

    `get` is what the newest record read says; after `catch_up` that is everything that was durable before the call.
    """

    def __init__(
        self,
        log_provider: Log,
        topics: Sequence[str],
        reader: str,
        on_change: OnChange | None = None,
        *,
        prefix: str = "",
    ) -> None:
        """`reader` is a name that no other reader of these topics has; `prefix` stands before them in the log."""
        self._before = f"{prefix}." if prefix else ""
        self._log = log_provider
        self._reader = reader
        self._values: dict[str, dict[bytes, bytes]] = {topic: {} for topic in topics}
        self._on_change = on_change
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._marks = 0
        self._waiting: dict[bytes, dict[str, asyncio.Future[None]]] = {}
        self._warnings = Throttled(log, interval=10.0)

    async def start(self, properties: Mapping[str, str] = STATE_PROPERTIES) -> None:
        """Returns when everything that is there has been read. Raises LogError."""
        for topic in self._values:
            await make_state_topic(self._log, self._before + topic, properties)
        self._consumer = self._log.consumer("")
        await self._consumer.add({TopicPartition(self._before + topic, 0): EARLIEST for topic in self._values})
        self._task = asyncio.get_running_loop().create_task(self._follow(self._consumer))
        await self.catch_up()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=STOP_SECONDS)
        if self._consumer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._consumer.close()

    def get(self, topic: str, key: bytes) -> bytes | None:
        return self._values[topic].get(key)

    def items(self, topic: str) -> Mapping[bytes, bytes]:
        return self._values[topic]

    async def catch_up(self) -> None:
        """Writes a mark behind everything and waits until it is read. Raises LogError."""
        self._marks += 1
        mark = f"{self._reader} {self._marks} {time.time_ns()}".encode()
        loop = asyncio.get_running_loop()
        self._waiting[mark] = {topic: loop.create_future() for topic in self._values}
        try:
            async with asyncio.TaskGroup() as group:
                for topic in self._values:
                    group.create_task(self._write_mark(topic, mark))
            await asyncio.gather(*self._waiting[mark].values())
        except* LogError as errors:
            raise LogError(str(errors.exceptions[0])) from None
        finally:
            del self._waiting[mark]

    async def _write_mark(self, topic: str, mark: bytes) -> None:
        pack = RecordPack()
        pack.append(mark, MARKER)
        await self._log.producer.send(self._before + topic, 0, pack)

    async def _follow(self, consumer: Consumer) -> None:
        while True:
            try:
                for fetched in await consumer.poll(RECORDS_AT_ONCE, POLL_SECONDS):
                    self._read(fetched)
            except LogError as error:
                self._warnings.warning("the state of the cluster cannot be read", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    def _read(self, fetched: Fetched) -> None:
        topic = fetched.topic.removeprefix(self._before)
        values = self._values[topic]
        for record in fetched.pack:
            key = record.key or b""
            if key == MARKER:
                waiting = self._waiting.get(record.value or b"", {}).get(topic)
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)
                continue
            if record.value is None:
                values.pop(key, None)
            else:
                values[key] = record.value
            if self._on_change is not None:
                try:
                    self._on_change(topic, key, record.value)
                except Exception:  # one record's trouble is not that of the others
                    log.exception("a change of the cluster's state could not be followed", topic=fetched.topic)
