"""Retained messages for new subscriptions get into the client's topic, whatever the log does meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from penstock._ext.record.segment import RecordPack
from penstock.storage.log.base import Appended, LogError, LogUnavailable
from penstock.storage.log.memory import MemoryLog
from penstock.subscribers.application import retained_appends
from penstock.subscribers.application.retained_appends import split
from tests.support.brokers.app_node import Node, Reader, run
from tests.support.worlds.lanes import LaneClient

TOPIC = "tbmq.msg.app.a"


class Unavailable(MemoryLog):
    """Takes nothing for the client's topic while `is_away`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        self.refused = 0
        whole = self.producer.append

        def append(
            topic: str, partition: int, pack: RecordPack, on_done: Callable[[Appended | LogError], None], **_: Any
        ) -> None:
            if self.is_away and topic == TOPIC:
                self.refused += 1
                on_done(LogUnavailable("away"))
            else:
                whole(topic, partition, pack, on_done)

        self.producer.append = append  # type: ignore[method-assign]  # the log's own, with a switch before it


async def subscribe_while_away(node: Node, log: Unavailable) -> LaneClient:
    for number in range(3):
        node.hub.publish(f"t/{number}", str(number).encode(), qos=1, retain=True)
    client = await node.connect("a")
    await node.subscribe(client, b"t/#")
    log.is_away = True
    node.delivery.send_retained(client.session, b"t/#", 1, 0)
    await node.until(lambda: log.refused >= 2)
    return client


def test_a_log_that_is_away_for_a_moment() -> None:
    log = Unavailable()

    async def scenario(node: Node) -> None:
        client = await subscribe_while_away(node, log)
        log.is_away = False
        reader = Reader(client)
        assert sorted(await reader.until(3)) == [0, 1, 2]
        assert all(packet.retain for packet in reader.packets)

    run(scenario, log=log)


def test_nobody_waits_for_a_session_that_is_over() -> None:
    log = Unavailable()

    async def scenario(node: Node) -> None:
        client = await subscribe_while_away(node, log)
        node.end(client.session)
        client = await node.connect("a")
        log.is_away = False
        await node.until(lambda: not node.delivery.retained._tasks)
        assert await Reader(client).rest(0.05) == []

    run(scenario, log=log)


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retained_appends, "MOST_BYTES", 100)
    log = Unavailable()

    async def scenario(node: Node) -> None:
        client = await subscribe_while_away(node, log)
        assert node.delivery.retained.is_full
        log.is_away = False
        await Reader(client).until(3)
        assert not node.delivery.retained.is_full

    run(scenario, log=log)


def test_a_topic_that_somebody_removed() -> None:
    async def scenario(node: Node) -> None:
        node.hub.publish("t/1", b"1", qos=1, retain=True)
        client = await node.connect("a")
        await node.subscribe(client, b"t/#")
        await node.log.admin.delete(TOPIC)
        node.delivery.send_retained(client.session, b"t/#", 1, 0)
        assert await Reader(client).until(1) == [1]

    run(scenario)


@pytest.mark.parametrize(
    ("count", "size", "parts"), [(1, 10, 1), (5, 3_000_000, 5), (100, 100_000, 3), (1, 9_000_000, 1)]
)
def test_large_packs_are_split(count: int, size: int, parts: int) -> None:
    pack = RecordPack()
    for number in range(count):
        pack.append(bytes([number]) * size, b"key")
    found = split(pack)
    assert len(found) >= parts
    assert [record.value[:1] for part in found for record in part] == [bytes([number]) for number in range(count)]
