#!/usr/bin/env python3
"""SQL topics: what it costs to evaluate queries over messages.

  python bench/datasub_bench.py                              every scenario, 3 repetitions
  python bench/datasub_bench.py --scenario evaluate --reps 1 --secs 1
  python bench/datasub_bench.py --save                       a dated result in bench/results/datasub

evaluate    one query, a filter and three columns over JSON of 120 bytes in packs of 100; beside it DuckDB, which gets
            the same 100 texts and the same query, with one thread
equalities  1,000 queries `WHERE payload.zone = n` of one filter, each message a row of 50 of them
ranges      the same rows by two comparisons each, which no index finds: all 1,000 are evaluated

All of it in this process, without a broker; the figures are messages per CPU-second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench import datasub_evaluate as evaluation
from bench.frame import argument_parser, measure_in_turn, run_bench
from penstock_bench.brokers import COMMANDS, Broker, wait_quiet
from penstock_bench.summary import Run
from penstock_bench.targets import SUBJECT, Case, Figure, at_least

SHOWN = ("error", "msgs_per_cpu_s", "duckdb_per_cpu_s", "times_duckdb", "rows_per_cpu_s")
MEASURES: dict[str, Callable[[float], dict[str, Any]]] = {
    "evaluate": evaluation.measure_one,
    "equalities": evaluation.measure_equalities,
    "ranges": evaluation.measure_ranges,
}


def scenarios() -> list[Case]:
    """The figures of each, with what they have to reach."""
    cpu = "messages / CPU-s"
    many = f"{evaluation.QUERIES:,} queries of one source, {evaluation.MATCHING} match"
    figures = {
        "evaluate": (
            Figure("filter and 3 columns over JSON", "msgs_per_cpu_s", cpu, at_least(150_000)),
            Figure(f"the same by DuckDB, {evaluation.BATCH} rows at a time", "duckdb_per_cpu_s", cpu),
            Figure("times DuckDB", "times_duckdb", "times", at_least(5)),
        ),
        "equalities": (Figure(f"{many}, by equality", "msgs_per_cpu_s", cpu, at_least(10_000)),),
        "ranges": (Figure(f"{many}, by comparison", "msgs_per_cpu_s", cpu, at_least(10_000)),),
    }
    return [Case(name, "", figures[name]) for name in MEASURES]


def measure(args: argparse.Namespace) -> list[Run]:
    itself = Broker(SUBJECT, COMMANDS[SUBJECT])  # only its name: the queries run in this process

    def measure_once(scenario: str, _: Broker) -> Run:
        wait_quiet(args.quiet)
        return MEASURES[scenario](args.secs)

    return measure_in_turn(args, list(MEASURES), lambda _: [itself], measure_once, SHOWN)


def main(argv: list[str] | None = None) -> int:
    args = argument_parser(__doc__, list(MEASURES), "datasub").parse_args(argv)
    return run_bench(args, "datasub", lambda: measure(args), scenarios(), ())


if __name__ == "__main__":
    sys.exit(main())
