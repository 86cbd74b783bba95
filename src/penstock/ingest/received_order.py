"""Stores the QoS 2 packet ids of batches whose messages are in the log, and again until the store has them.

Their senders must not hear that a message failed which the log has: they would send it again, and it would be logged
twice. So they wait. Each batch has all ids of a session as they were then, so those of an older batch must not be
stored over those of a younger one.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from penstock._ext.hub.connection import Session
from penstock.core.logging import Throttled, get_logger
from penstock.ingest.received import ReceivedIds
from penstock.storage.state.base import StoreError

log = get_logger("penstock.sessions")

RETRY_SECONDS = 0.5

Ids = list[tuple[Session, bytes]]


class _Batch(NamedTuple):
    number: int
    ids: Ids
    on_stored: Callable[[], None]


class OrderedIds:
    """On the loop. What waits is bounded by what the log may have pending."""

    def __init__(self, received: ReceivedIds) -> None:
        self._received = received
        self._warnings = Throttled(log, interval=10.0)
        self._under_way = 0
        self._waiting: list[_Batch] = []  # in order, from the first that failed on
        self._is_failing = False
        self._newest: dict[str, int] = {}  # while it fails: the last batch of a session that was stored

    def store(self, number: int, ids: Ids, on_stored: Callable[[], None]) -> None:
        """`number` grows from batch to batch."""
        batch = _Batch(number, ids, on_stored)
        if self._is_failing:
            insort(self._waiting, batch, key=attrgetter("number"))
        else:
            self._under_way += 1
            self._received.store(ids, partial(self._on_done, [batch]))

    def _on_done(self, batches: list[_Batch], error: StoreError | None) -> None:
        self._under_way -= 1
        if error is not None:
            self._put_off(batches, error)
            return
        if self._is_failing:
            for batch in batches:
                for session, _ in batch.ids:
                    self._newest[session.client_id] = max(batch.number, self._newest.get(session.client_id, 0))
        for batch in batches:
            batch.on_stored()
        if self._is_failing and not self._under_way and not self._waiting:
            self._is_failing = False
            self._newest.clear()

    def _put_off(self, batches: list[_Batch], error: StoreError) -> None:
        self._warnings.error("QoS 2 packet ids cannot be stored, their publishers wait", error=str(error))
        for batch in batches:
            insort(self._waiting, batch, key=attrgetter("number"))
        if not self._is_failing or not self._under_way:
            self._is_failing = True
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._store_waiting)

    def _store_waiting(self) -> None:
        if self._under_way:  # it may be newer than what waits, and fail or not
            asyncio.get_running_loop().call_later(RETRY_SECONDS, self._store_waiting)
            return
        if not self._waiting:
            return
        batches, self._waiting = self._waiting, []
        last: dict[str, tuple[Session, bytes]] = {}
        for batch in batches:
            for session, ids in batch.ids:
                if self._newest.get(session.client_id, -1) < batch.number:
                    last[session.client_id] = session, ids
        self._under_way += 1
        if last:
            self._received.store(list(last.values()), partial(self._on_stored_again, batches))
        else:
            self._on_stored_again(batches, None)

    def _on_stored_again(self, batches: list[_Batch], error: StoreError | None) -> None:
        self._on_done(batches, error)
        if error is None and self._waiting:
            self._store_waiting()
