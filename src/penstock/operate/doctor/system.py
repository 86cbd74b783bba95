"""The machine: descriptors, the queue of new connections, clock, memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.core.process import descriptor_limit
from penstock.operate.doctor.finding import Finding, ok, problem, size, warning
from penstock.settings import Settings

# What the broker opens beside connections: log, stores, listeners.
OTHER_FILES = 200
BACKLOG = 4_096
LITTLE_MEMORY = 256 * 2**20
EARLIEST_YEAR = 2024
JUMP_SECONDS = 0.25
TIMEX_BYTES, STATUS_AT, UNSYNCHRONISED = 256, 40, 0x40
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
UNLIMITED = 1 << 60


def check_files(settings: Settings, pid: int | None) -> Iterator[Finding]:
    """Of the running broker if there is one, else of this shell."""
    limit, whose = descriptor_limit(), "here"
    with contextlib.suppress(OSError, ValueError):
        if pid is not None:
            limits = Path(f"/proc/{pid}/limits").read_text(encoding="ascii")
            found = re.search(r"^Max open files +(\d+)", limits, re.M)
            if found:
                limit, whose = int(found[1]), "of the running broker"
    wanted = settings.limits.max_connections
    advice = f"LimitNOFILE={_round_up(wanted + OTHER_FILES)} in the unit, or ulimit -n; or lower limits.max_connections"
    if limit < wanted + OTHER_FILES:
        room = max(0, limit - OTHER_FILES)
        what = (
            f"{limit:,} open files {whose}: room for about {room:,} connections, limits.max_connections is {wanted:,}"
        )
        yield problem("files", what, advice) if limit < OTHER_FILES else warning("files", what, advice)
    else:
        yield ok("files", f"{limit:,} open files {whose}, enough for limits.max_connections = {wanted:,}")


def _round_up(number: int) -> int:
    return 1 << (number - 1).bit_length()


def check_backlog() -> Iterator[Finding]:
    try:
        limit = int(Path("/proc/sys/net/core/somaxconn").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return
    if limit < BACKLOG:
        yield warning(
            "backlog",
            f"net.core.somaxconn is {limit}: of many who connect at once, some wait a second for a second try",
            f"sysctl -w net.core.somaxconn={BACKLOG}, and the same in /etc/sysctl.d/60-penstock.conf",
        )
    else:
        yield ok("backlog", f"net.core.somaxconn is {limit:,}")


class ClockWatch:
    """Whether the wall clock jumps while the other checks run."""

    def __init__(self) -> None:
        self._difference = time.time() - time.monotonic()

    def check(self) -> Iterator[Finding]:
        jump = time.time() - time.monotonic() - self._difference
        year = time.gmtime().tm_year
        if year < EARLIEST_YEAR:
            yield problem("clock", f"this machine believes it is {year}", "set its clock, and let NTP keep it right")
        if abs(jump) > JUMP_SECONDS:
            yield warning(
                "clock",
                f"the clock jumped by {jump:+.2f} s within moments: expiry and retention follow it",
                "let NTP slew the clock (chrony, systemd-timesyncd) instead of setting it",
            )
        is_synchronised = _is_synchronised()
        if is_synchronised is False:
            yield warning(
                "clock",
                "the kernel says that nobody keeps the clock right",
                "run chrony or systemd-timesyncd; in a container or virtual machine the host may do it unseen",
            )
        elif abs(jump) <= JUMP_SECONDS and year >= EARLIEST_YEAR:
            yield ok("clock", "steady" + (" and kept right by NTP" if is_synchronised else ""))


def _is_synchronised() -> bool | None:
    """What adjtimex(2) says; None where it cannot be asked."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(TIMEX_BYTES)  # zeros: nothing is to be changed
        if library.adjtimex(buffer) < 0:
            return None
        status = int.from_bytes(buffer.raw[STATUS_AT : STATUS_AT + 4], "little")
    except (OSError, AttributeError):
        return None
    return not status & UNSYNCHRONISED


def check_memory() -> Iterator[Finding]:
    limit = _memory_limit()
    available = _available_memory()
    room = min(number for number in (limit, available, UNLIMITED) if number is not None)
    described = f"{size(available)} available" if available is not None else "how much is available is not known"
    if limit is not None:
        described += f", the limit of the container or unit is {size(limit)}"
    if room < LITTLE_MEMORY:
        yield warning(
            "memory",
            described,
            "the broker takes about 60 MiB, 2 KiB an idle client, and what waits: give it more, or lower "
            "limits.max_queued_bytes, limits.max_retained_bytes and log.max_pending_bytes",
        )
    else:
        yield ok("memory", described)


def _memory_limit() -> int | None:
    for name in CGROUP_FILES:
        with contextlib.suppress(OSError, ValueError):
            number = int(Path(name).read_text(encoding="ascii"))
            return number if number < UNLIMITED else None
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def _available_memory() -> int | None:
    try:
        found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"), re.M)
    except OSError:
        return None
    return 1024 * int(found[1]) if found else None


def check_cores() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    if cores == 1:
        yield warning(
            "cores",
            "one core: passwords and the disk take time from the event loop",
            "two are enough for one broker",
        )
    else:
        yield ok("cores", f"{cores}: one carries the traffic, the others passwords, disk and Kafka")
