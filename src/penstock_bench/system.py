"""The machine a load test runs on: open files, processes, their CPU, who listens on a port."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Iterator
from pathlib import Path

from penstock.core.errors import PenstockError

TICK = os.sysconf("SC_CLK_TCK")
SPARE_FILES = 64
SYSTEM_PROGRAMS = ("/usr/local/sbin", "/usr/sbin")
_LISTENING = "0A"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def program_path() -> str:
    """Where programs are looked for: Debian has mosquitto where the PATH of ordinary users does not lead."""
    places = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join([*places, *(place for place in SYSTEM_PROGRAMS if place not in places)])


def allow_open_files(connections: int) -> None:
    """Raises the soft limit as far as the connections need; raises PenstockError where the hard one forbids it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        if hard != resource.RLIM_INFINITY and hard < needed:
            raise PenstockError(
                f"{connections:,} connections need {needed:,} open files, and the limit is {hard:,}",
                "raise it with `ulimit -Hn` as root, or take fewer --clients",
            )
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def stat_fields(pid: int | str) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def process_tree(root: int) -> list[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for pid in _pids():
        try:
            children.setdefault(int(stat_fields(pid)[1]), []).append(pid)
        except OSError:
            continue  # ended meanwhile
    found, todo = [], [root]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += children.get(pid, [])
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of the processes, as far as they still exist."""
    total = 0
    for pid in pids:
        try:
            fields = stat_fields(pid)
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def listening_processes(host: str, port: int) -> list[int]:
    """The broker on this machine that listens on the port, with its children; empty if it is elsewhere or not ours."""
    if host not in _LOOPBACK:
        return []
    sockets = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
    owners = [pid for pid in _pids() if sockets and sockets & set(_open_files(pid))]
    # A parent that hands the socket to its children is named once.
    trees = [process_tree(pid) for pid in owners]
    return list(dict.fromkeys(pid for tree in sorted(trees, key=len, reverse=True) for pid in tree))


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _pids() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except OSError:
        return  # ended, or of another user
    for name in names:
        try:
            yield os.readlink(f"{folder}/{name}")
        except OSError:
            continue
