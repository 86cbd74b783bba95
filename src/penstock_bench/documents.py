"""Recorded results as the documents show them: tables, sentences and the chart, between their markers.

README.md and docs/benchmarks.md have the newest comparison, docs/benchmarks-persistence.md the newest results of the
parts of the broker.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from penstock_bench.charts import ratio_chart
from penstock_bench.load import parse_arguments
from penstock_bench.summary import Row, disturbance_of, markdown_table, median_of, number, ordered_brokers, summarise
from penstock_bench.targets import BASE, CASES, SUBJECT

README = Path("README.md")
PAGE = Path("docs/benchmarks.md")
CHART = Path("docs/benchmarks.svg")
START = "<!-- bench:start -->"
END = "<!-- bench:end -->"
HEADLINE = ("<!-- headline:start -->", "<!-- headline:end -->")
HEADROOM = ("<!-- headroom:start -->", "<!-- headroom:end -->")
NOT_MEASURED = "No result has been recorded yet: `make bench`, then `python bench/report.py`."
PERSISTENCE_PAGE = Path("docs/benchmarks-persistence.md")
PARTS = {
    "partition": "The partitioner beside plain Python",
    "log": "The embedded log",
    "kafka": "The Kafka log beside a bare confluent-kafka loop",
    "rpc": "Requests and responses over a log",
    "ingest": "The broker with its log on",
    "application": "APPLICATION clients",
    "device": "DEVICE clients",
    "session": "Sessions across a restart",
    "queue": "Durable queues and streams",
    "datasub": "Data subscription",
}
NEED_NO_PROVIDER = ("partition", "log", "kafka")  # there is but one that they could have
PROVIDERS = {"embedded": "embedded log", "kafka": "Kafka", "memory": "memory"}
HEADLINE_CASES = {"p2p-q0": "QoS 0", "p2p-q1": "QoS 1"}
# Title of the column, and the provider of its results.
HEADROOM_LOGS = {"log on": "log", "no log": "no-log"}


def newest_result(folder: Path) -> Path | None:
    """Results are named by date and time, so the last name is the newest."""
    return max(folder.glob("*.json"), key=lambda path: path.name, default=None)


def load_result(path: Path) -> dict[str, Any]:
    """A recorded result, its summary computed again from the runs so that today's targets are shown."""
    result: dict[str, Any] = json.loads(path.read_text())
    result["summary"] = summarise(result["runs"])
    return result


def circumstances(result: dict[str, Any]) -> str:
    machine, versions, settings = result["machine"], result["versions"], result["settings"]
    hardware = f"{machine['cores']} x {machine['cpu']}, {machine['memory_gib']:g} GiB"
    system = f"{machine['os']}, Linux {machine['kernel']}"
    what = ", ".join(f"{name} {version}" for name, version in versions.items())
    return (
        f"Measured {result['date'][:10]} on {hardware}, {system}; {what}."
        f" Medians of {settings['reps']} interleaved runs of {settings['secs']:g} s;"
        " broker and load generator on the same machine."
    )


def details_table(summary: list[Row], runs: list[dict[str, Any]]) -> str:
    """Every broker and scenario with what the short table leaves out."""
    lines = [
        "| scenario | broker | figure | spread | msgs/s | p50 ms | p99 ms | broker cores | load cores | resident MB |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in summary:
        for broker in ordered_brokers(summary):
            cell = row["brokers"].get(broker)
            if not cell:
                continue
            own = [run for run in runs if run["test"] == row["scenario"] and run["broker"] == broker]
            spread = f"{cell['spread']:.0%}" if cell["spread"] is not None else "-"
            fields = (
                ("rate", 1),
                ("p50_us", 1e3),
                ("p99_us", 1e3),
                ("broker_cores", 1),
                ("load_cores", 1),
                ("rss_kb", 1024),
            )
            values = " | ".join(number(scaled_median(own, field, unit)) for field, unit in fields)
            lines.append(f"| {row['title']} | {broker} | {number(cell['value'])} {row['unit']} | {spread} | {values} |")
    return "\n".join(lines)


def scaled_median(runs: list[dict[str, Any]], field: str, unit: float) -> float | None:
    value = median_of(runs, field)
    return None if value is None else value / unit


def replace_region(text: str, content: str, markers: tuple[str, str] = (START, END)) -> str:
    """The text with what stands between the markers replaced; without markers it stays as it is."""
    before, start, rest = text.partition(markers[0])
    _, end, after = rest.partition(markers[1])
    if not start or not end:
        return text
    return f"{before}{start}\n{content}\n{end}{after}"


def render_documents(
    root: Path, results: Path, result: dict[str, Any] | None, kept: list[dict[str, Any]]
) -> dict[Path, str]:
    """Return the new text of each document that shows the result; `kept` are all like it, `results` is their folder."""
    if result is None:
        regions = {README: NOT_MEASURED, PAGE: NOT_MEASURED}
    else:
        table = f"{circumstances(result)}\n\n{markdown_table(result['summary'])}"
        details = details_table(result["summary"], result["runs"])
        regions = {
            README: f"![Ratios to {BASE}]({CHART})\n\n{table}",
            PAGE: f"{table}\n\n![Ratios to {BASE}]({CHART.name})\n\n## All figures\n\n{details}",
        }
    regions[PERSISTENCE_PAGE] = render_kept(results) or NOT_MEASURED
    texts = {
        path: replace_region((root / path).read_text(), content)
        for path, content in regions.items()
        if (root / path).exists()
    }
    if PAGE in texts:
        texts[PAGE] = replace_region(texts[PAGE], render_headroom(results), HEADROOM)
    if README in texts and result is not None:
        texts[README] = replace_region(texts[README], render_headline(result, kept), HEADLINE)
    if result is not None:
        texts[CHART] = ratio_chart(result["summary"], f"{result['date'][:10]}, log scale; red: target")
    return texts


# ---- results of parts of the broker ----


def newest_of(results: Path, part: str, provider: str) -> list[dict[str, Any]]:
    """The newest result of each scenario: two scripts may measure one part, or one of its scenarios alone."""
    chosen: dict[str, dict[str, Any]] = {}
    for path in sorted((results / part).glob(f"*-{provider}.json"), key=lambda path: path.name):
        result = json.loads(path.read_text())
        for row in result["summary"]:
            chosen[row["scenario"]] = result
    return list({id(result): result for result in chosen.values()}.values())


def rows_of(results: list[dict[str, Any]]) -> list[Row]:
    newest: dict[str, list[Row]] = {}
    for result in sorted(results, key=lambda result: result["date"]):
        of_it: dict[str, list[Row]] = {}
        for row in result["summary"]:
            for broker, cell in row["brokers"].items():
                runs = [run for run in result["runs"] if (run["test"], run["broker"]) == (row["scenario"], broker)]
                cell["disturbance"] = disturbance_of(runs)
            of_it.setdefault(row["scenario"], []).append(row)
        newest.update(of_it)
    return [row for rows in newest.values() for row in rows]


def measured(result: dict[str, Any]) -> str:
    settings = result["settings"]
    often = f", {settings['reps']} x {settings['secs']:g} s" if "reps" in settings else ""
    return f"{result['date'][:10]} on {result['machine']['cpu']}, {result['versions'][SUBJECT]}{often}"


def render_kept(results: Path) -> str:
    """Return the text between the markers of the page."""
    parts = []
    for part, title in PARTS.items():
        for provider, name in PROVIDERS.items():
            found = newest_of(results, part, provider)
            if not found:
                continue
            place = "Kafka and Redis" if (part, provider) == ("device", "kafka") else name
            heading = title if part in NEED_NO_PROVIDER else f"{title}: {place}"
            when = "; ".join(dict.fromkeys(measured(result) for result in found))
            parts.append(f"## {heading}\n\nMeasured {when}.\n\n{markdown_table(rows_of(found))}")
    return "\n\n".join(parts)


# ---- sentences ----


def ratio_of(result: dict[str, Any], scenario: str) -> float | None:
    found = [row["brokers"].get(SUBJECT, {}).get("ratio") for row in result["summary"] if row["scenario"] == scenario]
    return found[0] if found else None


def times(ratio: float) -> str:
    """Rounded down: no more is said than was measured."""
    return f"{math.floor(ratio):,}"


def render_headline(result: dict[str, Any], kept: list[dict[str, Any]]) -> str:
    """The newest result, and how far the kept ones are from it."""
    (size,) = {parse_arguments(CASES[scenario].options.split()).size for scenario in HEADLINE_CASES}
    newest = {title: ratio for name, title in HEADLINE_CASES.items() if (ratio := ratio_of(result, name)) is not None}
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
    for name, title in HEADLINE_CASES.items():
        ratios = [ratio for each in kept if (ratio := ratio_of(each, name)) is not None]
        if len(ratios) > 1:
            spans.append(f"{times(min(ratios))} to {times(max(ratios))} at {title}")
    if spans:
        machines = " and ".join(sorted({each["machine"]["cpu"] for each in kept}))
        text += f";\nthe {len(kept)} results that are kept, of {machines}, have {' and '.join(spans)}"
    return f"{text};\nsee [Benchmarks](#benchmarks))."


def render_headroom(results: Path) -> str:
    """The newest figure of each scenario, with its log and without."""
    columns = {title: _headroom_of(results, provider) for title, provider in HEADROOM_LOGS.items()}
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
