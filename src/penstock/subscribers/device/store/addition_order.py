"""Keeps the additions to a queue in order when one of them fails.

Several additions to a queue may be under way, and the first may fail where the second would succeed, because it timed
out or is larger. The second would then be stored before the first is retried. So after a failure, all additions to the
queue fail until the callers know the result of every addition made so far.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.storage.state.base import StoreError
from penstock.subscribers.device.store.base import Queue, StoreFull, StoreUnavailable


class AdditionOrder:
    """`given` and `told` are called on the loop, `failed` and `failure` in any thread."""

    def __init__(self) -> None:
        self._untold: dict[Queue, int] = {}  # additions whose caller does not know the result
        self._failures: dict[Queue, tuple[int, StoreError]] = {}  # the oldest of each queue, and why
        self._last = 0

    def given(self, queue: Queue) -> int:
        """Return the number of an addition, which grows."""
        self._untold[queue] = self._untold.get(queue, 0) + 1
        self._last += 1
        return self._last

    def told(self, queues: Iterable[Queue]) -> None:
        """Note that the callers know the results of these additions."""
        for queue in queues:
            left = self._untold[queue] - 1
            if left:
                self._untold[queue] = left
            else:
                del self._untold[queue]
                self._failures.pop(queue, None)

    def failed(self, queue: Queue, number: int, error: StoreError) -> None:
        known = self._failures.get(queue)
        if known is None or number < known[0]:
            reason = f"an earlier addition to the queue failed: {error.message}"
            # Not the same class: a missing packet id for one addition means nothing for the others.
            kind = StoreFull if isinstance(error, StoreFull) else StoreUnavailable
            self._failures[queue] = number, kind(reason, error.hint)

    def failure(self, queue: Queue, number: int) -> StoreError | None:
        """Return why an addition has to fail, if an older one to the queue has failed."""
        known = self._failures.get(queue)
        return known[1] if known is not None and known[0] < number else None
