"""A broker begins to write a shared topic that others write, too: is everything there in the order of the log?"""

from __future__ import annotations

import asyncio

import pytest

from penstock._ext.record.envelope import decode
from penstock.storage.log.base import Committed, LogUnavailable, TopicPartition
from penstock.storage.log.memory import MemoryLog
from tests.support.brokers.app_node import INGEST, Node, Reader, run

FILTER = b"$share/g/s/#"
TOPIC = "tbmq.msg.app.shared.s.mlw"
GROUP = f"application-shared-msg-consumer-group-g-{TOPIC}"
OTHER = "msg-all-consumer-group-other"


def memory_of(node: Node) -> MemoryLog:
    assert isinstance(node.log, MemoryLog)
    return node.log


async def dispatched(node: Node, topic: str, numbers: range) -> None:
    await node.publish(topic, numbers)
    await node.until(lambda: node.applications.dispatcher.dispatched.get(0, -1) >= numbers[-1])


async def begin(node: Node, *, others_at: int, is_known: bool) -> Reader:
    """A client that subscribes when ten messages were dispatched here, and by another broker so many of them.
    `is_known`: the group has members there."""
    log = memory_of(node)
    node.others.groups = [OTHER]
    log.offsets[OTHER] = {TopicPartition(INGEST, 0): Committed(others_at)}
    if is_known:
        await log.admin.create(TOPIC, 2)
        log.offsets[GROUP] = {TopicPartition(TOPIC, number): Committed(0) for number in range(2)}
    client = await node.connect("a")
    await node.subscribe(client, b"own")
    await dispatched(node, "s/1", range(10))
    await node.subscribe(client, FILTER)
    return Reader(client)


def written(node: Node) -> list[list[int]]:
    """The numbers in each partition of the shared topic."""
    return [
        [int(decode(value).payload) for pack in partition.run for value in pack.values()]
        for partition in memory_of(node).topics[TOPIC].partitions
    ]


def test_what_another_broker_has_not_written_comes_first() -> None:
    """Each record in the partition where the other one writes it, and nothing that is there already."""

    async def scenario(node: Node) -> None:
        reader = await begin(node, others_at=4, is_known=True)
        await dispatched(node, "s/2", range(10, 14))
        assert sorted(await reader.until(10)) == list(range(4, 14))
        await node.until(lambda: written(node) == [[4, 6, 8, 10, 12], [5, 7, 9, 11, 13]])

    run(scenario, shared_partitions=2)


def test_only_what_the_filter_is_to_have() -> None:
    async def scenario(node: Node) -> None:
        await node.connect("first")  # the dispatcher runs
        await dispatched(node, "t", range(5))
        await node.publish("s", range(5, 8), qos=0)
        reader = await begin(node, others_at=0, is_known=True)
        assert sorted(await reader.until(10)) == list(range(10))
        assert await reader.rest() == reader.numbers[:10]

    run(scenario, shared_partitions=2)


def test_a_new_group_begins_behind_it() -> None:
    """It was not there when the messages came."""

    async def scenario(node: Node) -> None:
        reader = await begin(node, others_at=4, is_known=False)
        await dispatched(node, "s/2", range(10, 14))
        assert sorted(await reader.until(4)) == list(range(10, 14))
        assert sorted(await reader.rest()) == list(range(10, 14))

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("others_at", [10, 1_000])
def test_nothing_is_written_again_where_others_are_ahead(others_at: int) -> None:
    async def scenario(node: Node) -> None:
        reader = await begin(node, others_at=others_at, is_known=True)
        await dispatched(node, "s/2", range(10, 14))
        assert sorted(await reader.until(4)) == list(range(10, 14))
        assert sorted(number for numbers in written(node) for number in numbers) == list(range(10, 14))

    run(scenario, shared_partitions=2)


def test_a_second_member_and_a_second_name_need_nothing() -> None:
    """The topic is written from here already."""

    async def scenario(node: Node) -> None:
        await begin(node, others_at=4, is_known=True)
        before = written(node)
        await node.subscribe(await node.connect("b"), FILTER)
        await node.subscribe(await node.connect("c"), b"$share/h/s/#")
        assert written(node) == before

    run(scenario, shared_partitions=2)


def test_what_is_dispatched_while_the_group_begins_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(node: Node) -> None:
        begin_group = node.delivery.shared.begin

        async def slowly(share_filter: bytes) -> None:
            await begin_group(share_filter)
            await dispatched(node, "s/2", range(10, 14))

        monkeypatch.setattr(node.delivery.shared, "begin", slowly)
        reader = await begin(node, others_at=4, is_known=True)
        assert sorted(await reader.until(10)) == list(range(4, 14))

    run(scenario, shared_partitions=2)


def test_nobody_becomes_a_member_when_it_cannot_be_read() -> None:
    async def scenario(node: Node) -> None:
        async def away(*_: object) -> dict[TopicPartition, Committed]:
            raise LogUnavailable("away")

        client = await node.connect("a")
        node.others.groups = [OTHER]
        memory_of(node).admin.group_offsets = away  # type: ignore[method-assign]
        with pytest.raises(LogUnavailable):
            await node.subscribe(client, FILTER)
        assert not node.delivery.shared.shares()

    run(scenario, shared_partitions=2)


def test_a_session_from_another_broker_brings_its_share() -> None:
    """What that one has not dispatched is written for the share, before the session is here and gets its own."""

    async def scenario(node: Node) -> None:
        log = memory_of(node)
        await log.admin.create(TOPIC, 2)
        log.offsets[GROUP] = {TopicPartition(TOPIC, number): Committed(0) for number in range(2)}
        await node.connect("here")
        await dispatched(node, "s/1", range(10))

        def insert() -> None:
            session = node._new_session("moved")
            session.since = 0
            session.is_adopted = True
            node.hub.trie.subscribe(session, FILTER, 1, 0)
            node.delivery.take(session)

        await node.applications.moves.adopt([FILTER], {0: 4}, insert)
        node.sessions["moved"].is_adopted = False
        await node.publish("s/2", range(10, 14))
        reader = Reader(await node.connect("moved"))
        assert sorted(await reader.until(10)) == list(range(4, 14))
        await asyncio.sleep(0.05)
        assert sorted(reader.look()) == list(range(4, 14))

    run(scenario, shared_partitions=2)
