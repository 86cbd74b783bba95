"""The pending entries of a consumer group: who may settle what, when something is due, and what is stored of it."""

from __future__ import annotations

import random
import struct

import pytest

from penstock._ext.queue.pending import (
    CLAIMED,
    DEAD,
    MAX_DELIVERIES,
    NOT_PENDING,
    NOT_YOURS,
    READY,
    REJECTED,
    SETTLED,
    WAITING,
    PendingList,
)

A, B = 1, 2
DUE = 30_000


def claimed(count: int, *, consumer: int = A, due: int = DUE, cursor: int = 0) -> PendingList:
    """Offsets from the cursor on, due one millisecond after the other."""
    pending = PendingList(cursor=cursor)
    for number in range(count):
        pending.claim(cursor + number, consumer, due + number)
    return pending


def restored(source: PendingList, *, keep_claims: bool = False) -> PendingList:
    head, windows = source.take_changes()
    target = PendingList()
    for number, value in windows:
        if value is not None:
            target.load_window(number, value, keep_claims=keep_claims)
    if head is not None:
        target.load_head(head)
    return target


class TestCursorAndCommitted:
    def test_the_example_of_the_reference(self) -> None:
        """Claim 0, 1; ack 0; ack 1: committed 0, 1, 2; cursor 2."""
        pending = claimed(2)
        seen = [pending.committed]
        for offset in (0, 1):
            assert pending.settle(offset, A) == SETTLED
            seen.append(pending.committed)
        assert seen == [0, 1, 2]
        assert pending.cursor == 2

    def test_committed_waits_for_the_lowest(self) -> None:
        pending = claimed(3)
        pending.settle(1, A)
        pending.settle(2, A)
        assert pending.committed == 0
        pending.settle(0, A)
        assert pending.committed == 3

    def test_begins_where_it_is_told(self) -> None:
        pending = PendingList(cursor=77)
        assert (pending.cursor, pending.committed, len(pending), pending.next_due) == (77, 77, 0, -1)

    def test_what_is_skipped_counts_as_settled(self) -> None:
        pending = PendingList()
        pending.skip_to(5)
        assert pending.committed == 5
        pending.claim(7, A, DUE)
        pending.skip_to(20)
        assert (pending.committed, pending.cursor) == (7, 20)
        pending.settle(7, A)
        assert pending.committed == 20

    def test_a_skip_never_goes_back(self) -> None:
        pending = claimed(3)
        pending.skip_to(1)
        assert pending.cursor == 3

    def test_a_claim_before_the_cursor_is_an_error(self) -> None:
        pending = claimed(3)
        with pytest.raises(ValueError, match="cursor"):
            pending.claim(2, A, DUE)
        assert len(pending) == 3

    def test_a_full_list_refuses(self) -> None:
        pending = PendingList(limit=2)
        pending.claim(0, A, DUE)
        assert not pending.is_full
        pending.claim(1, A, DUE)
        assert pending.is_full
        with pytest.raises(OverflowError, match="full"):
            pending.claim(2, A, DUE)
        assert (pending.cursor, len(pending)) == (2, 2)
        pending.settle(0, A)
        assert pending.claim(2, A, DUE) == 0

    def test_arguments_that_cannot_be(self) -> None:
        with pytest.raises(ValueError, match="cursor"):
            PendingList(cursor=-1)
        with pytest.raises(ValueError, match="limit"):
            PendingList(limit=2**31)
        with pytest.raises(ValueError, match="cursor"):
            claimed(1).reset(-1)


class TestWhoMaySettle:
    def test_settled_once(self) -> None:
        pending = claimed(1)
        assert [pending.settle(0, A), pending.settle(0, A), pending.settle(5, A)] == [SETTLED, NOT_PENDING, NOT_PENDING]

    def test_a_stranger_may_nothing(self) -> None:
        pending = claimed(1)
        assert pending.settle(0, B) == NOT_YOURS
        assert pending.nack(0, B, 1) == (NOT_YOURS, 0)
        assert pending.bury(0, B, REJECTED) == NOT_YOURS
        assert pending.entries(9) == [(0, CLAIMED, A, 1, DUE, 0)]

    @pytest.mark.parametrize("state", [WAITING, READY, DEAD])
    def test_what_nobody_has_is_the_brokers(self, state: int) -> None:
        pending = claimed(1)
        if state == WAITING:
            pending.nack(0, A, DUE)
        elif state == READY:
            pending.release(A)
        else:
            pending.bury(0, A, REJECTED)
        assert pending.settle(0, A) == NOT_YOURS
        assert pending.nack(0, A, DUE)[0] == NOT_YOURS
        assert pending.bury(0, A, REJECTED) == NOT_YOURS
        assert pending.settle(0, 0) == SETTLED
        assert len(pending) == 0
        assert (pending.ready_count, pending.dead_count, pending.next_due) == (0, 0, -1)

    def test_the_one_before_is_a_stranger_after_a_redelivery(self) -> None:
        pending = claimed(1)
        pending.take_due(DUE, 1, 0)
        assert pending.claim_again(0, B, DUE) == 2
        assert pending.settle(0, A) == NOT_YOURS
        assert pending.settle(0, B) == SETTLED

    def test_unknown_offsets(self) -> None:
        pending = PendingList()
        assert pending.nack(0, 0, 1) == (NOT_PENDING, 0)
        assert pending.bury(0, 0, REJECTED) == NOT_PENDING
        assert pending.claim_again(0, A, DUE) == 0
        assert pending.find(0) is None


class TestRedelivery:
    def test_a_nack_waits_and_counts_deliveries(self) -> None:
        pending = claimed(2)
        assert pending.nack(1, A, 5_000) == (SETTLED, 1)
        assert pending.find(1) == (1, WAITING, A, 1, 5_000, 0)
        assert pending.next_due == 5_000
        assert pending.take_due(4_999, 9, 0) == []
        assert pending.take_due(5_000, 9, 0) == [(1, 1, READY, 0)]
        assert pending.claim_again(1, B, 60_000) == 2
        assert pending.nack(1, B, 70_000) == (SETTLED, 2)

    def test_a_later_due_time_moves_back_in_the_order(self) -> None:
        pending = claimed(3)
        pending.nack(0, A, DUE + 100)
        assert pending.next_due == DUE + 1
        assert [offset for offset, *_ in pending.take_due(DUE + 200, 9, 0)] == [1, 2, 0]

    def test_every_delivery_restarts_the_clock(self) -> None:
        pending = claimed(1)
        pending.take_due(DUE, 9, 0)
        assert pending.next_due == -1
        pending.claim_again(0, A, 2 * DUE)
        assert pending.next_due == 2 * DUE
        assert pending.take_due(2 * DUE - 1, 9, 0) == []

    def test_only_ready_ones_are_claimed_again(self) -> None:
        pending = claimed(3)
        pending.nack(1, A, DUE)
        pending.bury(2, A, REJECTED)
        assert [pending.claim_again(offset, B, DUE) for offset in range(3)] == [0, 0, 0]

    def test_due_in_order_and_no_more_than_asked(self) -> None:
        pending = PendingList()
        dues = [50, 10, 40, 10, 30]
        for offset, due in enumerate(dues):
            pending.claim(offset, A, due)
        assert pending.take_due(45, 3, 0) == [(1, 1, READY, A), (3, 1, READY, A), (4, 1, READY, A)]
        assert pending.take_due(45, 3, 0) == [(2, 1, READY, A)]
        assert pending.take_due(45, 0, 0) == []
        assert pending.next_due == 50

    def test_too_many_deliveries_are_dead(self) -> None:
        pending = claimed(2)
        pending.take_due(DUE, 1, 2)
        pending.claim_again(0, A, DUE)
        assert pending.take_due(DUE + 1, 9, 2) == [(0, 2, DEAD, A), (1, 1, READY, A)]
        assert pending.dead(9) == [(0, MAX_DELIVERIES, 2)]
        assert pending.find(0) == (0, DEAD, 0, 2, 0, MAX_DELIVERIES)

    def test_without_a_limit_nothing_dies(self) -> None:
        pending = claimed(1)
        for delivery in range(2, 70_000):
            assert pending.take_due(DUE, 1, 0) == [(0, min(delivery - 1, 65_535), READY, A)]
            assert pending.claim_again(0, A, DUE) == min(delivery, 65_535)

    def test_release(self) -> None:
        pending = claimed(6)
        pending.take_due(DUE, 1, 0)
        pending.claim_again(0, B, DUE)
        pending.nack(1, A, DUE)
        pending.bury(2, A, REJECTED)
        assert pending.release(A) == 3
        assert pending.entries(9) == [
            (0, CLAIMED, B, 2, DUE, 0),
            (1, WAITING, 0, 1, DUE, 0),
            (2, DEAD, 0, 1, 0, REJECTED),
            (3, READY, 0, 1, 0, 0),
            (4, READY, 0, 1, 0, 0),
            (5, READY, 0, 1, 0, 0),
        ]
        assert pending.release(A) == 0
        assert pending.release(0) == 0

    def test_ready_and_dead_in_the_order_of_offsets(self) -> None:
        pending = claimed(10)
        assert pending.ready(9) == []
        assert pending.dead(9) == []
        for offset in (7, 3, 5):
            pending.nack(offset, A, 0)
            pending.take_due(0, 9, 0)
        for offset in (8, 2):
            pending.bury(offset, A, REJECTED)
        assert pending.ready(2) == [3, 5]
        assert pending.ready(9) == [3, 5, 7]
        assert pending.ready(0) == []
        assert pending.dead(1) == [(2, REJECTED, 1)]
        assert pending.dead(9) == [(2, REJECTED, 1), (8, REJECTED, 1)]
        assert (pending.ready_count, pending.dead_count) == (3, 2)
        pending.settle(3, 0)
        pending.settle(2, 0)
        assert pending.ready(9) == [5, 7]
        assert pending.dead(9) == [(8, REJECTED, 1)]
        assert pending.claim_again(5, B, DUE) == 2
        assert pending.ready(9) == [7]

    def test_the_broker_brings_back_a_dead_one(self) -> None:
        pending = claimed(1)
        pending.bury(0, A, REJECTED)
        assert pending.nack(0, 0, 100) == (SETTLED, 1)
        assert pending.dead_count == 0
        assert pending.find(0) == (0, WAITING, 0, 1, 100, 0)


class TestSizes:
    def test_grows_and_begins_again_when_empty(self) -> None:
        pending = claimed(5_000)
        order = list(range(5_000))
        random.Random(7).shuffle(order)
        for offset in order[:-1]:
            assert pending.settle(offset, A) == SETTLED
        assert (len(pending), pending.committed, pending.next_due) == (1, order[-1], DUE + order[-1])
        pending.settle(order[-1], A)
        assert (len(pending), pending.committed, pending.next_due) == (0, 5_000, -1)
        for offset in range(5_000, 5_300):
            pending.claim(offset, B, DUE)
        assert [entry[0] for entry in pending.entries(1_000)] == list(range(5_000, 5_300))

    def test_offsets_at_any_distance(self) -> None:
        pending = PendingList()
        offsets = [number << 40 for number in range(1_000)]
        for offset in offsets:
            pending.claim(offset, A, DUE)
        assert all(pending.find(offset) for offset in offsets)
        assert pending.find(1) is None

    def test_reset_forgets_and_goes_anywhere(self) -> None:
        pending = claimed(600)
        pending.bury(0, A, REJECTED)
        pending.release(A)
        pending.take_changes()
        pending.reset(10)
        assert (len(pending), pending.cursor, pending.committed, pending.next_due) == (0, 10, 10, -1)
        assert (pending.ready(9), pending.dead(9)) == ([], [])
        head, windows = pending.take_changes()
        assert windows == [(0, None), (1, None), (2, None)]
        assert head == struct.pack("<Bqq", 1, 10, 10)
        pending.claim(10, A, DUE)
        assert pending.settle(10, A) == SETTLED


class TestChanges:
    def test_nothing_changed(self) -> None:
        pending = PendingList()
        assert pending.take_changes() == (None, [])
        pending.skip_to(0)
        assert pending.take_changes() == (None, [])

    def test_only_what_changed(self) -> None:
        pending = claimed(1_000)
        head, windows = pending.take_changes()
        assert head == struct.pack("<Bqq", 1, 1_000, 0)
        assert [number for number, _ in windows] == [0, 1, 2, 3]
        pending.settle(300, A)
        pending.nack(999, A, 5)
        pending.settle(301, A)
        head, windows = pending.take_changes()
        assert head is None
        assert [number for number, _ in windows] == [1, 3]
        assert pending.take_changes() == (None, [])

    def test_every_change_is_noticed(self) -> None:
        pending = claimed(1)
        pending.take_changes()

        def changed() -> bool:
            return bool(pending.take_changes()[1])

        pending.nack(0, A, 0)
        assert changed()
        pending.take_due(0, 1, 0)
        assert changed()
        pending.claim_again(0, A, 0)
        assert changed()
        pending.release(A)
        assert changed()
        pending.bury(0, 0, REJECTED)
        assert changed()
        pending.settle(0, B)
        assert not changed()
        pending.settle(0, 0)
        assert changed()

    def test_the_head_follows_cursor_and_committed(self) -> None:
        pending = claimed(2)
        pending.take_changes()
        pending.settle(1, A)
        assert pending.take_changes()[0] is None
        pending.settle(0, A)
        assert pending.take_changes()[0] == struct.pack("<Bqq", 1, 2, 2)
        pending.skip_to(9)
        assert pending.take_changes() == (struct.pack("<Bqq", 1, 9, 9), [])

    def test_an_empty_window_is_removed(self) -> None:
        pending = claimed(3, cursor=255)
        pending.take_changes()
        for offset in (256, 257):
            pending.settle(offset, A)
        assert pending.take_changes() == (None, [(1, None)])
        pending.settle(255, A)
        assert pending.take_changes()[1] == [(0, None)]

    def test_many_windows_at_once_without_duplicates(self) -> None:
        pending = PendingList(limit=1_000)
        for number in range(500):
            pending.claim(number << 8, A, DUE)
        for number in random.Random(3).sample(range(500), 500):
            pending.nack(number << 8, A, DUE)
        _, windows = pending.take_changes()
        assert [number for number, _ in windows] == list(range(500))

    def test_forgotten_changes(self) -> None:
        pending = claimed(5_000)
        pending.forget_changes()
        assert pending.take_changes() == (None, [])
        pending.settle(0, A)
        assert [number for number, _ in pending.take_changes()[1]] == [0]

    def test_an_entry_is_a_few_bytes(self) -> None:
        """A whole window of claims within a second: what a change writes."""
        pending = PendingList()
        for offset in range(256):
            pending.claim(offset, A, 1_790_000_000_000 + 4 * offset)
        _, [(_, value)] = pending.take_changes()
        assert len(value) < 256 * 6


class TestRestoring:
    def full(self) -> PendingList:
        pending = claimed(6, cursor=254, due=1_790_000_000_000)
        pending.nack(255, A, 1_790_000_500_000)
        pending.bury(256, A, REJECTED)
        pending.settle(257, A)
        pending.take_due(1_790_000_000_004, 1, 0)
        pending.claim_again(254, B, 1_789_999_999_999)
        pending.nack(258, A, 5)
        pending.take_due(5, 1, 0)
        pending.skip_to(300)
        return pending

    def test_claims_become_ready(self) -> None:
        target = restored(self.full())
        assert target.entries(9) == [
            (254, READY, 0, 2, 0, 0),
            (255, WAITING, 0, 1, 1_790_000_500_000, 0),
            (256, DEAD, 0, 1, 0, REJECTED),
            (258, READY, 0, 1, 0, 0),
            (259, READY, 0, 1, 0, 0),
        ]
        assert (target.cursor, target.committed) == (300, 254)
        assert (target.ready(9), target.dead(9)) == ([254, 258, 259], [(256, REJECTED, 1)])
        assert target.take_changes() == (None, [])

    def test_claims_are_kept(self) -> None:
        target = restored(self.full(), keep_claims=True)
        assert target.find(254) == (254, CLAIMED, 0, 2, 1_789_999_999_999, 0)
        assert target.find(259) == (259, CLAIMED, 0, 1, 1_790_000_000_005, 0)
        assert target.next_due == 1_789_999_999_999

    def test_a_kept_claim_is_settled_by_its_unknown_owner(self) -> None:
        target = restored(claimed(3), keep_claims=True)
        assert target.settle(0, B) == SETTLED
        assert target.nack(1, A, 5) == (SETTLED, 1)
        assert target.settle(1, A) == NOT_YOURS
        assert target.release(A) == 0

    @pytest.mark.parametrize("order", ["rising", "falling", "mixed"])
    @pytest.mark.parametrize("head_first", [True, False])
    def test_any_order_of_windows(self, order: str, head_first: bool) -> None:
        source = PendingList()
        rng = random.Random(11)
        for offset in sorted(rng.sample(range(256 * 40), 700)):
            source.claim(offset, A, rng.randrange(1_000))
        head, windows = source.take_changes()
        assert head is not None
        if order == "falling":
            windows.reverse()
        elif order == "mixed":
            rng.shuffle(windows)
        target = PendingList()
        if head_first:
            target.load_head(head)
        for number, value in windows:
            assert value is not None
            target.load_window(number, value, keep_claims=True)
        if not head_first:
            assert target.load_head(head) == source.committed
        expected = [(offset, state, 0, *rest) for offset, state, _, *rest in source.entries(1_000)]
        assert target.entries(1_000) == expected
        assert (target.cursor, target.committed) == (source.cursor, source.committed)
        assert [item[:3] for item in target.take_due(1_000, 1_000, 0)] == [
            item[:3] for item in source.take_due(1_000, 1_000, 0)
        ]

    def test_the_cursor_is_behind_everything_pending(self) -> None:
        """The head was not written before a crash, or an older one was."""
        source = claimed(300)
        old_head = struct.pack("<Bqq", 1, 7, 7)
        _, windows = source.take_changes()
        for head_first in (True, False):
            target = PendingList()
            if head_first:
                target.load_head(old_head)
            for number, value in windows:
                assert value is not None
                target.load_window(number, value)
            if not head_first:
                target.load_head(old_head)
            assert target.cursor == 300

    def test_times_and_offsets_at_the_edges(self) -> None:
        source = PendingList(cursor=2**62)
        for number, due in enumerate((0, 2**63 - 1, -(2**63), 5, 2**41)):
            source.claim(2**62 + number, A, due)
        target = restored(source, keep_claims=True)
        assert [entry[4] for entry in target.entries(9)] == [0, 2**63 - 1, -(2**63), 5, 2**41]

    def test_a_lowered_limit_loses_nothing(self) -> None:
        head, windows = claimed(20).take_changes()
        target = PendingList(limit=5)
        assert windows[0][1] is not None
        target.load_window(0, windows[0][1])
        assert head is not None
        target.load_head(head)
        assert len(target) == 20
        assert target.is_full
        with pytest.raises(OverflowError):
            target.claim(20, A, DUE)

    def test_a_window_is_loaded_once(self) -> None:
        _, [(number, value)] = claimed(3).take_changes()
        assert value is not None
        target = PendingList()
        target.load_window(number, value)
        with pytest.raises(ValueError, match="before"):
            target.load_window(number, value)
        assert len(target) == 3

    @pytest.mark.parametrize(
        "value",
        [
            b"",
            b"\x02",
            b"\x01\x00",
            b"\x01\x00\x03",
            b"\x01\x00\x01\x01",  # a claim without its time
            b"\x01\x00\x04\x01",  # dead without a reason
            b"\x01\x00\x00\x01",
            b"\x01\x00\x05\x01",
            b"\x01\x05\x03\x01\x05\x03\x01",  # one place twice
            b"\x01\x00\x03" + b"\xff" * 12,
            b"\x01\x00\x03\x80",
        ],
    )
    def test_a_damaged_window(self, value: bytes) -> None:
        target = PendingList()
        with pytest.raises(ValueError, match="stored window"):
            target.load_window(0, value)
        assert (len(target), target.cursor) == (0, 0)

    @pytest.mark.parametrize(
        "head",
        [b"", b"\x01", struct.pack("<Bqq", 2, 5, 5), struct.pack("<Bqq", 1, -1, -1), struct.pack("<Bqq", 1, 4, 5)],
    )
    def test_a_damaged_head(self, head: bytes) -> None:
        target = PendingList()
        with pytest.raises(ValueError, match="stored head"):
            target.load_head(head)
        assert target.cursor == 0

    def test_windows_that_cannot_be(self) -> None:
        for number in (-1, 2**55):
            with pytest.raises(ValueError, match="cannot be"):
                PendingList().load_window(number, b"\x01")

    def test_stored_bytes_stay_readable(self) -> None:
        """Version 1 of the format, byte by byte; data directories hold it."""
        target = PendingList()
        target.load_window(2, bytes.fromhex("01 00 01 01 d00f 00 01 02 8002 02 05 03 03 07 04 01 02"), keep_claims=True)
        assert target.entries(9) == [
            (512, CLAIMED, 0, 1, 1_000, 0),
            (513, WAITING, 0, 256, 1_001, 0),
            (517, READY, 0, 3, 0, 0),
            (519, DEAD, 0, 1, 0, MAX_DELIVERIES),
        ]


def test_nothing_is_due_later_than_it_can_be() -> None:
    """The clock was set back while the broker was down."""
    pending = PendingList()
    for offset in range(3):
        pending.claim(offset, A, 90_000 + offset)
    pending.nack(1, A, 95_000)
    pending.cap_due(50_000, 20_000)
    assert [entry[4] for entry in pending.entries(9)] == [50_000, 20_000, 50_000]
    assert pending.next_due == 20_000
    assert pending.take_due(50_000, 9, 0)[0][0] == 1


def test_how_often_it_was_nacked_is_stored() -> None:
    """The pause after the next nack is as long as without a restart; of what waits, and of what is ready again."""
    pending = PendingList()
    for offset, nacks in ((0, 2), (1, 40)):
        pending.claim(offset, A, 10)
        for _ in range(nacks):
            pending.nack(offset, A, 10)
            pending.take_due(10, 9, 0)
            pending.claim_again(offset, A, 10)
    pending.nack(1, A, 500)
    stored = pending.take_changes()[1]
    for _ in range(2):
        again = PendingList()
        for number, value in stored:
            again.load_window(number, value)
        assert [entry[1] for entry in again.entries(9)] == [READY, WAITING]
        again.claim_again(0, A, 10)  # so that there is something to store
        again.release(A)
        stored = again.take_changes()[1]
        [(_, value)] = stored
        assert (value[2] >> 3, value[5] >> 3) == (2, 31)
