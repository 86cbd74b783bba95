"""How long answers take: how many in each bucket, from which a histogram of Prometheus and any quantile are made."""

from __future__ import annotations

from bisect import bisect_left

from penstock.core.metrics import Number, histogram_counters

# Upper ends, in seconds. 5 is one of them because that is from where on answers count as slow.
BOUNDS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)


class Latency:
    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._seconds = 0.0
        self._longest = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._seconds += seconds
        self.count += 1
        self._longest = max(self._longest, seconds)

    @property
    def mean_ms(self) -> float:
        """Since the start."""
        return self._seconds * 1e3 / self.count if self.count else 0.0

    def quantile_ms(self, quantile: float) -> float:
        """Since the start: the upper end of the bucket it is in, at most two and a half times the true value."""
        wanted = quantile * self.count
        seen = 0
        for bound, count in zip((*BOUNDS, self._longest), self._counts, strict=True):
            seen += count
            if count and seen >= wanted:
                return min(bound, self._longest) * 1e3
        return 0.0

    def counters(self, key: str) -> dict[str, Number]:
        """The histogram, for metrics."""
        return histogram_counters(key, BOUNDS, self._counts, self._seconds)
