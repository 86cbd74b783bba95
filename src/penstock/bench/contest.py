"""`penstock bench compare`: scenarios of `penstock bench` against brokers that are started for it, and its table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from penstock._ext.load import LoadError
from penstock.bench.brokers import COMMANDS, Broker
from penstock.bench.comparison import Comparison, Measurement, Turns, watch_others
from penstock.bench.machine import describe_machine, describe_versions
from penstock.bench.runner import run_scenario
from penstock.bench.scenarios import SCENARIOS, Request
from penstock.bench.summary import Run, faults_of, median_of, number, spread_of
from penstock.core.errors import PenstockError, UsageError

DISTURBED_CORES = 0.3


@dataclass(frozen=True)
class Figure:
    """A column of the table, as a field of a run."""

    title: str
    field: str
    is_traffic: bool
    has_ratio: bool = True


FIGURES = (
    Figure("messages/s", "rate", True),
    Figure("messages/CPU-s", "msgs_per_cpu_s", True),
    Figure("p50 µs", "p50_us", True),
    Figure("p99 µs", "p99_us", True),
    Figure("connects/s", "connects_per_s", False),
    Figure("connects/CPU-s", "connects_per_cpu_s", False),
    Figure("bytes/connection", "bytes_per_conn", False),
    Figure("resident KiB", "rss_kb", True, has_ratio=False),
)


def parse_broker(text: str) -> Broker:
    """`name=command`, or the name of a broker we know how to start."""
    name, separator, command = text.partition("=")
    if not separator:
        if name not in COMMANDS:
            raise UsageError(
                f"--broker {text!r}: write NAME=COMMAND with {{port}} in it, or one of {', '.join(COMMANDS)}"
            )
        command = COMMANDS[name]
    elif not name or not command.strip():
        raise UsageError(f"--broker {text!r}: write NAME=COMMAND with {{port}} in it")
    return Broker(name, command)


def measurement_of(request: Request) -> Measurement:
    """One scenario as a turn of a comparison."""

    def measure(broker: Broker) -> Run:
        asked = replace(request, port=broker.port, pids=tuple(broker.pids()))
        try:
            return watch_others(broker, time.process_time, lambda: dict(run_scenario(asked).figures))
        except LoadError as error:
            return {"error": str(error)}

    return Measurement(request.scenario, measure, needs_fresh_process=request.scenario == "idle")


def compare_brokers(
    brokers: Sequence[Broker],
    requests: Sequence[Request],
    reps: int,
    quiet: float,
    told: Callable[[str, int, Run], None],
) -> dict[str, Any]:
    """The whole comparison as a document."""
    if len({broker.name for broker in brokers}) != len(brokers):
        raise UsageError("--broker: each needs a name of its own")
    started = datetime.now(UTC).replace(microsecond=0)
    turns = Turns(reps, quiet, told=told)
    runs = Comparison(brokers, [measurement_of(request) for request in requests], turns).run()
    return {
        "date": started.isoformat(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "commands": {broker.name: broker.command for broker in brokers},
        "settings": {"reps": reps, "secs": requests[0].duration},
        "summary": summarise(runs, [broker.name for broker in brokers]),
        "runs": runs,
    }


def summarise(runs: Sequence[Run], brokers: Sequence[str]) -> list[dict[str, Any]]:
    """Medians of each figure by scenario and broker, with their ratio to the first broker's."""
    rows = []
    for scenario in dict.fromkeys(run["test"] for run in runs):
        of_it = [run for run in runs if run["test"] == scenario]
        for figure in FIGURES:
            medians = {
                broker: median_of([run for run in of_it if run["broker"] == broker], figure.field) for broker in brokers
            }
            if SCENARIOS[scenario].is_traffic == figure.is_traffic and any(medians.values()):
                cells = {broker: _cell_of(of_it, broker, figure, medians) for broker in brokers}
                rows.append({"scenario": scenario, "figure": figure.title, "brokers": cells})
    return rows


def _cell_of(
    runs: Sequence[Run], broker: str, figure: Figure, medians: dict[str, float | None]
) -> dict[str, float | None]:
    base, own = next(iter(medians.values())), medians[broker]
    return {
        "median": own,
        "ratio": own / base if figure.has_ratio and base and own is not None else None,
        "spread": spread_of([run for run in runs if run["broker"] == broker], figure.field),
    }


def table_of(document: dict[str, Any]) -> str:
    """Columns of text; the ratio to the first broker stands in brackets."""
    brokers = list(document["commands"])
    lines = [["scenario", "figure", *brokers]]
    for row in document["summary"]:
        cells = [_cell(row["brokers"][broker], broker == brokers[0]) for broker in brokers]
        lines.append([row["scenario"], row["figure"], *cells])
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    text = []
    for line in lines:
        padded = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        padded[:2] = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        text.append("  ".join(padded))
    return "\n".join([*text, *remarks_of(document)])


def _cell(cell: dict[str, Any], is_base: bool) -> str:
    # a small ratio would be 0.00 with two decimals
    digits = ".2f" if cell["ratio"] is None or cell["ratio"] >= 0.1 else ".2g"
    ratio = f" ({cell['ratio']:{digits}}x)" if cell["ratio"] is not None and not is_base else ""
    return number(cell["median"]) + ratio


def remarks_of(document: dict[str, Any]) -> list[str]:
    """What makes a figure doubtful, once per scenario and broker."""
    said: dict[str, None] = {}
    runs = document["runs"]
    for run in runs:
        own = [other for other in runs if (other["test"], other["broker"]) == (run["test"], run["broker"])]
        if faults := faults_of(own):
            said[f"{run['test']}, {run['broker']}: {', '.join(faults)}"] = None
        if (median_of(own, "other_cores") or 0) > DISTURBED_CORES:
            said[f"{run['test']}, {run['broker']}: other programs were busy, doubt the figures"] = None
    return [f"! {text}" for text in said]


def check_failed(document: dict[str, Any]) -> None:
    """Raises PenstockError when a broker could not be measured at all."""
    failed = [run for run in document["runs"] if "error" in run]
    if failed:
        raise PenstockError(f"{failed[0]['broker']}, {failed[0]['test']}: {failed[0]['error']}")
