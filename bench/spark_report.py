#!/usr/bin/env python3
"""Puts the newest result of bench/results/spark into docs/spark.md, between its markers.

python bench/spark_report.py             writes the table
python bench/spark_report.py --check     change nothing, exit with 1 when it is not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock_bench.documents import newest_result, replace_region

PAGE = Path("docs/spark.md")
ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results" / "spark"
Result = dict[str, Any]
COLUMNS = 22
BROKER_CPU = "broker's CPU microseconds a message"


def figure(result: Result, part: str, name: str) -> float | None:
    found = result.get(part, {}).get(name)
    return None if found is None else float(found)


def verdict(value: float | None, target: float, *, less_is_better: bool) -> str:
    if value is None:
        return ""
    return "yes" if (value <= target if less_is_better else value >= target) else "no"


def row(what: str, shown: list[str], wanted: str = "", met: str = "") -> str:
    return f"| {what} | {' | '.join(shown)} | {wanted} | {met} |"


def pair(result: Result, part: str, name: str, cpu_name: str, form: str) -> str:
    """By the clock, and by the processors; - where it was not measured."""
    value, cpu = figure(result, part, name), figure(result, part, cpu_name)
    if value is None:
        return "-"
    return form.format(value, cpu) if cpu is not None else "-"


def source_rows(results: list[Result]) -> list[str]:
    first = results[0]
    part = "embedded source"
    rates = [
        pair(one, part, "rows a second", "rows a CPU-second", "{:,.0f} rows/s; {:,.0f} per CPU-second")
        for one in results
    ]
    times = [
        pair(one, part, "times Python rows", "times Python rows, by CPU-seconds", "{:.1f} times; by CPU-seconds {:.1f}")
        for one in results
    ]
    rate, ratio = figure(first, part, "rows a second"), figure(first, part, "times Python rows")
    return [
        row(
            f"embedded source, all {COLUMNS} columns counted",
            rates,
            "≥ 300,000 rows/s",
            verdict(rate, 300_000, less_is_better=False),
        ),
        row(
            "against the same source with a Python tuple per row",
            times,
            "≥ 3 times",
            verdict(ratio, 3, less_is_better=False),
        ),
    ]


def kafka_rows(results: list[Result]) -> list[str]:
    names = {
        "decoding on Kafka, against the bare connector (a task a partition)": "decoding adds percent",
        "the same, the connector in as few tasks as we use": "decoding adds percent, in as few tasks",
    }
    found = []
    for what, name in names.items():
        shown = [
            pair(one, "kafka", name, f"{name}, by CPU-seconds", "adds {:.0f} %; by CPU-seconds {:.0f} %")
            for one in results
        ]
        is_target = name == "decoding adds percent"
        met = verdict(figure(results[0], "kafka", name), 60, less_is_better=True) if is_target else ""
        found.append(row(what, shown, "≤ 60 %" if is_target else "", met))
    return found


def lake_row(results: list[Result]) -> str:
    shown = [pair(one, "lake", "seconds", "CPU-seconds", "{:.1f} s; {:.1f} CPU-seconds") for one in results]
    met = verdict(figure(results[0], "lake", "seconds"), 60, less_is_better=True)
    return row("`penstock spark run lake`, with the start of Spark", shown, "≤ 60 s", met)


def growth(results: list[Result]) -> str:
    """How the cost grew from the smallest to the largest, in words."""
    small, large = results[0], results[-1]
    times = large["messages"] / small["messages"]
    costs = {
        "the embedded source": ("embedded source", "seconds"),
        "Kafka": ("kafka", "seconds decoded"),
        "`lake`": ("lake", "seconds"),
    }
    words = []
    for name, (part, what) in costs.items():
        before, after = figure(small, part, what), figure(large, part, what)
        if before and after:
            words.append(f"{name} {after / before:.1f} times")
    return f"{times:g} times the messages cost {', '.join(words)} the time." if words else ""


def broker_rows(results: list[Result]) -> list[str]:
    """What a broker that writes the log notices of a job that reads it; none where it was not measured."""
    if "broker" not in results[0]:
        return []
    names = {
        "a broker that writes, nothing reads its log": "alone",
        "the same while jobs read its log on the same two cores": "while a job reads",
    }
    return [row(what, [_broker_figures(one, name) for one in results]) for what, name in names.items()]


def _broker_figures(result: Result, name: str) -> str:
    if "broker" not in result:
        return "-"
    found = result["broker"][name]
    return (
        f"{found['messages a second']:,} messages/s; QoS 1 acknowledged in {found['p50 ms']:g} ms (p50),"
        f" {found['p99 ms']:g} ms (p99); {found[BROKER_CPU]:g} µs of the broker's CPU a message"
    )


def render(report: dict[str, Any]) -> str:
    results, machine = report["results"], report["machine"]
    heads = [f"{one['messages']:,} messages" for one in results]
    table = [
        f"| what | {' | '.join(heads)} | wanted | met |",
        f"|---|{'---|' * len(heads)}---|---|",
        *source_rows(results),
        *kafka_rows(results),
        lake_row(results),
        *broker_rows(results),
    ]
    about = (
        f"Measured {report['date']} on {machine['cores']} x {machine['cpu']}, {machine['memory_gib']:g} GiB, with a"
        f" load of {report.get('load before', 0):g} before it began; medians of {report.get('runs', 1)} runs after one"
        " that warms up, `lake` one run."
    )
    words = [growth(results) if len(results) > 1 else ""]
    return "\n\n".join([about, "\n".join(table), *filter(None, words)])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, help="this result instead of the newest")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help="change nothing, exit with 1 when it is out of date")
    args = parser.parse_args(argv)
    source = args.result or newest_result(RESULTS)
    if source is None:
        print("no result has been recorded yet: python bench/spark_bench.py --save")
        return 0
    page = args.root / PAGE
    before = page.read_text()
    after = replace_region(before, render(json.loads(source.read_text())))
    if before == after:
        return 0
    if not args.check:
        page.write_text(after)
    print(f"{'out of date' if args.check else 'written'}: {PAGE}")
    return 1 if args.check else 0


if __name__ == "__main__":
    sys.exit(main())
