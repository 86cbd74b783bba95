"""What an operator sees of sessions, and what becomes of them when he ends them. Connections: tests/wire."""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.device.outlet import DeviceDesk
from penstock._ext.record.segment import RecordPack
from penstock.core.errors import ConflictError, NotFoundError, UsageError
from penstock.operate import sessions as control
from penstock.settings.redis import DeviceSettings
from penstock.subscribers.device.store.base import Addition, build_source, client_queue, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from tests.support.clients.admin_api import SessionWorld


@pytest.fixture
def world():
    return SessionWorld()


def listed(world, pattern="*", limit=100):
    answer = asyncio.run(world.sessions.list(pattern, limit))
    return [entry["client_id"] for entry in answer["sessions"]], answer["total"], answer["truncated"]


def test_a_list_is_bounded_and_says_so(world):
    for number in range(10):
        world.open(f"c{number}")
    assert listed(world) == ([f"c{number}" for number in range(10)], 10, False)
    assert listed(world, limit=10)[2] is False
    assert listed(world, limit=3) == (["c0", "c1", "c2"], 10, True)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*", ["pump-1", "Pump-2", "valve[1]", "a/b\nc"]),
        ("pump-*", ["pump-1"]),
        ("?ump-?", ["pump-1", "Pump-2"]),
        ("[pP]ump*2", ["Pump-2"]),
        ("valve[[]1]", ["valve[1]"]),
        ("a/*c", ["a/b\nc"]),
        ("", []),
        ("[", []),
    ],
)
def test_a_glob_chooses_client_ids(world, pattern, expected):
    for client_id in ("pump-1", "Pump-2", "valve[1]", "a/b\nc"):
        world.open(client_id)
    assert listed(world, pattern)[0] == expected


def test_a_pattern_of_a_hostile_length_is_refused(world):
    with pytest.raises(UsageError):
        listed(world, "*a" * control.LONGEST_PATTERN)


def test_others_have_their_turn_while_many_are_listed(world, monkeypatch):
    monkeypatch.setattr(control, "LOOKED_AT_ONCE", 10)
    monkeypatch.setattr(control, "DESCRIBED_AT_ONCE", 10)
    for number in range(100):
        world.open(f"c{number}")

    async def count_turns():
        turns = 0
        listing = asyncio.ensure_future(world.sessions.list("*", 100))
        while not listing.done():
            await asyncio.sleep(0)
            turns += 1
        return turns

    assert asyncio.run(count_turns()) >= 18


def test_the_fields_of_a_session(world):
    session = world.open("pump-1", user="ann", version=4)
    world.hub.trie.subscribe(session, b"a/#", 2)
    for number in range(3):
        world.hub.publish("a/b", b"%d" % number, qos=1)
    world.now += 60
    world.registry.leave(session, keep_will=True)
    (entry,) = asyncio.run(world.sessions.list("*", 1))["sessions"]
    assert entry == {
        "client_id": "pump-1",
        "username": "ann",
        "client_type": "device",
        "connected": False,
        "version": "3.1.1",
        "peer": None,
        "session_expiry": 3600,
        "created": "2023-11-14T22:13:20+00:00",
        "disconnected": "2023-11-14T22:14:20+00:00",
        "subscriptions": 1,
        "in_flight": 0,
        "queued": 3,
        "queued_bytes": session.queued_bytes,
        "unreleased": 0,
        "dropped": {},
        "delivery": None,
        "stored": None,
    }


def test_drops_are_shown_by_cause(world):
    session = world.open("pump-1")
    world.hub.configure(max_queued_messages=1)
    world.hub.trie.subscribe(session, b"a", 1)
    for _ in range(3):
        world.hub.publish("a", b"", qos=1)
    assert asyncio.run(world.sessions.show("pump-1"))["dropped"] == {"queue_full": 2}


def test_times_are_not_known_of_a_session_that_ends_with_its_connection(world):
    world.open("brief", expiry=0)
    entry = asyncio.run(world.sessions.show("brief"))
    assert (entry["created"], entry["disconnected"]) == (None, None)


def test_subscriptions_are_shown_and_bounded(world, monkeypatch):
    session = world.open("pump-1")
    world.hub.trie.subscribe(session, b"a/#", 1 | 4 | 8 | 2 << 4, 7)
    world.hub.trie.subscribe(session, b"$share/g/b", 2)
    entry = asyncio.run(world.sessions.show("pump-1"))
    by_filter = {each.pop("filter"): each for each in entry["filters"]}
    flags = {"no_local": True, "retain_as_published": True, "retain_handling": 2}
    assert by_filter["a/#"] == {"qos": 1, **flags, "identifier": 7}
    assert (by_filter["$share/g/b"]["qos"], by_filter["$share/g/b"]["identifier"]) == (2, None)
    assert (entry["subscriptions"], entry["filters_truncated"]) == (2, False)
    monkeypatch.setattr(control, "MOST_FILTERS", 1)
    entry = asyncio.run(world.sessions.show("pump-1"))
    assert (len(entry["filters"]), entry["filters_truncated"]) == (1, True)


def test_what_is_stored_for_a_device(tmp_path):
    async def ask():
        store = LmdbDeviceStore(tmp_path / "devices", DeviceSettings())
        world = SessionWorld(store)
        session = world.open("pump-1")
        assert (await world.sessions.show("pump-1"))["stored"] is None  # served without a store
        desk = DeviceDesk(session.hub, lambda _: None, lambda _: None)
        outlet = desk.of(session)
        outlet.open()
        await store.start()
        pack = RecordPack()
        for offset in range(5):
            pack.append(b"value", build_source(0, offset))
        await result_of(store.add, [Addition(client_queue("pump-1"), pack)])
        entry = await world.sessions.show("pump-1")
        for number in range(2 * control.ASKED_AT_ONCE):
            other = world.open(f"other-{number}")
            if number % 2 == 0:
                desk.of(other).open()
        listed = {each["client_id"]: each["stored"] for each in (await world.sessions.list("*", 1_000))["sessions"]}
        assert (listed["pump-1"], listed["other-0"], listed["other-1"], len(listed)) == (
            5,
            0,
            None,
            2 * control.ASKED_AT_ONCE + 1,
        )
        outlet.live = True
        live = (await world.sessions.show("pump-1"))["delivery"]
        await store.close()
        # A store that cannot say does not keep the rest from being shown.
        assert (await world.sessions.show("pump-1"))["stored"] is None
        assert (await world.sessions.list("pump-1", 1))["sessions"][0]["stored"] is None
        return entry["stored"], entry["last_packet_id"], entry["delivery"], live

    assert asyncio.run(ask()) == (5, 5, "backlog", "live")


def test_delete_ends_a_session(world):
    session = world.open("pump-1")
    world.hub.trie.subscribe(session, b"a/#", 1)
    entry = asyncio.run(world.sessions.delete("pump-1"))
    assert (entry["client_id"], entry["subscriptions"]) == ("pump-1", 1)
    assert world.registry.get("pump-1") is None
    assert world.keeper.get("pump-1") is None
    assert world.hub.trie.subscription_count == 0


def test_who_is_not_connected_cannot_be_kicked(world):
    world.open("pump-1")
    with pytest.raises(ConflictError, match="is not connected"):
        asyncio.run(world.sessions.kick("pump-1"))
    assert world.registry.get("pump-1") is not None


@pytest.mark.parametrize("name", ["show", "kick", "delete"])
def test_a_client_nobody_knows(world, name):
    with pytest.raises(NotFoundError, match="no session of the client 'nobody'"):
        asyncio.run(getattr(world.sessions, name)("nobody"))
