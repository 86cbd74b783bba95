"""Disconnects clients when their identity expires, such as that of a token (`Identity.expires_at`)."""

from __future__ import annotations

import time
from collections.abc import Callable

from penstock._ext.hub.connection import Connection
from penstock._ext.wire.packets import Reason
from penstock.access.base import Identity
from penstock.core.ports import Scheduler, Timer

EXPIRED = "the credentials have expired"


class Expiries:
    """One timer for each connection whose identity expires. A client that authenticates again in time stays."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float] = time.time) -> None:
        self._scheduler = scheduler
        self._clock = clock
        self._timers: dict[Connection, Timer] = {}

    def watch(self, connection: Connection, identity: Identity) -> None:
        self.forget(connection)
        if identity.expires_at is not None:
            delay = max(0.0, identity.expires_at - self._clock())
            self._timers[connection] = self._scheduler.call_later(delay, self._expire, connection)

    def forget(self, connection: Connection) -> None:
        if self._timers and (timer := self._timers.pop(connection, None)) is not None:
            timer.cancel()

    def _expire(self, connection: Connection) -> None:
        self._timers.pop(connection, None)
        connection.disconnect(Reason.MAXIMUM_CONNECT_TIME, EXPIRED)
