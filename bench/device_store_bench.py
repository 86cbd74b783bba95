"""The stores of DEVICE queues on this machine: how many messages a second are stored for clients that are away.

    python bench/device_store_bench.py [--messages N] [--store redis|lmdb|both] [--directory DIR] [--json FILE]

110-byte envelopes (62-byte payloads), a redis-server of its own without persistence, LMDB with fsync before every
answer. A shape is how many clients get how many messages each in one call; four calls, each for other clients, are
under way at once. One message for each client is the worst case: nothing can be shared. Beside the rate of wall-clock
time stands the time the processors spent on a message, ours and that of Redis, which says more on a machine that does
other things, too. Beside the figures of Redis stands what it does for a bare pipelined SET at the same time.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import hiredis
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from penstock._ext.record.segment import RecordPack
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    DeviceStore,
    build_source,
    client_queue,
    result_of,
)
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.support.servers.redis_server import RedisServer, own_redis

VALUE = b"x" * 110
SHAPES = ((5_000, 1), (1_000, 5), (500, 20), (10, 500))
UNDER_WAY = 4
PARTITIONS = 16


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Source:
    """Messages as dispatch has them: the offsets of each partition grow."""

    def __init__(self) -> None:
        self._offset = 0

    def batch(self, number: int, clients: int, messages: int) -> list[Addition]:
        additions = []
        for client in range(number % UNDER_WAY * clients, (number % UNDER_WAY + 1) * clients):
            pack = RecordPack()
            for _ in range(messages):
                pack.append(VALUE, build_source(client % PARTITIONS, self._offset))
                self._offset += 1
            additions.append(Addition(client_queue(f"device-{clients}-{client}"), pack))
        return additions


async def measure(
    store: DeviceStore, source: Source, shape: tuple[int, int], messages: int, redis: int = 0
) -> dict[str, float]:
    clients, each = shape
    calls = max(UNDER_WAY, messages // (clients * each))
    batches = [source.batch(number, clients, each) for number in range(calls)]
    gc.freeze()
    waiting: list[asyncio.Future[Any]] = []
    wall, cpu = time.perf_counter(), time.process_time()
    cpu_of_redis = cpu_seconds(redis) if redis else 0.0
    for batch in batches:
        done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        store.add(batch, done.set_result)
        waiting.append(done)
        if len(waiting) >= UNDER_WAY:
            check(await waiting.pop(0))
    for done in waiting:
        check(await done)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    total = len(batches) * clients * each
    figures = {"messages_per_second": total / wall, "cpu_us_per_message": 1e6 * cpu / total}
    if redis:
        figures["redis_cpu_us_per_message"] = 1e6 * (cpu_seconds(redis) - cpu_of_redis) / total
    for batch in batches[:UNDER_WAY]:
        await result_of(store.remove_all, [addition.queue for addition in batch])
    return figures


def check(results: list[Any]) -> None:
    failed = [result for result in results if not isinstance(result, Added)]
    assert not failed, failed[0]


async def measure_bare_set(server: RedisServer, messages: int) -> dict[str, float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    commands = [hiredis.pack_command(("SET", b"bare-%d" % i, VALUE)) for i in range(messages)]
    wall, cpu = time.perf_counter(), cpu_seconds(server.pid)
    writer.write(b"".join(commands))
    await reader.readexactly(len(b"+OK\r\n") * messages)
    wall, cpu = time.perf_counter() - wall, cpu_seconds(server.pid) - cpu
    writer.close()
    return {"messages_per_second": messages / wall, "redis_cpu_us_per_message": 1e6 * cpu / messages}


async def measure_redis(server: RedisServer, messages: int) -> dict[str, Any]:
    figures: dict[str, Any] = {"redis, bare SET": await measure_bare_set(server, messages)}
    store = RedisDeviceStore(RedisSettings(addresses=server.address, backlog_bytes=1 << 30), DeviceSettings())
    await store.start()
    source = Source()
    for shape in SHAPES:
        figures[f"redis, {shape[0]} x {shape[1]}"] = await measure(store, source, shape, messages, server.pid)
    await store.close()
    return figures


async def measure_lmdb(directory: Path, messages: int) -> dict[str, Any]:
    store = LmdbDeviceStore(directory / "device", DeviceSettings(), backlog_bytes=1 << 30)
    await store.start()
    source = Source()
    figures = {}
    for shape in SHAPES:
        figures[f"lmdb, {shape[0]} x {shape[1]}"] = await measure(store, source, shape, messages)
    await store.close()
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000, help="of each shape")
    parser.add_argument("--store", choices=["redis", "lmdb", "both"], default="both")
    parser.add_argument("--directory", help="where LMDB writes (a temporary directory of it is removed again)")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    options = parser.parse_args()
    measured: dict[str, Any] = {}
    gc.set_threshold(50_000, 20, 50)  # as the broker does
    if options.store != "lmdb":
        with own_redis() as started:
            measured |= uvloop.run(measure_redis(started, options.messages))
    if options.store != "redis":
        place = Path(tempfile.mkdtemp(prefix="penstock-device-", dir=options.directory))
        try:
            measured |= uvloop.run(measure_lmdb(place, options.messages))
        finally:
            shutil.rmtree(place)
    for name, numbers in measured.items():
        print(f"{name:22}", "  ".join(f"{key} {value:,.1f}" for key, value in numbers.items()))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")
