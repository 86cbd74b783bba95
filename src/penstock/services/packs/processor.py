"""Runs packs: polls, decodes, submits to a handler as the strategies say, commits.

`run` is a loop of its own over a consumer; `process` handles what was polled elsewhere (services/consumers.py commits
when it returns); `process_records` what was not polled at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from penstock._ext.record.segment import Record
from penstock.core.logging import Throttled, get_logger
from penstock.services.messages import UndecodableMessage, decode_message
from penstock.services.packs.aside import Aside, DeadLetter, SetAside
from penstock.services.packs.message import NotYet, PackMessage, State
from penstock.services.packs.pack import Pack, RoundResult
from penstock.services.packs.queues import PackQueue
from penstock.services.packs.statistics import QueueStatistics
from penstock.storage.log.base import Committed, Consumer, Fetched, LogError, TopicPartition

log = get_logger("penstock.packs")
TENANT_ID = "tenantId"
RETRY_SECONDS = 1.0
MAX_LATE = 10_000


class _Raw(NamedTuple):
    """A record and its place; None with the reason where there is none to be read."""

    topic: str
    partition: int
    offset: int
    record: Record | None
    fault: str = ""


class Decoded(NamedTuple):
    value: Any
    originator: Hashable | None = None
    tenant: Hashable | None = None


Decode = Callable[[Record], Decoded]
"""Raises whatever it likes for a record it cannot read; that record alone is set aside."""
Handler = Callable[[PackMessage], Awaitable[None]]
"""Returns when the message is handled, raises when it is not. It is cancelled when the message timed out and is to be
sent again or given up, unless the strategy lets it run (SKIP_ALL_FAILURES)."""


def decode_queue_message(record: Record) -> Decoded:
    """A message of a queue: its key is the originator, the header tenantId the tenant."""
    message = decode_message(record)
    return Decoded(message, message.key, message.headers.get(TENANT_ID))


class PackProcessor:
    def __init__(
        self,
        queue: PackQueue,
        handler: Handler,
        *,
        decode: Decode = decode_queue_message,
        dead_letter: DeadLetter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.queue = queue
        self.aside = Aside(queue.name, dead_letter)
        self.statistics = QueueStatistics()
        self._handler = handler
        self._decode = decode
        self._clock = clock
        self._warnings = Throttled(log, interval=10.0)
        self._wake = asyncio.Event()
        self._running: dict[PackMessage, asyncio.Task[None]] = {}

    async def run(self, consumer: Consumer, poll_seconds: float = 1.0) -> None:
        """Until it is cancelled. What is not committed then is handled again by who comes next."""
        while True:
            try:
                fetched = await consumer.poll(self.queue.max_records, poll_seconds)
                if fetched:
                    await self.process(fetched)
                    await consumer.commit(_offsets(fetched))
            except LogError as error:
                self._warnings.warning("the queue's log failed", queue=self.queue.name, reason=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def process(self, fetched: Sequence[Fetched]) -> None:
        """Returns when nothing of the packs is left to do, however often that takes."""
        await self._process(raw for one in fetched for raw in _records(one))

    async def process_records(self, topic: str, records: Iterable[Record]) -> None:
        """The same for records of one partition that were read by somebody else, or never lay in a log."""
        await self._process(_Raw(topic, 0, record.offset, record) for record in records)

    async def _process(self, raw: Iterable[_Raw]) -> None:
        pack = Pack(self.queue, [message async for message in self._decode_all(raw)])
        try:
            while True:
                result = await self._run_round(pack)
                self.statistics.add_round(result)
                self._report(result)
                await self._cancel(result.to_cancel)
                if result.is_done:
                    # Those that may still run to their end (SKIP_ALL_FAILURES) must not become more and more.
                    await self._cancel(list(self._running)[:-MAX_LATE])
                    return
                await asyncio.sleep(result.pause)
        except asyncio.CancelledError:
            await self._cancel(list(self._running))
            raise

    async def _decode_all(self, raw: Iterable[_Raw]) -> AsyncIterator[PackMessage]:
        for topic, partition, offset, record, fault in raw:
            reason = fault
            if record is not None:
                try:
                    decoded = self._decode(record)
                except Exception as error:
                    reason = error.message if isinstance(error, UndecodableMessage) else repr(error)
                else:
                    yield PackMessage(*decoded, topic, partition, offset)
                    continue
            await self.aside.add(SetAside(topic, partition, offset, reason, record))

    async def _run_round(self, pack: Pack) -> RoundResult:
        self._wake.clear()
        self._submit(pack, pack.begin(self._clock()))
        while not pack.is_round_over:
            seconds = pack.deadline - self._clock()
            if seconds <= 0:
                break
            timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()
        return pack.end()

    def _submit(self, pack: Pack, messages: Sequence[PackMessage]) -> None:
        for message in messages:
            task = asyncio.ensure_future(self._handle(message))
            self._running[message] = task
            task.add_done_callback(partial(self._on_done, pack, message))

    async def _handle(self, message: PackMessage) -> None:
        await self._handler(message)

    def _on_done(self, pack: Pack, message: PackMessage, task: asyncio.Task[None]) -> None:
        if self._running.get(message) is task:
            del self._running[message]
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError("the handler was cancelled")
        else:
            error = task.exception()
        if message.state is State.SKIPPED:
            if error is None:
                self.statistics.add_late(message)
            return
        message.has_to_wait = isinstance(error, NotYet)
        follow = pack.on_success(message) if error is None else pack.on_failure(message, repr(error))
        self._submit(pack, follow)
        if pack.is_round_over:
            self._wake.set()

    async def _cancel(self, messages: Sequence[PackMessage]) -> None:
        """Waits until they have stopped: a message never runs twice at the same time."""
        tasks = [task for message in messages if (task := self._running.pop(message, None)) is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _report(self, result: RoundResult) -> None:
        """Why did this pack not get through: the key, the place and the handler of one of the messages."""
        for event, messages in (
            ("messages timed out", result.timed_out + result.to_retry_timed_out),
            ("messages failed", result.failed + tuple(m for m in result.to_retry_failed if not m.has_to_wait)),
        ):
            if not messages:
                continue
            first = messages[0]
            self._warnings.warning(
                event,
                queue=self.queue.name,
                count=len(messages),
                originator=str(first.originator),
                topic=first.topic,
                partition=first.partition,
                offset=first.offset,
                attempt=first.attempts,
                handler=getattr(self._handler, "__qualname__", type(self._handler).__name__),
                reason=first.reason,
            )

    def counters(self) -> dict[str, int]:
        counts = dict(self.statistics.counts)
        counts["undecodableMsgs"] = self.aside.count
        counts["deadLetterFailures"] = self.aside.failures
        return counts


def _records(fetched: Fetched) -> Iterator[_Raw]:
    """Each record with its offset; where the pack itself cannot be read, None with the reason, and the end."""
    topic, partition = fetched.topic, fetched.partition
    records = iter(fetched.pack)
    offset = fetched.pack.base_offset
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except ValueError as error:
            yield _Raw(topic, partition, offset, None, f"the pack cannot be read from here on: {error}")
            return
        offset = record.offset + 1
        yield _Raw(topic, partition, record.offset, record)


def _offsets(fetched: Sequence[Fetched]) -> dict[TopicPartition, Committed]:
    return {TopicPartition(one.topic, one.partition): Committed(one.next_offset) for one in fetched}
