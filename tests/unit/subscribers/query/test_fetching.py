"""Fetches: from feeds and from the log, parked and woken, bounded, and honest about what is not there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from penstock._ext.record.envelope import encode
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.settings.datasub import DataSubscriptionSettings
from penstock.storage.log.base import TopicPartition
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.query.catalogue import QueryTopic
from penstock.subscribers.query.dead_letters import DeadLetter, DeadLetterLog
from penstock.subscribers.query.fetching import Fetching
from penstock.subscribers.query.plan import Plan
from penstock.subscribers.query.source import Source
from penstock_client import wire
from penstock_client.errors import NotFound, OutOfRange, Unavailable
from tests.support.machine.waiting import until
from tests.support.worlds.query_stand_in import QuerySet, decode_block, plan_of

TOPIC = "tbmq.msg.all"
ERRORS = "tbmq.datasub.errors"


class World:
    """A log of two partitions and who reads it."""

    def __init__(self, log: MemoryLog, **settings: Any) -> None:
        self.log = log
        self.settings = msgspec.structs.replace(DataSubscriptionSettings(), **settings)
        self.sets: list[QuerySet] = []
        self.new_set: Callable[[], QuerySet] = QuerySet
        self.dead_letters = DeadLetterLog(log, ERRORS, "retention.ms:1000000")
        self.source = Source(log, TOPIC, self.settings.max_readers)
        self.fetching = Fetching(self.source, self._new_set, self.settings, self.dead_letters)

    def _new_set(self) -> Any:
        self.sets.append(self.new_set())
        return self.sets[-1]

    async def publish(self, *values: Any, partition: int = 0, topic: str = "s/1", at: list[int] | None = None) -> None:
        pack = RecordPack()
        for number, value in enumerate(values):
            time = at[number] if at is not None else 1_000 + number
            pack.append(encode(topic, json.dumps({"v": value}), received_at=time))
        await self.log.producer.send(TOPIC, partition, pack)

    async def fetch(self, plan: Plan, offset: int = 0, partition: int = 0, **options: Any) -> wire.Fetched:
        request = wire.Fetch("c", "g", 1, "t", partition, offset, **{"max_wait_ms": 20_000, "min_rows": 100, **options})
        return await self.fetching.fetch(request, QueryTopic("t", "", plan, "query", "", None, 0))


def run(scenario: Callable[[World], Awaitable[None]], **settings: Any) -> None:
    @asynccontextmanager
    async def world() -> AsyncIterator[World]:
        log = MemoryLog()
        await log.start()
        await log.admin.create(TOPIC, 2)
        made = World(log, **settings)
        made.fetching.start()
        try:
            yield made
        finally:
            await made.fetching.close()
            await log.close()

    async def main() -> None:
        async with asyncio.timeout(30), world() as made:
            await scenario(made)

    asyncio.run(main())


def values(fetched: wire.Fetched) -> list[int]:
    return [value for block in fetched.blocks for _, value in decode_block(block)]


def test_old_records_are_read_from_the_log() -> None:
    async def scenario(world: World) -> None:
        await world.publish(*range(10))
        fetched = await world.fetch(plan_of(least=5))
        assert values(fetched) == [5, 6, 7, 8, 9]
        assert (fetched.next_offset, fetched.begin, fetched.end) == (10, 0, 10)

    run(scenario)


def test_a_parked_fetch_is_answered_by_a_write() -> None:
    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.fetch(plan_of()))
        await until(lambda: world.fetching.parked == 1)
        await world.publish(7, partition=1)
        await world.publish(1, 2)
        fetched = await waiting
        assert values(fetched) == [1, 2]
        assert (fetched.next_offset, world.fetching.parked) == (2, 0)
        # it came from the feed: nobody read the log for it
        assert world.fetching.figures["catch_up_records"] == 0

    run(scenario)


def test_the_offset_advances_when_nothing_matches() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1, 2, 3)
        assert (await world.fetch(plan_of(least=100), max_wait_ms=0)).next_offset == 3
        waiting = asyncio.create_task(world.fetch(plan_of(least=100), 3, max_wait_ms=200))
        await until(lambda: world.fetching.parked == 1)
        await world.publish(4, 5)
        fetched = await waiting
        assert (fetched.next_offset, fetched.blocks) == (5, [])

    run(scenario)


def test_a_fetch_ends_at_min_rows_and_at_max_bytes() -> None:
    async def scenario(world: World) -> None:
        await world.fetch(plan_of(), max_wait_ms=0)  # from now on there is a feed
        for number in range(6):
            await world.publish(2 * number, 2 * number + 1)
        await until(lambda: world.fetching.live.positions[0] == 12)
        by_rows = await world.fetch(plan_of(), 1, min_rows=4)
        assert (values(by_rows), by_rows.next_offset) == ([1, 2, 3, 4, 5], 6)
        by_bytes = await world.fetch(plan_of(), 6, max_bytes=300)
        assert (values(by_bytes), by_bytes.next_offset) == ([6, 7, 8, 9], 10)

    run(scenario)


def test_the_log_is_read_in_slices_until_the_fetch_is_full() -> None:
    async def scenario(world: World) -> None:
        for start in range(0, 3_000, 100):
            await world.publish(*range(start, start + 100))
        fetched = await world.fetch(plan_of(), min_rows=700)
        assert values(fetched) == list(range(fetched.next_offset))
        assert 700 <= fetched.next_offset < 1_500
        position, seen = fetched.next_offset, values(fetched)
        while position < 3_000:
            fetched = await world.fetch(plan_of(), position, min_rows=700)
            seen += values(fetched)
            position = fetched.next_offset
        assert seen == list(range(3_000))

    run(scenario)


def test_however_many_catch_up_the_loop_has_its_turns() -> None:
    """One slice in a turn of the loop, not one for each reader."""

    async def scenario(world: World) -> None:
        turns, turn = [], 0

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def evaluate(queries: Any, *arguments: Any) -> Any:
            turns.append(turn)
            return QuerySet.evaluate(queries, *arguments)

        world.new_set = type("Watched", (QuerySet,), {"evaluate": evaluate})
        await world.publish(*range(1_200))
        counting = asyncio.create_task(count())
        plans = [plan_of(least=least) for least in range(8)]
        fetched = await asyncio.gather(*(world.fetch(plan, min_rows=1_100) for plan in plans))
        counting.cancel()
        assert [len(values(one)) for one in fetched] == [1_200 - least for least in range(8)]
        assert len(turns) == len(set(turns)) >= 24

    run(scenario)


def test_offsets_outside_the_log_are_an_error_with_what_there_is() -> None:
    async def scenario(world: World) -> None:
        await world.publish(*range(5))
        await world.publish(*range(5))
        await world.log.admin.truncate(TopicPartition(TOPIC, 0), 5)
        for offset in (0, 4, 11, -1):
            with pytest.raises(OutOfRange) as caught:
                await world.fetch(plan_of(), offset)
            assert (caught.value.begin, caught.value.end) == (5, 10)
        with pytest.raises(NotFound):
            await world.fetch(plan_of(), 0, partition=2)
        assert values(await world.fetch(plan_of(), 5)) == [0, 1, 2, 3, 4]

    run(scenario)


def test_equal_queries_share_one_evaluation() -> None:
    async def scenario(world: World) -> None:
        waiting = [asyncio.create_task(world.fetch(plan_of(least=2))) for _ in range(20)]
        await until(lambda: world.fetching.parked == 20)
        await world.publish(1, 2, 3)
        assert [values(await task) for task in waiting] == [[2, 3]] * 20
        assert [len(queries) for queries in world.sets] == [1]
        assert world.sets[0].evaluations == 1

    run(scenario)


def test_a_feed_that_is_full_sends_its_readers_to_the_log() -> None:
    async def scenario(world: World) -> None:
        await world.fetch(plan_of(), max_wait_ms=0)
        for number in range(300):
            await world.publish(number)
        await until(lambda: world.fetching.live.positions[0] == 300)
        assert world.fetching.memory.bytes <= 65_536
        feed = world.fetching.live.feeds[plan_of().key]
        assert 0 < feed.lanes[0].start < 300
        fetched = await world.fetch(plan_of(), 0, min_rows=10_000)
        assert values(fetched) == list(range(300))

    run(scenario, feed_bytes=65_536)


def test_all_feeds_together_are_bounded() -> None:
    async def scenario(world: World) -> None:
        plans = [plan_of(least=-number) for number in range(4)]
        for plan in plans:
            await world.fetch(plan, max_wait_ms=0)
        for number in range(100):
            await world.publish(number)
        await until(lambda: world.fetching.live.positions[0] == 100)
        kept = world.fetching.memory.bytes
        assert kept <= 65_536
        assert kept == sum(feed.bytes for feed in world.fetching.live.feeds.values())
        for plan in plans:
            assert values(await world.fetch(plan, 0, min_rows=1_000)) == list(range(100))

    run(scenario, feeds_bytes=65_536)


def test_parked_fetches_are_bounded() -> None:
    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.fetch(plan_of()))
        await until(lambda: world.fetching.parked == 1)
        with pytest.raises(Unavailable, match="max_parked"):
            await world.fetch(plan_of())
        await world.publish(1)
        assert values(await waiting) == [1]

    run(scenario, max_parked=1)


def test_a_feed_ends_when_nobody_reads_it_and_nothing_is_lost() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1)
        position = (await world.fetch(plan_of())).next_offset
        await until(lambda: not world.fetching.live.feeds)
        assert world.fetching.live.positions == []
        await world.publish(2)
        assert values(await world.fetch(plan_of(), position)) == [2]

    run(scenario, feed_idle=0.1)


def test_a_consumer_whose_partitions_are_others_waits_no_longer() -> None:
    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.fetch(plan_of()))
        await until(lambda: world.fetching.parked == 1)
        for other in (("g", "x"), ("x", "c")):
            world.fetching.wake(*other)
        await asyncio.sleep(0)
        assert world.fetching.parked == 1
        world.fetching.wake("g", "c")
        fetched = await waiting
        assert (fetched.next_offset, fetched.blocks, world.fetching.parked) == (0, [], 0)
        # One that is still on its way to be parked is not forgotten: here the pass has to begin.
        await world.fetching.live.close()
        for turns in range(1, 6):
            coming = asyncio.create_task(world.fetch(plan_of()))
            for _ in range(turns):
                await asyncio.sleep(0)
            world.fetching.wake("g", "c")
            assert not (await coming).blocks
            await world.fetching.live.close()

    run(scenario)


def test_closing_answers_those_who_wait() -> None:
    async def scenario(world: World) -> None:
        waiting = asyncio.create_task(world.fetch(plan_of()))
        await until(lambda: world.fetching.parked == 1)
        await world.fetching.close()
        with pytest.raises(Unavailable):
            await waiting

    run(scenario)


def test_replay_gives_one_moment_at_a_time_and_how_long_it_was_after_the_last() -> None:
    async def scenario(world: World) -> None:
        await world.publish(1, 2, 3, 4, at=[1_000, 1_000, 1_250, 4_000])
        seen, offset = [], 0
        for _ in range(3):
            fetched = await world.fetch(plan_of(), offset, replay=True)
            seen.append((values(fetched), fetched.wait_ms))
            offset = fetched.next_offset
        assert seen == [([1, 2], 0.0), ([3], 250.0), ([4], 2_750.0)]
        # what was read of the log for the first was not read again for the others
        assert (offset, world.fetching.figures["catch_up_records"]) == (4, 4)
        # from another place it begins anew
        fetched = await world.fetch(plan_of(), 2, replay=True)
        assert (values(fetched), fetched.wait_ms) == ([3], 0.0)

    run(scenario)


def test_errors_of_rows_are_counted_and_reported() -> None:
    async def scenario(world: World) -> None:
        plan = plan_of(on_error="dead-letter")
        world.dead_letters.name_topics(lambda key: ["b", "a"] if key == plan.key else [])
        await world.publish(1, "x", 3)
        assert values(await world.fetch(plan)) == [1, 3]
        waiting = asyncio.create_task(world.fetch(plan, 3))
        await until(lambda: world.fetching.parked == 1)
        await world.publish("y", 5)
        assert values(await waiting) == [5]
        assert world.fetching.errors_of(plan) == 2
        await until(lambda: world.dead_letters.reported == 2)
        letters = [
            msgspec.json.decode(record.value, type=DeadLetter)
            for pack in world.log.try_read(TopicPartition(ERRORS, 0), 0, 10, 10_000)
            for record in pack
            if record.value is not None
        ]
        assert letters == [DeadLetter(["a", "b"], 0, offset, "v", "not a number") for offset in (1, 3)]

    run(scenario)


def test_times_are_looked_up_in_the_log() -> None:
    async def scenario(world: World) -> None:
        pack, now = RecordPack(), now_ms()
        for number in range(3):
            pack.append(encode("s/1", '{"v": 1}'), timestamp=now + 1_000 * number)
        await world.log.producer.send(TOPIC, 1, pack)
        assert await world.source.partitions() == [0, 1]
        places = [(1, now + 500), (1, now + 9_000), (0, now)]
        assert await world.source.offsets_at(places) == dict(zip(places, [1, 3, 0], strict=True))
        assert await world.source.watermarks(1) == (0, 3)
        assert world.source.last_seen(1) == (0, 3)

    run(scenario)
