"""The window of one APPLICATION client: its own topic and its shares do not hold each other up."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.brokers.app_node import Node, Reader, run
from tests.support.worlds.lanes import PUBACK, LaneClient
from tests.unit.subscribers.application.test_shared import FILTER, TOPIC, settled

OTHER = b"$share/g/o"


async def client_with_two_shares(node: Node, *, receive_maximum: int = 65_535) -> LaneClient:
    client = await node.connect("a", version=5, receive_maximum=receive_maximum)
    for topic_filter in (FILTER, OTHER, b"own"):
        await node.subscribe(client, topic_filter)
    await settled(node, 4)
    await settled(node, 4, OTHER)
    return client


@pytest.mark.parametrize("silent", ["s", "own"])
@pytest.mark.parametrize("receive_maximum", [65_535, 12, 3])
def test_a_part_that_is_not_acknowledged_does_not_stop_the_others(silent: str, receive_maximum: int) -> None:
    async def scenario(node: Node) -> None:
        client = await client_with_two_shares(node, receive_maximum=receive_maximum)
        quiet = Reader(client, says_nothing=True)
        await node.publish(silent, range(3_000))
        limit = min(receive_maximum, 1_000)
        least = limit - 2 * max(limit // 6, 1)
        await node.until(lambda: len(quiet.look()) >= min(least, 800))
        await quiet.rest(0.2)
        assert len(quiet.numbers) <= least
        held = set(quiet.numbers)
        for number, topic in enumerate({"s", "own", "o"} - {silent}):
            await node.publish(topic, [10_000 + number])
        await node.until(lambda: {10_000, 10_001} <= set(quiet.look()))
        assert len(quiet.numbers) <= limit
        # and goes on as soon as it is acknowledged
        for packet in list(quiet.packets):
            client.say(PUBACK, packet.packet_id)
        quiet.says_nothing = False
        await node.until(lambda: len(set(quiet.look())) == 3_002)
        assert held < set(quiet.numbers)

    run(scenario, shared_partitions=4)


def test_a_window_with_less_places_than_parts_goes_round() -> None:
    """None can be reserved: the next free place is another lane's turn."""

    async def scenario(node: Node) -> None:
        client = await client_with_two_shares(node, receive_maximum=2)
        await node.publish("s", range(400))
        await node.publish("own", range(1_000, 1_020))
        await node.publish("o", range(2_000, 2_020))
        reader = Reader(client)
        await reader.until(440)
        places = {number: place for place, number in enumerate(reader.numbers)}
        assert max(places[number] for number in range(1_000, 1_020)) < 300
        assert max(places[number] for number in range(2_000, 2_020)) < 300

    run(scenario, shared_partitions=4)


def test_a_share_does_not_plan_all_packet_ids() -> None:
    """A client whose window is as large as MQTT allows; more messages wait in the share than there are ids."""

    async def scenario(node: Node) -> None:
        node.hub.configure(max_inflight=65_535)
        client = await client_with_two_shares(node)
        quiet = Reader(client, says_nothing=True)
        for first in range(0, 80_000, 10_000):
            await node.fill(TOPIC, range(first, first + 10_000))
        await node.until(lambda: len(quiet.look()) >= 15_000)
        await asyncio.sleep(0.3)
        await node.publish("own", [100_000])
        await node.publish("o", [100_001])
        await node.until(lambda: {100_000, 100_001} <= set(quiet.look()))

    run(scenario, shared_partitions=4, shared_max_poll_records=5_000)


def test_the_window_of_a_client_without_shares_is_its_own() -> None:
    async def scenario(node: Node) -> None:
        client = await node.connect("a", receive_maximum=20)
        await node.subscribe(client, b"own")
        await node.publish("own", range(50))
        quiet = Reader(client, says_nothing=True)
        await quiet.until(20)
        await quiet.rest(0.1)
        assert len(quiet.numbers) == 20

    run(scenario)
