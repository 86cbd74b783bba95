"""Results of parts of the broker that are measured in one process: saved like those of whole brokers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock_bench.suite import keep_result, make_result
from penstock_bench.summary import markdown_table, summarise_figure
from penstock_bench.targets import Figure

RESULTS = Path(__file__).resolve().parent / "results"


def save_part(
    folder: str, provider: str, figures: Sequence[Figure], values: dict[str, dict[str, float]], **settings: Any
) -> None:
    """`values` by who was measured, penstock and its peers, then by the field of the figure."""
    runs = [{"rep": 0, "test": folder, "broker": who, **fields} for who, fields in values.items()]
    by_broker = {run["broker"]: [run] for run in runs}
    rows = [summarise_figure(folder, figure, by_broker) for figure in figures]
    keep_result(make_result(runs, rows, settings, provider=provider), RESULTS / folder)
    print(markdown_table(rows))
