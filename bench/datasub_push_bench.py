#!/usr/bin/env python3
"""Data subscription end to end: JSON messages at a fixed rate, consumers whose fetches are parked at the broker.

  python bench/datasub_push_bench.py                              embedded log, both scenarios, 3 repetitions
  python bench/datasub_push_bench.py --provider kafka --reps 1
  python bench/datasub_push_bench.py --scenario many --rate 5000

push    one query topic that every message passes, one consumer; time from the publisher's write to the consumer's read
many    1,000 query topics, all of them fetched from, of which 50 match every message: does the rate hold, and is the
        consumers' lag bounded?

Publisher and consumers are processes of their own, in Python; QoS 0, each message in the log (fsync = always). The CPU
is the broker's, all threads.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import msgspec
import numpy as np
import numpy.typing as npt
import uvloop

from bench.device_bench import PENSTOCK
from bench.frame import Bench, argument_parser, measure_fresh, measure_in_turn, own_kafka, run_bench
from penstock_bench.brokers import COMMANDS, Broker, free_port
from penstock_bench.summary import Run
from penstock_bench.system import cpu_seconds
from penstock_bench.targets import SUBJECT, Case, Figure, at_least, at_most

SOURCES = 100
TOPICS = 1_000
MATCHING = 50
CONSUMERS = 20
TICK_SECONDS = 0.001
# A consumer that has rows to read never waits so long.
WAIT_MS = 5_000
SHOWN = ("error", "rate", "p50_ms", "p99_ms", "rows_per_s", "lag", "broker_cores")
COLUMNS = "topic, CAST(payload.temp AS DOUBLE) AS temp, CAST(payload.sent AS BIGINT) AS sent"
PUSH = f'CREATE TOPIC push AS SELECT {COLUMNS} FROM "sensors/+/data"'
MANY = (
    f'CREATE TOPIC many_{{number}} AS SELECT {COLUMNS} FROM "sensors/+/data" '
    "WHERE payload.kind = '{kind}' AND payload.temp > -{number}"
)


# ---- the publisher ----


def build_publish(topic: str, payload: bytes) -> bytes:
    body = struct.pack("!H", len(topic)) + topic.encode() + payload
    size, length = len(body), bytearray()
    while True:
        size, digit = divmod(size, 128)
        length.append(digit | (0x80 if size else 0))
        if not size:
            return b"\x30" + bytes(length) + body


def publish(port: int, rate: int, seconds: float) -> None:
    """Prints how many it wrote; it is never ahead of the rate, and catches up when it was late."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04load")
        connection.recv(4)
        began, sent = time.monotonic(), 0
        while (passed := time.monotonic() - began) < seconds:
            due = int(passed * rate)
            now = time.time_ns()
            packets = [
                build_publish(
                    f"sensors/{number % SOURCES}/data",
                    b'{"temp": %d.5, "kind": "hot", "sent": %d, "unit": "C"}' % (number % 40, now),
                )
                for number in range(sent, due)
            ]
            connection.sendall(b"".join(packets))
            sent = due
            time.sleep(TICK_SECONDS)
    print(sent)


# ---- the consumers ----


class Connection:
    """Speaks penstock_client.wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._number = 0
        self._task = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def open(cls, port: int) -> Connection:
        connection = cls(*await asyncio.open_connection("127.0.0.1", port, limit=1 << 22))
        await connection.ask("hello", {"protocol": 1})
        return connection

    async def ask(self, method: str, parameters: dict[str, Any]) -> Any:
        self._number += 1
        body = msgspec.msgpack.encode([self._number, method, parameters])
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        self._writer.write(len(body).to_bytes(4, "big") + body)
        return await answer

    async def _read(self) -> None:
        while True:
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            number, failure, result = msgspec.msgpack.decode(await self._reader.readexactly(size))
            answer = self._answers.pop(number)
            if failure is not None:
                answer.set_exception(RuntimeError(failure["message"]))
            elif not answer.done():
                answer.set_result(result)


class Consumer:
    """Reads all partitions of its topics, each with a fetch of its own."""

    def __init__(self, connection: Connection, group: str, topics: list[str], *, is_timed: bool) -> None:
        from penstock._ext.query.block import Block  # noqa: PLC0415 - the publisher does not need it

        self._decode = Block.decode
        self._connection = connection
        self._group = group
        self._topics = topics
        self._is_timed = is_timed
        self.latencies: list[npt.NDArray[np.int64]] = []  # ns, of each block
        self.rows = 0
        self.lag = 0

    async def join(self) -> None:
        request = {"group": self._group, "topics": self._topics, "auto_offset_reset": "latest"}
        self._state = await self._connection.ask("subscribe", request)
        while self._state["state"] != "ready":
            await asyncio.sleep(0.1)
            self._state = await self._connection.ask("ask", self._me()) or self._state

    def _me(self) -> dict[str, Any]:
        return {"consumer": self._state["consumer"], "group": self._group, "epoch": self._state["epoch"]}

    async def run(self) -> None:
        loops = [self._follow(one["topic"], one["partition"], one["offset"]) for one in self._state["partitions"]]
        await asyncio.gather(self._beat(), *loops)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(3)
            await self._connection.ask("heartbeat", {**self._me(), "polled": True})

    async def _follow(self, topic: str, partition: int, offset: int) -> None:
        request = {**self._me(), "topic": topic, "partition": partition, "max_wait_ms": WAIT_MS}
        while True:
            fetched = await self._connection.ask("fetch", {**request, "offset": offset})
            now = time.time_ns()
            offset = fetched["next_offset"]
            self.lag = max(self.lag, fetched["end"] - offset)
            for encoded in fetched.get("blocks", ()):
                block = self._decode(encoded)
                self.rows += block.rows
                if self._is_timed:
                    self.latencies.append(now - np.array(block.column(2), np.int64))


async def consume(port: int, statements: list[str], shares: list[list[str]], warmup: float, seconds: float) -> None:
    """Prints `ready` when every fetch is parked, then, after the time, what came."""
    admin = await Connection.open(port)
    for statement in statements:
        await admin.ask("execute", {"sql": statement})
    is_timed = len(statements) == 1
    consumers = [
        Consumer(await Connection.open(port), f"g{number}", topics, is_timed=is_timed)
        for number, topics in enumerate(shares)
    ]
    for consumer in consumers:
        await consumer.join()
    running = [asyncio.ensure_future(consumer.run()) for consumer in consumers]
    await asyncio.sleep(1)
    print("ready", flush=True)
    await asyncio.sleep(warmup)
    for consumer in consumers:
        consumer.latencies.clear()
        consumer.rows = consumer.lag = 0
    await asyncio.wait(running, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for task in running:
        if task.done():
            task.result()
    latencies = [block for consumer in consumers for block in consumer.latencies]
    result = {"rows": sum(consumer.rows for consumer in consumers), "lag": max(one.lag for one in consumers)}
    if latencies:
        median, p99 = np.percentile(np.concatenate(latencies), (50, 99), method="higher").tolist()
        result |= {"p50": median, "p99": p99}
    print(json.dumps(result))


# ---- the measurement ----


class DataBroker(Broker):
    """With a data port of its own, and four partitions, as many as the examples of TDengine have."""

    def __init__(self, toml: str) -> None:
        self.data_port = free_port()
        command = COMMANDS[SUBJECT].replace("127.0.0.1:0", f"127.0.0.1:{self.data_port}")
        super().__init__(SUBJECT, command, penstock_toml=toml)


def measure_with(bench: Bench, broker: Broker, statements: list[str], shares: list[list[str]]) -> Run:
    assert isinstance(broker, DataBroker)
    args = bench.args
    here = [sys.executable, __file__]
    parts = json.dumps([broker.data_port, statements, shares, args.warmup, args.secs])
    with subprocess.Popen(
        [*here, "--consume", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as consumer:
        assert consumer.stdin is not None
        assert consumer.stdout is not None
        consumer.stdin.write(parts)
        consumer.stdin.close()
        if consumer.stdout.readline() != "ready\n":
            return {"error": "the consumers did not start"}
        used, began = cpu_seconds(broker.pids()), time.monotonic()
        load = f"{broker.port},{args.rate},{args.warmup + args.secs}"
        published = subprocess.run([*here, "--publish", load], capture_output=True, text=True, check=True)
        took = time.monotonic() - began
        cores = (cpu_seconds(broker.pids()) - used) / took
        result = json.loads(consumer.stdout.readline() or '{"rows": 0, "lag": 0}')
    run: Run = {
        "rate": round(int(published.stdout) / (args.warmup + args.secs)),
        "rows_per_s": round(result["rows"] / args.secs),
        "lag": result["lag"],
        "broker_cores": round(cores, 2),
    }
    for name in ("p50", "p99"):
        if name in result:
            run[f"{name}_ms"] = round(result[name] / 1e6, 2)
    return run


def measure_push(bench: Bench, broker: Broker) -> Run:
    return measure_with(bench, broker, [PUSH], [["push"]])


def measure_many(bench: Bench, broker: Broker) -> Run:
    names = [f"many_{number}" for number in range(TOPICS)]
    kinds = ["hot" if number < MATCHING else f"kind {number % MATCHING}" for number in range(TOPICS)]
    statements = [MANY.format(number=number, kind=kind) for number, kind in enumerate(kinds)]
    return measure_with(bench, broker, statements, [names[first::CONSUMERS] for first in range(CONSUMERS)])


MEASURES: dict[str, Callable[[Bench, Broker], Run]] = {"push": measure_push, "many": measure_many}


def scenarios(rate: int) -> list[Case]:
    latency = Figure(f"push at {rate:,} messages / s, p99", "p99_ms", "ms", at_most(20), is_less_better=True)
    median = Figure("the same, median", "p50_ms", "ms", is_less_better=True)
    rows = Figure(f"{TOPICS:,} topics, {MATCHING} match", "rows_per_s", "rows / s", at_least(0.97 * rate * MATCHING))
    lag = Figure("the same, largest lag of a partition", "lag", "messages", at_most(rate), is_less_better=True)
    cores = Figure("the same, broker", "broker_cores", "cores", is_less_better=True)
    return [Case("push", "", (latency, median, cores)), Case("many", "", (rows, lag, cores))]


def broker_of(bench: Bench) -> Broker:
    server = f'[kafka]\nbootstrap_servers = "{bench.kafka.bootstrap}"\n' if bench.kafka else ""
    return DataBroker(PENSTOCK.format(provider=bench.args.provider) + server + "[ingest]\npartitions = 4\n")


def measure(args: argparse.Namespace) -> list[Run]:
    with own_kafka(args.provider) as kafka:
        bench = Bench(args, kafka)
        return measure_in_turn(
            args,
            MEASURES,
            lambda _: [broker_of(bench)],
            lambda scenario, broker: measure_fresh(bench, broker, MEASURES[scenario]),
            SHOWN,
        )


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argument_parser(__doc__, MEASURES, "datasub")
    parser.add_argument("--rate", type=int, default=10_000, help="messages published each second (10000)")
    parser.add_argument("--publish", help=argparse.SUPPRESS)
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.publish:
        port, rate, seconds = args.publish.split(",")
        publish(int(port), int(rate), float(seconds))
        return 0
    if args.consume:
        uvloop.run(consume(*json.load(sys.stdin)))
        return 0
    return run_bench(args, "datasub", lambda: measure(args), scenarios(args.rate), ("rate",))


if __name__ == "__main__":
    sys.exit(main())
