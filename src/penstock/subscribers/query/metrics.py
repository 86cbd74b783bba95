"""The numbers of data subscription, read from memory: asking for them asks nobody else."""

from __future__ import annotations

from collections.abc import Iterator

from penstock.core.metrics import GroupSample
from penstock.subscribers.query.catalogue import Catalogue
from penstock.subscribers.query.dead_letters import DeadLetterLog
from penstock.subscribers.query.fetching import Fetching
from penstock.subscribers.query.making import Parts
from penstock.subscribers.query.source import Source


class DataMetrics:
    def __init__(
        self, source: Source, fetching: Fetching, dead_letters: DeadLetterLog, groups: Parts, catalogue: Catalogue
    ) -> None:
        self._source = source
        self._fetching = fetching
        self._dead_letters = dead_letters
        self._groups = groups
        self._catalogue = catalogue

    def counters(self) -> dict[str, int | float]:
        fetching, live = self._fetching, self._fetching.live
        lags = [sample.lag for sample in self.samples()]
        return {
            "datasub_topics": sum(1 for _ in self._catalogue.topics()),
            "datasub_queries": len(live.feeds),
            "datasub_feed_bytes": fetching.memory.bytes,
            "datasub_parked": fetching.parked,
            "datasub_readers": self._source.readers.in_use,
            "datasub_fetches": fetching.figures["fetches"],
            "datasub_rows": fetching.figures["rows"],
            "datasub_evaluated": live.records,
            "datasub_catch_up_records": fetching.figures["catch_up_records"],
            "datasub_out_of_range": fetching.figures["out_of_range"],
            "datasub_overdue": fetching.figures["overdue"],
            "datasub_dead_letters": self._dead_letters.reported,
            "datasub_dead_letters_lost": self._dead_letters.lost,
            "datasub_lag": sum(lags),
            "datasub_lag_max": max(lags, default=0),
            **{f"datasub_{name}": number for name, number in self._groups.counters().items()},
            **self._groups.calls(),
        }

    def samples(self) -> Iterator[GroupSample]:
        """How far each group of a topic is behind, all partitions together."""
        for (group, topic), positions in self._groups.progress.positions().items():
            lag = 0
            for partition, position in positions.items():
                seen = self._source.last_seen(partition)
                lag += 0 if seen is None else max(0, seen[1] - max(position, seen[0]))
            yield GroupSample(f"{group}:{topic}", lag)
