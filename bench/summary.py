"""From the single runs of a result to its table: medians, ratios to the base broker, targets and what went wrong."""

from __future__ import annotations

from typing import Any

from bench.scenarios import BASE, SCENARIOS, SUBJECT, Figure
from penstock_bench.summary import Run, compare_figure, faults_of, median_of, number

Row = dict[str, Any]
DISTURBED_CORES = 0.3


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
    for name, scenario in SCENARIOS.items():
        if name not in present:
            continue
        by_broker = {b: [run for run in runs if run["test"] == name and run["broker"] == b] for b in brokers}
        rows += [summarise_figure(name, figure, by_broker) for figure in scenario.figures]
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
