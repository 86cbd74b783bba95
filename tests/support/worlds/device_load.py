"""Clients whose messages are stored all the time, whatever happens to the store, and a look at what is there then."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from penstock._ext.record.segment import RecordPack
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    DeviceStore,
    StoreError,
    build_source,
    client_queue,
    result_of,
)
from tests.support.machine.waiting import until


class DeviceLoad:
    """Each client's packs are stored one after the other; one that failed is given again until it is stored."""

    def __init__(self, store: DeviceStore, clients: int = 20, pack: int = 5, name: str = "load") -> None:
        self.store = store
        self.queues = [client_queue(f"{name}-{i}") for i in range(clients)]
        self.stored: list[int] = [0] * clients  # messages of each client that are known to be stored
        self.ids: list[list[int]] = [[] for _ in range(clients)]
        self.errors: Counter[str] = Counter()
        self.is_stopped = False
        self._pack = pack

    async def run(self, packs: int = 1_000_000) -> None:
        await asyncio.gather(*(self._one(client, packs) for client in range(len(self.queues))))

    async def until(self, total: int, seconds: float = 60.0) -> None:
        await until(lambda: sum(self.stored) >= total, seconds)

    async def _one(self, client: int, packs: int) -> None:
        for number in range(packs):
            if self.is_stopped:
                return
            pack = RecordPack()
            for i in range(number * self._pack, (number + 1) * self._pack):
                pack.append(b"%d %d" % (client, i), build_source(client % 3, i * len(self.queues) + client))
            while True:
                (result,) = await result_of(self.store.add, [Addition(self.queues[client], pack)])
                if isinstance(result, Added):
                    break
                assert isinstance(result, StoreError)
                self.errors[type(result).__name__] += 1
                await asyncio.sleep(0.05)
            self.stored[client] += self._pack
            self.ids[client] += result.packet_ids

    async def assert_all_there_once_and_in_order(self) -> None:
        for client, queue in enumerate(self.queues):
            expected = [b"%d %d" % (client, i) for i in range(self.stored[client])]
            ids, values = await read_all(self.store, queue)
            assert values == expected, f"{queue}: {len(values)} stored, {len(expected)} expected"
            assert ids == self.ids[client]
            assert len(set(ids)) == len(ids)


async def read_all(store: DeviceStore, queue: Any) -> tuple[list[int], list[bytes]]:
    ids: list[int] = []
    values: list[bytes] = []
    after, is_last = -1, False
    while not is_last:
        page = await result_of(store.fetch, queue, after, 500)
        ids += page.packet_ids
        values += page.values
        after, is_last = page.next_score, page.is_last
    return ids, values
