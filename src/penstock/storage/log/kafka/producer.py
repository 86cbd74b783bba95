"""Appends packs through librdkafka's producer, on the loop's thread alone.

librdkafka sends in threads of its own and never asks for the GIL there. Its delivery reports wait until somebody polls:
the loop does, without waiting, every millisecond while something is under way, seldom otherwise.

An append that times out may have been written all the same. A patient producer has lasting appends, which never time
out: librdkafka retries them under their old sequence numbers, and Kafka recognises one that it has. Later appends wait
with them. Without lasting appends under way, it gives up everything as soon as the oldest append is late.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor

from confluent_kafka import KafkaError

from penstock._ext.kafka.client import Delivery, PackProducer, find_odd
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.core.logging import get_logger
from penstock.core.tasks import TaskSet
from penstock.settings.kafka import KafkaSettings
from penstock.storage.log.base import (
    Appended,
    LogError,
    LogUnavailable,
    OnAllAppended,
    OnAppended,
    Packs,
    RecordTooLarge,
    TopicNotFound,
)
from penstock.storage.log.kafka.errors import is_passing, to_log_error
from penstock.storage.log.kafka.health import Health
from penstock.storage.log.sending import append_each

log = get_logger("penstock.logs.kafka")

BUSY_SECONDS = 0.001
IDLE_SECONDS = 0.25
RETRY_SECONDS = 0.25
CLOSE_SECONDS = 10.0
LOOK_SECONDS = 0.05
# What a record costs on the wire beyond its key and value, generously.
RECORD_OVERHEAD = 70
# What a copy in a client's topic may have behind the record it was made from: QoS, source, subscription identifiers.
COPY_ROOM = 512

NewClient = Callable[[], PackProducer]
# Makes sure that a topic is there and says how many partitions it has.
OpenTopic = Callable[[str], Awaitable[int]]


class KafkaProducer:
    def __init__(
        self,
        settings: KafkaSettings,
        new_client: NewClient,
        open_topic: OpenTopic,
        health: Health,
        executor: Executor,
        *,
        is_patient: bool = False,
    ) -> None:
        self._is_patient = is_patient
        self._lasting = 0  # appends under way that do not time out
        self._look_at = 0.0  # when to look for late appends
        self.copied_topic = ""  # its records are taken only if there is room for what is added to copies of them
        self._settings = settings
        self._new_client = new_client
        self._open_topic = open_topic
        self._health = health
        self._executor = executor
        self._client = new_client()
        self._has_fatal_error = False
        self._is_closed = False
        self._partitions: dict[str, int] = {}
        self._unopened: dict[str, list[Delivery]] = {}
        self._openings = TaskSet()
        self._under_way: dict[tuple[str, int], deque[Delivery]] = {}
        self._finished: list[Delivery] = []
        self._pending_bytes = 0
        self._pending_records = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_busy = False
        self._idle: asyncio.Event | None = None
        self.appended_records = 0
        self.appended_bytes = 0
        self.failed_records = 0

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._schedule()

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    @property
    def gathers(self) -> bool:
        return False

    @property
    def largest_record(self) -> int:
        return max(1, self._settings.max_request_size - RECORD_OVERHEAD - COPY_ROOM)

    @property
    def pending_records(self) -> int:
        return self._pending_records

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
            raise ValueError("a pack that is appended has records, and no gaps between their offsets")
        is_lasting = is_lasting and self._is_patient
        error = self._find_refusal(pack, is_lasting=is_lasting)
        if error is not None:
            # At once and not in its turn: what does not fit must not be held either.
            self.failed_records += pack.count
            if on_done is not None:
                self._loop.call_soon(on_done, error)
            return
        delivery = Delivery(topic, partition, pack, on_done, self._finished, time.monotonic(), is_lasting)
        self._lasting += is_lasting
        self._under_way.setdefault((topic, partition), deque()).append(delivery)
        self._pending_records += pack.count
        self._pending_bytes += pack.size
        if topic in self._unopened:
            self._unopened[topic].append(delivery)
        elif topic in self._partitions:
            self._produce(delivery, self._partitions[topic])
        else:
            self._unopened[topic] = [delivery]
            self._start_opening(topic)
        if not self._is_busy:
            self._schedule()

    def collect(self) -> None:
        """Nothing to do: every append is reported by itself."""

    def append_packs(
        self, topic: str, packs: Packs, on_done: OnAllAppended, *, is_lasting: bool = False, is_quiet: bool = False
    ) -> None:
        append_each(self, topic, packs, on_done, is_lasting=is_lasting)

    async def send(self, topic: str, partition: int, pack: RecordPack) -> Appended:
        done: asyncio.Future[Appended | LogError] = self._loop.create_future()
        self.append(topic, partition, pack, lambda result: None if done.done() else done.set_result(result))
        result = await done
        if isinstance(result, LogError):
            raise result
        return result

    def forget_topic(self, topic: str) -> None:
        """The topic was created, changed or deleted: look at it again before the next append."""
        self._partitions.pop(topic, None)
        self._client.forget_topic(topic)

    async def close(self) -> None:
        """What was appended is still written, if Kafka takes it in time."""
        if self._under_way:
            self._idle = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._idle.wait(), CLOSE_SECONDS)
        self._is_closed = True
        self._openings.cancel()
        for deliveries in self._unopened.values():
            for delivery in deliveries:
                delivery.fail(LogUnavailable("the log is closed"), delivery.pack.count)
        if self._timer is not None:
            self._timer.cancel()
        self._client.purge()
        await self._loop.run_in_executor(self._executor, self._client.close)
        self._settle()

    def on_client_error(self, error: KafkaError) -> None:
        self._health.on_error(error)
        if error.fatal():
            log.error("kafka producer failed for good and is replaced", reason=error.str())
            self._has_fatal_error = True

    def _find_refusal(self, pack: RecordPack, *, is_lasting: bool) -> LogError | None:
        if self._is_closed:
            return LogUnavailable("the log is closed")
        if is_lasting:
            return None  # the rest of its batch may be under way; log.max_pending_bytes bounds them
        bytes_left = self._settings.buffer_memory - self._pending_bytes
        records_left = self._settings.buffer_records - self._pending_records
        if pack.size > bytes_left or pack.count > records_left:
            why = f" ({self._health.reason})" if self._health.reason else ""
            return LogUnavailable(f"the buffer for Kafka is full{why}")
        return None

    def _start_opening(self, topic: str) -> None:
        self._openings.spawn(self._open(topic))

    async def _open(self, topic: str) -> None:
        deadline = time.monotonic() + self._settings.delivery_timeout_ms / 1000
        error: LogError | None = None
        partitions = 0
        while True:
            try:
                partitions = self._partitions[topic] = await self._open_topic(topic)
                error = None
                break
            except LogError as failed:
                error = failed
            except Exception as failed:  # whatever it is, who appended waits for an answer
                error = LogError(f"topic {topic!r} cannot be opened: {failed}")
            lasts = any(delivery.is_lasting for delivery in self._unopened[topic])
            if not error.is_retryable or (time.monotonic() > deadline and not lasts):
                break
            await asyncio.sleep(RETRY_SECONDS)
        for delivery in self._unopened.pop(topic):
            if error is None:
                self._produce(delivery, partitions)
            else:
                delivery.fail(error, delivery.pack.count)

    def _produce(self, delivery: Delivery, partitions: int) -> None:
        pack, count = delivery.pack, delivery.pack.count
        if not 0 <= delivery.partition < partitions:
            # More partitions may have been added meanwhile; the next append looks again.
            self.forget_topic(delivery.topic)
            delivery.fail(TopicNotFound(f"{delivery.topic} has no partition {delivery.partition}"), count)
            return
        now = now_ms()
        tolerance = self._settings.timestamp_tolerance_ms
        limit = self._settings.max_request_size
        room = RECORD_OVERHEAD + (COPY_ROOM if delivery.topic == self.copied_topic else 0)
        odd = find_odd(pack, now - tolerance, now + tolerance, max(0, limit - room))
        if odd == 2:
            reason = f"a record for {delivery.topic} is larger than max_request_size, {limit} bytes, less {room}"
            delivery.fail(RecordTooLarge(reason), count)
        elif odd == 1:
            self._client.produce_each(delivery)
        else:
            self._client.produce(delivery)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._is_busy = self._pending_records > 0 or bool(self._under_way)
        self._timer = self._loop.call_later(BUSY_SECONDS if self._is_busy else IDLE_SECONDS, self._tick)

    def _tick(self) -> None:
        try:
            self._client.poll()
        except Exception:
            log.exception("kafka producer")
        if self._has_fatal_error:
            self._replace_client()
        if self._is_patient:
            self._give_up_late()
        elif any(_has_timed_out(delivery) for delivery in self._finished):
            # Younger records would still be written when Kafka is back, before the older ones are appended again.
            self._client.purge(unsent_only=True)
            self._client.poll()
        self._settle()
        if not self._is_closed:
            self._schedule()

    def _give_up_late(self) -> None:
        """Give up everything that was not sent if the oldest append is late. Nothing younger may be written before that
        is appended again; and lasting appends must not be given up at all."""
        now = time.monotonic()
        if self._lasting or now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        oldest = now - self._settings.delivery_timeout_ms / 1000
        if any(deliveries[0].since < oldest for deliveries in self._under_way.values()):
            self._client.purge(unsent_only=True)
            self._client.poll()

    def _replace_client(self) -> None:
        """After a fatal error the idempotent producer takes nothing any more. What it held fails."""
        self._has_fatal_error = False
        old, self._client = self._client, self._new_client()
        old.purge()
        # close() serves the reports that are left, in its own thread; _tick finds what they finished.
        self._executor.submit(old.close)

    def _settle(self) -> None:
        """Calls back for what is complete, in the order of each partition."""
        if not self._finished:
            return
        keys = dict.fromkeys((delivery.topic, delivery.partition) for delivery in self._finished)
        self._finished.clear()
        for key in keys:
            waiting = self._under_way.get(key)
            while waiting and waiting[0].is_complete:
                self._finish(waiting.popleft())
            if not waiting:
                self._under_way.pop(key, None)
        if self._idle is not None and not self._under_way:
            self._idle.set()

    def _finish(self, delivery: Delivery) -> None:
        pack = delivery.pack
        self._pending_records -= pack.count
        self._pending_bytes -= pack.size
        self._lasting -= delivery.is_lasting
        result: Appended | LogError
        if delivery.error is None:
            if delivery.is_dense and pack.base_offset < 0:
                pack.place(delivery.base_offset)
            result = Appended(delivery.topic, delivery.partition, delivery.base_offset, pack.count)
            self.appended_records += pack.count
            self.appended_bytes += pack.size
            self._health.mark_up()
        else:
            result = self._explain(delivery)
            self.failed_records += delivery.failed
        if delivery.on_done is not None:
            try:
                delivery.on_done(result)
            except Exception:
                log.exception("callback of an append", topic=delivery.topic, partition=delivery.partition)

    def _explain(self, delivery: Delivery) -> LogError:
        error, pack = delivery.error, delivery.pack
        where = f"append to {delivery.topic}[{delivery.partition}]"
        if isinstance(error, KafkaError) and is_passing(error):
            self._health.mark_down(f"Kafka does not take records: {error.str()}")
        if delivery.failed < pack.count and isinstance(error, KafkaError):
            where += f" ({pack.count - delivery.failed} of {pack.count} records were written)"
        if self._is_patient and isinstance(error, KafkaError) and error.code() == KafkaError._PURGE_QUEUE:
            return LogUnavailable(f"{where}: Kafka did not take it in {self._settings.delivery_timeout_ms} ms")
        return to_log_error(error, where) if error is not None else LogError(where)


def _has_timed_out(delivery: Delivery) -> bool:
    error = delivery.error
    return isinstance(error, KafkaError) and error.code() == KafkaError._MSG_TIMED_OUT
