"""Shared subscriptions of DEVICE clients: who gets what is stored for a group, how often, and as its own subscription
says. On both stores."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.core.settings.redis import DeviceSettings, RedisSettings
from penstock.stores.device import DeviceStore, client_queue, group_queue, result_of
from penstock.stores.lmdb_device import LmdbDeviceStore
from penstock.stores.redis import RedisDeviceStore
from tests.support.device_node import DeviceLog, DeviceNode
from tests.support.lanes import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient, Packet
from tests.support.redis_server import shared_redis

GROUP = group_queue("g", "t")
SHARE = b"$share/g/t"
RETAIN_AS_PUBLISHED = 8

MakeNode = Callable[[DeviceLog], DeviceNode]


@pytest.fixture(params=["lmdb", "redis"])
def make_node(request: pytest.FixtureRequest, tmp_path: Path) -> MakeNode:
    settings = DeviceSettings()
    redis = RedisSettings(addresses=shared_redis().address, prefix=f"{uuid.uuid4().hex[:8]}:")

    def make_store() -> DeviceStore:
        if request.param == "redis":
            return RedisDeviceStore(redis, settings)
        return LmdbDeviceStore(tmp_path / "devices", settings)

    return lambda log: DeviceNode(log, make_store(), persist_after=0.02)


def run(make_node: MakeNode, scenario: Callable[[DeviceNode], Awaitable[DeviceNode | None]]) -> None:
    async def main() -> None:
        node = make_node(DeviceLog())
        async with asyncio.timeout(60):
            await node.start()
            node = await scenario(node) or node
            await node.stop()

    asyncio.run(main())


async def join(node: DeviceNode, name: str, options: int, identifier: int = 0, share: bytes = SHARE) -> LaneClient:
    client = node.connect(name)
    node.hub.trie.subscribe(client.session, share, options, identifier)
    await node.until(lambda: client.session.live)
    return client


async def until_stored(node: DeviceNode, queue: str, count: int) -> None:
    async with asyncio.timeout(30):
        while (await result_of(node.store.describe, queue)).messages != count:  # noqa: ASYNC110 - a store has no event
            await asyncio.sleep(0.002)


async def take_all(node: DeviceNode, client: LaneClient, count: int) -> list[Packet]:
    """So many publishes, and none more until everything is acknowledged and gone."""
    found: list[Packet] = []

    def look() -> bool:
        for packet in client.take():
            if packet.kind == PUBREL:
                client.say(PUBCOMP, packet.packet_id)
                continue
            assert packet.kind == PUBLISH
            found.append(packet)
            if packet.qos:
                client.say(PUBACK if packet.qos == 1 else PUBREC, packet.packet_id)
        return len(found) >= count and client.session.live and client.session.inflight == 0

    await node.until(look)
    await until_stored(node, client_queue(client.session.client_id), 0)
    look()
    return found


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_a_member_with_qos_0_that_is_away_loses_nothing_for_the_others(make_node: MakeNode) -> None:
    """What cannot be kept for it is kept for those it can be kept for, whoever's turn it is."""

    async def scenario(node: DeviceNode) -> None:
        for name, qos in (("none", 0), ("one", 1), ("none too", 0)):
            (await join(node, name, qos)).lose()
        for payload in numbered(12):
            node.publish(payload)
        await node.until(lambda: node.is_settled)
        await until_stored(node, GROUP, 12)
        # Nor does it take them with a QoS that it has not got [MQTT-3.8.4-8].
        client = node.connect("none")
        assert await take_all(node, client, 0) == []
        client.lose()
        found = await take_all(node, node.connect("one"), 12)
        assert [(packet.payload, packet.qos) for packet in found] == [(payload, 1) for payload in numbered(12)]

    run(make_node, scenario)


@pytest.mark.parametrize("first", ["one", "two"])
def test_who_returns_gets_them_as_its_own_subscription_says(make_node: MakeNode, first: str) -> None:
    """[MQTT-3.8.4-8] [MQTT-3.3.4-3] [MQTT-3.3.1-12]: its QoS, its subscription identifier, its retain option."""
    members = {"one": (1 | RETAIN_AS_PUBLISHED, 7), "two": (2, 9)}

    async def scenario(node: DeviceNode) -> None:
        for name, (options, identifier) in members.items():
            (await join(node, name, options, identifier)).lose()
        for number in range(6):
            node.publish(b"%d" % number, qos=2 - number % 2, retain=True)
        await until_stored(node, GROUP, 6)
        options, identifier = members[first]
        found = await take_all(node, node.connect(first), 6)
        assert [packet.payload for packet in found] == numbered(6)
        assert [packet.qos for packet in found] == [min(options & 3, 2 - number % 2) for number in range(6)]
        assert {packet.properties["subscription_identifiers"][0] for packet in found} == {identifier}
        assert {packet.retain for packet in found} == {bool(options & RETAIN_AS_PUBLISHED)}

    run(make_node, scenario)


def test_one_copy_for_the_share_and_one_for_its_own_subscription(make_node: MakeNode) -> None:
    """Sent at once and not acknowledged: both are stored, and both survive a crash."""

    async def scenario(node: DeviceNode) -> DeviceNode:
        client = await join(node, "a", 1)
        node.hub.trie.subscribe(client.session, b"t", 1, 0)
        node.publish(b"x")
        await node.until(lambda: node.is_settled)
        assert len(client.take()) == 2
        await until_stored(node, client_queue("a"), 2)
        other = make_node(node.log)
        await other.start(await node.stop())
        assert [packet.payload for packet in await take_all(other, other.connect("a"), 2)] == [b"x", b"x"]
        return other

    run(make_node, scenario)


def test_groups_of_one_name_with_different_filters(make_node: MakeNode) -> None:
    """Each is a subscription for itself: [MQTT-4.8.2-4]."""

    async def scenario(node: DeviceNode) -> None:
        client = await join(node, "a", 2)
        node.hub.trie.subscribe(client.session, b"$share/g/+", 2, 0)
        node.publish(b"x", qos=2)
        assert [packet.payload for packet in await take_all(node, client, 2)] == [b"x", b"x"]

    run(make_node, scenario)


def test_what_a_member_took_over_from_its_group_does_not_come_again(make_node: MakeNode) -> None:
    """[MQTT-4.3.3-8]: QoS 2, completed, then the broker is killed before the log is committed. The member is back when
    the log is read again."""

    async def scenario(node: DeviceNode) -> DeviceNode:
        (await join(node, "a", 2)).lose()
        node.publish(*numbered(5), qos=2)
        await until_stored(node, GROUP, 5)
        assert len(await take_all(node, node.connect("a"), 5)) == 5
        other = make_node(node.log)
        await other.start(await node.stop())
        client = other.connect("a")
        await other.until(lambda: client.session.live)
        other.dispatch_again(0)
        assert await take_all(other, client, 0) == []
        return other

    run(make_node, scenario)
