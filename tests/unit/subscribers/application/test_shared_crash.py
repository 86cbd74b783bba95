"""Shares of APPLICATION clients after a crash: who has which message, under which packet id, and what comes next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from penstock._ext.application.context import read_context, write_context
from penstock.storage.log.base import Committed, TopicPartition
from penstock.storage.state.base import Change, OnStored
from penstock.storage.state.memory import MemoryStateStore
from penstock.subscribers.application.contexts import CLAIMED, OFFERED, OWN, SHARED, TABLE, make_key
from penstock.subscribers.application.lane_book import LaneBook
from penstock.subscribers.application.shared.begin import ShareBegins
from penstock.subscribers.application.shared.contexts import claim_key
from penstock.subscribers.application.shared.returns import RETURNED
from penstock.subscribers.application.shared.shares import Share
from tests.support.brokers.app_node import Node, Reader, restart, run
from tests.support.worlds.lanes import PUBREC, PUBREL, LaneClient
from tests.unit.subscribers.application.test_shared import FILTER, GROUP, TOPIC, join, owners, sent, settled

SECOND = b"$share/h/s"


def after_a_crash(
    before: Callable[[Node], Awaitable[Any]], then: Callable[[Node, Any], Awaitable[None]], **settings: Any
) -> None:
    """`then` runs on a new node, with what `before` returned."""

    async def scenario(node: Node) -> None:
        known = await before(node)
        other = await restart(node, **settings)
        try:
            await then(other, known)
        finally:
            await other.stop()

    run(scenario, **settings)


async def two_quiet_members(node: Node, order: str = "ab") -> dict[str, list[tuple[int, int, bool]]]:
    """Both have QoS 2 messages that they did not acknowledge; that these were sent is not stored."""
    readers = {}
    for name in order:
        readers[name] = Reader(await join(node, name), says_nothing=True)
        await settled(node, 2)
    assert owners(node) == dict(enumerate(order))
    await node.publish("s", range(20), qos=2)
    await node.until(lambda: all(len(reader.look()) == 10 for reader in readers.values()))
    return {name: sent(reader.packets) for name, reader in readers.items()}


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_messages_that_may_have_been_sent_stay_with_their_client(order: str) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.8.2-4]: also when another member is the first to come back, and takes all partitions."""

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        first = Reader(await node.connect(order[0]))
        await node.until(lambda: set(owners(node).values()) == {order[0]})
        await first.rest(0.2)
        second = Reader(await node.connect(order[1]))
        await node.publish("s", range(20, 40), qos=2)
        await node.until(lambda: len(first.look()) + len(second.look()) == 40)
        for name, reader in zip(order, (first, second), strict=True):
            again = [packet for packet in sent(reader.packets) if packet[1] < 20]
            assert sorted(again) == sorted((packet_id, number, True) for packet_id, number, _ in had[name])
            ids = [packet.packet_id for packet in reader.packets if packet.payload]
            assert len(set(ids)) == len(ids)

    after_a_crash(two_quiet_members, then, shared_partitions=2)


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_partitions_that_arrive_after_the_members(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Kafka waits for the killed member of the group. Clients that are back by then get their messages again, also when
    their partitions go to other members [MQTT-4.4.0-1] [MQTT-4.8.2-4]."""
    may_begin = asyncio.Event()
    find_start = ShareBegins.find_start

    async def find_start_later(begins: ShareBegins, share: Share, partition: int) -> int:
        await may_begin.wait()
        return await find_start(begins, share, partition)

    async def before(node: Node) -> dict[str, list[tuple[int, int, bool]]]:
        had = await two_quiet_members(node, order)
        monkeypatch.setattr(ShareBegins, "find_start", find_start_later)
        return had

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        readers = {name: Reader(await node.connect(name)) for name in "ab"}
        assert owners(node) == {}
        may_begin.set()
        await node.publish("s", range(20, 40), qos=2)
        await node.until(lambda: sum(len(reader.look()) for reader in readers.values()) == 40)
        assert owners(node) == {0: "a", 1: "b"}
        for name, reader in readers.items():
            again = [packet for packet in sent(reader.packets) if packet[1] < 20]
            assert sorted(again) == sorted((packet_id, number, True) for packet_id, number, _ in had[name])
        await asyncio.gather(*(reader.rest(0.1) for reader in readers.values()))
        assert all(lane.in_flight == 0 for lane in node.delivery.book)

    after_a_crash(before, then, shared_partitions=2)


def test_ids_that_an_absent_client_may_hold_are_kept_over_two_crashes() -> None:
    """The second broker that is killed has only seen the other member."""

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        await Reader(await node.connect("a")).until(10)
        await asyncio.sleep(0.25)
        third = await restart(node, shared_partitions=2)
        try:
            await Reader(await third.connect("a")).rest(0.2)
            reader = Reader(await third.connect("b"))
            await third.publish("s", range(20, 40), qos=2)
            await third.until(lambda: sum(number >= 20 for number in reader.look()) >= 10)
            await reader.rest(0.1)
            packets = sent(reader.packets)
            assert sorted(one for one in packets if one[1] < 20) == sorted((i, n, True) for i, n, _ in had["b"])
            assert not {one[0] for one in packets if one[1] >= 20} & {one[0] for one in had["b"]}
        finally:
            await third.stop()

    after_a_crash(two_quiet_members, then, shared_partitions=2)


@pytest.mark.parametrize("laps", [0, 3])
def test_packet_ids_of_a_client_with_shares_only_go_on(laps: int) -> None:
    """They do not begin again at 1, and of several contexts the one with the id given last counts."""
    last = {0: 700, 1: 65_000 if laps else 9}
    state = MemoryStateStore()
    state.tables[TABLE] = {
        make_key(SHARED, GROUP, TOPIC, number): b"a\0"
        + write_context(
            {
                "committed": 0,
                "end": 0,
                "last_packet_id": last[number],
                "laps": laps if number == 0 else 0,
                "seen": {},
                "in_flight": [],
            }
        )
        for number in range(2)
    }

    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC, 2)
        session = node._new_session("a")
        node.hub.trie.subscribe(session, FILTER, 2)
        await node.delivery.contexts.load()
        await node.delivery.restore([session])
        own = node.delivery.contexts.get(make_key(OWN, "a", "tbmq.msg.app.a", 0))
        assert own is not None
        assert read_context(own)["last_packet_id"] == 700  # another member may take over the partition
        reader = Reader(await node.connect("a"))
        await node.fill(TOPIC, range(3))
        await reader.until(3)
        assert [packet_id for packet_id, _, _ in sent(reader.packets)] == [701, 702, 703]

    run(scenario, state=state, shared_partitions=2)


def test_the_group_has_committed_more_than_the_context_says() -> None:
    """The two are stored apart. What the context has in flight from there on is still in flight: it must not be sent
    again under another packet id."""
    key = make_key(SHARED, GROUP, TOPIC, 0)
    runs = [(2, 3, 1, "sent qos 2"), (4, 5, 2, "received"), (6, 7, 1, "ready qos 2")]
    state = MemoryStateStore()
    state.tables[TABLE] = {
        key: b"a\0" + write_context({"committed": 2, "end": 7, "last_packet_id": 7, "seen": {}, "in_flight": runs})
    }

    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(9), qos=2)
        consumer = node.log.consumer(GROUP)
        await consumer.commit({TopicPartition(TOPIC, 0): Committed(5)})
        await consumer.close()
        for name in "ab":
            node.hub.trie.subscribe(node._new_session(name), FILTER, 2)
        await node.delivery.contexts.load()
        await node.delivery.restore(list(node.sessions.values()))
        other = Reader(await node.connect("b"))
        await other.until(2)
        reader = Reader(await node.connect("a"))
        await reader.until(1)
        await asyncio.gather(other.rest(0.2), reader.rest(0.2))
        assert sorted(other.numbers) == [7, 8]
        assert sent(reader.packets) == [(7, 6, True)]
        assert [packet.packet_id for packet in reader.packets if packet.kind == PUBREL] == [6, 7]

    run(scenario, state=state, shared_partitions=1)


def test_a_client_that_is_not_attached_yet_gets_nothing_of_a_share() -> None:
    """Its connection is there, its CONNACK is not: what it was given meanwhile would be opened a second time, and sent
    again under new packet ids."""

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        session = node.sessions["b"]
        node.kinds.opened(session, is_present=True)
        client = LaneClient(node.hub, session)
        first = Reader(await node.connect("a"))
        await first.until(10)
        await node.until(lambda: set(owners(node).values()) == {"a"})
        node.kinds.attached(session)
        second = Reader(client)
        await node.publish("s", range(20, 40), qos=2)
        await node.until(lambda: len(first.look()) + len(second.look()) == 40)
        await asyncio.gather(first.rest(0.1), second.rest(0.1))
        again = [packet for packet in sent(second.packets) if packet[1] < 20]
        assert sorted(again) == sorted((packet_id, number, True) for packet_id, number, _ in had["b"])
        assert len(first.numbers) + len(second.numbers) == 40

    after_a_crash(two_quiet_members, then, shared_partitions=2)


def test_a_message_in_a_claim_and_in_its_partition() -> None:
    """On Kafka the two are stored one after the other: the claim is the newer one."""
    claim = claim_key(CLAIMED, "a", GROUP, TOPIC, 0)
    whole = {"committed": 0, "end": 3, "last_packet_id": 3, "seen": {}}
    state = MemoryStateStore()
    state.tables[TABLE] = {
        make_key(SHARED, GROUP, TOPIC, 0): b"a\0" + write_context({**whole, "in_flight": [(0, 1, 3, "sent qos 2")]}),
        claim: write_context({**whole, "committed": 1, "end": 2, "in_flight": [(1, 2, 1, "sent qos 2")]}),
    }

    async def scenario(node: Node) -> None:
        await node.log.admin.create(TOPIC)
        await node.fill(TOPIC, range(3), qos=2)
        node.hub.trie.subscribe(node._new_session("a"), FILTER, 2)
        await node.delivery.contexts.load()
        await node.delivery.restore(list(node.sessions.values()))
        reader = Reader(await node.connect("a"))
        await reader.until(3)
        await reader.rest(0.1)
        assert sorted(sent(reader.packets)) == [(1, 0, True), (2, 1, True), (3, 2, True)]

    run(scenario, state=state, shared_partitions=1)


@pytest.mark.parametrize("is_back", [False, True])
def test_the_session_of_an_absent_client_ends(is_back: bool) -> None:
    """What it may never have been sent goes back to the group. What it was sent goes to nobody else [MQTT-4.8.2-5]."""

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        other = Reader(await node.connect("a"))
        await other.until(10)
        surely: list[int] = []
        if is_back:  # now it is known that it was sent
            client = await node.connect("b")
            quiet = Reader(client, says_nothing=True)
            surely = await quiet.until(10)
            client.say(PUBREC, quiet.packets[0].packet_id)
            await node.until(lambda: any(packet.kind == PUBREL for packet in client.take()))
            client.lose()
        node.end(node.sessions["b"])
        await node.publish("s", range(20, 30), qos=2)
        wanted = sorted(set(range(30)) - set(surely))
        await other.until(len(wanted))
        await other.rest(0.1)
        assert sorted(other.numbers) == wanted
        assert not node.delivery.contexts.keys(CLAIMED, "b")

    after_a_crash(two_quiet_members, then, shared_partitions=2)


def test_a_new_session_has_nothing_of_the_old_one() -> None:
    """No other member was there to take over the partition."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        other = await join(node, "b")
        other.lose()
        await settled(node, 1)
        await node.publish("s", range(4), qos=2)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(4)
        first.lose()
        again = await node.connect("a", clean=True)
        await node.subscribe(again, FILTER)
        reader = Reader(again)
        await settled(node, 1)
        await node.publish("s", range(4, 8), qos=2)
        await reader.until(4)
        await reader.rest(0.1)
        assert sorted(reader.numbers) == [4, 5, 6, 7]
        assert not any(packet.dup for packet in reader.packets)

    run(scenario, shared_partitions=1)


def store_only(state: MemoryStateStore, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing after so many more changes becomes durable."""
    left = count
    store = state.store

    def store_some(changes: Iterable[Change], on_done: OnStored | None = None) -> None:
        nonlocal left
        given = list(changes)
        store(given[:left], on_done if len(given) <= left else None)
        left = max(0, left - len(given))

    monkeypatch.setattr(state, "store", store_some)


async def commit_nothing(_book: LaneBook) -> None:
    pass


@pytest.mark.parametrize("changes", [0, 1, 2, 3, 4, 1_000_000])
@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_broker_is_killed_just_after_a_session_has_ended(
    changes: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much of what follows from the end is stored: the other member gets what may never have been sent."""

    async def then(node: Node, had: dict[str, list[tuple[int, int, bool]]]) -> None:
        first = Reader(await node.connect("a"))
        await node.publish("s", range(20, 40), qos=2)
        await first.until(30)
        share = node.delivery.shared._shares[FILTER]
        async with asyncio.timeout(20):
            while await share.reader.committed(TopicPartition(TOPIC, 1)) != 20:
                await first.rest(0.05)
        first.says_nothing = True
        store_only(node.state, changes, monkeypatch)
        with monkeypatch.context() as patched:
            patched.setattr(LaneBook, "_commit", commit_nothing)  # which comes every second, and at a regular end
            node.end(node.sessions["b"])
            await asyncio.sleep(seconds)
            other = await restart(node, shared_partitions=2)
        try:
            assert set(other.sessions) == {"a"}
            reader = Reader(await other.connect("a"))
            await other.publish("s", range(40, 50), qos=2)
            await reader.until(20)
            await reader.rest(0.1)
            assert sorted(reader.numbers) == sorted([*(number for _, number, _ in had["b"]), *range(40, 50)])
            assert set(first.look()[30:]) <= set(reader.numbers)
            assert not other.delivery.contexts.keys(CLAIMED, "b")
            assert not other.delivery.contexts.keys(OFFERED, RETURNED)
        finally:
            await other.stop()

    after_a_crash(two_quiet_members, then, shared_partitions=2)


def test_a_partition_that_leaves_before_its_offset_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read when it is back."""
    may_begin = asyncio.Event()
    find_start = ShareBegins.find_start

    async def find_start_later(begins: ShareBegins, share: Share, partition: int) -> int:
        await may_begin.wait()
        return await find_start(begins, share, partition)

    monkeypatch.setattr(ShareBegins, "find_start", find_start_later)

    async def scenario(node: Node) -> None:
        reader = Reader(await join(node, "a"))
        share = node.delivery.shared._shares[FILTER]
        await node.until(lambda: all(share.reader.holds(TopicPartition(TOPIC, one)) for one in range(2)))
        other = node.log.consumer(GROUP)
        other.subscribe([TOPIC])
        while len(other.assignment()) < 1:
            await other.poll(1, 0.05)
        await node.until(lambda: sum(share.reader.holds(TopicPartition(TOPIC, one)) for one in range(2)) == 1)
        may_begin.set()
        await settled(node, 1)
        await asyncio.sleep(0.05)
        await other.close()
        await settled(node, 2)
        await node.publish("s", range(20))
        await reader.until(20)

    run(scenario, shared_partitions=2, seconds=20)
