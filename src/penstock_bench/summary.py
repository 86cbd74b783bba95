"""From single runs to tables: medians, ratios to the base broker, targets, how far runs disagree, what went wrong."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from penstock_bench.targets import BASE, CASES, SUBJECT, Figure

Run = dict[str, Any]
Row = dict[str, Any]
DISTURBED_CORES = 0.3
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


def disturbance_of(runs: list[Run]) -> str:
    """Says when something else on the machine was busy beside the measurement: its figures are to be doubted. What the
    broker keeps its messages in is part of the measurement."""
    own = (median_of(runs, "kafka_cores") or 0) + (median_of(runs, "redis_cores") or 0)
    cores = (median_of(runs, "other_cores") or 0) - own
    return f"{cores:.1f} other cores busy" if cores > DISTURBED_CORES else ""


def summarise_figure(scenario: str, figure: Figure, by_broker: dict[str, list[Run]]) -> Row:
    compared = compare_figure(by_broker, figure.field, BASE)
    base = compared[BASE].median if BASE in compared else None
    cells: dict[str, Row] = {}
    for broker, (value, ratio, spread) in compared.items():
        faults = faults_of(by_broker[broker])
        reached = figure.target.reached(value, base) if figure.target and value is not None else None
        cells[broker] = {
            "value": value,
            "ratio": ratio,
            "spread": spread,
            "reached": bool(reached and not faults) if reached is not None else None,
            "faults": faults,
            "disturbance": disturbance_of(by_broker[broker]),
        }
    return {
        "scenario": scenario,
        "title": figure.title,
        "unit": figure.unit,
        "less_is_better": figure.is_less_better,
        "target": str(figure.target) if figure.target else "",
        "target_ratio": figure.target.value if figure.target and figure.target.is_ratio else None,
        "brokers": cells,
    }


def summarise(runs: list[Run]) -> list[Row]:
    rows = []
    brokers = list(dict.fromkeys(run["broker"] for run in runs))
    present = {run["test"] for run in runs}
    for name, case in CASES.items():
        if name not in present:
            continue
        by_broker = {b: [run for run in runs if run["test"] == name and run["broker"] == b] for b in brokers}
        rows += [summarise_figure(name, figure, by_broker) for figure in case.figures]
    return rows


def missed_targets(rows: list[Row], subject: str = SUBJECT) -> list[str]:
    """Rows whose target the subject does not reach; no figure at all is a miss too."""
    return [
        row["title"] for row in rows if row["target"] and (cell := row["brokers"].get(subject)) and not cell["reached"]
    ]


def cell_text(cell: Row | None, broker: str) -> str:
    if not cell or cell["value"] is None:
        return "-"
    ratio = f" ({cell['ratio']:.2f}x)" if cell["ratio"] is not None and broker != BASE else ""
    return number(cell["value"]) + ratio


def verdict(row: Row, subject: str) -> str:
    cell = row["brokers"].get(subject)
    if not row["target"] or not cell:
        return ""
    return {True: "yes", False: "no", None: "not measured"}[cell["reached"]]


def remarks(row: Row) -> str:
    said = {broker: [*cell["faults"], *filter(None, [cell["disturbance"]])] for broker, cell in row["brokers"].items()}
    return "; ".join(f"{broker}: {', '.join(what)}" for broker, what in said.items() if what)


def ordered_brokers(rows: list[Row]) -> list[str]:
    """The base first, the subject last, peers between them."""
    names = list(dict.fromkeys(name for row in rows for name in row["brokers"]))
    return sorted(names, key=lambda name: (name == SUBJECT, name != BASE))


def markdown_table(rows: list[Row], subject: str = SUBJECT) -> str:
    brokers = ordered_brokers(rows)
    has_remarks = any(remarks(row) for row in rows)
    head = ["scenario", "unit", *brokers, "target", "reached", *(["remarks"] if has_remarks else [])]
    lines = ["| " + " | ".join(head) + " |", "|---|---" + "|---:" * len(brokers) + "|---|---|" + "---|" * has_remarks]
    for row in rows:
        cells = [cell_text(row["brokers"].get(broker), broker) for broker in brokers]
        line = [row["title"], row["unit"], *cells, row["target"], verdict(row, subject)]
        if has_remarks:
            line.append(remarks(row))
        lines.append("| " + " | ".join(line) + " |")
    return "\n".join(lines)
