"""Queues that other brokers made: followed through failures of the log, and past what cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace

from penstock._ext.record.segment import RecordPack
from penstock.services.node import ClusterNode
from penstock.storage.log.base import LogError
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.queue.definitions import QueueDefinition, encode, encode_ending
from penstock.subscribers.queue.following import Follower
from penstock.subscribers.queue.state import DEFINITIONS
from tests.support.machine.waiting import until
from tests.support.worlds.service_settings import services

SETTINGS = services({"changes.processing_strategy": {"retries": 2, "pause_between_retries": 0.01}})


class Manager:
    """Stands for the manager of all queues; following one fails as often as it is told."""

    def __init__(self) -> None:
        self.queues: dict[str, SimpleNamespace] = {}
        self.failures: dict[str, int] = {}
        self.ending: dict[str, str] = {}
        self.deletions = SimpleNamespace(
            begun_elsewhere=self.ending.__setitem__, over_elsewhere=lambda name: self.ending.pop(name, None)
        )

    def _fail(self, name: str) -> None:
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            raise LogError("the log is away")

    async def adopt(self, definition: QueueDefinition) -> None:
        known = SimpleNamespace(name=definition.name, definition=definition, groups={}, is_current=False)
        self.queues.setdefault(definition.name, known)
        self._fail(definition.name)

    async def forget(self, queue: SimpleNamespace) -> None:
        self._fail(queue.name)
        del self.queues[queue.name]

    def apply(self, queue: SimpleNamespace, definition: QueueDefinition) -> None:
        queue.definition = definition


class World:
    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.manager = Manager()
        self.node = ClusterNode(log, SETTINGS, "a", asyncio.get_running_loop())
        self.follower = Follower(self.manager, log, self.node, "")  # type: ignore[arg-type]

    async def write(self, name: str, value: bytes | None) -> None:
        """Another node does."""
        await self.write_together({name: value})

    async def write_together(self, values: Mapping[str, bytes | None]) -> None:
        """They are read, and followed, together."""
        pack = RecordPack()
        for name, value in values.items():
            pack.append(value, name.encode())
        await self.log.producer.send(DEFINITIONS, 0, pack)

    def count(self, what: str) -> int:
        return self.node.counters()[f"pack_{what}_queue-definitions"]


def in_world(work: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        log = MemoryLog()
        await log.start()
        world = World(log)
        await world.follower.run()
        try:
            await work(world)
        finally:
            await world.follower.stop()
            await log.close()

    asyncio.run(run())


def test_a_queue_is_followed_though_the_log_fails() -> None:
    async def work(world: World) -> None:
        world.manager.failures = {"orders": 2}
        await world.write("orders", encode(QueueDefinition(name="orders")))
        await until(lambda: world.count("successful") == 1)
        assert list(world.manager.queues) == ["orders"]
        assert (world.count("retried_failed"), world.count("failed")) == (2, 0)
        await world.write("orders", encode(QueueDefinition(name="orders", paused=True)))
        await until(lambda: world.manager.queues["orders"].definition.paused)
        world.manager.failures = {"orders": 1}
        await world.write("orders", None)
        await until(lambda: not world.manager.queues)

    in_world(work)


def test_what_cannot_be_read_or_followed_stops_no_other() -> None:
    async def work(world: World) -> None:
        world.manager.failures = {"never": 100}
        strange = b"\x00 of a newer broker"
        never, orders = (encode(QueueDefinition(name=name)) for name in ("never", "orders"))
        await world.write_together({"strange": strange, "never": never, "orders": orders})
        await until(lambda: world.count("failed") == 1)
        assert "orders" in world.manager.queues
        assert world.count("undecodable") == 1
        await world.write("more", encode(QueueDefinition(name="more")))
        await until(lambda: "more" in world.manager.queues)

    in_world(work)


def test_what_this_node_wrote_is_passed_over() -> None:
    async def work(world: World) -> None:
        value = encode(QueueDefinition(name="mine"))
        world.follower.wrote("mine", value)
        await world.write("mine", encode(QueueDefinition(name="mine", paused=True)))
        await world.write("mine", value)
        await world.write("last", encode(QueueDefinition(name="last")))
        await until(lambda: "last" in world.manager.queues)
        assert "mine" not in world.manager.queues

    in_world(work)


def test_a_queue_that_another_node_is_deleting_is_there_no_more_and_its_name_not_free() -> None:
    async def work(world: World) -> None:
        manager, orders = world.manager, QueueDefinition(name="orders")
        await world.write("orders", encode(orders))
        await until(lambda: "orders" in manager.queues)
        await world.write("orders", encode_ending(orders, "b"))
        await until(lambda: not manager.queues)
        assert manager.ending == {"orders": "b"}
        await world.write("orders", None)
        await until(lambda: not manager.ending)

    in_world(work)
