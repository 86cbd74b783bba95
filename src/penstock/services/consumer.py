"""Reads messages of the queues. A record that is none is set aside with its reason; its batch goes on without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from penstock.core.logging import get_logger
from penstock.services.messages import QueueMessage, UndecodableMessage, decode_message
from penstock.services.model import TopicPartitionInfo
from penstock.services.topic_creator import EnsureTopic, TopicsExist
from penstock.storage.log.base import Consumer, Fetched, Log

OnUndecodable = Callable[[Fetched, UndecodableMessage], None]
_log = get_logger("penstock.queues")


class QueueConsumer:
    """`subscribe` only notes the newest set of partitions; the next poll applies it."""

    def __init__(
        self,
        log: Log,
        topic: str,
        group: str,
        partitions: Iterable[TopicPartitionInfo] = (),
        *,
        ensure_topic: EnsureTopic | None = None,
        on_undecodable: OnUndecodable | None = None,
    ) -> None:
        """`partitions`: what `subscribe()` without an argument means."""
        self.topic = topic
        self.group = group
        self.undecodable = 0
        self._log = log
        self._own = frozenset(partitions)
        self._ensure_topic = ensure_topic or TopicsExist()
        self._on_undecodable = on_undecodable
        self._wanted: frozenset[TopicPartitionInfo] | None = None
        self._partitions: frozenset[TopicPartitionInfo] = frozenset()
        self._consumer: Consumer | None = None
        self._is_stopped = False

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    @property
    def partitions(self) -> frozenset[TopicPartitionInfo]:
        return self._partitions if self._wanted is None else self._wanted

    def subscribe(self, partitions: Iterable[TopicPartitionInfo] | None = None) -> None:
        self._wanted = self._own if partitions is None else frozenset(partitions)

    def unsubscribe(self) -> None:
        self._wanted = frozenset()

    async def poll(self, max_records: int = 1_000, timeout: float = 1.0) -> list[QueueMessage]:
        """The messages that are there, waiting up to `timeout` for the first."""
        if self._is_stopped:
            return []
        if self._consumer is None:
            self._consumer = self._log.consumer(self.group)
        if self._wanted is not None:
            await self._apply(self._consumer)
        messages: list[QueueMessage] = []
        for fetched in await self._consumer.poll(max_records, timeout):
            messages += self._decode(fetched)
        return messages

    async def _apply(self, consumer: Consumer) -> None:
        while self._wanted is not None:
            self._partitions, self._wanted = self._wanted, None
            for creation in filter(None, map(self._ensure_topic, self._partitions)):
                await creation
        consumer.assign(sorted(info.log_partition for info in self._partitions))

    def _decode(self, fetched: Fetched) -> list[QueueMessage]:
        messages: list[QueueMessage] = []
        for record in fetched.pack:
            try:
                messages.append(decode_message(record))
            except UndecodableMessage as error:
                self.undecodable += 1
                _log.warning(
                    "undecodable record set aside", topic=fetched.topic, offset=record.offset, reason=str(error)
                )
                if self._on_undecodable is not None:
                    self._on_undecodable(fetched, error)
        return messages

    async def commit(self) -> None:
        """All that has been polled."""
        if self._consumer is not None:
            await self._consumer.commit()

    async def stop(self) -> None:
        self._is_stopped = True
        self._partitions, self._wanted = frozenset(), None
        if self._consumer is not None:
            consumer, self._consumer = self._consumer, None
            await consumer.close()
