"""Several brokers on one log as one: who else is there, and what each of them has to know of the others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence

from penstock._ext.hub.connection import Hub
from penstock._ext.match.acl import AclProgram
from penstock._ext.match.partition import hash_text
from penstock.access.base import Subject
from penstock.cluster.claims import Claim
from penstock.cluster.take_over import TakeOver
from penstock.core.errors import SettingsError
from penstock.core.logging import Throttled, get_logger
from penstock.dispatch.persistent_clients import PersistentClients
from penstock.dispatch.turns import ShareTable
from penstock.services.housekeeper import Task, Undecided, Use
from penstock.services.log_names import dispatch_group
from penstock.services.model import ServiceListChanged
from penstock.services.names import notifications_topic
from penstock.services.node import ClusterNode
from penstock.services.topics import INSTANCE_CHANNELS
from penstock.sessions.ownership import Ownership
from penstock.sessions.records import RecordError
from penstock.sessions.registry import SessionRegistry
from penstock.settings.cluster import ClusterSettings
from penstock.storage.log.base import Log, LogError

log = get_logger("penstock.cluster")

JOIN_SECONDS = 5.0
RETRY_SECONDS = 1.0
STOP_SECONDS = 2.0
LOOK_SECONDS = 1.0


def number_of(node: str) -> int:
    """A broker in the records it writes: a hash of its name, never 0."""
    return hash_text(node) & 0xFFFFFFFF or 1


def check_node(node: str) -> None:
    """Raises SettingsError for a name that cannot be part of a topic's."""
    try:
        notifications_topic(INSTANCE_CHANNELS["sessions"], node)
    except ValueError as error:
        raise SettingsError(f"server.node_id = {node!r} is not allowed with Kafka: {error}") from None


class Cluster:
    """Made by app.py where the log is one that other brokers may use. On the loop.

    `has_own_queues`: the queues of DEVICE clients are where no other broker can read them.
    """

    def __init__(
        self,
        hub: Hub,
        log_provider: Log,
        *,
        members: ClusterNode,
        registry: SessionRegistry,
        applications: PersistentClients,
        node: str,
        settings: ClusterSettings,
        prefix: str,
        has_own_queues: bool,
        ownership: Ownership,
        program_for: Callable[[Subject], AclProgram | None],
    ) -> None:
        self._hub = hub
        self._members = members
        self._applications = applications
        self._registry = registry
        self._node = node
        self._prefix = prefix
        self.take_over = TakeOver(
            log_provider,
            hub,
            registry,
            applications,
            node=node,
            prefix=prefix,
            queues=members.queues,
            others=members.others,
            heard_at=members.heard_at,
            ownership=ownership,
            program_for=program_for,
        )
        self.shares = ShareTable(
            hub,
            log_provider,
            node,
            members.others,
            has_sessions=self.take_over.has_sessions,
            prefix=prefix,
        )
        # A broker that is started again has its sessions for itself until then.
        self._adopt_after = settings.adopt_after
        self._has_own_queues = has_own_queues
        self._absent: dict[str, float] = {}
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._warnings = Throttled(log, interval=10.0)
        delivery = applications.delivery
        delivery.use_elsewhere = delivery.shared.removals.use_elsewhere = self._use_elsewhere
        delivery.shared.before_joining = self._before_joining
        hub.join(number_of(node))
        members.partitions.listen(ServiceListChanged, self._on_members)

    # ---- life ----

    async def start(self) -> None:
        """Before retained messages and sessions are restored: what others change from now on is read from the log."""
        if await self._members.joined(JOIN_SECONDS) and self._members.others():
            with contextlib.suppress(LogError):
                await self._applications.dispatcher.mark()

    async def open(self) -> None:
        """Everything is restored; when it returns, clients may come."""
        self._opening = asyncio.get_running_loop().create_task(self._open())
        await asyncio.wait([self._opening], timeout=JOIN_SECONDS)

    async def _open(self) -> None:
        await self._patiently(self.shares.start)
        self._applications.delivery.on_share = self.shares.joined
        self._applications.delivery.shared.is_elsewhere = self.shares.is_elsewhere
        for session in self._registry.sessions():
            for topic_filter, _, _ in self._hub.trie.subscriptions(session):
                if topic_filter.startswith(b"$share/"):
                    self.shares.joined(topic_filter)
        await self._patiently(self.take_over.start)
        self._applications.delivery.is_elsewhere = self.take_over.is_elsewhere
        self._applications.other_groups = self._other_groups
        self._is_open = True
        await self._follow_members()
        self._looking = asyncio.get_running_loop().create_task(self._look_for_the_lost())

    async def _patiently(self, start: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await start()
                return
            except LogError as error:
                self._warnings.warning("the cluster cannot be joined yet", error=str(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def stop(self) -> None:
        self._is_open = False
        for task in (self._opening, self._looking, self._following):
            if task is not None:
                task.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self.take_over.stop()
                await self.shares.stop()

    # ---- members ----

    def _on_members(self, _: ServiceListChanged) -> None:
        if self._is_open:
            self._following = asyncio.get_running_loop().create_task(self._follow_members())

    async def _follow_members(self) -> None:
        others = self._members.others()
        mine = number_of(self._node)
        for name in others:
            if number_of(name) == mine:
                log.error("two brokers have the same number: rename one of them (server.node_id)", other=name)
        if others and self._has_own_queues:
            self._has_own_queues = False
            log.warning(
                "messages that wait for DEVICE clients are on this broker's own disk: they do not follow a client to "
                "another broker",
                setting="device.store",
            )
        if others:
            await self._patiently(self._applications.join)
        self._hub.spread(bool(self._members.others()))
        self.shares.members_changed()

    async def _look_for_the_lost(self) -> None:
        """Sessions of a broker that has been away for a while are taken up by the first of the others."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            others = self._members.others()
            now = time.monotonic()
            lost = self.take_over.owners() - {self._node, "", *others}
            self._absent = {name: self._absent.get(name, now) for name in lost}
            if others and others[0] < self._node:
                continue
            for name, since in list(self._absent.items()):
                if now - since < self._adopt_after:
                    continue
                try:
                    count = await self.take_over.adopt_all(name)
                    log.warning("the sessions of a broker that is gone were taken up", node=name, sessions=count)
                except (LogError, RecordError, TimeoutError) as error:
                    self._warnings.warning(
                        "the sessions of a broker that is gone cannot be taken up yet", error=str(error)
                    )

    async def _use_elsewhere(self, task: Task) -> Use:
        """Of what is to be removed, by any other broker. Raises PenstockError: not known."""
        if not self._is_open:
            raise Undecided("the cluster is not joined yet")
        return await self.take_over.use_of(task)

    async def _before_joining(self, topics: Sequence[str]) -> None:
        if self._is_open:
            await self.take_over.before_joining(topics)

    def _other_groups(self) -> list[str]:
        """The dispatch groups of brokers that are here, and of those that are gone while nobody has their sessions."""
        others = {*self._members.others(), *self.take_over.owners()} - {self._node, ""}
        return [dispatch_group(name, self._prefix) for name in others]

    # ---- for the front-ends ----

    def must_claim(self, client_id: str) -> bool:
        self.take_over.came(client_id)
        return self._is_open and self.take_over.must_claim(client_id)

    async def claim(self, client_id: str, username: str | None) -> Claim:
        return await self.take_over.claim(client_id, username)

    def settle(self, claim: Claim) -> None:
        self.take_over.settle(claim)

    def counters(self) -> dict[str, int | float]:
        return self.take_over.counters()
