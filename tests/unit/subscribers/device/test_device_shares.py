"""Shared subscriptions of DEVICE clients: who gets what is stored for a group, how often, and as its own subscription
says. On both stores."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock._ext.match.acl import RECEIVE, AclProgram
from penstock.settings.redis import DeviceSettings, RedisSettings
from penstock.subscribers.device.store.base import DeviceStore, client_queue, group_queue, result_of
from penstock.subscribers.device.store.lmdb import LmdbDeviceStore
from penstock.subscribers.device.store.redis import RedisDeviceStore
from tests.support.brokers.device_node import DeviceLog, DeviceNode, FaultyStore
from tests.support.servers.redis_server import shared_redis
from tests.support.worlds.lanes import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient, Packet

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


def deny(*topics: str) -> AclProgram:
    rules = [(False, RECEIVE, [level.encode() for level in topic.split("/")]) for topic in topics]
    return AclProgram([*rules, (True, RECEIVE, ["#"])])


ALL = b"$share/g/s/#"
GROUP_OF_ALL = group_queue("g", "s/#")


def dropped(node: DeviceNode) -> int:
    return node.hub.counters_now()["messages_dropped_denied"]


async def store_for_group(node: DeviceNode, count: int, **rules: AclProgram | None) -> None:
    """Half of the messages of a group whose members are all offline are secret."""
    for name in rules:
        (await join(node, name, 1, share=ALL)).lose()
    for number in range(count):
        node.publish(b"%d" % number, topic="s/secret" if number % 2 else "s/public")
    await until_stored(node, GROUP_OF_ALL, count)
    for name, acl in rules.items():
        node.sessions[name].acl = acl


@pytest.mark.parametrize("count", [8, 1_203])
def test_a_member_that_may_not_read_a_message_leaves_it_to_another(make_node: MakeNode, count: int) -> None:
    """Also a member that is offline, whoever connects first; each message is delivered once, in order."""

    async def scenario(node: DeviceNode) -> None:
        await store_for_group(node, count, one=deny("s/secret"), two=None)
        found = await take_all(node, node.connect("one"), count // 2)
        payloads = numbered(count)
        assert [packet.payload for packet in found] == payloads[::2]
        await until_stored(node, GROUP_OF_ALL, count // 2)
        found = await take_all(node, node.connect("two"), count // 2)
        assert [packet.payload for packet in found] == payloads[1::2]
        await until_stored(node, GROUP_OF_ALL, 0)
        assert dropped(node) == 0

    run(make_node, scenario)


def test_a_message_that_only_an_offline_member_may_read(make_node: MakeNode) -> None:
    """It is stored for the group while another member is connected, who may not have it when it connects again."""

    async def scenario(node: DeviceNode) -> None:
        first = await join(node, "one", 1, share=ALL)
        first.session.acl = deny("s/secret")
        (await join(node, "two", 1, share=ALL)).lose()
        node.publish(*numbered(3), topic="s/secret")
        await until_stored(node, GROUP_OF_ALL, 3)
        first.lose()
        assert await take_all(node, node.connect("one"), 0) == []
        assert [packet.payload for packet in await take_all(node, node.connect("two"), 3)] == numbered(3)
        assert dropped(node) == 0

    run(make_node, scenario)


def test_a_message_that_no_member_may_read_is_dropped_and_counted(make_node: MakeNode) -> None:
    """A member with QoS 0, for which nothing is kept, does not count."""

    async def scenario(node: DeviceNode) -> None:
        (await join(node, "none", 0, share=ALL)).lose()
        await store_for_group(node, 8, one=deny("s/secret"), two=deny("s/secret"))
        assert len(await take_all(node, node.connect("one"), 4)) == 4
        await until_stored(node, GROUP_OF_ALL, 0)
        await node.until(lambda: dropped(node) == 4)

    run(make_node, scenario)


async def take_unanswered(node: DeviceNode, client: LaneClient, count: int) -> list[Packet]:
    found: list[Packet] = []
    await node.until(lambda: found.extend(client.take()) or len(found) >= count)
    return found


def test_a_member_that_is_given_the_right_while_it_is_connected(make_node: MakeNode) -> None:
    """It gets what waited, and what it has under way keeps its packet id."""

    async def scenario(node: DeviceNode) -> None:
        await store_for_group(node, 8, one=deny("s/secret"), two=None)
        client = node.connect("one")
        assert len(await take_all(node, client, 4)) == 4
        node.publish(b"under way", topic="s/public")
        (under_way,) = await take_unanswered(node, client, 1)
        client.session.acl = None
        node.hub.trie.bump()
        node.delivery.rules_changed()
        found = await take_unanswered(node, client, 4)
        assert [packet.payload for packet in found] == numbered(8)[1::2]
        assert under_way.packet_id not in {packet.packet_id for packet in found}
        for packet in (under_way, *found):
            client.say(PUBACK, packet.packet_id)
        node.publish(b"later", topic="s/public")
        assert [packet.payload for packet in await take_all(node, client, 1)] == [b"later"]
        await until_stored(node, GROUP_OF_ALL, 0)

    run(make_node, scenario)


@pytest.mark.parametrize("call", ["fetch", "move_some", "remove"])
def test_a_store_that_fails_while_a_member_is_passed_over(make_node: MakeNode, call: str) -> None:
    async def scenario(node: DeviceNode) -> DeviceNode:
        await node.stop()
        faulty = DeviceNode(DeviceLog(), FaultyStore(make_node(DeviceLog()).store))
        await faulty.start()
        await store_for_group(faulty, 8, one=deny("s/secret"), two=None)
        faulty.store.failing = {call}
        client = faulty.connect("one")
        await faulty.until(lambda: call in faulty.store.calls or call == "remove")
        faulty.store.failing = set()
        assert [packet.payload for packet in await take_all(faulty, client, 4)] == numbered(8)[::2]
        found = await take_all(faulty, faulty.connect("two"), 4)
        assert [packet.payload for packet in found] == numbered(8)[1::2]
        return faulty

    run(make_node, scenario)
