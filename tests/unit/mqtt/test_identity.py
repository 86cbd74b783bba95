"""A CONNECT with a client id of another user is reported, and not too often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penstock.access.refusals import REPORTS_PER_SECOND, Refusals
from penstock.mqtt import identity


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[dict[str, Any]] = []
        refusals = Refusals(lambda *_, **__: None, lambda *_, **__: None, lambda: self.now)
        recorder = SimpleNamespace(refused=lambda client_id, **details: self.events.append(details))
        self.front: Any = SimpleNamespace(refusals=refusals, events=recorder)
        self.connection: Any = SimpleNamespace(peer="127.0.0.1:5")

    def refuse(self, client_id: str = "c") -> None:
        identity.warn_forbidden(self.front, self.connection, client_id, "mallory")
        identity.warn_refused(self.front, self.connection, client_id, "mallory", None)


def test_events_are_limited_as_the_warnings_are(caplog) -> None:
    world = World()
    for _ in range(5):
        world.refuse()
    assert [event["cause"] for event in world.events] == ["client_id_rule", "foreign_identity"]
    assert len(caplog.records) == 2
    world.now += 11
    world.refuse()
    assert [event["count"] for event in world.events] == [1, 1, 5, 5]


def test_other_client_ids_are_no_way_around() -> None:
    world = World()
    for number in range(500):
        world.refuse(f"client{number}")
    assert len(world.events) == REPORTS_PER_SECOND
