"""Data subscription without a network and without a log: partitions, ends and the time are what a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any

from penstock._ext.match.acl import AclProgram
from penstock.access.acl_file import AclFile
from penstock.access.base import Subject
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.query.catalogue import QueryTopic
from penstock.subscribers.query.groups.coordinator import GroupCoordinator
from penstock.subscribers.query.groups.group import Group
from penstock.subscribers.query.groups.limits import GroupSettings
from penstock.subscribers.query.making import Parts, make_service
from penstock.subscribers.query.ports import Identity
from penstock_client import wire
from penstock_client.errors import Unavailable
from tests.support.machine.manual_clock import ManualClock

ALICE = Identity(user="alice", client_id="c1", address="127.0.0.1:5001")
BOB = Identity(user="bob", client_id="c2", address="127.0.0.1:5002")
OPERATOR = Identity(is_operator=True)
START = 1_800_000_000.0


class MemorySource:
    """Begin and end of each partition."""

    def __init__(self, partitions: int = 4) -> None:
        self.ends = dict.fromkeys(range(partitions), (0, 0))
        self.failure = ""

    async def partitions(self) -> list[int]:
        if self.failure:
            raise Unavailable(self.failure)
        return sorted(self.ends)

    async def watermarks(self, partition: int) -> tuple[int, int]:
        if self.failure:
            raise Unavailable(self.failure)
        return self.ends[partition]

    async def offsets_at(self, places: Collection[tuple[int, int]]) -> dict[tuple[int, int], int]:
        return {(partition, ms): min(ms, self.ends[partition][1]) for partition, ms in places}

    def last_seen(self, partition: int) -> tuple[int, int] | None:
        return self.ends.get(partition)

    def write(self, count: int) -> None:
        """So many records to each partition."""
        self.ends = {number: (begin, end + count) for number, (begin, end) in self.ends.items()}


class NoRows:
    """A fetch finds nothing; `during` happens while it is parked. `woken` are groups and consumers."""

    def __init__(self) -> None:
        self.during: Callable[[], Awaitable[None]] | None = None
        self.woken: list[tuple[str, str]] = []

    def wake(self, group: str, consumer: str) -> None:
        self.woken.append((group, consumer))

    async def fetch(self, request: wire.Fetch, topic: QueryTopic) -> wire.Fetched:
        if self.during is not None:
            await self.during()
        return wire.Fetched(request.offset, 0, request.offset)


class Rules:
    """Access control with the rules of a document, or none."""

    def __init__(self, document: dict[str, Any] | None = None) -> None:
        self.file = None if document is None else AclFile.parse(document, "acl.toml")

    def is_open_to(self, subject: Subject) -> bool:
        return self.file is None

    def data_access(self, subject: Subject, action: str, topic: str) -> bool | None:
        return None if self.file is None else self.file.data_access(subject.client_id, subject.user, action, topic)

    def program_for(self, subject: Subject) -> AclProgram | None:
        return None if self.file is None else self.file.compile_for(subject.client_id, subject.user)


class DataWorld:
    """One node. `restart` is a crash: the store and the log stay."""

    def __init__(
        self, rules: dict[str, Any] | None = None, *, partitions: int = 4, settings: GroupSettings | None = None
    ) -> None:
        self.clock = ManualClock()
        self.source = MemorySource(partitions)
        self.store = MemoryStateStore()
        self.access = Rules(rules)
        self.fetcher = NoRows()
        self.settings = settings
        self.jump = 0.0  # of the wall clock
        self.parts = self._make()

    def _make(self) -> Parts:
        return make_service(
            self.store,
            self.access,
            self.source,
            self.fetcher,
            self.clock,
            settings=self.settings,
            clock=self.clock,
            wall_clock=lambda: START + self.clock.now + self.jump,
        )

    @property
    def service(self) -> Any:
        return self.parts.service

    @property
    def coordinator(self) -> GroupCoordinator:
        coordinator = self.parts.service.coordinator
        assert isinstance(coordinator, GroupCoordinator)
        return coordinator

    async def restart(self) -> None:
        await self.service.stop()
        self.parts = self._make()
        await self.service.start()

    def group(self, name: str = "g") -> Group:
        return self.coordinator.groups[name]

    async def pass_time(self, seconds: float, step: float = 0.5) -> None:
        """In steps, so that what a timer starts is done before the next one."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(min(step, end - self.clock.now))
            await settle()

    async def make_topics(self, *names: str) -> None:
        for name in names:
            await self.service.execute(f'CREATE TOPIC {name} AS SELECT ts, topic FROM "sensors/#"', ALICE)

    async def join(
        self, *topics: str, group: str = "g", who: Identity = ALICE, consumer: str = "", **options: Any
    ) -> wire.Assignment:
        """Subscribed; the rebalance is still to come."""
        request = wire.Subscribe(group, list(topics), consumer=consumer, **options)
        answer = await self.service.handle(who, "subscribe", request)
        assert isinstance(answer, wire.Assignment)
        return answer

    async def ask(
        self, consumer: str, epoch: int = -1, *, group: str = "g", who: Identity = ALICE
    ) -> wire.Assignment | None:
        answer = await self.service.handle(who, "ask", wire.Ask(consumer, group, epoch))
        assert answer is None or isinstance(answer, wire.Assignment)
        return answer

    async def ready(self, consumer: str, *, group: str = "g", who: Identity = ALICE) -> wire.Assignment:
        """The assignment after the rebalance that is due."""
        await self.pass_time(0.5)
        answer = await self.ask(consumer, group=group, who=who)
        assert answer is not None
        assert answer.state == "ready"
        return answer

    async def commit(
        self, assignment: wire.Assignment, *offsets: tuple[str, int, int], group: str = "g", who: Identity = ALICE
    ) -> None:
        request = wire.Commit(assignment.consumer, group, assignment.epoch, list(offsets))
        await self.service.handle(who, "commit", request)

    async def committed(self, *partitions: tuple[str, int], group: str = "g") -> list[int | None]:
        found = await self.service.handle(ALICE, "committed", wire.Positions(group, list(partitions)))
        assert isinstance(found, list)
        return found

    async def table(self, sql: str, who: Identity = ALICE) -> list[dict[str, Any]]:
        answer = await self.service.execute(sql, who)
        return [dict(zip(answer.columns, row, strict=True)) for row in answer.rows]


def numbers(assignment: wire.Assignment, topic: str = "hot") -> list[int]:
    return [each.partition for each in assignment.partitions if each.topic == topic]


async def settle() -> None:
    """Everything that can go on without time has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


def in_world(work: Callable[[DataWorld], Awaitable[None]], rules: dict[str, Any] | None = None, **options: Any) -> None:
    async def run() -> None:
        world = DataWorld(rules, **options)
        await world.service.start()
        try:
            await work(world)
        finally:
            await world.service.stop()

    asyncio.run(run())
