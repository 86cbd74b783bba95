"""What a backup is: plain files, in a directory or a tar archive, and last a manifest that lists them all.

    backup.json                         version, time, and size and SHA-256 of every other file
    log/<topic>/topic.json, tail        as in the data directory
    log/<topic>/00…01.seg
    state/data.mdb, clients/data.mdb …  LMDB, compacted

The manifest comes last and everything gets its real name only then: what was interrupted is no backup.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import lzma
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from penstock.core.errors import PenstockError

FORMAT = 1
MANIFEST = "backup.json"
PARTIAL = ".partial"
CHUNK = 1_048_576
LOST_AND_FOUND = "lost+found"
LARGEST_MANIFEST = 64 * CHUNK
ARCHIVES = (".tar", ".tar.gz", ".tgz")
NAME = re.compile(
    r"(log/[A-Za-z0-9_%~-][A-Za-z0-9_.%~-]*/(topic\.json|tail|\d{20}\.seg)|log/\.journal-[01]|[A-Za-z0-9_-]+/data\.mdb)"
)

NO_MANIFEST = f"{{path}} has no {MANIFEST}: it is not a backup, or not complete"
OnBytes = Callable[[int], None]


class BackupError(PenstockError):
    """A backup cannot be made, or is none."""


def explain_refusal(error: OSError, place: Path, otherwise: str) -> BackupError:
    """What the system refused, with what to do about it; `place` is named where the error names nothing."""
    is_denied = error.errno in (errno.EACCES, errno.EPERM)
    hint = "Run the command as the user the broker runs as." if is_denied else otherwise
    return BackupError(f"{error.filename or place}: {error.strerror or error}", hint)


class BackedUpFile(msgspec.Struct, frozen=True):
    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True):
    """What is in a backup and where it came from."""

    format: int
    version: str
    created: str
    node_id: str
    was_running: bool
    topics: int
    records: int
    files: list[BackedUpFile]


class _Format(msgspec.Struct, frozen=True):
    """The format number alone, which is read before the rest of a manifest."""

    format: object = None


class Limited(io.RawIOBase):
    """The first `size` bytes of a file, hashed on their way."""

    def __init__(self, file: IO[bytes], size: int, on_bytes: OnBytes) -> None:
        self._file = file
        self._left = size
        self._on_bytes = on_bytes
        self._hash = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        data = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(data)
        self._hash.update(data)
        self._on_bytes(len(data))
        return data

    @property
    def is_whole(self) -> bool:
        return self._left == 0

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Sink(Protocol):
    """Where a backup goes. `finish` gives it its name; without that it is removed by `discard`."""

    partial: Path

    def put(self, name: str, source: IO[bytes], size: int) -> None: ...
    def finish(self) -> None: ...
    def discard(self) -> None: ...


def is_archive(target: Path) -> bool:
    return target.name.endswith(ARCHIVES)


def open_sink(target: Path) -> Sink:
    """Raises BackupError when something is there already, OSError when nothing can be."""
    if target.exists() and not (target.is_dir() and not any(target.iterdir()) and not is_archive(target)):
        raise BackupError(f"{target} is there already", "Name a file or directory that does not exist yet.")
    if not target.parent.is_dir():
        # Not made: what is not mounted would fill the disk below.
        raise BackupError(f"there is no directory {target.parent.absolute()}", "Mount it, or make it, and try again.")
    return _TarSink(target) if is_archive(target) else _DirectorySink(target)


@contextlib.contextmanager
def held_directory(path: Path, busy: str) -> Iterator[Path]:
    """An empty directory of this process alone, removed at the end; raises BackupError when another one has it."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        _hold(held, busy)
        for left in path.iterdir():  # of one that was killed
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(held)


def remove_abandoned(directory: Path, prefix: str) -> None:
    """Directories that were made by `held_directory`, and nobody holds any more."""
    for path in directory.glob(f"{prefix}*"):
        with contextlib.suppress(BackupError, OSError), held_directory(path, ""):
            pass


def _hold(fd: int, busy: str) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BackupError(busy, "Wait for it.") from None


class _DirectorySink:
    def __init__(self, target: Path) -> None:
        self._target = target
        self.partial = target.with_name(target.name + PARTIAL)
        self._held = contextlib.ExitStack()
        self._held.enter_context(held_directory(self.partial, f"another backup to {target} is at work"))

    def put(self, name: str, source: IO[bytes], size: int) -> None:
        path = self.partial / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_file(path, source)

    def finish(self) -> None:
        for directory in (self.partial, *(path for path in self.partial.rglob("*") if path.is_dir())):
            sync(directory)
        if self._target.exists():
            self._target.rmdir()
        self.partial.rename(self._target)
        sync(self._target.parent)
        self._held.close()

    def discard(self) -> None:
        self._held.close()


class _TarSink:
    def __init__(self, target: Path) -> None:
        self._target = target
        self.partial = target.with_name(target.name + PARTIAL)
        fd = os.open(self.partial, os.O_CREAT | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _hold(fd, f"another backup to {target} is at work")
        except BackupError:
            os.close(fd)
            raise
        self._file = os.fdopen(fd, "wb")
        os.fchmod(fd, 0o600)
        os.ftruncate(fd, 0)  # what one left that was killed
        # Messages are small and alike, or do not shrink at all: the quickest level is nearly as good as the best.
        compressed = self._file if target.name.endswith(".tar") else gzip.GzipFile("", "wb", 1, self._file)
        self._outer: IO[bytes] = compressed  # type: ignore[assignment] # gzip's stub calls it by another name
        self._tar = tarfile.TarFile(fileobj=self._outer, mode="w")

    def put(self, name: str, source: IO[bytes], size: int) -> None:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = size, 0o600
        self._tar.addfile(entry, source)

    def finish(self) -> None:
        self._tar.close()
        if self._outer is not self._file:
            self._outer.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.partial.rename(self._target)
        sync(self._target.parent)

    def discard(self) -> None:
        self.partial.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # on a full disk it cannot write what it still holds
            self._file.close()


def write_file(path: Path, source: IO[bytes]) -> None:
    """On the disk when it returns; for the owner only."""
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        shutil.copyfileobj(source, file, CHUNK)
        file.flush()
        os.fsync(fd)


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def explain_errors(path: Path) -> Iterator[None]:
    """What reading an archive raises when it is none, as a BackupError: for who reads what `read_backup` gives."""
    try:
        yield
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, ValueError) as error:
        # of what is no archive at all tarfile tells a line for each compression it tried
        why = "not a backup: it is not an archive" if "\n" in str(error) else f"not a backup, or not whole: {error}"
        raise BackupError(f"{path} is {why}") from None


def read_manifest(path: Path) -> Manifest:
    """Read the manifest of a backup before anything of it is written. Raises BackupError.

    It is the last entry of an archive. The others are skipped, so that a file that only looks like a backup costs no
    room on the disk, whatever sizes it claims.
    """
    if path.is_dir():
        if not (path / MANIFEST).is_file():
            raise BackupError(NO_MANIFEST.format(path=path))
        with (path / MANIFEST).open("rb") as file:
            return parse_manifest(_read_limited(file, path), path)
    sizes: dict[str, int] = {}
    with tarfile.open(path, "r:*") as tar:
        for entry in tar:
            if not _is_plain(entry) or not _is_known(entry.name) or entry.name in sizes:
                raise BackupError(f"{path} holds {entry.name!r}, which is not part of a Penstock backup")
            if entry.name == MANIFEST:
                contents = tar.extractfile(entry)
                assert contents is not None
                manifest = parse_manifest(_read_limited(contents, path), path)
                break
            sizes[entry.name] = entry.size
        else:
            raise BackupError(NO_MANIFEST.format(path=path))
    wrong = sorted({(file.name, file.size) for file in manifest.files} ^ set(sizes.items()))
    if wrong:
        raise BackupError(f"{path} is damaged: {wrong[0][0]} is not as {MANIFEST} says")
    return manifest


def _is_plain(entry: tarfile.TarInfo) -> bool:
    """Return whether all bytes of the file are in the archive. A sparse file can claim gigabytes and have none."""
    return entry.isfile() and not entry.issparse()


def _read_limited(file: IO[bytes], path: Path) -> bytes:
    text = file.read(LARGEST_MANIFEST + 1)
    if len(text) > LARGEST_MANIFEST:
        raise BackupError(f"{MANIFEST} of {path} is larger than {LARGEST_MANIFEST:,} bytes: it is not a backup")
    return text


def read_backup(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and contents of each file, the manifest last. Raises BackupError for what does not belong there."""
    if path.is_dir():
        yield from _read_directory(path)
        return
    with tarfile.open(path, "r:*") as tar:
        for entry in tar:
            contents = tar.extractfile(entry) if _is_plain(entry) else None
            if contents is None or not _is_known(entry.name):
                raise BackupError(f"{path} holds {entry.name!r}, which is not part of a Penstock backup")
            yield entry.name, entry.size, contents


def _read_directory(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if not file.is_dir())
    if MANIFEST not in names:
        raise BackupError(NO_MANIFEST.format(path=path))
    names.remove(MANIFEST)
    for name in [*names, MANIFEST]:
        if not _is_known(name) or (path / name).is_symlink():
            raise BackupError(f"{path} holds {name!r}, which is not part of a Penstock backup")
        with (path / name).open("rb") as file:
            yield name, os.fstat(file.fileno()).st_size, file


def _is_known(name: str) -> bool:
    return name == MANIFEST or NAME.fullmatch(name) is not None


def parse_manifest(text: bytes, path: Path) -> Manifest:
    """Raises BackupError."""
    try:
        number = msgspec.json.decode(text, type=_Format).format
        if number != FORMAT:
            raise BackupError(
                f"{path} has the format {number}, this version of Penstock knows {FORMAT}",
                "Restore it with the version that made it, or a later one.",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BackupError(f"{MANIFEST} of {path} is damaged: {error}") from None
