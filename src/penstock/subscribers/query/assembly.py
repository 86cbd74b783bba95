"""Data subscription at one node: makes its parts, starts and ends them in their order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, cast

from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.services.log_names import LogNames
from penstock.services.node import ClusterNode
from penstock.settings import Settings
from penstock.settings.datasub import DataSubscriptionSettings
from penstock.storage.log.base import Log, LogError
from penstock.storage.state.base import StateStore, StoreError
from penstock.subscribers.query import dead_letters
from penstock.subscribers.query.dead_letters import DeadLetterLog
from penstock.subscribers.query.fetching import Fetching
from penstock.subscribers.query.groups.forwarding import CATALOGUE
from penstock.subscribers.query.groups.limits import GroupSettings
from penstock.subscribers.query.making import Neighbours, make_service
from penstock.subscribers.query.meta import Announcer
from penstock.subscribers.query.metrics import DataMetrics
from penstock.subscribers.query.privileges import Access
from penstock.subscribers.query.retention import Retention
from penstock.subscribers.query.sampling import Sampler
from penstock.subscribers.query.source import Source
from penstock_client.errors import DataError

if TYPE_CHECKING:
    from penstock._ext.query.evaluator import QuerySet

log = get_logger("penstock.datasub")

RETRY_SECONDS = 1.0
# A log or a store that cannot be reached must not keep MQTT clients out.
START_SECONDS = 5.0
STOP_SECONDS = 5.0


class DataSubscription:
    """`node` where other nodes may use the same log; `is_taken`: names of ordinary topics that MQTT clients share."""

    def __init__(
        self,
        settings: Settings,
        provider: Log,
        state: StateStore,
        access: Access,
        scheduler: Scheduler,
        *,
        names: LogNames,
        node: ClusterNode | None,
        is_taken: Callable[[str], bool],
    ) -> None:
        self._settings = settings.data_subscription
        self._partitions = settings.ingest.partitions
        self.source = Source(provider, names.ingest_topic, self._settings.max_readers)
        self.dead_letters = DeadLetterLog(provider, names.of(dead_letters.TOPIC), self._settings.error_properties)
        self.fetching = Fetching(self.source, new_queries, self._settings, self.dead_letters)
        self.retention = Retention(
            provider,
            names.ingest_topic,
            interval=self._settings.retention_interval,
            is_holding=self._settings.retention == "hold",
        )
        neighbours = None
        if node is not None:
            neighbours = Neighbours(provider, node, settings.server.node_id, names.prefix)
        parts = make_service(
            state,
            access,
            self.source,
            self.fetching,
            scheduler,
            settings=_group_settings(self._settings),
            neighbours=neighbours,
            infer=Sampler(self.source).infer,
            errors_of=self.fetching.errors_of,
            is_taken=is_taken,
            on_table=Announcer(self.source),
            on_needing_more=self.retention.look_now,
        )
        self.service, self._progress, self._stored = parts.service, parts.progress, parts.stored
        self._is_first = (lambda: True) if node is None else (lambda: node.owns(CATALOGUE))
        catalogue = self.service.catalogue
        self.dead_letters.name_topics(lambda key: [one.name for one in catalogue.topics() if one.plan.key == key])
        self._has_begun = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self.metrics = DataMetrics(self.source, self.fetching, self.dead_letters, parts, catalogue)

    async def protect(self) -> None:
        """Right after the log has started: nothing goes before it is known what groups need."""
        await self.retention.protect(self._partitions)

    async def start(self) -> None:
        """Returns when it works, or when that takes long; then it goes on trying, and consumers are told to wait."""
        self.fetching.start()
        self._starting = asyncio.get_running_loop().create_task(self._start())
        self._has_begun.set()
        await asyncio.wait([self._starting], timeout=START_SECONDS)
        if self._starting.done():
            self._starting.result()
        else:
            self._starting.add_done_callback(_on_started_late)

    async def _start(self) -> None:
        while True:
            try:
                await self.source.start()
                await self.service.start()
                await self.source.refresh()  # lag is known from the first look on
                self.retention.start(self.source, self._progress, self._stored, self._is_first)
                return
            except (DataError, LogError, StoreError) as error:
                log.warning("data subscription cannot start yet", error=str(error))
                await asyncio.sleep(RETRY_SECONDS)

    async def until_started(self) -> None:
        await self._has_begun.wait()
        if self._starting is not None:
            await asyncio.shield(self._starting)

    async def stop(self) -> None:
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
            await asyncio.wait([self._starting])
        await self.retention.stop()
        with contextlib.suppress(TimeoutError):  # a Kafka that is away must not keep the process from ending
            async with asyncio.timeout(STOP_SECONDS):
                await self.fetching.close()
                await self.service.stop()
        await self.dead_letters.close()

    def counters(self) -> dict[str, int | float]:
        return self.metrics.counters() | self.retention.counters()


def _group_settings(settings: DataSubscriptionSettings) -> GroupSettings:
    return GroupSettings(
        rebalance_delay=settings.rebalance_delay,
        max_groups=settings.max_groups,
        max_members=settings.max_members,
        max_consumers=settings.max_consumers,
        max_topics=settings.max_consumer_topics,
        offsets_retention=settings.offsets_retention,
    )


def new_queries() -> QuerySet:
    # Imported when the first query is evaluated: most brokers never do.
    return cast("QuerySet", import_module("penstock._ext.query.evaluator").QuerySet())


def _on_started_late(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("data subscription cannot start", error=repr(error))
