"""Connections to the admin address, with limits: their total number, their number per client address, and the time of a
request.

A client that sends half a request must not keep a health check out. So a new connection takes the place of the one that
has waited longest without a complete request, and a request has to arrive within a limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

from penstock.core.logging import Throttled, get_logger
from penstock.core.process import descriptor_limit

log = get_logger("penstock.admin")

MOST_CONNECTIONS = 64
MOST_PER_ADDRESS = 32
DESCRIPTOR_SHARE = 16  # the admin address takes at most this fraction (1/16) of the process's descriptors
HEAD_SECONDS = 5.0
BODY_SECONDS = 60.0
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def connection_limit() -> int:
    """Return the limit, lower if the process may open few files: MQTT clients and the log need the others."""
    return max(8, min(MOST_CONNECTIONS, descriptor_limit() // DESCRIPTOR_SHARE))


class AdminProtocol(H11Protocol):
    """uvicorn's HTTP protocol with these limits."""

    most_connections = MOST_CONNECTIONS
    most_per_address = MOST_PER_ADDRESS
    head_seconds = HEAD_SECONDS
    body_seconds = BODY_SECONDS
    warnings = Throttled(log)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waiting_since = 0.0  # for the request, or for the client to take the answer
        self._unsent = 0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_served(self) -> bool:
        """Whether a complete request is being answered, and the client takes the answer."""
        if self.cycle is None or self.cycle.response_complete or self.cycle.more_body:
            return False
        return not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._timer = self.loop.call_later(self.head_seconds, self._look)
        if not self._make_room():
            self._warn("connection limit reached, admin connection refused", limit=self.most_connections)
            transport.write(BUSY)
            transport.close()

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its request, of the same address first; return False if no
        connection waits."""
        others = [cast("AdminProtocol", each) for each in self.connections if each is not self]
        same = [each for each in others if each.client and self.client and each.client[0] == self.client[0]]
        if len(same) >= self.most_per_address:
            return self._close_oldest(same)
        return len(others) < self.most_connections or self._close_oldest(others)

    def _close_oldest(self, candidates: Iterable[AdminProtocol]) -> bool:
        waiting = [each for each in candidates if not each.is_served]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda each: each.waiting_since)
        oldest._warn("connection limit reached, closing the admin connection that has waited longest")
        oldest.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _look(self) -> None:
        """Close the connection if its request has not arrived in time, or if the client has stopped taking the
        answer. The time that the broker takes for the answer does not count."""
        has_head = self.cycle is not None and not self.cycle.response_complete
        limit = self.body_seconds if has_head else self.head_seconds
        if self.flow.write_paused:
            unsent = self.transport.get_write_buffer_size()
            if unsent < self._unsent:
                self.waiting_since = self.loop.time()  # the client takes the answer, slowly
            self._unsent = unsent
        left = self.waiting_since + limit - self.loop.time()
        if self.is_served:
            left = self.head_seconds
        elif left <= 0:
            self._warn("admin request or answer not transferred in time, closing the connection", seconds=limit)
            self.transport.abort()
            return
        self._timer = self.loop.call_later(min(max(left, 0.05), self.head_seconds), self._look)

    def _warn(self, event: str, **fields: object) -> None:
        peer = self.client[0] if self.client else "unknown"
        self.warnings.warning(event, per=(event, peer), peer=peer, connections=len(self.connections), **fields)

    def pause_writing(self) -> None:
        self.waiting_since = self.loop.time()
        self._unsent = self.transport.get_write_buffer_size()
        super().pause_writing()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        super().connection_lost(exc)


def make_protocol() -> type[AdminProtocol]:
    """Return the protocol class with the limits of this process."""
    limit = connection_limit()

    class Limited(AdminProtocol):
        most_connections = limit
        most_per_address = max(1, min(MOST_PER_ADDRESS, limit // 2))
        warnings = Throttled(log)

    return Limited
