"""What the documents say of recorded results in words: the README's first sentence, the load generator's headroom."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bench.load import parse_arguments
from bench.scenarios import BASE, SCENARIOS, SUBJECT

HEADLINE = {"p2p-q0": "QoS 0", "p2p-q1": "QoS 1"}
# Title of the column, and the provider of its results.
HEADROOM = {"log on": "log", "no log": "no-log"}


def ratio_of(result: dict[str, Any], scenario: str) -> float | None:
    found = [row["brokers"].get(SUBJECT, {}).get("ratio") for row in result["summary"] if row["scenario"] == scenario]
    return found[0] if found else None


def times(ratio: float) -> str:
    """Rounded down: no more is said than was measured."""
    return f"{math.floor(ratio):,}"


def render_headline(result: dict[str, Any], kept: list[dict[str, Any]]) -> str:
    """The newest result, and how far the kept ones are from it."""
    (size,) = {parse_arguments(SCENARIOS[scenario].options.split()).size for scenario in HEADLINE}
    newest = {title: ratio for name, title in HEADLINE.items() if (ratio := ratio_of(result, name)) is not None}
    if not newest:
        return f"It has not been measured beside {BASE} yet."
    (first, ratio), *others = newest.items()
    said = f"{times(ratio)} times the messages per CPU-second of {BASE} at {first}"
    said += "".join(f" and {times(ratio)} times at {title}" for title, ratio in others)
    text = (
        f"It handles {said} ({result['date'][:10]}, {result['machine']['cpu']},\n10 pairs as fast as they can, so that"
        f" messages come in batches, {size}-byte payloads, neither keeps anything on the disk"
    )
    spans = []
    for name, title in HEADLINE.items():
        ratios = [ratio for each in kept if (ratio := ratio_of(each, name)) is not None]
        if len(ratios) > 1:
            spans.append(f"{times(min(ratios))} to {times(max(ratios))} at {title}")
    if spans:
        machines = " and ".join(sorted({each["machine"]["cpu"] for each in kept}))
        text += f";\nthe {len(kept)} results that are kept, of {machines}, have {' and '.join(spans)}"
    return f"{text};\nsee [Benchmarks](#benchmarks))."


def render_headroom(results: Path) -> str:
    """The newest figure of each scenario, with its log and without."""
    columns = {title: _headroom_of(results, provider) for title, provider in HEADROOM.items()}
    if not all(columns.values()):
        return "No result has been recorded yet: `python bench/headroom.py --save`."
    newest = [next(iter(column.values()))["of"] for column in columns.values()]
    settings = newest[0]["settings"]
    singles = [ratio for column in columns.values() for entry in column.values() for ratio in entry["runs"]]
    lines = [
        f"Measured {newest[0]['date'][:10]} with the defaults of `penstock bench`, medians of {settings['reps']}"
        f" interleaved runs of {settings['secs']:g} s;\nthe lowest single run is {min(singles):.1f}.",
        "",
        f"| scenario | {' | '.join(f'{title}, 1 thread' for title in columns)} |",
        "|---|" + "---:|" * len(columns),
    ]
    by_scenario: dict[str, list[str]] = {}
    for scenario, qos in next(iter(columns.values())):
        by_scenario.setdefault(scenario, []).append(qos)
    for scenario, levels in by_scenario.items():
        cells = [
            " / ".join(f"{column[scenario, qos]['value']:.1f}" if (scenario, qos) in column else "-" for qos in levels)
            for column in columns.values()
        ]
        lines.append(f"| {scenario}, QoS {' / '.join(levels)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _headroom_of(results: Path, provider: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By scenario and QoS; what two threads reach is not in the table."""
    found = {}
    for path in sorted((results / "headroom").glob("*.json"), key=lambda path: path.name):
        result = json.loads(path.read_text())
        for row in result["summary"] if result["provider"] == provider else []:
            scenario, qos, threads = row["title"].split(", ")
            if threads == "1 threads":
                runs = result["settings"]["ratios"][row["title"]]
                value = row["brokers"][SUBJECT]["value"]
                found[scenario, qos.removeprefix("QoS ")] = {"value": value, "runs": runs, "of": result}
    return found
