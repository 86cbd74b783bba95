"""Redis restarted, silent, slow, cut off, flushed, out of memory while messages are stored: what was stored is there,
once and in order, and everybody gets an answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    StoreFull,
    StoreUnavailable,
    client_queue,
    result_of,
)
from penstock.subscribers.device.store.redis import RedisDeviceStore
from penstock.subscribers.device.store.redis.connection import Command
from tests.contract.device_providers import CLIENT, Caller, run
from tests.support.machine.waiting import until
from tests.support.servers.redis_proxy import proxied
from tests.support.servers.redis_server import own_redis
from tests.support.worlds.device_load import DeviceLoad


@asynccontextmanager
async def opened(address: str, **settings: Any) -> AsyncIterator[RedisDeviceStore]:
    quick = {"reconnect_delay": 0.02, "reconnect_delay_max": 0.2, "command_timeout": 20.0, **settings}
    store = RedisDeviceStore(RedisSettings(addresses=address, **quick), DeviceSettings())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def loaded(store: RedisDeviceStore, **options: Any) -> AsyncIterator[DeviceLoad]:
    """Stores messages all the time; at the end everything that was stored is looked at."""
    load = DeviceLoad(store, **options)
    task = asyncio.create_task(load.run())
    try:
        await load.until(300)
        yield load
        await load.until(sum(load.stored) + 300)
        load.is_stopped = True
        await task
        await load.assert_all_there_once_and_in_order()
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_killed_and_started_again() -> None:
    with own_redis(is_durable=True) as server:

        async def test() -> None:
            async with opened(server.address) as store, loaded(store) as load:
                for _ in range(3):
                    before = sum(load.stored)
                    await asyncio.to_thread(server.kill)
                    await until(lambda: isinstance(store.check(), str))
                    await asyncio.to_thread(server.start)
                    await load.until(before + 500)
                assert store.check() is True
                assert store.statistics.reconnects >= 3
                assert not load.errors

        run(test())


def test_answers_that_never_arrive() -> None:
    """What was carried out and not answered is sent again, and is there once."""
    with own_redis() as server:

        async def test() -> None:
            async with (
                proxied(server.port) as proxy,
                opened(proxy.address) as store,
                loaded(store) as load,
            ):
                for _ in range(10):
                    proxy.is_deaf = True
                    await asyncio.sleep(0.03)
                    proxy.cut()
                    proxy.is_deaf = False
                    await load.until(sum(load.stored) + 200)
                assert store.statistics.retried > 0
                assert not load.errors

        run(test())


def test_scripts_forgotten() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address) as store, loaded(store, clients=50) as load:
                for _ in range(5):
                    await asyncio.to_thread(server.cli, "SCRIPT", "FLUSH")
                    await load.until(sum(load.stored) + 300)
                assert store.statistics.retried > 0
                assert not load.errors

        run(test())


def test_flushed() -> None:
    """Everything is gone, the scripts too; what comes after it is stored as in a new Redis."""
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address) as store:
                load = DeviceLoad(store)
                task = asyncio.create_task(load.run())
                await load.until(500)
                for command in (("FLUSHALL",), ("SCRIPT", "FLUSH"), ("FLUSHALL",)):
                    assert await asyncio.to_thread(server.cli, *command) == "OK\n"
                    await load.until(sum(load.stored) + 500)
                load.is_stopped = True
                await task
                assert not load.errors
                caller = Caller(store)
                for client, queue in enumerate(load.queues):
                    values = await caller.values(queue)
                    numbers = [int(value.split()[1]) for value in values]
                    assert numbers == list(range(numbers[0], load.stored[client]))

        run(test())


def test_out_of_memory() -> None:
    with own_redis("--maxmemory", "8mb", "--maxmemory-policy", "noeviction") as server:

        async def test() -> None:
            async with opened(server.address) as store:
                caller = Caller(store)
                queues = [client_queue(f"big-{i}") for i in range(10)]
                stored = 0
                failure: object = None
                for number in range(200):
                    pack = caller.pack([b"x" * 10_000] * 10)
                    (result,) = await result_of(store.add, [Addition(queues[number % 10], pack)])
                    if not isinstance(result, Added):
                        failure = result
                        break
                    stored += 10
                assert isinstance(failure, StoreFull)
                assert "maxmemory" in str(failure)
                # Reading and removing go on, and make room.
                assert len(await caller.all(queues[0])) > 0
                assert sum(await result_of(store.remove_all, queues)) == stored
                added = await caller.add_pack(queues[0], pack)
                assert added.packet_ids == list(range(1, 11))

        run(test())


def test_out_of_memory_under_load() -> None:
    with own_redis("--maxmemory", "6mb", "--maxmemory-policy", "noeviction") as server:

        async def test() -> None:
            async with opened(server.address) as store:
                load = DeviceLoad(store, clients=30, pack=20)
                task = asyncio.create_task(load.run())
                await until(lambda: bool(load.errors), 60)
                assert set(load.errors) == {"StoreFull"}
                await asyncio.to_thread(server.cli, "CONFIG", "SET", "maxmemory", "0")
                await load.until(sum(load.stored) + 1000)
                load.is_stopped = True
                await task
                await load.assert_all_there_once_and_in_order()

        run(test())


def test_slow() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with (
                proxied(server.port) as proxy,
                opened(proxy.address) as store,
                loaded(store, clients=100) as load,
            ):
                proxy.delay = 0.1
                before = sum(load.stored)
                started = time.monotonic()
                await asyncio.sleep(1.0)
                rate = (sum(load.stored) - before) / (time.monotonic() - started)
                # Commands of different clients do not wait for each other.
                assert rate > 200  # one after the other they would be 50
                proxy.delay = 0.0
                assert not load.errors

        run(test())


def test_silent_server_is_left_and_tried_again() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address, response_timeout=0.3) as store, loaded(store) as load:
                os.kill(server.pid, signal.SIGSTOP)
                await until(lambda: store.statistics.reconnects > 0)
                os.kill(server.pid, signal.SIGCONT)
                await load.until(sum(load.stored) + 200)
                assert store.check() is True
                assert not load.errors

        run(test())


def test_everybody_gets_an_answer_in_time() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address, command_timeout=0.5) as store:
                caller = Caller(store)
                await caller.add(CLIENT, b"before")
                os.kill(server.pid, signal.SIGSTOP)
                try:
                    started = time.monotonic()
                    pack = caller.pack([b"during"])
                    others = [Addition(client_queue(f"other-{i}"), caller.pack([b"x"] * 2)) for i in range(50)]
                    # Twice: the second ones wait for the first ones.
                    results = await asyncio.gather(
                        result_of(store.add, [Addition(CLIENT, pack), *others]), result_of(store.add, others)
                    )
                    assert all(isinstance(result, StoreUnavailable) for batch in results for result in batch)
                    with pytest.raises(StoreUnavailable):
                        await caller.page(CLIENT)
                    assert time.monotonic() - started < 15
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                # What timed out was carried out nevertheless; given again it is the same message.
                assert (await caller.add_pack(CLIENT, pack)).packet_ids == [2]
                assert await caller.values(CLIENT) == [b"before", b"during"]
                assert await result_of(store.add, others) == [Added([1, 2], 0)] * 50
                assert store.pending_bytes == 0

        run(test())


def test_a_long_outage_costs_no_memory() -> None:
    """What timed out is not kept for the day the server comes back."""
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address, command_timeout=0.2) as store:
                caller = Caller(store)
                await asyncio.to_thread(server.kill)
                for _ in range(3):
                    batch = [Addition(client_queue(f"c-{i}"), caller.pack([b"x" * 10_000])) for i in range(100)]
                    results = await result_of(store.add, batch)
                    assert all(isinstance(result, StoreUnavailable) for result in results)
                assert store.pending_bytes == 0
                gc.collect()
                assert not [kept for kept in gc.get_objects() if isinstance(kept, Command) and not kept.number < 0]

        run(test())


def test_a_full_backlog_refuses_at_once() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address, backlog_bytes=65_536) as store:
                caller = Caller(store)
                os.kill(server.pid, signal.SIGSTOP)
                results: list[Any] = []
                try:
                    for _ in range(100):
                        store.add([Addition(CLIENT, caller.pack([b"x" * 1000]))], results.extend)
                    await asyncio.sleep(0.05)
                    assert 30 < len(results) < 60
                    assert all(isinstance(result, StoreFull) for result in results)
                    # Those after the first of them fail with it, whether there is room for them or not.
                    assert 0 < store.statistics.refused <= len(results)
                    assert all("backlog_bytes" in str(result) for result in results)
                    refused = len(results)
                finally:
                    os.kill(server.pid, signal.SIGCONT)
                await until(lambda: len(results) == 100)
                assert len(await caller.values(CLIENT)) == 100 - refused
                assert store.pending_bytes == 0

        run(test())


@pytest.mark.parametrize("error", ["LOADING Redis is loading", "BUSY script", "TRYAGAIN keys", "READONLY", "NOSCRIPT"])
def test_errors_that_pass_keep_the_order(error: str) -> None:
    """The command that failed goes before those that were on the way behind it."""
    with own_redis() as server:

        async def test() -> None:
            async with proxied(server.port) as proxy, opened(proxy.address) as store:
                caller = Caller(store)
                await caller.add(CLIENT, b"first")
                proxy.errors = [error] * 3
                results: list[Any] = []
                for i in range(20):
                    store.add([Addition(CLIENT, caller.pack([b"%d" % i]))], results.extend)
                await until(lambda: len(results) == 20)
                assert all(isinstance(result, Added) for result in results), results
                assert await caller.values(CLIENT) == [b"first", *(b"%d" % i for i in range(20))]
                assert (await caller.add(CLIENT, b"last")).packet_ids == [22]

        run(test())


def test_busy_with_somebody_elses_script() -> None:
    with own_redis("--busy-reply-threshold", "50") as server:

        async def test() -> None:
            async with opened(server.address) as store, loaded(store) as load:
                endless = asyncio.create_task(asyncio.to_thread(server.cli, "EVAL", "while true do end", "0"))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(server.cli, "SCRIPT", "KILL")
                await endless
                await load.until(sum(load.stored) + 200)
                assert not load.errors

        run(test())


def test_a_server_that_becomes_a_replica_for_a_while() -> None:
    with own_redis() as server:

        async def test() -> None:
            async with opened(server.address) as store:
                caller = Caller(store)
                await caller.add(CLIENT, b"a")
                server.cli("REPLICAOF", "127.0.0.1", "1")
                pack = caller.pack([b"b"])
                adding = asyncio.create_task(caller.add_pack(CLIENT, pack))
                await asyncio.sleep(0.3)
                assert not adding.done()
                server.cli("REPLICAOF", "NO", "ONE")
                assert (await adding).packet_ids == [2]

        run(test())


def test_a_password_is_wanted() -> None:
    with own_redis("--requirepass", "secret", password="secret") as server:

        async def test() -> None:
            async with opened(server.address, command_timeout=0.3) as store:
                caller = Caller(store)
                assert "redis.password" in str(store.check())
                (result,) = await result_of(store.add, [Addition(CLIENT, caller.pack([b"a"]))])
                assert isinstance(result, StoreUnavailable)
                assert "redis.password" in str(result)
                # The operator opens the door: nothing has to be restarted.
                server.cli("CONFIG", "SET", "requirepass", "")
                await until(lambda: store.check() is True)
                assert (await caller.add(CLIENT, b"b")).packet_ids == [1]
            async with opened(server.address, password="wrong", command_timeout=0.3) as store:
                assert "without any password configured" in str(store.check())

        run(test())
