"""A subscriber inside the broker: batches, settlement, credit, and publishers that wait for it."""

from __future__ import annotations

import pytest

from penstock._ext.dispatch.desk import DispatchDesk, Round
from penstock._ext.hub.connection import Hub, Session
from penstock._ext.local.outlet import LocalDesk, LocalOutlet
from penstock._ext.record.envelope import decode, encode
from penstock._ext.record.segment import RecordPack
from penstock._ext.wire import packets
from tests.support.worlds.lanes import PUBACK, LaneClient, StepLoop


class Tap:
    """What a toy kind of subscriber does with its messages: keep them, and settle when the test says so."""

    def __init__(self, credit: int = 4) -> None:
        self.loop = StepLoop()
        self.hub = Hub(self.loop)
        self.desk = DispatchDesk(self.hub)
        self.session = Session(self.hub, "$local/tap")
        self.session.since = 0
        self.batches: list[list[bytes]] = []
        self.outlet = LocalOutlet(LocalDesk(self.hub), self.session, self._receive, credit=credit)
        self.hub.trie.subscribe(self.session, b"t/#", 1)
        self._end = 0

    def _receive(self, pack: RecordPack) -> None:
        self.batches.append([decode(value).payload for value in pack.values()])

    def dispatch(self, count: int, qos: int = 1, expires_at: int = 0) -> Round:
        """So many records of the log, numbered from where the last ones ended."""
        pack = RecordPack()
        for number in range(self._end, self._end + count):
            pack.append(encode("t/x", b"%d" % number, qos, received_at=1, expires_at=expires_at))
        pack.place(self._end)
        self._end += count
        dispatched = Round()
        self.desk.dispatch(pack, 0, dispatched)
        return dispatched

    @property
    def received(self) -> list[int]:
        return [int(payload) for batch in self.batches for payload in batch]


def test_one_batch_for_each_iteration() -> None:
    tap = Tap(credit=100)
    first, second = tap.dispatch(3), tap.dispatch(2)
    assert tap.batches == []
    tap.loop.turn()
    assert [len(batch) for batch in tap.batches] == [5]
    assert tap.received == [0, 1, 2, 3, 4]
    assert (first.pending, second.pending) == (3, 2), "the log is not committed before they are settled"
    tap.outlet.settle(4)
    assert (first.pending, second.pending, tap.outlet.unsettled) == (0, 1, 1)
    tap.outlet.settle()
    assert (second.pending, tap.outlet.unsettled) == (0, 0)
    assert tap.loop.failures == []


def test_no_more_than_its_credit() -> None:
    tap = Tap(credit=1)
    rounds = []
    for _ in range(3):
        rounds.append(tap.dispatch(1))
        tap.loop.turn()
    assert (tap.received, tap.outlet.waiting) == ([0], 2)
    tap.outlet.settle()
    tap.loop.turn()
    assert tap.received == [0, 1, 2]
    tap.outlet.settle(2)
    assert [dispatched.pending for dispatched in rounds] == [0, 0, 0]
    with pytest.raises(ValueError, match="handed over"):
        tap.outlet.settle()


def test_publishers_wait_for_it() -> None:
    """Twice its credit is not settled: a publisher to its topics is not acknowledged before it has caught up."""
    tap = Tap(credit=4)
    publisher = LaneClient(tap.hub, Session(tap.hub, "publisher"), turn=tap.loop.turn)
    tap.dispatch(8)
    tap.loop.turn()
    publisher.say_bytes(packets.build_publish("t/y", b"x", version=4, qos=1, packet_id=1))
    assert publisher.take() == []
    assert publisher.connection.is_blocked
    tap.outlet.settle(4)
    assert publisher.take() == []
    tap.outlet.settle(4)
    assert [(packet.kind, packet.packet_id) for packet in publisher.take()] == [(PUBACK, 1)]


def test_what_it_does_not_get() -> None:
    tap = Tap()
    assert tap.dispatch(1, qos=0).pending == 0
    assert tap.dispatch(1, expires_at=1).pending == 0
    tap.loop.turn()
    assert tap.received == []
    assert tap.session.dropped()["expired"] == 1


def test_its_end_holds_nothing_back() -> None:
    tap = Tap()
    dispatched = tap.dispatch(300)
    tap.loop.turn()
    assert dispatched.pending == 300
    tap.outlet.close()
    assert (dispatched.pending, tap.session.outlets_now, tap.session.intake) == (0, [], None)
    assert tap.dispatch(1).pending == 0
    tap.loop.turn()
    assert tap.hub.counters_now()["congested_subscribers"] == 0


def test_a_session_that_ends_holds_nothing_back() -> None:
    """Nobody has closed the outlet: the log is committed all the same, and publishers do not wait for it."""
    tap = Tap()
    dispatched = tap.dispatch(300)
    tap.loop.turn()
    assert (dispatched.pending, tap.hub.counters_now()["congested_subscribers"]) == (300, 1)
    tap.session.end()
    assert (dispatched.pending, tap.session.outlets_now, tap.outlet.is_open) == (0, [], False)
    assert tap.hub.counters_now()["congested_subscribers"] == 0
    tap.outlet.close()
    tap.loop.turn()
    assert tap.loop.failures == []


def test_a_failure_is_reported_and_the_next_batch_comes() -> None:
    tap = Tap(credit=10)
    first = tap.dispatch(2)
    tap.loop.turn()
    second = tap.dispatch(3)
    tap.batches = None  # type: ignore[assignment]  # it breaks
    tap.loop.turn()
    assert [type(context["exception"]) for context in tap.loop.failures] == [AttributeError]
    assert "3 messages" in tap.loop.failures[0]["message"]
    assert (first.pending, second.pending, tap.outlet.unsettled) == (2, 0, 2), "only what failed is done"
    tap.batches = []
    third = tap.dispatch(1)
    tap.loop.turn()
    assert tap.received == [5]
    assert (first.pending, third.pending, tap.outlet.unsettled) == (2, 1, 3)
    tap.outlet.settle(2)
    assert (first.pending, third.pending) == (0, 1)
    tap.outlet.settle()
    assert (third.pending, tap.outlet.waiting) == (0, 0)


def test_batches_after_one_that_fails_come_at_once() -> None:
    tap = Tap(credit=1_000)
    broken = []

    def receive(pack: RecordPack) -> None:
        broken.append(pack.count)
        raise ValueError

    other = Session(tap.hub, "$local/other")
    other.since = 0
    outlet = LocalOutlet(LocalDesk(tap.hub), other, receive)
    tap.hub.trie.subscribe(other, b"t/#", 1)
    dispatched = tap.dispatch(450)
    tap.loop.turn()
    assert (broken, outlet.unsettled, outlet.waiting, dispatched.pending) == ([200, 200, 50], 0, 0, 450)
    tap.outlet.settle(450)
    assert dispatched.pending == 0
