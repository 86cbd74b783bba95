"""Consumer groups in a cluster. Each group has one coordinator, the node that owns its name; requests that come to
another node are passed on.

    consumer ── ask ──▶ node A ── penstock.services.rpc ──▶ node B, the group's owner
                        keeps what the consumer had subscribed to, and its latest assignment

When B is gone, C owns the group: it reads from the store how far the group is, and does not know the consumer. A sees
that another instance answers than the one it knew, subscribes for the consumer again and passes on that answer: nobody
but the log notices. Rows are read at the node the consumer is connected to: it checks the ownership by the assignment
it has passed on last, which is as old as the consumer's latest question; commits are always checked by the owner.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.core.logging import get_logger
from penstock.core.signal import Signal
from penstock.subscribers.query.execution import LocalExecutor, parse
from penstock.subscribers.query.groups.coordinator import GroupCoordinator, new_consumer_id
from penstock.subscribers.query.groups.peers import NotTheOwner, PeerError, Peers
from penstock.subscribers.query.ports import Identity
from penstock.subscribers.query.stored import Stored
from penstock_client import wire
from penstock_client.errors import NotAllowed, NotAMember, StaleEpoch

log = get_logger("penstock.datasub")

CATALOGUE = "penstock.datasub.catalogue"
"""What the node is called by that changes the catalogue."""
FRESH_SECONDS = 5.0
"""How old an assignment may be by which a fetch is let through; a consumer asks every second."""
NEVER = float("-inf")
MOST_REMEMBERED = 100_000

Rows = list[list[object]]


class Dropping(msgspec.Struct):
    group: str
    topic: str
    is_forced: bool


@dataclass(slots=True, eq=False)
class _Known:
    """A consumer that is connected here."""

    who: Identity
    instance: str = ""
    subscribed: wire.Subscribe | None = None
    assignment: wire.Assignment | None = None
    confirmed_at: float = 0.0


class ClusterCoordinator:
    """See Coordinator in ports.py."""

    def __init__(
        self, local: GroupCoordinator, stored: Stored, peers: Peers, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._local = local
        self._stored = stored
        self._peers = peers
        self._clock = clock
        self._known: dict[tuple[str, str], _Known] = {}
        self._taken: dict[str, asyncio.Task[None]] = {}
        self.on_changed = Signal[[str, str]]()
        local.on_changed.listen(self._on_changed)
        self.access_changed = local.access_changed
        serve = peers.serve
        serve("subscribe", self._owned(local.subscribe), wire.Subscribe)
        serve("join", self._owned(lambda who, request: local.subscribe(who, request, is_new=True)), wire.Subscribe)
        serve("ask", self._owned(local.ask), wire.Ask)
        serve("heartbeat", self._owned(local.heartbeat), wire.Heartbeat)
        serve("commit", self._owned(local.commit), wire.Commit)
        serve("committed", self._owned(lambda _, request: local.committed(request)), wire.Positions)
        serve("leave", self._owned(local.leave), wire.Leave)
        serve("drop_group", self._owned(self._drop_here), Dropping)
        serve("consumers", lambda _, __: local.consumers(), None)
        serve("subscriptions", lambda _, __: local.subscriptions(), None)
        serve("groups_of", lambda _, topic: local.groups_of(topic), str)
        peers.on_owners_changed(self._on_owners)

    async def start(self) -> None:
        await self._peers.start()
        await self._local.start()

    async def stop(self) -> None:
        await self._local.stop()
        await self._peers.stop()

    # ---- as the owner ----

    def _owned(self, handler: Callable[[Identity, Any], Awaitable[Any]]) -> Callable[[Identity, Any], Awaitable[Any]]:
        async def handle(who: Identity, request: Any) -> Any:
            await self._take_up(request.group)
            return await handler(who, request)

        return handle

    async def _take_up(self, group: str) -> None:
        """Before the first request for a group: whatever another node has committed for it has been read."""
        if self._peers.owner_of(group) != self._peers.name:
            raise NotTheOwner(f"node {self._peers.name} is not the coordinator of group {group}")
        task = self._taken.get(group)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._taken[group] = asyncio.get_running_loop().create_task(self._stored.catch_up())
        await asyncio.shield(task)

    def _on_owners(self) -> None:
        gone = [name for name in {*self._taken, *self._local.groups} if self._peers.owner_of(name) != self._peers.name]
        for name in gone:
            self._taken.pop(name, None)
            self._local.release(name)

    def _drop_here(self, _: Identity, request: Dropping) -> Awaitable[None]:
        return self._local.drop_group(request.group, request.topic, is_forced=request.is_forced)

    def topic_dropped(self, topic: str) -> None:
        self._local.topic_dropped(topic)
        self._doubt(topic)

    def topic_reloaded(self, topic: str) -> None:
        self._local.topic_reloaded(topic)
        self._doubt(topic)

    def _doubt(self, topic: str) -> None:
        """Also consumers of groups that are coordinated elsewhere hear of it at once."""
        for key, known in list(self._known.items()):
            if known.assignment is not None and topic in known.assignment.topics:
                self._on_changed(*key)

    def _on_changed(self, group: str, consumer: str) -> None:
        """By the coordinator, which is here: what was passed on last does not count any more."""
        known = self._known.get((group, consumer))
        if known is not None:
            known.confirmed_at = NEVER
        self.on_changed(group, consumer)

    # ---- passing on ----

    async def _call(self, method: str, who: Identity, request: Any, result: Any = None) -> tuple[Any, str]:
        """To the owner of the group. It may arrive twice: each request may be repeated."""
        return await self._peers.call_owner(request.group, method, who, request, result)

    async def _simple(self, method: str, who: Identity, request: Any, result: Any = None) -> Any:
        try:
            return (await self._call(method, who, request, result))[0]
        except PeerError as error:
            raise error.error from None

    async def subscribe(self, who: Identity, request: wire.Subscribe) -> wire.Assignment:
        method = "subscribe"
        if not request.consumer:  # named here, so that a request that is sent again joins once
            method = "join"
            request = msgspec.structs.replace(request, consumer=new_consumer_id())
        try:
            assignment, instance = await self._call(method, who, request, wire.Assignment)
        except PeerError as error:
            raise error.error from None
        key = request.group, request.consumer
        if request.topics:
            known = self._remember(key, who)
            known.who, known.instance, known.subscribed = who, instance, request
            known.assignment, known.confirmed_at = assignment, self._clock()
        else:
            self._known.pop(key, None)
        self.on_changed(*key)
        result: wire.Assignment = assignment
        return result

    def _remember(self, key: tuple[str, str], who: Identity) -> _Known:
        known = self._known.pop(key, None) or _Known(who)
        self._known[key] = known  # those heard last are at the end
        while len(self._known) > MOST_REMEMBERED:
            del self._known[next(iter(self._known))]
        return known

    async def ask(self, who: Identity, request: wire.Ask) -> wire.Assignment | None:
        return await self._as_member("ask", who, request)

    async def heartbeat(self, who: Identity, request: wire.Heartbeat) -> wire.Assignment | None:
        return await self._as_member("heartbeat", who, request)

    async def _as_member(
        self, method: str, who: Identity, request: wire.Ask | wire.Heartbeat
    ) -> wire.Assignment | None:
        key = request.group, request.consumer
        try:
            assignment, instance = await self._call(method, who, request, wire.Assignment | None)
        except PeerError as error:
            return await self._rejoin(key, who, error)
        known = self._remember(key, who)
        known.instance, known.confirmed_at = instance, self._clock()
        if assignment is not None:
            is_new = known.assignment is None or known.assignment.epoch != assignment.epoch
            known.assignment = assignment
            if is_new:
                self.on_changed(*key)
        result: wire.Assignment | None = assignment
        return result

    async def _rejoin(self, key: tuple[str, str], who: Identity, error: PeerError) -> wire.Assignment:
        """If the coordinator has changed it cannot know the consumer. One that it has removed is told so."""
        known = self._known.get(key)
        is_lost = isinstance(error.error, NotAMember)
        if not is_lost or known is None or known.subscribed is None or known.instance == error.instance:
            if is_lost:
                self._known.pop(key, None)
                self.on_changed(*key)
            raise error.error from None
        log.info("a consumer goes to the new coordinator of its group", group=key[0], consumer=key[1])
        return await self.subscribe(who, known.subscribed)

    async def commit(self, who: Identity, request: wire.Commit) -> None:
        try:
            await self._call("commit", who, request)
        except PeerError as error:
            await self._rejoin((request.group, request.consumer), who, error)
            raise StaleEpoch(f"group {request.group} has a new coordinator: ask for the assignment") from None

    async def committed(self, request: wire.Positions) -> list[int | None]:
        result: list[int | None] = await self._simple("committed", Identity(), request, list[int | None])
        return result

    async def leave(self, who: Identity, request: wire.Leave) -> None:
        self._known.pop((request.group, request.consumer), None)
        self.on_changed(request.group, request.consumer)
        await self._simple("leave", who, request)

    async def check_fetch(self, who: Identity, request: wire.Fetch) -> None:
        key = request.group, request.consumer
        known = self._known.get(key)
        current = None if known is None else known.assignment
        is_old = known is None or self._clock() - known.confirmed_at > FRESH_SECONDS
        if current is None or is_old or request.epoch > current.epoch:
            await self.ask(who, wire.Ask(request.consumer, request.group, -1))
            known = self._known[key]
            current = known.assignment
        if known is None or current is None:
            raise StaleEpoch("ask for the assignment")
        if known.who.user != who.user:
            raise NotAllowed(f"consumer {request.consumer} belongs to another user")
        if request.topic in current.refused:
            raise NotAllowed(current.refused[request.topic])
        owned = any(each.topic == request.topic and each.partition == request.partition for each in current.partitions)
        if request.epoch != current.epoch or not owned:
            raise StaleEpoch(
                f"partition {request.partition} of {request.topic} is not assigned to consumer {request.consumer} in "
                f"epoch {request.epoch} (now {current.epoch}): ask for the assignment"
            )

    # ---- of all nodes ----

    async def consumers(self) -> Rows:
        return await self._collect("consumers", await self._local.consumers())

    async def subscriptions(self) -> Rows:
        return await self._collect("subscriptions", await self._local.subscriptions())

    async def _collect(self, method: str, rows: Rows) -> Rows:
        """A node that does not answer is left out."""
        others = self._peers.others()
        calls = [self._peers.call(name, method, Identity(), None, Rows) for name in others]
        for name, answer in zip(others, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(answer, BaseException):
                log.warning("a node is missing in a view", node=name, error=str(answer))
            else:
                rows = rows + answer[0]
        return rows

    async def groups_of(self, topic: str) -> list[str]:
        calls = [self._peers.call(name, "groups_of", Identity(), topic, list[str]) for name in self._peers.others()]
        found = set(await self._local.groups_of(topic))
        try:
            for names, _ in await asyncio.gather(*calls):
                found.update(names)
        except PeerError as error:
            raise error.error from None
        return sorted(found)

    async def drop_group(self, group: str, topic: str, *, is_forced: bool) -> None:
        await self._simple("drop_group", Identity(), Dropping(group, topic, is_forced))


class ClusterExecutor:
    """Statements that change something are run by one node, one after the other; everybody hears of it."""

    def __init__(self, local: LocalExecutor, stored: Stored, peers: Peers) -> None:
        self._local = local
        self._stored = stored
        self._peers = peers
        peers.serve("execute", self._execute_here, str)

    async def _execute_here(self, who: Identity, sql: str) -> wire.Table:
        if self._peers.owner_of(CATALOGUE) != self._peers.name:
            raise NotTheOwner(f"node {self._peers.name} does not change the catalogue")
        await self._stored.catch_up()
        return await self._local.execute(sql, who)

    async def execute(self, sql: str, who: Identity) -> wire.Table:
        statement = await parse(sql)
        if not self._local.is_change(statement):
            return await self._local.run(statement, who)
        try:
            table, _ = await self._peers.call_owner(CATALOGUE, "execute", who, sql, wire.Table, is_repeatable=False)
        except PeerError as error:
            raise error.error from None
        await self._stored.catch_up()
        result: wire.Table = table
        return result
