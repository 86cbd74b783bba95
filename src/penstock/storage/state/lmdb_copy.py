"""Copies of LMDB environments that another process writes, as all of them were at almost the same moment.

A read transaction is a picture of its environment that writers do not disturb, and is there in microseconds; so all of
them are begun before the first is copied. As long as they are held, the writer cannot use pages again: copy soon.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_file import explain_damage
from penstock.storage.state.lmdb_kv import MOST_SPACES, SMALLEST_MAP

FILE = "data.mdb"
ATTEMPTS = 10


def find_environments(data_dir: Path) -> list[Path]:
    """Directories with an environment of ours, hidden ones left out."""
    return sorted(path.parent for path in data_dir.glob(f"*/{FILE}") if not path.parent.name.startswith("."))


class Snapshots:
    """Taken in the order of the paths. Raises StoreError."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._held: dict[str, tuple[lmdb.Environment, lmdb.Transaction]] = {}
        try:
            opened = [(path, _open(path)) for path in paths]
            for path, environment in opened:
                self._held[path.name] = (environment, _begin(path, environment))
        except (lmdb.Error, OSError) as error:
            self.close()
            raise StoreError(
                f"the store cannot be read: {error}", "Run the command as the user the broker runs as."
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def names(self) -> list[str]:
        return list(self._held)

    def copy(self, name: str, target: Path) -> Path:
        """The file with the copy, in the directory `target`, without pages that hold nothing; lets the picture go."""
        environment, transaction = self._held[name]
        target.mkdir(mode=0o700)
        try:
            environment.copy(str(target), compact=True, txn=transaction)
        except (lmdb.Error, OSError) as error:
            raise StoreError(f"{name} cannot be copied to {target}: {error}") from error
        self._release(name)
        return target / FILE

    def _release(self, name: str) -> None:
        environment, transaction = self._held.pop(name)
        transaction.abort()
        environment.close()

    def close(self) -> None:
        for name in list(self._held):
            self._release(name)


def _open(path: Path) -> lmdb.Environment:
    size = max(SMALLEST_MAP, 2 * (path / FILE).stat().st_size)
    explain_damage(path)
    environment = lmdb.open(str(path), map_size=size, max_dbs=MOST_SPACES, readonly=True, create=False)
    environment.reader_check()  # a copy that was killed keeps no pages any longer
    return environment


def _begin(path: Path, environment: lmdb.Environment) -> lmdb.Transaction:
    for _ in range(ATTEMPTS):
        with contextlib.suppress(lmdb.MapResizedError):
            return environment.begin()
        environment.set_mapsize(0)  # the writer has made it larger since: as large as it says now
    raise StoreError(f"{path} grows faster than it can be read")


def check_environment(path: Path) -> int:
    """Opens a copy and walks through all it holds; how many entries. Raises StoreError."""
    try:
        explain_damage(path)
        environment = lmdb.open(str(path), max_dbs=MOST_SPACES, readonly=True, create=False, lock=False)
        try:
            with environment.begin() as transaction:
                names = [bytes(name) for name, _ in transaction.cursor()]
                spaces = [environment.open_db(name, txn=transaction, create=False) for name in names]
                return sum(1 for space in spaces for _ in transaction.cursor(db=space))
        finally:
            environment.close()
    except (lmdb.Error, OSError) as error:
        raise StoreError(f"the store {path} cannot be read: {error}") from error
