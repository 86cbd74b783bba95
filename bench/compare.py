#!/usr/bin/env python3
"""Runs the same load against penstock and mosquitto, interleaved, and prints medians, ratios and targets.

  python bench/compare.py                                         every scenario that has a target
  python bench/compare.py --scenario p2p-q1 --reps 1 --secs 2     one of them, quickly
  python bench/compare.py --peer "mine=my-broker --port {port}"   another broker beside them
  python bench/compare.py --save && python bench/report.py        a dated result, then the tables in the documents

The brokers of a repetition run side by side, each frozen (SIGSTOP) while another is measured, in the order A B, A B.
The figure to trust on a shared machine is messages per CPU-second: delivered per second of CPU the broker used.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from penstock_bench.brokers import COMMANDS, Broker, BrokerError
from penstock_bench.suite import (
    Effort,
    allow_open_files,
    keep_result,
    make_result,
    measure_cases,
    report_result,
    write_result,
)
from penstock_bench.summary import summarise
from penstock_bench.targets import CASES, REQUIRED, Case

RESULTS = Path(__file__).resolve().parent / "results"


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*CASES, "all"]
    parser.add_argument("--scenario", action="append", choices=names, help="default: all that have a target")
    peer_help = "another broker, or another command for one; {port}, {dir}, {python} are filled in"
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=COMMAND", help=peer_help)
    parser.add_argument("--only", metavar="NAME,NAME", help="measure only these brokers")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; the table shows medians (3)")
    parser.add_argument("--secs", type=float, default=4, help="measured seconds of a run (4)")
    parser.add_argument("--warm", type=float, default=2, help="unmeasured seconds of traffic after a start (2)")
    parser.add_argument("--quiet", type=float, default=20, help="wait at most so long for the machine to be idle (20)")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--save", action="store_true", help="write the result to bench/results, named by date and time")
    parser.add_argument("--table", metavar="FILE", help="measure nothing, print the table of an earlier result")
    parser.add_argument("--options", metavar="SCENARIO", choices=CASES, help="print the load options of a scenario")
    parser.add_argument("--check", action="store_true", help="exit with 1 when penstock misses a target")
    return parser.parse_args(argv)


def chosen_brokers(args: argparse.Namespace, mosquitto_conf: str, penstock_toml: str) -> list[Broker]:
    commands = dict(COMMANDS)
    for peer in args.peer:
        name, separator, command = peer.partition("=")
        if not separator:
            sys.exit(f"--peer {peer}: expected NAME=COMMAND")
        commands[name] = command
    wanted = args.only.split(",") if args.only else list(commands)
    unknown = [name for name in wanted if name not in commands]
    if unknown:
        sys.exit(f"--only: unknown broker {', '.join(unknown)}; known are {', '.join(commands)}")
    return [Broker(name, commands[name], mosquitto_conf, penstock_toml) for name in wanted]


def chosen_scenarios(names: list[str] | None) -> list[Case]:
    if not names:
        return list(REQUIRED)
    return list(CASES.values()) if "all" in names else [CASES[name] for name in names]


def measure(args: argparse.Namespace) -> dict[str, Any]:
    allow_open_files()
    started = datetime.now(UTC)
    effort = Effort(args.reps, args.secs, args.warm, args.quiet)
    runs = measure_cases(chosen_scenarios(args.scenario), partial(chosen_brokers, args), effort)
    settings = {"reps": args.reps, "secs": args.secs, "warm": args.warm}
    return make_result(runs, summarise(runs), settings, started=started)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.options:
        print(CASES[args.options].options)
        return 0
    if args.table:
        result = json.loads(Path(args.table).read_text())
        result["summary"] = summarise(result["runs"])
        return report_result(result, is_checked=args.check)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        result = measure(args)
    except (BrokerError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    if args.json:
        write_result(result, Path(args.json))
    if args.save:
        keep_result(result, RESULTS)
    return report_result(result, is_checked=args.check)


if __name__ == "__main__":
    sys.exit(main())
