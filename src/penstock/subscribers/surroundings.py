"""Everything that a kind of subscriber from outside the tree may need to make itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock._ext.hub.connection import Hub
from penstock.settings import Settings
from penstock.storage.log.base import Log
from penstock.storage.state.base import StateStore
from penstock.subscribers.base import FindSession, Subscriber


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Argument of a kind's factory. Nothing has started when the factory is called."""

    settings: Settings  # as at the start
    loop: asyncio.AbstractEventLoop
    hub: Hub
    find_session: FindSession
    state: StateStore
    log: Log | None  # None where `ingest.log` is "none"
    # An outlet that is the intake of a session gets messages of the log from the end of this call on. Raises LogError,
    # and Refused where there is no log.
    read_log: Callable[[], Awaitable[None]]


MakeKind = Callable[[Surroundings], Subscriber]
"""A kind that serves filters of its own in a broker, beside those that the broker makes itself."""
