"""A consumer that the broker serves, as a member of a group: it commits what is acknowledged."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.subscribers.query import consumer as query_consumer
from penstock.subscribers.query.consumer import QueryConsumer, QueryTerms, Rows
from penstock.subscribers.query.ports import Identity
from penstock_client import wire
from penstock_client.errors import StaleEpoch
from tests.support.machine.waiting import until


class Outlet:
    """Of a client that is connected, takes everything and acknowledges what a test says."""

    is_connected = has_room = acknowledges = True

    def __init__(self, on_news: Callable[[], None]) -> None:
        self.acked: list[int] = []

    def send(self, rows: Rows, token: int) -> bool:
        return True

    def take_acked(self) -> list[int]:
        acked, self.acked = self.acked, []
        return acked

    def close(self) -> None:
        pass


class Service:
    """Partitions 0 and 1 are the member's, until a commit is refused: then 0 is another's."""

    def __init__(self) -> None:
        self.epoch = 1
        self.committed: list[tuple[str, int, int]] = []
        self.asked_by: list[Identity] = []

    async def ends(self) -> dict[int, int]:
        return {}

    async def handle(self, who: Identity, method: str, request: Any) -> Any:
        self.asked_by.append(who)
        if method == "fetch":
            await asyncio.sleep(3600)
        if method == "commit":
            if self.epoch == 1:
                self.epoch = 2
                raise StaleEpoch("partition 0 is another's")
            self.committed += request.offsets
        if method in ("subscribe", "heartbeat"):
            return self._assignment()
        return None

    def _assignment(self) -> wire.Assignment:
        parts = [wire.Partition("t", number, 5, 0, 5, 5) for number in range(self.epoch - 1, 2)]
        return wire.Assignment("c", self.epoch, "ready", parts, ["t"], {})


def open_consumer(service: Any, who: Identity, offset: str) -> QueryConsumer:
    terms = QueryTerms("g", "t", offset)
    return QueryConsumer(service, who, "mqtt:1", terms=terms, outlet=Outlet, on_refused=lambda _: None)


def test_a_commit_that_was_refused_for_one_partition_is_made_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_consumer, "HEARTBEAT_SECONDS", 0.01)

    async def work() -> None:
        service: Any = Service()
        member = open_consumer(service, Identity(None, "c"), "latest")
        await member.join()
        for part in member._parts.values():  # one message of each is under way, and acknowledged
            part.under_way.append((part.number, 7))
            member._part_of[part.number] = part
            part.position = 7
        outlet: Any = member._outlet
        outlet.acked = [0, 1]
        member.start()
        member.wake()
        await until(lambda: service.committed == [("t", 1, 7)])
        await member.end(leaves=False)

    asyncio.run(work())


def test_rights_are_those_of_the_whole_client_id() -> None:
    """A longer id must not pass for the one that it begins with: [[data]] entries and %c name client ids."""

    async def work() -> None:
        service: Any = Service()
        member = open_consumer(service, Identity("u", "c" * 300), "earliest")
        await member.join()
        assert {who.client_id for who in service.asked_by} == {"c" * 300}
        await member.end(leaves=False)

    asyncio.run(work())
