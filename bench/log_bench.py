"""The embedded log on this machine's disk: how many records a second, and how long a commit takes.

    python bench/log_bench.py [--directory DIR] [--records N] [--seconds S] [--save]

100-byte records in packs of 500, fsync before every acknowledgement. The rate of appending is that of wall-clock time
with 8 MiB on their way; beside it stands how many one CPU-second of the process is enough for. Beside each figure of
the disk stands what the bare disk does (write and fdatasync of the same bytes in one thread), because it is the disk
that differs most between machines.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts import save_part
from bench.scenarios import Figure, at_least, at_most
from penstock._ext.segment import RecordPack, write_packs
from penstock.logs.base import Appended, LogError, TopicPartition
from penstock.logs.embedded import EmbeddedLog
from penstock.stores.lmdb_kv import LmdbStore

VALUE = b"x" * 100
PACK = 500
PARTITIONS = 4
ON_THEIR_WAY = 8 * 1_048_576


def make_pack(count: int = PACK) -> RecordPack:
    pack = RecordPack()
    pack.bench_put(VALUE, count)
    return pack


async def measure_append(log: EmbeddedLog, records: int) -> dict[str, float]:
    await log.admin.create("append", PARTITIONS)
    packs = records // PACK
    left = packs
    room = asyncio.Event()
    done = asyncio.get_running_loop().create_future()

    def on_done(result: Appended | LogError) -> None:
        nonlocal left
        assert isinstance(result, Appended), result
        left -= 1
        room.set()
        if left == 0:
            done.set_result(None)

    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(packs):
        while log.producer.pending_bytes > ON_THEIR_WAY:
            room.clear()
            await room.wait()
        log.producer.append("append", number % PARTITIONS, make_pack(), on_done)
        if number % 16 == 15:
            await asyncio.sleep(0)
    await done
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"records_per_second": packs * PACK / wall, "records_per_cpu_second": packs * PACK / cpu}


def measure_bare_disk(directory: Path, records: int) -> dict[str, float]:
    packs = []
    for number in range(records // PACK):
        pack = make_pack()
        pack.place(number * PACK)
        packs.append(pack)
    fd = os.open(directory / "bare", os.O_CREAT | os.O_RDWR)
    started, position = time.perf_counter(), 0
    for first in range(0, len(packs), 64):
        some = packs[first : first + 64]
        written, failure = write_packs(fd, position, position, [0] * len(some), some, True)
        assert failure == 0
        position += written
    seconds = time.perf_counter() - started
    os.close(fd)
    (directory / "bare").unlink()
    return {"records_per_second": len(packs) * PACK / seconds, "mebibytes_per_second": position / seconds / 1_048_576}


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


async def measure_read(log: EmbeddedLog, records: int) -> dict[str, float]:
    consumer = log.consumer("")
    consumer.assign([TopicPartition("append", number) for number in range(PARTITIONS)])
    count = 0
    wall, cpu = time.perf_counter(), time.process_time()
    while count < records // PACK * PACK:
        for fetched in await consumer.poll(10_000, 5.0):
            fetched.pack.bench_walk()
            count += fetched.pack.count
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await consumer.close()
    return {"records_per_second": count / wall, "records_per_cpu_second": count / cpu}


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
    Figure("append and commit, 500 records at a time", "appended", "records / s", at_least(1_000_000)),
    Figure("read into C structures, from files", "read", "records / s", at_least(2_000_000)),
    Figure("the same, newest in memory", "read_cached", "records / s"),
    Figure("commit at 50,000 records / s, p99", "p99_ms", "ms", at_most(5), True),
)


def compared(measured: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The figures that have a target, beside those of the bare disk."""
    return {
        "bare disk": {
            "appended": measured["bare disk"]["records_per_second"],
            "p99_ms": measured["bare disk, commits"]["p99_ms"],
        },
        "penstock": {
            "appended": measured["append and commit"]["records_per_second"],
            "read": measured["read from files"]["records_per_second"],
            "read_cached": measured["read, newest in memory"]["records_per_second"],
            "p99_ms": measured["commit at 50,000 records/s"]["p99_ms"],
        },
    }


async def main(directory: Path, records: int, seconds: float) -> dict[str, Any]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"))
    await log.start()
    figures: dict[str, Any] = {"bare disk": measure_bare_disk(directory, records)}
    figures["append and commit"] = await measure_append(log, records)
    figures["read, newest in memory"] = await measure_read(log, records)
    figures["bare disk, commits"] = measure_bare_commits(directory)
    figures["commit at 50,000 records/s"] = await measure_latency(log, 50_000, seconds)
    figures["one record to 500 topics"] = await measure_fan_out(log, 500)
    await log.close()
    log = EmbeddedLog(directory, store.space("groups"), cache_bytes=0)
    started = time.perf_counter()
    await log.start()
    figures["start"] = {"seconds": time.perf_counter() - started}
    figures["read from files"] = await measure_read(log, records)
    await log.close()
    store.close()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", help="where the log is written (a temporary directory of it is removed again)")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of the commits at a fixed rate (30)")
    parser.add_argument("--save", action="store_true", help="write a dated result to bench/results/log")
    options = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="penstock-log-", dir=options.directory))
    try:
        measured = uvloop.run(main(place, options.records, options.seconds))
    finally:
        shutil.rmtree(place)
    for name, numbers in measured.items():
        print(f"{name:28}", "  ".join(f"{key} {value:,.2f}" for key, value in numbers.items()))
    if options.save:
        save_part("log", "embedded", FIGURES, compared(measured), records=options.records)
    sys.exit(0)
