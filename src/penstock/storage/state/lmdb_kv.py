"""Key-value state in LMDB, on the disk before a write returns.

LMDB itself is crash-proof with sync on, except while it creates its file: so the file is made in a temporary
directory, synced, and renamed to where it belongs. Read transactions are short, because a long one keeps old pages.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import lmdb

from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_file import explain_damage, find_missing_page

SMALLEST_MAP = 16 * 1024 * 1024
MOST_SPACES = 64
WHAT_TO_DO = (
    "If it belongs to another user, chown it. If it is damaged, restore a backup, or move the directory away and start "
    "without it."
)
LOOKS = 3


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _create(path: Path) -> None:
    temporary = path.with_name(f".{path.name}.new")
    shutil.rmtree(temporary, ignore_errors=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary.mkdir(mode=0o700)
    lmdb.open(str(temporary), map_size=SMALLEST_MAP, max_dbs=MOST_SPACES, sync=True).close()
    for file in temporary.iterdir():
        _sync(file)
    _sync(temporary)
    temporary.rename(path)
    _sync(path.parent)


def _check_whole(file: Path) -> None:
    """Looks again before it complains: beside a process that writes, a page may change while it is read."""
    missing = None
    for _ in range(LOOKS):
        try:
            missing = find_missing_page(file)
        except PermissionError:
            return  # LMDB says whose it is
        if missing is None:
            return
    raise StoreError(f"the store cannot be opened: {file} is cut off, page {missing} is missing", WHAT_TO_DO)


class LmdbStore:
    """One environment with named spaces. A process opens a path once. `is_readonly`: to look at another process's."""

    def __init__(self, path: Path | str, *, is_readonly: bool = False) -> None:
        """Raises StoreError and OSError."""
        path = Path(path)
        if not is_readonly and not path.exists():
            _create(path)
        file = path / "data.mdb"
        size = max(SMALLEST_MAP, 2 * file.stat().st_size)
        _check_whole(file)
        try:
            explain_damage(path)
            self._environment = lmdb.open(
                str(path), map_size=size, max_dbs=MOST_SPACES, sync=True, readonly=is_readonly, create=not is_readonly
            )
        except lmdb.Error as error:
            raise StoreError(f"the store cannot be opened: {error}", WHAT_TO_DO) from error
        self._is_readonly = is_readonly

    def space(self, name: str) -> LmdbSpace:
        """Raises KeyError when there is no such space and it cannot be made."""
        try:
            return LmdbSpace(self, self._environment.open_db(name.encode(), create=not self._is_readonly))
        except lmdb.NotFoundError:
            raise KeyError(name) from None

    def grow(self) -> None:
        """Doubles the space in the file; only between transactions. A process that was killed while it read would keep
        old pages for ever, and the file growing: it is forgotten here."""
        self._environment.reader_check()
        self._environment.set_mapsize(2 * self._environment.info()["map_size"])

    @property
    def commits(self) -> int:
        """Grows with every commit that the disk took. One that had nothing to change succeeds on any disk."""
        return int(self._environment.info()["last_txnid"])

    def readers(self) -> str:
        """Who reads, in LMDB's words: process, thread, transaction."""
        return str(self._environment.readers())

    def begin(self, *, write: bool) -> lmdb.Transaction:
        return self._environment.begin(write=write)

    def write(self, changes: Iterable[tuple[LmdbSpace, bytes, bytes | None]]) -> None:
        """All of the changes, of any spaces, or none (a value of None removes the key); on the disk when it returns."""
        changes = list(changes)
        while True:
            try:
                with self.begin(write=True) as transaction:
                    for space, key, value in changes:
                        if value is None:
                            transaction.delete(key, db=space.database)
                        else:
                            transaction.put(key, value, db=space.database)
                return
            except lmdb.MapFullError:
                self.grow()

    def close(self) -> None:
        self._environment.close()


class LmdbSpace:
    """Keys of at most 511 bytes and their values. Write on one thread at a time."""

    def __init__(self, store: LmdbStore, database: lmdb._Database) -> None:
        self._store = store
        self.database = database

    def get(self, key: bytes) -> bytes | None:
        with self._store.begin(write=False) as transaction:
            value = transaction.get(key, db=self.database)
            return None if value is None else bytes(value)

    def scan(self, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
        """Everything whose key starts with the prefix, in the order of the keys."""
        found: list[tuple[bytes, bytes]] = []
        with self._store.begin(write=False) as transaction:
            cursor = transaction.cursor(db=self.database)
            if cursor.set_range(prefix):
                for key, value in cursor:
                    if bytes(key[: len(prefix)]) != prefix:
                        break
                    found.append((bytes(key), bytes(value)))
        return found

    def read_after(self, key: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """At most `limit` pairs behind the key (None: from the first on), in the order of the keys."""
        with self._store.begin(write=False) as transaction:
            cursor = transaction.cursor(db=self.database)
            found = cursor.first() if key is None else cursor.set_range(key)
            if found and key is not None and cursor.key() == key:
                found = cursor.next()
            return [(bytes(at), bytes(value)) for at, value in islice(cursor, limit)] if found else []

    def write(self, changes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """All of the changes or none (a value of None removes the key), on the disk when it returns."""
        self._store.write((self, key, value) for key, value in changes)
