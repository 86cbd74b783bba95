"""QoS 2 messages of partitions that change hands: each reaches its client once, whatever comes right after the move."""

from __future__ import annotations

import asyncio

import pytest

from penstock.subscribers.application import lane_book
from penstock.subscribers.application.contexts import CLAIMED, TABLE
from tests.support.brokers.app_node import Node, Reader, restart, run
from tests.support.worlds.lanes import PUBCOMP, PUBLISH, PUBREC, PUBREL, LaneClient
from tests.unit.subscribers.application.test_shared import join, owners, sent, settled


async def say_and_await_release(node: Node, client: LaneClient, ids: list[int]) -> None:
    for packet_id in ids:
        client.say(PUBREC, packet_id)
    released: list[int] = []

    def all_released() -> bool:
        released.extend(packet.packet_id for packet in client.take() if packet.kind == PUBREL)
        return sorted(released) == sorted(ids)

    await node.until(all_released)


def test_what_clients_have_to_finish_costs_no_consumer_for_each_partition() -> None:
    """On Kafka a consumer is five threads: a client that is back with QoS 2 messages of 16 partitions costs one more,
    not 16, and another one with as many none."""

    async def scenario(node: Node) -> None:
        clients = {name: await join(node, name) for name in "ab"}
        await settled(node, 16)
        quiet = {name: Reader(client, says_nothing=True) for name, client in clients.items()}
        await node.publish("s", range(64), qos=2)
        await node.until(lambda: sum(len(reader.look()) for reader in quiet.values()) == 64)
        late = Reader(await join(node, "c"))
        for client in clients.values():
            client.lose()
        await node.until(lambda: set(owners(node).values()) == {"c"})
        before = len(node.log._consumers)
        again = {name: Reader(await node.connect(name), says_nothing=True) for name in "ab"}
        for name, reader in again.items():
            assert sorted(await reader.until(len(quiet[name].numbers))) == sorted(quiet[name].numbers)
        assert len(node.log._consumers) <= before + 1
        for reader in again.values():
            for packet in list(reader.packets):
                reader.client.say(PUBREC, packet.packet_id)
            reader.says_nothing = False
        await node.until(lambda: [reader.look() for reader in again.values()] and not node.delivery.shared.claims._open)
        await node.until(lambda: len(node.log._consumers) <= before)
        assert late.look() == []

    run(scenario, shared_partitions=16)


def test_a_crash_right_after_a_partition_has_moved() -> None:
    """What the first client has to finish is not in the context of the second as well."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 2)
        await node.publish("s", range(10), qos=2)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(10)
        had = sent(quiet.packets)
        await asyncio.sleep(0.25)  # it is stored that they were sent
        await join(node, "b")
        assert set(owners(node).values()) == {"a", "b"}
        stored = node.state.tables[TABLE]
        for _ in range(3):
            await asyncio.sleep(0)
        assert any(key.startswith(CLAIMED.encode()) for key in stored)
        node = await restart(node, shared_partitions=2)
        again = Reader(await node.connect("a"))
        await again.until(10)
        await again.rest(0.2)
        assert sorted(sent(again.packets)) == sorted((packet_id, number, True) for packet_id, number, _ in had)
        other = Reader(await node.connect("b"))
        assert await other.rest(0.2) == []
        await node.stop()

    run(scenario, shared_partitions=2)


def test_a_partition_moves_twice_while_its_first_messages_are_being_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """PUBREC came and is not stored yet when more has to be finished: it is not forgotten."""
    monkeypatch.setattr(lane_book, "SAVE_SECONDS", 60.0)

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 1)
        await node.publish("s", [0, 1], qos=2)
        quiet = Reader(first, says_nothing=True)
        await quiet.until(2)
        (id_0, _, _), (id_1, _, _) = sent(quiet.packets)
        share = node.delivery.shared._shares[b"$share/g/s"]
        member = share.members["a"]

        async def move_away_and_back() -> None:
            """As when a member comes and goes; the claims of the first are read again."""
            second = await join(node, "aa")
            node.delivery.shared._stop(share, 0)
            node.delivery.shared._start(share, 0, share.members["aa"])
            node.unsubscribe(second, b"$share/g/s")
            await node.until(lambda: owners(node) == {0: "a"})
            assert share.members["a"] is member

        await move_away_and_back()
        await node.publish("s", [2], qos=2)
        await quiet.until(3)
        id_2 = sent(quiet.packets)[2][0]
        await node.until(lambda: first.session.inflight == 3)
        first.say(PUBREC, id_0)
        first.say(PUBREC, id_1)
        await move_away_and_back()
        released: list[int] = []

        def both_released() -> bool:
            released.extend(packet.packet_id for packet in first.take() if packet.kind == PUBREL)
            return set(released) >= {id_0, id_1}

        await node.until(both_released)
        for packet_id in (id_0, id_1):
            first.say(PUBCOMP, packet_id)
        await say_and_await_release(node, first, [id_2])
        first.say(PUBCOMP, id_2)
        await asyncio.sleep(0.05)
        first.lose()
        again = Reader(await node.connect("a"))
        await again.rest(0.2)
        assert again.numbers == []

    run(scenario, shared_partitions=1)


def test_what_was_not_sent_again_yet_is_sent_by_the_lane_that_finishes_it() -> None:
    """Receive Maximum 1: after a reconnect only one of five is sent again before the partition moves."""

    async def scenario(node: Node) -> None:
        first = await join(node, "a")
        await settled(node, 2)
        await node.publish("s", range(10), qos=2)
        await Reader(first, says_nothing=True).until(10)
        first.lose()
        first = await node.connect("a", version=5, receive_maximum=1)
        reader = Reader(first, says_nothing=True)
        await reader.until(1)
        await join(node, "b")
        await node.until(lambda: set(owners(node).values()) == {"a", "b"})
        reader.says_nothing = False
        first.say(PUBREC, reader.packets[-1].packet_id)
        await reader.until(10)
        await reader.rest(0.1)
        numbers = [int(packet.payload) for packet in reader.packets if packet.kind == PUBLISH]
        assert sorted(numbers) == list(range(10))

    run(scenario, shared_partitions=2)


def test_a_client_that_leaves_the_share_finishes_what_it_was_sent() -> None:
    """[MQTT-3.10.4-3] [MQTT3-3.10.4-3]"""

    async def scenario(node: Node) -> None:
        first, second = await join(node, "a"), await join(node, "b")
        await settled(node, 2)
        await node.publish("s", range(10), qos=2)
        quiet, reader = Reader(first, says_nothing=True), Reader(second)
        await node.until(lambda: len(quiet.look()) == 5 and len(reader.look()) == 5)
        node.unsubscribe(first, b"$share/g/s")
        held = [packet_id for packet_id, _, _ in sent(quiet.packets)]
        await say_and_await_release(node, first, held)
        for packet_id in held:
            first.say(PUBCOMP, packet_id)
        await asyncio.sleep(0.2)
        first.lose()
        again = Reader(await node.connect("a"))
        await asyncio.gather(again.rest(0.3), reader.rest(0.3))
        assert again.numbers == []
        assert len(reader.numbers) == 5

    run(scenario, shared_partitions=2)
