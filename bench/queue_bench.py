#!/usr/bin/env python3
"""Durable queues end to end: 100-byte payloads, published at QoS 1, each PUBACK durable.

  python bench/queue_bench.py                                     embedded log, every scenario, 3 repetitions
  python bench/queue_bench.py --provider kafka --reps 1 --secs 2
  python bench/queue_bench.py --scenario classic --scenario replay --json result.json
  python bench/queue_bench.py --save                              a dated result in bench/results/queue

append      64 publishers with 100 unacknowledged each, one classic queue that nobody consumes; messages acknowledged
classic     one queue, 10 MQTT 5 consumers of one group, each delivery settled by a PUBLISH to `$queue/<name>/$ack` with
            QoS 1; publishers keep the queue filled; messages delivered and settled
classic-q0  the same, settled with QoS 0
backlog     the same consumers (QoS 1) with a queue that was filled before: without the publishers' share
replay      a stream of 1,000,000 messages, one consumer that begins with the first, QoS 1
replay-q0   the same with QoS 0
idle        10,000 queues of the configuration, nobody uses them: memory, files and the time of a start

Each run is on a fresh broker. The CPU is the broker's, all threads; that of Kafka is told apart, as kafka_cores. What
is lost or comes twice, a settlement that is refused, an acknowledgement that does not come are faults of the run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.device_bench import PENSTOCK
from bench.frame import Bench, argument_parser, measure_fresh, measure_in_turn, own_kafka, run_bench
from penstock_bench.brokers import COMMANDS, Broker
from penstock_bench.summary import Run
from penstock_bench.system import cpu_seconds
from penstock_bench.targets import SUBJECT, Case, Figure, Target, at_least, at_most

PUBLISHERS = 64
CONSUMERS = 10
PREFETCH = 500
LOAD = f"--n {PUBLISHERS} --size 100 --window 100 --drain 10"
CLASSIC = f"--scenario fanin --queue work {LOAD} --version 5 --qos 1 --subs {CONSUMERS} --prefetch {PREFETCH}"
# Messages under way between publishers and consumers are bounded, so that what is measured is a steady state.
STEADY = "--e2e 200"
STREAM = f"--scenario fanin --queue stream {LOAD} --version 5"
QUEUES = """[[queues]]
name = "work"
[queues.limits]
max_depth = 0
[[queues]]
name = "stream"
type = "stream"
"""
IDLE_SCENARIO = "idle"
SHOWN = (
    "error", "rate", "msgs_per_cpu_s", "lost", "duplicates", "refused", "idle_mb", "start_s", "disk_mb", "broker_cores",
    "kafka_cores", "other_cores",
)  # fmt: skip


def measure_append(bench: Bench, broker: Broker) -> Run:
    return bench.load(broker, f"--scenario publish --queue work --qos 1 {LOAD}", *bench.timing())


def measure_classic(bench: Bench, broker: Broker) -> Run:
    return bench.load(broker, CLASSIC, STEADY, "--settle 1", *bench.timing())


def measure_classic_q0(bench: Bench, broker: Broker) -> Run:
    return bench.load(broker, CLASSIC, STEADY, "--settle 0", *bench.timing())


def fill_then(bench: Bench, broker: Broker, fill: str, receive: str) -> Run:
    """First all are published, then all are received."""
    each = f"--count {bench.args.messages // PUBLISHERS}"
    filled = bench.load(broker, fill, each, "--part publish --qos 1")
    if "error" in filled or filled.get("lost"):
        return filled
    broker.settle()
    return bench.load(broker, receive, each, "--part receive")


def measure_backlog(bench: Bench, broker: Broker) -> Run:
    return fill_then(bench, broker, CLASSIC, f"{CLASSIC} --settle 1")


def measure_replay(bench: Bench, broker: Broker) -> Run:
    return fill_then(bench, broker, STREAM, f"{STREAM} --start first --qos 1")


def measure_replay_q0(bench: Bench, broker: Broker) -> Run:
    return fill_then(bench, broker, STREAM, f"{STREAM} --start first --qos 0")


def resident_bytes(broker: Broker) -> int:
    pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in broker.pids()]
    return sum(pages) * 4096


def disk_bytes(home: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in home.rglob("*") if path.is_file())


def idle_state(broker: Broker) -> tuple[float, float, float]:
    """Megabytes of memory and of files, and the CPU-seconds of the start."""
    broker.settle()
    return resident_bytes(broker) / 1e6, disk_bytes(broker.home) / 1e6, cpu_seconds(broker.pids())


def measure_idle(bench: Bench, broker: Broker) -> Run:
    """Beside a broker without them, as started for the first time and again."""
    few = Broker(broker.name, broker.command, penstock_toml=toml_of(bench, QUEUES))
    few.start()
    try:
        few_mb, few_disk, few_s = idle_state(few)
    finally:
        few.stop()
    mb, disk, first_s = idle_state(broker)
    broker.end()
    began = time.monotonic()
    broker.start()
    took = time.monotonic() - began
    again_mb, _, again_s = idle_state(broker)
    return {
        "idle_mb": round(mb - few_mb, 1),
        "again_mb": round(again_mb - few_mb, 1),
        "disk_mb": round(disk - few_disk, 1),
        "first_start_cpu_s": round(first_s - few_s, 2),
        "start_cpu_s": round(again_s - few_s, 2),
        "start_s": round(took, 2),
    }


MEASURES: dict[str, Callable[[Bench, Broker], Run]] = {
    "append": measure_append,
    "classic": measure_classic,
    "classic-q0": measure_classic_q0,
    "backlog": measure_backlog,
    "replay": measure_replay,
    "replay-q0": measure_replay_q0,
    IDLE_SCENARIO: measure_idle,
}


def scenarios(provider: str, messages: int, idle: int) -> list[Case]:
    """The figures of each, with what they have to reach on this log."""
    is_embedded = provider == "embedded"
    rate, cpu = "messages / s", "messages / CPU-s"
    fast = at_least(300_000) if is_embedded else None
    settled = at_least(80_000 if is_embedded else 25_000)
    same = "the same per CPU-second"

    def both(title: str, wanted_rate: Target | None = None, wanted_cpu: Target | None = None) -> tuple[Figure, ...]:
        return Figure(title, "rate", rate, wanted_rate), Figure(same, "msgs_per_cpu_s", cpu, wanted_cpu)

    through = f"{CONSUMERS} consumers, settled by QoS"
    few = at_most(100)
    figures = {
        "append": both(f"append from {PUBLISHERS} publishers", fast),
        "classic": both(f"{through} 1", None, settled),
        "classic-q0": both(f"{through} 0", None, settled),
        "backlog": both(f"{through} 1, of a backlog of {messages:,}"),
        "replay": both(f"stream of {messages:,} from the first, QoS 1", fast),
        "replay-q0": both(f"stream of {messages:,} from the first, QoS 0", fast),
        IDLE_SCENARIO: (
            Figure(f"{idle:,} idle queues, memory", "idle_mb", "MB", few, is_less_better=True),
            Figure("the same after another start", "again_mb", "MB", few, is_less_better=True),
            Figure("files of them", "disk_mb", "MB", is_less_better=True),
            Figure("CPU of making them", "first_start_cpu_s", "CPU-s", is_less_better=True),
            Figure("CPU of a start with them", "start_cpu_s", "CPU-s", is_less_better=True),
        ),
    }
    return [Case(name, "", figures[name]) for name in MEASURES]


def toml_of(bench: Bench, queues: str) -> str:
    server = f'[kafka]\nbootstrap_servers = "{bench.kafka.bootstrap}"\n' if bench.kafka else ""
    return PENSTOCK.format(provider=bench.args.provider) + server + queues


def broker_of(bench: Bench, scenario: str) -> Broker:
    idle = (f'[[queues]]\nname = "idle-{number}"\n' for number in range(bench.args.idle))
    queues = QUEUES + "".join(idle) if scenario == IDLE_SCENARIO else QUEUES
    return Broker(SUBJECT, COMMANDS[SUBJECT], penstock_toml=toml_of(bench, queues))


def measure(args: argparse.Namespace) -> list[Run]:
    with own_kafka(args.provider) as kafka:
        bench = Bench(args, kafka)
        return measure_in_turn(
            args,
            MEASURES,
            lambda scenario: [broker_of(bench, scenario)],
            lambda scenario, broker: measure_fresh(bench, broker, MEASURES[scenario]),
            SHOWN,
        )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, MEASURES, "queue")
    parser.add_argument("--messages", type=int, default=1_000_000, help="of a stream or a backlog (1000000)")
    parser.add_argument("--idle", type=int, default=10_000, help="idle queues (10000)")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    figures = scenarios(args.provider, args.messages, args.idle)
    return run_bench(args, "queue", lambda: measure(args), figures, ("messages", "idle"))


if __name__ == "__main__":
    sys.exit(main())
