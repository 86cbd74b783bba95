"""A queue that is being deleted, while others want its name, what it needs fails, or the broker is started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from penstock._ext.hub.connection import Hub
from penstock.core.errors import NotFoundError
from penstock.mqtt.queue_consumers import MqttConsumers
from penstock.settings.queues import DurableQueueSettings
from penstock.storage.log.base import LogUnavailable
from penstock.storage.log.memory import MemoryLog
from penstock.storage.state.base import StoreError
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.queue import state as names
from penstock.subscribers.queue.definitions import (
    Ending,
    QueueDefinition,
    QueueError,
    decode_ending,
    encode,
    encode_ending,
)
from penstock.subscribers.queue.manager import QueueManager
from tests.support.machine.waiting import until
from tests.support.worlds.queue_world import QueueWorld, in_world, record_of

ORDERS = QueueDefinition(name="orders")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.queue.deletions.AGAIN_SECONDS", 0.05)


async def away(_: str) -> None:
    raise LogUnavailable("away")


async def stored_definitions(world: QueueWorld) -> dict[str, bytes]:
    return (await world.manager.state.load())[0]


def test_the_name_is_taken_from_the_beginning_of_the_deletion_on() -> None:
    """Who made a queue while the log of the old one was being removed lost it, with its messages, when that was tried
    again."""

    async def work(world: QueueWorld) -> None:
        manager, admin = world.manager, world.log.admin
        await world.fill("orders", ["old"])
        delete, fails = admin.delete, asyncio.Event()

        async def slow(_: str) -> None:
            await fails.wait()
            raise LogUnavailable("away")

        admin.delete = slow  # type: ignore[method-assign] # the fault this is about
        deleting = asyncio.ensure_future(manager.delete("orders"))
        await until(lambda: "orders" not in manager.queues)
        creating = asyncio.ensure_future(manager.create(ORDERS))
        assert manager._find_queue(b"$queue/orders/k", False) is None
        with pytest.raises(Exception, match="still being deleted"):
            await manager.adopt(ORDERS)
        fails.set()
        assert not await deleting
        with pytest.raises(QueueError, match="still being deleted"):
            await creating
        admin.delete = delete  # type: ignore[method-assign]
        await until(lambda: "orders" not in manager.deletions)
        new = await manager.create(ORDERS)
        await new.append(record_of("$queue/orders", b"new"))
        await asyncio.sleep(0.2)  # several times as long as until it would be tried again
        assert new.topic in await admin.list()
        assert decode_ending((await stored_definitions(world))["orders"]) is None

    in_world(work)


def test_who_makes_a_queue_waits_for_the_deletion_of_the_one_before() -> None:
    async def work(world: QueueWorld) -> None:
        manager, admin = world.manager, world.log.admin
        await world.fill("orders", ["old"])
        delete, goes_on = admin.delete, asyncio.Event()

        async def slow(topic: str) -> None:
            await goes_on.wait()
            await delete(topic)

        admin.delete = slow  # type: ignore[method-assign]
        deleting = asyncio.ensure_future(manager.delete("orders"))
        await until(lambda: "orders" not in manager.queues)
        creating = asyncio.ensure_future(manager.create(ORDERS))
        await asyncio.sleep(0)
        goes_on.set()
        assert await deleting
        new = await creating
        await new.make()
        assert (new.depth, list(manager.queues)) == (0, ["orders"])

    in_world(work)


def test_a_store_that_fails_puts_the_deletion_off_and_not_the_name_out_of_use() -> None:
    async def work(world: QueueWorld) -> None:
        manager = world.manager
        await world.fill("orders", ["old"])
        store, is_refused = world.store.store, asyncio.Event()

        def refuse(changes: Any, on_done: Any = None) -> None:
            if any(change[0] == names.DEFINITIONS and change[2] is None for change in changes):
                is_refused.set()
                on_done(StoreError("Kafka is slow"))
            else:
                store(changes, on_done)

        world.store.store = refuse  # type: ignore[method-assign] # the fault this is about
        told = await world.control.delete("orders")
        assert (is_refused.is_set(), told["deleted"]) == (True, False)
        is_refused.clear()
        await is_refused.wait()
        world.store.store = store  # type: ignore[method-assign]
        await until(lambda: "orders" not in manager.deletions)
        assert "orders" not in await stored_definitions(world)
        await manager.create(ORDERS)

    in_world(work)


def test_an_operator_is_told_that_it_is_not_done_yet() -> None:
    async def work(world: QueueWorld) -> None:
        await world.fill("orders", ["old"])
        await world.fill("letters", ["old"])
        assert (await world.control.delete("letters"))["deleted"]
        delete = world.log.admin.delete
        world.log.admin.delete = away  # type: ignore[method-assign]
        assert not (await world.control.delete("orders"))["deleted"]
        with pytest.raises(NotFoundError, match="is being deleted"):
            await world.control.show("orders")
        world.log.admin.delete = delete  # type: ignore[method-assign]
        await until(lambda: "orders" not in world.manager.deletions)
        with pytest.raises(NotFoundError, match="there is no queue"):
            await world.control.show("orders")

    in_world(work)


def test_publishers_who_were_refused_meanwhile_are_not_refused_for_ever() -> None:
    """A connection remembers who gets what it publishes until the bindings change."""

    async def work(world: QueueWorld) -> None:
        await world.fill("orders", ["old"])
        delete = world.log.admin.delete
        world.log.admin.delete = away  # type: ignore[method-assign]
        await world.control.delete("orders")
        before = world.hub.queues.bindings.version
        world.log.admin.delete = delete  # type: ignore[method-assign]
        await until(lambda: "orders" not in world.manager.deletions)
        assert world.hub.queues.bindings.version > before

    in_world(work)


@asynccontextmanager
async def started(
    log: MemoryLog, store: MemoryStateStore, *definitions: QueueDefinition
) -> AsyncIterator[QueueManager]:
    loop = asyncio.get_running_loop()
    settings = DurableQueueSettings()
    hub = Hub(loop)
    manager = QueueManager(
        hub,
        log,
        MemoryLog(),
        store,
        loop,
        settings=settings,
        definitions=definitions,
        lasting=MqttConsumers(hub.trie),
    )
    await manager.start()
    try:
        yield manager
    finally:
        await manager.close()


@pytest.mark.parametrize("is_configured", [False, True])
def test_a_deletion_goes_on_after_a_restart(is_configured: bool) -> None:
    """Else the queue would be back, with all messages."""

    async def work() -> None:
        log, store = MemoryLog(), MemoryStateStore()
        await log.start()
        async with started(log, store) as manager:
            queue = await manager.create(ORDERS)
            await queue.append(record_of("$queue/orders", b"old"))
            queue.group("workers", "")
            delete = log.admin.delete
            log.admin.delete = away  # type: ignore[method-assign]
            assert not await manager.delete("orders")
        wanted = [ORDERS] if is_configured else []
        async with started(log, store, *wanted) as manager:  # and it cannot be done yet
            assert list(manager.queues) == []
            log.admin.delete = delete  # type: ignore[method-assign]
            await until(lambda: "orders" not in manager.deletions)
            if is_configured:
                await until(lambda: "orders" in manager.queues)
                assert manager.queues["orders"].depth == 0
        async with started(log, store, *wanted) as manager:
            assert list(manager.queues) == [queue.name for queue in wanted]
            assert [topic for topic in await log.admin.list() if "orders" in topic] == []
            assert (await manager.state.load())[1] == {}

    asyncio.run(work())


def test_a_deletion_that_another_broker_has_begun_is_its_own() -> None:
    """It does not know when that one is done and there is a new queue of this name."""

    async def work() -> None:
        log, store = MemoryLog(), MemoryStateStore()
        await log.start()
        store.store([(names.DEFINITIONS, b"orders", encode_ending(ORDERS, "other"))])
        await store.flush()
        async with started(log, store) as manager:
            with pytest.raises(QueueError, match="still being deleted"):
                await manager.create(ORDERS)
            manager.deletions.over_elsewhere("orders")
            await manager.create(ORDERS)

    asyncio.run(work())


def test_a_mark_is_no_part_of_a_definition() -> None:
    assert decode_ending(encode(QueueDefinition(name="deleted_by"))) is None
    assert decode_ending(encode_ending(ORDERS, "a")) == Ending("a", ORDERS)
