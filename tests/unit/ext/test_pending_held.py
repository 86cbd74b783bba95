"""Pending entries that are held: messages that wait for a consumer which may receive them."""

from __future__ import annotations

import pytest

from penstock._ext.queue.pending import HELD, NOT_YOURS, READY, REJECTED, SETTLED, PendingList

A, B = 1, 2
DUE = 30_000


def claimed(count: int) -> PendingList:
    """By A, from offset 0 on."""
    pending = PendingList()
    for offset in range(count):
        pending.claim(offset, A, DUE)
    return pending


def test_from_the_cursor_on() -> None:
    pending = claimed(1)
    pending.hold(1)
    pending.hold(5)  # those between are none of the group's business
    assert (pending.cursor, pending.count, pending.ready_count, pending.committed) == (6, 3, 0, 0)
    assert [entry[:4] for entry in pending.entries(9)][1:] == [(1, HELD, 0, 0), (5, HELD, 0, 0)]
    with pytest.raises(ValueError, match="held"):
        pending.hold(3)


def test_nobody_settles_it() -> None:
    pending = PendingList()
    pending.hold(0)
    assert pending.settle(0, A) == pending.bury(0, A, REJECTED) == NOT_YOURS
    assert pending.release(A) == 0
    assert pending.claim_again(0, A, DUE) == 0
    assert pending.settle(0, 0) == SETTLED
    assert (pending.count, pending.committed) == (0, 1)


def test_released_it_is_given_for_the_first_time() -> None:
    pending = PendingList()
    pending.hold(0)
    assert pending.release_held(0)
    assert not pending.release_held(0)
    assert (pending.ready_count, pending.ready(9)) == (1, [0])
    assert pending.claim_again(0, A, DUE) == 1
    pending.hold(0)  # a claim is not held
    assert pending.settle(0, A) == SETTLED


def test_a_ready_entry_is_held_again() -> None:
    pending = claimed(2)
    pending.release(A)
    pending.hold(0)
    assert (pending.ready_count, pending.ready(9)) == (1, [1])
    assert pending.release_all_held() == 1
    assert pending.ready(9) == [0, 1]
    assert pending.claim_again(0, B, DUE) == 2


def test_it_ends_when_it_expires() -> None:
    pending = PendingList()
    pending.hold(0, 500)
    pending.hold(1)
    pending.hold(2, 400)
    assert pending.next_due == 400
    assert [taken[0] for taken in pending.take_due(450, 9, 3)] == [2]
    assert pending.release_all_held() == 2
    assert (pending.next_due, pending.ready(9)) == (-1, [0, 1, 2])


@pytest.mark.parametrize("due", [0, DUE])
def test_it_is_stored_as_ready(due: int) -> None:
    pending = PendingList()
    pending.hold(3, due)
    head, windows = pending.take_changes()
    again = PendingList()
    for number, value in windows:
        again.load_window(number, value)
    again.load_head(head)
    assert again.find(3) == (3, READY, 0, 0, 0, 0)
    assert (again.cursor, again.committed, again.ready_count) == (4, 3, 1)


def test_no_consumer_has_it() -> None:
    """So the overflow policy drop-oldest may drop it, like entries that wait for another delivery."""
    pending = claimed(2)
    pending.hold(2)
    pending.nack(1, A, DUE)
    pending.hold(3)
    pending.release_held(3)
    assert pending.unclaimed(9) == [1, 2, 3]
    assert pending.unclaimed(2) == [1, 2]
