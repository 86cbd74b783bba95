"""A queue is created or changed when its definition is stored, and not when the store reports an error."""

import asyncio
from collections.abc import Iterable

import pytest

from penstock.storage.state.base import Change, OnStored, StoreError
from penstock.subscribers.queue.definitions import QueueDefinition, QueueError, decode
from penstock.subscribers.queue.state import DEFINITIONS
from tests.support.worlds.queue_world import QueueWorld, in_world

FIVE = {"name": "orders", "limits.max_depth": "5"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.queue.writing.AGAIN_SECONDS", 0.01)


class Unreliable:
    """The store of a world: while `is_away` it reports errors. `lands`: it has stored the changes all the same, as a
    Kafka does that answers too late."""

    def __init__(self, world: QueueWorld, *, lands: bool) -> None:
        self._store = world.store.store
        self._lands = lands
        self.is_away = False
        world.store.store = self.store  # type: ignore[method-assign] # the fault this is about

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        changes = list(changes)
        if not self.is_away or not changes:
            self._store(changes, on_done)
            return
        if self._lands:
            self._store(changes, None)
        if on_done is not None:
            asyncio.get_running_loop().call_soon(on_done, StoreError("away"))


async def stored(world: QueueWorld) -> dict[str, QueueDefinition]:
    await world.store.flush()
    found: dict[str, QueueDefinition] = {}

    def note(key: bytes, value: bytes | None) -> None:
        if value is not None:
            found[key.decode()] = decode(value)

    await world.store.load(DEFINITIONS, note)
    return found


async def settled(world: QueueWorld) -> None:
    """Until nothing has to be written again."""
    async with asyncio.timeout(10):
        while world.manager.definitions._unsure:  # noqa: ASYNC110  # nobody tells when it changes
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("lands", [False, True])
def test_a_queue_that_cannot_be_stored_is_not_created(lands: bool):
    async def work(world: QueueWorld) -> None:
        store = Unreliable(world, lands=lands)
        store.is_away = True
        for _ in range(2):
            with pytest.raises(StoreError, match="'orders' was not created"):
                await world.control.create(FIVE)
            assert "orders" not in world.queues
        store.is_away = False
        await settled(world)
        assert "orders" not in await stored(world)
        assert (await world.control.create(FIVE))["definition"]["limits"]["max_depth"] == 5
        assert (await stored(world))["orders"].limits.max_depth == 5

    in_world(work)


@pytest.mark.parametrize("lands", [False, True])
def test_a_retry_counts_whenever_it_comes(lands: bool):
    """Also before what is left of the first attempt is removed."""

    async def work(world: QueueWorld) -> None:
        store = Unreliable(world, lands=lands)
        store.is_away = True
        with pytest.raises(StoreError):
            await world.control.create(FIVE)
        store.is_away = False
        await world.control.create({"name": "orders", "limits.max_depth": "6"})
        await settled(world)
        assert (await stored(world))["orders"].limits.max_depth == 6
        assert world.queues["orders"].definition.limits.max_depth == 6

    in_world(work)


@pytest.mark.parametrize("lands", [False, True])
def test_a_change_that_cannot_be_stored_is_not_made(lands: bool):
    async def work(world: QueueWorld) -> None:
        store = Unreliable(world, lands=lands)
        await world.control.create(FIVE)
        store.is_away = True
        with pytest.raises(StoreError, match="'orders' was not changed"):
            await world.control.update("orders", {"limits.max_depth": "9"})
        with pytest.raises(StoreError, match="'orders' was not changed"):
            await world.control.pause("orders", paused=True)
        definition = world.queues["orders"].definition
        assert (definition.limits.max_depth, definition.paused) == (5, False)
        store.is_away = False
        await settled(world)
        assert (await stored(world))["orders"] == definition

    in_world(work)


def test_a_client_that_uses_the_name_meanwhile():
    """It has the queue; the operator is refused as for any queue that is there."""

    async def work(world: QueueWorld) -> None:
        creating = asyncio.ensure_future(world.manager.create(QueueDefinition(name="orders", type="stream")))
        await asyncio.sleep(0)
        made = world.manager.first_use.make("orders", None)
        assert not isinstance(made, int)
        with pytest.raises(QueueError, match="already"):
            await creating
        await made.make()
        await settled(world)
        assert (await stored(world))["orders"] == made.definition
        assert made.definition.type == "classic"

    in_world(work)
