"""Messages of DEVICE clients that wait: in the store, on their way into it, or for an earlier one that failed."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field

from penstock._ext.device.outlet import DeviceOutlet
from penstock._ext.dispatch.desk import Round
from penstock._ext.hub.connection import Session
from penstock.subscribers.device.store.base import Addition, Queue


@dataclass(slots=True, eq=False)
class Backlog:
    """Messages that wait in the store for a connected client."""

    outlet: DeviceOutlet
    queue: Queue
    generation: int
    packet_ids: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    at: int = 0
    score: int = -1
    reconnects: int = 0  # of the store, when it was read last
    is_last: bool = False
    is_fetching: bool = False
    moving: int = 0
    on_drained: Callable[[], None] | None = None  # the client is an APPLICATION now: the rest of it begins then
    # Shared filters, to be drained when nothing is on its way into the store, and how the client subscribed to each.
    groups: list[tuple[bytes, bytes]] = field(default_factory=list)
    settled: set[int] = field(default_factory=set)  # acknowledged since the page that comes was asked for

    @property
    def session(self) -> Session:
        return self.outlet.session


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """An addition on its way into the store; `sent` of its messages, at the front, were sent already."""

    addition: Addition
    session: Session | None
    dispatched: Round | None = None
    sent: int = 0
    number: int = field(default_factory=itertools.count(1).__next__)  # the order in which additions are stored


@dataclass(slots=True, eq=False)
class Held:
    """A queue whose calls go one at a time: what is to be added, in order, because something before it has failed; and
    before all of it, if it `must_clear`, what an earlier session has left goes."""

    items: list[Given] = field(default_factory=list)
    settled: array[int] = field(default_factory=lambda: array("H"))  # acknowledged meanwhile: removed after them
    must_clear: bool = False
    is_busy: bool = False
    session: Session | None = None  # the new one, that begins when it is cleared
