"""Random updates of the partitions of several nodes: every message is handled, in order, and no partition runs twice.

The nodes of one process share a log. Each step sends messages, gives partitions to nodes (some to none) and lets a
little time pass; the oracle only knows what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock._ext.record.segment import RecordPack
from penstock.services.consumers import ConsumerManager, ConsumerOptions
from penstock.services.discovery import SingleNode
from penstock.services.model import TopicPartitionInfo
from penstock.storage.log.base import Fetched
from penstock.storage.log.memory import MemoryLog
from tests.support.machine.waiting import until

PARTITIONS, NODES = 3, 2
INFOS = [TopicPartitionInfo("tb_core", partition=i) for i in range(PARTITIONS)]
owners = st.lists(st.none() | st.integers(0, NODES - 1), min_size=PARTITIONS, max_size=PARTITIONS)
# who gets which partition, how many messages go to which, how many packs fail, how many milliseconds pass
step = st.tuples(owners, st.integers(0, PARTITIONS - 1), st.integers(1, 8), st.integers(0, 1), st.integers(0, 5))
steps = st.lists(step, min_size=1, max_size=12)


class OneAtATime(SingleNode):
    """Claims between the nodes of this process, as the cluster's are between processes."""

    def __init__(self, locks: dict[str, asyncio.Lock]) -> None:
        self.locks = locks
        self.held: set[str] = set()

    async def acquire(self, names: Sequence[str]) -> None:
        for name in sorted(names):
            await self.locks.setdefault(name, asyncio.Lock()).acquire()
            self.held.add(name)

    async def release(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.held:
                self.held.discard(name)
                self.locks[name].release()

    def holds(self, names: Sequence[str]) -> bool:
        return self.held.issuperset(names)


class World:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.sent: list[list[bytes]] = [[] for _ in INFOS]
        self.handled: list[list[bytes]] = [[] for _ in INFOS]
        self.running: set[int] = set()
        self.run_twice: set[int] = set()
        self.failures = 0

    async def handle(self, packs: Sequence[Fetched]) -> None:
        numbers = {int(fetched.topic.rpartition(".")[2]) for fetched in packs}
        self.run_twice |= numbers & self.running
        self.running |= numbers
        try:
            await asyncio.sleep(0.002)
            if self.failures:
                self.failures -= 1
                raise RuntimeError("a handler's bug")
            for fetched in packs:
                number = int(fetched.topic.rpartition(".")[2])
                self.handled[number] += [record.value for record in fetched.pack]
        finally:
            self.running -= numbers

    def is_done(self) -> bool:
        return all(len(set(done)) == len(sent) for done, sent in zip(self.handled, self.sent, strict=True))

    async def send(self, number: int, count: int) -> None:
        pack = RecordPack()
        for _ in range(count):
            value = b"%d" % len(self.sent[number])
            self.sent[number].append(value)
            pack.append(value, b"key")
        await self.log.producer.send(INFOS[number].full_topic_name, 0, pack)


async def play(script: list[tuple], is_per_partition: bool) -> World:
    world = World()
    await world.log.start()
    for info in INFOS:
        await world.log.admin.create(info.full_topic_name)
    options = ConsumerOptions(is_per_partition, max_records=2, poll_seconds=0.05, retry_seconds=0.001, stop_seconds=5)
    locks: dict[str, asyncio.Lock] = {}
    managers = [
        ConsumerManager(
            world.log,
            lambda info: f"g{info.partition}" if info else "g",
            world.handle,
            options,
            claims=OneAtATime(locks),
        )
        for _ in range(NODES)
    ]
    for given_to, number, count, failures, milliseconds in script:
        await world.send(number, count)
        world.failures = failures
        for node, manager in enumerate(managers):
            manager.update(info for info, owner in zip(INFOS, given_to, strict=True) if owner == node)
        await asyncio.sleep(milliseconds / 1_000)
    # In the end the first node has everything, and all of it gets done.
    managers[1].update([])
    managers[0].update(INFOS)
    async with asyncio.timeout(60):
        await asyncio.gather(*(manager.settled() for manager in managers))
    await until(world.is_done, seconds=30)
    for manager in managers:
        await manager.stop()
    await world.log.close()
    return world


@pytest.mark.parametrize("is_per_partition", [True, False], ids=["per-partition", "shared"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(script=steps)
def test_nothing_is_lost_and_nothing_runs_twice(is_per_partition: bool, script: list[tuple]) -> None:
    world = asyncio.run(play(script, is_per_partition))
    assert not world.run_twice
    # A failure comes before anything is noted and a stop waits, so each message is noted once, and in order.
    assert world.handled == world.sent
