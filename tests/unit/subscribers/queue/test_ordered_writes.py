"""State of queues that the store refuses for a while: an older value never replaces a newer one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from penstock.storage.state.base import Change, OnStored, StoreError
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.queue.state import GROUP, HEAD, STATE, WINDOW, QueueState, state_key
from tests.support.worlds.queue_world import QueueWorld, in_world

KEY = state_key("orders", "workers", GROUP)
OTHER = state_key("orders", "others", GROUP)


class AnsweringStore(MemoryStateStore):
    """A test answers each write."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[list[Change], OnStored | None]] = []

    def store(self, changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        self.given.append((list(changes), on_done))

    def answer(self, *, fails: bool = False) -> list[Change]:
        changes, on_done = self.given.pop(0)
        if not fails:
            self._apply(changes)
        if on_done is not None:
            on_done(StoreError("the disk is full") if fails else None)
        return changes

    @property
    def state(self) -> dict[bytes, bytes]:
        return self.tables.get(STATE, {})


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.subscribers.queue.ordered_writes.RETRY_SECONDS", 0.01)


def run(work: Callable[[AnsweringStore, QueueState], Awaitable[None]]) -> None:
    async def start() -> None:
        store = AnsweringStore()
        await work(store, QueueState(store, asyncio.get_running_loop()))

    asyncio.run(start())


async def until_given(store: AnsweringStore) -> None:
    for _ in range(500):
        if store.given:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the write was not repeated")


def test_a_failed_write_does_not_replace_a_later_one_that_was_under_way():
    async def work(store: AnsweringStore, state: QueueState) -> None:
        state.store([(STATE, KEY, b"old"), (STATE, OTHER, b"only")])
        state.store([(STATE, KEY, b"new")])
        store.answer(fails=True)
        store.answer()
        await until_given(store)
        assert store.answer() == [(STATE, OTHER, b"only")]
        assert store.state == {KEY: b"new", OTHER: b"only"}

    run(work)


def test_a_later_write_waits_for_the_failed_one_and_replaces_its_values():
    async def work(store: AnsweringStore, state: QueueState) -> None:
        state.store([(STATE, KEY, b"old"), (STATE, OTHER, b"only")])
        store.answer(fails=True)
        state.store([(STATE, KEY, None)])
        await until_given(store)
        state.store([(STATE, OTHER, b"newest")])
        store.answer(fails=True)
        await until_given(store)
        assert set(store.answer()) == {(STATE, KEY, None), (STATE, OTHER, b"newest")}
        assert store.state == {OTHER: b"newest"}
        await asyncio.sleep(0.05)
        assert not store.given

    run(work)


def test_what_is_stored_at_once_is_not_replaced_by_an_older_value():
    """A deleted queue: its groups do not come back."""

    async def work(store: AnsweringStore, state: QueueState) -> None:
        state.store([(STATE, KEY, b"old")])
        store.answer(fails=True)
        removal = asyncio.ensure_future(state.store_now([(STATE, KEY, None)]))
        await asyncio.sleep(0)
        store.answer()
        await removal
        await asyncio.sleep(0.05)
        assert not store.given
        assert store.state == {}

    run(work)


def test_a_repeated_write_has_the_head_last():
    async def work(store: AnsweringStore, state: QueueState) -> None:
        head, window = state_key("orders", "workers", HEAD), state_key("orders", "workers", WINDOW, 3)
        state.store([(STATE, window, b"1"), (STATE, head, b"2")])
        store.answer(fails=True)
        state.store([(STATE, window, b"3")])
        await until_given(store)
        assert store.answer() == [(STATE, window, b"3"), (STATE, head, b"2")]

    run(work)


def test_a_group_hears_of_a_later_write_only_when_the_earlier_one_is_stored():
    """It sends what was given to consumers up to then: that has to be durable."""

    async def work(world: QueueWorld) -> None:
        queue = await world.fill("orders", ["a", "b"])
        group = await world.join(queue, "workers")
        store, heard = AnsweringStore(), []
        state = QueueState(store, asyncio.get_running_loop())

        class Heard:
            """The group, which tells the test what it hears."""

            def __getattr__(self, name: str) -> Any:
                return getattr(group.core, name)

            def stored(self, mark: int) -> None:
                heard.append(mark)

        core: Any = Heard()
        core.reason_changes = {0: "nacked"}  # only in the first write
        world.claim(group, 1)
        state.save([core])
        world.claim(group, 1)
        state.save([core])
        last = group.core.take_changes()[0] - 1
        store.answer(fails=True)
        store.answer()
        assert heard == []
        await until_given(store)
        store.answer()
        assert heard == [last]

    in_world(work)
