#!/usr/bin/env python3
"""Persistent DEVICE clients end to end: QoS 1 both ways, 62-byte payloads, the publisher's PUBACK durable.

  python bench/device_bench.py                                    embedded log and LMDB, 3 repetitions
  python bench/device_bench.py --provider kafka --reps 1 --secs 2  Kafka and a redis-server of its own
  python bench/device_bench.py --scenario pairs --only penstock --json result.json
  python bench/device_bench.py --save                             a dated result in bench/results/device

pairs   100 publishers, each to one DEVICE with a session that stays; messages delivered and acknowledged
store   messages for 200 DEVICEs that are away: until all are stored; then all return: until all are delivered

mosquitto runs beside it: in `pairs` with the only settings of it that lose nothing acknowledged (persistence and a save
on every change), in `store` without persistence, because otherwise it writes all of its queue at every change. The
brokers take turns, each run on a fresh one. The CPU is the broker's, all threads; that of Kafka and of Redis is told
apart. Redis commands are those that INFO commandstats counts, the ones inside of scripts too.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.app_bench import DURABLE_MOSQUITTO, at_least
from bench.app_bench import Bench as LogBench
from bench.brokers import COMMANDS, MOSQUITTO_CONF, Broker, BrokerError, cpu_seconds, wait_quiet
from bench.compare import RESULTS, allow_open_files, build_load_generator, write_result
from bench.machine import describe_machine, describe_versions
from bench.scenarios import BASE, SUBJECT, Figure, Scenario, Target
from bench.summary import Run, markdown_table, missed_targets, summarise_figure
from penstock.stores.lmdb_queues import ADDED
from tests.support.application import forget_topics
from tests.support.device import look_into_lmdb, redis_commands
from tests.support.kafka_cluster import KafkaCluster
from tests.support.redis_server import RedisServer, own_redis

PAIRS = 100
AWAY = 200
STORED_SECONDS = 60
LOAD = "--qos 1 --size 62"
# A subscriber for each publisher; messages under way are bounded, so that what is measured is a steady state.
OF_PAIRS = f"--scenario fanin --n {PAIRS} --groups {PAIRS} {LOAD} --window 50 --e2e 50 --session device"
OF_STORE = f"--scenario fanin --n {AWAY} --groups {AWAY} {LOAD} --window 100 --session away --drain 10"
PENSTOCK = """[logging]
level = "error"
[sys]
interval = 0
[log]
provider = "{provider}"
"""
SERVERS = """[kafka]
bootstrap_servers = "{kafka}"
[device]
store = "redis"
[redis]
addresses = "{redis}"
"""
MEMORY_MOSQUITTO = MOSQUITTO_CONF.replace("max_queued_messages 100000", "max_queued_messages 0")
STORED_IN_REDIS = """local stored = 0
for at = 0, ARGV[1] - 1 do stored = stored + redis.call('ZCARD', '{away' .. at .. '}_messages') end
return stored"""
SHOWN = (
    "error", "rate", "msgs_per_cpu_s", "stored_rate", "stored_per_cpu_s", "redis_per_message", "lost",
    "broker_cores", "kafka_cores", "redis_cores", "other_cores",
)  # fmt: skip


@dataclass(frozen=True)
class Bench(LogBench):
    """Counts what Redis does for a run, beside what is counted of the brokers."""

    redis: RedisServer | None

    def load(self, broker: Broker, *options: str) -> Run:
        if self.redis is None or broker.name == BASE:
            return super().load(broker, *options)
        before, used = redis_commands(self.redis), cpu_seconds([self.redis.pid])
        result = super().load(broker, *options)
        if result.get("received"):
            result["redis_per_message"] = round((redis_commands(self.redis) - before) / result["received"], 4)
        if result.get("secs"):
            result["redis_cores"] = round((cpu_seconds([self.redis.pid]) - used) / result["secs"], 2)
        return result


def measure_pairs(bench: Bench, broker: Broker) -> Run:
    return bench.load(broker, OF_PAIRS, *bench.timing())


def measure_store(bench: Bench, broker: Broker) -> Run:
    total = bench.args.stored // AWAY * AWAY
    each = f"--count {total // AWAY}"
    done = bench.load(broker, OF_STORE, each, "--part subscribe")
    if "error" in done:
        return done
    broker.settle()
    used, start = cpu_seconds(broker.pids()), time.monotonic()
    published = bench.load(broker, OF_STORE, each, "--part publish")
    if "error" in published:
        return published
    if broker.name != BASE and not await_stored(bench, broker, total):
        return {"error": f"{stored(bench, broker)} of {total} stored"}
    seconds, cpu = time.monotonic() - start, cpu_seconds(broker.pids()) - used
    broker.settle()
    result = bench.load(broker, OF_STORE, each, "--part receive")
    result |= {"stored_rate": round(total / seconds), "stored_per_cpu_s": round(total / cpu) if cpu else 0}
    return result


def stored(bench: Bench, broker: Broker) -> int:
    """Messages in the store; nobody takes any out."""
    if bench.redis is not None:
        return int(bench.redis.cli("EVAL", STORED_IN_REDIS, "0", str(AWAY)))
    with look_into_lmdb(broker.home / "data" / "devices") as environment:
        queues = environment.open_db(b"queues", create=False)
        with environment.begin(db=queues) as transaction:
            return int.from_bytes(transaction.get(ADDED, b""), "big")


def await_stored(bench: Bench, broker: Broker, total: int) -> bool:
    end = time.monotonic() + STORED_SECONDS
    while stored(bench, broker) < total:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


MEASURES: dict[str, Callable[[Bench, Broker], Run]] = {"pairs": measure_pairs, "store": measure_store}


def scenarios(provider: str) -> list[Scenario]:
    """The figures of each, with what they have to reach on this log and store."""
    is_embedded = provider == "embedded"
    rate, cpu = "messages / s", "messages / CPU-s"
    pairs = [
        Figure(f"{PAIRS} pairs, online", "rate", rate),
        Figure("the same per CPU-second", "msgs_per_cpu_s", cpu, at_least(150_000 if is_embedded else 40_000)),
    ]
    if not is_embedded:
        few = Target(0.05, is_ratio=False, is_maximum=True)
        pairs.append(Figure("Redis commands", "redis_per_message", "per message", few, is_less_better=True))
    store = (
        Figure(f"stored for {AWAY} that are away", "stored_rate", rate, at_least(200_000 if is_embedded else 60_000)),
        Figure("the same per CPU-second", "stored_per_cpu_s", cpu),
        Figure("delivered when they return", "rate", rate),
    )
    return [Scenario("pairs", "", tuple(pairs)), Scenario("store", "", store)]


def measure_once(bench: Bench, scenario: str, broker: Broker) -> Run:
    wait_quiet(bench.args.quiet)
    if bench.kafka is not None:
        forget_topics(bench.kafka.bootstrap)
    if bench.redis is not None:
        bench.redis.cli("FLUSHALL")
    broker.start()
    try:
        broker.settle()
        return MEASURES[scenario](bench, broker)
    finally:
        broker.stop()


def brokers_of(bench: Bench, scenario: str) -> list[Broker]:
    toml = PENSTOCK.format(provider=bench.args.provider)
    if bench.kafka is not None and bench.redis is not None:
        toml += SERVERS.format(kafka=bench.kafka.bootstrap, redis=bench.redis.address)
    mosquitto = DURABLE_MOSQUITTO if scenario == "pairs" else MEMORY_MOSQUITTO
    names = [name for name in (BASE, SUBJECT) if bench.args.only in (None, name)]
    return [Broker(name, COMMANDS[name], mosquitto, toml) for name in names]


def measure(bench: Bench) -> list[Run]:
    runs = []
    for rep in range(bench.args.reps):
        for scenario in bench.args.scenario or MEASURES:
            for broker in brokers_of(bench, scenario):
                result = measure_once(bench, scenario, broker)
                runs.append({"rep": rep, "test": scenario, "broker": broker.name, **result})
                shown = ", ".join(f"{name} {result[name]}" for name in SHOWN if name in result)
                print(f"{rep + 1}/{bench.args.reps} {scenario} {broker.name}: {shown}", file=sys.stderr, flush=True)
    return runs


def summarise(runs: list[Run], provider: str) -> list[dict[str, Any]]:
    rows = []
    for scenario in scenarios(provider):
        of_it = [run for run in runs if run["test"] == scenario.name]
        by_broker = {name: [run for run in of_it if run["broker"] == name] for name in (BASE, SUBJECT)}
        measured = {name: its_runs for name, its_runs in by_broker.items() if its_runs}
        if measured:
            rows += [summarise_figure(scenario.name, figure, measured) for figure in scenario.figures]
    return rows


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--provider", choices=["embedded", "kafka"], default="embedded", help="the log (embedded)")
    parser.add_argument("--scenario", action="append", choices=[*MEASURES], help="only this one; repeatable")
    parser.add_argument("--reps", type=int, default=3, help="repetitions; the table shows medians (3)")
    parser.add_argument("--secs", type=float, default=4, help="measured seconds of a run (4)")
    parser.add_argument("--warmup", type=float, default=1, help="unmeasured seconds before them (1)")
    parser.add_argument("--stored", type=int, default=400_000, help="messages to store, in all (400000)")
    parser.add_argument("--quiet", type=float, default=10, help="wait at most so long for the machine to be idle (10)")
    parser.add_argument("--only", choices=[BASE, SUBJECT], help="measure only this broker")
    parser.add_argument("--dir", help="directory of the brokers' files  [default: that of temporary files]")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--save", action="store_true", help="write the result to bench/results/device")
    parser.add_argument("--check", action="store_true", help="exit with 1 when penstock misses a target")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> dict[str, Any]:
    started = datetime.now(UTC).replace(microsecond=0)
    build_load_generator()
    allow_open_files()
    with contextlib.ExitStack() as stack:
        kafka = redis = None
        if args.provider == "kafka":
            redis = stack.enter_context(own_redis())
            kafka = KafkaCluster(1)
            stack.callback(kafka.stop)
            kafka.start()
        runs = measure(Bench(args, kafka, redis))
    return {
        "date": started.isoformat(),
        "provider": args.provider,
        "machine": describe_machine(),
        "versions": describe_versions(),
        "settings": {"reps": args.reps, "secs": args.secs, "warmup": args.warmup, "stored": args.stored},
        "summary": summarise(runs, args.provider),
        "runs": runs,
    }


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.dir:
        tempfile.tempdir = args.dir
    try:
        result = run(args)
    except (BrokerError, subprocess.SubprocessError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    name = f"{result['date'][:16].replace(':', '')}-{args.provider}.json"
    for path in (Path(args.json) if args.json else None, RESULTS / "device" / name if args.save else None):
        if path is not None:
            write_result(result, path)
    print(markdown_table(result["summary"]))
    missed = missed_targets(result["summary"])
    if missed:
        print(f"\n{SUBJECT} does not reach: {'; '.join(missed)}")
    failed = any("error" in one for one in result["runs"])
    return 1 if failed or (args.check and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
