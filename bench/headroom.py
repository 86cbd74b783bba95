#!/usr/bin/env python3
"""How far the load generator is from being the limit: CPU of the broker by that of its busiest thread, in the same run.

2 means that it could put on twice the load that saturates one core of the broker, if each of its threads had a core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from penstock.bench.brokers import COMMANDS, Broker
from penstock.bench.runner import run_scenario
from penstock.bench.scenarios import Request

SCENARIOS = (
    ("p2p", 0), ("p2p", 1), ("p2p", 2), ("fan-out", 0), ("fan-out", 1), ("fan-in", 0), ("fan-in", 1), ("shared", 1),
)  # fmt: skip
# The settings of a comparison have no log; as shipped there is one.
LOGS = {"log": " --set ingest.log=all", "no log": ""}


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


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--scenario", nargs="+", default=sorted({name for name, _ in SCENARIOS}))
    parser.add_argument("--reps", type=int, default=3, help="the best of them is shown")
    parser.add_argument("--secs", type=float, default=2.0)
    options = parser.parse_args(argv)
    for title, flags in LOGS.items():
        broker = Broker("penstock", COMMANDS["penstock"] + flags)
        broker.start()
        try:
            for scenario, qos in SCENARIOS:
                if scenario in options.scenario:
                    for threads in options.threads:
                        runs = [headroom(broker, scenario, qos, threads, options.secs) for _ in range(options.reps)]
                        told = ", ".join(f"{value:.1f}" for value in sorted(runs))
                        print(
                            f"{title:<8}{scenario:<9}QoS {qos}  {threads} threads  {max(runs):.1f}  ({told})",
                            flush=True,
                        )
        finally:
            broker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
