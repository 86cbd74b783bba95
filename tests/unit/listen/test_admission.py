"""Who may still come in."""

from __future__ import annotations

import resource

import pytest

from penstock.listen.admission import Admission
from penstock.operate.http.connections import MOST_CONNECTIONS, connection_limit
from penstock.settings.model import LimitSettings, ListenerSettings


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_the_limit_of_all_connections():
    admission = Admission(LimitSettings(max_connections=2))
    assert [admission.try_admit("a"), admission.try_admit("b"), admission.try_admit("a")] == [None, None, "connections"]
    admission.release("b")
    assert admission.try_admit("a") is None
    assert admission.connections == 2
    assert admission.counters() == {"connections_refused_connections": 1}


def test_the_limit_of_one_listener_leaves_room_on_the_others():
    listeners = [ListenerSettings(name="public", max_connections=1), ListenerSettings(name="inside")]
    admission = Admission(LimitSettings(), listeners)
    assert admission.try_admit("public") is None
    assert admission.try_admit("public") == "listener_connections"
    assert admission.try_admit("inside") is None
    admission.release("public")
    assert admission.try_admit("public") is None


def test_the_rate_is_an_average_with_a_burst_of_one_second():
    clock = Clock()
    admission = Admission(LimitSettings(connect_rate=10), clock=clock)
    assert [admission.try_admit("a") for _ in range(11)] == [None] * 10 + ["rate"]
    clock.now += 0.1
    assert [admission.try_admit("a") for _ in range(2)] == [None, "rate"]
    clock.now += 3600
    assert [admission.try_admit("a") for _ in range(11)] == [None] * 10 + ["rate"]
    assert admission.refused["rate"] == 3


def test_no_rate_is_no_limit():
    admission = Admission(LimitSettings(), clock=Clock())
    assert {admission.try_admit("a") for _ in range(1000)} == {None}


def test_who_is_refused_for_another_reason_takes_no_token():
    clock = Clock()
    admission = Admission(LimitSettings(max_connections=1, connect_rate=2), clock=clock)
    assert admission.try_admit("a") is None
    assert admission.try_admit("a") == "connections"
    admission.release("a")
    assert admission.try_admit("a") is None


def test_new_limits_put_nobody_out():
    admission = Admission(LimitSettings())
    for _ in range(3):
        admission.try_admit("a")
    admission.configure(LimitSettings(max_connections=2), [])
    assert admission.connections == 3
    assert admission.try_admit("a") == "connections"


@pytest.mark.parametrize("cause", ["tls_handshake", "proxy_header"])
def test_what_a_listener_refuses_is_counted_here_too(cause):
    admission = Admission(LimitSettings())
    admission.count_refused(cause)
    assert admission.counters() == {f"connections_refused_{cause}": 1}
    assert admission.connections == 0


def test_a_system_without_a_limit_of_descriptors(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert Admission(LimitSettings()).try_admit("a", 100_000) is None
    assert connection_limit() == MOST_CONNECTIONS
