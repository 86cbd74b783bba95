"""In-flight windows: taking a packet id and giving it back, in C loops so that Python's own calls do not show."""

from __future__ import annotations

import pytest

from penstock._ext.hub.inflight import InflightWindow

ROUNDS = 1_000


@pytest.mark.parametrize("depth", [1, 100, 1_000])
def test_take_and_release(benchmark, depth: int) -> None:
    window = InflightWindow()
    benchmark(window.bench_cycle, max(1, ROUNDS * 100 // depth), depth)
    assert len(window) == 0
