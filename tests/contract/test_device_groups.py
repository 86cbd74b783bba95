"""Every store of DEVICE queues gives what is stored for a share group to one member, as that member subscribed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.subscribers.device.store.base import Moved, client_queue, group_queue, result_of
from tests.contract.device_providers import PROVIDERS, Caller, OpenStore, run
from tests.contract.test_device_store import now_ms

GROUP, MEMBER = group_queue("g", "t"), client_queue("member")


@pytest.fixture(params=PROVIDERS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return PROVIDERS[request.param](tmp_path)


def test_expired_messages_do_not_hide_those_behind_them(open_store: OpenStore) -> None:
    """More of them than are moved at once; they are gone, and counted."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(GROUP, *[b"short"] * 60, expires_at=now_ms() + 200)
            await caller.add(GROUP, *(b"%d" % number for number in range(10)))
            await asyncio.sleep(0.3)
            total = Moved(0)
            while any(moved := await result_of(store.move, GROUP, MEMBER, b"", 5)):
                total = Moved(total.messages + moved.messages, total.expired + moved.expired)
            assert total == Moved(10, 60)
            assert await caller.values(MEMBER) == [b"%d" % number for number in range(10)]
            assert (await caller.describe(GROUP))[0] == 0

    run(test())


def test_what_gives_way_in_a_full_queue_is_counted(open_store: OpenStore) -> None:
    """What comes from the group is newer than what the member has."""

    async def test() -> None:
        async with open_store(messages_limit=5) as store:
            caller = Caller(store)
            await caller.add(MEMBER, b"1", b"2", b"3", b"4")
            await caller.add(GROUP, b"5", b"6", b"7")
            assert await result_of(store.move, GROUP, MEMBER, b"", 2) == Moved(2, 0, 1)
            assert await result_of(store.move, GROUP, MEMBER, b"", 2) == Moved(1, 0, 1)
            assert await result_of(store.move, GROUP, MEMBER, b"", 2) == Moved(0)
            assert await caller.values(MEMBER) == [b"3", b"4", b"5", b"6", b"7"]
            assert store.statistics.trimmed == 2

    run(test())


def test_how_the_member_subscribed_is_put_behind_each_value(open_store: OpenStore) -> None:
    async def test() -> None:
        other = client_queue("other")
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(GROUP, b"a", b"b", b"c")
            assert await caller.move(GROUP, MEMBER, 2, b"}1\0") == 2
            assert await caller.move(GROUP, other, 2, b"2") == 1
            assert await caller.values(MEMBER) == [b"a}1\0", b"b}1\0"]
            assert await caller.values(other) == [b"c2"]

    run(test())


def test_what_came_through_the_group_is_known_to_its_member(open_store: OpenStore) -> None:
    """Dispatched again, now to the member itself: it has it already. Its copy by its own subscription is another."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            pack = caller.pack([b"a", b"b"], via=77)
            await caller.add_pack(GROUP, pack)
            assert await caller.move(GROUP, MEMBER) == 2
            await caller.remove(MEMBER, 1)
            assert (await caller.add_pack(MEMBER, pack)).packet_ids == [0, 2]
            caller.next_offset = 0
            assert (await caller.add(MEMBER, b"own")).packet_ids == [3]

    run(test())


def test_some_messages_of_a_group_are_moved(open_store: OpenStore) -> None:
    """In order, once, and none that has gone meanwhile, though another message has its packet id."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(GROUP, b"a", b"b", b"c", b"d", b"e")
            page = await result_of(store.fetch, GROUP, -1, 10)
            placed = list(zip(page.packet_ids, page.scores, strict=True))
            chosen = [placed[1], placed[3]]
            assert await result_of(store.move_some, GROUP, MEMBER, b"+", chosen) == Moved(2)
            assert await caller.values(MEMBER) == [b"b+", b"d+"]
            assert await caller.values(GROUP) == [b"a", b"c", b"e"]
            assert await result_of(store.move_some, GROUP, MEMBER, b"+", chosen) == Moved(0)
            assert await result_of(store.move_some, GROUP, MEMBER, b"", [(placed[0][0], placed[4][1] + 1)]) == Moved(0)
            assert await result_of(store.move_some, GROUP, MEMBER, b"", []) == Moved(0)
            assert await caller.values(GROUP) == [b"a", b"c", b"e"]
            assert await result_of(store.move, GROUP, MEMBER, b"", 10) == Moved(3)
            assert await caller.values(MEMBER) == [b"b+", b"d+", b"a", b"c", b"e"]

    run(test())
