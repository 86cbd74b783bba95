"""Members and claims as a function of the heartbeats."""

from __future__ import annotations

from penstock.services.membership import Heartbeat, MemberTable
from penstock.services.model import ServiceInfo, ServiceType


def beat(name: str, *claims: str, incarnation: str = "1") -> Heartbeat:
    return Heartbeat(ServiceInfo(service_id=name, service_types=frozenset([ServiceType.TB_CORE])), incarnation, claims)


def ids(table: MemberTable) -> list[str]:
    return [info.service_id for info in table.alive()]


def test_the_first_claimant_holds_until_it_gives_up() -> None:
    table = MemberTable(10)
    table.put("b", beat("b", "p0"), 0)
    table.put("a", beat("a", "p0", "p1"), 1)
    assert (table.holder("p0"), table.holder("p1"), table.holder("p2")) == ("b", "a", None)
    table.put("b", beat("b", "p0"), 2)
    assert table.holder("p0") == "b"
    table.put("b", beat("b"), 3)
    assert table.holder("p0") == "a"
    table.put("b", beat("b", "p0"), 4)
    assert table.holder("p0") == "a"


def test_a_departure_and_a_restart_free_the_claims() -> None:
    table = MemberTable(10)
    table.put("a", beat("a", "p0"), 0)
    table.put("b", beat("b", "p0"), 0)
    table.put("a", beat("a", "p0", incarnation="2"), 1)
    assert table.holder("p0") == "b"
    table.remove("b")
    assert table.holder("p0") == "a"
    table.remove("a")
    table.remove("a")
    assert table.holder("p0") is None


def test_the_silent_are_not_listed_but_keep_their_claims_until_they_are_expelled() -> None:
    table = MemberTable(10)
    table.put("a", beat("a", "p0"), 0)
    table.put("b", beat("b", "p0"), 5)
    assert table.silent(10) == []
    assert table.silent(11) == ["a"]
    assert ids(table) == ["b"]
    assert table.holder("p0") == "a"
    table.put("a", beat("a", "p0"), 12)
    assert ids(table) == ["a", "b"]


def test_an_old_record_is_no_sign_of_life() -> None:
    table = MemberTable(10)
    table.put("a", beat("a", "p0"), 0, age=11)
    table.put("b", beat("b"), 0, age=9)
    assert ids(table) == ["b"]
    assert table.holder("p0") == "a"


def test_time_is_given_to_all_after_blindness() -> None:
    table = MemberTable(10)
    table.put("a", beat("a"), 0)
    table.give_time(100)
    assert table.silent(105) == []
