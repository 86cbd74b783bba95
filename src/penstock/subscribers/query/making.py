"""Puts the service together, for one node or for a cluster; the composition root gives it what it stands on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.core.ports import Scheduler
from penstock.services.node import ClusterNode
from penstock.storage.log.base import Log
from penstock.storage.state.base import StateStore
from penstock.storage.state.topic_tail import OnChange, StateTail
from penstock.subscribers.query.catalogue import Catalogue
from penstock.subscribers.query.execution import Infer, LocalExecutor, OnTable, announce_nothing
from penstock.subscribers.query.groups.coordinator import GroupCoordinator, Refusal
from penstock.subscribers.query.groups.forwarding import ClusterCoordinator, ClusterExecutor
from penstock.subscribers.query.groups.limits import GroupSettings
from penstock.subscribers.query.groups.offsets import OffsetBook, OnNeedingMore
from penstock.subscribers.query.groups.peers import Peers
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.ports import Coordinator, Fetcher, Identity, Progress, Source
from penstock.subscribers.query.privileges import Access, Privileges, refusal
from penstock.subscribers.query.service import DataService, Executor
from penstock.subscribers.query.stored import MakeTail, Stored


class Neighbours(NamedTuple):
    """What a node of a cluster needs to work with the others."""

    log: Log
    node: ClusterNode
    name: str
    prefix: str = ""


class Parts(NamedTuple):
    service: DataService
    progress: Progress
    counters: Callable[[], dict[str, int]]
    stored: Stored
    book: OffsetBook
    calls: Callable[[], dict[str, int | float]] = dict
    """Counters of the calls to other nodes."""


def make_service(
    store: StateStore,
    access: Access,
    source: Source,
    fetcher: Fetcher,
    scheduler: Scheduler,
    *,
    settings: GroupSettings | None = None,
    neighbours: Neighbours | None = None,
    infer: Infer | None = None,
    is_taken: Callable[[str], bool] = lambda _: False,
    errors_of: Callable[[Plan], int] = lambda _: 0,
    on_table: OnTable = announce_nothing,
    on_needing_more: OnNeedingMore | None = None,
    clock: Callable[[], float] = time.monotonic,
    wall_clock: Callable[[], float] = time.time,
) -> Parts:
    """`neighbours` where other nodes may use the same log; `is_taken`: names of MQTT shared subscriptions."""
    stored = Stored(store, None if neighbours is None else _tail_of(neighbours))
    catalogue = Catalogue(stored)
    privileges = Privileges(access, stored)
    book = OffsetBook(
        stored,
        wall_clock=wall_clock,
        node="" if neighbours is None else neighbours.name,
        is_mine=None if neighbours is None else neighbours.node.owns,
        on_needing_more=on_needing_more,
    )
    refuse = _refusal_of(catalogue, privileges)
    local = GroupCoordinator(
        catalogue, refuse, source, book, scheduler, settings=settings, clock=clock, wall_clock=wall_clock
    )
    coordinator: Coordinator = local
    peers = None
    if neighbours is not None:
        peers = Peers(neighbours.log, neighbours.node, neighbours.name)
        coordinator = ClusterCoordinator(local, stored, peers, clock=clock)
    local_executor = LocalExecutor(
        catalogue,
        privileges,
        coordinator,
        book,
        infer=infer,
        is_taken=is_taken,
        errors_of=errors_of,
        on_table=on_table,
        wall_clock=wall_clock,
    )
    executor: Executor = local_executor if peers is None else ClusterExecutor(local_executor, stored, peers)
    service = DataService(
        stored=stored,
        catalogue=catalogue,
        privileges=privileges,
        coordinator=coordinator,
        executor=executor,
        source=source,
        fetcher=fetcher,
    )
    return Parts(service, local, local.counters, stored, book, dict if peers is None else peers.counters)


def _refusal_of(catalogue: Catalogue, privileges: Privileges) -> Refusal:
    def refuse(who: Identity, name: str) -> str | None:
        topic = catalogue.topic(name)
        owner = None if topic is None else topic.owner
        return None if privileges.may(who, "subscribe", name, owner) else refusal(who, "subscribe", name)

    return refuse


def _tail_of(neighbours: Neighbours) -> MakeTail:
    def make(tables: Sequence[str], on_change: OnChange) -> StateTail:
        reader = f"data subscription of {neighbours.name}"
        return StateTail(neighbours.log, tables, reader, on_change, prefix=neighbours.prefix)

    return make
