#!/usr/bin/env python3
"""Puts the newest result of bench/results into the documents: what stands between their markers, and the chart.

python bench/report.py             README.md, docs/benchmarks.md, docs/benchmarks.svg, docs/benchmarks-persistence.md
python bench/report.py --check     change nothing, exit with 1 when they are not up to date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import report_kept, report_sentences
from bench.chart import draw_chart
from bench.scenarios import BASE
from bench.summary import Row, markdown_table, ordered_brokers, summarise
from penstock_bench.summary import median_of, number

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
README = Path("README.md")
PAGE = Path("docs/benchmarks.md")
CHART = Path("docs/benchmarks.svg")
START = "<!-- bench:start -->"
END = "<!-- bench:end -->"
HEADLINE = ("<!-- headline:start -->", "<!-- headline:end -->")
HEADROOM = ("<!-- headroom:start -->", "<!-- headroom:end -->")
NOT_MEASURED = "No result has been recorded yet: `make bench`, then `python bench/report.py`."


def newest_result(folder: Path) -> Path | None:
    """Results are named by date and time, so the last name is the newest."""
    return max(folder.glob("*.json"), key=lambda path: path.name, default=None)


def load_result(path: Path) -> dict[str, Any]:
    """A recorded result, its summary made anew from the runs so that today's targets are shown."""
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


def render_documents(root: Path, result: dict[str, Any] | None, kept: list[dict[str, Any]]) -> dict[Path, str]:
    """The new text of each document that shows the result; `kept` are all that are like it."""
    if result is None:
        regions = {README: NOT_MEASURED, PAGE: NOT_MEASURED}
    else:
        table = f"{circumstances(result)}\n\n{markdown_table(result['summary'])}"
        details = details_table(result["summary"], result["runs"])
        regions = {
            README: f"![Ratios to {BASE}]({CHART})\n\n{table}",
            PAGE: f"{table}\n\n![Ratios to {BASE}]({CHART.name})\n\n## All figures\n\n{details}",
        }
    regions[report_kept.PAGE] = report_kept.render_kept(RESULTS) or NOT_MEASURED
    texts = {
        path: replace_region((root / path).read_text(), content)
        for path, content in regions.items()
        if (root / path).exists()
    }
    if PAGE in texts:
        texts[PAGE] = replace_region(texts[PAGE], report_sentences.render_headroom(RESULTS), HEADROOM)
    if README in texts and result is not None:
        texts[README] = replace_region(texts[README], report_sentences.render_headline(result, kept), HEADLINE)
    if result is not None:
        texts[CHART] = draw_chart(result["summary"], f"{result['date'][:10]}, log scale; red: target")
    return texts


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--result", type=Path, help="this result instead of the newest")
    parser.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    parser.add_argument(
        "--check", action="store_true", help="change nothing, exit with 1 when a document is out of date"
    )
    args = parser.parse_args(argv)
    source = args.result or newest_result(RESULTS)
    kept = [load_result(path) for path in source.parent.glob("*.json")] if source else []
    texts = render_documents(args.root, load_result(source) if source else None, kept)
    stale = [
        path
        for path, text in texts.items()
        if not (args.root / path).exists() or (args.root / path).read_text() != text
    ]
    for path in stale:
        if not args.check:
            (args.root / path).write_text(texts[path])
        print(f"{'out of date' if args.check else 'written'}: {path}")
    return 1 if args.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
