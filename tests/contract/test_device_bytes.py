"""The store of DEVICE queues is bounded in bytes: for each client, and for all together."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import pytest

from penstock.subscribers.device.store.base import Added, client_queue, group_queue
from tests.contract.device_providers import CLIENT, PROVIDERS, Caller, OpenStore, run

KIB = 1024
OTHER = client_queue("other")
GROUP = group_queue("workers", "jobs/#")


@pytest.fixture(params=PROVIDERS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return PROVIDERS[request.param](tmp_path)


@pytest.fixture(params=[name for name in PROVIDERS if name != "redis-cluster"])
def open_with_total(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """A script in a Redis Cluster sees one slot: there is no total."""
    return PROVIDERS[request.param](tmp_path)


def test_the_oldest_give_way(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            trimmed = 0
            for number in range(30):
                added = await caller.add(CLIENT, b"%02d" % number + bytes(10 * KIB))
                assert added.packet_ids == [number + 1]
                trimmed += added.trimmed
            values = await caller.values(CLIENT)
            assert [int(value[:2]) for value in values] == list(range(30))[-len(values) :]
            assert 7 <= len(values) <= 9
            assert trimmed == 30 - len(values) == store.statistics.trimmed
            # another client has room of its own
            assert (await caller.add(OTHER, bytes(60 * KIB))).trimmed == 0

    run(test())


def test_known_after_a_restart(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            await caller.add(CLIENT, *(bytes(10 * KIB) for _ in range(8)))
        async with open_store(bytes_limit=100 * KIB) as store:
            again = Caller(store, caller.next_offset)
            assert (await again.add(CLIENT, bytes(40 * KIB))).trimmed > 0
            assert sum(map(len, await again.values(CLIENT))) <= 100 * KIB

    run(test())


def test_all_clients_together(open_with_total: OpenStore) -> None:
    """At the limit of all, a client keeps its share by losing its own oldest messages; others lose nothing."""

    async def test() -> None:
        async with open_with_total(total_bytes_limit=200 * KIB) as store:
            caller = Caller(store)
            await caller.add(OTHER, *(bytes(10 * KIB) for _ in range(15)))
            await caller.add(CLIENT, b"old" + bytes(30 * KIB))
            added = await caller.add(CLIENT, b"new" + bytes(30 * KIB))
            assert added == Added([2], 1)
            assert [value[:3] for value in await caller.values(CLIENT)] == [b"new"]
            assert len(await caller.values(OTHER)) == 15
            # one that has nothing stored does not get room from others
            late = client_queue("late")
            assert await caller.add(late, bytes(60 * KIB)) == Added([0], 1)
            await caller.remove(OTHER, *range(1, 11))
            assert await caller.add(late, bytes(60 * KIB)) == Added([1], 0)

    run(test())


def test_more_at_once_than_there_is_room(open_store: OpenStore) -> None:
    """The newest of them are stored."""

    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            added = await caller.add(CLIENT, *(b"%02d" % number + bytes(10 * KIB) for number in range(30)))
            stored = sum(packet_id > 0 for packet_id in added.packet_ids)
            assert 7 <= stored <= 9
            assert added.trimmed == 30 - stored
            assert [int(value[:2]) for value in await caller.values(CLIENT)] == list(range(30 - stored, 30))

    run(test())


def test_any_sequence_of_calls(open_with_total: OpenStore) -> None:
    """Sizes stay exact, and no queue is over its limit; the provider compares the total when the store closes."""
    chance = random.Random(3)

    async def test() -> None:
        async with open_with_total(bytes_limit=50 * KIB, total_bytes_limit=120 * KIB) as store:
            caller = Caller(store)
            queues = [client_queue(name) for name in "abcd"]
            for _ in range(300):
                queue = chance.choice(queues)
                match chance.randrange(10):
                    case 0:
                        await caller.remove_all(queue)
                    case 1 | 2 | 3:
                        ids = [packet_id for packet_id, _ in await caller.all(queue)]
                        await caller.remove(queue, *chance.sample(ids, min(len(ids), 3)))
                    case 4:
                        ids = [packet_id for packet_id, _ in await caller.all(queue)]
                        await caller.release(queue, *ids[:2])
                    case _:
                        sizes = chance.choices([0, 10, 1_000, 5_000, 30_000], k=chance.randrange(1, 5))
                        await caller.add(queue, *map(bytes, sizes))
                stored = [sum(map(len, await caller.values(each))) for each in queues]
                assert max(stored) <= 50 * KIB
                assert sum(stored) <= 120 * KIB

    run(test())


def test_one_larger_than_the_limit(open_store: OpenStore) -> None:
    """It is not stored, and the others stay."""

    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            await caller.add(CLIENT, *(bytes(10 * KIB) for _ in range(5)))
            assert await caller.add(CLIENT, bytes(120 * KIB)) == Added([0], 1)
            assert len(await caller.values(CLIENT)) == 5

    run(test())


def test_room_of_what_has_gone(open_store: OpenStore) -> None:
    """Acknowledged, received, expired and removed messages leave their room to others."""

    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            four = [bytes(20 * KIB)] * 4
            ids = (await caller.add(CLIENT, *four)).packet_ids
            assert await caller.remove(CLIENT, *ids) == 4
            ids = (await caller.add(CLIENT, *four)).packet_ids
            assert await caller.release(CLIENT, *ids) == 4
            assert (await caller.add(CLIENT, *four)).trimmed == 0
            assert len(await caller.values(CLIENT)) == 8
            assert await caller.remove_all(CLIENT) == 8
            expires = int(time.time() * 1000) + 300
            await caller.add(CLIENT, *four, expires_at=expires)
            await asyncio.sleep(0.6)
            assert (await caller.add(CLIENT, b"1" + four[0])).packet_ids != [0]
            assert (await caller.add(CLIENT, b"2" + four[0])).packet_ids != [0]
            assert [value[:1] for value in await caller.values(CLIENT)] == [b"1", b"2"]

    run(test())


def test_groups(open_store: OpenStore) -> None:
    """A group is bounded as a client is, and so is the member that gets its messages."""

    async def test() -> None:
        async with open_store(bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            for number in range(12):
                await caller.add(GROUP, b"%02d" % number + bytes(10 * KIB))
            stored = await caller.values(GROUP)
            assert 7 <= len(stored) <= 9
            assert await caller.move(GROUP, CLIENT) == len(stored)
            assert await caller.values(CLIENT) == stored
            assert await caller.values(GROUP) == []
            for _ in range(2):
                assert (await caller.add(GROUP, *[bytes(40 * KIB)] * 2)).trimmed == 0
                await caller.move(GROUP, CLIENT)
            assert sum(map(len, await caller.values(CLIENT))) <= 100 * KIB

    run(test())


def test_trimmed_by_count(open_store: OpenStore) -> None:
    """Messages that gave way to others because of their number leave their bytes."""

    async def test() -> None:
        async with open_store(messages_limit=3, bytes_limit=100 * KIB) as store:
            caller = Caller(store)
            for _ in range(20):
                await caller.add(CLIENT, bytes(20 * KIB))
            assert len(await caller.values(CLIENT)) == 3
            assert (await caller.add(CLIENT, bytes(50 * KIB))).trimmed == 1

    run(test())


def test_a_limit_that_comes_later(open_store: OpenStore) -> None:
    """What was stored without limits is counted when there are some."""

    async def test() -> None:
        async with open_store(bytes_limit=0, total_bytes_limit=0) as store:
            caller = Caller(store)
            await caller.add(CLIENT, *(b"%02d" % number + bytes(10 * KIB) for number in range(30)))
            await caller.add(OTHER, b"single" + bytes(90 * KIB))
        async with open_store(bytes_limit=100 * KIB) as store:
            again = Caller(store, caller.next_offset)
            assert (await again.add(OTHER, bytes(20 * KIB))).trimmed == 1
            await again.add(CLIENT, b"30" + bytes(10 * KIB))
            values = await again.values(CLIENT)
            assert 7 <= len(values) <= 9
            assert [int(value[:2]) for value in values] == list(range(31))[-len(values) :]

    run(test())
