"""The cases of `make bench`: the load of each, the figures taken from it, and the targets they have to reach."""

from __future__ import annotations

from dataclasses import dataclass

BASE = "mosquitto"
SUBJECT = "penstock"


@dataclass(frozen=True)
class Target:
    """A bound on a figure: an absolute value, or a multiple of the base broker's figure in the same run."""

    value: float
    is_ratio: bool = True
    is_maximum: bool = False

    def reached(self, figure: float, base: float | None) -> bool | None:
        """None: cannot be told, because the base broker has no figure."""
        if self.is_ratio:
            if not base:
                return None
            figure /= base
        return figure <= self.value if self.is_maximum else figure >= self.value

    def __str__(self) -> str:
        return f"{'≤' if self.is_maximum else '≥'} {self.value:,.10g}{'x' if self.is_ratio else ''}"


def at_least(value: float) -> Target:
    return Target(value, is_ratio=False)


def at_most(value: float) -> Target:
    return Target(value, is_ratio=False, is_maximum=True)


@dataclass(frozen=True)
class Figure:
    """One row of the table: a field of the load generator's result."""

    title: str
    field: str
    unit: str
    target: Target | None = None
    is_less_better: bool = False


@dataclass(frozen=True)
class Case:
    """A load with fixed options; the scenarios of `penstock bench` have options of the user."""

    name: str
    options: str
    figures: tuple[Figure, ...]
    needs_fresh_process: bool = False  # only a process that has served nothing yet shows the memory of idle connections
    load_of: str = ""  # paced: at load_share of what the base broker sustains in that scenario
    load_share: float = 0.0
    is_shipped: bool = False  # Penstock with its default settings: every message is in the log, on the disk
    stretch: float = 1.0  # of the measured seconds: at a low rate a few seconds are little CPU to measure


def traffic(name: str, title: str, options: str, ratio: float | None = None) -> Case:
    target = Target(ratio) if ratio else None
    return Case(name, options, (Figure(title, "msgs_per_cpu_s", "messages / CPU-s", target),))


def shipped(name: str, qos: int, rate: int, least: float) -> Case:
    """An ordinary rate, at which messages come one by one, with Penstock's default settings."""
    figure = Figure(
        f"as shipped, {rate:,} messages/s, QoS {qos}", "msgs_per_cpu_s", "messages / CPU-s", at_least(least)
    )
    return Case(name, f"--scenario p2p --n 10 --qos {qos} --rate {rate}", (figure,), is_shipped=True, stretch=2.5)


CONNECTS = Target(8_000, is_ratio=False)
IDLE = (
    Figure("idle connection, resident memory", "bytes_per_conn", "bytes", Target(3_072, False, True), True),
    Figure("opening 10,000 connections", "connects_per_cpu_s", "connects / CPU-s", CONNECTS),
)
STORM = (Figure("connect storm: connect, disconnect, again", "connects_per_cpu_s", "connects / CPU-s", CONNECTS),)
LATENCY = (Figure("p99 latency at 20 % load, QoS 1", "p99_us", "µs", Target(1.0, is_maximum=True), True),)
SHARED = "--scenario fanin --n 50 --subs 4 --qos 1 --e2e 20 --window 20"
SPARSE = "--scenario p2p --n 500 --qos 1 --e2e 1 --window 1"

# --e2e bounds what is under way per publisher, so that no broker has a reason to drop. In `sparse` every message
# travels alone, as from many slow devices; elsewhere a broker may read and write in batches.
REQUIRED = (
    traffic("p2p-q0", "10 pairs, QoS 0", "--scenario p2p --n 10 --qos 0 --e2e 200", 30),
    traffic("p2p-q1", "10 pairs, QoS 1", "--scenario p2p --n 10 --qos 1 --e2e 200 --window 100", 25),
    traffic("p2p-q2", "10 pairs, QoS 2", "--scenario p2p --n 10 --qos 2 --e2e 200 --window 100", 30),
    traffic("p2p-q0-1k", "10 pairs, QoS 0, 1 KB", "--scenario p2p --n 10 --qos 0 --e2e 200 --size 1024", 15),
    traffic("fanout-q0", "fan-out 1 → 100, QoS 0", "--scenario fanout --n 100 --qos 0 --e2e 50", 30),
    traffic("fanout-q1", "fan-out 1 → 100, QoS 1", "--scenario fanout --n 100 --qos 1 --e2e 50 --window 50", 24),
    traffic("fanin-q0", "fan-in 50 → 1, QoS 0", "--scenario fanin --n 50 --qos 0 --e2e 20", 12),
    traffic("fanin-q1", "fan-in 50 → 1, QoS 1", "--scenario fanin --n 50 --qos 1 --e2e 20 --window 20", 15),
    traffic("shared-q1", "shared, 50 → 4, QoS 1", SHARED, 10),
    traffic("sparse-q1", "500 pairs, one message in flight each, QoS 1", SPARSE, 1.2),
    shipped("shipped-q0", qos=0, rate=2_000, least=20_000),
    shipped("shipped-q1", qos=1, rate=1_000, least=10_000),
    Case("latency-q1", "--scenario p2p --n 10 --qos 1", LATENCY, load_of="p2p-q1", load_share=0.2),
    Case("idle-10k", "--scenario idle --n 10000 --keepalive 60 --secs 3", IDLE, needs_fresh_process=True),
    Case("storm", "--scenario storm --n 64", STORM),
)
# Measured on request: other payload sizes, MQTT 5, fan-out at QoS 2. They have no target.
FURTHER = (
    traffic("p2p-q0-16", "10 pairs, QoS 0, 16 B", "--scenario p2p --n 10 --qos 0 --e2e 200 --size 16"),
    traffic("p2p-q1-16k", "10 pairs, QoS 1, 16 KB", "--scenario p2p --n 10 --qos 1 --e2e 16 --size 16384"),
    traffic("p2p-q0-64k", "10 pairs, QoS 0, 64 KB", "--scenario p2p --n 10 --qos 0 --e2e 4 --size 65536"),
    traffic("p2p-q0-v5", "10 pairs, QoS 0, MQTT 5", "--scenario p2p --n 10 --qos 0 --e2e 200 --version 5"),
    traffic("p2p-q1-v5", "10 pairs, QoS 1, MQTT 5", "--scenario p2p --n 10 --qos 1 --e2e 200 --version 5"),
    traffic("fanout-q2", "fan-out 1 → 100, QoS 2", "--scenario fanout --n 100 --qos 2 --e2e 50 --window 50"),
)
CASES = {case.name: case for case in REQUIRED + FURTHER}
