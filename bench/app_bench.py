#!/usr/bin/env python3
"""APPLICATION clients end to end: QoS 1 both ways, 66-byte payloads, the publisher's PUBACK durable.

  python bench/app_bench.py                                    embedded log, every scenario, 3 repetitions
  python bench/app_bench.py --provider kafka --reps 1 --secs 2
  python bench/app_bench.py --scenario fanin --scenario far --only penstock --json result.json
  python bench/app_bench.py --save                             a dated result in bench/results/application

fanin    100 publishers with 100 unacknowledged each, one APPLICATION client; messages delivered
five     the same publishers, five clients that share them out; the slowest of the five beside the fastest
stalled  five, and a sixth client with a backlog that does not read: what is left of the others' rate
far      fanin to a client 50 ms away (a proxy that delays 25 ms each way), default settings
backlog  1,000,000 messages delivered live, then 1,000,000 published to an absent client and delivered on its return

The five clients of `five` have 20 publishers each, whose topics fall into the partitions of the log as they may, some
partitions with many and some with few. As long as every round of dispatch has something of every partition the clients
are served alike (0.97 and more). While a round was smaller than what came during its commit, partitions took turns: a
publisher whose partition had many others waited the longer with its bounded number of undelivered messages, and the
clients got what the hash had dealt their publishers (0.67 to 0.87, with topics dealt evenly over the partitions 0.98).
On a disk so slow that this comes back, that is what the figure shows; it says nothing about one client and another.

mosquitto runs beside it with the only settings of it that lose nothing acknowledged (persistence and a save on every
change); it has no runs with a backlog, because it writes all of its queue at every change. The brokers take turns, each
run on a fresh one. The CPU is the broker's, all threads; that of Kafka is told apart, as kafka_cores.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.frame import Bench, argument_parser, measure_fresh, measure_in_turn, own_kafka, run_bench, summarise_runs
from penstock_bench.brokers import COMMANDS, Broker, BrokerError
from penstock_bench.configurations import DURABLE_MOSQUITTO_CONF
from penstock_bench.summary import Run
from penstock_bench.targets import BASE, SUBJECT, Case, Figure, at_least, at_most
from tests.support.servers.kafka_cluster import KafkaCluster

HERE = Path(__file__).resolve().parent
DELAY = HERE / "bin" / "delay"
PUBLISHERS = 100
ONE_WAY_MS = 25
WITH_BACKLOG = ("stalled", "backlog")
STALLED_BACKLOG = 20_000
FAN_IN = f"--scenario fanin --n {PUBLISHERS} --qos 1 --size 66 --window 100"
# Messages under way between publishers and clients are bounded, so that what is measured is a steady state.
STEADY = "--e2e 500"
DURABLE_MOSQUITTO = DURABLE_MOSQUITTO_CONF.replace("max_queued_messages 100000", "max_queued_messages 0")
PENSTOCK = """[access]
anonymous_type = "application"
[logging]
level = "error"
[sys]
interval = 0
[log]
provider = "{provider}"
"""
SHOWN = ("error", "rate", "msgs_per_cpu_s", "evenness", "share", "live_s", "slowdown", "broker_cores", "kafka_cores")


def measure_fan_in(bench: Bench, broker: Broker) -> Run:
    return bench.load(broker, FAN_IN, STEADY, "--session app", *bench.timing())


def measure_five(bench: Bench, broker: Broker) -> Run:
    result = bench.load(broker, FAN_IN, STEADY, "--session app --groups 5", *bench.timing())
    if result.get("fastest_rate"):
        result["evenness"] = round(result["slowest_rate"] / result["fastest_rate"], 3)
    return result


def measure_stalled(bench: Bench, broker: Broker) -> Run:
    alone = measure_five(bench, broker)
    broker.settle()
    with stalled_client(broker):
        result = measure_five(bench, broker)
    if alone.get("rate") and "rate" in result:
        result["share"] = round(result["rate"] / alone["rate"], 3)
    return result


def measure_far(bench: Bench, broker: Broker) -> Run:
    with delaying_proxy(broker.port, ONE_WAY_MS) as port:
        return bench.load(broker, FAN_IN, STEADY, f"--session app --subscriber-port {port}", *bench.timing())


def measure_backlog(bench: Bench, broker: Broker) -> Run:
    each = f"--count {bench.args.backlog // PUBLISHERS} --drain 10"
    live = bench.load(broker, FAN_IN, each, "--session live")
    if live.get("lost") or "error" in live:
        return live
    for part in ("subscribe", "publish"):
        done = bench.load(broker, FAN_IN, each, f"--session away --part {part}")
        if "error" in done:
            return done
    broker.settle()
    result = bench.load(broker, FAN_IN, each, "--session away --part receive")
    if result.get("secs") and live.get("secs"):
        result |= {"live_s": live["secs"], "slowdown": round(result["secs"] / live["secs"], 3)}
    return result


def build_proxy() -> None:
    subprocess.run([HERE / "build.sh"], check=True, timeout=120)


@contextlib.contextmanager
def delaying_proxy(port: int, one_way_ms: float) -> Iterator[int]:
    build_proxy()
    proxy = subprocess.Popen([DELAY, str(port), str(one_way_ms)], stdout=subprocess.PIPE, text=True)
    try:
        assert proxy.stdout is not None
        yield int(proxy.stdout.readline())
    finally:
        proxy.kill()
        proxy.wait()


def text(words: str) -> bytes:
    return len(words).to_bytes(2, "big") + words.encode()


def packet(first: int, body: bytes) -> bytes:
    return bytes([first, len(body)]) + body


def receive_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise BrokerError("the broker closed the connection of the client that does not read")
        data += more
    return data


@contextlib.contextmanager
def stalled_client(broker: Broker) -> Iterator[None]:
    """A client with a session of its own and a backlog, that stays connected and reads nothing."""
    with contextlib.ExitStack() as stack:
        connections = []
        for name, clean in (("stalled", 0), ("filler", 2)):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port), 20))
            connection.sendall(packet(0x10, text("MQTT") + bytes([4, clean, 0, 0]) + text(name)))
            receive_exactly(connection, 4)
            connections.append(connection)
        stalled, filler = connections
        stalled.sendall(packet(0x82, b"\0\1" + text("stalled/#") + b"\1"))
        receive_exactly(stalled, 5)
        for first in range(1, STALLED_BACKLOG, 100):
            ids = [1 + (first + at) % 65_535 for at in range(100)]
            publishes = [packet(0x32, text("stalled/t") + number.to_bytes(2, "big") + bytes(66)) for number in ids]
            filler.sendall(b"".join(publishes))
            receive_exactly(filler, 4 * len(ids))
        yield


MEASURES: dict[str, Callable[[Bench, Broker], Run]] = {
    "fanin": measure_fan_in,
    "five": measure_five,
    "stalled": measure_stalled,
    "far": measure_far,
    "backlog": measure_backlog,
}


def scenarios(provider: str, backlog: int) -> list[Case]:
    """The figures of each, with what they have to reach on this log."""
    is_embedded = provider == "embedded"
    per_cpu = at_least(120_000 if is_embedded else 40_000)
    rate, cpu = "messages / s", "messages / CPU-s"
    fan_in = (
        Figure("100 publishers → 1 client", "rate", rate, at_least(100_000) if is_embedded else None),
        Figure("the same per CPU-second", "msgs_per_cpu_s", cpu, per_cpu),
    )
    five = (
        Figure("100 publishers → 5 clients", "rate", rate),
        Figure("the same per CPU-second", "msgs_per_cpu_s", cpu),
        Figure("slowest of the five to the fastest", "evenness", "ratio", at_least(0.9)),
    )
    stalled = (Figure("rate of five beside one that does not read", "share", "ratio", at_least(0.9)),)
    far = (Figure("1 client, 50 ms away", "rate", rate, at_least(10_000)),)
    slowest = at_most(1.5)
    behind = (
        Figure(f"backlog of {backlog:,}, time to live delivery", "slowdown", "ratio", slowest, is_less_better=True),
        Figure("delivery of the backlog", "rate", rate),
    )
    figures = {"fanin": fan_in, "five": five, "stalled": stalled, "far": far, "backlog": behind}
    return [Case(name, "", figures[name]) for name in MEASURES]


def penstock_toml(provider: str, kafka: KafkaCluster | None) -> str:
    server = f'[kafka]\nbootstrap_servers = "{kafka.bootstrap}"\n' if kafka else ""
    return PENSTOCK.format(provider=provider) + server


def measure(args: argparse.Namespace) -> list[Run]:
    with own_kafka(args.provider) as kafka:
        bench = Bench(args, kafka)
        toml = penstock_toml(args.provider, kafka)
        brokers = {name: Broker(name, COMMANDS[name], DURABLE_MOSQUITTO, toml) for name in (BASE, SUBJECT)}

        def brokers_of(scenario: str) -> list[Broker]:
            unfit = (BASE,) if scenario in WITH_BACKLOG else ()
            return [one for name, one in brokers.items() if args.only in (None, name) and name not in unfit]

        def measure_once(scenario: str, broker: Broker) -> Run:
            return measure_fresh(bench, broker, MEASURES[scenario])

        return measure_in_turn(args, MEASURES, brokers_of, measure_once, SHOWN)


def summarise(runs: list[Run], provider: str, backlog: int) -> list[dict[str, Any]]:
    return summarise_runs(runs, scenarios(provider, backlog))


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, MEASURES, "application")
    parser.add_argument("--backlog", type=int, default=1_000_000, help="messages of the backlog (1000000)")
    parser.add_argument("--only", choices=[BASE, SUBJECT], help="measure only this broker")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    figures = scenarios(args.provider, args.backlog)
    return run_bench(args, "application", lambda: measure(args), figures, ("backlog",))


if __name__ == "__main__":
    sys.exit(main())
