"""A backup becomes the data directory of a broker, or nothing changes."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from penstock.core.data_dir import RESTORING
from penstock.operate.backup.archive import (
    LARGEST_MANIFEST,
    LOST_AND_FOUND,
    MANIFEST,
    BackupError,
    Limited,
    Manifest,
    explain_errors,
    held_directory,
    parse_manifest,
    read_backup,
    read_manifest,
    sync,
    write_file,
)
from penstock.operate.backup.save import ShowProgress
from penstock.operate.running import is_log_open
from penstock.storage.log.embedded import files
from penstock.storage.log.embedded.verify import verify_segment
from penstock.storage.state.lmdb_copy import check_environment, find_environments

OLD = ".before-restore-"


class Restored(NamedTuple):
    """The manifest of the backup, the owner of the files, and the directory with the data that was there before."""

    manifest: Manifest
    owner: Owner
    aside: Path | None


def restore(source: Path, target: Path, *, force: bool, progress: ShowProgress) -> Restored:
    """Put a backup into a directory; with `force` also where data is already, which is set aside.

    Any exception, also one that a signal handler raises, leaves the directory as it was. Raises BackupError.
    """
    _check_no_broker(target)
    occupied = _occupied(target)
    if occupied and not force:
        raise BackupError(
            f"{target.resolve()} is not empty: there is {', '.join(occupied[:5])}",
            "Name an empty directory with --data-dir; --force sets the data that is there aside.",
        )
    owner = Owner.of(target)
    manifest, aside = _restore(source, target, occupied, owner, progress)
    return Restored(manifest, owner, aside)


def _check_no_broker(target: Path) -> None:
    if target.is_dir() and is_log_open(target):
        raise BackupError(f"a broker runs on {target.resolve()}", "Stop it first.")


def _occupied(target: Path) -> list[str]:
    """Return the names of what is in the directory, without remains of an unfinished restore and ext4's lost+found."""
    passed_over = (RESTORING, LOST_AND_FOUND)
    return sorted(path.name for path in target.iterdir() if path.name not in passed_over) if target.is_dir() else []


class Owner(NamedTuple):
    """Whose the restored files are to be. The broker cannot open what root restored, unless it is given to its user."""

    user: int
    group: int
    whose: Path

    @classmethod
    def of(cls, target: Path) -> Owner:
        """The owner of the directory, or of the nearest one above it that is there."""
        directory = target.absolute()
        existing = next(path for path in (directory, *directory.parents) if path.exists())
        status = existing.stat()
        return cls(status.st_uid, status.st_gid, existing)

    @property
    def is_another(self) -> bool:
        """Return whether the files go to another user: only root can do that."""
        return os.geteuid() == 0 and self.user != 0

    @property
    def name(self) -> str:
        user = self.user if self.is_another else os.geteuid()
        try:
            return pwd.getpwuid(user).pw_name
        except KeyError:
            return str(user)

    def give(self, directory: Path) -> None:
        """Change the owner of a directory and everything in it. The directory comes last: until then its new owner
        cannot put a link into it."""
        if not self.is_another:
            return
        for _, directories, names, fd in os.fwalk(directory, topdown=False):
            for name in (*directories, *names):
                os.chown(name, self.user, self.group, dir_fd=fd, follow_symlinks=False)
        os.chown(directory, self.user, self.group, follow_symlinks=False)

    def describe(self) -> str:
        if self.is_another:
            return f"all of it belongs to {self.name}, as {self.whose} does"
        return "all files belong to root: if the broker runs as another user, chown them (chown -R USER:GROUP)"


def _restore(
    source: Path, target: Path, occupied: list[str], owner: Owner, progress: ShowProgress
) -> tuple[Manifest, Path | None]:
    if not source.exists():
        raise BackupError(f"{source} does not exist")
    with explain_errors(source):
        _check_room(read_manifest(source), target)
    _make(target, owner)
    # As long as it is there, no broker starts on the target.
    with held_directory(target / RESTORING, f"another restore into {target.resolve()} is at work") as staging:
        manifest = _extract(source, staging, progress)
        _verify(staging)
        owner.give(staging)
        _check_no_broker(target)  # one may have been about to start when this began; later it does not start any more
        with _Moves() as moves:
            aside = _set_aside(target, {path.name for path in staging.iterdir()}, owner, moves) if occupied else None
            for path in sorted(staging.iterdir()):
                moves.move(path, target / path.name)
            sync(target)
    return manifest, aside


def _check_room(manifest: Manifest, target: Path) -> None:
    """Raise BackupError if the files of the backup do not fit on the disk."""
    needed = sum(file.size for file in manifest.files)
    existing = next(path for path in (target.absolute(), *target.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed > free:
        raise BackupError(
            f"the backup needs {needed:,} bytes, and {existing} has {free:,} free",
            "Make room, or name a directory on a larger disk with --data-dir.",
        )


class _Moves:
    """All of them, or none: what was moved before one failed is moved back."""

    def __init__(self) -> None:
        self._done: list[tuple[Path, Path]] = []
        self._made: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if error is None:
            return
        for path, moved in reversed(self._done):
            with contextlib.suppress(FileNotFoundError):  # the error came just before it was moved
                moved.rename(path)
        for directory in self._made:
            directory.rmdir()

    def make(self, directory: Path) -> None:
        directory.mkdir(mode=0o700)
        self._made.append(directory)

    def move(self, path: Path, to: Path) -> None:
        self._done.append((path, to))
        try:
            path.rename(to)
        except OSError:
            self._done.pop()
            raise


def _make(target: Path, owner: Owner) -> None:
    """With the directories above it, as the owner would have made them."""
    missing = [path for path in (target, *target.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o700 if path == target else 0o777)
        owner.give(path)


def _extract(source: Path, staging: Path, progress: ShowProgress) -> Manifest:
    """Into the directory; raises BackupError unless every file is what the manifest says."""
    found: dict[str, tuple[int, str]] = {}
    manifest: Manifest | None = None
    total = sum(path.stat().st_size for path in source.rglob("*")) if source.is_dir() else source.stat().st_size
    with explain_errors(source), progress("restoring", total, "bytes") as bar:
        for name, size, contents in read_backup(source):
            if name == MANIFEST:
                manifest = parse_manifest(contents.read(LARGEST_MANIFEST), source)
                break
            limited = Limited(contents, size, bar.advance)
            path = staging / name
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_file(path, limited)  # type: ignore[arg-type] # a RawIOBase reads bytes, which is all that is asked of it
            found[name] = (size, limited.digest)
    if manifest is None:
        raise BackupError(f"{source} has no {MANIFEST}: it is not a backup, or not whole")
    expected = {file.name: (file.size, file.sha256) for file in manifest.files}
    wrong = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    if wrong:
        raise BackupError(
            f"{source} is damaged: {', '.join(wrong[:5])}" + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
            "Nothing was restored: take another backup.",
        )
    return manifest


def _verify(staging: Path) -> None:
    """The log's own checksums, and that the stores can be read; raises LogDamaged or StoreError."""
    root = files.log_directory(staging)
    has_journal = root.is_dir() and any(path.name.startswith(".journal") for path in root.iterdir())
    for directory in sorted(root.iterdir()) if root.is_dir() else ():
        if not directory.is_dir():
            continue
        topic, _ = files.read_topic(directory)
        tail = files.read_tail(directory) or (0, 0)
        sequences = files.list_segments(directory)
        for sequence in sequences:
            durable = None
            if sequence == sequences[-1]:
                durable = tail[1] if tail[0] == sequence and not has_journal else 0
            verify_segment(topic, files.segment_path(directory, sequence), None, durable)
    for directory in (staging, *(path for path in staging.rglob("*") if path.is_dir())):
        sync(directory)
    for environment in find_environments(staging):
        check_environment(environment)


def _set_aside(target: Path, restored: set[str], owner: Owner, moves: _Moves) -> Path | None:
    """Move the data that a broker would use into a directory of its own; other files stay where they are."""
    ours = {"log", *restored, *(path.name for path in find_environments(target))}
    moved = [path for path in sorted(target.iterdir()) if path.name in ours]
    if not moved:
        return None
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = target / f"{OLD}{stamp}"
    moves.make(aside)
    owner.give(aside)
    for path in moved:
        moves.move(path, aside / path.name)
    return aside.resolve()
