"""Pending entries of a consumer group: claim and settle, in C loops so that Python's own calls do not show."""

from __future__ import annotations

import pytest

from penstock._ext.queue.pending import PendingList

# One call is as short as it can be: on a busy machine only short rounds run undisturbed.
LEAST_PAIRS = 10_000


@pytest.mark.parametrize("depth", [100, 10_000, 100_000])
def test_claim_and_settle(benchmark, depth: int) -> None:
    pending = PendingList()
    rounds = max(1, LEAST_PAIRS // depth)
    benchmark(pending.bench_cycle, rounds, depth)
    benchmark.extra_info["ns_per_pair"] = round(benchmark.stats.stats.min * 1e9 / (rounds * depth), 1)
    assert len(pending) == 0


def test_changes_of_one_window(benchmark) -> None:
    """One nack and what has to be stored for it, with 10,000 entries pending."""
    pending = PendingList()
    for offset in range(10_000):
        pending.claim(offset, 1, offset)
    pending.take_changes()

    def nack_and_take() -> None:
        pending.nack(5_000, 0, 5_000)
        pending.take_changes()

    benchmark(nack_and_take)
