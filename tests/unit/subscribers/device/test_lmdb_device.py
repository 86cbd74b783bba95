"""What is special about the queues in LMDB: marks in turns, a map that grows, a disk that is full, a crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import lmdb
import pytest

from penstock.settings.redis import DeviceSettings
from penstock.storage.state.base import StoreError
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.subscribers.device.store import lmdb as lmdb_device
from penstock.subscribers.device.store import lmdb_rows as lmdb_queues
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    Queue,
    StoreFull,
    client_queue,
    group_queue,
    result_of,
)
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.lmdb_rows import QueueTables
from tests.contract.device_providers import CLIENT, Caller, opened, run
from tests.support.machine.waiting import until


def test_marks_are_kept_in_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_queues, "MARKS_KEPT", 100)

    async def test() -> None:
        for start in (0, 1000):
            async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
                caller = Caller(store, start)
                packs = []
                for _ in range(40):
                    packs.append(caller.pack([b"x"] * 10))
                    added = await caller.add_pack(CLIENT, packs[-1])
                    await caller.remove(CLIENT, *added.packet_ids)
                    # The last 100 at least are known, the last 210 at most.
                    for pack in packs[-10:]:
                        assert set((await caller.add_pack(CLIENT, pack)).packet_ids) == {0}
                assert (await caller.add_pack(CLIENT, packs[0])).packet_ids[0] != 0
                await caller.remove_all(CLIENT)

    run(test())


def test_the_map_grows_while_messages_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_device, "FIRST_MAP", 0)

    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store)
            for i in range(40):
                await caller.add(client_queue(f"c{i % 4}"), *[b"x" * 20_000] * 50)
            for i in range(4):
                assert len(await caller.all(client_queue(f"c{i}"))) == 500
        assert (tmp_path / "device/data.mdb").stat().st_size > 40_000_000

    run(test())


def test_how_many_messages_are_stored_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In all queues, after every call, after a start, after what was not done: without looking at them."""
    group = group_queue("g", "a/#")
    one, other = client_queue("one"), client_queue("other")

    def open_store() -> Any:
        return opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings(messages_limit=100)))

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(one, *[b"x"] * 150)
            assert store.statistics.stored == 100
            ids = (await caller.add(other, *[b"x"] * 10)).packet_ids
            await caller.release(other, *ids[:5])
            assert store.statistics.stored == 110
            await caller.remove(other, *ids[:3], 40_000)
            await caller.add(group, *[b"x"] * 20)
            await caller.add(group, b"late", expires_at=1)
            assert store.statistics.stored == 127
            await caller.move(group, other, 8)
            assert store.statistics.stored == 127
            monkeypatch.setattr(QueueTables, "end", refuse)
            refused = await result_of(store.add, [Addition(one, caller.pack([b"x"]))])
            assert isinstance(refused[0], StoreError)
            monkeypatch.undo()
            await caller.remove_all(one)
            assert store.statistics.stored == 27
        await look()
        # Of a store that does not have the number: it is counted once.
        environment = LmdbStore(tmp_path / "device")
        queues = environment.space("queues").database
        with environment.begin(write=True) as transaction:
            assert transaction.delete(lmdb_queues.STORED, db=queues)
        environment.close()
        await look()

    async def look() -> None:
        async with open_store() as store:
            await until(lambda: store.statistics.stored is not None)
            assert (store.statistics.stored, store.statistics.commits) == (27, 0)

    def refuse(self: QueueTables) -> None:
        raise lmdb.DiskError("No space left")

    run(test())


def test_a_failing_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmdb_device, "PROBE_SECONDS", 0.05)

    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store)
            pack = caller.pack([b"a"])
            await caller.add(CLIENT, b"before")
            end = lmdb_queues.QueueTables.end

            def fail(self: Any) -> None:
                end(self)
                raise lmdb.DiskError("No space left on device")

            monkeypatch.setattr(lmdb_queues.QueueTables, "end", fail)
            (result,) = await result_of(store.add, [Addition(CLIENT, pack)])
            assert isinstance(result, StoreFull)
            assert "disk is full" in str(store.check())
            monkeypatch.setattr(lmdb_queues.QueueTables, "end", end)
            await until(lambda: store.check() is True)
            assert await caller.values(CLIENT) == [b"before"]
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [2]

    run(test())


def test_who_asks_nothing_of_the_disk_learns_nothing_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading succeeds on a bad disk, and so does removing what is not there."""
    monkeypatch.setattr(lmdb_device, "PROBE_SECONDS", 60.0)

    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store)
            await caller.add(CLIENT, b"before")
            with monkeypatch.context() as bad_disk:
                bad_disk.setattr(lmdb_queues.QueueTables, "end", fail)
                (result,) = await result_of(store.add, [Addition(CLIENT, caller.pack([b"a"]))])
                assert isinstance(result, StoreFull)
            assert await caller.values(CLIENT) == [b"before"]
            await caller.remove(CLIENT, 99)
            assert "disk is full" in str(store.check())
            await caller.add(CLIENT, b"after")
            assert store.check() is True

    def fail(self: Any) -> None:
        raise lmdb.DiskError("No space left on device")

    run(test())


def test_a_wrong_key_of_a_record_harms_nobody_else(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store)
            pack = caller.pack([b"x"])
            pack.append(b"bad", b"short")
            results: list[Any] = []
            store.add([Addition(CLIENT, pack)], results.extend)
            store.add([Addition(Queue("other"), caller.pack([b"x"]))], results.extend)
            await until(lambda: len(results) == 2)
            assert isinstance(results[0], StoreError)
            assert results[1] == Added([1], 0)

    run(test())


def test_a_full_backlog_refuses_at_once(tmp_path: Path) -> None:
    async def test() -> None:
        store = LmdbDeviceStore(tmp_path / "device", DeviceSettings(), backlog_bytes=50_000)
        async with opened(store):
            caller = Caller(store)
            results: list[Any] = []
            for _ in range(100):
                store.add([Addition(CLIENT, caller.pack([b"x" * 1000]))], results.extend)
            await until(lambda: len(results) == 100)
            refused = [result for result in results if isinstance(result, StoreError)]
            assert 30 < len(refused) < 70
            assert all(isinstance(result, StoreFull) for result in refused)
            # Those that came after it fail even if there is room again: they must not be stored before it.
            assert 0 < store.statistics.refused <= len(refused)
            assert len(await caller.values(CLIENT)) == 100 - len(refused)
            assert store.pending_bytes == 0

    run(test())


CRASHER = """
import asyncio, sys
from pathlib import Path
from penstock._ext.record.segment import RecordPack
from penstock.settings.redis import DeviceSettings
from penstock.subscribers.device.store.base import Addition, build_source, client_queue, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.subscribers.device.store.lmdb_rows import QueueTables

async def main():
    store = LmdbDeviceStore(Path(sys.argv[1]), DeviceSettings())
    await store.start()
    for number in range(1_000_000):
        pack = RecordPack()
        pack.append(b"%d" % number, build_source(0, number))
        (added,) = await result_of(store.add, [Addition(client_queue(f"c{number % 3}"), pack)])
        print(number, added.packet_ids[0], flush=True)

asyncio.run(main())
"""


def test_what_was_stored_survives_a_kill(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", CRASHER, str(tmp_path / "device")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(60)]
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    process.wait()
    told = [line.split() for line in lines if line.endswith(b"\n")]

    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store, len(told) - 1)
            stored = {}
            for i in range(3):
                messages = await caller.all(client_queue(f"c{i}"), 1000)
                assert messages == sorted(messages)
                stored |= {int(value): packet_id for packet_id, value in messages}
            assert all(stored[int(number)] == int(packet_id) for number, packet_id in told)
            assert len(stored) <= len(told) + 1
            # Dispatch repeats what it is not sure of.
            last = len(told) - 1
            queue = client_queue(f"c{last % 3}")
            assert (await caller.add(queue, b"again", partition=0)).packet_ids == [stored[last]]

    run(test())


def test_a_busy_loop_does_not_starve_the_store(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened(LmdbDeviceStore(tmp_path / "device", DeviceSettings())) as store:
            caller = Caller(store)
            adding = asyncio.create_task(caller.add(CLIENT, *[b"x"] * 2000))
            deadline = time.monotonic() + 30
            while not adding.done():
                sum(range(20_000))
                await asyncio.sleep(0)
                assert time.monotonic() < deadline

    run(test())
