"""This process as a member of the cluster: who else is there, which partitions are its own, and its queues."""

from __future__ import annotations

import asyncio
import contextlib

from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.core.tasks import TaskSet
from penstock.services.discovery import LogDiscovery, SingleNode
from penstock.services.factory import QueueFactory
from penstock.services.membership import Door
from penstock.services.model import (
    MAIN,
    SYSTEM_TENANT,
    ClusterTopologyChange,
    PartitionChange,
    ServiceInfo,
    ServiceType,
)
from penstock.services.names import topic_name
from penstock.services.service import HashPartitionService
from penstock.services.topics import create_topics, default_queues, delete_service_topics, notification_bases
from penstock.settings.cluster import ClusterSettings
from penstock.settings.services import ServiceSettings
from penstock.storage.log.base import Log, LogError

log = get_logger("penstock.cluster")

RETRY_SECONDS = 5.0
STOP_SECONDS = 2.0


class ClusterNode:
    """Made by the composition root on the log it has chosen. Without `cluster`, on a log that no other process uses,
    it is alone."""

    def __init__(
        self,
        log_provider: Log,
        settings: ServiceSettings,
        node_id: str,
        scheduler: Scheduler,
        *,
        cluster: ClusterSettings | None = None,
    ) -> None:
        self.service_id = node_id
        self._log = log_provider
        self._settings = settings
        self._deleting = TaskSet()
        me = ServiceInfo(service_id=node_id, service_types=frozenset([ServiceType.TB_CORE, ServiceType.TB_TRANSPORT]))
        self.partitions = HashPartitionService(
            me,
            default_queues(settings),
            scheduler,
            prefix=settings.prefix,
            notification_bases=notification_bases(settings),
            rule=settings.partitions.ownership,
            function=settings.partitions.hash_function_name,
            recalculate_delay=settings.partitions.recalculate_delay,
        )
        self._by_log = None if cluster is None else self._make_discovery(cluster, me)
        self._discovery = self._by_log or SingleNode()
        self._joining: asyncio.Task[None] | None = None
        self.queues = QueueFactory(log_provider, settings, self.partitions, claims=self._by_log)
        self.partitions.listen(PartitionChange, _on_partitions)
        self.partitions.listen(ClusterTopologyChange, _on_topology)

    def _make_discovery(self, cluster: ClusterSettings, me: ServiceInfo) -> LogDiscovery:
        return LogDiscovery(
            self._log,
            me,
            topic_name(cluster.topic, prefix=self._settings.prefix),
            cluster.heartbeat_interval,
            cluster.member_timeout,
            forget_after=cluster.forget_after,
            on_forgotten=self._on_forgotten,
        )

    async def start(self) -> None:
        """Joins. A log that others use may not be there yet: then it goes on trying beside everything else."""
        if self._by_log is None:
            await self._join()
        else:
            self._joining = asyncio.get_running_loop().create_task(self._join_when_possible())

    async def _join(self) -> None:
        if self._settings.create_topics == "at-start":
            mine = {kind: [self.service_id] for kind in self.partitions.me.service_types}
            log.info("making the topics of the queues")
            await create_topics(self._log.admin, self._settings, mine)
        await self._discovery.start(self.partitions.members_changed)
        self.partitions.start(self._discovery.others())

    async def _join_when_possible(self) -> None:
        while True:
            try:
                await self._join()
                return
            except LogError as error:
                log.warning("cannot join the cluster yet", error=error.message)
            await asyncio.sleep(RETRY_SECONDS)

    def _on_forgotten(self, service_id: str) -> None:
        self._deleting.spawn(self._delete_topics(service_id))

    async def _delete_topics(self, service_id: str) -> None:
        """Of a member that is gone for good. One that returns after all makes them again."""
        try:
            gone = await delete_service_topics(self._log.admin, self._settings, service_id)
        except LogError as error:
            log.warning("the topics of a member that is gone stay", service_id=service_id, error=error.message)
        else:
            log.info("the topics of a member that is gone were deleted", service_id=service_id, topics=len(gone))

    async def stop(self) -> None:
        self._deleting.cancel()
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.wait([self._joining], timeout=STOP_SECONDS)
        with contextlib.suppress(TimeoutError):  # a log that is away must not hold up the exit
            async with asyncio.timeout(STOP_SECONDS):
                await self._discovery.stop()

    async def joined(self, seconds: float) -> bool:
        """Waits for it as long; whether the other members are known."""
        if self._joining is not None:
            await asyncio.wait([self._joining], timeout=seconds)
        return self._joining is None or self._joining.done()

    def others(self) -> list[str]:
        """Ids of the other members that are alive, sorted."""
        return [info.service_id for info in self._discovery.others()]

    def heard_at(self, service_id: str) -> float:
        """When a member was heard last, on the monotonic clock."""
        return 0.0 if self._by_log is None else self._by_log.heard_at(service_id)

    async def open_door(self, door: Door) -> None:
        if self._by_log is not None:
            await self._by_log.open_door(door)

    def door_of(self, service_id: str) -> Door | None:
        """Where a member can be reached; None while it has not said so."""
        return None if self._by_log is None else self._by_log.door_of(service_id)

    def owns(self, name: str) -> bool:
        """Whether this node is the one that serves what is called so, as the partitions of the core are shared out."""
        return self.partitions.is_my_partition(ServiceType.TB_CORE, MAIN, SYSTEM_TENANT, name)

    def owner_of(self, name: str) -> str:
        """The id of that node; empty while there is none."""
        number = self.partitions.resolve(ServiceType.TB_CORE, MAIN, SYSTEM_TENANT, name).partition or 0
        owners = self.partitions.owners(self.partitions.resolve_key(ServiceType.TB_CORE, MAIN, SYSTEM_TENANT))
        return owners[number][0] if number < len(owners) and owners[number] else ""

    def counters(self) -> dict[str, int]:
        return {"cluster_members": 1 + len(list(self._discovery.others())), **self.queues.counters()}


def _on_partitions(event: PartitionChange) -> None:
    for key, mine in event.partitions.items():
        log.debug("partitions changed", queue=key.queue, service=str(key.service_type), mine=len(mine))


def _on_topology(event: ClusterTopologyChange) -> None:
    log.debug("the cluster has changed", queues=len(event.keys))
