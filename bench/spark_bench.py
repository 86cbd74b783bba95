"""What Spark makes of a log: rows a second of the data source, what decoding adds on Kafka, how long `lake` takes, and
what a broker that writes the log notices of it.

python bench/spark_bench.py                 1,000,000 messages of 100 bytes, embedded and Kafka, on two cores
python bench/spark_bench.py --large         the same with 10,000,000, to see whether the cost grows linearly
python bench/spark_bench.py --only source   one of: source, kafka, lake, broker
python bench/spark_bench.py --only broker   QoS 1 acknowledgements and the broker's CPU, without and with a job reading
python bench/spark_bench.py --save          writes bench/results/spark/<date>.json (bench/spark_report.py shows it)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results/spark"
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from pyspark.sql import DataFrame, SparkSession  # noqa: E402 - the path comes first
from pyspark.sql import functions as F  # noqa: E402 - as above
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition  # noqa: E402 - as above

from penstock._ext.record.envelope import decode_pack, encode  # noqa: E402 - as above
from penstock._ext.record.segment import RecordPack, read_batches  # noqa: E402 - as above
from penstock.storage.log.base import Log  # noqa: E402 - as above
from penstock_bench.machine import describe_machine  # noqa: E402 - as above
from penstock_spark import MESSAGES, options, read_messages  # noqa: E402 - as above
from penstock_spark.embedded import EmbeddedTask  # noqa: E402 - as above
from penstock_spark.session import make_session  # noqa: E402 - as above
from penstock_spark.source import PenstockReader  # noqa: E402 - as above
from tests.spark.support import jars  # noqa: E402 - as above
from tests.spark.support.load import Probe, Publisher  # noqa: E402 - as above
from tests.support.brokers.log_broker import LogBroker  # noqa: E402 - as above
from tests.support.worlds.embedded import opened  # noqa: E402 - as above

TOPIC = "tbmq.msg.all"
PARTITIONS = 16
PACK = 200
T0 = 1_790_000_000_000
FOR_EVER = {"retention.ms": "-1", "retention.bytes": "-1"}


async def fill(log: Log, topic: str, count: int) -> None:
    """Messages of 100 bytes from a thousand devices, in packs as a busy broker makes them."""
    await log.admin.create(topic, PARTITIONS, FOR_EVER)
    number = 0
    while number < count:
        waiting = []
        for partition in range(PARTITIONS):
            pack = RecordPack()
            for _ in range(min(PACK, count - number)):
                device = number % 997
                at = T0 + number // 10
                payload = b'{"seq": %09d, "temperature": %4.1f, "unit": "C"}' % (number, 20 + number % 70 / 10)
                name = f"sensors/{device:03}/temperature"
                value = encode(name, payload.ljust(100), 1, client_id=f"device-{device:04}", received_at=at)
                pack.append(value, name.encode(), timestamp=at)
                number += 1
            if pack.count:
                waiting.append(log.producer.send(topic, partition, pack))
        await asyncio.gather(*waiting)


def fill_embedded(directory: Path, count: int) -> None:
    async def work() -> None:
        async with opened(directory) as log:
            await fill(log, TOPIC, count)

    asyncio.run(work())


def fill_kafka(bootstrap: str, topic: str, count: int) -> None:
    from penstock.storage.log.kafka import KafkaLog  # noqa: PLC0415 - only where Kafka is measured
    from penstock.storage.log.kafka.settings import KafkaSettings  # noqa: PLC0415 - as above

    async def work() -> None:
        log = KafkaLog(KafkaSettings(bootstrap_servers=bootstrap))
        await log.start()
        await fill(log, topic, count)
        await log.close()

    asyncio.run(work())


class RowReader(DataSourceReader):
    """What the source would be with a tuple of Python values per row, decoded by the same compiled envelope reader."""

    def __init__(self, path: str) -> None:
        self._reader = PenstockReader(options.parse({"path": path}))

    def partitions(self) -> list[InputPartition]:
        return list(self._reader.partitions())

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, EmbeddedTask)
        for piece in partition.pieces:
            with open(piece.path, "rb") as file:
                data = os.pread(file.fileno(), piece.size, piece.start)
            for number, (start, end) in enumerate(partition.ranges):
                if start < end:
                    yield from self._rows(data, number, start)

    @staticmethod
    def _rows(data: bytes, number: int, start: int) -> Iterator[tuple[Any, ...]]:
        position = 0
        while position < len(data):
            pack = RecordPack()
            position, _ = read_batches(pack, data, position, number, start, 10_000, 1 << 20)
            if not pack.count:
                return
            columns, _ = decode_pack(pack)
            for row in zip(*columns.values(), strict=True):
                (offset, at, version, topic, payload, qos, retain, client, user, received, expires, kind, content,
                 response, correlation, properties, _) = row  # fmt: skip
                try:
                    text = payload.decode()
                except UnicodeDecodeError:
                    text = None
                yield (
                    topic, payload, text, qos, retain, client, user, _time(received),
                    _time(expires) if expires else None,
                    kind, content, response, correlation, dict(properties), properties, version, TOPIC, number, offset,
                    _time(at), None, None,
                )  # fmt: skip


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


class RowSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "rows"

    def schema(self) -> Any:
        return MESSAGES

    def reader(self, schema: Any) -> DataSourceReader:
        return RowReader(self.options["path"])


def count_columns(frame: DataFrame) -> int:
    """Every column of every row is decoded and looked at."""
    counted = frame.select(*(F.count(name).alias(name) for name in frame.columns)).collect()[0]
    return int(counted["log_offset"])


def cpu_by_process(root: int) -> dict[int, float]:
    """CPU-seconds of a process and all below it, the JVM and Python's workers among them, with those of children that
    have ended: on a machine that is not idle it says more than the clock."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # gone meanwhile
        number = int(path.parent.name)
        parents[number] = int(words[1])
        used[number] = sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")
    wanted = {root}
    while more := {number for number, parent in parents.items() if parent in wanted} - wanted:
        wanted |= more
    return {number: used[number] for number in wanted if number in used}


def cpu_seconds() -> float:
    return sum(cpu_by_process(os.getpid()).values())


@dataclass(frozen=True)
class Timed:
    seconds: float
    cpu: float
    rows: int


def timed(work: Callable[[], int], runs: int) -> Timed:
    """The median of the runs, after one that warms the JVM up."""
    rows = work()
    times, cpu = [], []
    for _ in range(runs):
        started, used = time.perf_counter(), cpu_seconds()
        rows = work()
        times.append(time.perf_counter() - started)
        cpu.append(cpu_seconds() - used)
    return Timed(statistics.median(times), statistics.median(cpu), rows)


def measure_source(spark: SparkSession, directory: Path, runs: int, is_large: bool) -> dict[str, Any]:
    arrow = timed(lambda: count_columns(read_messages(spark, str(directory))), runs)
    found = {
        "rows": arrow.rows,
        "seconds": round(arrow.seconds, 2),
        "CPU-seconds": round(arrow.cpu, 2),
        "rows a second": round(arrow.rows / arrow.seconds),
        "rows a CPU-second": round(arrow.rows / arrow.cpu),
    }
    if is_large:
        return found
    spark.dataSource.register(RowSource)
    python = timed(
        lambda: count_columns(spark.read.format("rows").option("path", str(directory)).load()), max(1, runs // 3)
    )
    return {
        **found,
        "rows a second, Python rows": round(python.rows / python.seconds),
        "rows a CPU-second, Python rows": round(python.rows / python.cpu),
        "times Python rows": round(python.seconds / arrow.seconds, 1),
        "times Python rows, by CPU-seconds": round(python.cpu / arrow.cpu, 1),
    }


def measure_kafka(spark: SparkSession, bootstrap: str, topic: str, runs: int, is_large: bool) -> dict[str, Any]:
    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}

    def bare(tasks: int = 0) -> int:
        frame = spark.read.format("kafka").options(**given).load()
        frame = frame.coalesce(tasks) if tasks else frame
        names = ("value", "topic", "partition", "offset", "timestamp")
        found = frame.select(*(F.count(name) for name in names), F.sum(F.octet_length("value"))).collect()[0]
        return int(found[0])

    plain = timed(bare, runs)
    decoded = timed(lambda: count_columns(read_messages(spark, kafka=bootstrap, topics=topic)), runs)
    found = {
        "rows": plain.rows,
        "seconds of the bare connector": round(plain.seconds, 2),
        "CPU-seconds of the bare connector": round(plain.cpu, 2),
        "seconds decoded": round(decoded.seconds, 2),
        "CPU-seconds decoded": round(decoded.cpu, 2),
        "decoding adds percent": added(decoded.seconds, plain.seconds),
        "decoding adds percent, by CPU-seconds": added(decoded.cpu, plain.cpu),
    }
    if is_large:
        return found
    # read_messages reads with as many tasks as run at once, the connector with one a partition: compare like with like
    alike = timed(lambda: bare(max(2, spark.sparkContext.defaultParallelism)), runs)
    return {
        **found,
        "seconds of the bare connector in as few tasks": round(alike.seconds, 2),
        "CPU-seconds of the bare connector in as few tasks": round(alike.cpu, 2),
        "decoding adds percent, in as few tasks": added(decoded.seconds, alike.seconds),
        "decoding adds percent, in as few tasks, by CPU-seconds": added(decoded.cpu, alike.cpu),
    }


def added(value: float, base: float) -> int:
    return round(100 * (value / base - 1))


def measure_lake(directory: Path, output: Path) -> dict[str, Any]:
    """A command in a process of its own, with Spark's start."""
    shutil.rmtree(output, ignore_errors=True)
    command = [
        sys.executable,
        "-m",
        "penstock",
        "spark",
        "run",
        "lake",
        "-o",
        str(output),
        "--data-dir",
        str(directory),
    ]
    started = time.perf_counter()
    process = subprocess.Popen(
        [*command, "--json", "--master", "local[2]"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    )
    cpu: dict[int, float] = {}
    while process.poll() is None:
        # Spark's JVM is nobody's child in the end: what it used is known only while it runs
        cpu |= cpu_by_process(process.pid)
        time.sleep(0.1)
    seconds = time.perf_counter() - started
    assert process.stdout is not None
    report = json.loads(process.stdout.read().splitlines()[-1])
    return {
        "messages": report["messages"],
        "seconds": round(seconds, 1),
        "of them the job": report["seconds"],
        "CPU-seconds": round(sum(cpu.values()), 1),
    }


def measure_broker(spark: SparkSession, home: Path, seconds: float) -> dict[str, Any]:
    """How long a QoS 1 publish takes beside 50,000 others a second: while nothing reads, and while a job does."""
    broker = LogBroker(home)
    broker.wait_until_listening()
    load, probe = Publisher(broker.port), Probe(broker.port)
    load.start()
    probe.start()
    time.sleep(2)
    found: dict[str, Any] = {}
    try:
        for name in ("alone", "while a job reads"):
            first, sent, used = len(probe.seconds), load.sent, cpu_by_process(broker.process.pid)
            started, reads = time.monotonic(), 0
            while time.monotonic() - started < seconds:
                if name == "alone":
                    time.sleep(seconds)
                else:
                    count_columns(read_messages(spark, str(broker.data_dir)))
                    reads += 1
            passed, count = time.monotonic() - started, load.sent - sent
            cpu = sum(cpu_by_process(broker.process.pid).values()) - sum(used.values())
            found[name] = {
                "messages a second": round(count / passed),
                "p50 ms": round(probe.percentile(50, first), 2),
                "p99 ms": round(probe.percentile(99, first), 2),
                "broker's CPU microseconds a message": round(1e6 * cpu / max(1, count), 1),
                **({"reads": reads} if reads else {}),
            }
    finally:
        load.is_running = probe.is_running = False
        load.join(30)
        broker.stop()
    return found


def told(what: str, result: dict[str, Any]) -> dict[str, Any]:
    print(f"{what}: {json.dumps(result)}", file=sys.stderr, flush=True)
    return result


def measure(count: int, only: str, runs: int, broker_seconds: float, is_large: bool = False) -> dict[str, Any]:
    """`is_large`: only what has to grow linearly."""
    found: dict[str, Any] = {"messages": count}
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as home:
        directory = Path(home) / "data"
        directory.mkdir()
        if only in ("", "source", "lake"):
            fill_embedded(directory, count)
        if only in ("", "lake"):
            found["lake"] = told("lake", measure_lake(directory, Path(home) / "lake"))
        if only == "lake":
            return found
        spark = make_session("bench", master="local[2]", jars=map(str, jars.fetch()))
        if only in ("", "source"):
            found["embedded source"] = told("embedded source", measure_source(spark, directory, runs, is_large))
        shutil.rmtree(directory)
        if only in ("", "broker") and not is_large:
            found["broker"] = told("broker", measure_broker(spark, Path(home), broker_seconds))
        if only in ("", "kafka"):
            found["kafka"] = told("kafka", measure_in_kafka(spark, count, runs, is_large))
    return found


def measure_in_kafka(spark: SparkSession, count: int, runs: int, is_large: bool) -> dict[str, Any]:
    from tests.support.servers.kafka_fixtures import shared_cluster  # noqa: PLC0415 - starts Kafka

    bootstrap = shared_cluster(1).bootstrap
    topic = f"bench-{count}-{os.getpid()}"
    fill_kafka(bootstrap, topic, count)
    return measure_kafka(spark, bootstrap, topic, runs, is_large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--large", action="store_true", help="10,000,000 as well")
    parser.add_argument("--only", choices=("source", "kafka", "lake", "broker"), default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--broker-seconds", type=float, default=15.0, help="of the broker alone, and beside a job")
    parser.add_argument("--save", action="store_true")
    chosen = parser.parse_args()
    sizes = [chosen.messages, *([10 * chosen.messages] if chosen.large else [])]
    load = os.getloadavg()[0]
    results = [
        measure(
            size,
            chosen.only,
            chosen.runs if size == chosen.messages else 1,
            chosen.broker_seconds,
            size != chosen.messages,
        )
        for size in sizes
    ]
    report = {
        "machine": describe_machine(),
        "date": str(date.today()),
        "load before": round(load, 2),
        "runs": chosen.runs,
        "results": results,
    }
    print(json.dumps(report, indent=2))
    if chosen.save:
        path = RESULTS / f"{date.today()}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=2) + "\n")
        print(path)


if __name__ == "__main__":
    main()
