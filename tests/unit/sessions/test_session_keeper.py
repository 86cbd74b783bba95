"""What is written when, who waits for it, and what happens when the store says no. With a clock of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._ext.hub.connection import Hub, Session
from penstock._ext.wire.packets import Reason
from penstock.mqtt.refusals import disconnect
from penstock.sessions.keeper import RETRY_SECONDS, WILL_SECONDS, SessionKeeper
from penstock.sessions.records import (
    SESSIONS,
    SUBSCRIPTIONS,
    WILLS,
    decode_session,
    decode_subscriptions,
    decode_will,
)
from penstock.sessions.registry import NEVER, Opening, SessionRegistry
from penstock.sessions.will import Will
from penstock.storage.state.base import Change, OnRecord, OnStored, StoreError
from tests.support.machine.manual_clock import ManualClock

START = 1_700_000_000.0


class HeldStore:
    """Keeps what it is given waiting until the test lets it through."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {SESSIONS: {}, SUBSCRIPTIONS: {}, WILLS: {}}
        self.waiting: list[tuple[list[Change], OnStored | None]] = []
        self.writes = 0

    async def load(self, table: str, on_record: OnRecord) -> int:
        for key, value in self.tables[table].items():
            on_record(key, value)
        return len(self.tables[table])

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        self.waiting.append((list(changes), on_done))

    def commit(self, failure: str = "") -> list[Change]:
        """What waits is stored, or fails; gives it."""
        waiting, self.waiting = self.waiting, []
        done = [change for changes, _ in waiting for change in changes]
        for table, key, value in done if not failure else []:
            self.writes += 1
            if value is None:
                self.tables[table].pop(key, None)
            else:
                self.tables[table][key] = value
        for _, on_done in waiting:
            if on_done is not None:
                on_done(StoreError(failure) if failure else None)
        return done

    async def flush(self) -> None:
        self.commit()

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def check(self) -> bool | str:
        return True

    async def close(self) -> None: ...


class Clock(ManualClock):
    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.call_later(0.0, callback, *args)


class World:
    """A registry with its keeper; `restarted` is the same broker after a crash."""

    def __init__(self, store: HeldStore | None = None, now: float = 0.0, node: str = "") -> None:
        self.clock = Clock()
        self.clock.now = now
        self.store = store or HeldStore()
        self.hub = Hub(self.clock)
        self.keeper = SessionKeeper(
            self.store, self.hub.trie, self.clock, clock=lambda: START + self.clock.now, node=node
        )
        self.registry = SessionRegistry(self.hub, self.clock, self.keeper, disconnect=disconnect)
        self.restored = asyncio.run(self.registry.restore(lambda subject: None))

    def restarted(self, after: float = 0.0) -> World:
        return World(self.store, self.clock.now + after)

    def open(self, client_id: str, *, clean: bool = False, expiry: int = 100, **rest: Any) -> tuple[Session, bool]:
        will = rest.pop("will", None)
        return self.registry.open(Opening(client_id, rest.pop("user", None), clean, expiry, will, **rest))

    def subscribe(self, session: Session, *filters: bytes) -> None:
        for topic_filter in filters:
            self.hub.trie.subscribe(session, topic_filter, 1)
        self.keeper.save_subscriptions(session)

    def run(self, failure: str = "") -> list[Change]:
        """To the end of the iteration, and what the store then does with what it got."""
        self.clock.advance(0)
        return self.store.commit(failure)

    def filters(self, client_id: str) -> set[bytes]:
        """In the store."""
        value = self.store.tables[SUBSCRIPTIONS].get(client_id.encode())
        return set() if value is None else {name for name, _, _ in decode_subscriptions(client_id, value)}

    def observe(self) -> Session:
        observer, _ = self.open("observer", expiry=NEVER)
        self.subscribe(observer, b"wills/#")
        self.run()
        return observer


@pytest.fixture
def world() -> World:
    return World()


def will(delay: int = 0) -> Will:
    return Will("wills/a", b"gone", 1, False, b"", delay)


def test_clean_sessions_are_never_written(world: World) -> None:
    session, _ = world.open("a", expiry=0)
    world.hub.trie.subscribe(session, b"t", 1)
    world.keeper.save_subscriptions(session)
    assert not world.keeper.must_wait("a")
    told: list[object] = []
    world.keeper.wait(told.append)
    assert told == [None], "at once"
    world.registry.leave(session, keep_will=True)
    assert world.run() == []


def test_changes_of_one_iteration_are_one_record(world: World) -> None:
    session, _ = world.open("a")
    for number in range(10):
        world.subscribe(session, b"t/%d" % number)
    assert [(table, key) for table, key, _ in world.run()] == [(SESSIONS, b"a"), (SUBSCRIPTIONS, b"a")]
    assert world.filters("a") == {b"t/%d" % number for number in range(10)}
    assert world.run() == []


def test_what_changes_meanwhile_is_gathered(world: World) -> None:
    told: list[str] = []
    session, _ = world.open("a")
    world.keeper.wait(lambda error: told.append("first"))
    world.clock.advance(0)
    for number in range(5):
        world.subscribe(session, b"t/%d" % number)
        world.keeper.wait(lambda error, n=number: told.append(f"t/{n}"))
        world.clock.advance(0)
    assert len(world.store.waiting) == 1
    assert told == []
    world.store.commit()
    assert told == ["first"]
    assert len(world.run()) == 1
    assert told == ["first", "t/0", "t/1", "t/2", "t/3", "t/4"]


def test_what_a_connack_promises(world: World) -> None:
    session, _ = world.open("a")
    assert world.keeper.must_wait("a"), "a new session"
    world.clock.advance(0)
    assert world.keeper.must_wait("a"), "under way"
    world.store.commit()
    world.registry.leave(session, keep_will=False)
    world.open("a")
    assert not world.keeper.must_wait("a"), "only back again"
    world.open("a", expiry=200)
    assert world.keeper.must_wait("a"), "another expiry"
    world.run()
    world.open("a", expiry=200, will=will())
    assert world.keeper.must_wait("a"), "a will"
    world.run()
    world.open("a", expiry=200, client_type="application")
    assert world.keeper.must_wait("a"), "another type"
    world.run()
    world.open("a", clean=True, expiry=0)
    assert world.keeper.must_wait("a"), "the end of the old one"
    world.run()
    assert world.store.tables == {SESSIONS: {}, SUBSCRIPTIONS: {}, WILLS: {}}
    world.open("a", clean=True, expiry=0)
    assert not world.keeper.must_wait("a")


def test_a_session_that_is_taken_up_for_the_last_time_is_not_kept(world: World) -> None:
    session, _ = world.open("a")
    world.subscribe(session, b"t")
    world.run()
    world.registry.leave(session, keep_will=False)
    again, present = world.open("a", expiry=0)
    assert present
    assert again is session
    world.run()
    assert world.store.tables == {SESSIONS: {}, SUBSCRIPTIONS: {}, WILLS: {}}


def test_expiry_zero_at_disconnect_removes_the_record(world: World) -> None:
    session, _ = world.open("a")
    world.run()
    session.expiry_interval = 0
    world.registry.leave(session, keep_will=False)
    world.run()
    assert not world.store.tables[SESSIONS]


def test_a_new_session_does_not_inherit_the_subscriptions_of_the_old(world: World) -> None:
    session, _ = world.open("a")
    world.subscribe(session, b"t")
    world.run()
    world.open("a", clean=True)
    world.run()
    assert world.filters("a") == set()
    assert world.restarted().hub.trie.subscription_count == 0


def test_everything_is_back_after_a_crash(world: World) -> None:
    session, _ = world.open("a", user="alice", version=4, client_type="application")
    world.hub.trie.subscribe(session, b"t", 0x2E, 77)
    world.subscribe(session, b"$share/g/t")
    world.run()
    created = decode_session("a", world.store.tables[SESSIONS][b"a"]).created_at
    world = world.restarted(5)
    assert world.restored == 1
    session = world.registry.get("a")  # type: ignore[assignment]
    assert (session.username, session.version, session.expiry_interval) == ("alice", 4, 100)
    assert set(world.hub.trie.subscriptions(session)) == {(b"t", 0x2E, 77), (b"$share/g/t", 1, 0)}
    world.run()
    record = decode_session("a", world.store.tables[SESSIONS][b"a"])
    assert record.created_at == created
    assert record.client_type == "application"
    assert record.disconnected_at == round((START + 5) * 1000), "it was connected until the crash"
    assert world.open("a", user="alice")[1]


def test_expiry_counts_from_the_disconnection(world: World) -> None:
    for client_id, expiry in (("short", 10), ("long", 100), ("for-ever", NEVER)):
        world.registry.leave(world.open(client_id, expiry=expiry)[0], keep_will=False)
    world.open("connected", expiry=10)
    world.run()
    world = world.restarted(50)
    world.run()
    assert {s.client_id for s in world.registry.sessions()} == {"long", "for-ever", "connected"}
    assert b"short" not in world.store.tables[SESSIONS]
    assert world.registry.expired_total == 1
    world.clock.advance(9.9)
    assert world.registry.get("connected") is not None
    world.clock.advance(0.2)
    assert world.registry.get("connected") is None
    world = world.restarted(39)
    assert world.registry.get("long") is not None
    world.clock.advance(1)
    assert {s.client_id for s in world.registry.sessions()} == {"for-ever"}


def test_a_clock_that_went_back_does_not_end_sessions(world: World) -> None:
    world.clock.advance(1_000)
    world.registry.leave(world.open("a", expiry=10)[0], keep_will=False)
    world.run()
    world = world.restarted(-500)
    assert world.registry.get("a") is not None
    world.clock.advance(10.1)
    assert world.registry.get("a") is None


def test_the_will_of_who_was_connected_is_due_at_the_restart(world: World) -> None:
    """[MQTT-3.1.2-8]"""
    world.observe()
    world.open("a", will=will())
    world.open("b", will=will(delay=5))
    world.run()
    world = world.restarted(60)
    observer = world.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 1
    world.clock.advance(4.9)
    assert observer.queued_messages == 1
    world.clock.advance(0.2)
    assert observer.queued_messages == 2


def test_the_delay_of_a_will_counts_from_the_disconnection(world: World) -> None:
    world.observe()
    for client_id, delay in (("a", 5), ("b", 50)):
        world.registry.leave(world.open(client_id, will=will(delay=delay))[0], keep_will=True)
    world.run()
    world = world.restarted(20)
    observer = world.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 1, "the first was due while the broker was away"
    world.clock.advance(30.1)
    assert observer.queued_messages == 2


def test_a_withdrawn_will_is_withdrawn_for_good(world: World) -> None:
    """[MQTT-3.1.2-10]"""
    world.observe()
    session, _ = world.open("a", will=will())
    world.run()
    world.registry.leave(session, keep_will=False)
    world.run()
    world = world.restarted()
    world.clock.advance(200)
    observer = world.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 0


def test_a_published_will_is_let_go_of_a_little_later(world: World) -> None:
    """A crash before the message is in its log publishes it again rather than never."""
    session, _ = world.open("a", will=will())
    world.registry.leave(session, keep_will=True)
    world.run()
    assert decode_session("a", world.store.tables[SESSIONS][b"a"]).will is not None
    world.clock.advance(WILL_SECONDS)
    world.run()
    assert decode_session("a", world.store.tables[SESSIONS][b"a"]).will is None


def test_a_client_back_with_another_will_keeps_that(world: World) -> None:
    session, _ = world.open("a", will=will())
    world.registry.leave(session, keep_will=True)
    world.open("a", will=will(delay=7))
    world.clock.advance(10 * WILL_SECONDS)
    world.run()
    record = decode_session("a", world.store.tables[SESSIONS][b"a"])
    assert record.will is not None
    assert record.will.delay == 7


def wills_of(world: World) -> dict[str, str]:
    """Client ids and payloads, as they are in the store."""
    found = [decode_will(key, value) for key, value in world.store.tables[WILLS].items()]
    return {record.client_id: record.will.payload.decode() for record in found if record.will is not None}


def test_the_will_of_a_session_that_ends_with_its_connection_is_due_at_the_restart(world: World) -> None:
    """[MQTT-3.1.2-8]: its connection ended with the broker. Its delay is over with the session."""
    world.observe()
    world.open("a", expiry=0, will=will())
    world.open("b", expiry=0, clean=True, will=will(delay=5))
    world.open("c", expiry=0)
    world.run()
    assert set(wills_of(world)) == {"a", "b"}
    assert set(world.store.tables[SESSIONS]) == {b"observer"}
    world = world.restarted(60)
    observer = world.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 2
    assert world.registry.get("a") is None
    world.run()
    assert set(wills_of(world)) == {"a", "b"}, "they are let go of when they are surely in their log"
    world.clock.advance(WILL_SECONDS)
    world.run()
    assert wills_of(world) == {}


@pytest.mark.parametrize("keep_will", [True, False])
def test_the_will_of_a_session_that_ends_with_its_connection_goes_with_it(world: World, *, keep_will: bool) -> None:
    """[MQTT-3.1.2-10]"""
    world.observe()
    session, _ = world.open("a", expiry=0, will=will())
    world.run()
    world.registry.leave(session, keep_will=keep_will)
    world.run()
    assert set(wills_of(world)) == ({"a"} if keep_will else set())
    world.clock.advance(WILL_SECONDS)
    world.run()
    assert wills_of(world) == {}


@pytest.mark.parametrize("how", ["expired", "ended by an operator"])
def test_a_will_that_is_due_when_its_session_ends_survives_a_crash(world: World, how: str) -> None:
    """The record of the session goes and the will is published in one step: the will's own record bridges the time
    until the message is in its log."""
    world.observe()
    session, _ = world.open("a", expiry=10, will=will(delay=60))
    world.registry.leave(session, keep_will=True)
    world.run()
    if how == "expired":
        world.clock.advance(10.1)
    else:
        world.registry.kick(session, "because")
    world.run()
    assert b"a" not in world.store.tables[SESSIONS]
    again = world.restarted()
    observer = again.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 1
    world.clock.advance(WILL_SECONDS)
    world.run()
    assert wills_of(world) == {}


def test_a_client_back_with_another_will_of_the_moment_keeps_that(world: World) -> None:
    session, _ = world.open("a", expiry=0, will=will())
    world.registry.leave(session, keep_will=True)
    world.open("a", expiry=0, will=will(delay=7))
    world.clock.advance(10 * WILL_SECONDS)
    world.run()
    [value] = world.store.tables[WILLS].values()
    record = decode_session("a", value)
    assert record.will is not None
    assert record.will.delay == 7


def test_nobody_waits_for_the_will_of_a_session_that_ends_with_its_connection(world: World) -> None:
    """Clients without a session of their own come while the store is away; their wills are written when it is back."""
    world.open("a", expiry=0, will=will())
    assert not world.keeper.must_wait("a")
    world.run("no room")
    assert not world.keeper.must_wait("a")
    assert wills_of(world) == {}
    world.clock.advance(RETRY_SECONDS)
    world.run()
    assert set(wills_of(world)) == {"a"}


def test_the_wills_of_other_brokers_are_theirs() -> None:
    world = World(node="n1")
    world.open("a", expiry=0, will=will())
    world.run()
    assert World(world.store, node="n2").keeper.take_left_wills() == []
    other = World(world.store, node="n1")
    other.run()
    other.clock.advance(WILL_SECONDS)
    other.run()
    assert wills_of(other) == {}


def test_a_stop_lets_go_of_published_wills(world: World) -> None:
    session, _ = world.open("a", expiry=0, will=will())
    world.open("b", expiry=0, will=will())
    world.run()
    world.registry.leave(session, keep_will=True)
    asyncio.run(world.keeper.close())
    assert set(wills_of(world)) == {"b"}


def test_a_record_that_cannot_be_read_is_left_alone_and_the_others_are_published(world: World) -> None:
    world.observe()
    world.open("a", expiry=0, will=will())
    world.run()
    world.store.tables[WILLS][b"b\0"] = b"\x99nonsense"
    world = world.restarted()
    observer = world.registry.get("observer")
    assert observer is not None
    assert observer.queued_messages == 1
    assert world.store.tables[WILLS][b"b\0"] == b"\x99nonsense"


def test_a_failure_is_undone_newest_first_and_told_in_order(world: World) -> None:
    session, _ = world.open("a")
    world.run()
    did: list[str] = []

    def change(name: str) -> None:
        world.subscribe(session, b"t")
        world.keeper.wait(lambda error: did.append(f"{name}: {error}"), lambda: did.append(f"undo {name}"))

    change("1")
    change("2")
    world.clock.advance(0)
    change("3")
    world.store.commit("full")
    assert did == ["undo 3", "undo 2", "undo 1", "1: full", "2: full", "3: full"]


def test_what_nobody_waits_for_is_stored_when_the_store_works_again(world: World) -> None:
    sessions = {client_id: world.open(client_id, will=will(delay=50))[0] for client_id in ("a", "b", "c")}
    world.run()
    world.registry.leave(sessions["a"], keep_will=False)
    world.registry.end(sessions["b"])
    world.run("full")
    assert world.keeper.owed == 2
    for _ in range(3):
        world.clock.advance(RETRY_SECONDS)
        assert len(world.store.commit("full")) == 4
    world.clock.advance(RETRY_SECONDS)
    world.store.commit()
    assert world.keeper.owed == 0
    assert world.store.tables[SESSIONS].keys() == {b"a", b"c"}
    assert decode_session("a", world.store.tables[SESSIONS][b"a"]).will is None


def test_a_store_that_works_again_is_paid_without_waiting(world: World) -> None:
    session, _ = world.open("a")
    other, _ = world.open("b")
    world.run()
    world.registry.leave(session, keep_will=False)
    world.run("full")
    world.subscribe(other, b"t")
    world.run()
    assert [key for _, key, _ in world.run()] == [b"a"]


def test_a_failed_removal_is_tried_again_by_the_next_connection(world: World) -> None:
    world.open("a")
    world.run()
    world.open("a", clean=True, expiry=0)
    world.run("full")
    world.open("a", clean=True, expiry=0)
    assert world.keeper.must_wait("a")
    world.run()
    assert not world.store.tables[SESSIONS]


def test_records_nobody_can_read_are_left_alone(world: World) -> None:
    world.subscribe(world.open("good")[0], b"t")
    world.subscribe(world.open("bad")[0], b"t")
    world.run()
    world.store.tables[SESSIONS][b"bad"] = b"\x91\xcc\xc8"
    world.store.tables[SUBSCRIPTIONS][b"lonely"] = world.store.tables[SUBSCRIPTIONS][b"good"]
    world = world.restarted()
    assert world.restored == 1
    world.run()
    assert world.store.tables[SESSIONS][b"bad"] == b"\x91\xcc\xc8"
    assert world.store.tables[SUBSCRIPTIONS].keys() == {b"good", b"bad"}, "subscriptions of nobody are removed"


def test_the_sessions_of_another_broker_are_left_alone() -> None:
    """Where several share a store: whom they are connected to is not known here, and their wills are not ours."""
    ours = World(node="n1")
    theirs = World(ours.store, node="n2")
    ours.subscribe(ours.open("a", will=will())[0], b"t")
    theirs.subscribe(theirs.open("b", will=will())[0], b"t")
    ours.run()
    theirs.run()
    again = World(ours.store, node="n1")
    again.run()
    assert [session.client_id for session in again.registry.sessions()] == ["a"]
    assert again.store.tables[SUBSCRIPTIONS].keys() == again.store.tables[SESSIONS].keys() == {b"a", b"b"}


def test_an_answer_that_fails_does_not_take_the_others_along(world: World) -> None:
    world.open("a")
    told: list[object] = []

    def fail(error: StoreError | None) -> None:
        raise ValueError("the client's fault")

    world.keeper.wait(fail)
    world.keeper.wait(told.append)
    world.run()
    assert told == [None]


def test_closing_writes_everything(world: World) -> None:
    session, _ = world.open("a", will=will())
    other, _ = world.open("b")
    world.run()
    world.registry.leave(other, keep_will=False)
    world.run("full")
    world.registry.leave(session, keep_will=True)
    asyncio.run(world.keeper.close())
    assert decode_session("a", world.store.tables[SESSIONS][b"a"]).will is None
    assert decode_session("b", world.store.tables[SESSIONS][b"b"]).disconnected_at
    assert world.keeper.owed == 0


@pytest.mark.parametrize(("user", "survives"), [("bob", True), (None, True), ("alice", False)])
def test_a_client_that_came_before_the_store_was_read(*, user: str | None, survives: bool) -> None:
    """Its user may end the stored session by a clean start, another user may not: that one has to go."""
    world = World()
    session, _ = world.open("a", user="alice")
    world.subscribe(session, b"t")
    world.run()
    hub, clock = Hub(Clock()), Clock()
    keeper = SessionKeeper(world.store, hub.trie, clock, clock=lambda: START)
    registry = SessionRegistry(hub, clock, keeper, disconnect=disconnect)
    early, _ = registry.open(Opening("a", user, True, 0, None))
    told: list[int] = []

    def end(reason: int, _: str) -> None:
        told.append(reason)
        registry.abandon(early)

    registry.await_joining(early, SimpleNamespace(disconnect=end))  # type: ignore[arg-type]
    asyncio.run(registry.restore(lambda subject: None))
    found = registry.get("a")
    assert found is not None
    assert (found is not early) is survives
    assert found.username == ("alice" if survives else user)
    assert told == ([Reason.SESSION_TAKEN_OVER] if survives else [])
    assert bool(hub.trie.subscriptions(found)) is survives
