"""Acknowledgements of a pack in any order against a list of (offset, QoS, state)."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock._ext.application.pack import PackTracker

PLANNED, SENT, RECEIVED, DONE = "planned", "sent", "received", "done"


class TrackerModel(RuleBasedStateMachine):
    @initialize(end=st.integers(0, 2**62))
    def begin(self, end: int) -> None:
        self.end = end
        self.tracker = PackTracker([], end)
        self.model: list[list] = []  # offset, packet id, QoS, state

    @rule(gap=st.integers(1, 5), qos=st.integers(0, 2), packet_id=st.integers(1, 65_535), count=st.integers(1, 40))
    def add(self, gap: int, qos: int, packet_id: int, count: int) -> None:
        for number in range(count):
            offset = self.model[-1][0] + gap if self.model else 0
            given = (packet_id + number - 1) % 65_535 + 1 if qos else 0
            assert self.tracker.add(offset, qos=qos, packet_id=given) == len(self.model)
            self.model.append([offset, given, qos, PLANNED])

    @precondition(lambda self: self.model)
    @rule(back=st.integers(0, 5))
    def add_an_offset_that_does_not_rise(self, back: int) -> None:
        offset = self.model[-1][0] - back
        with pytest.raises(ValueError, match="rise"):
            self.tracker.add(offset, qos=1, packet_id=1)

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 30))
    def sent(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            index = data.draw(st.integers(0, len(self.model) - 1))
            entry = self.model[index]
            assert self.tracker.sent(index) == (entry[3] == PLANNED)
            if entry[3] == PLANNED:
                entry[3] = SENT if entry[2] else DONE

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 30))
    def received(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            index = data.draw(st.integers(0, len(self.model) - 1))
            entry = self.model[index]
            is_due = entry[2] == 2 and entry[3] in (SENT, RECEIVED)
            assert self.tracker.received(index) == is_due
            if is_due:
                entry[3] = RECEIVED

    @precondition(lambda self: self.model)
    @rule(data=st.data(), count=st.integers(1, 30))
    def acknowledge(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            index = data.draw(st.integers(0, len(self.model) - 1))
            entry = self.model[index]
            is_due = (entry[2], entry[3]) in ((1, SENT), (2, RECEIVED))
            assert self.tracker.acknowledge(index) == is_due
            if is_due:
                entry[3] = DONE

    @rule(ahead=st.integers(0, 2**31))
    def no_such_record(self, ahead: int) -> None:
        for call in (self.tracker.sent, self.tracker.received, self.tracker.acknowledge):
            with pytest.raises(IndexError):
                call(len(self.model) + ahead)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "tracker"):
            return
        assert self.tracker.entries_now() == [tuple(entry) for entry in self.model]
        assert self.tracker.count == len(self.model)
        assert self.tracker.open_count == sum(entry[3] != DONE for entry in self.model)
        lowest = next((entry[0] for entry in self.model if entry[3] != DONE), self.end)
        assert self.tracker.lowest_offset == lowest


TestTracker = TrackerModel.TestCase
TestTracker.settings = settings(max_examples=50, stateful_step_count=25, deadline=None)


@pytest.mark.parametrize("step", [1, -1, 73])
def test_every_order_ends_at_the_end(step: int) -> None:
    """A whole pack of the default size; the lowest offset moves only over what is done from the front on."""
    tracker = PackTracker([], 1_000)
    for offset in range(800, 1_000):
        tracker.add(offset, qos=1, packet_id=offset)
        tracker.sent(offset - 800)
    left = set(range(200))
    for index in (number * step % 200 for number in range(200)):
        assert tracker.acknowledge(index)
        assert not tracker.acknowledge(index)
        left.discard(index)
        assert tracker.lowest_offset == (800 + min(left) if left else 1_000)
    assert tracker.open_count == 0


def test_a_pack_without_records_is_done() -> None:
    assert PackTracker([], 7).lowest_offset == 7
    assert PackTracker([], 7).open_count == 0
