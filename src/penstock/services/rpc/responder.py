"""The side that answers: hands requests to a handler, writes the answers, commits what is answered."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import NamedTuple

from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import CallReader, CallWriter
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.services.rpc.deadlines import DeadlineTimer
from penstock.services.rpc.errors import ErrorCode
from penstock.services.rpc.latency import Latency
from penstock.services.rpc.progress import PackProgress, Progress
from penstock.services.rpc.settings import ResponderSettings
from penstock.services.rpc.wire import ERROR_CODE, ERROR_MESSAGE, LONGEST_MESSAGE, Request, room_for_data
from penstock.storage.log.base import Appended, Consumer, Fetched, Log, LogError, TopicPartition

log = get_logger("penstock.rpc")
Handler = Callable[[Request], bytes | Awaitable[bytes]]
LARGEST_PACK = 1_048_576
_warnings = Throttled(log, interval=10.0)


class _Answer(NamedTuple):
    request: Request
    data: bytes
    error: tuple[tuple[str, bytes], ...]
    progress: PackProgress


class _Running(NamedTuple):
    request: Request
    progress: PackProgress
    started_at: float
    bucket: dict[asyncio.Future[bytes], None]


class Responder:
    """Answers every request that has not expired, with the handler's result or with an error; at least once.

    The answers of one iteration of the loop leave as one pack per response topic. A request counts as done when its
    answer is durable; only then is its offset committed, so after a crash what was not answered comes again.
    """

    def __init__(
        self,
        log_provider: Log,
        handler: Handler,
        *,
        request_topic: str,
        group: str,
        service_id: str,
        partitions: Iterable[int] | None = None,
        settings: ResponderSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Without `partitions` they are shared with the other members of the group."""
        self._log = log_provider
        self._handler = handler
        self._topic = request_topic
        self._group = group
        self._writer = CallWriter(service_id.encode())
        self._partitions = None if partitions is None else [TopicPartition(request_topic, p) for p in partitions]
        self._settings = settings or ResponderSettings()
        self._room = self._settings.max_message_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._progress = Progress()
        self._pending = 0
        self._has_room = asyncio.Event()
        self._has_answers = asyncio.Event()
        self._answers: dict[str, tuple[RecordPack, list[_Answer]]] = {}
        self._running: dict[asyncio.Future[bytes], _Running] = {}
        self._deadlines: DeadlineTimer[asyncio.Future[bytes]] = DeadlineTimer(self._on_timeout, clock)
        self._tasks = TaskSet()
        self._consumer: Consumer | None = None
        self.latency = Latency()
        self._counts = dict.fromkeys(
            ("received", "answered", "expired", "failed", "timed_out", "undecodable", "not_sent"), 0
        )

    async def start(self) -> None:
        self._room = room_for_data(self._writer, self._log.producer.largest_record, self._settings.max_message_bytes)
        consumer = self._consumer = self._log.consumer(self._group)
        if self._partitions is None:
            consumer.subscribe([self._topic], on_revoked=self._on_revoked)
        else:
            consumer.assign(self._partitions)
        self._tasks.spawn(self._read_requests(consumer), name=f"rpc {self._topic}")
        self._tasks.spawn(self._commit(consumer), name=f"rpc commit {self._topic}")

    async def close(self, drain_seconds: float = 5.0) -> None:
        """Takes no more requests, lets those that are handled end, commits and leaves the group."""
        await self._tasks.close()
        deadline = self._clock() + drain_seconds
        while self._pending and self._clock() < deadline:
            self._has_room.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._has_room.wait(), deadline - self._clock())
        self._deadlines.close()
        running, self._running = self._running, {}
        for handled in running:
            handled.cancel()
        if self._consumer is not None:
            with contextlib.suppress(LogError):
                await self._consumer.commit(self._progress.take())
            await self._consumer.close()

    def _on_revoked(self, partitions: Sequence[TopicPartition]) -> None:
        for partition in partitions:
            self._progress.forget(partition)

    async def _read_requests(self, consumer: Consumer) -> None:
        settings = self._settings
        reader = CallReader()
        while True:
            while self._pending >= settings.max_pending_requests:
                self._has_room.clear()
                await self._has_room.wait()
            room = min(settings.poll_records, settings.max_pending_requests - self._pending)
            try:
                for fetched in await consumer.poll(room, settings.poll_seconds):
                    self._handle_pack(fetched, reader)
            except Exception as error:
                self._warn("requests cannot be read", _describe(error))
                await asyncio.sleep(settings.retry_seconds)

    def _handle_pack(self, fetched: Fetched, reader: CallReader) -> None:
        count = len(fetched.pack)
        self._counts["received"] += count
        try:
            requests = reader.read_requests(fetched.pack)
        except ValueError as error:
            self._counts["undecodable"] += count
            self._warn("a pack of requests is damaged", _describe(error), offset=fetched.pack.base_offset)
            return
        partition = TopicPartition(fetched.topic, fetched.partition)
        progress = self._progress.add(partition, fetched.next_offset, count)
        self._pending += count
        now_ms = self._wall_clock() * 1_000
        for request in requests:
            self._handle(request, progress, now_ms)

    def _handle(self, request: Request, progress: PackProgress, now_ms: float) -> None:
        if request.fault is not None:
            self._refuse(request, request.fault, progress)
            return
        if request.expire_ts < now_ms:
            self._counts["expired"] += 1
            self._finish(progress)
            return
        try:
            result = self._handler(request)
        except (Exception, asyncio.CancelledError) as error:  # of what the handler waited for: it is not awaited here
            self._fail(request, progress, ErrorCode.HANDLER_FAILED, error)
            return
        if isinstance(result, bytes) or not isawaitable(result):
            self._answer(request, result, progress)
            return
        now = self._clock()
        seconds = min(self._settings.handler_timeout, (request.expire_ts - now_ms) / 1_000)
        task = asyncio.ensure_future(result)
        self._running[task] = _Running(request, progress, now, self._deadlines.add(task, now + seconds))
        task.add_done_callback(self._on_handled)

    def _on_timeout(self, task: asyncio.Future[bytes]) -> None:
        """Answers at once, however long the handler needs to stop."""
        running = self._running.pop(task, None)
        if running is not None:
            task.cancel()
            late = TimeoutError(f"the handler took longer than {self._clock() - running.started_at:.3f} s")
            self._fail(running.request, running.progress, ErrorCode.HANDLER_TIMEOUT, late)

    def _on_handled(self, task: asyncio.Future[bytes]) -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        running = self._running.pop(task, None)
        if running is None:
            return  # timed out, or closed: then it comes again
        running.bucket.pop(task, None)
        if error is None:
            self.latency.add(self._clock() - running.started_at)
            self._answer(running.request, task.result(), running.progress)
        else:
            self._fail(running.request, running.progress, ErrorCode.HANDLER_FAILED, error)

    def _answer(self, request: Request, data: object, progress: PackProgress) -> None:
        if not isinstance(data, bytes):
            wrong = TypeError(f"the handler answered with {type(data).__name__} instead of bytes")
            self._fail(request, progress, ErrorCode.HANDLER_FAILED, wrong)
        elif len(data) > self._room:
            large = ValueError(f"an answer of {len(data)} bytes: at most {self._room} are sent")
            self._fail(request, progress, ErrorCode.ANSWER_TOO_LARGE, large)
        else:
            self._put(request, data, (), progress)

    def _fail(self, request: Request, progress: PackProgress, code: ErrorCode, error: BaseException) -> None:
        """The caller learns it at once instead of waiting for its deadline."""
        self._counts["timed_out" if code is ErrorCode.HANDLER_TIMEOUT else "failed"] += 1
        self._warn("a request failed", _describe(error), code=code.value)
        self._put(request, b"", _error_headers(code, _describe(error)), progress)

    def _refuse(self, request: Request, fault: str, progress: PackProgress) -> None:
        """It alone is answered if it says to whom, and counted; the records around it are handled."""
        self._counts["undecodable"] += 1
        self._warn("a record is not a request", fault, offset=request.offset)
        if request.request_id and request.response_topic:
            self._put(request, b"", _error_headers(ErrorCode.BAD_REQUEST, fault), progress)
        else:
            self._finish(progress)

    def _put(self, request: Request, data: bytes, error: tuple[tuple[str, bytes], ...], progress: PackProgress) -> None:
        topic = request.response_topic
        batch = self._answers.get(topic)
        if batch is None:
            if not self._answers:
                asyncio.get_running_loop().call_soon(self._flush)
            batch = self._answers[topic] = RecordPack(), []
        pack, answers = batch
        self._writer.put(pack, data, request.request_id, int(self._wall_clock() * 1_000), headers=error)
        answers.append(_Answer(request, data, error, progress))
        if pack.size > LARGEST_PACK:
            self._append(topic, *self._answers.pop(topic))

    def _flush(self) -> None:
        answers, self._answers = self._answers, {}
        for topic, (pack, batch) in answers.items():
            self._append(topic, pack, batch)

    def _append(self, topic: str, pack: RecordPack, batch: list[_Answer]) -> None:
        def on_done(result: Appended | LogError) -> None:
            if isinstance(result, LogError):
                self._not_sent(topic, batch, result)
                return
            self._counts["answered"] += len(batch)
            for progress, records in Counter(answer.progress for answer in batch).items():
                self._finish(progress, records)

        self._log.producer.append(topic, 0, pack, on_done)

    def _not_sent(self, topic: str, batch: list[_Answer], error: LogError) -> None:
        """Tries again as long as somebody waits, if it can help; a topic that is gone has nobody behind it."""
        self._warn("answers cannot be sent", str(error), topic=topic)
        now_ms = self._wall_clock() * 1_000
        again: list[_Answer] = []
        for answer in batch:
            if error.is_retryable and answer.request.expire_ts > now_ms:
                again.append(answer)
            else:
                self._counts["not_sent"] += 1
                self._finish(answer.progress)
        if again:
            asyncio.get_running_loop().call_later(self._settings.retry_seconds, self._put_again, again)

    def _put_again(self, answers: list[_Answer]) -> None:
        for answer in answers:
            self._put(*answer)

    def _finish(self, progress: PackProgress, records: int = 1) -> None:
        self._pending -= records
        self._progress.finish(progress, records)
        self._has_room.set()
        if self._progress.has_news:
            self._has_answers.set()

    async def _commit(self, consumer: Consumer) -> None:
        while True:
            await self._has_answers.wait()
            self._has_answers.clear()
            done = self._progress.take()
            try:
                await consumer.commit(done)
            except asyncio.CancelledError:
                self._progress.put_back(done)
                raise
            except LogError as error:
                self._progress.put_back(done)
                self._has_answers.set()
                self._warn("offsets cannot be committed", str(error))
            await asyncio.sleep(self._settings.commit_seconds)

    def _warn(self, event: str, reason: str, **fields: object) -> None:
        _warnings.warning(event, per=(self._topic, event), request_topic=self._topic, reason=reason, **fields)

    def counters(self) -> dict[str, int | float]:
        counts = self._counts
        return {
            "pending_requests_count": self._pending,
            "requests_received_total": counts["received"],
            "requests_answered_total": counts["answered"],
            "requests_expired_total": counts["expired"],
            "requests_failed_total": counts["failed"],
            "request_timeout_count": counts["timed_out"],
            "requests_undecodable_total": counts["undecodable"],
            "responses_not_sent_total": counts["not_sent"],
            "handler_latency": self.latency.mean_ms,
            "handler_latency_p99": self.latency.quantile_ms(0.99),
        }

    async def lag(self) -> dict[int, int]:
        """Per partition, the requests that wait in the log."""
        if self._consumer is None:
            return {}
        return {partition.partition: count for partition, count in (await self._consumer.lag()).items()}


def _describe(error: BaseException) -> str:
    return (str(error) or type(error).__name__)[:LONGEST_MESSAGE]


def _error_headers(code: ErrorCode, message: str) -> tuple[tuple[str, bytes], ...]:
    return (ERROR_CODE, code.encode()), (ERROR_MESSAGE, message.encode(errors="replace"))
