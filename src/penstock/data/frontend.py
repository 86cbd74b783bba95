"""Where consumers connect: the listener, who may come in, and what all connections have in common."""

from __future__ import annotations

from collections import Counter
from typing import Any, Protocol

import msgspec

from penstock.access import AccessControl
from penstock.access.base import Entrance
from penstock.access.refusals import Refusals
from penstock.data.connection import DataConnection
from penstock.listen.admission import FEW_DESCRIPTORS, NO_DESCRIPTORS, last_descriptor
from penstock.listen.listener import Listener, ListenerError
from penstock.settings import Settings
from penstock.settings.checks import data_listener
from penstock.subscribers.query.ports import Identity

FIGURES = ("bad_frames", "failures", "requests", "refused", "stalled", "unsent")
# Answers of the largest size that may wait for one connection.
MOST_UNSENT = 4


class Service(Protocol):
    """What handles the requests: penstock.subscribers.query.service."""

    async def handle(self, who: Identity, method: str, params: msgspec.Struct) -> Any: ...


class DataFrontend:
    def __init__(
        self,
        settings: Settings,
        service: Service,
        access: AccessControl,
        *,
        version: str,
        refusals: Refusals | None = None,
    ) -> None:
        self.settings = settings.data_subscription
        self.listener_settings = data_listener(self.settings)
        self.entrance = Entrance.of(self.listener_settings, settings.access, "data")
        self.service = service
        self.access = access
        self.version = version
        self.refusals = refusals
        self.node = settings.server.node_id
        self._last_descriptor = last_descriptor()
        self.listener = Listener(self.listener_settings, lambda: DataConnection(self), on_refused=self._on_refused)
        self._connections: set[DataConnection] = set()
        self._paused: set[DataConnection] = set()
        self._figures: Counter[str] = Counter(dict.fromkeys(FIGURES, 0))

    @property
    def address(self) -> str:
        return self.listener.address

    async def start(self) -> None:
        try:
            await self.listener.start()
        except ListenerError as error:
            # It is there without anybody having asked for it: whoever runs a second broker must see what to change.
            hint = f"{error.hint} The setting is data_subscription.address; data_subscription.enabled = false: none."
            raise ListenerError(error.message, hint.lstrip(), exit_code=error.exit_code) from error

    def disconnect_removed(self) -> None:
        """Disconnect consumers of users who were removed, after a reload or a change of a provider."""
        for connection in list(self._connections):
            connection.end_removed()

    def stop_accepting(self) -> None:
        self.listener.stop_accepting()

    async def close(self) -> None:
        await self.listener.close()
        for connection in list(self._connections):
            connection.close()

    def admit(self, connection: DataConnection, descriptor: int = 0) -> str:
        """Return why the connection is refused; an empty string admits it."""
        if descriptor >= self._last_descriptor:
            self._on_refused(NO_DESCRIPTORS, connection.peer, FEW_DESCRIPTORS, self.listener_settings.name)
            return FEW_DESCRIPTORS
        if len(self._connections) >= self.settings.max_connections:
            self.count("refused")
            return "there are too many connections (data_subscription.max_connections)"
        self._connections.add(connection)
        return ""

    def most_unsent(self, connection: DataConnection) -> int:
        """How many bytes may wait for it; less when those of all connections are many."""
        total = sum(each.unsent for each in self._paused)
        return MOST_UNSENT * self.settings.max_fetch_bytes if total < self.settings.feeds_bytes else 0

    def paused(self, connection: DataConnection, *, is_paused: bool) -> None:
        """Whether its answers are waiting to be read."""
        if is_paused:
            self._paused.add(connection)
        else:
            self._paused.discard(connection)

    def release(self, connection: DataConnection) -> None:
        self._paused.discard(connection)
        self._connections.discard(connection)

    def count(self, what: str) -> None:
        self._figures[what] += 1

    def _on_refused(self, cause: str, peer: str = "", words: str = "", listener: str = "") -> None:
        self.count("refused")
        if words and self.refusals is not None:
            self.refusals.refused(words, address=peer, listener=listener)

    def counters(self) -> dict[str, int | float]:
        figures = {f"datasub_{name}": number for name, number in self._figures.items()}
        return {"datasub_connections": len(self._connections), **figures}
