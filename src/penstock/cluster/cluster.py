"""Several brokers on one log as one: who else is there, and what each of them has to know of the others."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from penstock._ext.hub.connection import Hub
from penstock._ext.match.partition import hash_text
from penstock.cluster.claims import Claim
from penstock.cluster.neighbours import Neighbours
from penstock.cluster.owners import Owners
from penstock.cluster.take_over import TakeOver
from penstock.core.errors import SettingsError
from penstock.core.logging import Throttled, get_logger
from penstock.core.tasks import TaskSet
from penstock.dispatch.moves import SessionMoves
from penstock.dispatch.turns import ShareTable
from penstock.services.model import ServiceListChanged
from penstock.services.names import notifications_topic
from penstock.services.node import ClusterNode
from penstock.services.topics import INSTANCE_CHANNELS
from penstock.sessions.records import RecordError
from penstock.sessions.registry import SessionRegistry
from penstock.storage.log.base import LogError

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


class Alone:
    """In the place of `Cluster` for a node that has its log for itself."""

    def must_claim(self, client_id: str) -> bool:
        return False

    async def claim(self, client_id: str, username: str | None) -> Claim:
        return Claim(client_id, 0, username)

    def settle(self, claim: Claim) -> None:
        pass


class Cluster:
    """Made where the log is one that other brokers may use. On the loop.

    `has_own_queues`: the queues of DEVICE clients are where no other broker can read them.
    """

    def __init__(
        self,
        hub: Hub,
        node: str,
        *,
        members: ClusterNode,
        registry: SessionRegistry,
        moves: SessionMoves,
        shares: ShareTable,
        neighbours: Neighbours,
        owners: Owners,
        take_over: TakeOver,
        adopt_after: float,
        has_own_queues: bool,
    ) -> None:
        self._hub = hub
        self._node = node
        self._members = members
        self._registry = registry
        self._moves = moves
        self._shares = shares
        self._neighbours = neighbours
        self._owners = owners
        self._take_over = take_over
        # A broker that is started again has its sessions for itself until then.
        self._adopt_after = adopt_after
        self._has_own_queues = has_own_queues
        self._absent: dict[str, float] = {}
        self._is_open = False
        self._tasks = TaskSet()
        self._warnings = Throttled(log, interval=10.0)
        hub.join(number_of(node))
        members.partitions.listen(ServiceListChanged, self._on_members)

    # ---- life ----

    async def start(self) -> None:
        """Before retained messages and sessions are restored: what others change from now on is read from the log."""
        if await self._members.joined(JOIN_SECONDS) and self._members.others():
            await self._moves.mark()

    async def open(self) -> None:
        """Everything is restored; when it returns, clients may come."""
        opening = self._tasks.spawn(self._open())
        await asyncio.wait([opening], timeout=JOIN_SECONDS)

    async def _open(self) -> None:
        await self._patiently(self._shares.start)
        self._neighbours.open_shares()
        for session in self._registry.sessions():
            for topic_filter, _, _ in self._hub.trie.subscriptions(session):
                if topic_filter.startswith(b"$share/"):
                    self._shares.joined(topic_filter)
        await self._patiently(self._take_over.start)
        self._neighbours.open()
        self._is_open = True
        await self._follow_members()
        self._tasks.spawn(self._look_for_the_lost())

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
        self._neighbours.close()
        self._tasks.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._take_over.stop()
                await self._shares.stop()

    # ---- members ----

    def _on_members(self, _: ServiceListChanged) -> None:
        if self._is_open:
            self._tasks.spawn(self._follow_members())

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
            await self._patiently(self._moves.join)
        self._hub.spread(bool(self._members.others()))
        self._shares.members_changed()

    async def _look_for_the_lost(self) -> None:
        """Sessions of a broker that has been away for a while are taken up by the first of the others."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            others = self._members.others()
            now = time.monotonic()
            lost = self._owners.nodes() - {self._node, "", *others}
            self._absent = {name: self._absent.get(name, now) for name in lost}
            if others and others[0] < self._node:
                continue
            for name, since in list(self._absent.items()):
                if now - since < self._adopt_after:
                    continue
                try:
                    count = await self._take_over.adopt_all(name)
                    log.warning("the sessions of a broker that is gone were taken up", node=name, sessions=count)
                except (LogError, RecordError, TimeoutError) as error:
                    self._warnings.warning(
                        "the sessions of a broker that is gone cannot be taken up yet", error=str(error)
                    )

    # ---- for the front-ends ----

    def must_claim(self, client_id: str) -> bool:
        self._take_over.came(client_id)
        return self._is_open and self._take_over.must_claim(client_id)

    async def claim(self, client_id: str, username: str | None) -> Claim:
        return await self._take_over.claim(client_id, username)

    def settle(self, claim: Claim) -> None:
        self._take_over.settle(claim)

    def counters(self) -> dict[str, int | float]:
        return self._take_over.counters()
