"""Memory that clients have freed is given back to the system, now and then."""

from __future__ import annotations

import threading

from penstock.broker.memory import MOST_OFTEN, WORTH_IT, MemoryKeeper, find_trim


def test_after_much_was_freed_and_not_too_often():
    held, now, done = [0], [1000.0], threading.Semaphore(0)
    keeper = MemoryKeeper(lambda: held[0], trim=lambda _: done.release() or 1, clock=lambda: now[0])
    keeper.look()
    held[0] = 3 * WORTH_IT
    keeper.look()
    held[0] = 2 * WORTH_IT + 1
    keeper.look()
    assert keeper.trims == 0
    held[0] = WORTH_IT
    keeper.look()
    assert done.acquire(timeout=10)
    held[0] = 0
    keeper.look()
    assert keeper.trims == 1
    now[0] += MOST_OFTEN
    keeper.look()
    keeper.look()
    assert done.acquire(timeout=10)
    assert keeper.trims == 2


def test_the_system_has_it():
    trim = find_trim()
    assert trim is None or trim(0) in (0, 1)
