"""Names and small files of a topic's directory, and the care that makes them survive a crash.

<data_dir>/log/.lock                         held by the process that writes
<data_dir>/log/.journal-0, .journal-1        what segments may not have on the disk yet, see journal.py
<data_dir>/log/<escaped topic>/topic.json    name, partitions, properties
                              /00…01.seg     batches of all partitions, in the order they were committed
                              /00…01.idx     index of a closed segment; rebuilt when it is missing
                              /tail          how far the newest segment is known to be on the disk
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from penstock._ext.record.segment import crc32c, find_batch
from penstock.storage.log.base import LogDamaged, LogError, LogUnavailable
from penstock.storage.log.topics import TopicConfig

SEGMENT, INDEX, CLEAN, BAD = ".seg", ".idx", ".clean", ".bad"
TOPIC_FILE, TAIL_FILE, LOCK_FILE = "topic.json", "tail", ".lock"
LONGEST_DIRECTORY = 200
_TAIL = struct.Struct("<qqI")
_PLAIN = re.compile(r"[A-Za-z0-9_.-]")


def log_directory(data_dir: Path | str) -> Path:
    return Path(data_dir) / "log"


def escape_topic(topic: str) -> str:
    """A directory name for a topic: plain ASCII, never hidden, never too long, never the same for two topics."""
    escaped = "".join(c if _PLAIN.match(c) else "".join(f"%{byte:02X}" for byte in c.encode()) for c in topic)
    if escaped.startswith("."):
        escaped = f"%2E{escaped[1:]}"
    if len(escaped) > LONGEST_DIRECTORY:
        escaped = f"{escaped[: LONGEST_DIRECTORY - 33]}~{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return escaped


def unescape_topic(directory: str) -> str:
    """The reverse, for a topic whose description cannot be read. Names that were too long stay cut."""
    return unquote(directory)


def segment_path(directory: Path, sequence: int) -> Path:
    return directory / f"{sequence:020}{SEGMENT}"


def list_segments(directory: Path) -> list[int]:
    """Sequence numbers of the segment files, rising."""
    names = (name for name in os.listdir(directory) if name.endswith(SEGMENT))
    return sorted(int(name.removesuffix(SEGMENT)) for name in names if name.removesuffix(SEGMENT).isdecimal())


def sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_durably(path: Path, data: bytes) -> None:
    """The file has the old contents or the new, whatever happens."""
    temporary = path.with_name(f"{path.name}.tmp")
    fd = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)
    temporary.rename(path)
    sync_directory(path.parent)


def write_topic(directory: Path, topic: str, config: TopicConfig) -> None:
    described = {
        "version": 1,
        "name": topic,
        "partitions": config.partitions,
        "properties": dict(config.properties),
    }
    write_durably(directory / TOPIC_FILE, json.dumps(described, indent=2).encode())


def read_topic(directory: Path) -> tuple[str, TopicConfig]:
    """Raises FileNotFoundError when the directory is not a topic's (yet), LogDamaged when it must have been one."""
    path = directory / TOPIC_FILE
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        # one more look: somebody may have finished the topic, and begun to use it, in between
        if not _has_been_used(directory) or path.exists():
            raise
        raise LogDamaged(f"{path} is missing, but there are segments", _how_to_describe(directory)) from None
    try:
        described = json.loads(text)
        if described["version"] != 1:
            raise LogError(f"{path} was written by a newer version of Penstock")
        name, partitions = described["name"], described["partitions"]
        return name, TopicConfig.of(name, partitions, described["properties"])
    except (ValueError, KeyError, TypeError) as error:
        raise LogDamaged(f"{path} is damaged: {error}", _how_to_describe(directory)) from None


def _has_been_used(directory: Path) -> bool:
    """Whether there is more than the start of a first segment, sound or not: a topic in the making has no more."""
    sequences = list_segments(directory)
    if not sequences:
        return False
    return sequences[-1] > 1 or find_batch(segment_path(directory, sequences[0]).read_bytes(), 1) >= 0


def _how_to_describe(directory: Path) -> str:
    topic = unescape_topic(directory.name)
    if escape_topic(topic) != directory.name:
        return "It says the topic's name, partitions and properties; restore it from a backup or write it by hand."
    return f"`{repair_command(topic, directory)}` rebuilds it without its properties; restore those from a backup."


def repair_command(topic: str, directory: Path) -> str:
    data_dir = directory.absolute().parents[1]  # <data_dir>/log/<topic>
    return f"penstock log repair {shlex.quote(topic)} --data-dir {shlex.quote(str(data_dir))}"


def decode_tail(data: bytes) -> tuple[int, int] | None:
    """Sequence and position, or None when the bytes were caught half written."""
    if len(data) != _TAIL.size:
        return None
    sequence, position, crc = _TAIL.unpack(data)
    return (sequence, position) if crc32c(data[:16]) == crc else None


def read_tail(directory: Path) -> tuple[int, int] | None:
    """Sequence and position of a topic that nobody writes; None when nothing is known."""
    try:
        return decode_tail((directory / TAIL_FILE).read_bytes())
    except FileNotFoundError:
        return None


@contextlib.contextmanager
def translate_errors(doing: str) -> Iterator[None]:
    """An error of the file system as a LogUnavailable with words."""
    try:
        yield
    except OSError as error:
        raise LogUnavailable(f"{doing}: {describe_errno(error.errno or 0)}") from error


def describe_errno(number: int) -> str:
    if number in {errno.ENOSPC, errno.EDQUOT}:
        return f"the disk is full ({os.strerror(number)})"
    return f"the disk refuses ({os.strerror(number)})"


class DirectoryLock:
    """One process at a time writes a directory. Given back by the kernel when the process ends, however it ends."""

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        path = directory / LOCK_FILE
        self._fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(self._fd, 32).decode(errors="replace").strip() or "unknown"
            os.close(self._fd)
            raise LogError(
                f"{directory} is in use by another process (pid {holder})",
                "Stop it first, or give this one a data directory of its own.",
            ) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
