"""Consumer groups at one node: states, epochs, silence, commits that are fenced, what is known after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from penstock.subscribers.query.groups.limits import GroupSettings
from penstock_client import wire
from penstock_client.errors import (
    BadRequest,
    NotAllowed,
    NotAMember,
    NotFound,
    OutOfRange,
    StaleEpoch,
    Unavailable,
)
from tests.support.worlds.datasub_world import ALICE, BOB, DataWorld, in_world, numbers


def shares_of(world: DataWorld, topic: str = "hot", group: str = "g") -> list[int]:
    return sorted(len(member.owned.get(topic, ())) for member in world.group(group).members.values())


@pytest.mark.parametrize(("consumers", "expected"), [(2, [2, 2]), (3, [1, 1, 2]), (5, [0, 1, 1, 1, 1])])
def test_members_share_the_partitions(consumers: int, expected: list[int]) -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        joined = [await world.join("hot") for _ in range(consumers)]
        assert {each.state for each in joined} == {"rebalancing"}
        assert not any(each.partitions for each in joined)
        await world.pass_time(0.5)
        assert shares_of(world) == expected
        answers = [await world.ask(each.consumer, each.epoch) for each in joined]
        assert {answer.state for answer in answers if answer} == {"ready"}
        owned = sorted(number for answer in answers if answer for number in numbers(answer))
        assert owned == [0, 1, 2, 3]

    in_world(work)


def test_a_rebalance_begins_within_two_seconds() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first = await world.join("hot")
        assert await world.ask(first.consumer, first.epoch) is None  # nothing new yet
        await world.pass_time(2.0)
        ready = await world.ask(first.consumer, first.epoch)
        assert ready is not None
        assert ready.state == "ready"
        assert await world.ask(first.consumer, ready.epoch) is None
        world.source.ends[4] = 0, 0
        await world.pass_time(4.0)
        assert shares_of(world) == [5]

    in_world(work)


def test_who_keeps_its_partitions_is_not_disturbed() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot", "cold")
        first = await world.ready((await world.join("hot")).consumer)
        await world.join("cold")
        await world.pass_time(2.0)
        assert await world.ask(first.consumer, first.epoch) is None
        assert world.group().member(first.consumer).state == "ready"

    in_world(work)


def test_a_silent_consumer_is_removed_after_its_session_timeout() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        dead = (await world.join("hot")).consumer
        alive = (await world.join("hot")).consumer
        await world.ready(alive)
        for _ in range(22):
            await world.pass_time(0.5)
            await world.ask(alive)
        assert len(world.group().members) == 2
        for _ in range(3):
            await world.pass_time(0.5)
            await world.ask(alive)
        assert list(world.group().members) == [alive]
        answer = await world.ask(alive)
        assert answer is not None
        assert numbers(answer) == [0, 1, 2, 3]
        with pytest.raises(NotAMember):
            await world.ask(dead)

    in_world(work)


def test_a_consumer_that_does_not_poll_is_removed() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        joined = await world.join("hot", max_poll_interval_ms=20_000)
        beat = wire.Heartbeat(joined.consumer, "g", -1)
        for _ in range(19):
            await world.pass_time(1.0)
            await world.service.handle(ALICE, "heartbeat", beat)
        beat.polled = True
        await world.service.handle(ALICE, "heartbeat", beat)
        beat.polled = False
        for _ in range(19):
            await world.pass_time(1.0)
            await world.service.handle(ALICE, "heartbeat", beat)
        await world.pass_time(2.0)
        with pytest.raises(NotAMember):
            await world.service.handle(ALICE, "heartbeat", beat)
        assert "g" not in world.coordinator.groups

    in_world(work)


def test_subscribing_again_forgets_both_silences() -> None:
    """PR #34918 of the original: a consumer was declared dead while it subscribed again."""

    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        joined = await world.join("hot", max_poll_interval_ms=11_000)
        await world.pass_time(10.0)
        await world.join("hot", consumer=joined.consumer, max_poll_interval_ms=11_000)
        await world.pass_time(10.0)
        assert await world.ask(joined.consumer) is not None

    in_world(work)


def test_a_changed_list_of_topics_is_rebalanced() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot", "cold")
        first = await world.ready((await world.join("hot")).consumer)
        changed = await world.join("cold", "hot", consumer=first.consumer)
        assert (changed.consumer, changed.state, changed.epoch > first.epoch) == (first.consumer, "rebalancing", True)
        with pytest.raises(StaleEpoch):
            await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", changed.epoch, "hot", 0, 0))
        ready = await world.ready(first.consumer)
        assert numbers(ready, "hot") == numbers(ready, "cold") == [0, 1, 2, 3]
        assert set(ready.schema) == {"hot", "cold"}
        same = await world.join("cold", "hot", consumer=first.consumer)
        assert (same.state, same.epoch) == ("ready", ready.epoch)

    in_world(work)


def test_one_that_leaves_is_rebalanced_and_then_deleted() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first, second = (await world.join("hot")).consumer, (await world.join("hot")).consumer
        await world.ready(first)
        await world.service.handle(ALICE, "leave", wire.Leave(second, "g"))
        leaving = world.group().member(second)
        assert (leaving.state, leaving.topics) == ("rebalancing", ())
        assert numbers(await world.ready(first)) == [0, 1, 2, 3]
        assert list(world.group().members) == [first]
        await world.join(consumer=first)
        await world.pass_time(0.5)
        assert not world.coordinator.groups
        await world.service.handle(ALICE, "leave", wire.Leave(first, "g"))  # gone is gone

    in_world(work)


def test_a_commit_is_the_next_position_and_survives() -> None:
    """The seed's example: commit at 3, and the next consumer goes on with the fourth record."""

    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot", auto_offset_reset="earliest")).consumer)
        assert {(each.offset, each.begin, each.end) for each in first.partitions} == {(0, 0, 10)}
        await world.commit(first, ("hot", 0, 3), ("hot", 2, 7))
        assert await world.committed(("hot", 0), ("hot", 1), ("hot", 2)) == [3, None, 7]
        await world.restart()
        assert await world.committed(("hot", 0), ("hot", 1)) == [3, None]
        second = await world.ready((await world.join("hot", auto_offset_reset="earliest")).consumer)
        assert [(each.offset, each.committed) for each in second.partitions] == [(3, 3), (0, -1), (7, 7), (0, -1)]
        other = await world.join("hot", group="other", auto_offset_reset="latest")
        alone = await world.ready(other.consumer, group="other")
        assert {each.offset for each in alone.partitions} == {10}
        none = await world.join("hot", group="third", auto_offset_reset="none")
        assert {each.offset for each in (await world.ready(none.consumer, group="third")).partitions} == {-1}

    in_world(work)


def test_what_was_begun_and_not_committed_is_not_skipped() -> None:
    """With `latest` and no commit, whoever takes the partition over begins where the first had begun; a group that has
    come to its end begins anew."""

    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot")).consumer)
        assert {each.offset for each in first.partitions} == {10}
        world.source.write(5)
        second = await world.ready((await world.join("hot")).consumer)
        assert {each.offset for each in second.partitions} == {10}
        await world.restart()
        third = await world.ready((await world.join("hot")).consumer)
        assert {each.offset for each in third.partitions} == {10}
        await world.service.handle(ALICE, "leave", wire.Leave(third.consumer, "g"))
        await world.pass_time(1.0)
        fourth = await world.ready((await world.join("hot")).consumer)
        assert {each.offset for each in fourth.partitions} == {15}
        await world.restart()
        await world.pass_time(31.0)  # it did not come back
        fifth = await world.ready((await world.join("hot")).consumer)
        assert {each.offset for each in fifth.partitions} == {15}

    in_world(work)


def test_a_commit_of_a_former_owner_is_refused_as_a_whole() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot")).consumer)
        second = await world.ready((await world.join("hot")).consumer)
        lost, kept = numbers(second)[0], next(number for number in range(4) if number not in numbers(second))
        with pytest.raises(StaleEpoch):
            await world.commit(first, ("hot", kept, 5), ("hot", lost, 5))
        assert await world.committed(("hot", kept), ("hot", lost)) == [None, None]
        # What it has owned all the time it may commit, though it has not asked since.
        await world.commit(first, ("hot", kept, 5))
        await world.commit(second, ("hot", lost, 6))
        with pytest.raises(StaleEpoch):
            await world.service.handle(ALICE, "fetch", wire.Fetch(first.consumer, "g", first.epoch, "hot", lost, 0))
        # Lost and got back: what it had before is another time.
        await world.service.handle(ALICE, "leave", wire.Leave(second.consumer, "g"))
        await world.pass_time(0.5)
        with pytest.raises(StaleEpoch):
            await world.commit(first, ("hot", lost, 2))
        assert await world.committed(("hot", kept), ("hot", lost)) == [5, 6]

    in_world(work)


def test_a_commit_that_cannot_be_stored_is_no_commit() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot")).consumer)
        await world.commit(first, ("hot", 0, 1))
        world.store.failure = "the disk is full"
        with pytest.raises(Unavailable, match="the disk is full"):
            await world.commit(first, ("hot", 0, 2))
        assert await world.committed(("hot", 0)) == [1]
        world.store.failure = ""
        commits = [world.commit(first, ("hot", number, 4 + number)) for number in range(4)]
        await asyncio.gather(*commits)
        assert await world.committed(*(("hot", number) for number in range(4))) == [4, 5, 6, 7]

    in_world(work)


def test_what_cannot_be_committed() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot")).consumer)
        with pytest.raises(OutOfRange):
            await world.commit(first, ("hot", 0, 11))
        with pytest.raises(BadRequest):
            await world.commit(first, ("hot", 0, -1))
        with pytest.raises(NotAMember):
            await world.commit(wire.Assignment("nobody", 1, "ready", [], [], {}), ("hot", 0, 1))
        with pytest.raises(NotAllowed):
            await world.commit(first, ("hot", 0, 1), who=BOB)
        with pytest.raises(NotFound):
            await world.committed(("hot", 9))
        await world.commit(first, ("hot", 0, 10))

    in_world(work)


def test_a_log_that_cannot_be_asked_delays_a_rebalance() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.failure = "no log"
        joined = await world.join("hot")
        await world.pass_time(3.0)
        assert world.group().member(joined.consumer).state == "rebalancing"
        world.source.failure = ""
        await world.pass_time(1.0)
        ready = await world.ask(joined.consumer)
        assert ready is not None
        assert numbers(ready) == [0, 1, 2, 3]

    in_world(work)


def test_a_fetch_that_was_parked_while_its_partition_went_away() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first = await world.ready((await world.join("hot")).consumer)
        request = wire.Fetch(first.consumer, "g", first.epoch, "hot", 3, 0)
        assert await world.service.handle(ALICE, "fetch", request) == wire.Fetched(0, 0, 0)

        async def another_comes() -> None:
            await world.join("hot")
            await world.pass_time(1.0)

        world.fetcher.during = another_comes
        with pytest.raises(StaleEpoch):
            await world.service.handle(ALICE, "fetch", request)

    in_world(work)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"group": ""}, "group.id is missing"),
        ({"group": "a:b"}, "colon"),
        ({"group": "a\nb 1"}, "printed"),
        ({"group": "\x1b[2J"}, "printed"),
        ({"group": "g" * 193}, "at most 192"),
        ({"client_id": "c" * 256}, "at most 255"),
        ({"session_timeout_ms": 5_999}, "session.timeout.ms"),
        ({"max_poll_interval_ms": 999}, "max.poll.interval.ms"),
        ({"auto_offset_reset": "last"}, "auto.offset.reset"),
        ({"consumer": "mqtt:c"}, "use the one returned by subscribe"),
    ],
)
def test_what_cannot_be_subscribed_with(options: dict[str, object], message: str) -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        with pytest.raises(BadRequest, match=message):
            await world.join("hot", **options)  # type: ignore[arg-type]  # of any type, that is the point
        assert not world.coordinator.groups

    in_world(work)


def test_numbers_are_bounded() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot", "cold", "warm")
        with pytest.raises(BadRequest, match="topics"):
            await world.join("hot", "cold", "warm")
        await world.join("hot")
        await world.join("hot")
        with pytest.raises(BadRequest, match="members"):
            await world.join("hot")
        await world.join("hot", group="second")
        with pytest.raises(BadRequest, match="groups"):
            await world.join("hot", group="third")

    in_world(work, settings=GroupSettings(max_groups=2, max_members=2, max_topics=2))


def test_an_unknown_topic_is_refused_at_once() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        with pytest.raises(NotFound, match="cold"):
            await world.join("hot", "cold")
        assert not world.coordinator.groups
        first = await world.ready((await world.join("hot")).consumer)
        changed = await world.join("hot", "cold", consumer=first.consumer)
        assert changed.refused == {"cold": "there is no topic cold"}
        assert changed.topics == ["hot"]

    in_world(work)


def test_a_consumer_belongs_to_its_user() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        first = await world.ready((await world.join("hot")).consumer)
        for method, request in {
            "ask": wire.Ask(first.consumer, "g", 0),
            "leave": wire.Leave(first.consumer, "g"),
            "subscribe": wire.Subscribe("g", ["hot"], consumer=first.consumer),
            "fetch": wire.Fetch(first.consumer, "g", first.epoch, "hot", 0, 0),
        }.items():
            with pytest.raises(NotAllowed):
                await world.service.handle(BOB, method, request)

    in_world(work)


def test_retention_hears_at_once_of_what_is_needed_anew() -> None:
    """A new group's places and a step back, before the group has its answer; not every commit."""

    async def work(world: DataWorld) -> None:
        told: list[Mapping[int, int]] = []

        async def note() -> None:
            told.append(world.parts.progress.needed())

        world.parts.book._on_needing_more = note
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot", auto_offset_reset="earliest")).consumer)
        assert told == [{0: 0, 1: 0, 2: 0, 3: 0}]
        await world.commit(first, ("hot", 0, 8), ("hot", 1, 9))
        assert len(told) == 1
        await world.commit(first, ("hot", 0, 5))
        assert told[1:] == [{0: 5, 1: 9, 2: 0, 3: 0}]

    in_world(work)


def test_retention_is_told_what_groups_need() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready((await world.join("hot", auto_offset_reset="earliest")).consumer)
        assert world.parts.progress.needed() == {0: 0, 1: 0, 2: 0, 3: 0}
        await world.commit(first, ("hot", 0, 8), ("hot", 1, 9))
        assert world.parts.progress.needed() == {0: 8, 1: 9, 2: 0, 3: 0}
        other = await world.ready((await world.join("hot", group="other")).consumer, group="other")
        await world.commit(other, ("hot", 0, 2), group="other")
        assert world.parts.progress.needed() == {0: 2, 1: 9, 2: 0, 3: 0}
        assert world.parts.progress.positions()["other", "hot"][1] == 10
        await world.pass_time(14.0)  # both are gone; what they committed is still wanted
        assert world.parts.progress.needed() == {0: 2, 1: 9}
        await world.pass_time(160.0)
        assert world.parts.progress.needed() == {}
        assert await world.committed(("hot", 0)) == [None]

    in_world(work, settings=GroupSettings(offsets_retention=100))


def test_a_group_with_nothing_to_commit_is_in_use_also_after_a_restart() -> None:
    """Its consumers are there all the time and come back late: what they need is held, and where they are is known."""

    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        member = await world.ready((await world.join("hot")).consumer)
        await world.commit(member, ("hot", 0, 8))
        for _ in range(25):
            await world.pass_time(10.0)
            await world.ask(member.consumer)
        await world.restart()
        assert world.parts.progress.needed() == {0: 8, 1: 10, 2: 10, 3: 10}
        await world.pass_time(45.0)
        assert await world.committed(("hot", 0)) == [8]
        await world.pass_time(160.0)  # and when nobody has come back it is forgotten like any other
        assert await world.committed(("hot", 0)) == [None]

    in_world(work, settings=GroupSettings(offsets_retention=100))


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_is_set_makes_no_group_older(days: int) -> None:
    """Nobody is removed, and neither offsets nor what the log keeps for them go, however far the clock jumps."""

    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        away = await world.ready((await world.join("hot", group="away")).consumer, group="away")
        await world.commit(away, ("hot", 0, 4), group="away")
        await world.service.handle(ALICE, "leave", wire.Leave(away.consumer, "away"))
        here = await world.ready((await world.join("hot")).consumer)
        await world.commit(here, ("hot", 1, 5))
        world.jump = days * 86_400.0
        for _ in range(13):
            await world.pass_time(5.0)
            await world.service.handle(ALICE, "heartbeat", wire.Heartbeat(here.consumer, "g", here.epoch, polled=True))
        assert await world.ask(here.consumer, here.epoch) is None
        await world.commit(here, ("hot", 1, 6))
        assert await world.committed(("hot", 0), group="away") == [4]
        assert world.coordinator.needed()[0] == 4
        assert world.coordinator.needed()[1] == 6
        await world.restart()
        again = await world.ready((await world.join("hot", consumer=here.consumer)).consumer)
        await world.commit(again, ("hot", 1, 7))
        assert await world.committed(("hot", 1)) == [7]

    in_world(work)


def test_the_views_are_those_of_the_original_and_lag() -> None:
    async def work(world: DataWorld) -> None:
        await world.make_topics("hot")
        world.source.write(10)
        first = await world.ready(
            (await world.join("hot", client_id="reader", parameters={"enable.auto.commit": "true"})).consumer
        )
        beat = wire.Heartbeat(
            first.consumer, "g", first.epoch, polled=True, positions=[("hot", 1, 7)], rows=3, counts=[3]
        )
        await world.service.handle(ALICE, "heartbeat", beat)
        await world.commit(first, ("hot", 0, 4))
        (row,) = await world.table("SHOW CONSUMERS")
        assert list(row) == [
            *("consumer_id", "consumer_group", "client_id", "user", "fqdn", "status", "topics", "end_point", "up_time"),
            *("subscribe_time", "rebalance_time", "parameters", "poll_time"),
        ]
        assert (row["consumer_id"], row["consumer_group"], row["client_id"]) == (first.consumer, "g", "reader")
        assert (row["user"], row["fqdn"], row["end_point"]) == ("alice", "127.0.0.1", "127.0.0.1:5001")
        assert (row["status"], row["topics"]) == ("ready", "hot")
        assert "enable.auto.commit:true" in row["parameters"]
        assert row["poll_time"].startswith("2027-01-15T08:00:0")
        rows = await world.table("SHOW SUBSCRIPTIONS")
        assert list(rows[0]) == [
            *("topic_name", "consumer_group", "vgroup_id", "consumer_id", "user", "fqdn", "offset", "rows", "lag")
        ]
        shown = [(each["vgroup_id"], each["offset"], each["rows"], each["lag"]) for each in rows]
        assert shown == [(0, 4, None, 6), (1, 7, 3, 3), (2, 10, None, 0), (3, 10, None, 0)]
        await world.pass_time(14.0)
        rows = await world.table("SHOW SUBSCRIPTIONS")
        assert [(each["consumer_id"], each["offset"], each["lag"]) for each in rows][:2] == [
            (None, 4, 6),
            (None, None, None),
        ]

    in_world(work)
