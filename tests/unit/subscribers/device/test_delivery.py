"""DEVICE clients whose store fails at the wrong moment: nothing is lost, nobody gets what was another session's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock._ext.application.feed import Feed
from penstock._ext.record.envelope import encode, encode_delivery
from penstock._ext.record.segment import RecordPack
from penstock.core.clock import now_ms
from penstock.settings.redis import DeviceSettings
from penstock.subscribers.device import delivery as module
from penstock.subscribers.device.store.base import (
    Addition,
    build_source,
    client_queue,
    group_queue,
    result_of,
)
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from tests.support.brokers.device_node import DeviceLog, DeviceNode, FaultyStore
from tests.support.worlds.lanes import PUBACK, PUBLISH, LaneClient

QUICK: dict[str, Any] = {"persist_after": 0.02}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.02)


def run(path: Path, scenario: Callable[[DeviceNode], Awaitable[DeviceNode | None]]) -> None:
    async def main() -> None:
        node: DeviceNode | None = make_node(path, DeviceLog())
        assert node is not None
        async with asyncio.timeout(60):
            await node.start()
            node = await scenario(node) or node
            await node.stop()

    asyncio.run(main())


def make_node(path: Path, log: DeviceLog) -> DeviceNode:
    return DeviceNode(log, FaultyStore(LmdbDeviceStore(path / "devices", DeviceSettings())), **QUICK)


async def restart(node: DeviceNode, path: Path) -> DeviceNode:
    known = await node.stop()
    other = make_node(path, node.log)
    await other.start(known)
    return other


async def subscribed(node: DeviceNode, name: str, topic_filter: bytes = b"t", options: int = 2) -> LaneClient:
    client = node.connect(name)
    node.hub.trie.subscribe(client.session, topic_filter, options, 0)
    await node.until(lambda: client.session.live)
    return client


async def receive(node: DeviceNode, client: LaneClient, count: int, *, acks: bool = True) -> list[tuple[int, bytes]]:
    """So many publishes: packet ids and payloads."""
    found: list[tuple[int, bytes]] = []

    def look() -> bool:
        for packet in client.take():
            assert packet.kind == PUBLISH
            found.append((packet.packet_id, packet.payload))
            if acks:
                client.say(PUBACK, packet.packet_id)
        return len(found) >= count

    await node.until(look)
    return found


async def stored(node: DeviceNode, name: str) -> int:
    return int((await result_of(node.store.describe, client_queue(name))).messages)


async def until_stored(node: DeviceNode, name: str, count: int) -> None:
    async with asyncio.timeout(30):
        while await stored(node, name) != count:  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.002)


def test_messages_of_a_session_that_ended_while_the_store_was_away_are_not_the_next_ones(tmp_path: Path) -> None:
    """[MQTT-3.1.2-4]: a clean start begins with nothing, however long the store takes to forget; and what comes for the
    new session meanwhile is not forgotten with it."""

    async def scenario(node: DeviceNode) -> None:
        (await subscribed(node, "a")).lose()
        node.publish(b"old 1", b"old 2")
        await node.until(lambda: node.is_settled)
        node.store.failing = {"remove_all", "add", "fetch"}
        client = node.connect("a", clean=True)
        node.hub.trie.subscribe(client.session, b"t", 2, 0)
        node.publish(b"new 1")
        await node.until(lambda: node.store.calls.count("remove_all") >= 3)
        node.store.failing = {"remove_all"}
        calls = len(node.store.calls)
        await node.until(lambda: "remove_all" in node.store.calls[calls:])
        assert client.take() == []
        node.store.failing = set()
        node.publish(b"new 2")
        assert [payload for _, payload in await receive(node, client, 2)] == [b"new 1", b"new 2"]
        await node.until(lambda: node.is_settled and client.session.live)

    run(tmp_path, scenario)


def test_messages_of_a_session_that_ended_before_a_restart(tmp_path: Path) -> None:
    """The store did not answer, then the broker ended: the next session of the client begins with nothing."""

    async def scenario(node: DeviceNode) -> DeviceNode:
        (await subscribed(node, "a")).lose()
        node.publish(b"old")
        await node.until(lambda: node.is_settled)
        node.store.failing = {"remove_all"}
        node.end(node.sessions["a"])
        other = await restart(node, tmp_path)
        assert await stored(other, "a") == 1
        client = await subscribed(other, "a")
        other.publish(b"new")
        assert [payload for _, payload in await receive(other, client, 1)] == [b"new"]
        return other

    run(tmp_path, scenario)


def test_a_new_session_costs_the_store_one_call(tmp_path: Path) -> None:
    async def scenario(node: DeviceNode) -> None:
        await subscribed(node, "a")
        assert node.store.calls == ["remove_all"]

    run(tmp_path, scenario)


async def two_that_cannot_be_removed(node: DeviceNode) -> LaneClient:
    """Messages with the ids 5 and 4, in this order, that the client has acknowledged and the store has still. The next
    that is sent gets 5."""
    (await subscribed(node, "a")).lose()
    pack = RecordPack()
    for packet_id in (5, 4):
        value = encode("t", b"old %d" % packet_id, 1, received_at=now_ms())
        pack.append(value, build_source(9, packet_id, packet_id=packet_id))
    await result_of(node.store.add, [Addition(client_queue("a"), pack)])
    node.store.failing = {"remove"}
    client = node.connect("a")
    assert await receive(node, client, 2) == [(5, b"old 5"), (4, b"old 4")]
    await node.until(lambda: "remove" in node.store.calls and client.session.live)
    node.store.failing = set()
    return client


def test_what_is_sent_under_an_id_that_is_still_stored_survives_a_crash(tmp_path: Path) -> None:
    """It is stored under another id, and the acknowledgement of the next one removes that and no other."""

    async def scenario(node: DeviceNode) -> DeviceNode:
        client = await two_that_cannot_be_removed(node)
        node.publish(b"held", b"done")
        assert await receive(node, client, 2, acks=False) == [(5, b"held"), (6, b"done")]
        await node.until(lambda: node.is_settled)
        assert await stored(node, "a") == 4
        client.say(PUBACK, 6)
        await node.until(lambda: node.store.calls[-1] == "remove")
        node = await restart(node, tmp_path)
        client = node.connect("a")
        found = await receive(node, client, 3)
        assert [payload for _, payload in found] == [b"old 5", b"old 4", b"held"]
        await node.until(lambda: client.session.live)
        await until_stored(node, "a", 0)
        return node

    run(tmp_path, scenario)


def test_what_is_sent_under_an_id_that_is_still_stored_comes_again_once(tmp_path: Path) -> None:
    async def scenario(node: DeviceNode) -> None:
        client = await two_that_cannot_be_removed(node)
        node.publish(b"held")
        await receive(node, client, 1, acks=False)
        await node.until(lambda: node.is_settled)
        client.lose()
        client = node.connect("a")
        found = await receive(node, client, 2)
        await node.until(lambda: client.session.live)
        client = node.connect("a")
        await node.until(lambda: client.session.live)
        # The old ones come again: nobody could remove them.
        found += [(packet.packet_id, packet.payload) for packet in client.take()]
        assert found.count((5, b"held")) == 1
        assert {payload for _, payload in found} == {b"held", b"old 4", b"old 5"}

    run(tmp_path, scenario)


def test_a_group_is_drained_when_the_store_works_again(tmp_path: Path) -> None:
    """Before, the messages waited in the group until somebody came back once more."""

    async def scenario(node: DeviceNode) -> None:
        (await subscribed(node, "a", b"$share/g/t")).lose()
        node.publish(*(b"%d" % number for number in range(10)))
        await node.until(lambda: node.is_settled)
        node.store.failing = {"move"}
        client = node.connect("a")
        await node.until(lambda: node.store.calls.count("move") >= 3)
        assert client.take() == []
        assert not client.session.live
        node.store.failing = set()
        assert [payload for _, payload in await receive(node, client, 10)] == [b"%d" % number for number in range(10)]
        await node.until(lambda: client.session.live)
        assert (await result_of(node.store.describe, group_queue("g", "t"))).messages == 0

    run(tmp_path, scenario)


def test_a_group_is_drained_behind_what_its_member_was_sent(tmp_path: Path) -> None:
    """The store refuses what a client was sent and has not acknowledged. Were the group's messages moved before it is
    stored, one of them would get its id, and be taken for it: neither sent nor kept."""

    async def scenario(node: DeviceNode) -> None:
        client = await subscribed(node, "a", b"own")
        node.hub.trie.subscribe(client.session, b"$share/g/t", 2, 0)
        node.store.failing = {"add"}
        node.publish(b"sent 1", b"sent 2", topic="own")
        sent = await receive(node, client, 2, acks=False)
        client.lose()
        node.store.failing = set()
        node.publish(*(b"%d" % number for number in range(5)))  # for the group: everybody is away
        await node.until(lambda: node.store.calls.count("add") >= 2)
        node.store.failing = {"add"}
        client = node.connect("a")
        await asyncio.sleep(0.05)
        assert "move" not in node.store.calls
        node.store.failing = set()
        found = await receive(node, client, 7)
        assert found[:2] == sent
        assert sorted(payload for _, payload in found[2:]) == [b"%d" % number for number in range(5)]
        await node.until(lambda: client.session.live)
        await until_stored(node, "a", 0)

    run(tmp_path, scenario)


def test_additions_behind_one_that_failed_keep_their_order(tmp_path: Path) -> None:
    async def scenario(node: DeviceNode) -> None:
        (await subscribed(node, "a")).lose()
        node.store.failing = {"add"}
        for number in range(20):
            node.publish(b"%d" % number)
            if number == 10:
                await node.until(lambda: node.store.calls.count("add") > 12)
        node.store.failing = set()
        client = node.connect("a")
        assert [payload for _, payload in await receive(node, client, 20)] == [b"%d" % number for number in range(20)]
        await node.until(lambda: node.is_settled and client.session.live)

    run(tmp_path, scenario)


def test_no_packet_id_left_while_the_client_is_away(tmp_path: Path) -> None:
    """The limit is all ids there are. What is under way has its id still when it has given way in the store: the
    oldest that are not under way give way then, or nothing would be dispatched to anybody any more."""

    async def scenario(node: DeviceNode) -> None:
        client = await subscribed(node, "a")
        node.publish(*(b"sent %d" % number for number in range(20)))
        sent = await receive(node, client, 20, acks=False)
        await until_stored(node, "a", 20)
        client.lose()
        total = 65_535
        for first in range(20, total, 5_000):
            node.publish(*(b"%d" % number for number in range(first, min(first + 5_000, total))))
        await until_stored(node, "a", total)
        node.publish(b"new 1", b"new 2", b"new 3")
        await node.until(lambda: node.is_settled)
        assert node.sessions["a"].dropped()["store_full"] == node.hub.counters_now()["messages_dropped_store_full"] == 3
        client = node.connect("a")
        found = await receive(node, client, total)
        assert found[:20] == sent
        assert [payload for _, payload in found[-3:]] == [b"new 1", b"new 2", b"new 3"]
        await node.until(lambda: client.session.live)
        await until_stored(node, "a", 0)

    async def main() -> None:
        settings = {"messages_limit": 65_535}
        store = FaultyStore(LmdbDeviceStore(tmp_path / "devices", DeviceSettings(**settings)))
        node = DeviceNode(DeviceLog(), store, **QUICK, **settings)
        async with asyncio.timeout(120):
            await node.start()
            await scenario(node)
            await node.stop()

    asyncio.run(main())


def test_what_expired_is_counted_when_the_client_has_gone_before_the_store_answers(tmp_path: Path) -> None:
    """The store removes such messages with the page: nobody else would ever tell of them."""

    async def scenario(node: DeviceNode) -> None:
        (await subscribed(node, "a")).lose()
        node.publish(b"old", expires_at=now_ms() + 100)
        await node.until(lambda: node.is_settled)
        await asyncio.sleep(0.15)
        node.store.calls.clear()
        client = node.connect("a")
        assert "fetch" in node.store.calls
        client.lose()
        await node.until(lambda: client.session.dropped().get("expired"))
        assert client.session.dropped()["expired"] == 1
        await until_stored(node, "a", 0)

    run(tmp_path, scenario)


def test_an_application_does_not_wait_for_a_store_that_fails(tmp_path: Path) -> None:
    """It was a DEVICE, and its own topic can be read: that is delivered; what is stored comes when it can be read."""

    async def scenario(node: DeviceNode) -> None:
        (await subscribed(node, "a")).lose()
        node.publish(b"stored")
        await node.until(lambda: node.is_settled)
        session = node.sessions["a"]
        session.intake = Feed("its topic")
        node.delivery.becomes_application(session)
        node.store.failing = {"fetch"}
        client = LaneClient(node.hub, session)
        begun: list[bool] = []
        assert node.delivery.attached(session, lambda: begun.append(session.live))
        await node.until(lambda: begun)
        assert client.take() == []
        node.store.failing = set()
        assert [payload for _, payload in await receive(node, client, 1)] == [b"stored"]
        await until_stored(node, "a", 0)
        assert begun == [False]

    run(tmp_path, scenario)


@pytest.mark.parametrize(("received_at", "dup"), [(999, True), (1_000, True), (1_001, False)])
def test_a_client_may_get_a_message_and_leave_within_one_millisecond(
    tmp_path: Path, received_at: int, dup: bool
) -> None:
    """[MQTT-3.3.1-1]: after a restart everything received until the client left may have been sent before."""

    async def scenario(node: DeviceNode) -> None:
        client = await subscribed(node, "a")
        value = encode("t", b"x", 1, received_at=received_at) + encode_delivery(1, False)
        assert client.session.intake.send_stored([7], [value], 0, 1_000) == 1
        found: list[bool] = []
        await node.until(lambda: bool(found.extend(packet.dup for packet in client.take()) or found))
        assert found == [dup]

    run(tmp_path, scenario)


def test_nothing_is_swept_without_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker without DEVICE clients is not woken for them."""
    sweeps: list[int] = []
    real = module.DeviceDelivery._store_sent

    def counted(delivery: module.DeviceDelivery) -> None:
        sweeps.append(1)
        real(delivery)

    monkeypatch.setattr(module.DeviceDelivery, "_store_sent", counted)

    async def scenario(node: DeviceNode) -> None:
        await asyncio.sleep(0.2)
        assert not sweeps
        client = await subscribed(node, "device")
        await node.until(lambda: len(sweeps) > 2)
        node.end(client.session)
        await asyncio.sleep(0.1)
        count = len(sweeps)
        await asyncio.sleep(0.2)
        assert len(sweeps) == count

    run(tmp_path, scenario)
