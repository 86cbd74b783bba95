"""This process as a member of the cluster: who else is there, which partitions are its own, and its queues."""

from __future__ import annotations

from penstock.core.logging import get_logger
from penstock.core.ports import Scheduler
from penstock.logs.base import Log
from penstock.partition.discovery import LogDiscovery, SingleNode
from penstock.partition.factory import QueueFactory
from penstock.partition.model import ClusterTopologyChange, PartitionChange, ServiceInfo, ServiceType
from penstock.partition.service import HashPartitionService
from penstock.partition.settings import QueueSettings
from penstock.partition.topics import default_queues, notification_bases

log = get_logger("penstock.cluster")


class ClusterNode:
    """Made by app.py on the log it has chosen; alone where the log is the process's own."""

    def __init__(
        self, log_provider: Log, settings: QueueSettings, node_id: str, scheduler: Scheduler, *, is_clustered: bool
    ) -> None:
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
        cluster = settings.cluster
        topic = f"{settings.prefix}.{cluster.topic}" if settings.prefix else cluster.topic
        self._by_log = (
            LogDiscovery(log_provider, me, topic, cluster.heartbeat_interval, cluster.member_timeout)
            if is_clustered
            else None
        )
        self._discovery = self._by_log or SingleNode()
        self.queues = QueueFactory(log_provider, settings, self.partitions, claims=self._by_log)
        self.partitions.listen(PartitionChange, _on_partitions)
        self.partitions.listen(ClusterTopologyChange, _on_topology)

    async def start(self) -> None:
        await self._discovery.start(self.partitions.members_changed)
        self.partitions.start(self._discovery.others())

    async def stop(self) -> None:
        await self._discovery.stop()

    def counters(self) -> dict[str, int]:
        return {"cluster_members": 1 + len(list(self._discovery.others()))}


def _on_partitions(event: PartitionChange) -> None:
    for key, mine in event.partitions.items():
        log.debug("partitions changed", queue=key.queue, service=str(key.service_type), mine=len(mine))


def _on_topology(event: ClusterTopologyChange) -> None:
    log.debug("the cluster has changed", queues=len(event.keys))
