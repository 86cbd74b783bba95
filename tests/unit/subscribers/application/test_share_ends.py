"""Shares that end, move away and begin again: what is remembered of an earlier one keeps no message from the next, and
nothing stays behind that nobody will ever remove."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock._ext.application.context import write_context
from penstock.services.housekeeper import SHARE, Task, Use
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, SHARED, TABLE, make_key
from penstock.subscribers.application.shared.contexts import claim_key
from tests.support.brokers.app_node import Node, Reader, restart, run
from tests.unit.subscribers.application.test_shared import FILTER, GROUP, TOPIC, join, owners, settled

KEY = make_key(SHARED, GROUP, TOPIC, 0)


def read_to(offset: int) -> bytes:
    return write_context({"committed": offset, "end": offset, "last_packet_id": 0, "seen": {}, "in_flight": []})


async def other_broker_removes_it(node: Node) -> None:
    await node.until(lambda: not node.delivery.shared._tasks)  # its reader has left the group
    await node.log.admin.delete_group(GROUP)
    await node.log.admin.delete(TOPIC)


async def gets_everything(node: Node, name: str) -> None:
    reader = Reader(await join(node, name))
    await settled(node, 1)
    await node.publish("s", range(100, 150))
    assert sorted(await reader.until(50)) == list(range(100, 150))


@pytest.mark.parametrize("way", ["moves away", "ends, with members elsewhere"])
def test_a_share_begins_again_after_another_broker_has_ended_it(way: str) -> None:
    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a"))
        await settled(node, 1)
        await node.publish("s", range(100))
        await reader.until(100)
        await node.until(lambda: not any(lane.in_flight for lane in node.delivery.book))
        session = reader.client.session
        if way == "moves away":
            node.delivery.moved_away(session)
            node.hub.trie.unsubscribe(session, FILTER)
        else:
            node.others.has_shares = True
            node.unsubscribe(reader.client, FILTER)
            node.others.has_shares = False
        await other_broker_removes_it(node)
        await gets_everything(node, "b")

    run(scenario, shared_partitions=1)


@pytest.mark.parametrize("way", ["new here", "came from another broker"])
def test_what_was_stored_of_a_share_at_the_start_is_forgotten_where_it_is_not_this_brokers(way: str) -> None:
    """It went on, ended and began again at other brokers."""
    state = MemoryStateStore()
    state.tables[TABLE] = {KEY: b"gone\0" + read_to(200)}

    async def scenario(node: Node) -> None:
        assert node.delivery.contexts.get(KEY) is None
        if way == "new here":
            await gets_everything(node, "b")
            return
        consumer = node.log.consumer(GROUP)
        await node.log.admin.create(TOPIC, 1)
        await consumer.commit({TopicPartition(TOPIC, 0): Committed(0)})
        await consumer.close()
        await gets_everything(node, "b")

    run(scenario, state=state, shared_partitions=1)


def test_what_is_stored_of_an_earlier_share_is_removed_when_it_begins_again() -> None:
    """Or a restart would bring it back; the broker that ended it may have been killed before it was stored."""
    state = MemoryStateStore()
    state.tables[TABLE] = {KEY: b"gone\0" + read_to(200)}

    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        assert KEY not in node.state.tables[TABLE]
        client.lose()
        other = await restart(node, shared_partitions=1)
        try:
            await other.publish("s", range(50))
            assert sorted(await Reader(await other.connect("a")).until(50)) == list(range(50))
        finally:
            await other.stop()

    run(scenario, state=state, shared_partitions=1)


def test_what_is_stored_of_a_share_goes_with_its_group_whoever_has_stored_it() -> None:
    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC, 2)
        stored = node.state.tables.setdefault(TABLE, {})
        stored[KEY] = b"gone\0" + read_to(200)
        await node.delivery.tidy(Task(SHARE, FILTER.decode(), TOPIC))
        assert TOPIC not in node.log.topics
        await node.until(lambda: KEY not in stored)

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("what", ["group", "context"])
def test_nothing_is_passed_over_in_a_topic_that_is_shorter_than_what_was_read(what: str) -> None:
    """Somebody else has removed it, and made it anew."""

    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC, 1)
        consumer = node.log.consumer(GROUP)
        await consumer.commit({TopicPartition(TOPIC, 0): Committed(200 if what == "group" else 0)})
        await consumer.close()
        if what == "context":
            node.delivery.contexts.put(KEY, b"a\0" + read_to(200))
        await node.fill(TOPIC, range(10))
        reader = Reader(await join(node, "a"))
        await node.publish("s", range(10, 20))
        assert sorted(await reader.until(20)) == list(range(20))

    run(scenario, shared_partitions=1)


def test_who_comes_from_another_broker_brings_along_what_is_stored_of_it() -> None:
    """And nothing of members that are elsewhere: nobody would finish it here."""

    async def scenario(node: Node) -> None:
        shared = node.delivery.shared
        claims = [claim_key(kind, "a", GROUP, TOPIC, 1) for kind in (CLAIMED, OFFERED)]
        own, others = make_key(SHARED, GROUP, TOPIC, 0), make_key(SHARED, GROUP, TOPIC, 1)
        stored = {key: read_to(3) for key in claims} | {own: b"a\0" + read_to(3), others: b"aa\0" + read_to(3)}
        async with shared.held([FILTER]):
            await shared.learn([FILTER])
            shared.adopt("a", [FILTER], stored.get)
            found = node.delivery.contexts
            assert [found.get(key) for key in claims] == [stored[key] for key in claims]
            assert found.get(own) == stored[own]
            assert found.get(others) is None

    run(scenario, shared_partitions=2)


def test_who_goes_to_another_broker_takes_along_what_only_it_may_have() -> None:
    async def scenario(node: Node) -> None:
        client = await join(node, "a")
        keys = [claim_key(kind, "a", GROUP, TOPIC, 0) for kind in (CLAIMED, OFFERED)]
        for key in keys:
            node.delivery.contexts.put(key, read_to(3))
        node.delivery.moved_away(client.session)
        assert [node.delivery.contexts.get(key) for key in keys] == [None, None]
        await node.until(lambda: set(keys) <= node.state.tables.get(TABLE, {}).keys())

    run(scenario, shared_partitions=1)


def test_two_that_begin_a_share_at_once_begin_at_one_place() -> None:
    """What the first of them is to have may be in the topic when the second looks where its end is."""

    async def scenario(node: Node) -> None:
        shared, consumer_of = node.delivery.shared, node.log.consumer
        begun: list[int] = []

        def slow(group: str) -> Any:
            consumer = consumer_of(group)
            watermarks, commit = consumer.watermarks, consumer.commit

            async def look(place: TopicPartition) -> Any:
                await asyncio.sleep(0.02)
                await node.fill(TOPIC, [0])
                return await watermarks(place)

            async def begin(offsets: dict[TopicPartition, Committed]) -> None:
                begun.extend(one.offset for one in offsets.values())
                await commit(offsets)

            consumer.watermarks, consumer.commit = look, begin
            return consumer

        await shared.make(FILTER)
        node.log.consumer = slow
        await asyncio.gather(shared.begin(FILTER), shared.begin(FILTER))
        assert begun == [1]
        node.log.consumer = consumer_of

    run(scenario, shared_partitions=1)


# ---- the last one leaves ----


@pytest.mark.parametrize("way", ["leaves", "is gone before it joins"])
def test_with_members_elsewhere_it_is_written_down_that_a_share_may_go(way: str) -> None:
    """They may be DEVICE clients, or leave at the same time: then nobody else would do it."""

    async def scenario(node: Node) -> None:
        shared = node.delivery.shared
        noted: list[tuple[str, str, str]] = []
        node.noted = noted
        node.others.has_shares = True
        if way == "leaves":
            client = await join(node, "a")
            await settled(node, 1)
            node.unsubscribe(client, FILTER)
        else:
            assert shared.reserve(FILTER)
            await shared.make(FILTER)
            shared.release(FILTER)
        assert noted == [(SHARE, FILTER.decode(), TOPIC)]
        assert TOPIC in node.log.topics
        await node.until(lambda: not shared._tasks)
        await node.delivery.tidy(Task(*noted[0]))
        assert TOPIC not in node.log.topics
        await gets_everything(node, "b")

    run(scenario, shared_partitions=1)


@pytest.mark.parametrize("way", ["released", "held"])
def test_a_topic_that_another_broker_removed_is_made_again(way: str) -> None:
    """It was prepared here for a client that never became a member."""

    async def scenario(node: Node) -> None:
        shared = node.delivery.shared
        node.others.has_shares = True
        if way == "released":
            assert shared.reserve(FILTER)
            await shared.make(FILTER)
            shared.release(FILTER)
        else:
            async with shared.held([FILTER]):
                await shared.learn([FILTER])
        await node.log.admin.delete(TOPIC)
        await gets_everything(node, "a")

    run(scenario, shared_partitions=1)


# ---- SUBSCRIBE ----


@pytest.mark.parametrize("way", ["moves away", "leaves"])
def test_a_share_is_prepared_while_the_last_member_of_another_group_goes(way: str) -> None:
    """Both groups read one topic."""

    async def scenario(node: Node) -> None:
        shared = node.delivery.shared
        first = await join(node, "a")
        await settled(node, 1)
        joins = await node.connect("b")
        filters = [b"$share/h/other", b"$share/h/s"]
        begin = shared.begin

        async def meanwhile(share_filter: bytes) -> None:
            if share_filter == filters[0]:
                if way == "moves away":
                    node.delivery.moved_away(first.session)
                else:
                    node.others.has_shares = True
                    node.unsubscribe(first, FILTER)
            await begin(share_filter)

        shared.begin = meanwhile  # type: ignore[method-assign]
        for name in filters:
            assert shared.reserve(name)
        async with node.applications.sharing(filters):
            for name in filters:
                node.hub.trie.subscribe(joins.session, name, 1)
                node.delivery.subscribed(joins.session, name, 1, 0)
        for name in filters:
            shared.release(name)
        await settled(node, 1, filters[1])
        assert set(owners(node, filters[1]).values()) == {"b"}
        await node.publish("s", range(10))
        assert sorted(await Reader(joins).until(10)) == list(range(10))

    run(scenario, shared_partitions=1)


@pytest.mark.parametrize("use", [Use.TOPIC, Use.ALL])
def test_what_is_in_use_elsewhere_stays_when_the_last_one_here_leaves(use: Use) -> None:
    async def scenario(node: Node) -> None:
        async def use_elsewhere(task: Task) -> Use:
            return use

        shared = node.delivery.shared
        node.others.ask = use_elsewhere
        node.others.has_shares = True
        client = await join(node, "a")
        await settled(node, 1)
        node.unsubscribe(client, FILTER)
        await node.until(lambda: not shared._tasks)
        await node.delivery.tidy(Task(SHARE, FILTER.decode(), TOPIC))
        assert TOPIC in node.log.topics

    run(scenario, shared_partitions=1)
