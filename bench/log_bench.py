"""The embedded log on this machine's disk: how many records a second, and how long a commit takes.

    python bench/log_bench.py [--directory DIR] [--rate-seconds S] [--seconds S] [--save]

100-byte records in packs of 500, fsync before every acknowledgement. Rates are those of wall-clock time, with 8 MiB on
their way, over --rate-seconds each. Those that have a target are of a process that is bound to one core, with all its
threads; beside them stands the same with all cores. Beside each figure of the disk stands what the bare disk does
(write and fdatasync of the same bytes in one thread), because it is the disk that differs most between machines. What
is read was written just before: it comes from the system's cache, not from the disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts import save_part
from penstock._ext.record.segment import RecordPack, write_packs
from penstock.storage.log.base import Appended, LogError, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock_bench.targets import Figure, at_least, at_most

VALUE = b"x" * 100
PACK = 500
PARTITIONS = 4
ON_THEIR_WAY = 8 * 1_048_576
FIT_IN_MEMORY = 200_000  # records, of the 64 MiB that the log keeps
MOST_OF_ONE_CORE = 1.05


def make_pack(count: int = PACK) -> RecordPack:
    pack = RecordPack()
    pack.bench_put(VALUE, count)
    return pack


def rates_of(records: int, wall: float, cpu: float) -> dict[str, float]:
    return {
        "records_per_second": records / wall,
        "records_per_cpu_second": records / cpu,
        "cores": cpu / wall,
        "seconds": wall,
    }


async def measure_append(log: EmbeddedLog, topic: str, seconds: float, most: int = sys.maxsize) -> dict[str, float]:
    """So long, or until there are so many records; the last of them is durable when the time is taken."""
    await log.admin.create(topic, PARTITIONS)
    under_way = packs = 0
    progress = asyncio.Event()

    def on_done(result: Appended | LogError) -> None:
        nonlocal under_way
        assert isinstance(result, Appended), result
        under_way -= 1
        progress.set()

    wall, cpu = time.perf_counter(), time.process_time()
    while packs * PACK < most and time.perf_counter() - wall < seconds:
        while log.producer.pending_bytes > ON_THEIR_WAY:
            progress.clear()
            await progress.wait()
        under_way += 1
        log.producer.append(topic, packs % PARTITIONS, make_pack(), on_done)
        packs += 1
        if packs % 16 == 0:
            await asyncio.sleep(0)
    while under_way:
        progress.clear()
        await progress.wait()
    return rates_of(packs * PACK, time.perf_counter() - wall, time.process_time() - cpu)


def measure_bare_disk(directory: Path, seconds: float) -> dict[str, float]:
    packs = [make_pack() for _ in range(64)]
    for number, pack in enumerate(packs):
        pack.place(number * PACK)
    fd = os.open(directory / "bare", os.O_CREAT | os.O_RDWR)
    records = position = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        written, failure = write_packs(fd, position, position, [0] * len(packs), packs, True)
        assert failure == 0
        position += written
        records += len(packs) * PACK
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    os.close(fd)
    (directory / "bare").unlink()
    return {**rates_of(records, wall, cpu), "mebibytes_per_second": position / wall / 1_048_576}


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Of times that were measured, none of them in between."""
    parts = (50, 90, 99)
    found = np.percentile(np.array(seconds) * 1_000, parts, method="higher")
    return {f"p{part}_ms": one for part, one in zip(parts, found.tolist(), strict=True)}


def measure_bare_commits(directory: Path, count: int = 1_000) -> dict[str, float]:
    """Write and fdatasync of what a millisecond brings at 50,000 records a second."""
    pack = make_pack(50)
    pack.place(0)
    fd = os.open(directory / "bare", os.O_CREAT | os.O_RDWR)
    times, position = [], 0
    for _ in range(count):
        started = time.perf_counter()
        written, _ = write_packs(fd, position, position, [0], [pack], True)
        times.append(time.perf_counter() - started)
        position += written
    os.close(fd)
    (directory / "bare").unlink()
    return percentiles(times)


async def measure_read(log: EmbeddedLog, topic: str, seconds: float) -> dict[str, float]:
    """All of the topic, from its beginning, as often as it takes."""
    partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    count = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < seconds:
        consumer = log.consumer("")
        consumer.assign(partitions)
        while fetched := await consumer.poll(10_000, 0):
            for one in fetched:
                one.pack.bench_walk()
                count += one.pack.count
        assert not any((await consumer.lag()).values()), "there was more to read"
        await consumer.close()
    return rates_of(count, time.perf_counter() - wall, time.process_time() - cpu)


async def measure_rates(directory: Path, seconds: float) -> dict[str, dict[str, float]]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"))
    await log.start()
    figures = {"bare disk": measure_bare_disk(directory, seconds)}
    figures["append and commit"] = await measure_append(log, "append", seconds)
    await measure_append(log, "newest", seconds, FIT_IN_MEMORY)
    figures["read, newest in memory"] = await measure_read(log, "newest", seconds)
    await log.close()
    log = EmbeddedLog(directory, store.space("groups"), cache_bytes=0)
    started = time.perf_counter()
    await log.start()
    figures["start"] = {"seconds": time.perf_counter() - started}
    figures["read from files"] = await measure_read(log, "append", seconds)
    await log.close()
    store.close()
    return figures


def run_rates(parent: Path, seconds: float, core: int | None) -> dict[str, dict[str, float]]:
    """In a process of its own, because threads have the cores that their process had when they were started."""
    with (
        tempfile.TemporaryDirectory(dir=parent) as directory,
        ProcessPoolExecutor(1, get_context("spawn"), _bind, (core,)) as pool,
    ):
        return pool.submit(_run_rates, Path(directory), seconds).result()


def _bind(core: int | None) -> None:
    if core is not None:
        os.sched_setaffinity(0, {core})


def _run_rates(directory: Path, seconds: float) -> dict[str, dict[str, float]]:
    return uvloop.run(measure_rates(directory, seconds))


async def measure_latency(log: EmbeddedLog, rate: int, seconds: float) -> dict[str, float]:
    """A pack every millisecond, as a busy loop would append them. How late the loop's own timer is says how busy the
    machine is with other things."""
    await log.admin.create("latency", PARTITIONS)
    times: list[float] = []
    late: list[float] = []
    per_pack = rate // 1_000
    count = int(seconds * 1_000)
    done = asyncio.Event()

    def append(number: int) -> None:
        at = time.perf_counter()

        def on_done(_: Appended | LogError) -> None:
            times.append(time.perf_counter() - at)
            if len(times) == count:
                done.set()

        log.producer.append("latency", number % PARTITIONS, make_pack(per_pack), on_done)

    started = time.perf_counter()
    number = 0
    while number < count:
        due = min(count, int((time.perf_counter() - started) * 1_000))
        while number < due:
            append(number)
            number += 1
        before = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - before - 0.001)
    await done.wait()
    elapsed = time.perf_counter() - started
    return {
        "records_per_second": per_pack * count / elapsed,
        **percentiles(times),
        "max_ms": max(times) * 1_000,
        "timer_late_p99_ms": percentiles(late)["p99_ms"],
    }


async def measure_fan_out(log: EmbeddedLog, topics: int, rounds: int = 40) -> dict[str, float]:
    """A record for each of many topics, as a message for as many APPLICATION clients is: until all are durable."""
    names = [f"client-{number}" for number in range(topics)]
    started = time.perf_counter()
    await asyncio.gather(*map(log.admin.create, names))
    creation = time.perf_counter() - started
    await asyncio.gather(*(log.producer.send(name, 0, make_pack(1)) for name in names))
    times: list[float] = []
    cpu = time.process_time()
    for _ in range(rounds):
        started = time.perf_counter()
        await asyncio.gather(*(log.producer.send(name, 0, make_pack(1)) for name in names))
        times.append(time.perf_counter() - started)
    cpu = time.process_time() - cpu
    return {
        "median_ms": percentiles(times)["p50_ms"],
        "worst_ms": max(times) * 1_000,
        "cpu_ms": cpu / rounds * 1_000,
        "create_ms_per_topic": creation / topics * 1_000,
    }


FIGURES = (
    Figure("append and commit, 500 records at a time, one core", "appended", "records / s", at_least(1_000_000)),
    Figure("the same per CPU-second", "appended_per_cpu", "records / CPU-s"),
    Figure("the same on all cores", "appended_all", "records / s"),
    Figure("read into C structures, from files, one core", "read", "records / s", at_least(2_000_000)),
    Figure("the same per CPU-second", "read_per_cpu", "records / CPU-s"),
    Figure("the same, newest in memory, one core", "read_cached", "records / s"),
    Figure("commit at 50,000 records / s, p99", "p99_ms", "ms", at_most(5), True),
)


def compared(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The figures that are kept, beside those of the bare disk."""
    one, every = measured["one core"], measured["all cores"]
    assert one["append and commit"]["cores"] < MOST_OF_ONE_CORE, "the process was not bound to its core"
    return {
        "bare disk": {
            "appended": one["bare disk"]["records_per_second"],
            "appended_per_cpu": one["bare disk"]["records_per_cpu_second"],
            "appended_all": every["bare disk"]["records_per_second"],
            "p99_ms": measured["commits"]["bare disk, commits"]["p99_ms"],
        },
        "penstock": {
            "appended": one["append and commit"]["records_per_second"],
            "appended_per_cpu": one["append and commit"]["records_per_cpu_second"],
            "appended_all": every["append and commit"]["records_per_second"],
            "read": one["read from files"]["records_per_second"],
            "read_per_cpu": one["read from files"]["records_per_cpu_second"],
            "read_cached": one["read, newest in memory"]["records_per_second"],
            "p99_ms": measured["commits"]["commit at 50,000 records/s"]["p99_ms"],
        },
    }


async def measure_commits(directory: Path, seconds: float) -> dict[str, dict[str, float]]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"))
    await log.start()
    figures = {
        "bare disk, commits": measure_bare_commits(directory),
        "commit at 50,000 records/s": await measure_latency(log, 50_000, seconds),
        "one record to 500 topics": await measure_fan_out(log, 500),
    }
    await log.close()
    store.close()
    return figures


def measure(directory: Path, rate_seconds: float, seconds: float) -> dict[str, dict[str, dict[str, float]]]:
    return {
        "one core": run_rates(directory, rate_seconds, max(os.sched_getaffinity(0))),
        "all cores": run_rates(directory, rate_seconds, None),
        "commits": uvloop.run(measure_commits(directory, seconds)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the log is written (a temporary directory of it is removed again)")
    parser.add_argument("--rate-seconds", type=float, default=4.0, help="of appending, and of reading each (4)")
    parser.add_argument("--seconds", type=float, default=30.0, help="of the commits at a fixed rate (30)")
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-log-", dir=options.directory) as place:
        measured = measure(Path(place), options.rate_seconds, options.seconds)
    for part, figures in measured.items():
        for name, numbers in figures.items():
            print(f"{part:10} {name:27}", "  ".join(f"{key} {value:,.2f}" for key, value in numbers.items()))
    if options.save:
        seconds = {"rate_seconds": options.rate_seconds, "seconds": options.seconds}
        save_part("log", "embedded", FIGURES, compared(measured), **seconds)


if __name__ == "__main__":
    main()
