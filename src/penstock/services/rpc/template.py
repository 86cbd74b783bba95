"""The side that asks: sends requests and completes each call with its answer, by the request's id."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from penstock._ext.match.partition import partition_of
from penstock._ext.record.segment import RecordPack
from penstock._ext.services.calls import Call, CallReader, CallWriter
from penstock.core.logging import Throttled, get_logger
from penstock.services.rpc.deadlines import DeadlineTimer
from penstock.services.rpc.errors import (
    RemoteError,
    RequestNotSent,
    RequestTimeout,
    RequestTooLarge,
    TemplateClosed,
    TooManyPending,
)
from penstock.services.rpc.latency import Latency
from penstock.services.rpc.settings import RequestSettings
from penstock.services.rpc.wire import LENGTHS, new_ids, room_for_data
from penstock.storage.log.base import LATEST, Appended, Consumer, Log, LogError, TopicPartition

log = get_logger("penstock.rpc")

ENTRY_BYTES = 700
"""Memory of a call that waits, apart from its data: future, entry, id and deadline."""
LARGEST_PACK = 1_048_576
_warnings = Throttled(log, interval=10.0)


class _Pending(NamedTuple):
    future: asyncio.Future[bytes]
    bucket: dict[bytes, None]
    sent_at: float
    size: int


class RequestTemplate:
    """Calls a service through a request topic; answers come to a response topic that only this instance reads.

    What is sent in one iteration of the loop leaves as one pack, to one partition of the request topic after the other;
    a call with a key goes to the key's partition instead. A call to one instance alone names that instance's own topic
    (`to`); without a request topic all calls do.
    """

    def __init__(
        self,
        log_provider: Log,
        *,
        request_topic: str | None,
        response_topic: str,
        group: str,
        service_id: str,
        response_properties: Mapping[str, str] | None = None,
        settings: RequestSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log_provider
        self._request_topic = request_topic
        self._response = TopicPartition(response_topic, 0)
        self._group = group
        self._writer = CallWriter(service_id.encode(), response_topic.encode())
        self._response_properties = response_properties
        self._settings = settings or RequestSettings()
        self._room = self._settings.max_message_bytes
        self._clock = clock
        self._wall_clock = wall_clock
        self._ids = new_ids()
        self._pending: dict[bytes, _Pending] = {}
        self._pending_bytes = 0
        self._deadlines: DeadlineTimer[bytes] = DeadlineTimer(self._on_timeout, clock)
        self._packs: dict[int | str, tuple[RecordPack, list[bytes]]] = {}  # by partition, or by the one topic
        self._partitions = 0
        self._turn = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._consumer: Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self.latency = Latency()
        self._counts = dict.fromkeys(
            ("sent", "completed", "failed", "timed_out", "rejected", "ignored", "undecodable"), 0
        )

    async def start(self) -> None:
        """Reads how many partitions the request topic has; makes the response topic if it is not there."""
        if self._request_topic is not None:
            self._partitions = (await self._log.admin.describe(self._request_topic)).partitions
        self._room = room_for_data(self._writer, self._log.producer.largest_record, self._settings.max_message_bytes)
        await self._log.admin.create(self._response.topic, 1, self._response_properties)
        self._consumer = self._log.consumer(self._group, auto_offset_reset="latest")
        self._consumer.assign([self._response])
        # Answers to an earlier life of this service are for nobody.
        await self._consumer.seek(self._response, LATEST)
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._read_answers(self._consumer), name=f"rpc {self._response.topic}")

    async def close(self) -> None:
        """Fails what is still pending."""
        self._flush()
        self._loop = None
        self._deadlines.close()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._consumer is not None:
            await self._consumer.close()
        for request_id in list(self._pending):
            self._fail(request_id, TemplateClosed("the template was closed before the answer came"))

    def send(
        self,
        data: bytes,
        *,
        key: bytes | None = None,
        timeout: float | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        to: str | None = None,
    ) -> asyncio.Future[bytes]:
        """The answer's data, later. Raises at once what can be known at once; see errors.py."""
        settings = self._settings
        if self._loop is None:
            raise TemplateClosed("the template is not open")
        size = len(data) + (len(key) if key else 0)
        if headers:
            size += sum(len(name.encode()) + len(value) + LENGTHS for name, value in headers)
        if size > self._room:
            self._counts["rejected"] += 1
            raise RequestTooLarge(
                f"a request of {size} bytes: at most {self._room} are sent",
                "Send less at once; what Kafka takes is kafka.max_request_size.",
            )
        if len(self._pending) >= settings.max_pending_requests:
            self._make_room()
        seconds = settings.max_request_timeout if timeout is None else timeout
        if seconds <= 0:
            raise ValueError(f"a timeout of {seconds} seconds: use more than 0")
        now, now_ms = self._clock(), int(self._wall_clock() * 1_000)
        request_id = next(self._ids)
        place: int | str
        if to is not None:
            place = to
        elif partition is None:
            place = self._turn if key is None else partition_of(key, self._partitions)
        elif 0 <= partition < self._partitions:
            place = partition
        else:
            raise ValueError(f"{self._request_topic} has no partition {partition}")
        pack, ids = self._packs.get(place) or self._open(place)
        # The call's own deadline: a responder that reads the request later need not handle it.
        self._writer.put(pack, data, request_id, now_ms, int(now_ms + seconds * 1_000), key, headers)
        ids.append(request_id)
        future: asyncio.Future[bytes] = self._loop.create_future()
        bucket = self._deadlines.add(request_id, now + seconds)
        self._pending[request_id] = _Pending(future, bucket, now, len(data))
        self._pending_bytes += len(data)
        self._counts["sent"] += 1
        if pack.size > LARGEST_PACK:
            self._append(place, *self._packs.pop(place))
        return future

    def _make_room(self) -> None:
        """Calls whose callers gave up do not count; they are looked for only when there is no room without them."""
        for request_id in [key for key, call in self._pending.items() if call.future.done()]:
            self._forget(request_id)
        if len(self._pending) >= self._settings.max_pending_requests:
            self._counts["rejected"] += 1
            raise TooManyPending(f"{len(self._pending)} requests wait for their answers already; this one was not sent")

    def _open(self, place: int | str) -> tuple[RecordPack, list[bytes]]:
        if not self._packs and self._loop is not None:
            self._loop.call_soon(self._flush)
        batch = self._packs[place] = RecordPack(), []
        return batch

    def _flush(self) -> None:
        packs, self._packs = self._packs, {}
        for place, (pack, ids) in packs.items():
            if ids:  # none when its only call could not be written, which its caller was told
                self._append(place, pack, ids)
        if packs and self._partitions:
            self._turn = (self._turn + 1) % self._partitions

    def _append(self, place: int | str, pack: RecordPack, ids: list[bytes]) -> None:
        def on_done(result: Appended | LogError) -> None:
            if isinstance(result, LogError):
                for request_id in ids:
                    error = RequestNotSent(f"the request could not be sent: {result.message}")
                    error.__cause__ = result
                    self._fail(request_id, error)

        if isinstance(place, str):
            self._log.producer.append(place, 0, pack, on_done)
        else:
            assert self._request_topic is not None
            self._log.producer.append(self._request_topic, place, pack, on_done)

    def _forget(self, request_id: bytes) -> _Pending | None:
        call = self._pending.pop(request_id, None)
        if call is not None:
            call.bucket.pop(request_id, None)
            self._pending_bytes -= call.size
        return call

    def _fail(self, request_id: bytes, error: Exception) -> None:
        call = self._forget(request_id)
        if call is not None:
            self._counts["timed_out" if isinstance(error, RequestTimeout) else "failed"] += 1
            if not call.future.done():
                call.future.set_exception(error)

    def _on_timeout(self, request_id: bytes) -> None:
        call = self._pending.get(request_id)
        if call is not None:
            whom, waited = self._request_topic or "the instance", self._clock() - call.sent_at
            self._fail(request_id, RequestTimeout(f"no answer from {whom} in {waited:.3f} s"))

    def expire(self) -> None:
        """Fails the calls whose time is over. A timer does it in time; a test with its own clock calls it itself."""
        self._deadlines.expire()

    async def _read_answers(self, consumer: Consumer) -> None:
        settings = self._settings
        reader = CallReader()
        committed_at = self._clock()
        while True:
            try:
                for fetched in await consumer.poll(settings.poll_records, settings.poll_seconds):
                    now = self._clock()
                    for answer in reader.read_answers(fetched.pack):
                        self._complete(answer, now)
                if self._clock() - committed_at >= settings.commit_seconds:
                    await consumer.commit()
                    committed_at = self._clock()
            except Exception as error:
                # Calls that wait have their own deadlines; a log that comes back goes on where it was.
                _warnings.warning(
                    "answers cannot be read",
                    per=self._response,
                    topic=self._response.topic,
                    reason=str(error),
                )
                await asyncio.sleep(settings.retry_seconds)

    def _complete(self, answer: Call, now: float) -> None:
        if answer.fault is not None:
            self._counts["undecodable"] += 1
            return
        call = self._forget(answer.request_id)
        if call is None:
            # too late, or a second answer after the responder was started again
            self._counts["ignored"] += 1
            return
        self.latency.add(now - call.sent_at)
        self._counts["completed"] += 1
        if call.future.done():
            return
        if answer.error_code is None:
            call.future.set_result(answer.data)
        else:
            message = (answer.error_message or b"").decode(errors="replace")
            call.future.set_exception(RemoteError(answer.error_code.decode(errors="replace"), message))

    def counters(self) -> dict[str, int | float]:
        counts = self._counts
        return {
            "pending_requests_count": len(self._pending),
            "pending_requests_memory": self._pending_bytes + ENTRY_BYTES * len(self._pending),
            "request_timeout_count": counts["timed_out"],
            "response_lag": self.latency.mean_ms,
            "response_lag_p99": self.latency.quantile_ms(0.99),
            "requests_sent_total": counts["sent"],
            "requests_completed_total": counts["completed"],
            "requests_failed_total": counts["failed"],
            "requests_rejected_total": counts["rejected"],
            "responses_ignored_total": counts["ignored"],
            "responses_undecodable_total": counts["undecodable"],
        }

    async def lag(self) -> int:
        """Answers that are in the log and not yet read."""
        return 0 if self._consumer is None else sum((await self._consumer.lag()).values())
