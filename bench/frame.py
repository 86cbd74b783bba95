"""What the benchmarks of clients and queues share: arguments, runs in turn, the table, the files of a result."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.parts import RESULTS
from penstock_bench.brokers import Broker, BrokerError, wait_quiet
from penstock_bench.suite import allow_open_files, keep_result, make_result, report_result, run_watched, write_result
from penstock_bench.summary import Run, summarise_figure
from penstock_bench.system import cpu_seconds, process_tree
from penstock_bench.targets import BASE, SUBJECT, Case
from tests.support.servers.kafka_cluster import KafkaCluster
from tests.support.worlds.application import forget_topics

SHOWN = (
    "error", "rate", "msgs_per_cpu_s", "lost", "duplicates", "broker_cores", "kafka_cores", "redis_cores",
    "other_cores",
)  # fmt: skip


@dataclass(frozen=True)
class Bench:
    """What all scenarios need."""

    args: argparse.Namespace
    kafka: KafkaCluster | None

    def timing(self) -> list[str]:
        return ["--secs", str(self.args.secs), "--warmup", str(self.args.warmup)]

    def load(self, broker: Broker, *options: str) -> Run:
        """One run of the load generator; Kafka's share of the machine is told in `kafka_cores`."""
        nodes = (
            [pid for node in self.kafka.nodes if node.process for pid in process_tree(node.process.pid)]
            if self.kafka
            else []
        )
        used = cpu_seconds(nodes)
        result = run_watched(broker, [word for option in options for word in shlex.split(option)])
        if nodes and result.get("secs"):
            result["kafka_cores"] = round((cpu_seconds(nodes) - used) / result["secs"], 2)
        return result

    def prepare(self) -> None:
        """Before each run: nothing is left of the one before."""
        wait_quiet(self.args.quiet)
        if self.kafka is not None:
            forget_topics(self.kafka.bootstrap)


@contextlib.contextmanager
def own_kafka(provider: str) -> Iterator[KafkaCluster | None]:
    """A broker of Kafka, where that is the log; else None."""
    with contextlib.ExitStack() as stack:
        kafka = None
        if provider == "kafka":
            kafka = KafkaCluster(1)
            stack.callback(kafka.stop)
            kafka.start()
        yield kafka


def argument_parser(about: str | None, scenarios: Collection[str], folder: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["embedded", "kafka"], default="embedded", help="the log (embedded)")
    parser.add_argument("--scenario", action="append", choices=[*scenarios], help="only this one; repeatable")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; the table shows medians (3)")
    parser.add_argument("--secs", type=float, default=4, help="measured seconds of a run (4)")
    parser.add_argument("--warmup", type=float, default=1, help="unmeasured seconds before them (1)")
    parser.add_argument("--quiet", type=float, default=10, help="wait at most so long for the machine to be idle (10)")
    parser.add_argument("--dir", help="directory of the brokers' files  [default: that of temporary files]")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--save", action="store_true", help=f"write the result to bench/results/{folder}")
    parser.add_argument("--check", action="store_true", help="exit with 1 when penstock misses a target")
    return parser


def measure_in_turn(
    args: argparse.Namespace,
    scenarios: Collection[str],
    brokers_of: Callable[[str], Sequence[Broker]],
    measure_once: Callable[[str, Broker], Run],
    shown: Sequence[str] = SHOWN,
) -> list[Run]:
    """Every scenario with each of its brokers, repetition by repetition."""
    runs = []
    for rep in range(args.reps):
        for scenario in args.scenario or scenarios:
            for broker in brokers_of(scenario):
                result = measure_once(scenario, broker)
                runs.append({"rep": rep, "test": scenario, "broker": broker.name, **result})
                line = ", ".join(f"{name} {result[name]}" for name in shown if name in result)
                print(f"{rep + 1}/{args.reps} {scenario} {broker.name}: {line}", file=sys.stderr, flush=True)
    return runs


def measure_fresh(bench: Bench, broker: Broker, measure: Callable[[Any, Broker], Run]) -> Run:
    """One measurement with a broker that has served nothing yet."""
    bench.prepare()
    broker.start()
    try:
        broker.settle()
        return measure(bench, broker)
    finally:
        broker.stop()


def summarise_runs(runs: list[Run], scenarios: Sequence[Case]) -> list[dict[str, Any]]:
    rows = []
    for scenario in scenarios:
        of_it = [run for run in runs if run["test"] == scenario.name]
        by_broker = {name: [run for run in of_it if run["broker"] == name] for name in (BASE, SUBJECT)}
        measured = {name: its_runs for name, its_runs in by_broker.items() if its_runs}
        if measured:
            rows += [summarise_figure(scenario.name, figure, measured) for figure in scenario.figures]
    return rows


def run_bench(
    args: argparse.Namespace,
    folder: str,
    measure: Callable[[], list[Run]],
    scenarios: Sequence[Case],
    settings: Sequence[str],
) -> int:
    """Measures, writes the result where it is wanted, prints the table; the exit code."""
    if args.dir:
        tempfile.tempdir = args.dir
    started = datetime.now(UTC)
    try:
        allow_open_files()
        runs = measure()
    except (BrokerError, subprocess.SubprocessError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    rows = summarise_runs(runs, scenarios)
    chosen = {name: getattr(args, name) for name in ("reps", "secs", "warmup", *settings)}
    result = make_result(runs, rows, chosen, started=started, provider=args.provider)
    if args.json:
        write_result(result, Path(args.json))
    if args.save:
        keep_result(result, RESULTS / folder)
    return report_result(result, is_checked=args.check)
