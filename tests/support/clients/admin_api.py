"""A few APPLICATION clients in memory, sessions without a network, and the admin address that serves commands."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import uvloop

from penstock._ext.hub.connection import Hub, Session
from penstock.core.errors import ConflictError, NotFoundError
from penstock.mqtt.refusals import disconnect
from penstock.operate.http.server import AdminServer, Commands
from penstock.operate.retained import RetainedControl
from penstock.operate.sessions import SessionControl
from penstock.sessions.keeper import SessionKeeper
from penstock.sessions.registry import Opening, SessionRegistry
from penstock.settings.model import AdminSettings
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.device.store.base import DeviceStore

TOKEN = "a-token-for-the-tests"


def entry(client_id: str, *, lag: int = 0, connected: bool = False, **others: Any) -> dict[str, Any]:
    return {
        "client_id": client_id,
        "topic": f"tbmq.msg.app.{client_id}",
        "connected": connected,
        "session_expiry": 0xFFFFFFFF,
        "subscriptions": 2,
        "lag": lag,
        "end_offset": 100,
        "committed_offset": 100 - lag,
        "in_flight": 3,
        "packs_in_flight": 1,
        "retries": 4,
        "expired": 5,
        "delivered": 60,
        "acknowledged": 57,
        "shared": [],
        **others,
    }


class MemoryApplications:
    """An ApplicationControl whose topics hold 100 messages each."""

    def __init__(self, *entries: dict[str, Any]) -> None:
        self.entries = {each["client_id"]: each for each in entries}
        self.resets: list[tuple[str, object]] = []

    async def list(self) -> list[dict[str, Any]]:
        return list(self.entries.values())

    async def show(self, client_id: str) -> dict[str, Any]:
        if client_id not in self.entries:
            raise NotFoundError(f"there is no APPLICATION client {client_id!r}", "`penstock app list` shows them.")
        return self.entries[client_id]

    async def reset(self, client_id: str, to: str | int | datetime) -> dict[str, Any]:
        found = await self.show(client_id)
        if found["connected"]:
            raise ConflictError(f"{client_id!r} is connected", "Disconnect it first.")
        self.resets.append((client_id, to))
        offset = {"begin": 0, "end": 100}[to] if isinstance(to, str) else to if isinstance(to, int) else 50
        found.update(committed_offset=offset, lag=100 - offset)
        return found

    async def delete(self, client_id: str) -> dict[str, Any]:
        if client_id == "broken":
            raise RuntimeError("a secret of the inside")
        found = await self.show(client_id)
        del self.entries[client_id]
        return found


class NoLoop:
    """For what never waits: the hub and the keeper ask for a later turn, and nobody gives it."""

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        pass

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> NoLoop:
        return self

    def cancel(self) -> None:
        pass


class SessionWorld:
    """A hub with sessions that have no connection, and retained messages."""

    def __init__(self, store: DeviceStore | None = None) -> None:
        loop = NoLoop()
        self.now = 1_700_000_000.0
        self.hub = Hub(loop)
        self.keeper = SessionKeeper(MemoryStateStore(), self.hub.trie, loop, clock=lambda: self.now)
        self.registry = SessionRegistry(self.hub, loop, self.keeper, disconnect=disconnect)
        self.sessions = SessionControl(self.registry, store)
        self.retained = RetainedControl(self.hub)

    def open(self, client_id: str, *, expiry: int = 3600, user: str | None = None, version: int = 5) -> Session:
        session, _ = self.registry.open(Opening(client_id, user, False, expiry, None, version))
        return session


@contextlib.contextmanager
def serving(
    data_dir: Path, control: MemoryApplications | None, token: str = "", world: SessionWorld | None = None
) -> Iterator[AdminServer]:
    """The admin address in a thread of its own, so that a test may block."""
    settings = AdminSettings(address="127.0.0.1:0", token=token)
    commands = Commands(
        applications=control,
        sessions=None if world is None else world.sessions,
        retained=None if world is None else world.retained,
    )
    server = AdminServer(settings, {}, dict, data_dir=str(data_dir), commands=commands)
    is_up, finish = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.start()
        is_up.set()
        await finish.wait()
        await server.stop()

    thread = threading.Thread(target=uvloop.run, args=(serve(),), daemon=True)
    thread.start()
    assert is_up.wait(30)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(finish.set)
        thread.join(30)
