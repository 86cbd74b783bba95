"""The way into the log: what one loop iteration published leaves as one pack per partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from penstock._ext.connection import Hub
from penstock._ext.segment import RecordPack
from penstock.core.logging import RateLimited, get_logger
from penstock.logs.base import Appended, Log, LogError

log = get_logger("penstock.ingest")


@dataclass(slots=True)
class _Batch:
    """What one iteration handed over."""

    ticket: int
    size: int
    waiting: int
    failures: int = 0


class Ingest:
    """Feeds the publishes of the hub to a topic of the log and tells the hub, in order, what has become durable.

    A batch of which any part failed has failed: its QoS 1 and 2 publishes are refused, their senders send again. What
    the other partitions took of it is there already; at least once is what QoS 1 promises.
    """

    def __init__(self, hub: Hub, log_provider: Log, topic: str, partitions: int, properties: Mapping[str, str]) -> None:
        self._hub = hub
        self._log = log_provider
        self._topic = topic
        self._partitions = partitions
        self._properties = properties
        self._batches: deque[_Batch] = deque()
        self._warnings = RateLimited(interval=10.0)

    async def start(self, mode: str, hash_function: str, max_pending: int) -> None:
        """Makes the topic if need be; publishes are logged from here on."""
        await self._log.admin.create(self._topic, self._partitions, self._properties)
        description = await self._log.admin.describe(self._topic)
        if description.partitions != self._partitions:
            log.warning(
                "the topic has its own number of partitions",
                topic=self._topic,
                partitions=description.partitions,
                configured=self._partitions,
            )
        self._hub.log_to(
            self.submit,
            mode=mode,
            partitions=description.partitions,
            hash_function=hash_function,
            max_pending=max_pending,
        )

    def submit(self, ticket: int, packs: list[tuple[int, RecordPack]], size: int) -> None:
        """Called by the hub once per loop iteration that published anything."""
        batch = _Batch(ticket, size, len(packs))
        self._batches.append(batch)
        producer = self._log.producer
        for partition, pack in packs:
            producer.append(self._topic, partition, pack, partial(self._on_done, batch, pack.count))

    def _on_done(self, batch: _Batch, count: int, result: Appended | LogError) -> None:
        batch.waiting -= 1
        if isinstance(result, LogError):
            batch.failures += count
            suppressed = self._warnings.try_pass(type(result).__name__)
            if suppressed is not None:
                log.error("publishes were not logged", error=str(result), records=count, suppressed=suppressed)
        # Partitions finish in any order; the hub hears of batches in theirs.
        while self._batches and self._batches[0].waiting == 0:
            done = self._batches.popleft()
            self._hub.log_committed(done.ticket, done.size, done.failures)

    @property
    def batches_open(self) -> int:
        return len(self._batches)
