"""How long answers take, in buckets that double: one addition per answer, any quantile afterwards."""

from __future__ import annotations

_BUCKETS = 40  # of microseconds: the last begins at six days


class Latency:
    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self._seconds = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        self._counts[min(int(seconds * 1e6).bit_length(), _BUCKETS - 1)] += 1
        self._seconds += seconds
        self.count += 1

    @property
    def mean_ms(self) -> float:
        return self._seconds * 1e3 / self.count if self.count else 0.0

    def quantile_ms(self, quantile: float) -> float:
        """The upper end of the bucket the quantile is in: at most twice the true value."""
        wanted = quantile * self.count
        seen = 0
        for number, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return float((1 << number) / 1e3)
        return 0.0
