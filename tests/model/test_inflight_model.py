"""In-flight windows, queues and packet-id sets against dicts, lists and sets."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from penstock._ext.hub.inflight import InflightWindow, MessageQueue, PacketIdSet

STATES = st.sampled_from([1, 2, 3])


class WindowModel(RuleBasedStateMachine):
    """Packet ids are never handed out while they are in flight, and come back in order of first sending."""

    def __init__(self) -> None:
        super().__init__()
        self.window = InflightWindow()
        self.model: dict[int, int] = {}

    @rule(state=STATES, count=st.integers(1, 200))
    def send(self, state: int, count: int) -> None:
        for _ in range(count):
            packet_id = self.window.add(state)
            assert 1 <= packet_id <= 65_535
            assert packet_id not in self.model  # [MQTT-2.2.1-4]
            self.model[packet_id] = state

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 150))
    def acknowledge(self, data: st.DataObject, count: int) -> None:
        for packet_id in data.draw(st.permutations(list(self.model)))[:count]:
            assert self.window.release(packet_id)
            del self.model[packet_id]

    @rule(packet_id=st.integers(0, 65_535))
    def acknowledge_unknown(self, packet_id: int) -> None:
        if packet_id not in self.model:
            assert not self.window.release(packet_id)

    @invariant()
    def agrees(self) -> None:
        assert len(self.window) == len(self.model)
        assert self.window.order() == list(self.model)
        assert all(self.window.state(packet_id) == state for packet_id, state in self.model.items())


class IdSetModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ids = PacketIdSet()
        self.model: set[int] = set()

    @rule(ids=st.lists(st.integers(1, 65_535), max_size=40))
    def add(self, ids: list[int]) -> None:
        for packet_id in ids:
            assert self.ids.add(packet_id) == (packet_id not in self.model)
            self.model.add(packet_id)

    @rule(ids=st.lists(st.integers(1, 65_535), max_size=10))
    def discard(self, ids: list[int]) -> None:
        for packet_id in ids:
            assert self.ids.discard(packet_id) == (packet_id in self.model)
            self.model.discard(packet_id)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def discard_known(self, data: st.DataObject) -> None:
        packet_id = data.draw(st.sampled_from(sorted(self.model)))
        assert self.ids.discard(packet_id)
        self.model.discard(packet_id)

    @invariant()
    def agrees(self) -> None:
        assert len(self.ids) == len(self.model)
        assert all(packet_id in self.ids for packet_id in self.model)


class QueueModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = MessageQueue()
        self.model: list[bytes] = []

    @rule(payloads=st.lists(st.binary(max_size=40), max_size=40))
    def push(self, payloads: list[bytes]) -> None:
        for payload in payloads:
            self.queue.push(payload)
            self.model.append(payload)

    @rule(count=st.integers(0, 50))
    def pop(self, count: int) -> None:
        for _ in range(count):
            assert self.queue.pop() == (self.model.pop(0) if self.model else None)

    @invariant()
    def agrees(self) -> None:
        assert len(self.queue) == len(self.model)
        assert (self.queue.weight == 0) == (not self.model)


TestWindow = WindowModel.TestCase
TestIdSet = IdSetModel.TestCase
TestQueue = QueueModel.TestCase
for case in (TestWindow, TestIdSet, TestQueue):
    case.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_ids_wrap_past_those_in_flight() -> None:
    """65,535 is followed by 1, and an id that is never acknowledged is stepped over."""
    window = InflightWindow()
    stuck = window.add(1)
    assert stuck == 1
    seen = set()
    for _ in range(200_000):
        packet_id = window.add(1)
        assert packet_id != stuck
        seen.add(packet_id)
        window.release(packet_id)
    assert 2 in seen
    assert 65_535 in seen
    assert 0 not in seen


def test_all_ids_can_be_in_flight() -> None:
    window = InflightWindow()
    ids = {window.add(1) for _ in range(65_535)}
    assert ids == set(range(1, 65_536))
    with pytest.raises(OverflowError, match="65,535"):
        window.add(1)
