"""Medians of repeated runs, how far they disagree, and what went wrong in any of them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Run = dict[str, Any]
# What a correct broker never shows under these loads, whatever its speed.
FAULTS = (
    "lost", "unacknowledged", "duplicates", "disordered", "downgraded", "refused", "corrupt", "stalls", "disconnects",
    "unclosed",
)  # fmt: skip


def median_of(runs: Sequence[Run], field: str) -> float | None:
    values = [run[field] for run in runs if field in run]
    return statistics.median(values) if values else None


def spread_of(runs: Sequence[Run], field: str) -> float | None:
    """(max - min) / median: how far the repetitions disagree."""
    values = [run[field] for run in runs if field in run]
    middle = statistics.median(values) if values else 0
    return (max(values) - min(values)) / middle if middle else None


class Compared(NamedTuple):
    """A figure of one broker: its median, that by the base broker's, and how far the repetitions disagree."""

    median: float | None
    ratio: float | None
    spread: float | None


def compare_figure(by_broker: Mapping[str, Sequence[Run]], field: str, base: str) -> dict[str, Compared]:
    """The figure of every broker."""
    medians = {broker: median_of(runs, field) for broker, runs in by_broker.items()}
    of_base = medians.get(base)
    return {
        broker: Compared(
            own, own / of_base if own is not None and of_base else None, spread_of(by_broker[broker], field)
        )
        for broker, own in medians.items()
    }


def faults_of(runs: Sequence[Run]) -> list[str]:
    worst = {fault: max((run.get(fault, 0) for run in runs), default=0) for fault in FAULTS}
    errors = sorted({str(run["error"]) for run in runs if "error" in run})
    return [f"{name} {count:,}" for name, count in worst.items() if count] + errors


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
