"""Events of the partition service: told in order, one after the other, however they arise."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from penstock.core.logging import get_logger
from penstock.services.model import OtherServiceShutdown, PartitionChange, PartitionEvent

E = TypeVar("E", bound=PartitionEvent)
_log = get_logger("penstock.partition")


class Listener:
    """Passes events on, but never one that is older than what it has passed on about the same subject."""

    def __init__(self, kind: type[PartitionEvent], callback: Callable[[Any], None]) -> None:
        self.kind = kind
        self.ignored = 0
        self._callback = callback
        self._seen: dict[Hashable, int] = {}

    def __call__(self, event: PartitionEvent) -> None:
        subject = _subject(event)
        if event.sequence <= self._seen.get(subject, -1):
            self.ignored += 1
            return
        self._seen[subject] = event.sequence
        self._callback(event)


def _subject(event: PartitionEvent) -> Hashable:
    if isinstance(event, PartitionChange):
        return event.service_type
    if isinstance(event, OtherServiceShutdown):
        # One stream for all members: ids come and go, and this memory must not grow with them.
        return "shutdown"
    return None


class EventBus:
    """Numbers events and tells them. One that arises while another is told waits: all listeners see the same order."""

    def __init__(self) -> None:
        self._sequence = 0
        self._listeners: list[Listener] = []
        self._waiting: deque[PartitionEvent] = deque()
        self._is_telling = False

    def listen(self, kind: type[E], callback: Callable[[E], None]) -> Callable[[], None]:
        """Calls back on every event of a kind; returns what ends that."""
        listener = Listener(kind, callback)
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener) if listener in self._listeners else None

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def publish(self, *events: PartitionEvent) -> None:
        self._waiting.extend(events)
        if self._is_telling:
            return
        self._is_telling = True
        try:
            while self._waiting:
                self._tell(self._waiting.popleft())
        finally:
            self._is_telling = False

    def _tell(self, event: PartitionEvent) -> None:
        for listener in tuple(self._listeners):
            if listener.kind is not type(event):
                continue
            try:
                listener(event)
            except Exception as error:  # one listener's bug must not keep the others from their partitions
                _log.error("a listener failed", event=type(event).__name__, sequence=event.sequence, error=repr(error))
