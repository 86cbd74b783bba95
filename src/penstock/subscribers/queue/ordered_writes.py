"""Writes to the state store that keep their order when some of them fail.

    write ─▶ store ─▶ stored ──────────────▶ the groups hear of it
               └────▶ failed ─▶ backlog ─▶ one write every RETRY_SECONDS, until the store accepts it

1. While the backlog has changes, new changes join it: they never overtake the older ones.
2. The backlog has the newest value of each key, so its size is bounded by the number of keys.
3. The store may accept a write that was under way when an earlier one failed. The backlog then drops its older
   values of the same keys, and the groups of the accepted write hear of it when the backlog is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from penstock._ext.hub.connection import QueueGroup
from penstock.core.logging import Throttled, get_logger
from penstock.core.ports import Scheduler
from penstock.storage.state.base import Change, StateStore, StoreError

log = get_logger("penstock.queues")

RETRY_SECONDS = 0.5

OnSaved = Callable[[StoreError | None], None]
Marks = Sequence[tuple[QueueGroup, int]]


class OrderedWrites:
    """`comes_last` selects changes that must not become durable before the others of a write."""

    def __init__(self, store: StateStore, scheduler: Scheduler, *, comes_last: Callable[[Change], bool]) -> None:
        self._store = store
        self._scheduler = scheduler
        self._comes_last = comes_last
        self._number = 0  # of the last write
        self._under_way = 0
        self._backlog: dict[tuple[str, bytes], tuple[int, bytes | None]] = {}  # with the number of the write
        self._marks: dict[QueueGroup, int] = {}  # of groups that wait for the backlog
        self._warnings = Throttled(log, interval=10.0)

    @property
    def has_backlog(self) -> bool:
        return bool(self._backlog)

    def write(self, changes: Sequence[Change], marks: Marks, on_done: OnSaved | None = None) -> None:
        """Store the changes now or later, then tell the groups; `on_done` hears whether they were stored at once."""
        if not self._backlog:
            self._send(changes, marks, on_done)
            return
        self._number += 1
        self._keep(self._number, changes)
        self._tell(marks)
        if on_done is not None:
            on_done(StoreError("earlier changes are not stored yet"))

    def write_once(self, changes: Iterable[Change], on_done: OnSaved) -> None:
        """Store the changes now or not at all."""
        self._number += 1
        number, given = self._number, list(changes)

        def on_answer(error: StoreError | None) -> None:
            if error is None:
                self._drop_older(number, given)
            on_done(error)
            self._tell(())

        self._store.store(given, on_answer)

    def _send(self, changes: Sequence[Change], marks: Marks, on_done: OnSaved | None = None) -> None:
        self._number += 1
        self._under_way += 1
        self._store.store(changes, partial(self._on_answer, self._number, changes, marks, on_done))

    def _on_answer(
        self, number: int, changes: Sequence[Change], marks: Marks, on_done: OnSaved | None, error: StoreError | None
    ) -> None:
        self._under_way -= 1
        if error is None:
            self._drop_older(number, changes)
        else:
            self._warnings.error("the state of queues cannot be stored now", error=str(error))
            if changes and not self._backlog:
                self._scheduler.call_later(RETRY_SECONDS, self._retry)
            self._keep(number, changes)
        if on_done is not None:
            on_done(error)
        self._tell(marks)

    def _keep(self, number: int, changes: Iterable[Change]) -> None:
        for table, key, value in changes:
            if self._backlog.get((table, key), (0, None))[0] < number:
                self._backlog.pop((table, key), None)
                self._backlog[table, key] = number, value

    def _drop_older(self, number: int, changes: Iterable[Change]) -> None:
        for table, key, _ in changes:
            kept = self._backlog.get((table, key))
            if kept is not None and kept[0] <= number:
                del self._backlog[table, key]

    def _tell(self, marks: Marks) -> None:
        """Report marks in their order: a group takes everything up to its mark as durable."""
        for group, mark in marks:
            self._marks[group] = max(mark, self._marks.get(group, 0))
        if not self._backlog:
            waiting, self._marks = self._marks, {}
            for group, mark in waiting.items():
                group.stored(mark)

    def _retry(self) -> None:
        if not self._backlog:
            return
        if not self._under_way:  # else a write under way could be newer than the backlog
            changes: list[Change] = [(table, key, value) for (table, key), (_, value) in self._backlog.items()]
            changes.sort(key=self._comes_last)
            self._send(changes, ())
        self._scheduler.call_later(RETRY_SECONDS, self._retry)
