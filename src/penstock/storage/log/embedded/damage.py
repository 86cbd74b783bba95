"""Damage that readers of the running log have met. They stop in front of it, and the broker reports it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from penstock.storage.log.base import LogDamaged, TopicPartition
from penstock.storage.log.embedded.topic import TopicView

MOST_NAMED = 3


class _Damage(NamedTuple):
    offset: int  # where the reader stands
    error: LogDamaged


class MetDamage:
    """At most one place of each partition: the first that a reader cannot pass."""

    def __init__(self, views: Mapping[str, TopicView]) -> None:
        self._views = views
        self._of: dict[TopicPartition, _Damage] = {}

    def note(self, partition: TopicPartition, offset: int, error: LogDamaged) -> None:
        known = self._of.get(partition)
        if known is None or offset <= known.offset:
            self._of[partition] = _Damage(offset, error)

    def note_read(self, partition: TopicPartition, offset: int) -> None:
        """What could not be read from this offset on can be read."""
        known = self._of.get(partition)
        if known is not None and known.offset == offset:
            del self._of[partition]

    def forget(self, topic: str) -> None:
        """It is deleted: one of the same name has none of it."""
        for partition in [place for place in self._of if place.topic == topic]:
            del self._of[partition]

    def __len__(self) -> int:
        self._forget_gone()
        return len(self._of)

    def describe(self) -> str:
        """Empty without damage."""
        self._forget_gone()
        named = sorted(self._of.items())[:MOST_NAMED]
        texts = [
            f"{topic}[{number}] from offset {damage.offset} on: {damage.error.message}. {damage.error.hint}"
            for (topic, number), damage in named
        ]
        others = len(self._of) - len(named)
        return "; ".join(texts + ([f"and {others} more partitions"] if others else []))

    def _forget_gone(self) -> None:
        """Truncation, retention and deletion take damaged records away as well."""
        for partition, damage in list(self._of.items()):
            if damage.offset < self._first(partition):
                del self._of[partition]

    def _first(self, partition: TopicPartition) -> float:
        view = self._views.get(partition.topic)
        if view is None or partition.partition >= view.config.partitions:
            return math.inf
        return view.watermarks(partition.partition).first
