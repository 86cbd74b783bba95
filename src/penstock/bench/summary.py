"""Medians of repeated runs, how far they disagree, and what went wrong in any of them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Run = dict[str, Any]
# What a correct broker never shows under these loads, whatever its speed.
FAULTS = ("lost", "duplicates", "disordered", "downgraded", "refused", "corrupt", "stalls", "disconnects", "unclosed")


def median_of(runs: Sequence[Run], field: str) -> float | None:
    values = [run[field] for run in runs if field in run]
    return statistics.median(values) if values else None


def spread_of(runs: Sequence[Run], field: str) -> float | None:
    """(max - min) / median: how far the repetitions disagree."""
    values = [run[field] for run in runs if field in run]
    middle = statistics.median(values) if values else 0
    return (max(values) - min(values)) / middle if middle else None


def faults_of(runs: Sequence[Run]) -> list[str]:
    worst = {fault: max((run.get(fault, 0) for run in runs), default=0) for fault in FAULTS}
    errors = sorted({str(run["error"]) for run in runs if "error" in run})
    return [f"{name} {count:,}" for name, count in worst.items() if count] + errors


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
