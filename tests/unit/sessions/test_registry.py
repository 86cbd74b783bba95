"""When do sessions end, and when is a will due? Driven by a clock of the test's own."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest

from penstock._ext.hub.connection import Hub, Session
from penstock.mqtt.refusals import disconnect
from penstock.sessions.registry import NEVER, Opening, SessionRegistry
from penstock.sessions.will import Will


class TestClock:
    """Runs what is due when the test lets time pass."""

    __test__ = False

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, TestTimer]] = []

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> TestTimer:
        timer = TestTimer(callback, args)
        heapq.heappush(self._due, (self.now + delay, len(self._due), timer))
        return timer

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.call_later(0, callback, *args)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, timer = heapq.heappop(self._due)
            timer.run()
        self.now = end


class TestTimer:
    __test__ = False

    def __init__(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._callback, self._args, self._is_cancelled = callback, args, False

    def cancel(self) -> None:
        self._is_cancelled = True

    def run(self) -> None:
        if not self._is_cancelled:
            self._callback(*self._args)


class World:
    """A registry and an observer of what is published: a session that keeps everything."""

    def __init__(self) -> None:
        self.clock = TestClock()
        self.hub = Hub(self.clock)
        self.registry = SessionRegistry(self.hub, self.clock, disconnect=disconnect)
        self.observer, _ = self.open("observer", expiry=NEVER)
        self.hub.trie.subscribe(self.observer, b"wills/#", 1)

    def open(
        self, client_id: str, *, clean: bool = True, expiry: int = 0, will: Will | None = None, user: str = ""
    ) -> tuple[Session, bool]:
        return self.registry.open(Opening(client_id, user or None, clean, expiry, will))

    def leave(self, session: Session, *, keep_will: bool = True) -> None:
        self.registry.leave(session, keep_will=keep_will)

    @property
    def wills(self) -> int:
        return self.observer.queued_messages


@pytest.fixture
def world() -> World:
    return World()


def will(delay: int = 0) -> Will:
    return Will("wills/a", b"gone", 1, False, b"", delay)


def test_a_session_without_expiry_ends_with_its_connection(world: World) -> None:
    session, present = world.open("a")
    assert not present
    world.leave(session)
    assert world.registry.get("a") is None
    assert world.open("a", clean=False)[1] is False


def test_a_session_ends_when_its_time_is_over_and_not_before(world: World) -> None:
    """[MQTT-3.1.2-23] [MQTT-4.1.0-2]"""
    session, _ = world.open("a", expiry=10)
    world.leave(session)
    world.clock.pass_time(9.9)
    assert world.registry.get("a") is session
    world.clock.pass_time(0.2)
    assert world.registry.get("a") is None
    assert world.registry.expired_total == 1


def test_coming_back_stops_the_clock(world: World) -> None:
    session, _ = world.open("a", expiry=10)
    world.leave(session)
    world.clock.pass_time(5)
    again, present = world.open("a", clean=False, expiry=10)
    assert again is session
    assert present
    world.clock.pass_time(100)
    assert world.registry.get("a") is session


def test_a_session_for_ever(world: World) -> None:
    session, _ = world.open("a", expiry=NEVER)
    world.leave(session)
    world.clock.pass_time(10_000_000)
    assert world.registry.get("a") is session


def test_clean_start_ends_what_was_there(world: World) -> None:
    """[MQTT-3.1.2-4] [MQTT3-3.1.2-6]"""
    session, _ = world.open("a", expiry=100)
    world.hub.trie.subscribe(session, b"x", 1)
    world.leave(session)
    again, present = world.open("a", clean=True, expiry=100)
    assert again is not session
    assert not present
    assert world.hub.trie.count(session) == 0


def test_another_user_does_not_get_the_messages_of_the_first(world: World) -> None:
    session, _ = world.open("a", expiry=100, user="alice")
    world.leave(session)
    again, present = world.open("a", clean=False, expiry=100, user="mallory")
    assert again is not session
    assert not present


def test_a_will_without_delay_is_published_at_once(world: World) -> None:
    session, _ = world.open("a", expiry=100, will=will())
    world.leave(session)
    assert world.wills == 1


def test_a_will_is_withdrawn_by_disconnect(world: World) -> None:
    """[MQTT-3.1.2-10] [MQTT-3.14.4-3]"""
    session, _ = world.open("a", expiry=100, will=will())
    world.leave(session, keep_will=False)
    world.clock.pass_time(1_000)
    assert world.wills == 0


def test_a_delayed_will_waits_and_is_published_once(world: World) -> None:
    session, _ = world.open("a", expiry=100, will=will(delay=5))
    world.leave(session)
    world.clock.pass_time(4.9)
    assert world.wills == 0
    world.clock.pass_time(1_000)
    assert world.wills == 1


def test_a_delayed_will_is_cancelled_by_coming_back(world: World) -> None:
    """[MQTT-3.1.3-9]"""
    session, _ = world.open("a", expiry=100, will=will(delay=5))
    world.leave(session)
    world.clock.pass_time(4)
    world.open("a", clean=False, expiry=100)
    world.clock.pass_time(1_000)
    assert world.wills == 0


@pytest.mark.parametrize("expiry", [3, 5])
def test_a_delayed_will_is_due_when_the_session_ends(world: World, expiry: int) -> None:
    """[MQTT-3.1.2-8]"""
    session, _ = world.open("a", expiry=expiry, will=will(delay=5))
    world.leave(session)
    world.clock.pass_time(expiry - 0.1)
    assert world.wills == 0
    world.clock.pass_time(0.2)
    assert world.wills == 1


def test_a_delayed_will_is_due_when_a_clean_start_ends_the_session(world: World) -> None:
    session, _ = world.open("a", expiry=100, will=will(delay=50))
    world.leave(session)
    world.open("a", clean=True, expiry=100)
    assert world.wills == 1


def test_messages_of_an_ended_session_are_counted_as_dropped(world: World) -> None:
    session, _ = world.open("a", expiry=10)
    world.hub.trie.subscribe(session, b"t", 1)
    world.leave(session)
    world.hub.publish("t", b"1", qos=1)
    assert session.queued_messages == 1
    world.clock.pass_time(11)
    counters = world.hub.counters_now()
    assert counters["messages_dropped_session_ended"] == 1
    assert counters["queued_messages"] == 0
