"""A message of a shared subscription goes to a member that may read it; only what nobody may read is dropped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock._ext.application.context import read_context
from penstock._ext.match.acl import RECEIVE, AclProgram
from penstock.subscribers.application.contexts import OFFERED
from tests.support.brokers.app_node import Node, Reader, restart, run
from tests.support.worlds.lanes import PUBACK, PUBLISH, PUBREC, LaneClient

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
        put_aside = node.delivery.shared.claims.offer
        happened = asyncio.Event()

        def put_aside_and_tell(*arguments: Any) -> None:
            put_aside(*arguments)
            happened.set()

        node.delivery.shared.claims.offer = put_aside_and_tell  # type: ignore[method-assign]  # to be there at once
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


def slow_down(node: Node, monkeypatch: pytest.MonkeyPatch, seconds: float = 0.2) -> None:
    """Consumers without a group, which read claims and offers, begin late."""
    make = node.log.consumer

    def make_slow(group: str, *arguments: Any, **options: Any) -> Any:
        consumer = make(group, *arguments, **options)
        if not group:
            add = consumer.add

            async def add_late(starts: Any) -> None:
                await asyncio.sleep(seconds)
                await add(starts)

            monkeypatch.setattr(consumer, "add", add_late)
        return consumer

    monkeypatch.setattr(node.log, "consumer", make_slow)


async def offer_only(node: Node, count: int, numbers: list[int], qos: int) -> LaneClient:
    """Publish messages that only a member who is offline may have, and lose the other one when so many are offered."""
    client = await join(node, "a", deny("s/b"))
    await node.until(lambda: len(node.delivery.book) >= 2)
    put_aside = node.delivery.shared.claims.offer
    offered = 0

    def put_aside_and_leave(*arguments: Any) -> None:
        nonlocal offered
        put_aside(*arguments)
        offered += 1
        if offered == count:
            asyncio.get_running_loop().call_soon(client.lose)

    node.delivery.shared.claims.offer = put_aside_and_leave  # type: ignore[method-assign]  # to be there at once
    await node.publish("s/b", numbers, qos=qos)
    await node.until(lambda: offered == count and client.session.connection is None)
    return client


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("crashes", [False, True])
def test_offers_come_before_the_rest_of_their_partition(
    qos: int, crashes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first member left when half of the messages were put aside: the rest is still in the partition."""

    async def scenario(node: Node) -> None:
        (await join(node, "b", None, qos)).lose()
        await offer_only(node, 3, list(range(6)), 2)
        if crashes:
            await asyncio.sleep(0.3)
            node = await restart(node, shared_partitions=1)
        slow_down(node, monkeypatch)
        back = Reader(await node.connect("b"))
        await back.until(6)
        await back.rest(0.1)
        assert back.numbers == list(range(6))
        await node.until(lambda: not node.delivery.contexts.keys(OFFERED, "b"))
        if crashes:
            await node.stop()

    run(scenario, shared_partitions=1)


def test_offers_come_first_where_the_partition_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The member who is back has the offers, then the partition: the first member may not have its next message."""

    async def scenario(node: Node) -> None:
        (await join(node, "b", None)).lose()
        first = Reader(await join(node, "a", deny("s/b")))
        await node.publish("s/b", range(3), qos=2)
        await node.until(lambda: count_offered(node, "b") == 3)
        slow_down(node, monkeypatch)
        back = Reader(await node.connect("b"))
        await node.publish("s/b", range(3, 6), qos=2)
        await back.until(6)
        await back.rest(0.1)
        assert back.numbers == list(range(6))
        assert first.look() == []

    run(scenario, shared_partitions=1)


def test_a_client_that_does_not_acknowledge_its_offers_gets_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the partition waits until the offers are sent, not until they are acknowledged."""

    async def scenario(node: Node) -> None:
        (await join(node, "b", None)).lose()
        await offer_only(node, 3, list(range(6)), 1)
        slow_down(node, monkeypatch)
        back = Reader(await node.connect("b"), says_nothing=True)
        assert await back.until(6) == list(range(6))

    run(scenario, shared_partitions=1)


def count_offered(node: Node, name: str) -> int:
    contexts = node.delivery.contexts
    values = [contexts.get(key) or b"" for key in contexts.keys(OFFERED, name)]
    return sum(run[2] for value in values for run in read_context(value)["in_flight"])


def change_rules(node: Node, **rules: AclProgram | None) -> None:
    """What a reload does."""
    for name, acl in rules.items():
        node.sessions[name].acl = acl
    node.hub.trie.bump()


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("is_online", [True, False])
@pytest.mark.parametrize("version", [4, 5])
def test_messages_that_were_planned_before_a_right_went(version: int, is_online: bool, qos: int) -> None:
    """Those that were not sent yet go to the other member, in order; those that were sent stay with their client."""

    async def scenario(node: Node) -> None:
        client = await node.connect("a", version=version, receive_maximum=3)  # one place is reserved
        client.session.acl = deny()
        await node.subscribe(client, FILTER, 2)
        first = Reader(client, says_nothing=True)
        (await join(node, "b", None)).lose()
        for number in range(10):
            await node.publish("s/b" if number % 2 else "s/a", [number], qos=qos)
        (lane,) = node.delivery.shared.shares()[0].lanes.values()
        await node.until(lambda: lane.in_flight == 10)
        assert await first.until(2) == [0, 1]
        second = Reader(await node.connect("b")) if is_online else None
        change_rules(node, a=deny("s/b"))
        await answer(first, qos)
        if second is None:
            assert await first.until(6) == [0, 1, 2, 4, 6, 8]
            await node.until(lambda: first.look() and count_offered(node, "b") == 4)
            second = Reader(await node.connect("b"))
        await node.until(lambda: len(first.look()) + len(second.look()) == 10)
        await asyncio.gather(first.rest(0.1), second.rest(0.1))
        assert sorted(first.numbers + second.numbers) == list(range(10))
        assert {number for number in first.numbers if number % 2} == {1}
        assert [number for number in second.numbers if number % 2] == [3, 5, 7, 9]
        assert dropped(node) == 0
        assert first.client.session.inflight == 0

    run(scenario, shared_partitions=1)


async def answer(reader: Reader, qos: int) -> None:
    """Acknowledge what came, and everything from now on."""
    reader.says_nothing = False
    for packet in [packet for packet in reader.packets if packet.kind == PUBLISH]:
        reader.client.say(PUBACK if qos == 1 else PUBREC, packet.packet_id)


@pytest.mark.parametrize("is_online", [True, False])
def test_an_offer_to_a_client_that_loses_its_right(is_online: bool) -> None:
    """It goes to the next member who may have it, and is dropped only where there is none."""

    async def scenario(node: Node) -> None:
        for name in "bc":
            (await join(node, name, None)).lose()
        await join(node, "a", deny("s/b"))
        await node.publish("s/b", range(4), qos=2)
        await node.until(lambda: count_offered(node, "b") == 4)
        change_rules(node, b=deny("s/b"))
        last = Reader(await node.connect("c")) if is_online else None
        back = Reader(await node.connect("b"))
        if last is None:
            await node.until(lambda: count_offered(node, "c") == 4)
            last = Reader(await node.connect("c"))
        await last.until(4)
        await last.rest(0.1)
        assert sorted(last.numbers) == list(range(4))
        assert back.look() == []
        assert dropped(node) == 0
        await node.until(lambda: not count_offered(node, "b"))

    run(scenario, shared_partitions=1)


def test_what_waited_for_a_session_that_ends_goes_to_another_who_may_have_it() -> None:
    async def scenario(node: Node) -> None:
        await join(node, "a", deny("s/b"))
        for name in "bc":
            (await join(node, name, None)).lose()
        await node.publish("s/b", [1], qos=2)
        (first,) = await offered(node)
        node.end(node.sessions[first])
        (second,) = {"b", "c"} - {first}
        back = Reader(await node.connect(second))
        await back.until(1)
        await back.rest(0.1)
        assert back.numbers == [1]

    async def offered(node: Node) -> list[str]:
        def names() -> list[str]:
            return [name for name in "bc" if node.delivery.contexts.keys(OFFERED, name)]

        await node.until(names)
        return names()

    run(scenario, shared_partitions=1)
