"""`penstock bench compare`: scenarios of `penstock bench` against brokers that are started for it, and its table."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock._ext.load.generator import LoadError
from penstock.core.errors import PenstockError, UsageError
from penstock_bench.brokers import COMMANDS, Broker
from penstock_bench.comparison import Comparison, Measurement, Turns, watch_others
from penstock_bench.configurations import Configuration, configuration_of
from penstock_bench.connection_memory import WHY, describe_memory
from penstock_bench.machine import describe_machine, describe_versions, mosquitto_version
from penstock_bench.neighbours import DOUBT, is_disturbed
from penstock_bench.result import settings_line, settings_of
from penstock_bench.runner import Outcome, run_scenario
from penstock_bench.scenarios import SCENARIOS, Request
from penstock_bench.summary import Run, compare_figure, median_of, number

MOSQUITTO = "mosquitto"
HOW_TO_NAME = "write NAME=COMMAND with {port} in it"


@dataclass(frozen=True)
class Column:
    """A column of the table, as a field of a run."""

    title: str
    field: str
    is_traffic: bool
    has_ratio: bool = True


COLUMNS = (
    Column("messages/s", "rate", True),
    Column("messages/CPU-s", "msgs_per_cpu_s", True),
    Column("p50 µs", "p50_us", True),
    Column("p99 µs", "p99_us", True),
    Column("connects/s", "connects_per_s", False),
    Column("connects/CPU-s", "connects_per_cpu_s", False),
    Column("bytes/connection", "bytes_per_conn", False),
    Column("resident KiB", "rss_kb", True, has_ratio=False),
)


def parse_broker(text: str) -> Broker:
    """`name=command`, or the name of a broker we know how to start."""
    name, separator, command = text.partition("=")
    if not separator:
        if name not in COMMANDS:
            raise UsageError(f"--broker {text!r}: {HOW_TO_NAME}, or one of {', '.join(COMMANDS)}")
        command = COMMANDS[name]
    elif not name or not command.strip():
        raise UsageError(f"--broker {text!r}: {HOW_TO_NAME}")
    # Our file for mosquitto has the port in it.
    if "{port}" not in command and "{dir}/mosquitto.conf" not in command:
        raise UsageError(f"--broker {text!r}: the command lacks {{port}}: the broker has to listen on that port")
    try:
        shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--broker {text!r}: {error}") from None
    return Broker(name, command)


def check_scenarios(brokers: Sequence[Broker], requests: Sequence[Request]) -> None:
    """Raises UsageError for what one of the brokers does not have."""
    without_queues = [broker.name for broker in brokers if Path(broker.program).name == MOSQUITTO]
    if without_queues and any(request.scenario == "queue" for request in requests):
        raise UsageError(
            f"--scenario queue: {without_queues[0]} has no durable queues; name brokers that have: -b penstock"
        )


def measurement_of(request: Request) -> Measurement:
    """One scenario as a turn of a comparison."""

    def measure(broker: Broker) -> Run:
        asked = replace(request, port=broker.port, pids=tuple(broker.pids()))
        try:
            return watch_others(broker, time.process_time, lambda: run_of(run_scenario(asked)))
        except LoadError as error:
            return {"error": str(error)}

    return Measurement(request.scenario, measure, needs_fresh_process=request.scenario == "idle")


def run_of(outcome: Outcome) -> Run:
    """The figures of the last stage, which the scenario is about, and what went wrong in any."""
    if outcome.is_interrupted:
        raise KeyboardInterrupt  # half a run gives no figures, and the user does not want the next one either
    return {**outcome.figures, "faults": outcome.faults()}


def measure_all(brokers: Sequence[Broker], requests: Sequence[Request], turns: Turns) -> list[Run]:
    """Scenarios that want the same configuration of the known brokers share their starts."""
    by_configuration: dict[Configuration, list[Request]] = {}
    for request in requests:
        by_configuration.setdefault(configuration_of(request.scenario, request.rate), []).append(request)
    runs = []
    for configuration, asked in by_configuration.items():
        started = [configuration.broker(broker.name, broker.command) for broker in brokers]
        runs += Comparison(started, [measurement_of(request) for request in asked], turns).run()
    return runs


def compare_brokers(
    brokers: Sequence[Broker],
    requests: Sequence[Request],
    reps: int,
    quiet: float,
    told: Callable[[str, int, Run], None],
    *,
    doing: Callable[[str], None] = lambda what: None,
) -> dict[str, Any]:
    """The whole comparison as a document."""
    if len({broker.name for broker in brokers}) != len(brokers):
        raise UsageError("--broker: each needs a name of its own")
    check_scenarios(brokers, requests)
    configurations = {request.scenario: configuration_of(request.scenario, request.rate) for request in requests}
    # What could fail comes before the runs, which take long.
    document: dict[str, Any] = {
        "date": datetime.now(UTC).replace(microsecond=0).isoformat(),
        "machine": describe_machine(),
        "versions": versions_of(brokers),
        "commands": {broker.name: broker.command for broker in brokers},
        "settings": {"reps": reps, "secs": requests[0].duration},
        "loads": {request.scenario: settings_of(request) for request in requests},
        "known_brokers": {name: configuration.about for name, configuration in configurations.items()},
        "files": {name: files_of(brokers, configuration) for name, configuration in configurations.items()},
    }
    runs = measure_all(brokers, requests, Turns(reps, quiet, told=told, doing=doing))
    return {**document, "summary": summarise(runs, [broker.name for broker in brokers]), "runs": runs}


def files_of(brokers: Sequence[Broker], configuration: Configuration) -> dict[str, dict[str, str]]:
    """By broker and file, its lines: with them and the command a run can be repeated by hand."""
    found = {broker.name: configuration.files_of(broker) for broker in brokers}
    return {name: files for name, files in found.items() if files}


def versions_of(brokers: Sequence[Broker]) -> dict[str, str]:
    """With those of every mosquitto, wherever it is and whatever it is called."""
    others = {broker.name: broker.program for broker in brokers if Path(broker.program).name == MOSQUITTO}
    found = {name: mosquitto_version(program) for name, program in others.items()}
    return describe_versions() | {name: version for name, version in found.items() if version}


def summarise(runs: Sequence[Run], brokers: Sequence[str]) -> list[dict[str, Any]]:
    """Medians of each figure by scenario and broker, with their ratio to the first broker's."""
    rows = []
    for scenario in dict.fromkeys(run["test"] for run in runs):
        of_it = [run for run in runs if run["test"] == scenario]
        by_broker = {broker: [run for run in of_it if run["broker"] == broker] for broker in brokers}
        for figure in COLUMNS:
            compared = compare_figure(by_broker, figure.field, brokers[0])
            if SCENARIOS[scenario].is_traffic == figure.is_traffic and any(each.median for each in compared.values()):
                cells = {
                    broker: each._asdict() | ({} if figure.has_ratio else {"ratio": None})
                    for broker, each in compared.items()
                }
                rows.append({"scenario": scenario, "figure": figure.title, "brokers": cells})
    return rows


def circumstances_of(document: dict[str, Any]) -> str:
    """Describe the loads and the brokers, a line each."""
    lines = [
        f"{scenario}: {settings_line({'scenario': scenario, 'settings': settings})}"
        for scenario, settings in document["loads"].items()
    ]
    for name, command in document["commands"].items():
        version = document["versions"].get(name, "")
        lines.append(f"{name}{' ' if version else ''}{version}: {command}")
    about = dict.fromkeys(document["known_brokers"].values())
    if any(command in COMMANDS.values() for command in document["commands"].values()):
        for each in about:
            whose = ", ".join(name for name, said in document["known_brokers"].items() if said == each)
            lines.append(f"mosquitto and penstock as known here{f' in {whose}' if len(about) > 1 else ''}: {each}")
    return "\n".join([*lines, *_lines_of_files(document["files"])])


def _lines_of_files(by_scenario: dict[str, dict[str, dict[str, str]]]) -> list[str]:
    """Each file once, under the brokers and, where they differ, the scenarios that it is of."""
    users: dict[tuple[str, str], dict[str, list[str]]] = {}
    for scenario, by_broker in by_scenario.items():
        for broker, files in by_broker.items():
            for each in files.items():
                users.setdefault(each, {}).setdefault(broker, []).append(scenario)
    lines = []
    for (place, text), by_broker_name in users.items():
        scenarios = list(dict.fromkeys(name for names in by_broker_name.values() for name in names))
        which = f" in {', '.join(scenarios)}" if len(scenarios) < len(by_scenario) else ""
        lines.append(f"{', '.join(by_broker_name)}, {place}{which}:")
        lines += [f"    {line}" for line in text.splitlines()]
    return lines


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
    """Return what makes figures doubtful: faults of every run, other programs once per scenario and broker."""
    said: dict[str, None] = {}
    runs = document["runs"]
    for run in runs:
        own = [other for other in runs if (other["test"], other["broker"]) == (run["test"], run["broker"])]
        which = f"{run['test']}, {run['broker']}"
        wrong = [*run.get("faults", []), *([run["error"]] if "error" in run else [])]
        if wrong:
            said[f"{which}, run {run['rep'] + 1}: {', '.join(wrong)}"] = None
        elif run.get("lost"):
            said[f"{which}, run {run['rep'] + 1}: lost {run['lost']:,}, as QoS 0 allows"] = None
        if WHY in run:
            said[f"{which}: memory of a connection: {describe_memory(run)}"] = None
        if is_disturbed(median_of(own, "other_cores")):
            said[f"{which}: {DOUBT}"] = None
    return [f"! {text}" for text in said]


def check_failed(document: dict[str, Any]) -> None:
    """Raises PenstockError when a broker could not be measured, or did not do what it has to."""
    failed = [run for run in document["runs"] if "error" in run]
    if failed:
        raise PenstockError(f"{failed[0]['broker']}, {failed[0]['test']}: {failed[0]['error']}")
    wrong = dict.fromkeys(run["broker"] for run in document["runs"] if run.get("faults"))
    if wrong:
        raise PenstockError(f"NOT OK: {', '.join(wrong)}, see the lines with ! above")
