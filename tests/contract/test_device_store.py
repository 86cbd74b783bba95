"""Every store of DEVICE queues keeps messages in order under packet ids of their own, once, until they are taken."""

from __future__ import annotations

import asyncio
import random
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.subscribers.device.store.base import (
    Added,
    Addition,
    Queue,
    StoreError,
    StoreFull,
    build_source,
    client_queue,
    group_queue,
    result_of,
)
from tests.contract.device_providers import CLIENT, PROVIDERS, Caller, OpenStore, run


@pytest.fixture(params=PROVIDERS)
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return PROVIDERS[request.param](tmp_path)


def now_ms() -> int:
    return int(time.time() * 1000)


def in_flight(*packet_ids: int) -> bytes:
    return array("H", packet_ids).tobytes()


def test_messages_come_back_in_order_and_in_pages(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            first = await caller.add(CLIENT, b"a", b"b")
            second = await caller.add(CLIENT, b"c", b"\0\xff" * 5000)
            assert (first, second) == (Added([1, 2], 0), Added([3, 4], 0))
            page = await caller.page(CLIENT, -1, 3)
            assert (page.packet_ids, page.values, page.is_last) == ([1, 2, 3], [b"a", b"b", b"c"], False)
            page = await caller.page(CLIENT, page.next_score, 3)
            assert (page.packet_ids, page.values, page.is_last) == ([4], [b"\0\xff" * 5000], True)
            assert await caller.describe(CLIENT) == (4, 4)

    run(test())


def test_an_unknown_queue_is_empty(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            queue = client_queue("nobody")
            assert (await caller.all(queue), await caller.describe(queue)) == ([], (0, 0))
            assert (await caller.remove(queue, 1), await caller.release(queue, 1)) == (0, 0)
            assert (await caller.remove_all(queue), await caller.move(group_queue("g", "t"), queue)) == (0, 0)
            assert await result_of(store.add, []) == []
            assert await result_of(store.remove, []) == []
            assert await caller.remove(queue) == 0

    run(test())


def test_everything_survives_reopening(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            pack = caller.pack([b"a", b"b", b"c"])
            await caller.add_pack(CLIENT, pack)
            await caller.release(CLIENT, 2)
            await caller.remove(CLIENT, 3)
        async with open_store() as store:
            caller = Caller(store, 100)
            assert await caller.all(CLIENT) == [(1, b"a"), (2, b"")]
            assert await caller.describe(CLIENT) == (2, 3)
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [1, 2, 0]
            assert (await caller.add(CLIENT, b"d")).packet_ids == [4]

    run(test())


def test_packet_ids_start_again_and_scores_do_not(open_store: OpenStore) -> None:
    """65534, 65535, 1 in the order they came (seed 001)."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            assert (await caller.reserve(CLIENT, 65_533))[-1] == 65_533
            assert (await caller.add(CLIENT, b"a", b"b", b"c", b"d")).packet_ids == [65_534, 65_535, 1, 2]
            page = await caller.page(CLIENT)
            assert page.values == [b"a", b"b", b"c", b"d"]
            assert page.scores == [page.scores[0] + i for i in range(4)]

    run(test())


def test_a_packet_id_that_is_stored_is_not_given_again(open_store: OpenStore) -> None:
    """Defect 7 of the original: the counter comes round while a message is still stored, and overwrites it."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            assert (await caller.add(CLIENT, b"old", b"x", b"old too")).packet_ids == [1, 2, 3]
            await caller.remove(CLIENT, 2)
            await caller.reserve(CLIENT, 65_532)
            assert (await caller.add(CLIENT, b"a", b"b", b"c")).packet_ids == [2, 4, 5]
            assert await caller.values(CLIENT) == [b"old", b"old too", b"a", b"b", b"c"]
            await caller.remove(CLIENT, 1, 4)
            await caller.reserve(CLIENT, 65_530)
            assert await caller.reserve(CLIENT, 2) == [1, 4]

    run(test())


def test_a_packet_id_in_flight_is_not_given(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            assert (await caller.add(CLIENT, b"a", b"b", in_flight=in_flight(1, 3))).packet_ids == [2, 4]
            assert await caller.reserve(CLIENT, 3, in_flight(5, 7)) == [6, 8, 9]
            assert (await caller.add(CLIENT, b"c")).packet_ids == [10]

    run(test())


def test_no_packet_id_left(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(CLIENT, b"a")
            everything = in_flight(*range(2, 65_536))
            (result,) = await result_of(store.add, [Addition(CLIENT, caller.pack([b"b"]), everything)])
            assert isinstance(result, StoreFull)
            with pytest.raises(StoreFull):
                await caller.reserve(CLIENT, 1, everything)
            assert await caller.values(CLIENT) == [b"a"]
            assert len((await caller.add(CLIENT, b"c")).packet_ids) == 1

    run(test())


def test_a_message_keeps_the_packet_id_it_was_sent_with(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            ids = await caller.reserve(CLIENT, 10)
            assert (await caller.add(CLIENT, b"sent", packet_id=ids[4])).packet_ids == [5]
            assert (await caller.add(CLIENT, b"new")).packet_ids == [11]
            # What another message has is not overwritten.
            assert (await caller.add(CLIENT, b"clash", packet_id=5)).packet_ids == [12]
            # The counter goes on from one that is further on.
            assert (await caller.add(CLIENT, b"ahead", packet_id=14)).packet_ids == [14]
            assert (await caller.add(CLIENT, b"behind", packet_id=13)).packet_ids == [13]
            assert (await caller.add(CLIENT, b"y", b"z")).packet_ids == [15, 16]
            assert await caller.values(CLIENT) == [b"sent", b"new", b"clash", b"ahead", b"behind", b"y", b"z"]

    run(test())


def test_packet_ids_in_any_order(open_store: OpenStore) -> None:
    """Messages that were sent live are stored under the ids they have: the counter goes on from the furthest."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            asked = [*range(60, 0, -1), 65_535, 1_000, 999, 998]
            for packet_id in asked:
                assert (await caller.add(CLIENT, b"%d" % packet_id, packet_id=packet_id)).packet_ids == [packet_id]
            assert await caller.remove(CLIENT, 3, 2, 1, 40, 61, 65_535, 997) == 5
            assert await caller.release(CLIENT, 60, 999, 40) == 2
        async with open_store() as store:
            caller = Caller(store, 1000)
            left = [one for one in asked if one not in (3, 2, 1, 40, 65_535)]
            expected = [(one, b"" if one in (60, 999) else b"%d" % one) for one in left]
            assert await caller.all(CLIENT, 7) == expected
            assert await caller.describe(CLIENT) == (len(left), 1_000)
            # The counter passes over all that are stored.
            assert (await caller.reserve(CLIENT, 64_535))[-1] == 65_535
            assert (await caller.add(CLIENT, b"a", b"b", b"c", b"d", b"e")).packet_ids == [1, 2, 3, 40, 61]
            assert await caller.remove(CLIENT, *left) == len(left)
            assert await caller.values(CLIENT) == [b"a", b"b", b"c", b"d", b"e"]

    run(test())


def test_adding_again_adds_nothing(open_store: OpenStore) -> None:
    """Defect 10 of the original: a repeated add stores twice."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            pack = caller.pack([b"a", b"b", b"c"])
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [1, 2, 3]
            more = RecordPack()
            for offset, value in enumerate([b"a", b"b", b"c", b"d"]):
                more.append(value, build_source(3, offset))
            assert (await caller.add_pack(CLIENT, more)).packet_ids == [1, 2, 3, 4]
            await caller.remove(CLIENT, 2)
            # It was delivered: it neither comes back, nor is its packet id another message's.
            assert (await caller.add_pack(CLIENT, more)).packet_ids == [1, 0, 3, 4]
            assert await caller.values(CLIENT) == [b"a", b"c", b"d"]
            assert await caller.describe(CLIENT) == (3, 4)

    run(test())


def test_twice_in_one_pack(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            pack = RecordPack()
            for offset in (1, 2, 1):
                pack.append(b"%d" % offset, build_source(0, offset))
            caller = Caller(store)
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [1, 2, 1]
            assert await caller.values(CLIENT) == [b"1", b"2"]

    run(test())


def test_late_messages_are_new_messages(open_store: OpenStore) -> None:
    """Offsets need not grow: a message that could not be stored is stored after those behind it."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            for offset in (5, 2, 9, 1):
                pack = RecordPack()
                pack.append(b"%d" % offset, build_source(0, offset))
                assert (await caller.add_pack(CLIENT, pack)).packet_ids != [0]
            assert await caller.values(CLIENT) == [b"5", b"2", b"9", b"1"]

    run(test())


def test_the_same_offset_from_elsewhere_is_another_message(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            for partition, via in ((0, 0), (1, 0), (-1, 0), (0, 77)):
                pack = RecordPack()
                pack.append(b"%d %d" % (partition, via), build_source(partition, 4, via=via))
                await caller.add_pack(CLIENT, pack)
            assert await caller.values(CLIENT) == [b"0 0", b"1 0", b"-1 0", b"0 77"]
            assert (await caller.add_pack(client_queue("other"), pack)).packet_ids == [1]

    run(test())


def test_a_released_message_is_a_pubrel_in_its_place(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            await caller.add(CLIENT, b"a", b"b", b"c")
            assert await caller.release(CLIENT, 2, 9) == 1
            assert await caller.all(CLIENT) == [(1, b"a"), (2, b""), (3, b"c")]
            assert await caller.remove(CLIENT, 2) == 1
            assert await caller.all(CLIENT) == [(1, b"a"), (3, b"c")]

    run(test())


def test_a_pubrel_can_be_stored(open_store: OpenStore) -> None:
    """Of a message that was sent, and received, without ever being stored."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            assert (await caller.add(CLIENT, None, packet_id=7)).packet_ids == [7]
            assert (await caller.add(CLIENT, b"a", None, b"b")).packet_ids == [8, 9, 10]
            assert await caller.all(CLIENT) == [(7, b""), (8, b"a"), (9, b""), (10, b"b")]

    run(test())


def test_expired_messages_are_never_stored_and_never_seen(open_store: OpenStore) -> None:
    """Defects 8 and 9 of the original: expiry 0 and over 31 bits, and a PUBREL that lives for ever."""

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            now = now_ms()
            pack = RecordPack()
            expiries = (now - 1, now + 1500, now + 1500, 0, now + 0xFFFFFFFF * 1000, now + 0x80000000 * 1000)
            for offset, expires_at in enumerate(expiries):
                pack.append(b"%d" % offset, build_source(0, offset, expires_at))
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [0, 1, 2, 3, 4, 5]
            assert await caller.release(CLIENT, 2) == 1
            assert await caller.values(CLIENT) == [b"1", b"", b"3", b"4", b"5"]
            await asyncio.sleep((now + 1550 - now_ms()) / 1000)
            page = await caller.page(CLIENT, -1, 2)
            assert page.values == [b"3", b"4"]
            assert page.expired == 2
            assert await caller.values(CLIENT) == [b"3", b"4", b"5"]
            assert await caller.describe(CLIENT) == (3, 5)

    run(test())


def test_the_default_expiry(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store(messages_ttl=1) as store:
            caller = Caller(store)
            await caller.add(CLIENT, b"short")
            await caller.add(CLIENT, b"own", expires_at=now_ms() + 60_000)
            await asyncio.sleep(1.1)
            assert await caller.values(CLIENT) == [b"own"]

    run(test())


def test_the_oldest_give_way(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store(messages_limit=5) as store:
            caller = Caller(store)
            assert (await caller.add(CLIENT, b"1", b"2", b"3")).trimmed == 0
            assert await caller.add(CLIENT, b"4", b"5", b"6", b"7") == Added([4, 5, 6, 7], 2)
            assert await caller.values(CLIENT) == [b"3", b"4", b"5", b"6", b"7"]
            await caller.remove(CLIENT, 4, 7)
            assert await caller.add(CLIENT, b"8", b"9") == Added([8, 9], 0)
            assert await caller.add(CLIENT, b"10") == Added([10], 1)
            assert await caller.values(CLIENT) == [b"5", b"6", b"8", b"9", b"10"]
            added = await caller.add(CLIENT, *(b"n%d" % i for i in range(7)))
            assert added.packet_ids[2:] == [11, 12, 13, 14, 15]
            assert added.trimmed == 7
            assert await caller.values(CLIENT) == [b"n2", b"n3", b"n4", b"n5", b"n6"]
            assert store.statistics.trimmed == 10
        async with open_store(messages_limit=3) as store:
            caller = Caller(store, 100)
            assert (await caller.add(CLIENT, b"last")).trimmed == 3
            assert await caller.values(CLIENT) == [b"n5", b"n6", b"last"]

    run(test())


def test_room_is_not_made_for_what_is_known(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store(messages_limit=5) as store:
            caller = Caller(store)
            pack = caller.pack([b"1", b"2", b"3", b"4", b"5"])
            await caller.add_pack(CLIENT, pack)
            assert await caller.add_pack(CLIENT, pack) == Added([1, 2, 3, 4, 5], 0)
            assert await caller.values(CLIENT) == [b"1", b"2", b"3", b"4", b"5"]

    run(test())


def test_the_largest_limit(open_store: OpenStore) -> None:
    """65,535 messages use every packet id; the next one takes that of the oldest."""

    async def test() -> None:
        async with open_store(messages_limit=65_535) as store:
            caller = Caller(store)
            first = await caller.add(CLIENT, *(b"%d" % i for i in range(40_000)))
            second = await caller.add(CLIENT, *(b"%d" % i for i in range(40_000, 65_535)))
            assert first.packet_ids + second.packet_ids == list(range(1, 65_536))
            assert await caller.add(CLIENT, b"one more") == Added([1], 1)
            assert await caller.describe(CLIENT) == (65_535, 1)
            page = await caller.page(CLIENT, -1, 3)
            assert (page.packet_ids, page.values) == ([2, 3, 4], [b"1", b"2", b"3"])
            assert await caller.remove_all(CLIENT) == 65_535

    run(test())


def test_a_queue_that_is_forgotten_starts_anew(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            pack = caller.pack([b"a", b"b", b"c"])
            await caller.add_pack(CLIENT, pack)
            await caller.add(client_queue("other"), b"x")
            assert await caller.remove_all(CLIENT) == 3
            assert (await caller.all(CLIENT), await caller.describe(CLIENT)) == ([], (0, 0))
            assert (await caller.add_pack(CLIENT, pack)).packet_ids == [1, 2, 3]
            assert await caller.values(client_queue("other")) == [b"x"]

    run(test())


def test_reserved_packet_ids_are_given_to_nobody_else(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            assert await caller.reserve(CLIENT, 3) == [1, 2, 3]
            assert (await caller.add(CLIENT, b"a")).packet_ids == [4]
            assert await caller.reserve(CLIENT, 2) == [5, 6]
            assert await caller.describe(CLIENT) == (1, 6)
        async with open_store() as store:
            assert (await Caller(store, 10).add(CLIENT, b"b")).packet_ids == [7]

    run(test())


def test_a_group_is_drained_by_its_members(open_store: OpenStore) -> None:
    """Defect 13 of the original: ids of a group's messages are counted outside of the store and clash."""

    async def test() -> None:
        group, one, two = group_queue("g", "a/+"), client_queue("one"), client_queue("two")
        async with open_store() as store:
            caller = Caller(store)
            pack = caller.pack([b"%d" % i for i in range(50)], expires_at=now_ms() + 60_000)
            await caller.add_pack(group, pack)
            await caller.add(one, b"own")
            counts = await asyncio.gather(*(caller.move(group, member, 20) for member in (one, two, one)))
            assert sum(counts) >= 50
            while await caller.move(group, two, 20):
                pass
            first, second = await caller.values(one), await caller.values(two)
            assert first[0] == b"own"
            assert sorted(map(int, first[1:] + second)) == list(range(50))
            assert first[1:] == sorted(first[1:], key=int)
            assert await caller.values(group) == []
            # It was given to somebody: it does not come back to the group.
            assert set((await caller.add_pack(group, pack)).packet_ids) == {0}
            # The member's own copy of the same message is another one.
            assert (await caller.add_pack(one, pack)).packet_ids[0] != 0

    run(test())


def test_names_do_not_collide(open_store: OpenStore) -> None:
    """Defect 14 of the original: ids that look like a group's, and braces that break the hash tag."""
    names = [
        "",
        "a",
        "{a}",
        "}a{",
        "{",
        "}",
        "%",
        "%7B",
        "a%",
        "ss_g_t",
        "%73s_g_t",
        "ss_",
        "s",
        "ü",
        " ",
        "a_messages",
    ]
    names += ["a_messages_1", "{a}_messages", "x" * 65_535, "x" * 65_534 + "y", "x" * 500, "\u0001", "_messages_1"]
    queues = [client_queue(name) for name in names]
    queues += [group_queue(*parts) for parts in (("g", "t"), ("g_t", ""), ("", "g_t"), ("g", "_t"), ("g_", "t"))]
    assert len(set(queues)) == len(queues)

    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            batch = [Addition(queue, caller.pack([b"%d" % i])) for i, queue in enumerate(queues)]
            assert await result_of(store.add, batch) == [Added([1], 0)] * len(queues)
            for i, queue in enumerate(queues):
                assert await caller.all(queue) == [(1, b"%d" % i)]
            assert await result_of(store.remove_all, queues) == [1] * len(queues)

    run(test())


def test_calls_take_effect_in_their_order(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            results: list[Any] = []
            for i in range(200):
                store.add([Addition(CLIENT, caller.pack([b"%d" % i]))], results.append)
                if i % 3 == 0:
                    store.remove([(CLIENT, [i + 1])], results.append)
                if i % 50 == 0:
                    store.fetch(CLIENT, -1, 1000, results.append)
            # Every answer comes later, and in order.
            assert results == []
            expected = [b"%d" % i for i in range(200) if i % 3]
            assert await caller.values(CLIENT) == expected
            added = [result[0].packet_ids[0] for result in results if isinstance(result, list) and result[0] != 1]
            assert added == list(range(1, 201))
            assert sum(1 for result in results if result == [1]) == 67

    run(test())


def test_many_clients_in_one_call(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            queues = [client_queue(f"device-{i}") for i in range(1000)]
            batch = [Addition(queue, caller.pack([b"x"] * (1 + i % 3))) for i, queue in enumerate(queues)]
            results = await result_of(store.add, batch)
            assert [len(result.packet_ids) for result in results] == [1 + i % 3 for i in range(1000)]
            assert await result_of(store.remove, [(queue, [1, 3]) for queue in queues]) == [
                2 if i % 3 == 2 else 1 for i in range(1000)
            ]
            assert store.statistics.added == sum(1 + i % 3 for i in range(1000))
            await result_of(store.remove_all, queues)
            assert store.pending_bytes == 0

    run(test())


def test_a_failing_callback_harms_nobody(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
            store.add([Addition(CLIENT, caller.pack([b"a"]))], lambda _: 1 / 0)  # type: ignore[arg-type,return-value]
            assert (await caller.add(CLIENT, b"b")).packet_ids == [2]

    run(test())


def test_a_closed_store_refuses(open_store: OpenStore) -> None:
    async def test() -> None:
        async with open_store() as store:
            caller = Caller(store)
        (result,) = await result_of(store.add, [Addition(CLIENT, caller.pack([b"a"]))])
        assert isinstance(result, StoreError)
        with pytest.raises(StoreError):
            await caller.page(CLIENT)

    run(test())


class NaiveQueue:
    """What a queue is: a list of (packet id, value) and a counter."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.messages: list[tuple[int, bytes]] = []
        self.last_id = 0

    def add(self, value: bytes, asked: int) -> int:
        if len(self.messages) == self.limit:
            del self.messages[0]
        used = {packet_id for packet_id, _ in self.messages}
        if not asked or asked in used:
            asked = self.next_id(used)
        elif (asked - self.last_id) % 65_535 < 32_767:
            self.last_id = asked
        self.messages.append((asked, value))
        return asked

    def next_id(self, used: set[int]) -> int:
        while True:
            self.last_id = self.last_id % 65_535 + 1
            if self.last_id not in used:
                return self.last_id


@pytest.mark.parametrize("seed", range(3))
def test_against_a_naive_queue(open_store: OpenStore, seed: int) -> None:
    chance = random.Random(seed)
    limit = chance.choice([3, 10, 1000])

    async def step(caller: Caller, queue: Queue, naive: NaiveQueue) -> None:
        stored = [packet_id for packet_id, _ in naive.messages]
        match chance.choices(["add", "remove", "release", "reserve"], [5, 4, 1, 1])[0]:
            case "add":
                asked = chance.choice([0, 0, 0, chance.randint(1, 30)])
                values = [b"%d" % chance.randrange(1000) for _ in range(1 if asked else chance.randint(1, 3))]
                added = await caller.add(queue, *values, packet_id=asked)
                if len(values) == 1:
                    assert added.packet_ids == [naive.add(values[0], asked)]
                else:
                    for _ in range(len(naive.messages) + len(values) - limit):
                        del naive.messages[0]
                    assert added.packet_ids == [naive.add(value, 0) for value in values]
            case "remove":
                chosen = chance.sample(stored, min(len(stored), chance.randint(0, 4)))
                assert await caller.remove(queue, *chosen, 40_000) == len(chosen)
                naive.messages = [message for message in naive.messages if message[0] not in chosen]
            case "release":
                chosen = chance.sample(stored, min(len(stored), 2))
                assert await caller.release(queue, *chosen) == len(chosen)
                naive.messages = [(i, b"" if i in chosen else value) for i, value in naive.messages]
            case "reserve":
                count = chance.choice([1, 2, 65_530 - len(stored)])
                used = set(stored)
                assert await caller.reserve(queue, count) == [naive.next_id(used) for _ in range(count)]

    async def test() -> None:
        queues = {client_queue(name): NaiveQueue(limit) for name in ("a", "b")}
        offset = 0
        for _ in range(4):
            async with open_store(messages_limit=limit) as store:
                caller = Caller(store, offset)
                for _ in range(40):
                    queue = chance.choice(list(queues))
                    await step(caller, queue, queues[queue])
                for queue, naive in queues.items():
                    assert await caller.all(queue, chance.randint(1, 7)) == naive.messages
                    assert await caller.describe(queue) == (len(naive.messages), naive.last_id)
                offset = caller.next_offset

    run(test())
