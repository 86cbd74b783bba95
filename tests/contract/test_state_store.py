"""What every provider of the state store does in the same way; opened again it has what it had."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from penstock.storage.state.base import StateStore, StoreError
from penstock.storage.state.lmdb import LmdbStateStore
from penstock.storage.state.memory import MemoryStateStore
from penstock.storage.state.topic import StateLog
from tests.contract.providers import PROVIDERS

OpenStore = Callable[[], AbstractAsyncContextManager[StateStore]]
KINDS = ["memory", "lmdb", "log-memory", "log-embedded", "log-kafka"]


def make_opener(kind: str, request: pytest.FixtureRequest, directory: Path) -> OpenStore:
    memory = MemoryStateStore()

    @asynccontextmanager
    async def open_memory() -> AsyncIterator[StateStore]:
        yield memory
        await memory.close()

    @asynccontextmanager
    async def open_lmdb() -> AsyncIterator[StateStore]:
        store = LmdbStateStore(directory / "clients", asyncio.get_running_loop())
        yield store
        await store.close()

    if kind == "memory":
        return open_memory
    if kind == "lmdb":
        return open_lmdb
    provider = PROVIDERS[kind.removeprefix("log-")](request, directory)

    @asynccontextmanager
    async def open_log() -> AsyncIterator[StateStore]:
        async with provider.open() as log:
            store = StateLog(log)
            yield store
            await store.close()

    return open_log


@pytest.fixture(params=KINDS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return make_opener(request.param, request, tmp_path)


@pytest.fixture
def table() -> str:
    """Of this test alone: Kafka is shared."""
    return f"state-{uuid.uuid4().hex[:12]}"


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(60):
            await work()

    uvloop.run(limited())


async def contents(store: StateStore, table: str) -> dict[bytes, bytes | None]:
    found: list[tuple[bytes, bytes | None]] = []
    count = await store.load(table, lambda key, value: found.append((key, value)))
    assert count == len(found)
    assert len(dict(found)) == len(found), "a record came twice"
    return dict(found)


def test_what_was_stored_is_there_again(open_store: OpenStore, table: str) -> None:
    async def work() -> None:
        async with open_store() as store:
            assert await contents(store, table) == {}
            store.store([(table, b"a", b"1"), (table, b"b", b"2")])
            store.store([(table, b"c", b"3"), (table, b"a", None)])
            await store.flush()
            assert store.pending == 0
            store.store([(table, b"b", b"22"), (table, b"nobody", None)])
        async with open_store() as store:
            assert await contents(store, table) == {b"b": b"22", b"c": b"3"}

    run(work)


def test_tables_do_not_touch_each_other(open_store: OpenStore, table: str) -> None:
    async def work() -> None:
        async with open_store() as store:
            await contents(store, table)
            await contents(store, f"{table}.2")
            store.store([(table, b"a", b"1"), (f"{table}.2", b"a", b"2"), (f"{table}.2", b"b", b"3")])
            store.store([(table, b"a", None)])
            await store.flush()
        async with open_store() as store:
            assert await contents(store, table) == {}
            assert await contents(store, f"{table}.2") == {b"a": b"2", b"b": b"3"}

    run(work)


def test_callers_are_told_in_order_and_once(open_store: OpenStore, table: str) -> None:
    async def work() -> None:
        async with open_store() as store:
            await contents(store, table)
            told: list[tuple[int, StoreError | None]] = []
            for number in range(50):
                store.store([(table, b"k%d" % (number % 7), b"%d" % number)], lambda e, n=number: told.append((n, e)))
                assert len(told) <= number, "told within the call"
                if number % 5 == 0:
                    await asyncio.sleep(0)
            await store.flush()
            assert told == [(number, None) for number in range(50)]
        async with open_store() as store:
            found = await contents(store, table)
            assert sorted(int(value or b"") for value in found.values()) == list(range(43, 50))

    run(work)


def test_keys_and_values_of_any_length(open_store: OpenStore, table: str) -> None:
    """A client id has up to 65,535 bytes; ids that begin alike are not mixed up."""
    long = b"x" * 65_000
    pairs = {
        b"\0": b"zero",
        b"\1": b"one",
        b"k" * 400: b"v",
        b"k" * 401: b"w",
        b"k" * 511: b"",
        long + b"1": b"1" * 100_000,
        long + b"2": b"2",
        "ключ/🔑".encode(): b"\xff\x00",
    }

    async def work() -> None:
        async with open_store() as store:
            await contents(store, table)
            store.store([(table, key, value) for key, value in pairs.items()])
            await store.flush()
        async with open_store() as store:
            assert await contents(store, table) == pairs
            store.store([(table, key, None) for key in pairs if len(key) > 401])
            await store.flush()
        async with open_store() as store:
            assert await contents(store, table) == {key: value for key, value in pairs.items() if len(key) <= 401}

    run(work)


def test_many_records(open_store: OpenStore, table: str) -> None:
    """More than one chunk of a load, more than one pack, and more than the file's first size."""

    async def work() -> None:
        async with open_store() as store:
            await contents(store, table)
            for start in range(0, 12_000, 4_000):
                store.store([(table, b"%05d" % n, b"%d " % n * 300) for n in range(start, start + 4_000)])
                await store.flush()
            store.store([(table, b"%05d" % n, None) for n in range(0, 12_000, 2)])
            await store.flush()
        async with open_store() as store:
            found = await contents(store, table)
            assert found.keys() == {b"%05d" % n for n in range(1, 12_000, 2)}
            assert found[b"11999"] == b"11999 " * 300
            assert store.check() is True

    run(work)
