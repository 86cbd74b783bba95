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
import resource
import shlex
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.scenarios import BASE, REQUIRED, SCENARIOS, SUBJECT, Scenario
from bench.summary import markdown_table, missed_targets, summarise
from penstock_bench.brokers import (
    COMMANDS,
    MOSQUITTO_CONF,
    MOSQUITTO_CONF_FOR_BATCHES,
    PENSTOCK_TOML,
    Broker,
    BrokerError,
)
from penstock_bench.comparison import Comparison, Measurement, Turns, watch_others
from penstock_bench.machine import describe_machine, describe_versions
from penstock_bench.summary import Run

HERE = Path(__file__).resolve().parent
LOAD = HERE / "load.py"
RESULTS = HERE / "results"
LOAD_SECONDS = 300
WARM = "--scenario p2p --n 10 --qos 1 --e2e 200 --warmup 0"
SHIPPED_PENSTOCK_TOML = '[logging]\nlevel = "error"\n'
SHOWN = ("error", "rate", "msgs_per_cpu_s", "bytes_per_conn", "connects_per_cpu_s", "p99_us", "lost", "other_cores")


def build_proxy() -> None:
    """The delaying proxy of app_bench.py; the load generator is a module of the product."""
    subprocess.run([HERE / "build.sh"], check=True, timeout=120)


def run_load(broker: Broker, options: list[str]) -> Run:
    """One run of the load generator; what fails is told in the result's `error`."""
    pids = broker.pids()
    command = [sys.executable, str(LOAD), "--port", str(broker.port), "--pids", ",".join(map(str, pids)), *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LOAD_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"error": "timeout"}
    try:
        result: Run = json.loads(done.stdout)
    except ValueError:
        return {"error": f"load ended with {done.returncode} {done.stderr[-200:]}"}
    if not broker.is_alive():
        result.setdefault("error", "broker ended")
    return {"error": "nothing delivered"} if result.get("received") == 0 else result


def children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run_watched(broker: Broker, options: list[str]) -> Run:
    """As run_load; what the rest of the machine did meanwhile is told in `other_cores`."""
    return watch_others(broker, children_cpu_seconds, lambda: run_load(broker, options))


class Loads:
    """The scenarios as measurements; one of them takes its rate from what the base broker has sustained."""

    def __init__(self, brokers: list[Broker], args: argparse.Namespace):
        self.brokers = brokers
        self.args = args
        self._rep = 0
        self._sustained: dict[str, float] = {}  # this repetition: the base broker's messages/s by scenario

    def measurement(self, scenario: Scenario) -> Measurement:
        def measure(broker: Broker) -> Run:
            result = run_watched(broker, self._options(scenario))
            if broker.name == BASE and "rate" in result:
                self._sustained[scenario.name] = result["rate"]
            return result

        def prepare(rep: int) -> None:
            if rep != self._rep:
                self._rep = rep
                self._sustained.clear()
            if scenario.load_of:
                self._find_base_rate(scenario.load_of)

        return Measurement(scenario.name, measure, scenario.needs_fresh_process, prepare)

    def warm(self, broker: Broker) -> None:
        if self.args.warm:
            run_load(broker, [*shlex.split(WARM), "--secs", str(self.args.warm)])

    def _options(self, scenario: Scenario) -> list[str]:
        options = ["--secs", f"{self.args.secs * scenario.stretch:g}", *shlex.split(scenario.options)]
        if scenario.load_of:
            rate = round(self._sustained[scenario.load_of] * scenario.load_share)
            if not rate:
                raise BrokerError(
                    f"{scenario.name}: {BASE} delivered nothing in {scenario.load_of}, so there is no load to set"
                )
            options += ["--rate", str(rate)]
        return options

    def _find_base_rate(self, name: str) -> None:
        """Measures what the base broker sustains in that scenario, unless this repetition has done so already."""
        if name in self._sustained:
            return
        base = next((broker for broker in self.brokers if broker.name == BASE), self.brokers[0])
        base.thaw()
        self._sustained[name] = run_load(base, self._options(SCENARIOS[name])).get("rate", 0)
        base.settle()
        base.freeze()


def tell(name: str, rep: int, run: Run) -> None:
    shown = ", ".join(f"{key} {run[key]}" for key in SHOWN if key in run)
    print(f"{rep + 1}. {name} {run['broker']}: {shown}", file=sys.stderr, flush=True)


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*SCENARIOS, "all"]
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
    parser.add_argument("--options", metavar="SCENARIO", choices=SCENARIOS, help="print the load options of a scenario")
    parser.add_argument("--check", action="store_true", help="exit with 1 when penstock misses a target")
    return parser.parse_args(argv)


def chosen_brokers(args: argparse.Namespace, mosquitto_conf: str, penstock_toml: str = PENSTOCK_TOML) -> list[Broker]:
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


def chosen_scenarios(names: list[str] | None) -> list[Scenario]:
    if not names:
        return list(REQUIRED)
    return list(SCENARIOS.values()) if "all" in names else [SCENARIOS[name] for name in names]


def allow_open_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure_all(args: argparse.Namespace) -> list[Run]:
    """Brokers are started again for what is paced, because mosquitto has other settings there, and for the scenarios in
    which Penstock has its default settings."""
    runs = []
    chosen = chosen_scenarios(args.scenario)
    at_full_speed = [scenario for scenario in chosen if not scenario.load_of and not scenario.is_shipped]
    for conf, toml, scenarios in (
        (MOSQUITTO_CONF_FOR_BATCHES, PENSTOCK_TOML, at_full_speed),
        (MOSQUITTO_CONF, PENSTOCK_TOML, [scenario for scenario in chosen if scenario.load_of]),
        (MOSQUITTO_CONF, SHIPPED_PENSTOCK_TOML, [scenario for scenario in chosen if scenario.is_shipped]),
    ):
        if scenarios:
            loads = Loads(chosen_brokers(args, conf, toml), args)
            measurements = [loads.measurement(scenario) for scenario in scenarios]
            runs += Comparison(loads.brokers, measurements, Turns(args.reps, args.quiet, loads.warm, tell)).run()
    return runs


def measure(args: argparse.Namespace) -> dict[str, Any]:
    allow_open_files()
    started = datetime.now(UTC).replace(microsecond=0)
    runs = measure_all(args)
    return {
        "date": started.isoformat(),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "settings": {"reps": args.reps, "secs": args.secs, "warm": args.warm},
        "summary": summarise(runs),
        "runs": runs,
    }


def write_result(result: dict[str, Any], path: Path) -> None:
    """One that is kept is never written over: of two in a minute the second has its seconds in the name."""
    if path.is_relative_to(RESULTS) and path.exists():
        minute = result["date"][:16].replace(":", "")
        path = path.with_name(path.name.replace(minute, minute + result["date"][17:19], 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}", file=sys.stderr)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.options:
        print(SCENARIOS[args.options].options)
        return 0
    if args.table:
        result = json.loads(Path(args.table).read_text())
        result["summary"] = summarise(result["runs"])
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        try:
            result = measure(args)
        except (BrokerError, subprocess.SubprocessError) as error:
            print(error, file=sys.stderr)
            return 1
        if args.json:
            write_result(result, Path(args.json))
        if args.save:
            write_result(result, RESULTS / f"{result['date'][:16].replace(':', '')}.json")
    print(markdown_table(result["summary"]))
    failed = [run for run in result["runs"] if "error" in run]
    missed = missed_targets(result["summary"])
    if missed:
        print(f"\n{SUBJECT} does not reach: {'; '.join(missed)}")
    return 1 if failed or (args.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
