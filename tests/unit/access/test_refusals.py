"""Is everything that is refused reported, and nothing too often?"""

from __future__ import annotations

from typing import Any

from penstock.access.refusals import REPORTS_PER_SECOND, Refusals


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.events: list[tuple[str, str, dict[str, Any]]] = []
        self.refusals = Refusals(self._note("denied"), self._note("refused"), lambda: self.now)

    def _note(self, kind: str) -> Any:
        return lambda client_id, **details: self.events.append((kind, client_id, details))

    def deny(self, client_id: str = "c", topic: bytes = b"a/b", held: int = 0) -> None:
        self.refusals.denied(
            "publish",
            topic,
            lambda: "rule 3 denies it",
            client_id=client_id,
            username="alice",
            address="127.0.0.1:5",
            held=held,
        )


def test_a_denial_names_client_user_address_topic_and_rule(caplog) -> None:
    world = World()
    world.deny()
    ((kind, client_id, details),) = world.events
    assert (kind, client_id, details["username"], details["address"]) == ("denied", "c", "alice", "127.0.0.1:5")
    assert (details["topic"], details["cause"], details["count"]) == ("a/b", "publish: rule 3 denies it", 1)
    assert "access denied" in caplog.text


def test_a_client_is_reported_once_in_a_while() -> None:
    world = World()
    for _ in range(5):
        world.deny()
    assert len(world.events) == 1
    world.now += 11
    world.deny(held=7)
    assert world.events[-1][2]["count"] == 1 + 4 + 7


def test_all_together_are_bounded() -> None:
    world = World()
    for number in range(1_000):
        world.deny(f"client{number}")
    assert len(world.events) == REPORTS_PER_SECOND
    assert world.refusals.held_back == 1_000 - REPORTS_PER_SECOND


def test_an_address_that_changes_its_client_id_is_one() -> None:
    world = World()
    for number in range(50):
        world.refusals.refused("bad user name or password", client_id=f"c{number}", address=f"127.0.0.1:{number}")
        world.now += 0.1
    assert len(world.events) == 1


def test_a_long_topic_is_cut() -> None:
    world = World()
    world.deny(topic=b"\xff" * 60_000)
    assert len(world.events[0][2]["topic"]) <= 256


def test_nothing_that_was_held_back_is_forgotten() -> None:
    """Neither what the hub held back for a report that was held back here, nor what the bound of all held back."""
    world = World()
    world.deny()
    world.deny(held=7)
    world.now += 11
    world.deny(held=2)
    assert world.events[-1][2]["count"] == 1 + (1 + 7) + 2
    world.now += 11
    for number in range(REPORTS_PER_SECOND):
        world.deny(f"client{number}")
    world.deny(held=5)
    world.now += 1
    world.deny()
    assert world.events[-1][1:] == ("c", world.events[-1][2])
    assert world.events[-1][2]["count"] == 1 + (1 + 5)
    assert world.refusals.held_back == 8 + 6
