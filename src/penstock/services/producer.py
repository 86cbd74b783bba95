"""Sends messages of the queues: what one iteration of the loop sends to a partition is appended as one pack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from uuid import uuid4

from penstock._ext.record.segment import RecordPack
from penstock.core.errors import PenstockError
from penstock.core.logging import DEBUG, get_logger
from penstock.services.messages import (
    CORRELATION_ID,
    QueueMessage,
    encode_message,
    encoded_size,
    record_size,
    stamped,
)
from penstock.services.model import TopicPartitionInfo
from penstock.services.topic_creator import EnsureTopic, TopicsExist
from penstock.storage.log.base import Appended, Log, LogError, TopicNotFound, TopicPartition

OnSent = Callable[[LogError | None], None]
MIB = 1_048_576
_log = get_logger("penstock.queues")


class MessageTooLarge(PenstockError):
    """Refused before it is sent; a log would only answer with a time-out."""


class QueueFull(LogError):
    """More waits to be written than allowed; wait for what was sent, then go on."""

    is_retryable = True


class ProducerStopped(LogError):
    """Nothing can be sent any more."""


class _Batch:
    """Messages of one partition on their way."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.pack = RecordPack()
        self.callbacks: list[OnSent] = []
        self.bytes = 0


class QueueProducer:
    def __init__(
        self,
        log: Log,
        default_topic: str,
        producer_id: str,
        ensure_topic: EnsureTopic | None = None,
        *,
        max_message_size: int = MIB,
        max_pending_bytes: int = 64 * MIB,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.default_topic = default_topic
        self._log = log
        self._producer_id = producer_id
        self._ensure_topic = ensure_topic or TopicsExist()
        self._max_message_size = max_message_size
        self._max_pending_bytes = max_pending_bytes
        self._wall_clock = wall_clock
        self._batches: dict[TopicPartition, tuple[TopicPartitionInfo, _Batch]] = {}
        self._held: dict[str, list[tuple[TopicPartitionInfo, _Batch]]] = {}
        self._pending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_stopped = False

    @property
    def pending_bytes(self) -> int:
        return self._pending_bytes

    def send(self, info: TopicPartitionInfo, message: QueueMessage, on_sent: OnSent | None = None) -> None:
        """Takes the message; `on_sent` is called once, with None when it is durable or with the error. Raises
        MessageTooLarge, QueueFull and ProducerStopped at once: then nothing was taken."""
        size = encoded_size(message)
        self._check(info, size)
        now_ms = int(self._wall_clock() * 1000)
        whole = stamped(message, producer_id=self._producer_id, now_ms=now_ms, debug=_log.is_enabled(DEBUG))
        self._check_record(info, whole)
        if not self._batches:
            asyncio.get_running_loop().call_soon(self._flush)
        _, batch = self._batches.setdefault(info.log_partition, (info, _Batch(info.full_topic_name)))
        encode_message(whole, batch.pack, now_ms)
        batch.bytes += size
        if on_sent is not None:
            batch.callbacks.append(on_sent)
        self._pending_bytes += size
        self._idle.clear()

    async def send_and_wait(self, info: TopicPartitionInfo, message: QueueMessage) -> None:
        """Returns when it is durable; waits when too much is on its way; raises LogError."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def on_sent(error: LogError | None) -> None:
            if done.done():
                return
            if error is None:
                done.set_result(None)
            else:
                done.set_exception(error)

        while self._pending_bytes >= self._max_pending_bytes and not self._is_stopped:
            await self._idle.wait()
        self.send(info, message, on_sent)
        await done

    async def send_to_all(self, infos: Iterable[TopicPartitionInfo], message: QueueMessage) -> None:
        """The message to the first partition, copies with keys of their own and one correlation id to the others.
        Returns when all are durable."""
        correlated = {CORRELATION_ID: uuid4().bytes, **message.headers}
        copies = [
            self.send_and_wait(info, QueueMessage(uuid4() if number else message.key, message.data, correlated))
            for number, info in enumerate(infos)
        ]
        await asyncio.gather(*copies)

    async def stop(self) -> None:
        """Takes nothing more and waits for what is on its way."""
        self._is_stopped = True
        await self._idle.wait()

    def _check(self, info: TopicPartitionInfo, size: int) -> None:
        if self._is_stopped:
            raise ProducerStopped(f"the producer of {self.default_topic} has stopped")
        if size > self._max_message_size:
            raise MessageTooLarge(
                f"a message of {size} bytes for {info} is larger than {self._max_message_size}",
                "Raise services.max_message_size, and the limit of the log with it, or send less at once.",
            )
        if self._pending_bytes + size > self._max_pending_bytes + self._max_message_size:
            raise QueueFull(f"{self._pending_bytes} bytes wait to be written to the queues")

    def _check_record(self, info: TopicPartitionInfo, message: QueueMessage) -> None:
        """The log would refuse it, and with it all others of this iteration: it is refused alone."""
        largest, size = self._log.producer.largest_record, record_size(message)
        if largest and size > largest:
            raise MessageTooLarge(
                f"a message of {size} bytes with its headers for {info} is larger than the log takes, {largest}",
                "Raise kafka.max_request_size, and the limit of the topics in Kafka with it, or send less at once.",
            )

    def _flush(self) -> None:
        batches, self._batches = self._batches, {}
        for info, batch in batches.values():
            self._append_when_ready(info, batch)

    def _append_when_ready(self, info: TopicPartitionInfo, batch: _Batch) -> None:
        topic = info.full_topic_name
        if topic in self._held:
            self._held[topic].append((info, batch))
            return
        creation = self._ensure_topic(info)
        if creation is None:
            self._append(info, batch)
            return
        self._held[topic] = [(info, batch)]
        creation.add_done_callback(lambda created: self._created(topic, created))

    def _created(self, topic: str, creation: asyncio.Future[None]) -> None:
        error = None if creation.cancelled() else creation.exception()
        for info, batch in self._held.pop(topic):
            if creation.cancelled() or error is not None:
                self._done(
                    batch, error if isinstance(error, LogError) else LogError(f"cannot create {topic}: {error!r}")
                )
            else:
                self._append(info, batch)

    def _append(self, info: TopicPartitionInfo, batch: _Batch) -> None:
        place = info.log_partition
        self._log.producer.append(place.topic, place.partition, batch.pack, lambda result: self._done(batch, result))

    def _done(self, batch: _Batch, result: Appended | LogError) -> None:
        self._pending_bytes -= batch.bytes
        if self._pending_bytes == 0:
            self._idle.set()
        error = result if isinstance(result, LogError) else None
        if isinstance(error, TopicNotFound):
            self._ensure_topic.forget(batch.topic)
        for callback in batch.callbacks:
            try:
                callback(error)
            except Exception as failure:  # one caller's bug must not keep the others waiting
                _log.error("a callback of a sent message failed", error=repr(failure))
