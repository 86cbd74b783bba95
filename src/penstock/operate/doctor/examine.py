"""All checks of `penstock doctor`, in their order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.operate.doctor.access import check_access
from penstock.operate.doctor.backends import check_kafka, check_redis
from penstock.operate.doctor.certificates import check_certificates
from penstock.operate.doctor.finding import Finding, ok
from penstock.operate.doctor.network import check_network
from penstock.operate.doctor.queues import check_queues
from penstock.operate.doctor.storage import check_storage
from penstock.operate.doctor.system import ClockWatch, check_backlog, check_cores, check_files, check_memory
from penstock.operate.running import find_broker
from penstock.settings import Settings
from penstock.settings.providers import device_capabilities, log_capabilities

ANSWER_SECONDS = 3.0


def examine(settings: Settings) -> Iterator[Finding]:
    """Yield each finding as soon as it is known: a server that does not answer takes seconds."""
    clock = ClockWatch()
    pid = find_broker(settings, ANSWER_SECONDS)
    if pid is not None:
        yield ok("broker", f"one runs on {Path(settings.server.data_dir).resolve()} (pid {pid})")
    yield from check_files(settings, pid)
    yield from check_backlog()
    yield from check_memory()
    yield from check_cores()
    yield from check_storage(settings)
    yield from check_network(settings, pid)
    yield from check_certificates(settings)
    yield from check_access(settings)
    if log_capabilities(settings).uses_kafka:
        yield from check_kafka(settings)
    if device_capabilities(settings).uses_redis:
        yield from check_redis(settings)
    if pid is not None:
        yield from check_queues(settings, ANSWER_SECONDS)
    yield from clock.check()
