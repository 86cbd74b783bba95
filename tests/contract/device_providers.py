"""The providers that the contract suite of the queues of DEVICE clients runs against, and help to call them."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from penstock._ext.device.rows import chunk_count
from penstock._ext.record.segment import RecordPack
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.storage.state.lmdb_kv import LmdbStore
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    DeviceStore,
    Page,
    Queue,
    build_source,
    client_queue,
    result_of,
)
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.support.servers.redis_server import shared_redis, shared_redis_cluster

# Opens the store with these settings; opened again it has what it had.
OpenStore = Callable[..., AbstractAsyncContextManager[DeviceStore]]


def run(test: Coroutine[Any, Any, None], seconds: float = 60) -> None:
    uvloop.run(asyncio.wait_for(test, seconds))


@asynccontextmanager
async def opened(store: DeviceStore) -> AsyncIterator[DeviceStore]:
    await store.start()
    try:
        assert store.check() is True
        yield store
    finally:
        await store.close()


def lmdb_provider(directory: Path) -> OpenStore:
    @asynccontextmanager
    async def open_one(**device: Any) -> AsyncIterator[DeviceStore]:
        path = directory / "device"
        async with opened(LmdbDeviceStore(path, DeviceSettings(**device))) as store:
            yield store
        # Whatever was done to it, it knows how many messages it has, and how large they are.
        assert (store.statistics.stored, store.statistics.stored_bytes) == count_in_lmdb(path)

    return open_one


def count_in_lmdb(path: Path) -> tuple[int, int]:
    """The messages of all queues and their bytes, looked at one by one."""
    store = LmdbStore(path)
    chunks = store.space("chunks").database
    with store.begin(write=False) as transaction:
        found = [(chunk_count(chunk), len(chunk)) for _, chunk in transaction.cursor(db=chunks)]
    store.close()
    return sum(count for count, _ in found), sum(size for _, size in found)


# Compares what is known of the bytes of each queue, and of all, with the messages themselves.
COUNT_IN_REDIS = """
local total, wrong = 0, {}
for _, state in ipairs(redis.call('KEYS', ARGV[1] .. '*_state')) do
  local counters = redis.call('HGET', state, 'n')
  if #counters > 35 then
    local bytes, counted, look_at = struct.unpack('<i8i8i8', counters, 35)
    local messages, stored, is_exact = string.sub(state, 1, -6) .. 'messages', 0, true
    for _, key in ipairs(redis.call('ZRANGE', messages, 0, -1)) do
      stored = stored + redis.call('STRLEN', key)
      is_exact = is_exact and redis.call('EXISTS', key) == 1
    end
    is_exact = is_exact and look_at > 0 and counted == redis.call('ZCARD', messages)
    if bytes < stored or is_exact and bytes ~= stored then
      wrong[#wrong + 1] = state .. ' says ' .. bytes .. ' and has ' .. stored
    end
    total = total + bytes
  end
end
local known = tonumber(redis.call('GET', ARGV[1] .. 'stored_bytes') or 0)
if known ~= total then
  wrong[#wrong + 1] = 'the total is ' .. known .. ' and not ' .. total
end
return wrong
"""


def redis_provider(_: Path) -> OpenStore:
    settings = RedisSettings(addresses=shared_redis().address, prefix=f"{uuid.uuid4().hex[:8]}:")

    @asynccontextmanager
    async def open_one(**device: Any) -> AsyncIterator[DeviceStore]:
        async with opened(RedisDeviceStore(settings, DeviceSettings(**device))) as store:
            yield store
        assert shared_redis().cli("EVAL", COUNT_IN_REDIS, "0", settings.prefix).strip() == ""

    return open_one


def cluster_provider(_: Path) -> OpenStore:
    prefix = f"{uuid.uuid4().hex[:8]}:"
    settings = RedisSettings(mode="cluster", addresses=shared_redis_cluster().addresses, prefix=prefix)
    return lambda **device: opened(RedisDeviceStore(settings, DeviceSettings(**device)))


PROVIDERS = {"lmdb": lmdb_provider, "redis": redis_provider, "redis-cluster": cluster_provider}


class Caller:
    """The calls of a store, with offsets that nobody used before and results that are not errors."""

    def __init__(self, store: DeviceStore, next_offset: int = 0) -> None:
        self.store = store
        self.next_offset = next_offset

    def pack(self, values: Sequence[bytes | None], **source: Any) -> RecordPack:
        pack = RecordPack()
        for value in values:
            pack.append(value, build_source(source.get("partition", 3), self.next_offset, **_rest(source)))
            self.next_offset += 1
        return pack

    async def add(self, queue: Queue, *values: bytes | None, in_flight: bytes = b"", **source: Any) -> Added:
        return await self.add_pack(queue, self.pack(values, **source), in_flight)

    async def add_pack(self, queue: Queue, pack: RecordPack, in_flight: bytes = b"") -> Added:
        (added,) = await result_of(self.store.add, [Addition(queue, pack, in_flight)])
        assert isinstance(added, Added), added
        return added

    async def page(self, queue: Queue, after_score: int = -1, limit: int = 1000) -> Page:
        page = await result_of(self.store.fetch, queue, after_score, limit)
        assert isinstance(page, Page)
        return page

    async def all(self, queue: Queue, limit: int = 200) -> list[tuple[int, bytes]]:
        """Packet ids and values, page by page."""
        found: list[tuple[int, bytes]] = []
        page = Page([], [], [], -1, False)
        while not page.is_last:
            page = await self.page(queue, page.next_score, limit)
            assert len(page.packet_ids) == len(page.scores) == len(page.values) <= limit
            assert page.scores == sorted(page.scores)
            found += zip(page.packet_ids, page.values, strict=True)
        return found

    async def values(self, queue: Queue) -> list[bytes]:
        return [value for _, value in await self.all(queue)]

    async def remove(self, queue: Queue, *packet_ids: int) -> int:
        (removed,) = await result_of(self.store.remove, [(queue, packet_ids)])
        assert isinstance(removed, int), removed
        return removed

    async def release(self, queue: Queue, *packet_ids: int) -> int:
        (released,) = await result_of(self.store.release, [(queue, packet_ids)])
        assert isinstance(released, int), released
        return released

    async def remove_all(self, queue: Queue) -> int:
        (removed,) = await result_of(self.store.remove_all, [queue])
        assert isinstance(removed, int), removed
        return removed

    async def reserve(self, queue: Queue, count: int, in_flight: bytes = b"") -> list[int]:
        ids: list[int] = await result_of(self.store.reserve, queue, count, in_flight)
        return ids

    async def move(self, group: Queue, member: Queue, limit: int = 100, delivery: bytes = b"") -> int:
        """How many, with those that had expired."""
        return sum(await result_of(self.store.move, group, member, delivery, limit))

    async def describe(self, queue: Queue) -> tuple[int, int]:
        state = await result_of(self.store.describe, queue)
        return (state.messages, state.last_packet_id)


def _rest(source: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in source.items() if name != "partition"}


CLIENT = client_queue("client")
