"""A topic for each of many clients: what an idle one costs, and what is left when they come and go."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
import time
from pathlib import Path

import pytest
import uvloop

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Committed, LogError, TopicNotFound, TopicPartition
from penstock.storage.log.embedded import EmbeddedLog, commit_thread
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.lmdb_kv import LmdbStore
from tests.support.machine.waiting import until


def pack_of(*values: bytes) -> RecordPack:
    pack = RecordPack()
    pack.extend(values)
    return pack


async def started(directory: Path) -> tuple[EmbeddedLog, LmdbStore]:
    store = LmdbStore(directory / "state")
    log = EmbeddedLog(directory, store.space("groups"), cache_bytes=65_536)
    await log.start()
    return log, store


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_topics_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, store = await started(tmp_path)
        consumer = log.consumer("group")

        async def live(number: int) -> None:
            topic = f"client-{number}"
            await log.admin.create(topic)
            await consumer.add({TopicPartition(topic, 0): 0})
            await log.producer.send(topic, 0, pack_of(b"%d" % number))
            await consumer.commit({TopicPartition(topic, 0): Committed(1)})
            await consumer.remove([TopicPartition(topic, 0)])
            await log.admin.delete(topic)

        for number in range(0, 100, 50):
            await asyncio.gather(*map(live, range(number, number + 50)))
        gc.collect()
        files, threads, objects = open_files(), threading.active_count(), _count_objects()
        for number in range(100, 1_100, 50):
            await asyncio.gather(*map(live, range(number, number + 50)))
        gc.collect()
        assert open_files() <= files + 2
        assert threading.active_count() <= threads + 2
        assert _count_objects() - objects < 3_000
        assert await log.admin.list() == []
        assert await log.admin.group_offsets("group") == {}
        assert [path.name for path in (tmp_path / "log").iterdir() if path.is_dir()] == []
        await log.close()
        store.close()

    uvloop.run(scenario())


def _count_objects() -> int:
    return len(gc.get_objects())


def test_few_files_are_open_however_many_topics_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_thread, "MOST_OPEN", 20)

    async def scenario() -> None:
        log, store = await started(tmp_path)
        before = open_files()
        topics = [f"client-{number}" for number in range(100)]
        await asyncio.gather(*map(log.admin.create, topics))
        assert open_files() <= before + 2
        for round_number in range(3):
            await asyncio.gather(*(log.producer.send(topic, 0, pack_of(b"%d" % round_number)) for topic in topics))
        assert open_files() <= before + 2 * 20 + 5
        consumer = log.consumer("")
        await consumer.add({TopicPartition(topic, 0): 0 for topic in topics})
        count = 0
        while count < 300:
            count += sum(fetched.pack.count for fetched in await consumer.poll(50, 1.0))
        await log.close()
        store.close()

    uvloop.run(scenario())


def test_a_topic_may_go_while_it_is_written_and_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        log, store = await started(tmp_path)
        await log.admin.create("stays")
        stays, goes = TopicPartition("stays", 0), TopicPartition("goes", 0)
        consumer = log.consumer("")
        await consumer.add({stays: 0})
        results: list[object] = []
        for _ in range(10):
            await log.admin.create("goes")
            await consumer.add({goes: 0})
            for _ in range(20):
                log.producer.append("goes", 0, pack_of(b"x" * 1_000), results.append)
                log.producer.append("stays", 0, pack_of(b"y"), results.append)
            await asyncio.sleep(0)
            deleting = asyncio.create_task(log.admin.delete("goes"))
            for _ in range(5):
                log.producer.append("goes", 0, pack_of(b"late"), results.append)
                with contextlib.suppress(TopicNotFound):
                    await consumer.poll(100, 0)
            await consumer.remove([goes])
            await deleting
        await until(lambda: len(results) == 10 * 45)
        assert all(not isinstance(result, LogError) or isinstance(result, TopicNotFound) for result in results)
        read = 0
        await consumer.seek(stays, 0)
        while read < 200:
            fetched = await consumer.poll(100, 1.0)
            assert fetched
            read += sum(each.pack.count for each in fetched)
        assert await log.admin.list() == ["stays"]
        await log.close()
        store.close()

    uvloop.run(scenario())


def test_a_poll_costs_nothing_for_partitions_without_records() -> None:
    async def scenario() -> None:
        log = MemoryLog()
        await log.start()
        await log.admin.create("clients", 5_000)
        consumer = log.consumer("")
        places = [TopicPartition("clients", number) for number in range(5_000)]
        await consumer.add(dict.fromkeys(places, 0))
        assert await consumer.poll(500, 0) == []
        costs = []
        for _ in range(200):
            for place in (places[7], places[2_500], places[4_999]):
                log.producer.append(*place, pack_of(b"busy"))
            await asyncio.sleep(0)
            started_at = time.perf_counter()
            fetched = await consumer.poll(500, 0, 200)
            costs.append(time.perf_counter() - started_at)
            assert sorted(each.partition for each in fetched) == [7, 2_500, 4_999]
        # a walk over all of them would take a millisecond
        assert min(costs) < 0.0002
        await log.close()

    uvloop.run(scenario())
