"""Results of parts of the broker that are measured in one process: saved like those of whole brokers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bench.compare import RESULTS, write_result
from bench.scenarios import SUBJECT, Figure
from bench.summary import markdown_table, summarise_figure
from penstock_bench.machine import describe_machine, describe_versions


def save_part(
    folder: str, provider: str, figures: Sequence[Figure], values: dict[str, dict[str, float]], **settings: Any
) -> None:
    """`values` by who was measured, penstock and its peers, then by the field of the figure."""
    runs = [{"rep": 0, "test": folder, "broker": who, **fields} for who, fields in values.items()]
    by_broker = {run["broker"]: [run] for run in runs}
    rows = [summarise_figure(folder, figure, by_broker) for figure in figures]
    date = datetime.now(UTC).replace(microsecond=0).isoformat()
    result = {
        "date": date,
        "provider": provider,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "settings": settings,
        "summary": rows,
        "runs": runs,
    }
    write_result(result, RESULTS / folder / f"{date[:16].replace(':', '')}-{provider}.json")
    print(markdown_table(rows, SUBJECT))
