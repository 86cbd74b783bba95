"""The data directory: rights, file system, room, and how long the disk takes."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from penstock.operate.doctor.finding import Finding, ok, problem, size, warning
from penstock.settings import Settings
from penstock.settings.providers import log_capabilities
from penstock.storage.log.base import parse_properties

AREA = "disk"
SYNCS = 20
SYNC_SECONDS = 2.0
SLOW, VERY_SLOW = 0.010, 0.100
LITTLE_ROOM = 256 * 2**20
# Locks and memory maps of other machines are not ours: LMDB does not work there.
REMOTE = frozenset(("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs"))
FILES = frozenset(("admin.address", "admin.token", "clients.lock"))
DIRECTORIES = frozenset(("clients", "devices", "log", "state"))
FLEETING = {
    "tmpfs": ("it is in memory and gone with the machine", "put server.data_dir on a disk"),
    "ramfs": ("it is in memory and gone with the machine", "put server.data_dir on a disk"),
    "overlay": ("it is the container's own layer and gone with the container", "mount a volume at server.data_dir"),
}


def check_storage(settings: Settings) -> Iterator[Finding]:
    if not log_capabilities(settings).is_durable:
        yield warning(
            AREA,
            f"log.provider = {settings.log.provider}: nothing is kept across a restart",
            "set log.provider = embedded or kafka",
        )
        return
    directory = Path(settings.server.data_dir).absolute()
    # Path.exists raises when a directory above may not be entered
    existing = next(path for path in (directory, *directory.parents) if os.path.exists(path))
    if os.statvfs(existing).f_flag & os.ST_RDONLY:
        yield problem(
            AREA,
            f"{existing} is on a read-only file system",
            "mount it read-write: a volume in a container; StateDirectory= or ReadWritePaths= of systemd",
        )
        return
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield problem(
            AREA,
            f"{existing} cannot be written by this user",
            "run this as the broker's user; or make the directory its own: chown, StateDirectory= of systemd",
        )
        return
    if existing == directory and stat.S_IMODE(directory.stat().st_mode) & 0o007:
        yield warning(
            AREA, f"everybody on this machine may look into {directory}", f"chmod o= {directory}: it holds all messages"
        )
    if existing == directory:
        yield from _check_files(directory)
    yield from _check_file_system(existing)
    yield from _check_room(settings, existing)
    yield from _check_speed(existing)


def _check_files(directory: Path) -> Iterator[Finding]:
    """What a broker left that another user had started, often root."""
    others = [path for path in _files_of_broker(directory) if not os.access(path, os.R_OK | os.W_OK)]
    if others:
        more = f" and {len(others) - 1} more" if len(others) > 1 else ""
        yield problem(
            AREA,
            f"{others[0]}{more} cannot be read and written by this user",
            f"was a broker started as another user? chown -R USER: {directory}",
        )


def _files_of_broker(directory: Path) -> Iterator[Path]:
    """Those without which it does not start; of the log, the directories of topics stand for their files."""
    for path in sorted(directory.iterdir()):
        if path.name in FILES:
            yield path
        elif path.name in DIRECTORIES and path.is_dir():
            yield path
            if os.access(path, os.R_OK | os.X_OK):
                yield from sorted(path.iterdir())


def _check_file_system(directory: Path) -> Iterator[Finding]:
    kind = find_file_system(directory)
    if kind in REMOTE:
        yield problem(
            AREA, f"{directory} is on {kind}: locks and memory maps do not work as LMDB needs them", "use a local disk"
        )
    elif kind in FLEETING:
        why, advice = FLEETING[kind]
        yield warning(AREA, f"{directory} is on {kind}: {why}", advice)
    else:
        yield ok(AREA, f"{directory} is on {kind or 'a file system of unknown kind'}")


def find_file_system(path: Path) -> str:
    """The type of the mount the path is in; empty when it cannot be known."""
    best, kind = "", ""
    resolved = str(path.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, rest = line.partition(" - ")
            mount = fields.split(" ")[4].encode().decode("unicode_escape")
            is_inside = resolved == mount or resolved.startswith(mount.rstrip("/") + "/")
            if is_inside and len(mount) >= len(best):
                best, kind = mount, rest.split(" ")[0]
    return kind


def _check_room(settings: Settings, directory: Path) -> Iterator[Finding]:
    usage = shutil.disk_usage(directory)
    wanted = _log_bytes(settings)
    described = f"{size(usage.free)} free of {size(usage.total)}"
    if usage.free < LITTLE_ROOM:
        yield problem(
            AREA,
            f"{described}: publishes will soon be refused",
            "make room, or put server.data_dir on a larger disk",
        )
    elif wanted and usage.free < wanted:
        yield warning(
            AREA,
            f"{described}: the log of all messages alone may take {size(wanted)}",
            "make room, or lower retention.bytes in ingest.properties (it is per partition)",
        )
    else:
        yield ok(AREA, described)
    nodes = os.statvfs(directory)
    if nodes.f_files and nodes.f_favail < 10_000:
        yield warning(
            AREA, f"{nodes.f_favail:,} inodes left", "every topic takes four files: make room for more of them"
        )


def _log_bytes(settings: Settings) -> int:
    if settings.ingest.log == "none" or not log_capabilities(settings).has_files:
        return 0
    try:
        properties = parse_properties(settings.ingest.properties)
        return settings.ingest.partitions * max(0, int(properties.get("retention.bytes", "0")))
    except ValueError:
        return 0  # check-config says what is wrong with it


def _check_speed(directory: Path) -> Iterator[Finding]:
    """Times what a commit of the log does, on a file without a name, which is gone when it is closed."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    except OSError:
        yield warning(AREA, "how long it takes cannot be measured here", "measure it with fio, as fdatasync of 4 KiB")
        return
    taken: list[float] = []
    try:
        while len(taken) < SYNCS and sum(taken) < SYNC_SECONDS:
            os.write(fd, b"\0" * 4_096)
            started = time.perf_counter()
            os.fdatasync(fd)
            taken.append(time.perf_counter() - started)
    except OSError as error:
        yield problem(AREA, f"{directory} cannot be written: {error.strerror}", "look into the kernel's log (dmesg)")
        return
    finally:
        os.close(fd)
    middle, longest = statistics.median(taken), max(taken)
    described = f"fdatasync takes {1000 * middle:.2f} ms, at most {1000 * longest:.2f} ms"
    advice = (
        "use a disk with a write cache that survives power cuts, or log.fsync = interval if losing 50 ms is allowed"
    )
    if middle > VERY_SLOW:
        yield problem(AREA, f"{described}: every acknowledgement of QoS 1 and 2 waits for it", advice)
    elif middle > SLOW:
        yield warning(AREA, f"{described}: every acknowledgement of QoS 1 and 2 waits for it", advice)
    else:
        yield ok(AREA, described)
