"""`make bench`: the cases of targets.py against penstock and mosquitto, interleaved, and their dated result."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock_bench.brokers import MOSQUITTO_CONF, MOSQUITTO_CONF_FOR_BATCHES, PENSTOCK_TOML, Broker, BrokerError
from penstock_bench.comparison import Comparison, Measurement, Turns, watch_others
from penstock_bench.machine import describe_machine, describe_versions
from penstock_bench.summary import Row, Run, markdown_table, missed_targets
from penstock_bench.targets import BASE, CASES, SUBJECT, Case

LOAD_SECONDS = 300
WARM = "--scenario p2p --n 10 --qos 1 --e2e 200 --warmup 0"
SHIPPED_PENSTOCK_TOML = '[logging]\nlevel = "error"\n'
SHOWN = ("error", "rate", "msgs_per_cpu_s", "bytes_per_conn", "connects_per_cpu_s", "p99_us", "lost", "other_cores")

MakeBrokers = Callable[[str, str], list[Broker]]
"""Brokers from mosquitto's file and Penstock's."""


@dataclass(frozen=True)
class Effort:
    """How often each case is measured, and how long."""

    reps: int = 3
    secs: float = 4.0
    warm: float = 2.0
    quiet: float = 20.0


def run_load(broker: Broker, options: list[str]) -> Run:
    """One run of the load generator; a failure is in the result's `error`."""
    pids = broker.pids()
    module = [sys.executable, "-m", "penstock_bench.load"]
    command = [*module, "--port", str(broker.port), "--pids", ",".join(map(str, pids)), *options]
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
    """As run_load; `other_cores` has the load of the rest of the machine meanwhile."""
    return watch_others(broker, children_cpu_seconds, lambda: run_load(broker, options))


class Loads:
    """The cases as measurements; one of them takes its rate from what the base broker has sustained."""

    def __init__(self, brokers: list[Broker], effort: Effort):
        self.brokers = brokers
        self.effort = effort
        self._rep = 0
        self._sustained: dict[str, float] = {}  # this repetition: the base broker's messages/s by case

    def measurement(self, case: Case) -> Measurement:
        def measure(broker: Broker) -> Run:
            result = run_watched(broker, self._options(case))
            if broker.name == BASE and "rate" in result:
                self._sustained[case.name] = result["rate"]
            return result

        def prepare(rep: int) -> None:
            if rep != self._rep:
                self._rep = rep
                self._sustained.clear()
            if case.load_of:
                self._find_base_rate(case.load_of)

        return Measurement(case.name, measure, case.needs_fresh_process, prepare)

    def warm(self, broker: Broker) -> None:
        if self.effort.warm:
            run_load(broker, [*shlex.split(WARM), "--secs", str(self.effort.warm)])

    def _options(self, case: Case) -> list[str]:
        options = ["--secs", f"{self.effort.secs * case.stretch:g}", *shlex.split(case.options)]
        if case.load_of:
            rate = round(self._sustained[case.load_of] * case.load_share)
            if not rate:
                raise BrokerError(
                    f"{case.name}: {BASE} delivered nothing in {case.load_of}, so its load cannot be derived"
                )
            options += ["--rate", str(rate)]
        return options

    def _find_base_rate(self, name: str) -> None:
        """Measures what the base broker sustains in that case, unless this repetition has done so already."""
        if name in self._sustained:
            return
        base = next((broker for broker in self.brokers if broker.name == BASE), self.brokers[0])
        base.thaw()
        self._sustained[name] = run_load(base, self._options(CASES[name])).get("rate", 0)
        base.settle()
        base.freeze()


def tell(name: str, rep: int, run: Run) -> None:
    shown = ", ".join(f"{key} {run[key]}" for key in SHOWN if key in run)
    print(f"{rep + 1}. {name} {run['broker']}: {shown}", file=sys.stderr, flush=True)


def allow_open_files() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def measure_cases(cases: Sequence[Case], brokers: MakeBrokers, effort: Effort) -> list[Run]:
    """Brokers are started again for what is paced, because mosquitto has other settings there, and for the cases in
    which Penstock has its default settings."""
    runs = []
    at_full_speed = [case for case in cases if not case.load_of and not case.is_shipped]
    for conf, toml, chosen in (
        (MOSQUITTO_CONF_FOR_BATCHES, PENSTOCK_TOML, at_full_speed),
        (MOSQUITTO_CONF, PENSTOCK_TOML, [case for case in cases if case.load_of]),
        (MOSQUITTO_CONF, SHIPPED_PENSTOCK_TOML, [case for case in cases if case.is_shipped]),
    ):
        if chosen:
            loads = Loads(brokers(conf, toml), effort)
            measurements = [loads.measurement(case) for case in chosen]
            runs += Comparison(loads.brokers, measurements, Turns(effort.reps, effort.quiet, loads.warm, tell)).run()
    return runs


def make_result(
    runs: list[Run],
    summary: list[Row],
    settings: dict[str, Any],
    *,
    started: datetime | None = None,
    provider: str | None = None,
) -> dict[str, Any]:
    """Return a result as it is saved; `provider` is the log that a part of the broker was measured with."""
    return {
        "date": (started or datetime.now(UTC)).replace(microsecond=0).isoformat(),
        **({} if provider is None else {"provider": provider}),
        "machine": describe_machine(),
        "versions": describe_versions(),
        "settings": settings,
        "summary": summary,
        "runs": runs,
    }


def write_result(result: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
    print(f"written: {path}", file=sys.stderr)


def keep_result(result: dict[str, Any], folder: Path) -> None:
    """Write a result under its date and provider. None is overwritten: the second of a minute has its seconds too."""
    suffix = f"-{result['provider']}" if "provider" in result else ""
    path = folder / f"{result['date'][:16].replace(':', '')}{suffix}.json"
    if path.exists():
        path = folder / f"{result['date'][:19].replace(':', '')}{suffix}.json"
    write_result(result, path)


def report_result(result: dict[str, Any], *, is_checked: bool) -> int:
    """Print the table and the targets that were missed; return the exit code."""
    print(markdown_table(result["summary"]))
    missed = missed_targets(result["summary"])
    if missed:
        print(f"\n{SUBJECT} does not reach: {'; '.join(missed)}")
    failed = any("error" in run for run in result["runs"])
    return 1 if failed or (is_checked and missed) else 0
