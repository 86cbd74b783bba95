#!/usr/bin/env python3
"""How far the load generator is from being the limit: CPU of the broker by that of its busiest thread, in the same run.

2 means that it could put on twice the load that saturates one core of the broker, if each of its threads had a core.

  python bench/headroom.py --threads 1 --save            dated results in bench/results/headroom, with log and without
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.parts import save_part
from penstock_bench.brokers import COMMANDS, Broker
from penstock_bench.runner import run_scenario
from penstock_bench.scenarios import Request
from penstock_bench.targets import Figure, at_least

SCENARIOS = (
    ("p2p", 0), ("p2p", 1), ("p2p", 2), ("fan-out", 0), ("fan-out", 1), ("fan-in", 0), ("fan-in", 1), ("shared", 1),
)  # fmt: skip
# The settings of a comparison have no log; as shipped there is one.
LOGS = {"log": " --set ingest.log=all", "no log": ""}
TARGET = at_least(2)
Run = tuple[str, int, int]  # scenario, QoS, threads


def headroom(broker: Broker, scenario: str, qos: int, threads: int, secs: float) -> float:
    request = Request(
        scenario,
        port=broker.port,
        qos=qos,
        threads=threads,
        duration=secs,
        warmup=min(1.0, secs),
        pids=tuple(broker.pids()),
    )
    outcome = run_scenario(request)
    if outcome.faults():
        print(f"{scenario}, QoS {qos}, {threads} threads: {', '.join(outcome.faults())}", file=sys.stderr)
    return float(outcome.figures["broker_cores"] / max(0.001, outcome.figures["load_busiest_thread"]))


def measure(flags: str, runs: list[Run], reps: int, secs: float) -> dict[Run, list[float]]:
    """The whole list is repeated, so that a busy moment of the machine does not meet all runs of one scenario."""
    found: dict[Run, list[float]] = {run: [] for run in runs}
    broker = Broker("penstock", COMMANDS["penstock"] + flags)
    broker.start()
    try:
        for _ in range(reps):
            for run in runs:
                found[run].append(headroom(broker, *run, secs))
    finally:
        broker.stop()
    return found


def save(title: str, found: dict[Run, list[float]], reps: int, secs: float) -> None:
    names = {run: "{}, QoS {}, {} threads".format(*run) for run in found}
    figures = [Figure(name, name, "broker CPU / generator CPU", TARGET) for name in names.values()]
    values = {names[run]: statistics.median(ratios) for run, ratios in found.items()}
    every = {names[run]: [round(ratio, 2) for ratio in ratios] for run, ratios in found.items()}
    save_part("headroom", title.replace(" ", "-"), figures, {"penstock": values}, reps=reps, secs=secs, ratios=every)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--scenario", nargs="+", default=sorted({name for name, _ in SCENARIOS}))
    parser.add_argument("--reps", type=int, default=5, help="their median is shown")
    parser.add_argument("--secs", type=float, default=2.0)
    parser.add_argument("--save", action="store_true", help="write dated results to bench/results/headroom")
    options = parser.parse_args(argv)
    runs = [(*what, threads) for what in SCENARIOS if what[0] in options.scenario for threads in options.threads]
    for title, flags in LOGS.items():
        found = measure(flags, runs, options.reps, options.secs)
        for (scenario, qos, threads), ratios in found.items():
            told = ", ".join(f"{value:.2f}" for value in sorted(ratios))
            median = statistics.median(ratios)
            print(f"{title:<8}{scenario:<9}QoS {qos}  {threads} threads  {median:.2f}  ({told})", flush=True)
        if options.save:
            save(title, found, options.reps, options.secs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
