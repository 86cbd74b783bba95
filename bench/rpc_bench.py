"""Request/response pairs per second: caller, responder and log in one process, 64-byte requests, one partition or more.

python bench/rpc_bench.py [--provider embedded|memory] [--seconds 5] [--window 2000] [--handler sync|async]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import uvloop

from penstock.logs.base import Log
from penstock.logs.memory import MemoryLog
from penstock.rpc.responder import Responder
from penstock.rpc.settings import RequestSettings
from penstock.rpc.template import RequestTemplate
from penstock.rpc.wire import Request

TOPIC = "bench.requests"


def open_log(provider: str, directory: Path) -> Log:
    if provider == "memory":
        return MemoryLog()
    from penstock.logs.embedded import EmbeddedLog  # noqa: PLC0415 - only the provider that is measured is loaded

    return EmbeddedLog(directory)


def answer(request: Request) -> bytes:
    return request.data


async def answer_later(request: Request) -> bytes:
    return request.data


HANDLERS: dict[str, Callable[[Request], bytes | Awaitable[bytes]]] = {"sync": answer, "async": answer_later}


async def measure(log: Log, handler: str, seconds: float, window: int) -> tuple[float, float, dict[str, int | float]]:
    """Pairs per second, pairs per CPU-second of the whole process, and the counters of the caller."""
    await log.start()
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
    await log.close()
    return count / elapsed, count / used, counters


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--provider", choices=["embedded", "memory"], default="embedded")
    options.add_argument("--seconds", type=float, default=5.0)
    options.add_argument("--window", type=int, default=2_000, help="calls that wait at the same time")
    options.add_argument("--handler", choices=sorted(HANDLERS), default="sync")
    chosen = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        job = measure(open_log(chosen.provider, Path(directory)), chosen.handler, chosen.seconds, chosen.window)
        rate, per_cpu, counters = uvloop.run(job)
    print(f"{chosen.provider}, {chosen.handler} handler, {chosen.window} calls at a time:")
    print(f"  {rate:,.0f} request/response pairs per second, {per_cpu:,.0f} per CPU-second")
    print(f"  latency {counters['response_lag']:.1f} ms mean, {counters['response_lag_p99']:.1f} ms p99 (at most)")
    print(f"  timed out {counters['request_timeout_count']}, failed {counters['requests_failed_total']}")


if __name__ == "__main__":
    main()
