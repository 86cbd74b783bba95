"""An MQTT client as a member of a group: what is acknowledged is committed, whatever happens to its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.subscribers.query import mqtt_member as query_member
from penstock.subscribers.query.mqtt_member import QueryMember, Terms
from penstock.subscribers.query.ports import Identity
from penstock_client import wire
from penstock_client.errors import StaleEpoch
from tests.support.machine.waiting import until


class Courier:
    """Of a client that is connected, takes everything and acknowledges what a test says."""

    is_connected = has_room = True
    qos = 1

    def __init__(self, session: object, on_news: Callable[[], None], **_: object) -> None:
        self.acked: list[int] = []

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


def test_a_commit_that_was_refused_for_one_partition_is_made_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_member, "Courier", Courier)
    monkeypatch.setattr(query_member, "HEARTBEAT_SECONDS", 0.01)

    async def work() -> None:
        service: Any = Service()
        session: Any = SimpleNamespace(client_id="c", username=None, identity=None, version=5)
        member = QueryMember(service, session, "g", "t", terms=Terms(1, 0, "latest"), on_refused=lambda _: None)
        await member.join()
        for part in member._parts.values():  # one message of each is under way, and acknowledged
            part.under_way.append((part.number, 7))
            member._part_of[part.number] = part
            part.position = 7
        courier: Any = member._courier
        courier.acked = [0, 1]
        member.start()
        member.wake()
        await until(lambda: service.committed == [("t", 1, 7)])
        await member.end(leaves=False)

    asyncio.run(work())


def test_rights_are_those_of_the_whole_client_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer id must not pass for the one that it begins with: [[data]] entries and %c name client ids."""
    monkeypatch.setattr(query_member, "Courier", Courier)

    async def work() -> None:
        service: Any = Service()
        session: Any = SimpleNamespace(client_id="c" * 300, username="u", identity=None, version=5)
        member = QueryMember(service, session, "g", "t", terms=Terms(1, 0, "earliest"), on_refused=lambda _: None)
        await member.join()
        assert {who.client_id for who in service.asked_by} == {"c" * 300}
        await member.end(leaves=False)

    asyncio.run(work())
