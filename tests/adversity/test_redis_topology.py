"""Redis Cluster while slots move and a master dies, and Sentinel while it makes another server the master: messages are
stored all the time, once and in order."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import client_queue, result_of
from penstock.subscribers.device.store.redis import RedisDeviceStore
from penstock.subscribers.device.store.redis.keys import KeyMaker
from tests.contract.device_providers import Caller, run
from tests.support.servers.redis_server import RedisCluster, RedisServer, RedisWithSentinel
from tests.support.worlds.device_load import DeviceLoad

QUICK = {"reconnect_delay": 0.02, "reconnect_delay_max": 0.2, "connect_timeout": 2.0}


@contextmanager
def own_cluster(replicas: int = 0) -> Iterator[RedisCluster]:
    cluster = RedisCluster(replicas)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@asynccontextmanager
async def opened(settings: RedisSettings) -> AsyncIterator[RedisDeviceStore]:
    store = RedisDeviceStore(settings, DeviceSettings())
    await store.start()
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def loaded(store: RedisDeviceStore, *, is_checked: bool = True) -> AsyncIterator[DeviceLoad]:
    load = DeviceLoad(store, clients=30)
    task = asyncio.create_task(load.run())
    try:
        await load.until(300)
        yield load
        await load.until(sum(load.stored) + 300)
        load.is_stopped = True
        await task
        assert not load.errors
        if is_checked:
            await load.assert_all_there_once_and_in_order()
    finally:
        task.cancel()


def begin_move(slot: int, source: RedisServer, target: RedisServer, pause: float = 0.0) -> None:
    """As redis-cli does it, but slowly: for a while some keys are here and some are there."""
    source_id, target_id = source.cli("CLUSTER", "MYID").strip(), target.cli("CLUSTER", "MYID").strip()
    assert target.cli("CLUSTER", "SETSLOT", str(slot), "IMPORTING", source_id) == "OK\n"
    assert source.cli("CLUSTER", "SETSLOT", str(slot), "MIGRATING", target_id) == "OK\n"
    deadline = time.monotonic() + 60
    while keys := source.cli("CLUSTER", "GETKEYSINSLOT", str(slot), "500").split():
        moved = source.cli("MIGRATE", "127.0.0.1", str(target.port), "", "0", "5000", "KEYS", *keys)
        assert moved in ("OK\n", "NOKEY\n"), moved
        assert time.monotonic() < deadline
        time.sleep(pause)


def end_move(slot: int, source: RedisServer, target: RedisServer) -> None:
    target_id = target.cli("CLUSTER", "MYID").strip()
    for server in (target, source):
        assert server.cli("CLUSTER", "SETSLOT", str(slot), "NODE", target_id) == "OK\n"


def test_slots_move_under_load() -> None:
    """TRYAGAIN while the keys of a queue are on both sides, ASK when they are on the other, MOVED at the end."""
    with own_cluster() as cluster:

        async def test() -> None:
            settings = RedisSettings(mode="cluster", addresses=cluster.addresses, **QUICK)
            async with opened(settings) as store, loaded(store) as load:
                for queue in load.queues[:3]:
                    slot = KeyMaker("")(queue).slot
                    source = await asyncio.to_thread(cluster.owner_of, slot)
                    target = cluster.servers[(cluster.servers.index(source) + 1) % 3]
                    await asyncio.to_thread(begin_move, slot, source, target, 0.02)
                    await asyncio.sleep(0.05)
                    await asyncio.to_thread(end_move, slot, source, target)
                    await load.until(sum(load.stored) + 200)
                assert store.statistics.retried > 0

        run(test())


def test_a_client_whose_slot_is_being_moved_is_served_where_its_keys_are() -> None:
    """ASK: the keys are at the target already, and the slot is not."""
    with own_cluster() as cluster:

        async def test() -> None:
            settings = RedisSettings(mode="cluster", addresses=cluster.addresses, **QUICK)
            async with opened(settings) as store:
                caller = Caller(store)
                queue = client_queue("moving")
                slot = KeyMaker("")(queue).slot
                source = cluster.owner_of(slot)
                target = cluster.servers[(cluster.servers.index(source) + 1) % 3]
                await caller.add(queue, b"0")
                begin_move(slot, source, target)
                for i in range(1, 10):
                    assert (await caller.add(queue, b"%d" % i)).packet_ids == [i + 1]
                assert await caller.values(queue) == [b"%d" % i for i in range(10)]
                assert await caller.release(queue, 2) == 1
                assert await caller.remove(queue, 1, 3) == 2
                assert source.cli("CLUSTER", "COUNTKEYSINSLOT", str(slot)) == "0\n"
                # Other clients are not disturbed.
                others = [client_queue(f"other-{i}") for i in range(30)]
                for other in others:
                    await caller.add(other, b"x")
                assert await result_of(store.remove_all, others) == [1] * 30
                end_move(slot, source, target)
                assert (await caller.add(queue, b"10")).packet_ids == [11]

        run(test())


def test_a_new_client_waits_for_the_end_of_the_move() -> None:
    """TRYAGAIN: Redis carries out no script whose keys it cannot find while a slot is moved."""
    with own_cluster() as cluster:

        async def test() -> None:
            settings = RedisSettings(mode="cluster", addresses=cluster.addresses, **QUICK)
            async with opened(settings) as store:
                caller = Caller(store)
                queue = client_queue("new")
                slot = KeyMaker("")(queue).slot
                source = cluster.owner_of(slot)
                target = cluster.servers[(cluster.servers.index(source) + 1) % 3]
                begin_move(slot, source, target)
                adding = asyncio.create_task(caller.add(queue, b"a", b"b"))
                await asyncio.sleep(0.3)
                assert not adding.done()
                assert (await caller.add(client_queue("another"), b"x")).packet_ids == [1]
                end_move(slot, source, target)
                assert (await adding).packet_ids == [1, 2]

        run(test())


def test_resharding_by_redis_cli() -> None:
    with own_cluster() as cluster:

        async def test() -> None:
            settings = RedisSettings(mode="cluster", addresses=cluster.servers[0].address, **QUICK)
            async with opened(settings) as store, loaded(store) as load:
                ids = [server.cli("CLUSTER", "MYID").strip() for server in cluster.servers]
                command = ["redis-cli", "--cluster", "reshard", cluster.servers[0].address, "--cluster-from", ids[0]]
                command += ["--cluster-to", ids[1], "--cluster-slots", "100", "--cluster-yes"]
                done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)
                assert done.returncode == 0, done.stdout[-500:]
                await load.until(sum(load.stored) + 300)

        run(test())


def test_a_master_dies_and_its_replica_takes_over() -> None:
    """A replica may lack the last moments of its master, so only what is stored afterwards is looked at."""
    with own_cluster(replicas=1) as cluster:

        async def test() -> None:
            settings = RedisSettings(mode="cluster", addresses=cluster.addresses, **QUICK)
            async with opened(settings) as store, loaded(store, is_checked=False) as load:
                slot = KeyMaker("")(load.queues[0]).slot
                dead = await asyncio.to_thread(cluster.owner_of, slot)
                stored = load.stored[0]
                await asyncio.to_thread(dead.kill)
                await load.until(sum(load.stored) + 100)  # clients of the other masters go on
                deadline = time.monotonic() + 30
                while load.stored[0] < stored + 100:
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
                values = await Caller(store).values(load.queues[0])
                numbers = [int(value.split()[1]) for value in values]
                assert numbers == sorted(set(numbers))
                assert numbers[-50:] == list(range(numbers[-1] - 49, numbers[-1] + 1))
                assert store.check() is True

        run(test())


def test_sentinel_makes_another_server_the_master() -> None:
    servers = RedisWithSentinel()
    try:
        servers.start()

        async def test() -> None:
            settings = RedisSettings(mode="sentinel", addresses=servers.address, **QUICK)
            async with opened(settings) as store:
                assert store.check() is True
                async with loaded(store, is_checked=False) as load:
                    await asyncio.to_thread(servers.master.kill)
                    await load.until(sum(load.stored) + 500)
                    assert "role:master" in servers.replica.cli("INFO", "replication")
                    assert store.check() is True

        run(test())
    finally:
        servers.stop()
