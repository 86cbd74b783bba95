"""Request/response pairs per second: caller, responder and log in one process, 64-byte requests, one partition or more.

python bench/rpc_bench.py [--provider embedded|memory] [--seconds 5] [--window 2000] [--handler sync|async] [--save]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.parts import save_part
from penstock.services.rpc.latency import Latency
from penstock.services.rpc.responder import Responder
from penstock.services.rpc.settings import RequestSettings
from penstock.services.rpc.template import RequestTemplate
from penstock.services.rpc.wire import Request
from penstock.storage.log.base import Log
from penstock.storage.log.embedded import EmbeddedLog
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock_bench.targets import Figure, at_least

TOPIC = "bench.requests"


@asynccontextmanager
async def open_log(provider: str, directory: Path) -> AsyncIterator[Log]:
    store = LmdbStore(directory / "state")
    log: Log = MemoryLog() if provider == "memory" else EmbeddedLog(directory, store.space("groups"))
    await log.start()
    try:
        yield log
    finally:
        await log.close()
        store.close()


def answer(request: Request) -> bytes:
    return request.data


async def answer_later(request: Request) -> bytes:
    return request.data


HANDLERS: dict[str, Callable[[Request], bytes | Awaitable[bytes]]] = {"sync": answer, "async": answer_later}


class EveryLatency(Latency):
    """All of them, because a histogram tells a percentile only as well as its buckets are narrow."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def add(self, seconds: float) -> None:
        super().add(seconds)
        self.seconds.append(seconds)


class Measured(NamedTuple):
    rate: float
    per_cpu: float
    p50_ms: float
    p99_ms: float
    counters: dict[str, int | float]


async def measure(log: Log, handler: str, seconds: float, window: int) -> Measured:
    """Pairs per second, per CPU-second of the whole process, how long they took, and the counters of the caller."""
    await log.admin.create(TOPIC, 4, {"retention.bytes": str(32 * 1_048_576)})
    responder = Responder(log, HANDLERS[handler], request_topic=TOPIC, group="bench", service_id="answers")
    template = RequestTemplate(
        log,
        request_topic=TOPIC,
        response_topic="bench.responses.caller",
        group="bench-responses-node-caller",
        service_id="caller",
        response_properties={"retention.bytes": str(32 * 1_048_576)},
        settings=RequestSettings(max_pending_requests=2 * window),
    )
    template.latency = latency = EveryLatency()
    await responder.start()
    await template.start()
    data = b"x" * 64
    end = time.monotonic() + seconds
    count = 0

    async def call() -> None:
        nonlocal count
        while time.monotonic() < end:
            await template.send(data)
            count += 1

    started, cpu = time.monotonic(), time.process_time()
    await asyncio.gather(*(call() for _ in range(window)))
    elapsed, used = time.monotonic() - started, time.process_time() - cpu
    counters = template.counters()
    await template.close()
    await responder.close()
    p50, p99 = np.percentile(np.array(latency.seconds) * 1_000, (50, 99), method="higher").tolist()
    return Measured(count / elapsed, count / used, p50, p99, counters)


FIGURES = (
    Figure("request and response", "rate", "pairs / s", at_least(50_000)),
    Figure("the same per CPU-second", "per_cpu", "pairs / CPU-s"),
    Figure("time to the response, p99", "p99_ms", "ms", None, True),
)


async def run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        async with open_log(options.provider, Path(directory)) as log:
            measured = await measure(log, options.handler, options.seconds, options.window)
    print(f"{options.provider}, {options.handler} handler, {options.window} calls at a time:")
    print(f"  {measured.rate:,.0f} request/response pairs per second, {measured.per_cpu:,.0f} per CPU-second")
    print(f"  latency {measured.p50_ms:.1f} ms median, {measured.p99_ms:.1f} ms p99")
    counters = measured.counters
    print(f"  timed out {counters['request_timeout_count']}, failed {counters['requests_failed_total']}")
    if options.save:
        values = {"rate": measured.rate, "per_cpu": measured.per_cpu, "p99_ms": measured.p99_ms}
        save_part(
            "rpc", options.provider, FIGURES, {"penstock": values}, window=options.window, handler=options.handler
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--provider", choices=["embedded", "memory"], default="embedded")
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--window", type=int, default=2_000, help="calls that wait at the same time")
    options.add_argument("--handler", choices=sorted(HANDLERS), default="sync")
    options.add_argument("--directory", help="where the log is; the system's temporary directory if not given")
    options.add_argument("--save", action="store_true", help="write a dated result to bench/results/rpc")
    uvloop.run(run(options.parse_args()))


if __name__ == "__main__":
    main()
