#!/usr/bin/env python3
"""The broker with its log on, beside mosquitto with the only settings of it that lose nothing acknowledged.

  python bench/ingest_bench.py                        both figures, 3 repetitions of 3 seconds
  python bench/ingest_bench.py --reps 1 --secs 2 --only penstock --json result.json
  python bench/ingest_bench.py --dir /var/tmp         on the disk that counts

QoS 0: messages logged and delivered per CPU-second of the broker, from 10 publishers to 10 subscribers. QoS 1:
publishes of 50 publishers with 100 unacknowledged each that are acknowledged, which is when they are on the disk, per
second. What was acknowledged or delivered is compared with what the log holds afterwards.

mosquitto keeps a message only for a session that still needs it, so the QoS 1 figure of it is taken with a session that
is away and has subscribed to everything; without one it stores nothing. The brokers take turns, run by run, and only
one of them is there at a time.
"""

from __future__ import annotations

import argparse
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from bench.parts import RESULTS
from penstock.storage.log.embedded import open_reader
from penstock_bench.brokers import COMMANDS, Broker, BrokerError, wait_quiet
from penstock_bench.configurations import DURABLE_MOSQUITTO_CONF, DURABLE_PENSTOCK_TOML
from penstock_bench.suite import allow_open_files, keep_result, make_result, report_result, run_load, write_result
from penstock_bench.summary import Run, summarise_figure
from penstock_bench.targets import BASE, SUBJECT, Case, Figure, Target

TOPIC = "tbmq.msg.all"
DURABLE_MOSQUITTO = DURABLE_MOSQUITTO_CONF.replace("max_queued_messages 100000", "max_queued_messages 0")
LOGGING_PENSTOCK = DURABLE_PENSTOCK_TOML + '[log]\nprovider = "embedded"\n'
SCENARIOS = (
    Case(
        "ingest-q0",
        "--scenario p2p --n 10 --qos 0 --e2e 200",
        (
            Figure(
                "10 pairs, QoS 0, logged and delivered", "msgs_per_cpu_s", "messages / CPU-s", Target(500_000, False)
            ),
        ),
    ),
    Case(
        "ingest-q1",
        "--scenario publish --n 50 --qos 1 --window 100",
        (
            Figure("50 publishers, QoS 1, durably acknowledged", "rate", "messages / s", Target(200_000, False)),
            Figure("the same per CPU-second", "msgs_per_cpu_s", "messages / CPU-s"),
        ),
    ),
)
# CONNECT as `away` with a session that stays, SUBSCRIBE to # with QoS 1, DISCONNECT.
LEAVE_A_SESSION = (
    b"\x10\x10\x00\x04MQTT\x04\x00\x00\x3c\x00\x04away",
    b"\x82\x06\x00\x01\x00\x01#\x01",
    b"\xe0\x00",
)


def leave_a_session(broker: Broker) -> None:
    """A subscriber to everything that is away: what is published must be kept for it."""
    with socket.create_connection(("127.0.0.1", broker.port), 5) as connection:
        connection.settimeout(10)
        for packet in LEAVE_A_SESSION[:2]:
            connection.sendall(packet)
            if not connection.recv(64):
                raise BrokerError(f"{broker.name} does not take a subscriber")
        connection.sendall(LEAVE_A_SESSION[2])


def count_logged(broker: Broker) -> int:
    """Records in the log of all messages, as another process sees them."""
    reader = open_reader(broker.home / "data", TOPIC)
    try:
        marks = [reader.watermarks(partition) for partition in range(reader.partitions)]
        return sum(mark.end - mark.first for mark in marks)
    finally:
        reader.close()


def measure_once(broker: Broker, scenario: Case, args: argparse.Namespace) -> Run:
    """One run on a fresh broker, so that no run pays for what the one before it has stored."""
    wait_quiet(args.quiet)
    broker.start()
    try:
        if broker.name == BASE and scenario.name == "ingest-q1":
            leave_a_session(broker)
        broker.settle()
        before = count_logged(broker) if broker.name == SUBJECT else 0
        result = run_load(
            broker, ["--secs", str(args.secs), "--warmup", str(args.warmup), *shlex.split(scenario.options)]
        )
        if broker.name == SUBJECT and "received" in result:
            broker.settle()
            result["logged"] = count_logged(broker) - before
            if result["logged"] < result["received"]:
                result["error"] = f"{result['received'] - result['logged']:,} are not in the log"
        return result
    finally:
        broker.stop()


def measure(args: argparse.Namespace) -> list[Run]:
    brokers = [
        Broker(BASE, COMMANDS[BASE], DURABLE_MOSQUITTO, LOGGING_PENSTOCK),
        Broker(SUBJECT, COMMANDS[SUBJECT], DURABLE_MOSQUITTO, LOGGING_PENSTOCK),
    ]
    runs = []
    for rep in range(args.reps):
        for scenario in SCENARIOS:
            for broker in brokers:
                if args.only and broker.name != args.only:
                    continue
                result = measure_once(broker, scenario, args)
                runs.append({"rep": rep, "test": scenario.name, "broker": broker.name, **result})
                names = ("error", "rate", "msgs_per_cpu_s", "broker_cores", "load_cores", "logged", "received")
                shown = ", ".join(f"{name} {result[name]}" for name in names if name in result)
                print(f"{rep + 1}/{args.reps} {scenario.name} {broker.name}: {shown}", file=sys.stderr, flush=True)
    return runs


def summarise(runs: list[Run]) -> list[dict[str, Any]]:
    rows = []
    brokers = list(dict.fromkeys(run["broker"] for run in runs))
    for scenario in SCENARIOS:
        by_broker = {b: [r for r in runs if r["test"] == scenario.name and r["broker"] == b] for b in brokers}
        rows += [summarise_figure(scenario.name, figure, by_broker) for figure in scenario.figures]
    return rows


def fdatasync_ms(directory: str | None) -> float:
    """What the disk takes to make 4 KiB durable, which bounds every durable acknowledgement."""
    script = (
        "import os,sys,time\nfd=os.open(sys.argv[1],os.O_CREAT|os.O_RDWR)\n"
        "for _ in range(20):\n t=time.perf_counter();os.write(fd,b'.'*4096);os.fdatasync(fd)\n"
        " print((time.perf_counter()-t)*1000)"
    )
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        done = subprocess.run([sys.executable, "-c", script, file.name], capture_output=True, text=True, check=True)
    return round(statistics.median(map(float, done.stdout.split())), 3)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=3, help="repetitions; the table shows medians (3)")
    parser.add_argument("--secs", type=float, default=3, help="measured seconds of a run (3)")
    parser.add_argument("--warmup", type=float, default=1, help="unmeasured seconds before them (1)")
    parser.add_argument("--quiet", type=float, default=10, help="wait at most so long for the machine to be idle (10)")
    parser.add_argument("--only", choices=[BASE, SUBJECT], help="measure only this broker")
    parser.add_argument("--dir", help="directory of the brokers' files  [default: that of temporary files]")
    parser.add_argument("--json", metavar="FILE", help="write the result there")
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/ingest")
    parser.add_argument("--check", action="store_true", help="exit with 1 when penstock misses a target")
    args = parser.parse_args(argv)
    if args.dir:
        tempfile.tempdir = args.dir
    allow_open_files()
    started = datetime.now(UTC)
    try:
        runs = measure(args)
    except (BrokerError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    settings = {"reps": args.reps, "secs": args.secs, "warmup": args.warmup}
    result = make_result(runs, summarise(runs), settings, started=started, provider="embedded")
    result["machine"]["fdatasync_ms"] = fdatasync_ms(args.dir)
    if args.json:
        write_result(result, Path(args.json))
    if args.save:
        keep_result(result, RESULTS / "ingest")
    return report_result(result, is_checked=args.check)


if __name__ == "__main__":
    sys.exit(main())
