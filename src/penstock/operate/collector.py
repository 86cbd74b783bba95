"""The counters as Prometheus reads them, with those of the process and the build."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from penstock.core.metrics import (
    PREFIX,
    ClientSample,
    Family,
    GroupSample,
    Number,
    QueueSample,
    ShareSample,
    describe,
    describe_clients,
    describe_groups,
    describe_queues,
    describe_shares,
    histograms_of,
)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Several scrapers cost no more than one, and a client in a loop costs little.
CACHE_SECONDS = 1.0


ReadCounters = Callable[[], Mapping[str, Number]]
ReadClients = Callable[[], Iterable[ClientSample]]
ReadShares = Callable[[], Iterable[ShareSample]]
ReadGroups = Callable[[], Iterable[GroupSample]]
ReadQueues = Callable[[], Iterable[QueueSample]]


class BrokerCollector(Collector):
    """Reads the counters once per scrape, and those of the clients and shares that are shown one by one."""

    def __init__(
        self,
        read_counters: ReadCounters,
        read_clients: ReadClients | None = None,
        read_shares: ReadShares | None = None,
        most_clients: int = 0,
        *,
        read_groups: ReadGroups | None = None,
        most_groups: int = 0,
        read_queues: ReadQueues | None = None,
        most_queues: int = 0,
    ) -> None:
        self._read_groups = read_groups
        self._most_groups = most_groups
        self._read_counters = read_counters
        self._read_clients = read_clients
        self._read_shares = read_shares
        self._most_clients = most_clients
        self._read_queues = read_queues
        self._most_queues = most_queues

    def describe(self) -> list[Metric]:
        """Nothing ahead of time: the counters say themselves what there is."""
        return []

    def collect(self) -> Iterator[Metric]:
        families = describe(self._read_counters())
        if self._read_clients is not None and self._most_clients:
            families += describe_clients(self._read_clients(), self._most_clients)
        if self._read_shares is not None and self._most_clients:
            families += describe_shares(self._read_shares(), self._most_clients)
        if self._read_groups is not None and self._most_groups:
            families += describe_groups(self._read_groups(), self._most_groups)
        if self._read_queues is not None and self._most_queues:
            families += describe_queues(self._read_queues(), self._most_queues)
        for family in families:
            yield _as_metric(family)


def _as_metric(family: Family) -> Metric:
    meaning = family.meaning
    if meaning.kind == "histogram":
        histogram = HistogramMetricFamily(PREFIX + meaning.name, meaning.help, labels=[meaning.label])
        for label, (buckets, total) in histograms_of(family).items():
            histogram.add_metric([label], buckets, total)
        return histogram
    make = CounterMetricFamily if meaning.kind == "counter" else GaugeMetricFamily
    metric = make(PREFIX + meaning.name, meaning.help, labels=[meaning.label] if meaning.label else [])
    for label, number in family.samples:
        metric.add_metric([label] if meaning.label else [], number)
    return metric


class MetricsPage:
    """The text of /metrics, made at most once per second."""

    def __init__(
        self,
        read_counters: ReadCounters,
        version: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        read_clients: ReadClients | None = None,
        read_shares: ReadShares | None = None,
        most_clients: int = 0,
        read_queues: ReadQueues | None = None,
        most_queues: int = 0,
        read_groups: ReadGroups | None = None,
        most_groups: int = 0,
    ) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        named = (read_clients, read_shares, most_clients)
        collector = BrokerCollector(
            read_counters,
            *named,
            read_queues=read_queues,
            most_queues=most_queues,
            read_groups=read_groups,
            most_groups=most_groups,
        )
        self._registry.register(collector)
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
