"""A client with a small Receive Maximum gets everything it subscribed to, in turns: its own topic, its shares, direct
messages, and what couriers carry (query topics, queues of other nodes)."""

from __future__ import annotations

import pytest

from penstock._ext.application.lane import Lane
from penstock._ext.hub.connection import Courier
from tests.support.worlds.lanes import PUBACK, PUBLISH, TOPIC, numbered
from tests.unit.ext.test_lane import SHARED, Stage, save

COUNT = 40


class SlowCourier:
    """Notices that it has room some iterations later, as a task does that waits for an event."""

    def __init__(self, stage: Stage, name: bytes, count: int = COUNT) -> None:
        self._stage = stage
        self._name = name
        self._left = count
        self._courier = Courier(stage.session, self._on_news)
        self._on_news()

    def _on_news(self) -> None:
        self._stage.loop.call_soon(self._send)

    def _send(self) -> None:
        while self._left and self._courier.has_room:
            self._left -= 1
            self._courier.send(self._name, b"1", b"", self._left)


def add_lanes(stage: Stage, shares: int, count: int = COUNT) -> None:
    for number in range(1 + shares):
        name = f"s{number}" if number else ""
        topic = f"{SHARED}{number}" if number else TOPIC
        lane = stage.open(Lane(stage.session, topic, is_shared=number > 0, part=name))
        assert lane.offer([numbered(0, count)])
        save(lane)


def read_all(stage: Stage, expected: int) -> list[str]:
    """Acknowledge one message at a time; return the topics in their order."""
    topics: list[str] = []
    sent = []
    while len(topics) < expected:
        taken = stage.client.take()
        sent += [packet for packet in taken if packet.kind == PUBLISH]
        assert sent, f"nothing comes after {len(topics)} of {expected} messages: {topics}"
        assert len(sent) <= stage.receive_maximum
        packet = sent.pop(0)
        topics.append(packet.topic)
        stage.client.say(PUBACK, packet.packet_id)
    return topics


@pytest.mark.parametrize("shares", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_couriers_and_lanes_take_turns(limit: int, shares: int) -> None:
    stage = Stage(5, receive_maximum=limit)
    add_lanes(stage, shares)
    SlowCourier(stage, b"rows")
    SlowCourier(stage, b"more")
    topics = read_all(stage, (3 + shares) * COUNT)
    # every one of them goes on while the others have a backlog
    begun = topics[: 3 * COUNT // 2]
    assert min(begun.count("rows"), begun.count("more")) >= 4, begun
    assert begun.count("t") >= 4 * (1 + shares), begun


@pytest.mark.parametrize("shares", [0, 1, 2])
@pytest.mark.parametrize("limit", [1, 2, 3, 4])
def test_direct_messages_and_lanes(limit: int, shares: int) -> None:
    """As many places as parts, and all of them reserved: a direct message gets one all the same."""
    stage = Stage(5, receive_maximum=limit)
    stage.hub.trie.subscribe(stage.session, b"direct", 1, 0)
    add_lanes(stage, shares)
    for _ in range(5):
        stage.hub.publish("direct", b"1", qos=1)
    topics = read_all(stage, (1 + shares) * COUNT + 5)
    assert topics[:COUNT].count("direct") == 5


@pytest.mark.parametrize("limit", [1, 2])
def test_a_lane_goes_on_after_direct_messages(limit: int) -> None:
    """Nothing of the log has come since: only an acknowledgement says that there is room."""
    stage = Stage(5, receive_maximum=limit)
    stage.hub.trie.subscribe(stage.session, b"direct", 1, 0)
    for _ in range(limit):
        stage.hub.publish("direct", b"1", qos=1)
    add_lanes(stage, 1, 3)
    assert len(read_all(stage, limit + 6)) == limit + 6


def test_lanes_take_turns_however_often_they_are_saved() -> None:
    """A context that becomes durable is no reason to pass a turn on."""
    stage = Stage(5, receive_maximum=1)
    add_lanes(stage, 1, 10)
    own, shared = stage.desk.lanes_of(stage.session)
    seen = []
    while len(seen) < 10:
        [packet] = [packet for packet in stage.client.take() if packet.kind == PUBLISH]
        stage.client.say(PUBACK, packet.packet_id)
        save(own)
        seen.append(own.delivered)
    assert own.delivered in (5, 6)
    assert shared.delivered in (5, 6)
