"""The counters as Prometheus reads them, with those of the process and the build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.core.metrics import PREFIX, Family, Number, describe

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Several scrapers cost no more than one, and a client in a loop costs little.
CACHE_SECONDS = 1.0


class BrokerCollector(Collector):
    """Reads the counters once per scrape."""

    def __init__(self, read_counters: Callable[[], Mapping[str, Number]]) -> None:
        self._read_counters = read_counters

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the counters say themselves what there is."""
        return []

    def collect(self) -> Iterator[Metric]:
        for family in describe(self._read_counters()):
            yield _as_metric(family)


def _as_metric(family: Family) -> Metric:
    meaning = family.meaning
    make = CounterMetricFamily if meaning.kind == "counter" else GaugeMetricFamily
    metric = make(PREFIX + meaning.name, meaning.help, labels=[meaning.label] if meaning.label else [])
    for label, number in family.samples:
        metric.add_metric([label] if meaning.label else [], number)
    return metric


class MetricsPage:
    """The text of /metrics, made at most once per second."""

    def __init__(
        self,
        read_counters: Callable[[], Mapping[str, Number]],
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        self._registry.register(BrokerCollector(read_counters))
        ProcessCollector(registry=self._registry)
        build = Gauge(f"{PREFIX}build_info", "The version that runs; always 1.", ["version"], registry=self._registry)
        build.labels(version).set(1)
        self._text = b""
        self._made_at = float("-inf")

    def render(self) -> bytes:
        now = self._clock()
        if now - self._made_at >= CACHE_SECONDS:
            self._text = generate_latest(self._registry)
            self._made_at = now
        return self._text
