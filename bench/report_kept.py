"""The page of what is kept: the newest results of logs, persistent clients, queues and data subscription."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bench.scenarios import SUBJECT
from bench.summary import Row, disturbance_of, markdown_table

PAGE = Path("docs/benchmarks-persistence.md")
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
    """What stands between the markers of the page."""
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
