"""The state store on LMDB: a disk that is full and has room again, one owner, a loop that never waits for the disk."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
import uvloop

from penstock.storage.state import lmdb as lmdb_state
from penstock.storage.state import lmdb_kv
from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb import LmdbStateStore, decode_pair, encode_pair
from tests.support.machine.waiting import until

MIB = 1_048_576


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    uvloop.run(limited())


def open_store(path: Path) -> LmdbStateStore:
    return LmdbStateStore(path, asyncio.get_running_loop())


async def contents(store: LmdbStateStore, table: str = "t") -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    await store.load(table, found.__setitem__)
    return found


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mounted)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


def test_a_full_disk_is_told_and_passes(small_disk: Path) -> None:
    async def work() -> None:
        store = open_store(small_disk / "clients")
        store.store([("t", b"first", b"1")])
        await store.flush()
        ballast = small_disk / "ballast"
        stat = os.statvfs(small_disk)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, stat.f_bavail * stat.f_frsize - MIB)
        number, failure = 0, None
        while failure is None:
            store.store([("t", b"%d" % number, b"." * 100_000)])
            try:
                await store.flush()
                number += 1
            except StoreError as error:
                failure = error
        assert "the disk is full" in str(failure)
        assert "the disk is full" in str(store.check())
        assert number > 0
        store.store([("t", b"again", b"." * 100_000)])
        with pytest.raises(StoreError):
            await store.flush()
        assert len(await contents(store)) == number + 1, "what was stored can be read"
        ballast.unlink()
        await until(lambda: store.check() is True, 60)  # nobody stores anything
        store.store([("t", b"after", b"." * 100_000)])
        await store.flush()
        await store.close()
        store = open_store(small_disk / "clients")
        assert (await contents(store)).keys() == {b"first", b"after", *(b"%d" % n for n in range(number))}
        await store.close()

    run(work)


def test_a_commit_of_nothing_says_nothing_about_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB does not ask the disk when there is nothing to remove: the disk may be as bad as before."""
    monkeypatch.setattr(lmdb_state, "PROBE_SECONDS", 60.0)

    async def work() -> None:
        store = open_store(tmp_path / "clients")
        store.store([("t", b"first", b"1")])
        await store.flush()
        write = lmdb_kv.LmdbStore.write

        def fail(*_: object) -> None:
            raise lmdb.DiskError("Input/output error")

        monkeypatch.setattr(lmdb_kv.LmdbStore, "write", fail)
        store.store([("t", b"second", b"2")])
        with pytest.raises(StoreError):
            await store.flush()
        monkeypatch.setattr(lmdb_kv.LmdbStore, "write", write)
        store.store([("t", b"second", None)])
        await store.flush()
        assert "disk" in str(store.check())
        store.store([("t", b"first", None)])
        await store.flush()
        assert store.check() is True
        await store.close()

    run(work)


def test_a_second_owner_is_told_who_has_it(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "clients")
        with pytest.raises(StoreError, match=f"in use by another process .pid {os.getpid()}"):
            open_store(tmp_path / "clients")
        await store.close()
        await open_store(tmp_path / "clients").close()

    run(work)


def test_the_loop_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While megabytes are written, the file grows and the disk does not answer, the loop goes on."""
    may_write = threading.Event()
    writers: list[int] = []
    write = lmdb_kv.LmdbStore.write

    def held(*arguments: Any) -> None:
        writers.append(threading.get_ident())
        assert may_write.wait(60)
        write(*arguments)

    monkeypatch.setattr(lmdb_kv.LmdbStore, "write", held)

    async def work() -> None:
        store = open_store(tmp_path / "clients")
        store.store(("t", b"%d" % n, b"." * 2_000) for n in range(20_000))
        flushed = asyncio.ensure_future(store.flush())
        await until(lambda: bool(writers))
        for _ in range(100):
            await asyncio.sleep(0)
        assert not flushed.done()
        may_write.set()
        await flushed
        assert threading.get_ident() not in writers
        assert len(await contents(store)) == 20_000
        await store.close()

    run(work)


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    async def work() -> None:
        store = open_store(tmp_path / "clients")
        await store.close()
        store.store([("t", b"k", b"v")])
        with pytest.raises(StoreError, match="closed"):
            await store.flush()
        await store.close()

    run(work)


@pytest.mark.parametrize("length", [0, 1, 400, 401, 511, 512, 65_535])
def test_keys_of_any_length_fit(length: int) -> None:
    key = b"\x01k"[:length] + b"x" * (length - 2)
    stored_key, stored_value = encode_pair(key, b"value")
    assert 1 <= len(stored_key) <= 511
    assert stored_value is not None
    assert decode_pair(stored_key, stored_value) == (key, b"value")
    assert encode_pair(key, None) == (stored_key, None)
