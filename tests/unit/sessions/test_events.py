"""Are counts of messages told once, and also those that change after the client has gone?"""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.hub.connection import Hub, Session
from penstock.mqtt.refusals import disconnect
from penstock.sessions import events as module
from penstock.sessions.event_log import TOPIC, EventKind, EventLog
from penstock.sessions.events import SessionEvents
from penstock.sessions.registry import Opening, SessionRegistry
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until
from tests.support.worlds.lanes import LaneClient


def test_what_the_store_tells_after_the_client_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.01)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        hub = Hub(loop)
        sessions: dict[str, Session] = {}
        registry = SessionRegistry(hub, loop, disconnect=disconnect, sessions=sessions)
        recorded: list[tuple[EventKind, str, int]] = []
        memory = MemoryLog()
        await memory.start()
        log = EventLog(memory, node="n")
        monkeypatch.setattr(
            log, "record", lambda kind, client_id, *, count=0, **_: recorded.append((kind, client_id, count))
        )
        events = SessionEvents(log, sessions)
        session, _ = registry.open(Opening("a", None, True, 3_600, None))
        client = LaneClient(hub, session)
        connection = session.connection
        assert connection is not None
        client.lose()
        events.disconnected(session, connection)
        session.count_expired(2)
        events.start()
        await until(lambda: (EventKind.EXPIRED, "a", 2) in recorded)
        await asyncio.sleep(0.05)
        assert [kind for kind, *_ in recorded].count(EventKind.EXPIRED) == 1
        await events.stop()
        await memory.close()

    asyncio.run(scenario())


def test_nothing_is_kept_of_a_session_that_another_broker_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPORT_SECONDS", 0.01)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        hub = Hub(loop)
        sessions: dict[str, Session] = {}
        registry = SessionRegistry(hub, loop, disconnect=disconnect, sessions=sessions)
        memory = MemoryLog()
        await memory.start()
        events = SessionEvents(EventLog(memory, node="n"), sessions)
        moved, _ = registry.open(Opening("moved", None, True, 3_600, None))
        kept, _ = registry.open(Opening("kept", None, True, 3_600, None))
        for session in (moved, kept):
            session.count_expired(2)
            events.report(session)
        registry.give_away(moved)
        events.start()
        await until(lambda: moved not in events._told)
        assert kept in events._told
        await events.stop()
        await memory.close()

    asyncio.run(scenario())


def test_what_was_recorded_last_is_in_the_log_when_it_closes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.sessions.event_log.TOGETHER_SECONDS", 3_600)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        sessions: dict[str, Session] = {}
        registry = SessionRegistry(Hub(loop), loop, disconnect=disconnect, sessions=sessions)
        memory = MemoryLog()
        await memory.start()
        log = EventLog(memory, node="n")
        await log.start()
        events = SessionEvents(log, sessions)
        session, _ = registry.open(Opening("a", None, True, 0, None))
        events.ended(session)
        await events.stop()
        await until(lambda: memory.watermarks(TopicPartition(TOPIC, 0)).end == 1)
        await memory.close()

    asyncio.run(scenario())
