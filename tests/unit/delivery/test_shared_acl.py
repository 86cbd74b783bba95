"""A message of a shared subscription goes to a member that may read it; only what nobody may read is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock._ext.acl import RECEIVE, AclProgram
from penstock.delivery.contexts import OFFERED
from tests.support.app_node import Node, Reader, restart, run
from tests.support.lanes import PUBLISH, LaneClient

FILTER = b"$share/g/s/#"


def deny(*topics: str) -> AclProgram:
    rules = [(False, RECEIVE, [level.encode() for level in topic.split("/")]) for topic in topics]
    return AclProgram([*rules, (True, RECEIVE, ["#"])])


async def join(node: Node, name: str, acl: AclProgram | None, options: int = 2) -> LaneClient:
    client = await node.connect(name)
    client.session.acl = acl
    await node.subscribe(client, FILTER, options)
    return client


def dropped(node: Node) -> int:
    return node.hub.counters_now()["messages_dropped_denied"]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("partitions", [1, 4])
def test_each_message_goes_to_one_who_may(qos: int, partitions: int) -> None:
    async def scenario(node: Node) -> None:
        first = Reader(await join(node, "a", deny("s/b")))
        second = Reader(await join(node, "b", deny("s/a")))
        readers = (first, second)
        for number in range(0, 60, 3):
            await node.publish("s/a", [number], qos=qos)
            await node.publish("s/b", [number + 1], qos=qos)
            await node.publish("s/c", [number + 2], qos=qos)
        await node.until(lambda: sum(len(reader.look()) for reader in readers) == 60)
        await asyncio.gather(*(reader.rest(0.05) for reader in readers))
        assert sorted(first.numbers + second.numbers) == list(range(60))
        assert {number % 3 for number in first.numbers} <= {0, 2}
        assert {number % 3 for number in second.numbers} <= {1, 2}
        assert dropped(node) == 0
        assert (await node.applications.overview.show("a"))["shared"][0]["lag"] == 0

    run(scenario, shared_partitions=partitions)


def test_what_is_in_flight_stays_with_its_client() -> None:
    """The partition goes to another one only when the first has acknowledged what it has."""

    async def scenario(node: Node) -> None:
        quiet = Reader(await join(node, "a", deny("s/b")), says_nothing=True)
        await node.publish("s/a", range(5))
        await quiet.until(5)
        other = Reader(await join(node, "b", deny("s/a")))
        await node.publish("s/b", [5])
        assert await other.rest(0.1) == []
        quiet.says_nothing = False
        for packet in [packet for packet in quiet.packets if packet.kind == PUBLISH]:
            quiet.client.say(4, packet.packet_id)
        assert await other.until(1) == [5]
        assert quiet.look() == list(range(5))

    run(scenario, shared_partitions=1)


def test_what_nobody_may_have_is_dropped_and_counted() -> None:
    async def scenario(node: Node) -> None:
        readers = [Reader(await join(node, name, deny("s/b"))) for name in ("a", "b")]
        for number in range(10):
            await node.publish("s/b" if number % 2 else "s/a", [number])
        await node.until(lambda: sum(len(reader.look()) for reader in readers) == 5)
        await node.until(lambda: dropped(node) == 5)
        assert (await node.applications.overview.show("a"))["shared"][0]["lag"] == 0

    run(scenario, shared_partitions=2)


@pytest.mark.parametrize("crashes", [False, True])
def test_only_one_who_is_away_may_have_it(crashes: bool) -> None:
    """It gets it when it is back, once, with the QoS and identifier of its subscription."""

    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a", deny("s/b")))
        away = await join(node, "b", None, 1)
        await node.until(lambda: len(node.delivery.book) == 4)  # two own topics, two partitions
        away.lose()
        for number in range(10):
            await node.publish("s/b" if number % 2 else "s/a", [number], qos=2)
        assert sorted(await reader.until(5)) == [0, 2, 4, 6, 8]
        await node.until(lambda: node.delivery.contexts.keys(OFFERED, "b"))
        await reader.rest(0.3)
        assert dropped(node) == 0
        if crashes:
            node = await restart(node, shared_partitions=2)
            node.sessions["a"].acl = deny("s/b")
        back = Reader(await node.connect("b"))
        await back.until(5)
        await back.rest(0.05)
        assert sorted(back.numbers) == [1, 3, 5, 7, 9]
        assert {packet.qos for packet in back.packets if packet.kind == PUBLISH} == {1}
        await node.until(lambda: not node.delivery.contexts.keys(OFFERED, "b"))
        if crashes:
            await node.stop()

    run(scenario, shared_partitions=2)


def test_who_leaves_the_share_leaves_what_waited_for_it() -> None:
    async def scenario(node: Node) -> None:
        await join(node, "a", deny("s/b"))
        away = await join(node, "b", None)
        away.lose()
        await node.publish("s/b", [1])
        await node.until(lambda: node.delivery.contexts.keys(OFFERED, "b"))
        client = await node.connect("b")
        node.unsubscribe(client, FILTER)
        await node.subscribe(client, FILTER)
        await node.until(lambda: not node.delivery.contexts.keys(OFFERED, "b"))

    run(scenario, shared_partitions=1)


@pytest.mark.parametrize("crashes", [False, True])
def test_what_waits_for_one_who_is_away_is_not_delivered_by_its_partition_as_well(crashes: bool) -> None:
    """It comes back, or the broker is killed, right after the message was put aside for it."""

    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a", deny("s/b")))
        away = await join(node, "b", None)
        away.lose()
        await node.until(lambda: len(node.delivery.book) == 2)
        put_aside = node.delivery.shared._keep_for
        happened = asyncio.Event()

        def put_aside_and_tell(*arguments: Any) -> None:
            put_aside(*arguments)
            happened.set()

        node.delivery.shared._keep_for = put_aside_and_tell  # type: ignore[method-assign]  # to be there at once
        await node.publish("s/b", [1], qos=2)
        await happened.wait()
        if crashes:
            for _ in range(3):
                await asyncio.sleep(0)
            node = await restart(node, shared_partitions=1)
        else:
            reader.client.lose()
        back = Reader(await node.connect("b"))
        await back.until(1)
        await back.rest(0.3)
        assert back.numbers == [1]
        if crashes:
            await node.stop()

    run(scenario, shared_partitions=1)
