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
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.app_bench import DURABLE_MOSQUITTO
from bench.frame import Bench as LogBench
from bench.frame import argument_parser, measure_fresh, measure_in_turn, own_kafka, run_bench
from penstock.subscribers.device.store.lmdb_rows import ADDED
from penstock_bench.brokers import COMMANDS, MOSQUITTO_CONF, Broker
from penstock_bench.summary import Run
from penstock_bench.system import cpu_seconds
from penstock_bench.targets import BASE, SUBJECT, Case, Figure, at_least, at_most
from tests.support.servers.redis_server import RedisServer, own_redis
from tests.support.worlds.device import look_into_lmdb, redis_commands

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

    def prepare(self) -> None:
        super().prepare()
        if self.redis is not None:
            self.redis.cli("FLUSHALL")


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


def scenarios(provider: str) -> list[Case]:
    """The figures of each, with what they have to reach on this log and store."""
    is_embedded = provider == "embedded"
    rate, cpu = "messages / s", "messages / CPU-s"
    pairs = [
        Figure(f"{PAIRS} pairs, online", "rate", rate),
        Figure("the same per CPU-second", "msgs_per_cpu_s", cpu, at_least(150_000 if is_embedded else 40_000)),
    ]
    if not is_embedded:
        pairs.append(Figure("Redis commands", "redis_per_message", "per message", at_most(0.05), is_less_better=True))
    store = (
        Figure(f"stored for {AWAY} that are away", "stored_rate", rate, at_least(200_000 if is_embedded else 60_000)),
        Figure("the same per CPU-second", "stored_per_cpu_s", cpu),
        Figure("delivered when they return", "rate", rate),
    )
    return [Case("pairs", "", tuple(pairs)), Case("store", "", store)]


def brokers_of(bench: Bench, scenario: str) -> list[Broker]:
    toml = PENSTOCK.format(provider=bench.args.provider)
    if bench.kafka is not None and bench.redis is not None:
        toml += SERVERS.format(kafka=bench.kafka.bootstrap, redis=bench.redis.address)
    mosquitto = DURABLE_MOSQUITTO if scenario == "pairs" else MEMORY_MOSQUITTO
    names = [name for name in (BASE, SUBJECT) if bench.args.only in (None, name)]
    return [Broker(name, COMMANDS[name], mosquitto, toml) for name in names]


def measure(args: argparse.Namespace) -> list[Run]:
    with (
        own_redis() if args.provider == "kafka" else contextlib.nullcontext() as redis,
        own_kafka(args.provider) as kafka,
    ):
        bench = Bench(args, kafka, redis)
        return measure_in_turn(
            args,
            MEASURES,
            lambda scenario: brokers_of(bench, scenario),
            lambda scenario, broker: measure_fresh(bench, broker, MEASURES[scenario]),
            SHOWN,
        )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, MEASURES, "device")
    parser.add_argument("--stored", type=int, default=400_000, help="messages to store, in all (400000)")
    parser.add_argument("--only", choices=[BASE, SUBJECT], help="measure only this broker")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    return run_bench(args, "device", lambda: measure(args), scenarios(args.provider), ("stored",))


if __name__ == "__main__":
    sys.exit(main())
