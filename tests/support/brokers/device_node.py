"""One broker's persistent DEVICE clients without sockets: dispatch of a log that is a list, a real store, real clients'
packets in and out. A node may be dropped as a crash does, and another started on the same log and store."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock._ext.dispatch.desk import DispatchDesk, Round
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.settings.redis import DeviceSettings
from penstock.subscribers.device.delivery import DeviceDelivery
from penstock.subscribers.device.store.base import DeviceStore, StoreUnavailable
from tests.support.worlds.lanes import LaneClient

EXPIRY = 3_600
SECONDS = 60.0


class FaultyStore:
    """Another store whose calls fail, as long as their names are in `failing`: nothing is done then, and the caller is
    told. `calls` counts what was asked for."""

    def __init__(self, store: DeviceStore) -> None:
        self._store = store
        self.failing: set[str] = set()
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in ("add", "fetch", "remove", "release", "remove_all", "move", "move_some"):
            return call

        def faulty(*arguments: Any) -> None:
            self.calls.append(name)
            if name not in self.failing:
                call(*arguments)
                return
            is_batch = name not in ("fetch", "move", "move_some")
            error = StoreUnavailable("as the test wants it")
            result = [error] * len(arguments[0]) if is_batch else error
            asyncio.get_running_loop().call_soon(arguments[-1], result)

        return faulty


class DeviceLog:
    """Everything that was published, and how far it is dispatched for good."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.committed = 0


class DeviceNode:
    def __init__(self, log: DeviceLog, store: Any, **settings: Any) -> None:
        self.log = log
        self.store = store
        self.hub = Hub(asyncio.get_running_loop())
        self._desk = DispatchDesk(self.hub)
        self.delivery = DeviceDelivery(self.hub, store, DeviceSettings(**settings))
        self.sessions: dict[str, Session] = {}
        self._rounds: deque[tuple[Round, int]] = deque()

    async def start(self, sessions: dict[str, list[tuple[bytes, int, int]]] | None = None) -> None:
        """`sessions`: client ids and subscriptions of before a restart."""
        await self.delivery.start()
        for name, subscriptions in (sessions or {}).items():
            session = self._make(name)
            session.since = 0
            for topic_filter, options, identifier in subscriptions:
                self.hub.trie.subscribe(session, topic_filter, options, identifier)
        self.delivery.restore(list(self.sessions.values()), lambda _: 0)
        if self.log.committed < len(self.log.records):
            self._dispatch(self.log.committed, is_replay=True)

    async def stop(self) -> dict[str, list[tuple[bytes, int, int]]]:
        """As a kill: what is only in memory is gone. Gives what `start` of the next one wants."""
        self._commit()
        await self.delivery.stop()
        return {name: self.hub.trie.subscriptions(session) for name, session in self.sessions.items()}

    def _make(self, name: str) -> Session:
        session = self.sessions[name] = Session(self.hub, name)
        session.expiry_interval = EXPIRY
        return session

    def connect(self, name: str, *, clean: bool = False, version: int = 5, receive_maximum: int = 100) -> LaneClient:
        """What handle_connect does with a DEVICE."""
        session = self.sessions.get(name)
        if session is not None and session.connection is not None:
            session.connection.shutdown("taken over")
        if session is not None and clean:
            self.end(session)
            session = None
        is_new = session is None
        session = session or self._make(name)
        self.delivery.opened(session, is_new=is_new)
        client = LaneClient(self.hub, session, version=version, receive_maximum=receive_maximum)
        self.delivery.attached(session)
        return client

    def end(self, session: Session) -> None:
        del self.sessions[session.client_id]
        session.end()
        self.delivery.ended(session)

    def publish(
        self, *payloads: bytes, qos: int = 1, topic: str = "t", expires_at: int = 0, retain: bool = False
    ) -> None:
        first = len(self.log.records)
        self.log.records += [
            encode(topic, payload, qos, retain, received_at=now_ms(), expires_at=expires_at) for payload in payloads
        ]
        self._dispatch(first)

    def dispatch_again(self, first: int) -> None:
        """What a crash did not let be committed comes again."""
        self._dispatch(first, is_replay=True)

    def _dispatch(self, first: int, *, is_replay: bool = False) -> None:
        pack = RecordPack()
        for record in self.log.records[first:]:
            pack.append(record)
        pack.place(first)
        dispatched = Round()
        self._desk.dispatch(pack, 0, dispatched, is_replay)
        self.delivery.give(dispatched)
        self._rounds.append((dispatched, len(self.log.records)))
        self._commit()

    def _commit(self) -> None:
        while self._rounds and self._rounds[0][0].pending <= 0:
            self.log.committed = self._rounds.popleft()[1]

    @property
    def is_settled(self) -> bool:
        """Whether everything is acknowledged or stored."""
        self._commit()
        return not self._rounds

    async def until(self, condition: Callable[[], object], seconds: float = SECONDS) -> None:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - parts without an event of their own
                await asyncio.sleep(0.002)
