"""Contexts in the store: lanes are told when theirs is durable, and a store that fails for a while is asked again."""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.application.context import read_context
from penstock._ext.application.lane import ApplicationDesk, Lane
from penstock._ext.hub.connection import Hub, Session
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import (
    CLAIMED,
    OWN,
    RETRY_SECONDS,
    SHARED,
    TABLE,
    Contexts,
    make_key,
    split_key,
)
from tests.support.machine.manual_clock import ManualClock
from tests.support.worlds.lanes import PUBREC, TOPIC, LaneClient, StepLoop, numbered

KEY = make_key(OWN, "client", TOPIC, 0)


class Stage:
    def __init__(self) -> None:
        self.store = MemoryStateStore()
        self.clock = ManualClock()
        self.contexts = Contexts(self.store, self.clock)
        self.loop = StepLoop()
        self.hub = Hub(self.loop)
        self.session = Session(self.hub, "client")
        self.client = LaneClient(self.hub, self.session, turn=self.loop.turn)
        self.lane = Lane(self.session, TOPIC)
        ApplicationDesk(self.hub, lambda lanes: None, lambda session: None).open(self.lane)

    def save(self, prefix: bytes = b"") -> None:
        self.contexts.save([(KEY, prefix, self.lane)])

    @property
    def stored(self) -> bytes | None:
        return self.store.tables.get(TABLE, {}).get(KEY)


@pytest.mark.parametrize("kind", [OWN, SHARED, CLAIMED])
def test_keys(kind: str) -> None:
    assert split_key(make_key(kind, "ö client/1", "tbmq.msg.app.x", 12)) == (kind, "ö client/1", "tbmq.msg.app.x", 12)


def test_a_pack_is_sent_when_its_context_is_durable() -> None:
    async def main() -> None:
        stage = Stage()
        stage.lane.offer([numbered(0, 3)])
        stage.save()
        assert stage.client.take() == []
        await asyncio.sleep(0)
        assert stage.stored is not None
        assert read_context(stage.stored)["in_flight"] == [(0, 1, 3, "ready")]
        assert [packet.packet_id for packet in stage.client.take()] == [1, 2, 3]
        assert stage.contexts.get(KEY) == stage.stored
        assert (stage.contexts.saves, stage.contexts.failures) == (1, 0)

    asyncio.run(main())


def test_a_store_that_fails_for_a_while() -> None:
    """Nothing is sent before the store has it; then it is the newest context that is stored, once."""

    async def main() -> None:
        stage = Stage()
        stage.store.failure = "the disk is full"
        stage.lane.offer([numbered(0, 2, qos=2)])
        stage.save()
        await asyncio.sleep(0)
        stage.lane.offer([numbered(2, 2, qos=2)])
        stage.save()
        await asyncio.sleep(0)
        for _ in range(3):
            stage.clock.advance(RETRY_SECONDS)
            await asyncio.sleep(0)
        assert stage.client.take() == []
        assert stage.stored is None
        assert stage.contexts.failures == 8
        stage.store.failure = ""
        stage.clock.advance(RETRY_SECONDS)
        await asyncio.sleep(0)
        assert stage.stored == stage.contexts.get(KEY)
        assert stage.stored is not None
        assert read_context(stage.stored)["in_flight"] == [(0, 1, 4, "ready qos 2")]
        assert [packet.packet_id for packet in stage.client.take()] == [1, 2, 3, 4]
        stage.store.failure = "again"
        stage.client.say(PUBREC, 2)
        assert stage.lane.needs_context
        stage.save()
        await asyncio.sleep(0)
        assert stage.client.take() == []
        stage.store.failure = ""
        stage.clock.advance(RETRY_SECONDS)
        await asyncio.sleep(0)
        assert [packet.packet_id for packet in stage.client.take()] == [2]

    asyncio.run(main())


def test_nobody_takes_for_durable_what_is_to_be_stored_again() -> None:
    """A PUBREL of a client that is back within that second waits as well."""

    async def main() -> None:
        stage = Stage()
        told: list[str] = []
        stage.store.failure = "for a moment"
        stage.contexts.put(KEY, b"PUBREC came")
        await asyncio.sleep(0)
        stage.contexts.when_durable(KEY, lambda: told.append("durable"))
        assert told == []
        stage.store.failure = ""
        stage.clock.advance(RETRY_SECONDS)
        await asyncio.sleep(0)
        assert (told, stage.stored) == (["durable"], b"PUBREC came")
        stage.contexts.when_durable(KEY, lambda: told.append("at once"))
        assert told == ["durable", "at once"]

    asyncio.run(main())


def test_an_older_context_never_takes_the_place_of_a_newer() -> None:
    async def main() -> None:
        stage = Stage()
        stage.store.failure = "for a moment"
        stage.contexts.put(KEY, b"old")
        await asyncio.sleep(0)
        stage.store.failure = ""
        stage.contexts.put(KEY, b"new")
        await asyncio.sleep(0)
        stage.clock.advance(RETRY_SECONDS)
        await asyncio.sleep(0)
        assert stage.stored == b"new"

    asyncio.run(main())


@pytest.mark.parametrize("waits", [False, True])
def test_what_was_removed_does_not_come_back(waits: bool) -> None:
    async def main() -> None:
        stage = Stage()
        stage.contexts.put(KEY, b"there")
        await asyncio.sleep(0)
        stage.store.failure = "for a moment"
        stage.contexts.put(KEY, b"late")
        if waits:
            await asyncio.sleep(0)
            stage.store.failure = ""
        stage.contexts.remove([KEY, b"unknown"])
        await asyncio.sleep(0)
        stage.store.failure = ""
        stage.clock.advance(RETRY_SECONDS)
        await asyncio.sleep(0)
        assert stage.stored is None
        assert stage.contexts.get(KEY) is None
        assert len(stage.contexts) == 0

    asyncio.run(main())


def test_loaded_after_a_restart() -> None:
    async def main() -> None:
        stage = Stage()
        stage.save(b"client\0")
        others = [
            make_key(SHARED, "client", TOPIC, 0),
            make_key(OWN, "client2", TOPIC, 0),
            make_key(OWN, "client", TOPIC, 1),
        ]
        for key in others:
            stage.contexts.put(key, b"x")
        await asyncio.sleep(0)
        again = Contexts(stage.store, stage.clock)
        assert await again.load() == 4
        assert again.get(KEY) == b"client\0" + stage.lane.peek()
        assert sorted(again.keys(OWN, "client")) == [KEY, make_key(OWN, "client", TOPIC, 1)]
        assert again.keys(OWN, "clien") == []

    asyncio.run(main())


def test_nothing_to_save_asks_the_store_nothing() -> None:
    async def main() -> None:
        stage = Stage()
        stage.contexts.save([])
        stage.contexts.remove([KEY])
        assert stage.store.pending == 0
        assert stage.contexts.saves == 0

    asyncio.run(main())


def test_a_lane_that_was_closed_meanwhile() -> None:
    """The store answers after the client has gone."""

    async def main() -> None:
        stage = Stage()
        stage.lane.offer([numbered(0, 2)])
        stage.save()
        stage.client.lose()
        await asyncio.sleep(0)
        assert stage.lane.is_closed

    asyncio.run(main())
