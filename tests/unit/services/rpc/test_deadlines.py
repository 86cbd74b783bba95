"""Deadlines: never early, late by at most a tick, and no memory for what is done."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.core.metrics import describe, histograms_of
from penstock.services.rpc.deadlines import TICK, Deadlines
from penstock.services.rpc.latency import Latency


@given(
    deadlines=st.lists(st.floats(0, 100), max_size=60),
    removed=st.sets(st.integers(0, 59)),
    steps=st.lists(st.floats(0.001, 20), min_size=1, max_size=20),
)
def test_against_a_list(deadlines: list[float], removed: set[int], steps: list[float]) -> None:
    wheel: Deadlines[int] = Deadlines()
    for key, deadline in enumerate(deadlines):
        bucket = wheel.add(key, deadline)
        if key in removed:
            bucket.pop(key, None)
    waiting = {key: deadline for key, deadline in enumerate(deadlines) if key not in removed}
    now = 0.0
    for step in steps:
        now += step
        for key in wheel.expire(now):
            assert waiting.pop(key) <= now
        assert all(deadline > now - TICK for deadline in waiting.values())
        due = wheel.next_due
        assert due is None or due > now
        assert not waiting or due is not None


def test_finished_ones_leave_nothing_but_a_bucket_per_tick() -> None:
    """50,000 calls a second with a minute each would be three million entries in a heap of deadlines."""
    wheel: Deadlines[int] = Deadlines()
    for key in range(100_000):
        wheel.add(key, 60 + key / 50_000).pop(key)
    assert len(wheel) <= 2 / TICK + 2
    assert wheel.expire(1e9) == []
    assert wheel.next_due is None


def test_latency_quantiles() -> None:
    latency = Latency()
    assert latency.quantile_ms(0.99) == 0
    for milliseconds in range(1, 101):
        latency.add(milliseconds / 1_000)
    assert abs(latency.mean_ms - 50.5) < 1e-6
    assert 50 <= latency.quantile_ms(0.5) <= 100
    assert 99 <= latency.quantile_ms(0.99) <= 198
    latency.add(100.0)
    assert latency.quantile_ms(1.0) == 100_000, "beyond the last bucket the longest is known"


def test_latency_as_a_histogram() -> None:
    latency = Latency()
    for seconds in (0.003, 0.005, 4.9, 5.0, 5.1, 70.0):
        latency.add(seconds)
    (family,) = describe(latency.counters("response_lag_seconds_sessions"))
    assert family.meaning.kind == "histogram"
    buckets, total = histograms_of(family)["sessions"]
    assert total == pytest.approx(85.008)
    at_most = {float(edge): count for edge, count in buckets}
    assert list(at_most) == sorted(at_most)
    assert (at_most[0.002], at_most[0.005], at_most[5], at_most[10], at_most[60]) == (0, 2, 4, 5, 5)
    assert at_most[math.inf] == latency.count == 6
